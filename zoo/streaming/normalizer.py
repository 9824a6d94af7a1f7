"""Observations and rewards of a stream, normalized by their running statistics."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.spec import GRID


class RunningMoments(nn.Module):
    """Mean and variance of all samples so far (Welford 1962), in double precision for the sake of long streams.

    Each is stored with a leading dimension of one: PyTorch's compiler treats double-precision scalars as constants and
    loses what is written to them.
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        super().__init__()
        self.count = nn.Buffer(torch.zeros(1, dtype=torch.float64))
        self.means = nn.Buffer(torch.zeros(1, *shape, dtype=torch.float64))
        self.squares = nn.Buffer(torch.zeros(1, *shape, dtype=torch.float64))  # sum of squared deviations

    def update(self, x: Tensor) -> None:
        """Adds one sample."""
        self.count.add_(1)
        deviation = x - self.means
        self.means.add_(deviation / self.count[0])
        self.squares.addcmul_(deviation, x - self.means)

    @property
    def mean(self) -> Tensor:
        """`[*shape]`."""
        return self.means[0]

    def std(self) -> Tensor:
        """`[*shape]`, unbiased; 1 until there are two samples."""
        variance = torch.where(self.count[0] < 2, 1.0, self.squares[0] / (self.count[0] - 1).clamp(min=1))
        std: Tensor = (variance + 1e-8).sqrt()
        return std


class StreamNormalizer(nn.Module):
    """Normalizes observations and rewards by their running statistics, and adds the time in the episode as a feature.

    An observation is normalized to mean 0 and standard deviation 1 over all observations so far, itself included. A
    reward is divided by the standard deviation of the discounted sums of rewards. The time is the elapsed share of an
    episode, minus 0.5; it is appended only to vectors, not to frames.

    Args:
        obs_shape: the shape of an observation.
        discount: the discount factor in the sums of rewards.
        time_feature: append the time.
        normalize_obs: normalize observations; otherwise image bytes are divided by 255.
        scale_reward: scale rewards.

    Attributes:
        shape: the shape of the observations that `reset` and `step` return.
    """

    PER_RUN = ("time_limit",)

    def __init__(
        self, obs_shape: Sequence[int], discount: float, time_feature: bool = True, normalize_obs: bool = True,
        scale_reward: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.discount, self.normalize_obs, self.scale_reward = discount, normalize_obs, scale_reward
        self.frames = len(obs_shape) == 3
        self.pictures = self.frames and min(obs_shape[1:]) > GRID
        self.time_feature = time_feature and not self.frames
        self.shape = tuple(obs_shape) if self.frames else (math.prod(obs_shape) + self.time_feature,)
        self.obs_moments, self.return_moments = RunningMoments(obs_shape), RunningMoments()
        self.time_limit = nn.Buffer(torch.ones(()))  # steps after which an episode ends
        self.elapsed = nn.Buffer(torch.zeros(()))  # steps in the episode
        self.rewards = nn.Buffer(torch.zeros(1, dtype=torch.float64))  # discounted sum since the episode began

    def reset(self, obs: Tensor) -> Tensor:
        """The first observation of an episode, normalized: `[*shape]`."""
        self.elapsed.zero_()
        self.rewards.zero_()
        self.obs_moments.update(obs)
        return self.forward(obs, self.elapsed)

    def step(self, reward: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        """The scaled reward of one step, `[]`, and the normalized next observation, `[*shape]`."""
        self.elapsed.add_(1)
        self.rewards.mul_(self.discount).add_(reward)
        self.return_moments.update(self.rewards[0])
        self.obs_moments.update(next_obs)
        scaled = (reward / self.return_moments.std()).float() if self.scale_reward else reward
        return scaled, self.forward(next_obs, self.elapsed)

    def forward(self, obs: Tensor, elapsed: Tensor) -> Tensor:
        """Normalized observations, from `[..., *obs_shape]`, `elapsed` `[...]` steps into their episodes."""
        if self.normalize_obs:
            x = ((obs - self.obs_moments.mean) / self.obs_moments.std()).float()
        else:
            x = obs.float() / (255 if self.pictures and obs.dtype == torch.uint8 else 1)
        if self.frames:
            return x
        x = x.flatten(elapsed.ndim)
        return torch.cat([x, (elapsed / self.time_limit - 0.5)[..., None]], -1) if self.time_feature else x
