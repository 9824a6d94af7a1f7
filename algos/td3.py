"""TD3: Twin Delayed DDPG (Fujimoto, van Hoof, Meger 2018, arXiv 1802.09477).

An off-policy actor-critic with a deterministic policy. A policy gradient through a critic leads to overestimated
values. There are three remedies: the lesser of two critics makes the targets, noise on the target's action smooths
them, and the policy moves less often than the critics.

    critic   L_Q  = E[(Q_i(s, a) - y)^2],  y = r + gamma (1 - terminated) min_i Q_i'(s', a~)       (Algorithm 1)
             a~   = clip(mu'(s') + clip(noise, -c, c)),  noise ~ N(0, sigma^2)                     (Eq. 14)
    actor    L_mu = E[-Q_1(s, mu(s))], every `policy_delay` updates, as the target networks

DDPG (Lillicrap et al. 2015, arXiv 1509.02971) is the case algo.num_critics=1 algo.policy_delay=1 algo.target_noise=0,
as TD3's authors retuned it (their OurDDPG.py): with Gaussian noise and without weight decay. Noise is in units of half
the action's range, as in the authors' code. Defaults are SAC's where the paper has others: layers of 400 and 300,
learning rates of 1e-3, batches of 100 and 10,000 random steps.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, check, check_replay
from zoo.data.batch import Batch
from zoo.data.buffers import ReplayBuffer
from zoo.nn import DeterministicPolicy, EnsembleCritic, polyak_update
from zoo.nn.heads import value_head
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run
    from zoo.settings.config import RunConfig

FAMILY = "off-policy"
SETTING = "online"
DATA = "none"
ACTION_SPACES = ("continuous",)


@dataclass
class Config:
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, actor and critics
    num_critics: int = 2  # number of critics, whose minimum makes the targets; DDPG: 1
    policy_delay: int = 2  # critic updates per update of actor and target networks; DDPG: 1
    exploration_noise: float = 0.1  # standard deviation of the noise on actions, in units of half their range
    target_noise: float = 0.2  # sigma, standard deviation of the noise on the target's actions; DDPG: 0
    target_noise_clip: float = 0.5  # c, the largest such noise
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target networks move this fraction of the way
    actor_lr: float = 3e-4  # Adam's learning rate, actor
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    batch_size: int = 256  # transitions per update
    buffer_size: int = 1_000_000  # transitions kept
    learning_starts: int = 25_000  # environment steps before the first update: uniform actions, or `init_from`'s policy
    value_head: str = "mse"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins, given with v_max; null is minus v_max
    v_max: float | None = None  # largest value of the bins; null is 1.5 to 2 times the largest return so far
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        check(self, num_critics=at_least(1))

    def check_run(self, run: "RunConfig") -> None:
        check_replay(run, self.learning_starts, self.buffer_size)


class TD3(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.head = value_head(config, online=True)
        self.actor = DeterministicPolicy(
            spec.obs_dim, spec.action_low, spec.action_high, config.hidden, exploration_noise=config.exploration_noise
        )
        self.critic = EnsembleCritic(
            config.num_critics, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs
        )
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.head.init_(self.critic)
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
        out = self.critic(batch.obs, batch.action)  # [num_critics, B, outputs]
        return self.head.loss(out, target).mean(-1).sum(), self.head.value(out.detach()).mean()

    def actor_loss(self, batch: Batch) -> Tensor:
        """L_mu."""
        return -self.head.value(self.critic(batch.obs, self.actor.mode(batch.obs))[0]).mean()

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
        return self.actor.sample(obs) if explore else self.actor.mode(obs)


def train(run: "Run", config: Config) -> TD3:
    envs = run.envs()
    agent = TD3(envs.spec, config)
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
            for update in range(step, step + envs.num_envs):  # one update per environment step
                run.log(agent.update(buffer.sample(config.batch_size), delayed=update % config.policy_delay == 0))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
