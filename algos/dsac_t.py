"""DSAC-T: Distributional Soft Actor-Critic with three refinements (Duan et al. 2023, arXiv 2310.05858).

SAC whose critics learn a Gaussian distribution of the return, N(Q, s^2), instead of its mean alone. There are three
refinements. The target of the mean is an expected value, not a sample. Of the two critics' distributions, the one with
the lower mean is the target. Gradients are scaled and targets clipped by S, a moving average of s over batches, so that
the same settings fit rewards of any scale.

    critics      J     = E[w (H(Q - y) + s (s^2 - H2(Q - clip(y_z, Q - 3 S, Q + 3 S))) / (s + 0.1))]
                 y     = r + gamma (1 - terminated) (Q' - alpha log pi'(a'|s')),  a' ~ pi'
                 y_z   = the same with a sample of the return, Q' + s' z,  z ~ N(0, 1) within [-3, 3]
                 w     = S^2 / (s^2 + 0.1) within [0.1, 10]
    actor        J_pi  = E[alpha log pi(a|s) - min Q(s, a)]
    temperature  J     = E[-log alpha (log pi(a|s) + target entropy)]

The gradient of J flows only through Q in the first term and through the factor s in the second. H is the Huber loss
with a delta of 50, which is half of the square below it, and H2 is twice H. Actor, temperature and target networks,
including one of the policy, move at every second update. pi is the density of actions in their own units.

J is that of the authors' code (github Jingliang-Duan/DSAC-v2) since July 2025. Before, H was half of the square for all
errors, w was (S^2 + 0.1) / (s^2 + 0.1) without bounds, and s was divided by s^3 + 0.1. Deviations: that code uses H in
place of H2, so that s becomes 0.7 of the standard deviation; `half_square=true` does that. It computes the gradients of
all losses before any network moves, acts by the policy from the first step on, adds 1e-6 to 1 - tanh^2 in pi, and has
-dim(A) as the target entropy of actions in their own units, not in [-1, 1]. Here GELU is the tanh approximation.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, check, check_replay
from zoo.data.batch import Batch
from zoo.data.buffers import ReplayBuffer
from zoo.nn import GELU, EnsembleCritic, TanhGaussian, polyak_update
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run
    from zoo.settings.config import RunConfig

FAMILY = "off-policy"
SETTING = "online"
DATA = "none"
ACTION_SPACES = ("continuous",)

DELTA = 50.0  # of the Huber loss
BIAS = 0.1  # added to s and s^2 in denominators


@dataclass
class Config:
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, actor and critics
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target networks move this fraction of the way; the moving average S as well, at every update
    policy_delay: int = 2  # critic updates per update of actor, temperature and target networks
    actor_lr: float = 1e-4  # Adam's learning rate, actor
    critic_lr: float = 1e-4  # Adam's learning rate, critics
    alpha_lr: float = 3e-4  # Adam's learning rate, log temperature
    batch_size: int = 256  # transitions per update
    buffer_size: int = 1_000_000  # transitions kept
    learning_starts: int = 10_000  # environment steps before the first update: uniform actions, or `init_from`'s policy
    train_every: int = 1  # environment steps per update; the authors take 20
    target_entropy: float | None = None  # nats, of actions in [-1, 1]; null is -dim(A)
    half_square: bool = False  # halve the squared error in the loss of s, as in the authors' code

    def __post_init__(self) -> None:
        check(self, train_every=at_least(1))

    def check_run(self, run: "RunConfig") -> None:
        check_replay(run, self.learning_starts, self.buffer_size, self.train_every)


class DSACT(Agent):
    """DSAC-T's agent.

    Attributes:
        usual_std: `[2, 1]` S of each critic, below 0 before the first update.
    """

    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.actor = TanhGaussian(
            spec.obs_dim, spec.action_low, spec.action_high, config.hidden, (-20.0, 0.5), activation=GELU
        )
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden, outputs=2, activation=GELU)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.ones(()))
        self.usual_std = nn.Buffer(torch.full((2, 1), -1.0))
        self.target_entropy = self.actor.target_entropy(config.target_entropy)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.alpha_lr)

    @staticmethod
    def returns(critic: EnsembleCritic, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the return according to each critic, `[2, B]` each."""
        out = critic(obs, action)
        return out[..., 0], F.softplus(out[..., 1])

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """y and y_z, `[B]` each."""
        next_action, next_log_prob = self.target_actor.sample(batch.next_obs)
        mean, std = self.returns(self.target_critic, batch.next_obs, next_action)  # [2, B]
        sample = mean + std * torch.randn_like(mean).clamp(-3, 3)
        lower = mean.argmin(0, keepdim=True)
        discount = self.config.discount * ~batch.terminated
        soft_reward = batch.reward - discount * self.log_alpha.exp() * next_log_prob
        return soft_reward + discount * mean.amin(0), soft_reward + discount * sample.gather(0, lower)[0]

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """J, and the means and standard deviations `[2, B]`. Updates S."""
        mean, std = self.returns(self.critic, batch.obs, batch.action)  # [2, B]
        with torch.no_grad():
            of_batch = std.mean(-1, keepdim=True)
            first = self.usual_std < 0
            self.usual_std.copy_(torch.where(first, of_batch, self.usual_std.lerp(of_batch, self.config.tau)))
            target, sample = self.targets(batch)
            clip = 3 * self.usual_std
            error = (sample - mean).maximum(-clip).minimum(clip)
            square = huber(error) if self.config.half_square else 2 * huber(error)
            slope = (std.square() - square) / (std + BIAS)
            weight = (self.usual_std.square() / (std.square() + BIAS)).clamp(0.1, 10)
        loss = (weight * (huber(mean - target) + std * slope)).mean(-1).sum()
        return loss, mean.detach(), std.detach()

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """J_pi, and log pi(a|s) `[B]`."""
        action, log_prob = self.actor.sample(batch.obs)
        q = self.returns(self.critic, batch.obs, action)[0].amin(0)  # [B]
        return (self.log_alpha.exp().detach() * log_prob - q).mean(), log_prob.detach()

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """The temperature's loss."""
        return -(self.log_alpha * (log_prob + self.target_entropy)).mean()

    def update(self, batch: Batch, delayed: bool = True) -> Metrics:
        """One gradient step of the critics; if `delayed`, also of actor and temperature, and the targets move."""
        critic_loss, mean, std = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "q": mean.mean(), "value_std": std.mean()}
        if delayed:
            actor_loss, log_prob = self.actor_loss(batch)
            self.actor_optimizer.minimize(actor_loss)
            self.alpha_optimizer.minimize(self.alpha_loss(log_prob))
            for target, network in ((self.target_actor, self.actor), (self.target_critic, self.critic)):
                polyak_update(target, network, self.config.tau)
            alpha = self.log_alpha.detach().exp()
            metrics |= {"actor_loss": actor_loss.detach(), "alpha": alpha, "entropy": -log_prob.mean()}
        return metrics

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.act(obs, explore)

    def critic_values(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.returns(self.critic, obs, action)[0]


def huber(error: Tensor) -> Tensor:
    """Half of the squared error up to DELTA, linear beyond it."""
    return F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=DELTA)


def train(run: "Run", config: Config) -> DSACT:
    envs = run.envs()
    agent = DSACT(envs.spec, config)
    buffer = ReplayBuffer(config.buffer_size, envs.spec, run.device)
    run.track(agent=agent, buffer=buffer)
    trained = run.config.init_from is not None
    for step in run.steps():
        learning = step >= config.learning_starts
        action = agent.act(envs.obs, explore=True) if learning or trained else envs.random_action()
        buffer.add(envs.step(action))
        if learning:
            for update in range(step // config.train_every, (step + envs.num_envs) // config.train_every):
                run.log(agent.update(buffer.sample(config.batch_size), delayed=update % config.policy_delay == 0))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
