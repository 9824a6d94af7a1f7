"""QRL: Quasimetric RL (Wang, Torralba, Isola, Zhang 2023, arXiv 2304.01203).

The smallest number of steps from one state to another is a quasimetric: it is not symmetric, but a detour through a
third state is never shorter. The network d is a quasimetric by construction. Distances between states are maximized
under the constraint that no transition of the data is longer than one step. The results are the lengths of shortest
paths, including paths that join parts of several episodes. The policy minimizes the distance to the goal through a
model of the next latent.

    value    max E[phi(d(s, g))] such that E[relu(d(s, s') - 1)^2] <= eps
    model    L_T  = E[d(z', z + T(z, a)) + d(z + T(z, a), z')] / 2,  z = latent of s
    actor    L_pi = E[d(z + T(z, mu(s, g)), z_g) / mean d - alpha log pi(a|s, g)]

phi(d) = -100 softplus(5 - d / 100), and a learned multiplier lambda enforces the constraint. d is an interval
quasimetric embedding. Deviations from the authors' code (github quasimetric-learning/quasimetric-rl), as in OGBench's
(github seohongpark/ogbench): the model's loss takes distances, not their squares, and of latents without a projection;
there is one d, not two; eps is not squared; lambda is an exponential that begins at 1 and has the networks' learning
rate, not a softplus from 0.01 with its own; the policy is a Gaussian of standard deviation 1, whose mean the loss takes
and whose goals are later states, not any, and the distance in its loss is scaled; all losses are computed before any
parameter is updated. Unlike in OGBench's code, layer normalization adds 1e-5 to the variance, not 1e-6. Its other
quasimetric and its other policy loss are left out.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import Condition, above, check
from zoo.data.goals import GoalBatch, Goals
from zoo.nn import GELU, MLP, UnitGaussian, glorot_
from zoo.nn.goals import Quasimetric
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
    alpha: float = 0.003  # weight of cloning; OGBench takes 0.0003 on pointmaze
    eps: float = 0.05  # bound of the constraint E[relu(d(s, s') - 1)^2] <= eps
    latent_dim: int = 512  # size of the latents that the distance compares, a multiple of 8
    value_goals: list[float] = field(default_factory=lambda: [0.0, 0.0, 1.0])  # P(goal: current, a later, any state)
    actor_goals: list[float] = field(default_factory=lambda: [0.0, 1.0, 0.0])  # of the policy; to stitch: [0,0.5,0.5]
    hidden: list[int] = field(default_factory=lambda: [512, 512, 512])  # widths of the hidden layers, all networks
    lr: float = 3e-4  # Adam's learning rate, all networks and lambda
    batch_size: int = 1024  # transitions per update

    def __post_init__(self) -> None:
        groups = Condition(lambda size: size >= 8 and size % 8 == 0, "must be a multiple of 8")
        check(self, alpha=above(0), eps=above(0), latent_dim=groups)


class QRL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        size, hidden = config.latent_dim, config.hidden
        self.actor = UnitGaussian(spec.obs_dim, spec.action_low, spec.action_high, hidden)
        self.distance = Quasimetric(spec.state_dim, hidden, size)
        self.model = glorot_(MLP(size + spec.action_dim, size, hidden, GELU, layer_norm=True))
        self.log_lambda = nn.Parameter(torch.zeros(()))
        learned = [*self.distance.parameters(), *self.model.parameters(), self.log_lambda]
        self.value_optimizer = Adam(learned, config.lr)
        self.actor_optimizer = Adam(self.actor.parameters(), config.lr)

    def value_loss(self, batch: GoalBatch, latent: Tensor, next_latent: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the mean square of how much longer than 1 the steps are."""
        apart = self.distance.between(latent, self.distance.encoder(batch.value_goal))
        excess = F.relu(self.distance.between(latent, next_latent) - 1).square().mean()
        multiplier = self.log_lambda.exp()
        push = (100 * F.softplus(5 - apart / 100)).mean()
        dual = multiplier * (self.config.eps - excess.detach())
        return push + multiplier.detach() * excess + dual, excess.detach()

    def model_loss(self, batch: GoalBatch, latent: Tensor, next_latent: Tensor) -> Tensor:
        predicted = self.predict(latent, batch.action)
        there, back = (self.distance.between(next_latent, predicted), self.distance.between(predicted, next_latent))
        return (there + back).mean() / 2

    def predict(self, latent: Tensor, action: Tensor) -> Tensor:
        """The latent `[B, D]` after an action: the model predicts the change."""
        change: Tensor = self.model(torch.cat([latent, action], -1))
        return latent + change

    def actor_loss(self, batch: GoalBatch, latent: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and its cloning term."""
        obs = torch.cat([batch.obs, batch.actor_goal], -1)
        with torch.no_grad():
            goal = self.distance.encoder(batch.actor_goal)
        distance = self.distance.between(self.predict(latent.detach(), self.actor.mode(obs)), goal)
        cloning = -self.actor.log_prob(obs, batch.action).mean()
        return distance.mean() / (distance.mean().detach() + 1e-6) + self.config.alpha * cloning, cloning.detach()

    def update(self, batch: GoalBatch) -> Metrics:
        """One gradient step of distance, lambda, model and policy, all from the parameters before it."""
        latent, next_latent = self.distance.encoder(batch.obs), self.distance.encoder(batch.next_obs)
        value_loss, excess = self.value_loss(batch, latent, next_latent)
        model_loss = self.model_loss(batch, latent, next_latent)
        actor_loss, cloning = self.actor_loss(batch, latent)
        self.actor_optimizer.minimize(actor_loss)
        self.value_optimizer.minimize(value_loss + model_loss)
        return {
            "value_loss": value_loss.detach(),
            "model_loss": model_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "cloning_loss": cloning,
            "excess": excess,
            "lambda": self.log_lambda.detach().exp(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.sample(obs) if explore else self.actor.mode(obs)

    @torch.no_grad()
    def goal_values(self, obs: Tensor) -> Tensor:
        """Minus the distances `[B]` from states to the goals appended to them."""
        distance: Tensor = self.distance(*torch.split(obs, [self.spec.state_dim, self.spec.goal_dim], -1))
        return -distance


def train(run: "Run", config: Config) -> QRL:
    data = run.dataset()
    goals = Goals(data, config.value_goals, config.actor_goals)
    agent = QRL(data.spec, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(goals.sample(config.batch_size)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
