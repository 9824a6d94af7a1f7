"""Policies over bounded continuous actions: from observations `[B, obs_dim]` to actions `[B, A]`.

A policy works in the environment's own action units: it maps its output onto `[low, high]` itself, so that buffers,
datasets and critics never see rescaled actions.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.nn.initialization import glorot_, near_zero_
from zoo.nn.layers import GELU, MLP

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
LOG_2 = math.log(2)


def center_and_scale(low: Sequence[float], high: Sequence[float]) -> tuple[list[float], list[float]]:
    """The middle of the bounds and half of their range, such that in float32 no action exceeds the bounds."""
    low_, high_ = torch.tensor([low, high], dtype=torch.float64, device="cpu")
    center = ((high_ + low_) / 2).float()
    scale = torch.minimum(center - low_, high_ - center).float()
    outside = (center - scale < low_) | (center + scale > high_)  # by rounding, such as -0.30000004 for -0.3
    scale -= outside * torch.maximum(low_.abs(), high_.abs()).float() * 2**-22
    return center.tolist(), scale.tolist()


class BoundedPolicy(nn.Module):
    """The base class of policies over continuous actions, with bounds `[low, high]`.

    Attributes:
        center, scale: `[A]` the middle of the bounds, and half of their range.
        log_scale: the sum of the logarithms of `scale`.
        log_uniform: log density of uniformly distributed actions.
    """

    PER_RUN = ("center", "scale")

    def __init__(self, low: Sequence[float], high: Sequence[float]) -> None:
        super().__init__()
        center, scale = center_and_scale(low, high)
        self.log_scale, self.log_uniform = sum(math.log(x) for x in scale), -sum(math.log(2 * x) for x in scale)
        self.center, self.scale = nn.Buffer(torch.tensor(center)), nn.Buffer(torch.tensor(scale))

    def squash(self, x: Tensor) -> Tensor:
        """Maps real numbers `[B, A]` to actions within the bounds, by tanh."""
        return self.center + self.scale * torch.tanh(x)

    def to_unit(self, action: Tensor) -> Tensor:
        """Actions `[..., A]` relative to the middle of the bounds, in units of half their range: from -1 to 1."""
        return (action - self.center) / self.scale

    def squared_error(self, action: Tensor, other: Tensor) -> Tensor:
        """The squared difference of actions `[..., A]` in each dimension, in units of half its range."""
        return ((action - other) / self.scale).square()

    def from_unit(self, x: Tensor) -> Tensor:
        """The actions `[..., A]` for numbers from `to_unit`, clipped to the bounds."""
        return self.center + self.scale * x.clamp(-1, 1)

    def clip(self, action: Tensor) -> Tensor:
        """Actions `[B, A]`, clipped to the bounds."""
        return torch.clamp(action, self.center - self.scale, self.center + self.scale)

    def perturb(self, action: Tensor, noise: Tensor) -> Tensor:
        """Actions `[B, A]` with noise in units of half the range, clipped to the bounds."""
        return self.clip(action + self.scale * noise)


class TanhGaussian(BoundedPolicy):
    """A Gaussian whose samples are squashed to the bounds by tanh (Haarnoja et al. 2018, arXiv 1801.01290, app. C)."""

    def __init__(
        self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int],
        log_std_bounds: tuple[float, float] = (-20.0, 2.0), layer_norm: bool = False,  # before activations
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:  # fmt: skip
        super().__init__(low, high)
        self.net = MLP(obs_dim, 2 * len(low), hidden, activation, layer_norm, norm_first=True)
        self.log_std_bounds = log_std_bounds

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before squashing, each `[B, A]`: the two halves of one output."""
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        return mean, log_std.clamp(*self.log_std_bounds)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """A reparameterized action `[B, A]` and its log density `[B]` (eq. 21)."""
        mean, log_std = self(obs)
        return self.draw(mean, log_std, torch.randn_like(mean))

    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        """An action `[B, A]` from `sample`, without its density, or the deterministic one."""
        mean, log_std = self(obs)
        return self.squash(mean + log_std.exp() * torch.randn_like(mean) if explore else mean)

    def draw(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions `[..., B, A]` and log densities `[..., B]` for standard normal `noise`, given `forward`'s results."""
        x = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - HALF_LOG_2PI
        # log(1 - tanh(x)^2), written such that it does not underflow for large |x|
        log_det = 2 * (LOG_2 - x - F.softplus(-2 * x)) + self.scale.log()
        return self.squash(x), (log_prob - log_det).sum(-1)

    def target_entropy(self, given: float | None = None) -> float:
        """The target entropy in nats: as given or -dim(A), for actions in [-1, 1]; converted to true units."""
        return self.log_scale + (-len(self.scale) if given is None else given)

    def mode(self, obs: Tensor) -> Tensor:
        """The squashed mean `[B, A]`: the deterministic action."""
        return self.act(obs)


class GaussianPolicy(BoundedPolicy):
    """A Gaussian around a tanh mean, with one learned log standard deviation per action dimension.

    The policy of IQL's authors (github ikostrikov/implicit_q_learning): only the mean is squashed; samples are clipped.
    The standard deviation is in units of half the action's range.
    """

    def __init__(
        self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int] = (256, 256),
        log_std_bounds: tuple[float, float] = (-5.0, 2.0),
    ) -> None:  # fmt: skip
        super().__init__(low, high)
        self.net = MLP(obs_dim, len(low), hidden)
        self.log_std = nn.Parameter(torch.zeros(len(low)))
        self.log_std_bounds = log_std_bounds

    def mean(self, obs: Tensor) -> Tensor:
        """The mean `[B, A]`."""
        return self.squash(self.net(obs))

    def mode(self, obs: Tensor) -> Tensor:
        """The deterministic action `[B, A]`: the mean."""
        return self.mean(obs)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log density `[B]` of actions `[B, A]`."""
        log_std = self.log_std.clamp(*self.log_std_bounds)
        deviation = (action - self.mean(obs)) / self.scale * torch.exp(-log_std)
        return (-0.5 * deviation.square() - log_std - self.scale.log() - HALF_LOG_2PI).sum(-1)

    def sample(self, obs: Tensor) -> Tensor:
        """An action `[B, A]`, clipped to the bounds."""
        mean = self.mean(obs)
        return self.perturb(mean, self.log_std.clamp(*self.log_std_bounds).exp() * torch.randn_like(mean))

    def cloning_loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """The negative log density `[B]` of actions `[B, A]`."""
        return -self.log_prob(obs, action)


class UnitGaussian(BoundedPolicy):
    """A Gaussian with standard deviation 1, in units of half the action's range, around an unbounded mean.

    The policy of OGBench (Park et al. 2024, arXiv 2410.20092): cloning with it minimizes squared errors. Actions are
    clipped to the bounds.
    """

    def __init__(self, inputs: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int]) -> None:
        super().__init__(low, high)
        self.net = near_zero_(glorot_(MLP(inputs, len(low), hidden, GELU)), gain=0.1)

    def mode(self, obs: Tensor) -> Tensor:
        """The mean `[B, A]`, clipped."""
        return self.from_unit(self.net(obs))

    def sample(self, obs: Tensor) -> Tensor:
        """An action `[B, A]`, clipped."""
        mean = self.net(obs)
        return self.from_unit(mean + torch.randn_like(mean))

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log density `[B]` of actions `[B, A]` in units of half their range, before clipping."""
        error: Tensor = self.to_unit(action) - self.net(obs)
        return (-0.5 * error.square() - HALF_LOG_2PI).sum(-1)


