"""SAC: Soft Actor-Critic with automatic temperature (Haarnoja et al. 2018, arXiv 1812.05905).

An off-policy actor-critic that maximizes reward plus the policy's entropy. Two critics regress the soft Bellman target,
and their minimum counters overestimation. The actor follows the critics' gradient through a reparameterized,
tanh-squashed Gaussian. The temperature that weighs the entropy is learned too, so that the entropy nears a target.

    critic       J_Q  = E[(Q(s, a) - y)^2] / 2,                                                          (Eq. 5)
                 y    = r + gamma (1 - terminated) (min Q'(s', a') - alpha log pi(a'|s'))
    actor        J_pi = E[alpha log pi(a|s) - min Q(s, a)]                                               (Eq. 9)
    temperature  J    = E[-alpha (log pi(a|s) + target entropy)]                                         (Eq. 18)

Deviation: J has log alpha in place of its factor alpha, as in Stable-Baselines3. pi is of actions in their own units.
"""

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import above, between, check, check_replay
from zoo.data.batch import Batch, mixed
from zoo.data.buffers import ReplayBuffer
from zoo.nn import EnsembleCritic, TanhGaussian, polyak_update
from zoo.nn.heads import value_head
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run
    from zoo.settings.config import RunConfig

FAMILY = "off-policy"
SETTING = "online"
DATA = "offline_fraction"
ACTION_SPACES = ("continuous",)


@dataclass
class Config:
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, actor and critics
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate, actor
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    alpha: float | None = None  # temperature; null: learned, beginning at 1
    alpha_lr: float = 3e-4  # Adam's learning rate, log temperature
    batch_size: int = 256  # transitions per update
    buffer_size: int = 1_000_000  # transitions kept
    learning_starts: int = 5_000  # environment steps before the first update: uniform actions, or `init_from`'s policy
    target_entropy: float | None = None  # nats, of actions in [-1, 1]; null is -dim(A)
    offline_fraction: float = 0.0  # share of a batch that comes from `dataset`
    value_head: str = "mse"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins, given with v_max; null is minus v_max
    v_max: float | None = None  # largest value of the bins; null is 1.5 to 2 times the largest return, without entropy
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        check(self, offline_fraction=between(0, 1, "left"), alpha=above(0))

    def check_run(self, run: "RunConfig") -> None:
        check_replay(run, self.learning_starts, self.buffer_size)


class SAC(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.head = value_head(config, online=True)
        self.actor = TanhGaussian(spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs)
        self.head.init_(self.critic)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(config.alpha or 1.0)))
        self.target_entropy = self.actor.target_entropy(config.target_entropy)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.alpha_lr if config.alpha is None else 0.0)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Eq. 5, and the critics' mean value."""
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(batch.next_obs)
            next_out = self.head.min_member(self.target_critic(batch.next_obs, next_action))  # [B, outputs]
            discount = self.config.discount * ~batch.terminated
            soft_reward = batch.reward - discount * self.log_alpha.exp() * next_log_prob
            target = self.head.backup(soft_reward, discount, next_out)
        out = self.critic(batch.obs, batch.action)  # [2, B, outputs]
        return 0.5 * self.head.loss(out, target).mean(-1).sum(), self.head.value(out.detach()).mean()

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Eq. 9, and log pi(a|s) `[B]`."""
        action, log_prob = self.actor.sample(batch.obs)
        q = self.head.value(self.critic(batch.obs, action)).amin(0)  # [B]
        return (self.log_alpha.exp().detach() * log_prob - q).mean(), log_prob.detach()

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """Eq. 18."""
        return -(self.log_alpha * (log_prob + self.target_entropy)).mean()

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of critics, actor and temperature, in this order; then the target critics move."""
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        actor_loss, log_prob = self.actor_loss(batch)
        self.actor_optimizer.minimize(actor_loss)
        alpha_loss = self.alpha_loss(log_prob)
        self.alpha_optimizer.minimize(alpha_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "alpha_loss": alpha_loss.detach(),
            "alpha": self.log_alpha.detach().exp(),
            "entropy": -log_prob.mean(),
            "q": q,
            **self.head.metrics(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.act(obs, explore)


def train(run: "Run", config: Config) -> SAC:
    envs = run.envs()
    data = run.dataset() if config.offline_fraction > 0 else None
    offline = round(config.offline_fraction * config.batch_size)
    agent = SAC(envs.spec, config)
    if data:
        data.prepare(agent, config)
    buffer = ReplayBuffer(config.buffer_size, envs.spec, run.device)
    run.track(agent=agent, buffer=buffer)
    trained = run.config.init_from is not None
    for step in run.steps():
        learning = step >= config.learning_starts
        action = agent.act(envs.obs, explore=True) if learning or trained else envs.random_action()
        transition = envs.step(action)
        buffer.add(transition)
        ended = transition.terminated | transition.truncated
        # the bins of a distribution without v_max grow with the returns
        agent.head.update_support(transition.reward[None], ended[None], agent.critic, agent.target_critic)
        if learning:
            for _ in range(envs.num_envs):  # one update per environment step
                batch = buffer.sample(config.batch_size - offline)
                run.log(agent.update(mixed(batch, data.sample(offline)) if data else batch))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
