"""Value heads: how a critic's outputs represent a value, as a number or as a distribution over bins.

Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification" (arXiv 2403.03950). A critic
outputs `head.outputs` numbers `[..., outputs]`. From these the head computes values `[...]`, and losses `[...]` against
targets, which are made from numbers (`project`) or from the critic's outputs at the next state (`backup`).
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Metrics
from zoo.errors import UsageError
from zoo.nn.layers import MLP, EnsembleMLP
from zoo.returns import ReturnsSoFar


class ValueHead(nn.Module):
    """`mse`: a single output, which is the value itself, with the squared error as the loss."""

    outputs = 1

    def init_(self, critic: nn.Module) -> None:
        """Initializes a critic's last layers in place, if the head needs it."""

    def update_support(self, reward: Tensor, ended: Tensor, *critics: nn.Module) -> None:
        """Takes the latest rewards and episode ends of N environments, both `[T, N]`; may change critics in place."""

    def value(self, out: Tensor) -> Tensor:
        """Values `[...]` of outputs `[..., outputs]`."""
        return out.squeeze(-1)

    def project(self, value: Tensor) -> Tensor:
        """The target that represents the numbers `[...]`."""
        return value

    def backup(self, reward: Tensor, discount: Tensor, next_out: Tensor) -> Tensor:
        """The target `reward + discount * value` for rewards and discounts `[B]` and next outputs `[B, outputs]`."""
        return self.project(reward + discount * self.value(next_out))

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Losses `[...]` of outputs `[..., outputs]` against a target from `project` or `backup`."""
        return (self.value(out) - target).square()

    def min_member(self, out: Tensor) -> Tensor:
        """From outputs `[members, B, outputs]`, selects those of the member with the smallest value: `[B, outputs]`."""
        return out.amin(0)

    def fit_support(self, low: float, high: float) -> str:
        """Fits the support to values from `low` to `high`; returns a line that describes the result."""
        return ""

    def metrics(self) -> Metrics:
        """Metrics to log."""
        return {}


class Huber(ValueHead):
    """`huber`: the value itself, with the Huber loss, whose gradient is at most 1 in magnitude (Mnih et al. 2015)."""

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        value = self.value(out)
        return F.huber_loss(value, target.expand_as(value), reduction="none")


class TwoHot(ValueHead):
    """`two_hot`: a probability for each of `num_bins` values, evenly spaced over `[v_min, v_max]`, and cross-entropy.

    A target's mass lies on the two adjacent values, in the shares whose mean is the target. Targets outside the support
    are clipped and counted.

    Without bounds, the support is that of a dataset's returns (`fit_support`). With a `discount`, it is symmetric and
    follows the observed discounted returns: when one exceeds two thirds of it in absolute value, the support becomes
    twice as large as that return, and the critics are changed such that values stay about the same, in the manner of
    PopArt (van Hasselt et al. 2016, arXiv 1602.07714).

    Attributes:
        v_min, v_max: the support, `[]`; NaN until it is known.
        clipped: number of targets outside the support so far, `[]`.
        returns: those of the running episodes; None if the support does not follow the returns.

    Raises:
        UsageError: the bounds are not in order, or there are fewer than two bins.
    """

    PER_RUN = ("clipped",)

    def __init__(self, v_min: float | None, v_max: float | None, num_bins: int, discount: float | None = None) -> None:
        super().__init__()
        if num_bins < 2:
            raise UsageError(f"algo.num_bins={num_bins} must be at least 2; the paper takes 51 or 101.")
        if (v_min is None) != (v_max is None):
            raise UsageError("algo.v_min and algo.v_max go together: give both, or none and they are computed.")
        self.outputs = num_bins
        self.v_min = nn.Buffer(torch.tensor(math.nan))
        self.v_max = nn.Buffer(torch.tensor(math.nan))
        self.clipped: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.returns = None
        if v_min is not None and v_max is not None:
            self.set_support(v_min, v_max)
        elif discount is not None:
            self.returns = ReturnsSoFar(discount)
            self.set_support(-1e-6, 1e-6)  # until a return other than 0 is observed

    def set_support(self, v_min: float, v_max: float) -> None:
        """Raises UsageError unless `v_min < v_max`, both finite."""
        if not (math.isfinite(v_min) and math.isfinite(v_max) and v_min < v_max):
            raise UsageError(f"the value support [{v_min:g}, {v_max:g}] is empty: algo.v_min must be below algo.v_max.")
        self.v_min.fill_(v_min)
        self.v_max.fill_(v_max)

    @torch.no_grad()
    def init_(self, critic: nn.Module) -> None:
        """If the support follows the returns, values start at 0: weights and biases of last layers are set to 0."""
        if self.returns is not None:
            for weights in self.last_weights(critic):
                weights.zero_()

    def last_weights(self, critic: nn.Module) -> Iterator[Tensor]:
        """Weights and biases of the last layer of every MLP in a critic, as views `[..., num_bins]`."""
        for network in critic.modules():
            if isinstance(network, MLP | EnsembleMLP):
                weight, bias = network[-1].parameters()  # [..., outputs, inputs] and [..., outputs]
                yield torch.unflatten(weight, -2, (-1, self.outputs)).movedim(-2, -1)
                yield torch.unflatten(bias, -1, (-1, self.outputs))

    @torch.no_grad()
    def update_support(self, reward: Tensor, ended: Tensor, *critics: nn.Module) -> None:
        if self.returns is not None:
            self.widen(float(self.returns.update(reward, ended).abs().max()), *critics)

    def widen(self, size: float, *critics: nn.Module) -> None:
        """Widens a support that follows the returns, if a return of this size requires it."""
        v_max = self.v_max.item()
        if 1.5 * size > v_max:
            self.set_support(-2 * size, 2 * size)
            for critic in critics:
                self.stretch_(critic, 2 * size / v_max)

    def stretch_(self, critic: nn.Module, ratio: float) -> None:
        """Changes a critic in place for bins `ratio` times as wide: each gets the weights of what was in its place."""
        middle = (self.outputs - 1) / 2
        bins = torch.arange(self.outputs, device=self.v_max.device)
        place = (middle + ratio * (bins - middle)).clamp(0, self.outputs - 1)  # in the old bins
        below = place.long().clamp(max=self.outputs - 2)
        for weights in self.last_weights(critic):
            weights.copy_(torch.lerp(weights[..., below], weights[..., below + 1], (place - below).to(weights)))

    def fit_support(self, low: float, high: float) -> str:
        """Sets the support, if none was given; raises UsageError if the given one is too small."""
        bounded = math.isfinite(low) and math.isfinite(high)
        rounding = 1e-6 * max(-low, high)
        if self.returns is not None:
            self.widen(max(-low, high) if bounded else 0.0)
            return f"value support: [{self.v_min:.4g}, {self.v_max:.4g}] at first; it follows the returns"
        if self.v_min.isnan():
            if not bounded:
                raise UsageError("algo.discount=1 bounds no value: give the support, algo.v_min=... algo.v_max=...")
            if high - low <= rounding:
                raise UsageError(
                    f"all returns of the data are {low:.4g}, which spans no support: give algo.v_min=... algo.v_max=..."
                )
            v_min, v_max = self.around(low, high)
            self.set_support(v_min, v_max)
            return (
                f"value support: [{v_min:.4g}, {v_max:.4g}] in {self.outputs} bins, for values from {low:.4g} to "
                f"{high:.4g}; algo.v_min and algo.v_max set another"
            )
        v_min, v_max = self.v_min.item(), self.v_max.item()
        if not bounded:
            return f"value support: [{v_min:.4g}, {v_max:.4g}], as given"
        if low < v_min - rounding or high > v_max + rounding:
            raise UsageError(
                f"algo.v_min={v_min:g} algo.v_max={v_max:g} cannot hold the data's returns, from {low:.4g} to "
                f"{high:.4g}. Widen them, or leave both out."
            )
        return (
            f"value support: [{v_min:.4g}, {v_max:.4g}], as given; the data's returns go from {low:.4g} to {high:.4g}"
        )

    def around(self, low: float, high: float) -> tuple[float, float]:
        """The support that represents values from `low` to `high` without bias."""
        return low, high

    def metrics(self) -> Metrics:
        metrics = {"clipped_targets": self.clipped}
        return metrics if self.returns is None else {**metrics, "v_max": self.v_max}

    def centers(self) -> Tensor:
        """The value of each bin, `[num_bins]`."""
        return self.spread(self.outputs)

    def spread(self, count: int) -> Tensor:
        """`count` values evenly spaced over the support, including its ends."""
        share = torch.linspace(0, 1, count, device=self.v_min.device, dtype=self.v_min.dtype)
        return self.v_min + share * (self.v_max - self.v_min)

    def value(self, out: Tensor) -> Tensor:
        return out.softmax(-1) @ self.centers()

    def clip(self, value: Tensor) -> Tensor:
        """Clips numbers to the support, and counts those outside."""
        clipped = torch.clamp(value, self.v_min, self.v_max)
        self.clipped.add_((clipped != value).sum())
        return clipped

    def project(self, value: Tensor) -> Tensor:
        """Probabilities `[..., num_bins]` (Farebrother et al., section 3.1)."""
        return self.share_out(self.clip(value))

    def share_out(self, value: Tensor) -> Tensor:
        """The share `[..., num_bins]` that each bin gets, for numbers `[...]` within the support."""
        place = (value - self.v_min) * ((self.outputs - 1) / (self.v_max - self.v_min))  # in bins, counted from 0
        bins = torch.arange(self.outputs, device=place.device, dtype=place.dtype)
        return (1 - (place[..., None] - bins).abs()).clamp(min=0)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy."""
        return -(target * out.log_softmax(-1)).sum(-1)

    def min_member(self, out: Tensor) -> Tensor:
        member = self.value(out).argmin(0)  # [B]
        return out.gather(0, member[None, :, None].expand(1, *out.shape[1:])).squeeze(0)


