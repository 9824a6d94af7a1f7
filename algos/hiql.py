"""HIQL: Hierarchical Implicit Q-Learning (Park, Ghosh, Eysenbach, Levine 2023, arXiv 2307.11949).

Far from the goal, one step changes the value by less than the value's own errors, so the value says little about which
action is better. But it can still compare states that are many steps apart. So one value function trains two policies.
The upper policy outputs a subgoal, the representation of a state k steps ahead, and the lower policy acts to reach it.

    value    L_V  = E[sum_i L2^tau(A, r + gamma (1 - reached) V_i'(s', g) - V_i(s, g))]
             L2^tau(A, u) = |tau - 1(A < 0)| u^2,  A = r + gamma (1 - reached) min V'(s', g) - mean V'(s, g)
    lower    L_l  = E[-exp(beta_l (V(s', w) - V(s, w))) log pi_l(a|s, phi(s, w))],  w = s_{t+k}
    upper    L_h  = E[-exp(beta_h (V(m, g) - V(s, g))) log pi_h(phi(s, m)|s, g)],  m = w, or g if it comes first

V is V(s, phi(s, g)), and only its loss trains phi. The reward is -1 until the state is the goal. Deviations: as in
OGBench's code (github seohongpark/ogbench, by the same author), phi takes state and goal and is scaled to a length of
sqrt(10), and the target values use the current phi, not a target copy; weights are clipped at 100; policies are
Gaussians of standard deviation 1; all losses are computed before any parameter is updated, and the target values move
towards the values from before the update. Unlike in that code, layer normalization adds 1e-5 to the variance, not 1e-6.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, between, check
from zoo.data.goals import Goals, SubgoalBatch
from zoo.nn import GELU, MLP, EnsembleMLP, UnitGaussian, glorot_, near_zero_, polyak_update
from zoo.nn.goals import length_normalize
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
    subgoal_steps: int = 25  # k, steps from a state to its subgoal; 100 in humanoidmaze
    expectile: float = 0.7  # tau of the value's loss
    low_beta: float = 3.0  # inverse temperature of the lower policy's weights
    high_beta: float = 3.0  # likewise for the upper policy
    max_weight: float = 100.0  # the policies' weights are clipped here
    representation_dim: int = 10  # outputs of phi
    value_goals: list[float] = field(default_factory=lambda: [0.2, 0.5, 0.3])  # P(goal: current, a later, any state)
    actor_goals: list[float] = field(
        default_factory=lambda: [0.0, 1.0, 0.0]
    )  # likewise for the upper policy; [0,0.5,0.5] to stitch
    hidden: list[int] = field(default_factory=lambda: [512, 512, 512])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma, also of the geometric distribution of later goals; giant mazes: 0.995
    tau: float = 0.005  # target values move this fraction of the way at every update
    lr: float = 3e-4  # Adam's learning rate, all networks
    batch_size: int = 1024  # transitions per update

    def __post_init__(self) -> None:
        check(
            self,
            subgoal_steps=at_least(1),
            low_beta=at_least(0),
            high_beta=at_least(0),
            representation_dim=at_least(1),
            discount=between(0, 1, "neither"),
        )


class HIQL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        state, size, hidden = spec.state_dim, config.representation_dim, config.hidden
        self.phi = glorot_(MLP(spec.obs_dim, size, hidden, GELU, layer_norm=True))
        self.value = glorot_(EnsembleMLP(2, state + size, 1, hidden, layer_norm=True, activation=GELU))
        self.target_value = copy.deepcopy(self.value).requires_grad_(False)
        self.low_actor = UnitGaussian(state + size, spec.action_low, spec.action_high, hidden)
        self.high_actor = near_zero_(glorot_(MLP(spec.obs_dim, size, hidden, GELU)), gain=0.1)
        self.value_optimizer = Adam([*self.value.parameters(), *self.phi.parameters()], config.lr)
        self.low_optimizer = Adam(self.low_actor.parameters(), config.lr)
        self.high_optimizer = Adam(self.high_actor.parameters(), config.lr)

    def represent(self, obs: Tensor, goal: Tensor) -> Tensor:
        """phi, of length sqrt(D): `[B, D]`."""
        return length_normalize(self.phi(torch.cat([obs, goal], -1)))

    def values(self, network: EnsembleMLP, obs: Tensor, goal: Tensor) -> Tensor:
        """V_1 and V_2, `[2, B]`."""
        value: Tensor = network(torch.cat([obs, self.represent(obs, goal)], -1)).squeeze(-1)
        return value

    def value_loss(self, batch: SubgoalBatch) -> tuple[Tensor, Tensor]:
        """The loss, and the mean value."""
        with torch.no_grad():
            next_value = self.values(self.target_value, batch.next_obs, batch.value_goal)  # [2, B]
            target = torch.where(batch.reached, 0.0, -1 + self.config.discount * next_value)
            advantage = target.amin(0) - self.values(self.target_value, batch.obs, batch.value_goal).mean(0)
            weight = torch.where(advantage >= 0, self.config.expectile, 1 - self.config.expectile)
        value = self.values(self.value, batch.obs, batch.value_goal)
        return (weight * (target - value).square()).sum(0).mean(), value.detach().mean()

    @torch.no_grad()
    def weight(self, beta: float, obs: Tensor, next_obs: Tensor, goal: Tensor) -> Tensor:
        """A policy's exponential weights `[B]`: by how much nearer to the goal `next_obs` is than `obs`."""
        advantage = self.values(self.value, next_obs, goal).mean(0) - self.values(self.value, obs, goal).mean(0)
        return torch.exp(beta * advantage).clamp(max=self.config.max_weight)

    def low_actor_loss(self, batch: SubgoalBatch) -> Tensor:
        weight = self.weight(self.config.low_beta, batch.obs, batch.next_obs, batch.subgoal)
        with torch.no_grad():
            subgoal = self.represent(batch.obs, batch.subgoal)
        return -(weight * self.low_actor.log_prob(torch.cat([batch.obs, subgoal], -1), batch.action)).mean()

    def high_actor_loss(self, batch: SubgoalBatch) -> Tensor:
        """The loss, without the Gaussian's constant."""
        weight = self.weight(self.config.high_beta, batch.obs, batch.waypoint, batch.actor_goal)
        with torch.no_grad():
            target = self.represent(batch.obs, batch.waypoint)
        error: Tensor = self.high_actor(torch.cat([batch.obs, batch.actor_goal], -1)) - target
        return (weight * 0.5 * error.square().sum(-1)).mean()

    def update(self, batch: SubgoalBatch) -> Metrics:
        """One gradient step of all networks and a move of the target values, all from the parameters before it."""
        value_loss, value = self.value_loss(batch)
        low_actor_loss = self.low_actor_loss(batch)
        high_actor_loss = self.high_actor_loss(batch)
        polyak_update(self.target_value, self.value, self.config.tau)
        self.value_optimizer.minimize(value_loss)
        self.low_optimizer.minimize(low_actor_loss)
        self.high_optimizer.minimize(high_actor_loss)
        return {
            "value_loss": value_loss.detach(),
            "low_actor_loss": low_actor_loss.detach(),
            "high_actor_loss": high_actor_loss.detach(),
            "value": value,
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        """The upper policy chooses a subgoal, and the lower policy acts to reach it."""
        subgoal = self.high_actor(obs)
        if explore:
            subgoal = subgoal + torch.randn_like(subgoal)
        inputs = torch.cat([obs[:, : self.spec.state_dim], length_normalize(subgoal)], -1)
        return self.low_actor.sample(inputs) if explore else self.low_actor.mode(inputs)

    @torch.no_grad()
    def goal_values(self, obs: Tensor) -> Tensor:
        """The values `[B]` of states with their goals appended, `[B, S + G]`."""
        return self.values(self.value, *torch.split(obs, [self.spec.state_dim, self.spec.goal_dim], -1)).mean(0)

    @torch.no_grad()
    def subgoals(self, obs: Tensor, states: Tensor) -> Tensor:
        """Of states `[N, S]`, the indices `[B]` of those nearest to the subgoals at observations `[B, S + G]`."""
        named = length_normalize(self.high_actor(obs))
        state = obs[:, None, : self.spec.state_dim].expand(-1, len(states), -1)
        return torch.einsum("bd,bnd->bn", named, self.represent(state, states.expand(len(obs), -1, -1))).argmax(-1)


def train(run: "Run", config: Config) -> HIQL:
    data = run.dataset()
    goals = Goals(data, config.value_goals, config.actor_goals, config.discount)
    agent = HIQL(data.spec, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(goals.sample_subgoals(config.batch_size, config.subgoal_steps)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