class DeterministicPolicy(BoundedPolicy):
    """One action per observation: an MLP with a tanh output.

    Args:
        exploration_noise: the standard deviation of `sample` around the action, in units of half the action's range.
    """

    def __init__(
        self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int] = (256, 256),
        layer_norm: bool = False, exploration_noise: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(low, high)
        self.exploration_noise = exploration_noise
        self.net = MLP(obs_dim, len(low), hidden, layer_norm=layer_norm)

    def mode(self, obs: Tensor) -> Tensor:
        """The action `[B, A]`."""
        return self.squash(self.net(obs))

    def sample(self, obs: Tensor) -> Tensor:
        """The action `[B, A]` with Gaussian noise, clipped to the bounds."""
        action = self.mode(obs)
        return self.perturb(action, self.exploration_noise * torch.randn_like(action))

    def cloning_loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """The squared error `[B]` of actions `[B, A]`, in units of half their range."""
        return self.squared_error(self.mode(obs), action).sum(-1)


def best_of(action: Tensor, q: Tensor, by_chance: bool = False) -> Tensor:
    """Of actions `[n, B, A]` those with the highest values `[B, A]`; `by_chance` samples by the softmax of the values.

    Args:
        action: n actions for each observation.
        q: `[n, B]` values of the actions.
    """
    chosen = torch.multinomial(q.softmax(0).T, 1) if by_chance else q.argmax(0)[:, None]  # [B, 1]
    index = chosen[..., None].expand(-1, -1, action.shape[-1])
    return action.transpose(0, 1).gather(1, index).squeeze(1)