class C51(TwoHot):
    """`c51`: the distribution of the return (Bellemare et al. 2017, arXiv 1707.06887), where each value is an atom.

    `backup` shifts and shrinks the next state's whole distribution and projects it onto the atoms. A target that is
    just a number is a distribution with one atom, for which the head equals `two_hot`.
    """

    def backup(self, reward: Tensor, discount: Tensor, next_out: Tensor) -> Tensor:
        """Probabilities `[B, num_bins]` (their Algorithm 1)."""
        self.clip(reward + discount * self.value(next_out))  # counts the targets, not the atoms
        moved = reward[:, None] + discount[:, None] * self.centers()  # [B, num_bins], where each atom's mass moves
        shares = self.share_out(torch.clamp(moved, self.v_min, self.v_max))  # [B, num_bins from, num_bins to]
        return (next_out.softmax(-1)[:, None] @ shares).squeeze(1)


class HLGauss(TwoHot):
    """`hl_gauss`: a normal distribution around the target, integrated over each of `num_bins` bins of the support.

    Its standard deviation is three quarters of a bin's width, and its mass outside the support is redistributed by
    renormalization (Farebrother et al., section 3.1 and appendix A). That moves the mean of a target near an end of the
    support inwards; so a support set by `fit_support` extends three standard deviations further on either side.
    """

    sigma = 0.75  # in widths of a bin

    def around(self, low: float, high: float) -> tuple[float, float]:
        outside = min(3 * self.sigma, self.outputs / 4)  # in bin widths; bins are wider by what lies outside
        margin = outside * (high - low) / (self.outputs - 2 * outside)
        return low - margin, high + margin

    def centers(self) -> Tensor:
        edges = self.edges()
        return (edges[1:] + edges[:-1]) / 2

    def edges(self) -> Tensor:
        """The edges of the bins, `[num_bins + 1]`."""
        return self.spread(self.outputs + 1)

    def project(self, value: Tensor) -> Tensor:
        """Probabilities `[..., num_bins]`."""
        width = (self.v_max - self.v_min) / self.outputs
        below: Tensor = torch.special.ndtr((self.edges() - self.clip(value)[..., None]) / (self.sigma * width))
        return torch.diff(below) / (below[..., -1:] - below[..., :1])


SCALAR = {"mse": ValueHead, "huber": Huber}
CATEGORICAL = {"two_hot": TwoHot, "c51": C51, "hl_gauss": HLGauss}


def value_head(config: Any, online: bool = False) -> ValueHead:
    """The head that an algorithm's config selects by `value_head`, `v_min`, `v_max` and `num_bins`.

    Without bounds, the support follows the returns of the episodes in an online algorithm.

    Raises:
        UsageError: there is no such head, or it cannot have these bounds and bins.
    """
    if config.value_head in CATEGORICAL:
        return CATEGORICAL[config.value_head](
            config.v_min, config.v_max, config.num_bins, config.discount if online else None
        )
    if config.value_head not in SCALAR:
        names = ", ".join([*SCALAR, *CATEGORICAL])
        raise UsageError(f"algo.value_head={config.value_head} does not exist. There are: {names}.")
    if (config.v_min, config.v_max) != (None, None):
        raise UsageError("algo.v_min and algo.v_max are a categorical head's support. Add: algo.value_head=hl_gauss")
    return SCALAR[config.value_head]()
