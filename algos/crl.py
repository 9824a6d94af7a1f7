"""CRL: Contrastive RL (Eysenbach, Zhang, Levine, Salakhutdinov 2022, arXiv 2206.07568).

A classifier distinguishes a later state of a transition's own episode from those of other transitions. It needs neither
rewards nor bootstrapping. Its logit is an inner product of two representations, and its optimum is log p(g|s, a) - log
p(g) - log(B - 1) for batches of B, where p(g|s, a) is the discounted distribution of future states. The policy
maximizes the logit.

    critic   L = E_ij[BCE(f_ij, 1(i = j))],  f_ij = phi(s_i, a_i) . psi(g_j) / sqrt(D)
    actor    L_pi = E[-min f(s, mu(s, g), g) / mean |min f| - alpha log pi(a|s, g)]

g_j is a later state of the j-th transition's episode, k steps ahead with probability (1 - gamma) gamma^(k - 1).
Deviations: as in OGBench's code (github seohongpark/ogbench), there are two critics, whose loss is the mean over all
pairs; the policy is a Gaussian of standard deviation 1, and its loss uses scaled values; all losses are computed before
any parameter is updated. Unlike in that code, layer normalization adds 1e-5 to the variance, not 1e-6. That code's
other policy loss, with advantage weights, is left out.
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import above, at_least, between, check
from zoo.data.goals import GoalBatch, Goals
from zoo.nn import GELU, EnsembleMLP, UnitGaussian, glorot_
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "goal-conditioned"
SETTING = "offline"
DATA = "required"
ACTION_SPACES = ("continuous",)
GOALS = True


@dataclass
class Config:
    alpha: float = 0.1  # weight of cloning; OGBench takes 0.03 on pointmaze
    latent_dim: int = 512  # D, outputs of phi and psi
    value_goals: list[float] = field(default_factory=lambda: [0.0, 1.0, 0.0])  # P(goal: current, a later, any state)
    actor_goals: list[float] = field(default_factory=lambda: [0.0, 1.0, 0.0])  # of the policy; to stitch: [0,0.5,0.5]
    hidden: list[int] = field(default_factory=lambda: [512, 512, 512])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma of the geometric distribution of later goals; giant mazes: 0.995
    lr: float = 3e-4  # Adam's learning rate, all networks
    batch_size: int = 1024  # transitions per update

    def __post_init__(self) -> None:
        check(self, alpha=above(0), latent_dim=at_least(1), discount=between(0, 1, "neither"))


class CRL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        inputs, size, hidden = spec.state_dim + spec.action_dim, config.latent_dim, config.hidden
        self.actor = UnitGaussian(spec.obs_dim, spec.action_low, spec.action_high, hidden)
        self.phi = glorot_(EnsembleMLP(2, inputs, size, hidden, layer_norm=True, activation=GELU))
        self.psi = glorot_(EnsembleMLP(2, spec.goal_dim, size, hidden, layer_norm=True, activation=GELU))
        self.critic_optimizer = Adam([*self.phi.parameters(), *self.psi.parameters()], config.lr)
        self.actor_optimizer = Adam(self.actor.parameters(), config.lr)

    def represent(self, obs: Tensor, action: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """phi and psi of both critics, `[2, B, D]` each, phi scaled by 1 / sqrt(D)."""
        return self.phi(torch.cat([obs, action], -1)) / math.sqrt(self.config.latent_dim), self.psi(goal)

    def critic_loss(self, batch: GoalBatch) -> tuple[Tensor, Tensor]:
        """The loss, and the share of the transitions whose own goal has the largest logit."""
        phi, psi = self.represent(batch.obs, batch.action, batch.value_goal)
        logits = phi @ psi.mT  # [2, B, B]
        own = torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device).expand_as(logits)
        found = logits.detach().mean(0)
        accuracy = (found.argmax(-1) == own[0].argmax(-1)).to(logits).mean()
        return F.binary_cross_entropy_with_logits(logits, own), accuracy

    def actor_loss(self, batch: GoalBatch) -> tuple[Tensor, Tensor]:
        """The loss, and its cloning term."""
        obs = torch.cat([batch.obs, batch.actor_goal], -1)
        phi, psi = self.represent(batch.obs, self.actor.mode(obs), batch.actor_goal)
        q = (phi * psi).sum(-1).amin(0)  # [B]
        cloning = -self.actor.log_prob(obs, batch.action).mean()
        return -q.mean() / (q.abs().mean().detach() + 1e-6) + self.config.alpha * cloning, cloning.detach()

    def update(self, batch: GoalBatch) -> Metrics:
        """One gradient step of critics and actor, both from the parameters before the update."""
        critic_loss, accuracy = self.critic_loss(batch)
        actor_loss, cloning = self.actor_loss(batch)
        self.actor_optimizer.minimize(actor_loss)
        self.critic_optimizer.minimize(critic_loss)
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "cloning_loss": cloning,
            "accuracy": accuracy,
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.sample(obs) if explore else self.actor.mode(obs)

    @torch.no_grad()
    def goal_values(self, obs: Tensor) -> Tensor:
        """The critics' values `[B]` of the policy's actions at states with their goals appended."""
        state, goal = torch.split(obs, [self.spec.state_dim, self.spec.goal_dim], -1)
        phi, psi = self.represent(state, self.actor.mode(obs), goal)
        return (phi * psi).sum(-1).amin(0)


def train(run: "Run", config: Config) -> CRL:
    data = run.dataset()
    goals = Goals(data, config.value_goals, config.actor_goals, config.discount)
    agent = CRL(data.spec, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(goals.sample(config.batch_size)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
