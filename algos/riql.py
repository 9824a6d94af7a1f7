"""RIQL: Robust IQL (Yang, Zhong, Xu, Zhang, Zhang, Han, Zhang 2023, arXiv 2310.12955), for corrupted data.

IQL with three changes. Observations are normalized, which matters more where some are corrupted. The critics regress
their targets, which corrupted dynamics make heavy-tailed, with the Huber loss. A low quantile of several critics
replaces their minimum, which a single wrong critic can drag down.

    value    L_V  = E[L2^tau(Q_alpha(s, a) - V(s))],  Q_alpha = the alpha-quantile of the K Q_i'(s, a)      (Eq. 9)
    critic   L_Q  = E[l(r + gamma (1 - terminated) V(s') - Q_i(s, a))],                                    (Eq. 8)
             l(x) = (sigma x)^2 / 2 where |x| < 1 / sigma^2, else |x| - 1 / (2 sigma^2)
    actor    L_pi = E[-exp(beta (Q_alpha(s, a) - V(s))) log pi(a|s)]                                       (Eq. 10)

Read this file beside iql.py, from which it differs in `target_q`, `critic_loss`, `normalize_obs` and the default of
`normalize_reward`; it has no discrete actions and no online stage. As in the authors'
code (github YangRui2015/RIQL), targets are clipped to [-100, 1000], observations are normalized by the statistics of
observations and next observations together, the critics begin with small weights, and the default policy is
deterministic (-log pi is the squared error). The initialization matters: with that of nn.Linear, the return of every
run on corrupted rewards or dynamics collapsed in one evaluation or more. Deviation: the mean of policy=gaussian is
within the bounds, theirs is not.
"""

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import above, at_least, between, check, one_of
from zoo.data.batch import Batch
from zoo.nn import MLP, DeterministicPolicy, EnsembleCritic, GaussianPolicy, Normalizer, fan_out_critic_, polyak_update
from zoo.nn.heads import CATEGORICAL, SCALAR, value_head
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
    num_critics: int = 5  # K; 3 in some of the paper's tasks
    quantile: float = 0.25  # alpha of Eq. 9; near 0 it is the minimum
    sigma: float = 1.0  # of the Huber loss, which is quadratic up to errors of 1 / sigma^2; 0.1 to 3 in the paper
    target_bounds: list[float] = field(default_factory=lambda: [-100.0, 1000.0])  # bounds of the critics' targets
    expectile: float = 0.7  # tau of Eq. 9
    beta: float = 3.0  # inverse temperature of Eq. 10
    max_weight: float = 100.0  # the exponential of Eq. 10 is clipped here
    policy: str = "deterministic"  # deterministic, whose -log pi is the squared error; or gaussian
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate at the start; falls to 0 by a cosine over all steps
    critic_lr: float = 3e-4  # Adam's learning rate, critics and value
    batch_size: int = 256  # transitions per update
    normalize_obs: bool = True  # observations to mean 0 and standard deviation 1 over the dataset
    normalize_reward: bool = False  # rewards times 1000 / (largest - smallest episode return)
    value_head: str = "mse"  # mse and huber: Eq. 8's loss; or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins; null computes it from the returns in the data
    v_max: float | None = None  # largest value of the bins; null computes it too
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        check(
            self,
            num_critics=at_least(1, "the paper takes 3 or 5"),
            quantile=between(0, 1, "neither", "the paper takes 0.1 to 0.5"),
            sigma=above(0, "the paper takes 0.1 to 3"),
            policy=one_of("gaussian", "deterministic"),
        )
        if len(self.target_bounds) != 2 or not self.target_bounds[0] < self.target_bounds[1]:
            raise ValueError(f"algo.target_bounds={self.target_bounds} must be two, the lower first: [-100,1000]")


def huber(x: Tensor, sigma: float) -> Tensor:
    """l of Eq. 8."""
    size, bend = x.abs(), 1 / sigma**2
    return torch.where(size < bend, 0.5 * (sigma * x).square(), size - 0.5 * bend)


class RIQL(Agent):
    def __init__(self, spec: Spec, config: Config, total_steps: int = 1_000_000) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        policy = GaussianPolicy if config.policy == "gaussian" else DeterministicPolicy
        self.actor = policy(spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.value = MLP(spec.obs_dim, 1, config.hidden)
        self.head = value_head(config)
        self.critic = EnsembleCritic(
            config.num_critics, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs
        )
        fan_out_critic_(self.critic)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.value_optimizer = Adam(self.value.parameters(), config.critic_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr, total_steps)

    def target_q(self, batch: Batch) -> Tensor:
        """Q_alpha `[B]`, by linear interpolation."""
        values = self.head.value(self.target_critic(batch.obs, batch.action))  # [K, B]
        return values.quantile(self.config.quantile, 0)

    def value_loss(self, batch: Batch, target_q: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 9, and the advantages `[B]`."""
        advantage = target_q - self.value(batch.obs).squeeze(-1)
        weight = torch.where(advantage >= 0, self.config.expectile, 1 - self.config.expectile)
        return (weight * advantage.square()).mean(), advantage.detach()

    def critic_loss(self, batch: Batch, next_value: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 8, the mean over all critics, and their mean value."""
        target = batch.reward + self.config.discount * ~batch.terminated * next_value
        target = target.clamp(*self.config.target_bounds)
        out = self.critic(batch.obs, batch.action)  # [K, B, outputs]
        q = self.head.value(out)
        if self.config.value_head in SCALAR:
            return huber(target - q, self.config.sigma).mean(), q.detach().mean()
        return self.head.loss(out, self.head.project(target)).mean(), q.detach().mean()

    def actor_loss(self, batch: Batch, advantage: Tensor) -> Tensor:
        """Eq. 10."""
        weight = torch.exp(self.config.beta * advantage).clamp(max=self.config.max_weight)
        return (weight * self.actor.cloning_loss(batch.obs, batch.action)).mean()

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of value, actor and critics from the parameters before it; then the target critics move."""
        with torch.no_grad():
            target_q = self.target_q(batch)
            next_value = self.value(batch.next_obs).squeeze(-1)  # [B]
        value_loss, advantage = self.value_loss(batch, target_q)
        self.value_optimizer.minimize(value_loss)
        actor_loss = self.actor_loss(batch, advantage)
        self.actor_optimizer.minimize(actor_loss)
        critic_loss, q = self.critic_loss(batch, next_value)
        self.critic_optimizer.minimize(critic_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "advantage": advantage.mean(),
            "q": q,
            **self.head.metrics(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.sample(obs) if explore else self.actor.mode(obs)


def train(run: "Run", config: Config) -> RIQL:
    data = run.dataset()
    agent = RIQL(data.spec, config, total_steps=run.config.steps)
    if config.normalize_reward:
        data.normalize_reward()
    if config.normalize_obs:
        weights = data.sampler.weights
        agent.normalizer.fit(torch.cat([data.obs, data.next_obs]), None if weights is None else weights.repeat(2))
        data.map_obs(agent.normalizer)
    categorical = config.value_head in CATEGORICAL
    low, high = data.value_bounds(config.discount) if categorical or not data.missing_ends else (-math.inf, math.inf)
    if categorical:
        run.report(agent.head.fit_support(low, high))
    if -math.inf < low < config.target_bounds[0] or config.target_bounds[1] < high < math.inf:
        run.report(
            f"the data's discounted returns go from {low:.4g} to {high:.4g}, and targets are clipped to "
            f"{config.target_bounds}, as in the authors' code. To keep them all: "
            f"algo.target_bounds=[{math.floor(low)},{math.ceil(high)}]"
        )
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(data.sample(config.batch_size)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
