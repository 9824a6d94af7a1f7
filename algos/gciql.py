"""GCIQL: Goal-Conditioned IQL (Kostrikov et al. 2021, arXiv 2110.06169; Park et al. 2024, arXiv 2410.20092).

IQL conditioned on a goal. The reward is -1 until the state is the goal, which ends the episode, so that values count
the steps to it. Goals are relabelled in hindsight. The policy maximizes Q, regularized by behaviour cloning.

    value    L_V  = E[L2^tau(min Q'(s, a, g) - V(s, g))],  L2^tau(u) = |tau - 1(u < 0)| u^2
    critic   L_Q  = E[sum_i (r + gamma (1 - reached) V(s', g) - Q_i(s, a, g))^2]
    actor    L_pi = E[-min Q(s, mu(s, g), g) / mean |min Q| - alpha log pi(a|s, g)]

The policy's loss is that of TD3+BC; IQL's own weights the cloning by the advantage. Deviations: as in OGBench's code
(github seohongpark/ogbench), all losses are computed before any parameter is updated, and the target critics move
towards the critics from before the update. Unlike in that code, the critics' layer normalization adds 1e-5 to the
variance, not 1e-6. That code's other policy loss, with advantage weights, is GCIVL's.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import above, between, check
from zoo.data.goals import GoalBatch, Goals
from zoo.nn import GELU, MLP, EnsembleCritic, UnitGaussian, glorot_, polyak_update
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
    alpha: float = 0.3  # weight of cloning; OGBench takes 0.003 on pointmaze
    value_goals: list[float] = field(default_factory=lambda: [0.2, 0.5, 0.3])  # P(goal: current, a later, any state)
    actor_goals: list[float] = field(default_factory=lambda: [0.0, 1.0, 0.0])  # of the policy; to stitch: [0,0.5,0.5]
    hidden: list[int] = field(default_factory=lambda: [512, 512, 512])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma, also of the geometric distribution of later goals; giant mazes: 0.995
    tau: float = 0.005  # target critics move this fraction of the way at every update
    lr: float = 3e-4  # Adam's learning rate, all networks
    batch_size: int = 1024  # transitions per update

    def __post_init__(self) -> None:
        check(self, alpha=above(0), discount=between(0, 1, "neither"))


class GCIQL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.actor = UnitGaussian(spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.value = glorot_(MLP(spec.obs_dim, 1, config.hidden, GELU, layer_norm=True))
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden, layer_norm=True, activation=GELU)
        glorot_(self.critic)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.value_optimizer = Adam(self.value.parameters(), config.lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.lr)
        self.actor_optimizer = Adam(self.actor.parameters(), config.lr)

    def value_loss(self, batch: GoalBatch) -> tuple[Tensor, Tensor]:
        """The loss, and the mean value."""
        obs = torch.cat([batch.obs, batch.value_goal], -1)
        with torch.no_grad():
            q = self.target_critic(obs, batch.action).squeeze(-1).amin(0)  # [B]
        value = self.value(obs).squeeze(-1)
        weight = torch.where(q >= value, self.config.expectile, 1 - self.config.expectile)
        return (weight * (q - value).square()).mean(), value.detach().mean()

    def critic_loss(self, batch: GoalBatch) -> Tensor:
        with torch.no_grad():
            next_value = self.value(torch.cat([batch.next_obs, batch.value_goal], -1)).squeeze(-1)
            target = torch.where(batch.reached, 0.0, -1 + self.config.discount * next_value)
        out: Tensor = self.critic(torch.cat([batch.obs, batch.value_goal], -1), batch.action).squeeze(-1)  # [2, B]
        return (out - target).square().sum(0).mean()

    def actor_loss(self, batch: GoalBatch) -> tuple[Tensor, Tensor]:
        """The loss, and its cloning term."""
        obs = torch.cat([batch.obs, batch.actor_goal], -1)
        q = self.critic(obs, self.actor.mode(obs)).squeeze(-1).amin(0)  # [B]
        cloning = -self.actor.log_prob(obs, batch.action).mean()
        return -q.mean() / (q.abs().mean().detach() + 1e-6) + self.config.alpha * cloning, cloning.detach()

    def update(self, batch: GoalBatch) -> Metrics:
        """One gradient step of all networks and a move of the target critics, all from the parameters before it."""
        value_loss, value = self.value_loss(batch)
        critic_loss = self.critic_loss(batch)
        actor_loss, cloning = self.actor_loss(batch)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        self.actor_optimizer.minimize(actor_loss)
        self.critic_optimizer.minimize(critic_loss)
        self.value_optimizer.minimize(value_loss)
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "cloning_loss": cloning,
            "value": value,
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.actor.sample(obs) if explore else self.actor.mode(obs)

    @torch.no_grad()
    def goal_values(self, obs: Tensor) -> Tensor:
        """The values `[B]` of states with their goals appended, `[B, S + G]`."""
        value: Tensor = self.value(obs).squeeze(-1)
        return value


def train(run: "Run", config: Config) -> GCIQL:
    data = run.dataset()
    goals = Goals(data, config.value_goals, config.actor_goals, config.discount)
    agent = GCIQL(data.spec, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(goals.sample(config.batch_size)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
