"""Policies that carry noise to actions by a flow: along a velocity field in many steps, or in one.

Within them actions are in units of half their range, from -1 to 1, and noise is standard normal. `sample` gives actions
in the environment's units.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.nn import GELU, MLP, BoundedPolicy, glorot_


class FlowPolicy(BoundedPolicy):
    """Flow matching (Lipman et al. 2023, arXiv 2210.02747): a velocity field from noise, at time 0, to actions, at 1.

    Args:
        obs_dim: of one observation.
        low, high: bounds of the actions.
        hidden: widths of the hidden layers.
        steps: of Euler's method, from noise to action.
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
        """The actions `[B, A]` to which noise `[B, A]` flows."""
        x, time = noise, torch.zeros_like(noise[:, :1])
        for _ in range(self.steps):
            x, time = x + self(obs, x, time) / self.steps, time + 1 / self.steps
        return self.from_unit(x)


class OneStepPolicy(BoundedPolicy):
    """A network from observation and noise to action.

    Args:
        obs_dim: of one observation.
        low, high: bounds of the actions.
        hidden: widths of the hidden layers.
    """

    def __init__(self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int]) -> None:
        super().__init__(low, high)
        self.net = MLP(obs_dim + len(low), len(low), hidden, GELU)
        glorot_(self.net)

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """For noise `[B, A]` the points `[B, A]`, which may lie outside the bounds."""
        x: Tensor = self.net(torch.cat([obs, noise], -1))
        return x

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """For noise `[B, A]` the actions `[B, A]`."""
        return self.from_unit(self(obs, noise))
