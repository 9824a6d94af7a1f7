"""RLPD: Reinforcement Learning with Prior Data (Ball, Smith, Kostrikov, Levine 2023, arXiv 2302.02948).

SAC whose batches are half its own transitions and half a dataset's, without an offline stage. The critics' values of
actions that neither contains would diverge; layer normalization in the critics bounds them. An ensemble of critics, of
which a random few enter the target, allows many updates per step.

    critic   L_Q  = E[(Q_i(s, a) - y)^2],  i = 1 to E                                                      (Algorithm 1)
             y    = r + gamma (1 - terminated) (min_{i in Z} Q_i'(s', a') - alpha log pi(a'|s'))
    actor    L_pi = E[alpha log pi(a|s) - mean_i Q_i(s, a)]
    alpha    L_a  = E[-alpha (log pi(a|s) + target entropy)]

a' ~ pi(s') and a ~ pi(s); Z holds `subset` of the E critics, drawn anew at each update. Each environment step is
followed by `utd_ratio` updates of the critics; actor and temperature are updated with the last of them.

WSRL (Zhou, Peng, Li, Levine, Kumar 2024, arXiv 2412.07762) is RLPD with `preset=wsrl`: it continues from offline CQL
without the dataset. It takes over that run's networks, and acts by its own policy for a few thousand steps before
learning.

    zoo run algo=cql preset=wsrl env=hopper dataset=medium run_dir=offline
    zoo run algo=rlpd preset=wsrl env=hopper init_from=offline

Deviations from the authors' code (github ikostrikov/rlpd): mean and log standard deviation are the two halves of one
layer; layer normalization adds 1e-5 to the variance, not 1e-6; the values of all target critics are computed, and those
in Z are used; pi is of actions in their own units, theirs in [-1, 1]. Deviations from WSRL's code (github
zhouzypaul/wsrl): the actor's batch is that of the last critic update, theirs is all of them together; theirs draws Z
with replacement; the loss of the temperature takes the actions at s, theirs those at s'; the temperature is the
exponential of its parameter, theirs a softplus. Theirs steps every optimizer at every update, with a gradient of 0 for
networks that are not updated, so that with four updates per step Adam moves actor and temperature twice as far.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, between, check, check_replay, one_of
from zoo.data.batch import Batch, mixed
from zoo.data.buffers import ReplayBuffer
from zoo.nn import EnsembleCritic, TanhGaussian, glorot_, polyak_update
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
    offline_fraction: float = 0.5  # share of a batch that comes from `dataset`; 0 needs none
    utd_ratio: int = 20  # critic updates per environment step; actor and temperature take one
    num_critics: int = 10  # E, the number of critics
    subset: int = 2  # size of the random subset Z, whose minimum enters the target; AntMaze: 1; num_critics: all
    critic_layer_norm: bool = True  # layer normalization in the critics
    actor_layer_norm: bool = False  # layer normalization in the actor; WSRL: true
    entropy_backup: bool = True  # y contains alpha log pi; AntMaze, Adroit, WSRL: false
    actor_q: str = "mean"  # which value of the critics the actor maximizes: mean, or min (WSRL)
    target_entropy_scale: float = 0.5  # the target entropy is -dim(A) times this, of actions in [-1, 1]; WSRL: 1
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, actor and critics
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate, actor
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    alpha_lr: float = 3e-4  # Adam's learning rate, log temperature
    batch_size: int = 256  # transitions per update
    buffer_size: int = 1_000_000  # own transitions kept
    learning_starts: int = 5_000  # environment steps before the first update: uniform actions, or `init_from`'s policy

    def __post_init__(self) -> None:
        check(
            self,
            offline_fraction=between(0, 1, "left"),
            utd_ratio=at_least(1, "the paper takes 20"),
            num_critics=at_least(1, "the paper takes 10"),
            subset=between(1, self.num_critics, "both", "algo.num_critics is all of them"),
            actor_q=one_of("mean", "min"),
        )

    def check_run(self, run: "RunConfig") -> None:
        check_replay(run, self.learning_starts, self.buffer_size)


class RLPD(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.actor = TanhGaussian(
            spec.obs_dim, spec.action_low, spec.action_high, config.hidden, layer_norm=config.actor_layer_norm
        )
        self.critic = EnsembleCritic(
            config.num_critics, spec.obs_dim, spec.action_dim, config.hidden, layer_norm=config.critic_layer_norm,
            norm_first=True,
        )  # fmt: skip
        glorot_(self.actor)
        glorot_(self.critic)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.target_entropy = self.actor.target_entropy(-config.target_entropy_scale * spec.action_dim)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.alpha_lr)

    def target(self, batch: Batch) -> Tensor:
        """The target y `[B]`."""
        next_action, next_log_prob = self.actor.sample(batch.next_obs)
        next_q = self.target_critic(batch.next_obs, next_action).squeeze(-1)  # [E, B]
        if self.config.subset < self.config.num_critics:
            chosen = torch.rand_like(next_q[:, 0]).topk(self.config.subset).indices  # Z
            next_q = next_q.index_select(0, chosen)
        value = next_q.amin(0)
        if self.config.entropy_backup:
            value = value - self.log_alpha.exp() * next_log_prob
        target: Tensor = batch.reward + self.config.discount * ~batch.terminated * value
        return target

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q, the mean over the critics, and their values `[E, B]`."""
        with torch.no_grad():
            target = self.target(batch)
        q = self.critic(batch.obs, batch.action).squeeze(-1)
        return (q - target).square().mean(), q.detach()

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_pi, and log pi(a|s) `[B]`."""
        action, log_prob = self.actor.sample(batch.obs)
        q = self.critic(batch.obs, action).squeeze(-1)
        value = q.mean(0) if self.config.actor_q == "mean" else q.amin(0)
        return (self.log_alpha.exp().detach() * log_prob - value).mean(), log_prob.detach()

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """L_a."""
        return -(self.log_alpha.exp() * (log_prob + self.target_entropy)).mean()

    def update(self, batch: Batch, last: bool = True) -> Metrics:
        """One gradient step of the critics, and their targets move; if `last`, also one of actor and temperature."""
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        metrics = {
            "critic_loss": critic_loss.detach(),
            "q": q.mean(),
            "q_abs": q.abs().mean(),
            "q_std": q.std(0, correction=0).mean(),  # 0, not NaN, for a single critic
        }
        if last:
            actor_loss, log_prob = self.actor_loss(batch)
            self.actor_optimizer.minimize(actor_loss)
            self.alpha_optimizer.minimize(self.alpha_loss(log_prob))
            metrics |= {
                "actor_loss": actor_loss.detach(),
                "alpha": self.log_alpha.detach().exp(),
                "entropy": -log_prob.mean(),
            }
        return metrics

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.act(obs, explore)


def train(run: "Run", config: Config) -> RLPD:
    envs = run.envs()
    data = run.dataset() if config.offline_fraction > 0 else None
    offline = round(config.offline_fraction * config.batch_size)
    agent = RLPD(envs.spec, config)
    buffer = ReplayBuffer(config.buffer_size, envs.spec, run.device)
    run.track(agent=agent, buffer=buffer)
    trained = run.config.init_from is not None
    for step in run.steps():
        learning = step >= config.learning_starts
        action = agent.act(envs.obs, explore=True) if learning or trained else envs.random_action()
        buffer.add(envs.step(action))
        if learning:
            for i in range(1, envs.num_envs * config.utd_ratio + 1):
                batch = buffer.sample(config.batch_size - offline)
                batch = mixed(batch, data.sample(offline)) if data else batch
                run.log(agent.update(batch, last=i % config.utd_ratio == 0))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
