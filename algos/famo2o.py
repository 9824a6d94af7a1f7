"""FamO2O: a family of policies from offline to online (Wang, Yang, Gao et al. 2023, arXiv 2310.17966), over IQL.

IQL clones actions weighted by exp(beta A): the higher beta is, the further the policy moves from the data. No beta is
right everywhere. So one network, the family, learns the policies for all beta in a range. A second one, the balance
policy pi_b, chooses beta for each state to maximize the action's value. The balance policy is trained on the dataset
too, but the family learns at the chosen beta only from the first online step on.

    value    L_V  = E[L2^tau(min Q'(s, a) - V(s))],  L2^tau(u) = |tau - 1(u < 0)| u^2                 (IQL, Eq. 5)
    family   L_pi = E[-exp(b (min Q'(s, a) - V(s))) log pi(a|s, b)]                                    (Eq. 5)
             b ~ U(lowest, highest) offline, b ~ pi_b(s) online
    balance  L_b  = E[alpha log pi_b(b|s) - min Q'(s, a)],  a ~ pi(s, b),  b ~ pi_b(s)                 (Eq. 6)
    alpha    L_a  = E[-alpha (log pi_b(b|s) + target entropy)]
    critic   L_Q  = E[(r + gamma (1 - terminated) V(s') - Q(s, a))^2]                                 (IQL, Eq. 6)

The family receives b as sines and cosines. The agent acts by the mode of pi_b, and by the mode of pi unless it
explores. The paper's other version, on top of CQL, is left out: in its authors' code b can leave the range that the
family is trained on. Deviations from the authors' code (github LeapLabTHU/FamO2O, jax_iql): networks have PyTorch's
initialization, not an orthogonal one; the standard deviation of pi_b depends on the state; the actions that L_b values
are clipped to the bounds; an action's weight in L_pi has its own b, as in Eq. 5, whereas that code's arrays broadcast
to `[B, B]`, so that its weight is the mean over all b of the batch.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, check
from zoo.data.batch import Batch
from zoo.nn import MLP, EnsembleCritic, GaussianPolicy, Normalizer, TanhGaussian, polyak_update
from zoo.nn.optim import Adam
from zoo.runs.online import learn_online
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "offline"
SETTING = "offline to online"
DATA = "required"
ACTION_SPACES = ("continuous",)

WAVES = (1.0, 10_000 ** (1 / 3), 10_000 ** (2 / 3))  # b divided by each goes into a sine and a cosine


@dataclass
class Config:
    lowest: float = 1.0  # least b of the family; the authors, on AntMaze: 8
    highest: float = 5.0  # greatest b; the authors, on AntMaze: 14
    expectile: float = 0.7  # tau; AntMaze: 0.9
    max_weight: float = 100.0  # the exponential of L_pi is clipped here
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate, family, balance and temperature
    critic_lr: float = 3e-4  # Adam's learning rate, critics and value
    batch_size: int = 256  # transitions per update
    target_entropy: float = -0.5  # nats, of b rescaled to [-1, 1]
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset
    normalize_reward: bool = True  # rewards times 1000 / (largest - smallest episode return); for locomotion

    def __post_init__(self) -> None:
        check(self, lowest=at_least(0))
        if self.lowest >= self.highest:
            raise ValueError(f"algo.lowest={self.lowest} must be below algo.highest={self.highest}")


def encoded(b: Tensor) -> Tensor:
    """The sine and cosine of b `[..., 1]` divided by each wave, in turn: `[..., 6]`."""
    over = torch.cat([b / wave for wave in WAVES], -1)
    return torch.stack([over.sin(), over.cos()], -1).flatten(-2)


class FamO2O(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        inputs = spec.obs_dim + 2 * len(WAVES)
        self.actor = GaussianPolicy(inputs, spec.action_low, spec.action_high, config.hidden)  # the family
        self.balance = TanhGaussian(spec.obs_dim, (config.lowest,), (config.highest,), config.hidden)
        self.value = MLP(spec.obs_dim, 1, config.hidden)
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.nn.Parameter(torch.zeros(()))
        self.target_entropy = self.balance.target_entropy(config.target_entropy)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.balance_optimizer = Adam(self.balance.parameters(), config.actor_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.actor_lr)
        self.value_optimizer = Adam(self.value.parameters(), config.critic_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)

    def least_value(self, obs: Tensor, action: Tensor) -> Tensor:
        """min Q' `[B]`."""
        q: Tensor = self.target_critic(obs, action).squeeze(-1)
        return q.amin(0)

    def value_loss(self, batch: Batch, target_q: Tensor) -> Tensor:
        """L_V."""
        advantage = target_q - self.value(batch.obs).squeeze(-1)
        weight = torch.where(advantage >= 0, self.config.expectile, 1 - self.config.expectile)
        loss: Tensor = (weight * advantage.square()).mean()
        return loss

    def balance_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """L_b, b `[B, 1]`, and log pi_b(b|s) `[B]`."""
        b, log_prob = self.balance.sample(batch.obs)
        q = self.least_value(batch.obs, self.actor.sample(torch.cat([batch.obs, encoded(b)], -1)))
        return (self.log_alpha.exp().detach() * log_prob - q).mean(), b.detach(), log_prob.detach()

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """L_a."""
        return -(self.log_alpha.exp() * (log_prob + self.target_entropy)).mean()

    def actor_loss(self, batch: Batch, target_q: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """L_pi for b `[B, 1]`, and the advantages `[B]`."""
        with torch.no_grad():
            advantage = target_q - self.value(batch.obs).squeeze(-1)
            weight = torch.exp(b.squeeze(-1) * advantage).clamp(max=self.config.max_weight)
        loss = self.actor.cloning_loss(torch.cat([batch.obs, encoded(b)], -1), batch.action)
        return (weight * loss).mean(), advantage

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q, the mean over both critics, and their mean value."""
        with torch.no_grad():
            next_value = self.value(batch.next_obs).squeeze(-1)
            target = batch.reward + self.config.discount * ~batch.terminated * next_value
        q = self.critic(batch.obs, batch.action).squeeze(-1)
        return (q - target).square().mean(), q.detach().mean()

    def update(self, batch: Batch, balanced: bool = False) -> Metrics:
        """One gradient step of value, balance, temperature, family and critics, in this order; then the targets move.

        Args:
            batch: transitions.
            balanced: the family learns at the balance policy's b, not at uniform ones.
        """
        with torch.no_grad():
            target_q = self.least_value(batch.obs, batch.action)
        value_loss = self.value_loss(batch, target_q)
        self.value_optimizer.minimize(value_loss)
        balance_loss, b, log_prob = self.balance_loss(batch)
        self.balance_optimizer.minimize(balance_loss)
        self.alpha_optimizer.minimize(self.alpha_loss(log_prob))
        if not balanced:
            b = self.balance.center + self.balance.scale * (2 * torch.rand_like(b) - 1)
        actor_loss, advantage = self.actor_loss(batch, target_q, b)
        self.actor_optimizer.minimize(actor_loss)
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "advantage": advantage.mean(),
            "balance": self.balance.mode(batch.obs).detach().mean(),
            "alpha": self.log_alpha.detach().exp(),
            "q": q,
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        inputs = torch.cat([obs, encoded(self.balance.mode(obs))], -1)
        return self.actor.sample(inputs) if explore else self.actor.mode(inputs)


def train(run: "Run", config: Config) -> FamO2O:
    data = run.dataset()
    agent = FamO2O(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(data.sample(config.batch_size)))
    learn_online(run, agent, data, config.batch_size, update=lambda batch, _: agent.update(batch, balanced=True))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
