"""GCBC: Goal-Conditioned Behavioral Cloning (Lynch et al. 2019, arXiv 1903.01973; Ghosh et al. 2019, arXiv 1912.06088).

Every later state of an episode is a goal that its actions have reached. So the policy imitates every action of the
data, given the state and a later state of the episode. In an evaluation it is given the task's goal instead.

    actor    L_pi = E[-log pi(a|s, g)],  g uniform over the later states of the episode

Deviations: as in OGBench (Park et al. 2024, arXiv 2410.20092; github seohongpark/ogbench), the policy is a Gaussian of
standard deviation 1 whose mean is not squashed.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import check
from zoo.data.goals import GoalBatch, Goals
from zoo.nn import UnitGaussian
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
    actor_goals: list[float] = field(default_factory=lambda: [0.0, 1.0, 0.0])  # P(goal: current, a later, any state)
    hidden: list[int] = field(default_factory=lambda: [512, 512, 512])  # widths of the hidden layers
    lr: float = 3e-4  # Adam's learning rate
    batch_size: int = 1024  # transitions per update

    def __post_init__(self) -> None:
        check(self)


class GCBC(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.actor = UnitGaussian(spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.optimizer = Adam(self.actor.parameters(), config.lr)

    def actor_loss(self, batch: GoalBatch) -> Tensor:
        return -self.actor.log_prob(torch.cat([batch.obs, batch.actor_goal], -1), batch.action).mean()

    def update(self, batch: GoalBatch) -> Metrics:
        self.optimizer.minimize(loss := self.actor_loss(batch))
        return {"actor_loss": loss.detach()}

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.sample(obs) if explore else self.actor.mode(obs)


def train(run: "Run", config: Config) -> GCBC:
    data = run.dataset()
    goals = Goals(data, value=[0.0, 0.0, 1.0], actor=config.actor_goals)  # there is no value
    agent = GCBC(data.spec, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(goals.sample(config.batch_size)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
