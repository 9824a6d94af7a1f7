"""COMBO: conservative offline model-based policy optimization (Yu et al. 2021, arXiv 2102.08363).

Soft actor-critic on the data and on rollouts in a learned model, like MOPO, but without an estimate of the model's
uncertainty. Instead, as in CQL, the critics' values are pushed down on the rollouts and up on the data, so that high
values supported only by the model are not trusted.

    critics  L_Q  = beta (E_{s ~ d_f}[log sum_a exp Q(s, a)] - E_D[Q(s, a)]) + E_{d_f}[(y - Q(s, a))^2]    (Eq. 2, 3)
             y    = r + gamma (1 - terminated) min Q'(s', a'),  a' of the policy
    actor    L_pi = E[alpha log pi(a|s) - min Q(s, a)]
    alpha    L_a  = E[-log alpha (log pi(a|s) + target entropy)]

d_f is a mixture of the data and the rollouts, and so is each batch. The sum over actions is estimated as in CQL, by
importance sampling with actions of the policy at s and at s' and uniform ones. Settings are those of OfflineRL-Kit as
used in MBRCSL's experiments (github zhaoyizhou1123/mbrcsl). Deviations: that code does not assign the result of a
reshape, which turns the sum over 3 x 10 actions into ten sums over three; here it is one sum, as in the equation. As in
that code, there is no 1/2 before the squared error. The actor's learning rate decays at every update, theirs once every
thousand updates. The model trains on batches of 256, whatever `batch_size` is, and for at most 200 epochs; theirs
trains for as long as it improves. log pi is exact, theirs has 1e-6 in its logarithm.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, between, check, check_share
from zoo.data.batch import Batch, mixed
from zoo.data.buffers import ReplayBuffer
from zoo.models.dynamics import EnsembleDynamics, learn_dynamics, model_rollouts, termination_of
from zoo.nn import EnsembleCritic, TanhGaussian, polyak_update
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "model-based"
SETTING = "offline"
DATA = "required"
ACTION_SPACES = ("continuous",)


@dataclass
class Config:
    beta: float = 1.0  # weight of the conservative term; the paper takes 0.5 to 5
    num_actions: int = 10  # actions of each kind, for the sum over actions
    rollout_length: int = 5  # steps imagined from each of the data's observations
    rollout_batch: int = 50_000  # rollouts per round
    rollout_every: int = 1_000  # updates between rounds of rollouts
    rollouts_kept: int = 5  # rounds of rollouts that the model's buffer holds
    real_fraction: float = 0.5  # share of a batch that comes from the data
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, actor and critics
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 1e-4  # Adam's learning rate at the start; falls to 0 by a cosine over all steps
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    alpha_lr: float = 1e-4  # Adam's learning rate, log temperature
    batch_size: int = 256  # transitions per update
    dynamics_hidden: list[int] = field(default_factory=lambda: [200, 200, 200, 200])  # widths of each model
    dynamics_lr: float = 1e-3  # Adam's learning rate, dynamics
    members: int = 7  # models in the ensemble
    elites: int = 5  # models used for rollouts: the best on held-out transitions
    dynamics_epochs: int = 200  # epochs at most; ends when no model has improved by 1 % for 5 epochs

    def __post_init__(self) -> None:
        counts = ("num_actions", "rollout_length", "rollout_batch", "rollout_every", "rollouts_kept", "dynamics_epochs")
        check(self, real_fraction=between(0, 1, "neither"), **dict.fromkeys(counts, at_least(1)))
        check_share("real_fraction", self.real_fraction, self.batch_size)


class COMBO(Agent):
    def __init__(self, spec: Spec, config: Config, total_steps: int = 1_000_000) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.real = round(config.real_fraction * config.batch_size)  # a batch's first transitions, from the data
        self.dynamics = EnsembleDynamics(
            spec.obs_dim, spec.action_dim, config.dynamics_hidden, config.members, config.elites, config.dynamics_lr
        )
        self.actor = TanhGaussian(spec.obs_dim, spec.action_low, spec.action_high, config.hidden, (-5.0, 2.0))
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.nn.Parameter(torch.zeros(()))
        self.target_entropy = self.actor.target_entropy()
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr, total_steps)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.alpha_lr)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_pi, and log pi(a|s) `[B]`."""
        action, log_prob = self.actor.sample(batch.obs)
        q = self.critic(batch.obs, action).amin(0).squeeze(-1)
        return (self.log_alpha.exp().detach() * log_prob - q).mean(), log_prob.detach()

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """L_a."""
        return -(self.log_alpha * (log_prob + self.target_entropy)).mean()

    @torch.no_grad()
    def target(self, batch: Batch) -> Tensor:
        """y `[B]`."""
        next_action = self.actor.act(batch.next_obs, explore=True)
        next_q = self.target_critic(batch.next_obs, next_action).amin(0).squeeze(-1)
        target: Tensor = batch.reward + self.config.discount * ~batch.terminated * next_q
        return target

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The squared error of L_Q, summed over both critics, and their values `[2, B]`."""
        q = self.critic(batch.obs, batch.action).squeeze(-1)
        return (q - self.target(batch)).square().mean(-1).sum(), q

    def gap(self, batch: Batch, q: Tensor) -> Tensor:
        """The soft maximum over actions minus the data's value, `[2]`; `q` are the batch's values `[2, B]`."""
        with torch.no_grad():
            noise = torch.randn_like(batch.action.expand(2, self.config.num_actions, *batch.action.shape))
            policy: tuple[Tensor, Tensor] = self.actor(batch.obs)
            next_policy: tuple[Tensor, Tensor] = self.actor(batch.next_obs)
            here, log_here = self.actor.draw(*policy, noise[0])  # [n, B, A], [n, B]
            there, log_there = self.actor.draw(*next_policy, noise[1])
            uniform = self.actor.from_unit(2 * torch.rand_like(here) - 1)
        actions = torch.cat([here, there, uniform])
        log_density = torch.cat([log_here, log_there, torch.full_like(log_here, self.actor.log_uniform)])
        values = self.critic.of_many(batch.obs, actions).squeeze(-1)  # [2, 3 n, B]
        soft_maximum: Tensor = torch.logsumexp(values - log_density, 1).mean(-1)
        return soft_maximum - q[:, : self.real].mean(-1)

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of actor, temperature and critics, in this order; then the target critics move."""
        actor_loss, log_prob = self.actor_loss(batch)
        self.actor_optimizer.minimize(actor_loss)
        self.alpha_optimizer.minimize(self.alpha_loss(log_prob))
        critic_loss, q = self.critic_loss(batch)
        gap = self.gap(batch, q)
        self.critic_optimizer.minimize(critic_loss + self.config.beta * gap.sum())
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "gap": gap.detach().mean(),
            "actor_loss": actor_loss.detach(),
            "alpha": self.log_alpha.detach().exp(),
            "entropy": -log_prob.mean(),
            "q": q.detach().mean(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.act(obs, explore)


def train(run: "Run", config: Config) -> COMBO:
    data = run.dataset()
    agent = COMBO(data.spec, config, total_steps=run.config.steps)
    terminates = termination_of(run.config.env.id, run.config.env.kwargs, data)
    kept = config.rollout_batch * config.rollout_length * config.rollouts_kept
    buffer = ReplayBuffer(kept, data.spec, run.device)
    run.track(agent=agent, buffer=buffer)
    learn_dynamics(run, agent.dynamics, data, config.dynamics_epochs)
    for step in run.steps():
        if step % config.rollout_every == 0:
            obs = data.obs[data.sampler(config.rollout_batch)]
            for imagined in model_rollouts(agent, obs, config.rollout_length, terminates):
                buffer.add(imagined)
        run.log(agent.update(mixed(data.sample(agent.real), buffer.sample(config.batch_size - agent.real))))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
