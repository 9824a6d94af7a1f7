"""Policies that transport noise to actions with a flow: along a velocity field in many steps, or in a single one.

Internally, actions are in units of half their range, from -1 to 1, and noise is standard normal. `sample` returns
actions in the environment's units.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.models.diffusion import TimeEmbedding
from zoo.nn import GELU, MLP, BoundedPolicy, Mish, glorot_, with_derivative

TIME_WIDTH = 64  # width of a mean flow's embeddings of its two times


class FlowPolicy(BoundedPolicy):
    """Flow matching (Lipman et al. 2023, arXiv 2210.02747): a velocity field from noise at time 0 to actions at time 1.

    Args:
        obs_dim: the size of an observation.
        low, high: bounds of the actions.
        hidden: widths of the hidden layers.
        steps: number of Euler steps from noise to action.
    """

    def __init__(
        self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int], steps: int
    ) -> None:
        super().__init__(low, high)
        self.steps = steps
        self.net = MLP(obs_dim + len(low) + 1, len(low), hidden, GELU)
        glorot_(self.net)

    def forward(self, obs: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """The velocities `[B, A]` at points `x` `[B, A]` and times `[B, 1]`."""
        velocity: Tensor = self.net(torch.cat([obs, x, time], -1))
        return velocity

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The actions `[B, A]` to which the flow transports noise `[B, A]`."""
        x, time = noise, torch.zeros_like(noise[:, :1])
        for _ in range(self.steps):
            x, time = x + self(obs, x, time) / self.steps, time + 1 / self.steps
        return self.from_unit(x)


class OneStepPolicy(BoundedPolicy):
    """A network from observation and noise to action.

    Args:
        obs_dim: the size of an observation.
        low, high: bounds of the actions.
        hidden: widths of the hidden layers.
    """

    def __init__(self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int]) -> None:
        super().__init__(low, high)
        self.net = MLP(obs_dim + len(low), len(low), hidden, GELU)
        glorot_(self.net)

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The points `[B, A]` for noise `[B, A]`; they may lie outside the bounds."""
        x: Tensor = self.net(torch.cat([obs, noise], -1))
        return x

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The actions `[B, A]` for noise `[B, A]`."""
        return self.from_unit(self(obs, noise))


class MeanFlowPolicy(BoundedPolicy):
    """Average velocities (MeanFlow, Geng et al. 2025, arXiv 2505.13447) lead from noise, at time 1, to an action, at 0.

    Args:
        obs_dim: the size of an observation.
        low, high: bounds of the actions.
        hidden: widths of the hidden layers.
    """

    def __init__(self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int]) -> None:
        super().__init__(low, high)
        self.start, self.end = TimeEmbedding(TIME_WIDTH), TimeEmbedding(TIME_WIDTH)  # embeddings of r and t
        self.net = MLP(obs_dim + len(low) + 2 * TIME_WIDTH, len(low), hidden, Mish)

    def forward(self, obs: Tensor, x: Tensor, r: Tensor, t: Tensor) -> Tensor:
        """The average velocities `[..., A]` from time `r` to `t`, each `[...]` or `[1]`, for points `x` at time `t`."""
        times = torch.cat([self.start(r), self.end(t)], -1)
        velocity: Tensor = self.net(torch.cat([obs, x, times.expand(*x.shape[:-1], -1)], -1))
        return velocity

    def with_derivative(self, obs: Tensor, x: Tensor, r: Tensor, t: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """These velocities `[B, A]`, and their derivative along `t` as `x` moves with velocity `v` `[B, A]`.

        Gradients flow back only through the velocities.
        """
        start, (end, along) = self.start(r), self.end.with_derivative(t)
        inputs = torch.cat([obs, x, start, end], -1)
        moves = torch.cat([torch.zeros_like(obs), v, torch.zeros_like(along), along], -1)
        return with_derivative(self.net, inputs, moves)

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The actions `[..., A]` for noise `[..., A]`."""
        r = noise.new_zeros(1)
        return self.from_unit(noise - self(obs, noise, r, r + 1))
