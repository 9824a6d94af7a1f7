"""ReCOIL: imitation from few expert episodes and unlabelled data (Sikchi, Zheng et al. 2023, arXiv 2302.08560).

Offline imitation without rewards and without a discriminator. Half of every batch is expert data. The other half is a
mixture of unlabelled data of any quality, which may contain expert episodes. The critics give the expert's actions the
highest possible value, and every step of the mixture a cost. Values are backed up along the mixture's transitions, so
that actions that lead to the expert's states are worth more than others. The policy imitates the mixture's actions,
weighted by their advantage.

    critic   L_Q  = sum over i of E_expert[(Q_i(s, a) - M)^2] / 2 + E_mixture[(Q_i(s, a) - y)^2] / 2,
             y    = -2 + gamma V(s'), and -M where the episode terminated;  M = 2 / (1 - gamma)
    value    L_V  = E_mixture[exp(z) - z - 1],  z = (min Q'(s, a) - V(s)) / lambda
    actor    L_pi = E_mixture[-exp(beta (min Q'(s, a) - V(s))) log pi(a|s)]

The paper's objective has terms that are linear in Q and unbounded. The losses here are those of the authors' code,
which replace these terms by the bounds of LS-IQ (Al-Hafez et al. 2023, arXiv 2303.00599): values lie between -M and M,
200 in their code. L_V is the dual of reverse KL, as in Extreme Q-Learning. It is divided by the exponential of the
batch's largest z, the expert's half included, and z is clipped; weights are clipped at 100. Where Q diverges, a higher
lambda prevents it: 2.5, 5, 10, 20. Deviations from the authors' code (a copy: github chufanchen/ReCOIL): networks have
PyTorch's initialization, not an orthogonal one; the data's actions are not clipped to 1 - 1e-5, and layer normalization
adds 1e-5 to the variance, not 1e-6; the code's expectile loss, gradient penalty, uniform actions and noise, all off by
default, are left out.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import above, between, check
from zoo.data.batch import Batch, mixed
from zoo.nn import MLP, EnsembleCritic, GaussianPolicy, Normalizer, polyak_update
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "offline"
SETTING = "offline"
DATA = "required"
ACTION_SPACES = ("continuous",)


@dataclass
class Config:
    expert: str = "1ep:expert"  # expert episodes, named like `dataset`; 1ep:NAME is the first episode of NAME
    temperature: float = 5.0  # lambda: the lower it is, the nearer V is to the largest of the critics' values
    max_exponent: float = 7.0  # z is clipped here
    beta: float = 3.0  # inverse temperature of the actor's weights
    max_weight: float = 100.0  # the actor's weights are clipped here
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, all networks
    value_layer_norm: bool = False  # layer normalization in the value; the authors: may help on halfcheetah, walker2d
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate at the start; falls to 0 by a cosine
    critic_lr: float = 3e-4  # Adam's learning rate, critics and value
    batch_size: int = 256  # transitions of the mixture in an update, and as many of the expert's; the authors take 1024
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the mixture

    def __post_init__(self) -> None:
        check(self, temperature=above(0), discount=between(0, 1, "left", "values are bounded by 2 / (1 - discount)"))


class ReCOIL(Agent):
    def __init__(self, spec: Spec, config: Config, total_steps: int = 1_000_000) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.bound = 2 / (1 - config.discount)  # M
        self.normalizer = Normalizer(spec.obs_shape)
        self.actor = GaussianPolicy(spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.value = MLP(spec.obs_dim, 1, config.hidden, layer_norm=config.value_layer_norm, norm_first=True)
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.value_optimizer = Adam(self.value.parameters(), config.critic_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr, total_steps)

    def value_loss(self, batch: Batch, target_q: Tensor) -> Tensor:
        """L_V; `target_q` are the target critics' least values `[2 B]` of the mixture's and the expert's actions."""
        z = (target_q - self.value(batch.obs).squeeze(-1)) / self.config.temperature
        z = z.clamp(max=self.config.max_exponent)
        largest = z.detach().amax().clamp(min=-1)
        mixture, _ = z.chunk(2)
        loss: Tensor = (torch.exp(mixture - largest) - (mixture + 1) * torch.exp(-largest)).mean()
        return loss

    def actor_loss(self, batch: Batch, target_q: Tensor) -> tuple[Tensor, Tensor]:
        """L_pi, and the advantages `[B]` of the mixture's actions; `target_q` as in `value_loss`."""
        (obs, _), (action, _), (q, _) = batch.obs.chunk(2), batch.action.chunk(2), target_q.chunk(2)
        with torch.no_grad():
            advantage = q - self.value(obs).squeeze(-1)
            weight = torch.exp(self.config.beta * advantage).clamp(max=self.config.max_weight)
        return (weight * self.actor.cloning_loss(obs, action)).mean(), advantage

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """L_Q, and the critics' mean values of the mixture's and of the expert's actions."""
        (next_obs, _), (terminated, _) = batch.next_obs.chunk(2), batch.terminated.chunk(2)
        with torch.no_grad():
            next_value = torch.where(terminated, -self.bound, self.value(next_obs).squeeze(-1))
            target = -2 + self.config.discount * next_value  # [B]; -M where the episode terminated
        q, expert_q = self.critic(batch.obs, batch.action).squeeze(-1).chunk(2, -1)  # [2, B] each
        loss = 0.5 * (expert_q - self.bound).square() + 0.5 * (q - target).square()
        return loss.mean(-1).sum(), q.detach().mean(), expert_q.detach().mean()

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of value, actor and critics, in this order; then the target critics move.

        Args:
            batch: `2 B` transitions, of which the first half is the mixture's, the second the expert's.
        """
        with torch.no_grad():
            target_q = self.target_critic(batch.obs, batch.action).squeeze(-1).amin(0)  # [2 B]
        value_loss = self.value_loss(batch, target_q)
        self.value_optimizer.minimize(value_loss)
        actor_loss, advantage = self.actor_loss(batch, target_q)
        self.actor_optimizer.minimize(actor_loss)
        critic_loss, q, expert_q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "advantage": advantage.mean(),
            "q": q,
            "expert_q": expert_q,
        }

    def critic_values(self, obs: Tensor, action: Tensor) -> None:
        """None: the critics' values are not of rewards."""
        return

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.sample(obs) if explore else self.actor.mode(obs)


def train(run: "Run", config: Config) -> ReCOIL:
    data = run.dataset()
    expert = run.demonstrations(config.expert)
    agent = ReCOIL(data.spec, config, total_steps=run.config.steps)
    data.prepare(agent, config)
    if config.normalize_obs:
        expert.map_obs(agent.normalizer)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(mixed(data.sample(config.batch_size), expert.sample(config.batch_size))))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
