"""MOPO: model-based offline policy optimization (Yu et al. 2020, arXiv 2005.13239).

Soft actor-critic on imagined transitions. They come from short rollouts of the policy in a learned model, which start
at the data's observations. Rewards are penalized by the model's uncertainty about the step, so that the return in the
model is a lower bound on the return in the environment.

    reward   r~(s, a) = r(s, a) - lambda max_i ||std_i(s, a)||_F                             (Eq. 8, section 4.2)
    critics  L_Q  = E[(r~ + gamma (1 - terminated) (min Q'(s', a') - alpha log pi(a'|s')) - Q(s, a))^2]
    actor    L_pi = E[alpha log pi(a|s) - min Q(s, a)]
    alpha    L_a  = E[-log alpha (log pi(a|s) + target entropy)]

Settings are those of OfflineRL-Kit, as in the experiments of MBRCSL (github zhaoyizhou1123/mbrcsl): the model is that
of `zoo.models.dynamics`, a twentieth of each batch from the data, a cosine decay of the actor's learning rate, alpha at
most 1. Deviations: that decay takes a step at every update, theirs once every thousand updates. Of 256 transitions 13
are real, theirs 12. The model trains on batches of 256, whatever `batch_size` is, for at most 200 epochs, theirs for as
long as it improves. log pi is exact, theirs has 1e-6 in its logarithm.
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
    penalty: float = 2.5  # lambda of Eq. 8
    rollout_length: int = 1  # steps of a rollout, which starts at a sampled observation
    rollout_batch: int = 50_000  # rollouts per round
    rollout_every: int = 1_000  # updates between rounds of rollouts
    rollouts_kept: int = 5  # rounds of rollouts that the model's buffer holds
    real_fraction: float = 0.05  # share of a batch that comes from the data
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, actor and critics
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
        counts = ("rollout_length", "rollout_batch", "rollout_every", "rollouts_kept", "dynamics_epochs")
        check(self, real_fraction=between(0, 1, "left"), penalty=at_least(0), **dict.fromkeys(counts, at_least(1)))
        check_share("real_fraction", self.real_fraction, self.batch_size)


class MOPO(Agent):
    def __init__(self, spec: Spec, config: Config, total_steps: int = 1_000_000) -> None:
        super().__init__()
        self.spec, self.config = spec, config
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

    def alpha(self) -> Tensor:
        """The temperature `[]`, at most 1 as in OfflineRL-Kit."""
        return self.log_alpha.detach().exp().clamp(max=1)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q, summed over both critics, and their mean value."""
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(batch.next_obs)
            next_q = self.target_critic(batch.next_obs, next_action).amin(0).squeeze(-1)  # [B]
            soft = next_q - self.alpha() * next_log_prob
            target = batch.reward + self.config.discount * ~batch.terminated * soft
        q = self.critic(batch.obs, batch.action).squeeze(-1)  # [2, B]
        return (q - target).square().mean(-1).sum(), q.detach().mean()

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_pi, and log pi(a|s) `[B]`."""
        action, log_prob = self.actor.sample(batch.obs)
        q = self.critic(batch.obs, action).amin(0).squeeze(-1)
        return (self.alpha() * log_prob - q).mean(), log_prob.detach()

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """L_a."""
        return -(self.log_alpha * (log_prob + self.target_entropy)).mean()

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of critics, actor and temperature, in this order; then the target critics move."""
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        actor_loss, log_prob = self.actor_loss(batch)
        self.actor_optimizer.minimize(actor_loss)
        self.alpha_optimizer.minimize(self.alpha_loss(log_prob))
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "alpha": self.alpha(),
            "entropy": -log_prob.mean(),
            "q": q,
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.act(obs, explore)


def train(run: "Run", config: Config) -> MOPO:
    data = run.dataset()
    agent = MOPO(data.spec, config, total_steps=run.config.steps)
    terminates = termination_of(run.config.env.id, run.config.env.kwargs, data)
    kept = config.rollout_batch * config.rollout_length * config.rollouts_kept
    buffer = ReplayBuffer(kept, data.spec, run.device)
    run.track(agent=agent, buffer=buffer)
    learn_dynamics(run, agent.dynamics, data, config.dynamics_epochs)
    real = round(config.real_fraction * config.batch_size)
    for step in run.steps():
        if step % config.rollout_every == 0:
            obs = data.obs[data.sampler(config.rollout_batch)]
            for imagined in model_rollouts(agent, obs, config.rollout_length, terminates, config.penalty):
                buffer.add(imagined)
        batch = buffer.sample(config.batch_size - real)
        run.log(agent.update(mixed(data.sample(real), batch) if real else batch))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
