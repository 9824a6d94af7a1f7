"""TD3+BC: TD3 with behaviour cloning (Fujimoto, Gu 2021, arXiv 2106.06860).

A minimal change that makes an online algorithm work offline: the actor's loss gains a squared distance to the data's
action, and the values it maximizes are scaled to a mean absolute value of one, so that a single weight balances the two
on any task.

    critic   L_Q  = E[(Q_i(s, a) - y)^2],  y = r + gamma (1 - terminated) min_i Q_i'(s', a~)        (TD3)
             a~   = clip(mu'(s') + clip(noise, -c, c)),  noise ~ N(0, sigma^2)
    actor    L_mu = E[-lambda Q_1(s, mu(s)) + (mu(s) - a)^2],  lambda = alpha / mean |Q_1(s, mu(s))| (Eq. 5)

The mean |Q| is taken over the batch and is not differentiated. Observations are normalized (Eq. 6). Deviations, as in
the authors' code (github sfujim/TD3_BC): the squared distance is the mean over action dimensions, not their sum, and
the mean |Q| is of the policy's actions, not of the data's. Distances of actions are in units of half their range, which
is 1 in all of the paper's tasks. With a sampler that weights episodes, observations are normalized by the statistics of
what is sampled; Hong et al. (arXiv 2306.13085) fit theirs to the unweighted data.
Online, the agent goes on with the same losses and explores as TD3 does, which is not in the paper.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, check
from zoo.data.batch import Batch
from zoo.nn import DeterministicPolicy, EnsembleCritic, Normalizer, polyak_update
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
    alpha: float = 2.5  # weight of the values against the cloning, Eq. 5
    policy_delay: int = 2  # critic updates per update of actor and target networks
    target_noise: float = 0.2  # sigma, standard deviation of the noise on the target's actions
    exploration_noise: float = 0.1  # standard deviation of noise on actions online, in units of half their range
    target_noise_clip: float = 0.5  # c, the largest such noise
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, actor and critics
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target networks move this fraction of the way
    actor_lr: float = 3e-4  # Adam's learning rate, actor
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    batch_size: int = 256  # transitions per update
    normalize_obs: bool = True  # observations to mean 0 and standard deviation 1 over the dataset, Eq. 6
    normalize_reward: bool = False  # rewards times 1000 / (largest - smallest episode return)
    value_head: str = "mse"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins; null computes it from the returns in the data
    v_max: float | None = None  # largest value of the bins; null computes it too
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        check(self, alpha=at_least(0, "0 is cloning alone, the paper takes 2.5"))


class TD3BC(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.head = value_head(config)
        self.actor = DeterministicPolicy(
            spec.obs_dim, spec.action_low, spec.action_high, config.hidden, exploration_noise=config.exploration_noise
        )
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q, summed over the critics, and their mean value."""
        with torch.no_grad():
            clip = self.config.target_noise_clip
            noise = (self.config.target_noise * torch.randn_like(batch.action)).clamp(-clip, clip)
            next_action = self.target_actor.perturb(self.target_actor.mode(batch.next_obs), noise)
            next_out = self.head.min_member(self.target_critic(batch.next_obs, next_action))  # [B, outputs]
            target = self.head.backup(batch.reward, self.config.discount * ~batch.terminated, next_out)
        out = self.critic(batch.obs, batch.action)  # [2, B, outputs]
        return self.head.loss(out, target).mean(-1).sum(), self.head.value(out.detach()).mean()

    def actor_loss(self, batch: Batch) -> Tensor:
        """Eq. 5."""
        action = self.actor.mode(batch.obs)
        q = self.head.value(self.critic(batch.obs, action)[0])
        distance = self.actor.squared_error(action, batch.action).mean()
        return distance - self.config.alpha * q.mean() / q.abs().mean().detach()

    def update(self, batch: Batch, delayed: bool = True) -> Metrics:
        """One gradient step of the critics; if `delayed`, also of the actor, and the target networks move."""
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "q": q, **self.head.metrics()}
        if delayed:
            actor_loss = self.actor_loss(batch)
            self.actor_optimizer.minimize(actor_loss)
            polyak_update(self.target_actor, self.actor, self.config.tau)
            polyak_update(self.target_critic, self.critic, self.config.tau)
            metrics["actor_loss"] = actor_loss.detach()
        return metrics

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.sample(obs) if explore else self.actor.mode(obs)


def train(run: "Run", config: Config) -> TD3BC:
    data = run.dataset()
    agent = TD3BC(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    for step in run.steps():
        delayed = (step + 1) % config.policy_delay == 0
        run.log(agent.update(data.sample(config.batch_size), delayed))

    def update(batch: Batch, count: int) -> Metrics:
        return agent.update(batch, delayed=(count + 1) % config.policy_delay == 0)

    learn_online(run, agent, data, config.batch_size, update=update)
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
