"""OTA: Option-Aware Temporally Abstracted value learning (Ahn, Choi, Han, Moon 2025, arXiv 2505.12737).

HIQL with a separate value function for the upper policy. The upper policy learns from the advantages of subgoals, and
far from the goal a value that counts steps often gets their signs wrong. So the upper policy's value counts options of
n steps, discounted once per option: the goal is n times nearer. The lower policy, whose subgoals are near, keeps the
value that counts steps.

    value    L_V  = E[sum_i L2^tau(A, r + gamma (1 - reached) V_i'(s', g) - V_i(s, g))]
             L2^tau(A, u) = |tau - 1(A < 0)| u^2,  A = r + gamma (1 - reached) min V'(s', g) - mean V'(s, g)
    upper V  the same of U for V, s_e for s':  e = t + n, or where the goal or the episode's end is, if that is first
    lower    L_l  = E[-exp(beta_l (V(s', w) - V(s, w))) log pi_l(a|s, phi(s, w))],  w = s_{t+k}
    upper    L_h  = E[-exp(beta_h (U(m, g) - U(s, g))) log pi_h(phi(s, m)|s, g)],  m = w, or g if it comes first

The reward is -1, except where the goal is reached: there it is 0, and nothing follows. V's goal is reached where it is
the state itself, U's where the option ends at it. U's goals are drawn like V's, but apart from them, and the option's
end stands for the state itself. Both values share one phi, and both train it. Deviations: as in the authors' code
(github ota-v/ota-v, read in its copy in ktolnos/TTGS) and in `hiql`, phi takes state and goal, has length sqrt(10) and
no target copy; weights are clipped at 100; policies are Gaussians of standard deviation 1; all losses are computed
before any parameter is updated. Unlike in that code, layer normalization adds 1e-5 to the variance, not 1e-6.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, between, check
from zoo.data.goals import Goals, OptionBatch
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
    option_steps: int = 5  # n, steps of an option; the upper policy's value counts options
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
            option_steps=at_least(1),
            subgoal_steps=at_least(1),
            low_beta=at_least(0),
            high_beta=at_least(0),
            representation_dim=at_least(1),
            discount=between(0, 1, "neither"),
        )


class OTA(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        state, size, hidden = spec.state_dim, config.representation_dim, config.hidden
        self.phi = glorot_(MLP(spec.obs_dim, size, hidden, GELU, layer_norm=True))
        self.value = glorot_(EnsembleMLP(2, state + size, 1, hidden, layer_norm=True, activation=GELU))
        self.target_value = copy.deepcopy(self.value).requires_grad_(False)
        self.high_value = glorot_(EnsembleMLP(2, state + size, 1, hidden, layer_norm=True, activation=GELU))
        self.target_high_value = copy.deepcopy(self.high_value).requires_grad_(False)
        self.low_actor = UnitGaussian(state + size, spec.action_low, spec.action_high, hidden)
        self.high_actor = near_zero_(glorot_(MLP(spec.obs_dim, size, hidden, GELU)), gain=0.1)
        values = [*self.value.parameters(), *self.high_value.parameters(), *self.phi.parameters()]
        self.value_optimizer = Adam(values, config.lr)
        self.low_optimizer = Adam(self.low_actor.parameters(), config.lr)
        self.high_optimizer = Adam(self.high_actor.parameters(), config.lr)

    def represent(self, obs: Tensor, goal: Tensor) -> Tensor:
        """phi, of length sqrt(D): `[B, D]`."""
        return length_normalize(self.phi(torch.cat([obs, goal], -1)))

    def values(self, network: EnsembleMLP, obs: Tensor, goal: Tensor) -> Tensor:
        """V_1 and V_2, or U_1 and U_2: `[2, B]`."""
        value: Tensor = network(torch.cat([obs, self.represent(obs, goal)], -1)).squeeze(-1)
        return value

    def value_loss(self, batch: OptionBatch) -> tuple[Tensor, Tensor]:
        """The loss of V, which counts steps, and its mean value."""
        goal = batch.value_goal
        return self.expectile_loss(self.value, self.target_value, batch.obs, batch.next_obs, goal, batch.reached)

    def high_value_loss(self, batch: OptionBatch) -> tuple[Tensor, Tensor]:
        """The loss of U, which counts options, and its mean value."""
        return self.expectile_loss(
            self.high_value, self.target_high_value, batch.obs, batch.option_end, batch.option_goal,
            batch.option_reached,
        )  # fmt: skip

    def expectile_loss(
        self, network: EnsembleMLP, target_network: EnsembleMLP, obs: Tensor, later: Tensor, goal: Tensor,
        reached: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The loss of a value whose target is at a later state, a step or an option away, and its mean value."""
        with torch.no_grad():
            target = torch.where(reached, 0.0, -1 + self.config.discount * self.values(target_network, later, goal))
            advantage = target.amin(0) - self.values(target_network, obs, goal).mean(0)
            weight = torch.where(advantage >= 0, self.config.expectile, 1 - self.config.expectile)
        value = self.values(network, obs, goal)
        return (weight * (target - value).square()).sum(0).mean(), value.detach().mean()

    @torch.no_grad()
    def weight(self, network: EnsembleMLP, beta: float, obs: Tensor, later: Tensor, goal: Tensor) -> Tensor:
        """A policy's exponential weights `[B]`: by how much nearer to the goal `later` is than `obs`."""
        advantage = self.values(network, later, goal).mean(0) - self.values(network, obs, goal).mean(0)
        return torch.exp(beta * advantage).clamp(max=self.config.max_weight)

    def low_actor_loss(self, batch: OptionBatch) -> Tensor:
        weight = self.weight(self.value, self.config.low_beta, batch.obs, batch.next_obs, batch.subgoal)
        with torch.no_grad():
            subgoal = self.represent(batch.obs, batch.subgoal)
        return -(weight * self.low_actor.log_prob(torch.cat([batch.obs, subgoal], -1), batch.action)).mean()

    def high_actor_loss(self, batch: OptionBatch) -> Tensor:
        """The loss, without the Gaussian's constant."""
        weight = self.weight(self.high_value, self.config.high_beta, batch.obs, batch.waypoint, batch.actor_goal)
        with torch.no_grad():
            target = self.represent(batch.obs, batch.waypoint)
        error: Tensor = self.high_actor(torch.cat([batch.obs, batch.actor_goal], -1)) - target
        return (weight * 0.5 * error.square().sum(-1)).mean()

    def update(self, batch: OptionBatch) -> Metrics:
        """One gradient step of all networks and a move of the target values, all from the parameters before it."""
        value_loss, value = self.value_loss(batch)
        high_value_loss, high_value = self.high_value_loss(batch)
        low_actor_loss = self.low_actor_loss(batch)
        high_actor_loss = self.high_actor_loss(batch)
        polyak_update(self.target_value, self.value, self.config.tau)
        polyak_update(self.target_high_value, self.high_value, self.config.tau)
        self.value_optimizer.minimize(value_loss + high_value_loss)
        self.low_optimizer.minimize(low_actor_loss)
        self.high_optimizer.minimize(high_actor_loss)
        return {
            "value_loss": value_loss.detach(),
            "high_value_loss": high_value_loss.detach(),
            "low_actor_loss": low_actor_loss.detach(),
            "high_actor_loss": high_actor_loss.detach(),
            "value": value,
            "high_value": high_value,
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
        return self.values(self.high_value, *torch.split(obs, [self.spec.state_dim, self.spec.goal_dim], -1)).mean(0)

    @torch.no_grad()
    def subgoals(self, obs: Tensor, states: Tensor) -> Tensor:
        """Of states `[N, S]`, the indices `[B]` of those nearest to the subgoals at observations `[B, S + G]`."""
        named = length_normalize(self.high_actor(obs))
        state = obs[:, None, : self.spec.state_dim].expand(-1, len(states), -1)
        return torch.einsum("bd,bnd->bn", named, self.represent(state, states.expand(len(obs), -1, -1))).argmax(-1)


def train(run: "Run", config: Config) -> OTA:
    data = run.dataset()
    goals = Goals(data, config.value_goals, config.actor_goals, config.discount)
    agent = OTA(data.spec, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(goals.sample_options(config.batch_size, config.subgoal_steps, config.option_steps)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
