"""RCSL: return-conditioned supervised learning (Brandfonbrener et al. 2022, arXiv 2206.01079; RvS, arXiv 2112.10751).

Behaviour cloning conditioned on the return-to-go g, the return that followed the action in its episode. When acting, g
starts at the return of the data's best episode. Unlike a value function, the policy needs no bootstrapping, but it
cannot stitch together parts of two episodes: a single episode must have reached the return that is asked for.

    actor   L_pi = E[(pi(s, g_t) - a)^2],  g_t = r_t + r_{t+1} + ... + r_T
    acting  g_0 = the best return in the data,  g_{t+1} = g_t - r_t

Settings are those of MBRCSL's code (Zhou et al. 2023, arXiv 2310.19308; github zhaoyizhou1123/mbrcsl), whose last stage
this is. Deviations: training takes a fixed number of updates, with batches drawn with replacement from all of the data,
whereas that code takes 80 to 100 epochs of nine tenths of them, until a loss of the others rises; returns are in units
of the largest, and actions in units of half their range; there is no weight decay.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import above, check
from zoo.nn import MLP, BoundedPolicy, Normalizer, near_zero_
from zoo.nn.optim import Adam
from zoo.returns import ReturnToGo
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "return-conditioned"
SETTING = "offline"
DATA = "required"
ACTION_SPACES = ("continuous",)


@dataclass
class Config:
    hidden: list[int] = field(default_factory=lambda: [1024, 1024])  # widths of the hidden layers
    lr: float = 5e-5  # Adam's learning rate
    weight_decay: float = 0.0  # L2 penalty, added to the gradients; MBRCSL's authors use 0.1
    batch_size: int = 256  # transitions per update
    target_return: float | None = None  # return to condition on; null: the best return in the data
    return_scale: float | None = None  # returns are divided by this; null: the largest return in the data
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset

    def __post_init__(self) -> None:
        check(self, return_scale=above(0))


class ReturnBatch(NamedTuple):
    """Observations and actions, with the returns that followed."""

    obs: Tensor  # [B, obs_dim]
    action: Tensor  # [B, A]
    return_to_go: Tensor  # [B]


class RCSL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.goal = ReturnToGo()
        self.bounds = BoundedPolicy(spec.action_low, spec.action_high)
        self.actor = near_zero_(MLP(spec.obs_dim + 1, spec.action_dim, config.hidden))
        self.optimizer = Adam(self.actor.parameters(), config.lr, weight_decay=config.weight_decay)

    def policy(self, obs: Tensor, return_to_go: Tensor) -> Tensor:
        """Actions `[B, A]`, before they are clipped to the bounds, for observations and returns-to-go `[B]`."""
        x: Tensor = self.actor(torch.cat([obs, return_to_go[:, None] / self.goal.scale], -1))
        return self.bounds.center + self.bounds.scale * x

    def actor_loss(self, batch: ReturnBatch) -> Tensor:
        """Mean squared error over batch and action dimensions, in units of half the range of the actions."""
        return self.bounds.squared_error(self.policy(batch.obs, batch.return_to_go), batch.action).mean()

    def update(self, batch: ReturnBatch) -> Metrics:
        """One gradient step."""
        loss = self.actor_loss(batch)
        self.optimizer.minimize(loss)
        return {"actor_loss": loss.detach()}

    def begin(self, num_envs: int) -> None:
        self.goal.begin(num_envs)

    def observe(self, obs: Tensor, action: Tensor, reward: Tensor) -> None:
        self.goal.subtract(reward)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.bounds.clip(self.policy(self.normalizer(obs), self.goal.remaining(len(obs))))

    def memory(self) -> dict[str, Tensor]:
        return {"return_to_go": self.goal.target}

    @torch.no_grad()
    def step(self, obs: Tensor, reward: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        left = memory["return_to_go"] - reward
        return self.bounds.clip(self.policy(self.normalizer(obs), left)), {"return_to_go": left}


def train(run: "Run", config: Config) -> RCSL:
    data = run.dataset()
    agent = RCSL(data.spec, config)
    data.prepare(agent, config)
    return_to_go = data.return_to_go()
    run.report(agent.goal.set_target(config.target_return, data.episode_returns, config.return_scale))
    run.track(agent=agent)
    for _ in run.steps():
        batch = data.sample(config.batch_size)
        run.log(agent.update(ReturnBatch(batch.obs, batch.action, return_to_go[batch.index])))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
