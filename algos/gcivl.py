"""GCIVL: Goal-Conditioned Implicit V-Learning (Park et al. 2024, arXiv 2410.20092).

GCIQL without critics: a state's value regresses an upper expectile of its successors' values, which in a deterministic
environment approximates the value of the best action. The policy imitates the data, weighted by how much nearer to the
goal each step came. The value function is that of HIQL (Park, Ghosh, Eysenbach, Levine 2023, arXiv 2307.11949), but
there is only one policy.

    value    L_V  = E[sum_i L2^tau(A, r + gamma (1 - reached) V_i'(s', g) - V_i(s, g))]
             L2^tau(A, u) = |tau - 1(A < 0)| u^2,  A = r + gamma (1 - reached) min V'(s', g) - mean V'(s, g)
    actor    L_pi = E[-exp(beta (mean V(s', g) - mean V(s, g))) log pi(a|s, g)]

The reward is -1 until the state is the goal. Deviations: as in OGBench's code (github seohongpark/ogbench), weights are
clipped at 100, the policy is a Gaussian of standard deviation 1, all losses are computed before any parameter is
updated, and the target values move towards the values from before the update. Unlike in that code, layer normalization
adds 1e-5 to the variance, not 1e-6.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import between, check
from zoo.data.goals import GoalBatch, Goals
from zoo.nn import GELU, EnsembleMLP, UnitGaussian, glorot_, polyak_update
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
    expectile: float = 0.9  # tau of the value's loss
    beta: float = 10.0  # inverse temperature of the policy's weights
    max_weight: float = 100.0  # the policy's weights are clipped here
    value_goals: list[float] = field(default_factory=lambda: [0.2, 0.5, 0.3])  # P(goal: current, a later, any state)
    actor_goals: list[float] = field(default_factory=lambda: [0.0, 1.0, 0.0])  # of the policy; to stitch: [0,0.5,0.5]
    hidden: list[int] = field(default_factory=lambda: [512, 512, 512])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma, also of the geometric distribution of later goals; giant mazes: 0.995
    tau: float = 0.005  # target values move this fraction of the way at every update
    lr: float = 3e-4  # Adam's learning rate, all networks
    batch_size: int = 1024  # transitions per update

    def __post_init__(self) -> None:
        check(self, discount=between(0, 1, "neither"))


class GCIVL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.actor = UnitGaussian(spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.value = glorot_(EnsembleMLP(2, spec.obs_dim, 1, config.hidden, layer_norm=True, activation=GELU))
        self.target_value = copy.deepcopy(self.value).requires_grad_(False)
        self.value_optimizer = Adam(self.value.parameters(), config.lr)
        self.actor_optimizer = Adam(self.actor.parameters(), config.lr)

    def values(self, network: EnsembleMLP, obs: Tensor, goal: Tensor) -> Tensor:
        """V_1 and V_2, `[2, B]`."""
        value: Tensor = network(torch.cat([obs, goal], -1)).squeeze(-1)
        return value

    def value_loss(self, batch: GoalBatch) -> tuple[Tensor, Tensor]:
        """The loss, and the mean value."""
        with torch.no_grad():
            next_value = self.values(self.target_value, batch.next_obs, batch.value_goal)  # [2, B]
            target = torch.where(batch.reached, 0.0, -1 + self.config.discount * next_value)
            advantage = target.amin(0) - self.values(self.target_value, batch.obs, batch.value_goal).mean(0)
            weight = torch.where(advantage >= 0, self.config.expectile, 1 - self.config.expectile)
        value = self.values(self.value, batch.obs, batch.value_goal)
        return (weight * (target - value).square()).sum(0).mean(), value.detach().mean()

    def actor_loss(self, batch: GoalBatch) -> Tensor:
        obs, next_obs, goal = batch.obs, batch.next_obs, batch.actor_goal
        with torch.no_grad():
            advantage = self.values(self.value, next_obs, goal).mean(0) - self.values(self.value, obs, goal).mean(0)
            weight = torch.exp(self.config.beta * advantage).clamp(max=self.config.max_weight)
        return -(weight * self.actor.log_prob(torch.cat([obs, goal], -1), batch.action)).mean()

    def update(self, batch: GoalBatch) -> Metrics:
        """One gradient step of values and policy and a move of the target values, all from the parameters before it."""
        value_loss, value = self.value_loss(batch)
        actor_loss = self.actor_loss(batch)
        polyak_update(self.target_value, self.value, self.config.tau)
        self.value_optimizer.minimize(value_loss)
        self.actor_optimizer.minimize(actor_loss)
        return {"value_loss": value_loss.detach(), "actor_loss": actor_loss.detach(), "value": value}

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.sample(obs) if explore else self.actor.mode(obs)

    @torch.no_grad()
    def goal_values(self, obs: Tensor) -> Tensor:
        """The values `[B]` of states with their goals appended, `[B, S + G]`."""
        return self.values(self.value, *torch.split(obs, [self.spec.state_dim, self.spec.goal_dim], -1)).mean(0)


def train(run: "Run", config: Config) -> GCIVL:
    data = run.dataset()
    goals = Goals(data, config.value_goals, config.actor_goals, config.discount)
    agent = GCIVL(data.spec, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(goals.sample(config.batch_size)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
