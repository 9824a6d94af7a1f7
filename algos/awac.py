"""AWAC: Advantage Weighted Actor-Critic (Nair, Gupta, Dalal, Levine 2020, arXiv 2006.09359).

The critics' targets use actions sampled from the policy, as in SAC. The policy imitates the data's actions, weighted by
their advantages. This keeps the policy near the data offline, and the same losses can continue online.

    critic   L_Q  = E[(Q_i(s, a) - y)^2],  y = r + gamma (1 - terminated) min_i Q_i'(s', a'),  a' ~ pi(s')   (Eq. 8)
    actor    L_pi = E[-exp(A(s, a) / lambda) log pi(a|s)]                                                     (Eq. 13)
             A    = min_i Q_i(s, a) - min_i Q_i(s, a~),  a~ ~ pi(s)

Deviations, as in CORL: weights are clipped at 100 instead of normalized over the batch; networks have three hidden
layers; the policy is a Gaussian whose mean is not squashed and whose samples are clipped to the bounds.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import above, check
from zoo.data.batch import Batch
from zoo.nn import EnsembleCritic, GaussianPolicy, Normalizer, polyak_update
from zoo.nn.heads import value_head
from zoo.nn.optim import Adam
from zoo.runs.online import learn_online
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "offline"
SETTING = "offline to online"
DATA = "required"
ACTION_SPACES = ("continuous",)


@dataclass
class Config:
    temperature: float = 1.0  # lambda of Eq. 13: the smaller, the more the best actions count; CORL: 0.3333, 0.1
    max_weight: float = 100.0  # the exponential of Eq. 13 is clipped here
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, actor and critics
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate, actor
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    batch_size: int = 256  # transitions per update
    normalize_obs: bool = True  # observations to mean 0 and standard deviation 1 over the dataset (CORL)
    normalize_reward: bool = False  # rewards times 1000 / (largest - smallest episode return)
    value_head: str = "mse"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins; null computes it from the returns in the data
    v_max: float | None = None  # largest value of the bins; null computes it too
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        check(self, temperature=above(0, "CORL takes 0.1 and 0.3333"))


class Policy(GaussianPolicy):
    """A Gaussian with an unbounded mean; its actions are clipped to the bounds."""

    def mean(self, obs: Tensor) -> Tensor:
        mean: Tensor = self.center + self.scale * self.net(obs)
        return mean

    def mode(self, obs: Tensor) -> Tensor:
        return self.clip(self.mean(obs))


class AWAC(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.head = value_head(config)
        self.actor = Policy(spec.obs_dim, spec.action_low, spec.action_high, config.hidden, (-20.0, 2.0))
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Eq. 8, summed over the critics, and their mean value."""
        with torch.no_grad():
            next_out = self.head.min_member(self.target_critic(batch.next_obs, self.actor.sample(batch.next_obs)))
            target = self.head.backup(batch.reward, self.config.discount * ~batch.terminated, next_out)
        out = self.critic(batch.obs, batch.action)  # [2, B, outputs]
        return self.head.loss(out, target).mean(-1).sum(), self.head.value(out.detach()).mean()

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Eq. 13, and the mean advantage."""
        with torch.no_grad():
            own = self.actor.sample(batch.obs)
            q, v = (self.head.value(self.critic(batch.obs, action)).amin(0) for action in (batch.action, own))
            weight = torch.exp((q - v) / self.config.temperature).clamp(max=self.config.max_weight)
        return -(weight * self.actor.log_prob(batch.obs, batch.action)).mean(), (q - v).mean()

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of the critics, then of the actor; then the target critics move."""
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        actor_loss, advantage = self.actor_loss(batch)
        self.actor_optimizer.minimize(actor_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "advantage": advantage,
            "q": q,
            **self.head.metrics(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.sample(obs) if explore else self.actor.mode(obs)


def train(run: "Run", config: Config) -> AWAC:
    data = run.dataset()
    agent = AWAC(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(data.sample(config.batch_size)))
    learn_online(run, agent, data, config.batch_size)
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
