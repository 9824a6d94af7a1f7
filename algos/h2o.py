"""H2O: when to trust your simulator (Niu, Sharma, Qiu et al. 2022, arXiv 2206.13464), dynamics-aware hybrid learning.

SAC that learns from a dataset of the true environment and from its own steps in a simulator with wrong dynamics. Two
discriminators classify transitions as true or simulated, which gives the ratio of the two dynamics. The squared error
of a simulated transition is weighted by that ratio. Where the dynamics differ most, the critics' values are pushed
down, and on the data they are pushed up.

    ratio    p(s'|s,a) / p_sim(s'|s,a) = D(true|s,a,s') D(sim|s,a) / (D(sim|s,a,s') D(true|s,a))              (Eq. 9)
             w = that, within [1e-5, 1];  u(s,a) = the mean over s'' ~ N(s', std^2) of -log of that, within [0, 10]
    critic   L_Q  = E_true[(Q_i(s, a) - y)^2] + E_sim[w (Q_i(s, a) - y)^2]                                    (Eq. 6)
                    + beta (log sum_sim [u / sum_sim u] exp Q_i(s, a) - E_true[Q_i(s, a)])
             y    = r + gamma (1 - terminated) min_i Q_i'(s', a')
    actor    L_pi = E[alpha log pi(a|s) - min_i Q_i(s, a)]
    alpha    L_a  = E[-log(alpha) (log pi(a|s) + target entropy)]

a' ~ pi(s') and a ~ pi(s); the sums are over a batch, and std is that of the data's observations. The simulator is `env`
with a change that applies to training only. The dataset and the evaluations are of `env` without it.

    zoo run algo=h2o env=halfcheetah env.gravity=2 env.changed_in=training dataset=medium-replay

Deviations from the authors' code (github t6-thu/H2O): the discriminators learn from the critics' batch, not from a
batch of their own, of 256 and 256 transitions; std is that of the data alone, whereas theirs includes the buffer's
empty rows; one update follows each step in the simulator, whereas theirs makes 1,000 updates after 1,000 steps; the
actor's log standard deviation has no learned scale and offset; networks have PyTorch's initialization.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import above, at_least, between, check, check_replay, check_share
from zoo.data.arrays import without_successor
from zoo.data.batch import Batch, mixed
from zoo.data.buffers import ReplayBuffer
from zoo.errors import UsageError
from zoo.nn import MLP, EnsembleCritic, TanhGaussian, polyak_update
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run
    from zoo.settings.config import RunConfig

FAMILY = "off-policy"
SETTING = "online"
DATA = "offline_fraction"
ACTION_SPACES = ("continuous",)

MAX_GAP = 1_000.0  # the gap that penalizes the critics is clipped to [-MAX_GAP, MAX_GAP]
MAX_LOGIT = 2.0  # the discriminators' outputs lie within [-MAX_LOGIT, MAX_LOGIT]


@dataclass
class Config:
    offline_fraction: float = 0.5  # share of a batch that comes from `dataset`
    penalty: float = 0.01  # beta, weight of the value penalty where dynamics differ
    weighted: bool = True  # weight the errors of simulated transitions by w; false: by 1
    min_weight: float = 1e-5  # w is at least this, and at most 1
    max_difference: float = 10.0  # u is at most this
    next_states: int = 10  # samples s'' per transition, over which u is a mean
    input_noise: float = 0.1  # standard deviation of the noise on the inputs from which the discriminators learn
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate, actor and temperature
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    discriminator_lr: float = 3e-4  # Adam's learning rate, discriminators
    batch_size: int = 256  # transitions per update
    buffer_size: int = 1_000_000  # own transitions kept; the authors: 10 times the dataset's
    learning_starts: int = 1_000  # environment steps before the first update
    target_entropy: float | None = None  # nats, of actions in [-1, 1]; null is -dim(A)

    def __post_init__(self) -> None:
        check(
            self,
            offline_fraction=between(0, 1, "neither", "it learns from a dataset and from a simulator"),
            penalty=at_least(0),
            min_weight=between(0, 1, "right"),
            next_states=at_least(1),
            input_noise=at_least(0),
            max_difference=above(0),
        )
        check_share("offline_fraction", self.offline_fraction, self.batch_size)

    def check_run(self, run: "RunConfig") -> None:
        check_replay(run, self.learning_starts, self.buffer_size)


class Discriminator(nn.Module):
    """`[B, inputs]` to the logits `[B, 2]` of the true environment and of the simulator."""

    def __init__(self, inputs: int, hidden: list[int]) -> None:
        super().__init__()
        self.net = MLP(inputs, 2, hidden)

    def forward(self, *parts: Tensor) -> Tensor:
        logits: Tensor = MAX_LOGIT * torch.tanh(self.net(torch.cat(parts, -1)))
        return logits


class H2O(Agent):
    PER_RUN = ("obs_std",)  # of this run's dataset

    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        size = spec.obs_dim + spec.action_dim
        self.actor = TanhGaussian(spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.of_action = Discriminator(size, config.hidden)  # of s, a
        self.of_step = Discriminator(size + spec.obs_dim, config.hidden)  # what s' adds to the logits of s, a
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.target_entropy = self.actor.target_entropy(config.target_entropy)
        self.obs_std = nn.Buffer(torch.ones(spec.obs_dim))  # of the data
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.actor_lr)
        discriminators = [*self.of_action.parameters(), *self.of_step.parameters()]
        self.discriminator_optimizer = Adam(discriminators, config.discriminator_lr)

    def discriminator_loss(self, batch: Batch, split: int) -> Tensor:
        """The sum of both cross-entropies; the first `split` transitions are true. That of `of_step` trains both."""
        noise = self.config.input_noise
        obs, action, next_obs = (x + noise * torch.randn_like(x) for x in (batch.obs, batch.action, batch.next_obs))
        of_action = self.of_action(obs, action)
        of_step = self.of_step(obs, action, next_obs) + of_action
        true, simulated = (-torch.stack([of_action, of_step]).log_softmax(-1)).unbind(-1)  # [2, B] each
        return (true[:, :split].mean(-1) + simulated[:, split:].mean(-1)).sum()

    def log_ratio(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """log p(s'|s,a) - log p_sim(s'|s,a) `[...]`, Eq. 9: the logits of s, a cancel."""
        true, simulated = self.of_step(obs, action, next_obs).unbind(-1)
        log_ratio: Tensor = true - simulated
        return log_ratio

    @torch.no_grad()
    def weight(self, simulated: Batch) -> Tensor:
        """w `[B]`."""
        if not self.config.weighted:
            return torch.ones_like(simulated.reward)
        ratio = self.log_ratio(simulated.obs, simulated.action, simulated.next_obs).exp()
        return ratio.clamp(self.config.min_weight, 1)

    @torch.no_grad()
    def difference(self, simulated: Batch) -> Tensor:
        """u `[B]`, the KL divergence of the simulator's next states from the true ones."""
        next_obs = simulated.next_obs.expand(self.config.next_states, *simulated.next_obs.shape)
        next_obs = next_obs + self.obs_std * torch.randn_like(next_obs)
        obs, action = (x.expand(self.config.next_states, *x.shape) for x in (simulated.obs, simulated.action))
        log_ratio = self.log_ratio(obs, action, next_obs)
        return (-log_ratio).mean(0).clamp(torch.finfo(log_ratio.dtype).tiny, self.config.max_difference)

    def critic_loss(self, batch: Batch, split: int) -> tuple[Tensor, Metrics]:
        """L_Q; transitions from `split` on are simulated."""
        simulated = Batch(*(x[split:] for x in batch))
        with torch.no_grad():
            next_action = self.actor.act(batch.next_obs, explore=True)
            next_q = self.target_critic(batch.next_obs, next_action).squeeze(-1).amin(0)
            target = batch.reward + self.config.discount * ~batch.terminated * next_q
        q = self.critic(batch.obs, batch.action).squeeze(-1)  # [2, B]
        error = (q - target).square()
        weight, difference = self.weight(simulated), self.difference(simulated)
        loss = (error[:, :split].mean(-1) + (weight * error[:, split:]).mean(-1)).sum()
        if self.config.penalty:
            log_share = (difference / difference.sum()).log()
            gap = torch.logsumexp(q[:, split:] + log_share, -1) - q[:, :split].mean(-1)  # [2]
            loss = loss + self.config.penalty * gap.clamp(-MAX_GAP, MAX_GAP).sum()
        return loss, {
            "q": q.detach()[:, :split].mean(),
            "simulated_q": q.detach()[:, split:].mean(),
            "weight": weight.mean(),
            "difference": difference.mean(),
        }

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_pi, and log pi(a|s) `[B]`."""
        action, log_prob = self.actor.sample(batch.obs)
        q = self.critic(batch.obs, action).squeeze(-1).amin(0)
        return (self.log_alpha.exp().detach() * log_prob - q).mean(), log_prob.detach()

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """L_a."""
        return -(self.log_alpha * (log_prob + self.target_entropy)).mean()

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of the discriminators, then one of critics, actor and temperature from the same parameters.

        Args:
            batch: the first `offline_fraction` of the transitions are of the dataset, the others of the simulator.
        """
        split = round(self.config.offline_fraction * batch.reward.shape[0])
        discriminator_loss = self.discriminator_loss(batch, split)
        self.discriminator_optimizer.minimize(discriminator_loss)
        actor_loss, log_prob = self.actor_loss(batch)
        critic_loss, metrics = self.critic_loss(batch, split)
        self.alpha_optimizer.minimize(self.alpha_loss(log_prob))
        self.actor_optimizer.minimize(actor_loss)
        self.critic_optimizer.minimize(critic_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return metrics | {
            "discriminator_loss": discriminator_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "alpha": self.log_alpha.detach().exp(),
            "entropy": -log_prob.mean(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.act(obs, explore)


def train(run: "Run", config: Config) -> H2O:
    envs, data = run.envs(), run.dataset()
    if unknown := int(without_successor(data).sum()):
        raise UsageError(
            f"H2O compares successors, and the dataset lacks those of {unknown:,} terminal steps. Take a dataset "
            "that has next_observations."
        )
    offline = round(config.offline_fraction * config.batch_size)
    agent = H2O(envs.spec, config)
    agent.obs_std.copy_(data.obs.std(0, correction=0) + 1e-3)
    buffer = ReplayBuffer(config.buffer_size, envs.spec, run.device)
    run.track(agent=agent, buffer=buffer)
    for step in run.steps():
        buffer.add(envs.step(agent.act(envs.obs, explore=True)))
        if step >= config.learning_starts:
            for _ in range(envs.num_envs):  # one update per environment step
                batch = mixed(data.sample(offline), buffer.sample(config.batch_size - offline))
                run.log(agent.update(batch))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
