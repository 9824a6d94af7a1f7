"""Value heads: how a critic's outputs stand for a value, as a number or as a distribution over bins.

Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification" (arXiv 2403.03950). A critic
ends in `head.outputs` numbers `[..., outputs]`. Of these the head makes values `[...]`, and losses `[...]` against
targets, which are made of numbers (`project`) or of the critic's outputs at the next state (`backup`).
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Metrics
from zoo.errors import UsageError
from zoo.nn import MLP, EnsembleLinear, EnsembleMLP

LARGEST = 1e4  # size of the values that asinh-spaced bins represent: a reward of 100 at every step, discounted by 0.99


class ValueHead(nn.Module):
    """`mse`: one output, the value itself, and its squared error."""

    outputs = 1

    def init_(self, critic: nn.Module) -> None:
        """Initializes a critic's last layers in place, where the head needs it."""

    def value(self, out: Tensor) -> Tensor:
        """Values `[...]` of outputs `[..., outputs]`."""
        return out.squeeze(-1)

    def project(self, value: Tensor) -> Tensor:
        """The target that stands for the numbers `[...]`."""
        return value

    def backup(self, reward: Tensor, discount: Tensor, next_out: Tensor) -> Tensor:
        """The target `reward + discount * value` for rewards and discounts `[B]` and next outputs `[B, outputs]`."""
        return self.project(reward + discount * self.value(next_out))

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Losses `[...]` of outputs `[..., outputs]` against a target of `project` or `backup`."""
        return (self.value(out) - target).square()

    def least(self, out: Tensor) -> Tensor:
        """Of an ensemble's outputs `[members, B, outputs]` those of the member with the least value: `[B, outputs]`."""
        return out.amin(0)

    def hold(self, low: float, high: float) -> str:
        """Makes sure that values from `low` to `high` can be told; returns what was done, to be reported."""
        return ""

    def metrics(self) -> Metrics:
        """What there is to log."""
        return {}


class TwoHot(ValueHead):
    """`two_hot`: a probability for each of `num_bins` values in `[v_min, v_max]`, and cross-entropy.

    A target's mass lies on the two values next to it, in the shares that have it as their mean. Targets outside the
    support are clipped and counted.

    The values are evenly spaced or, with `asinh`, evenly spaced in `x = asinh(value)` over a fixed symmetric range:
    about linearly below 1 and logarithmically above, for values of any size. That is close to the symexp two-hot of
    DreamerV3 (Hafner et al. 2023, arXiv 2301.04104), but shares are linear in the value, not in x: the mean of noisy
    targets' projections is then the targets' mean.

    Attributes:
        v_min, v_max: the support, `[]`; NaN until it is known, see `set_support`.
        clipped: targets outside the support so far, `[]`.

    Raises:
        UsageError: bounds that are not in order, or fewer than two bins.
    """

    def __init__(self, v_min: float | None, v_max: float | None, num_bins: int, asinh: bool = False) -> None:
        super().__init__()
        if num_bins < 2:
            raise UsageError(f"algo.num_bins={num_bins} must be at least 2; the paper takes 51 or 101.")
        if (v_min is None) != (v_max is None):
            raise UsageError("algo.v_min and algo.v_max go together: give both, or none and they are computed.")
        self.outputs, self.asinh = num_bins, asinh
        self.v_min: Tensor
        self.v_max: Tensor
        self.clipped: Tensor
        self.register_buffer("v_min", torch.tensor(math.nan))
        self.register_buffer("v_max", torch.tensor(math.nan))
        self.register_buffer("clipped", torch.zeros((), dtype=torch.int64))
        if v_min is not None and v_max is not None:
            self.set_support(v_min, v_max)
        elif asinh:
            low, high = self.around(-math.asinh(LARGEST), math.asinh(LARGEST))
            self.set_support(math.sinh(low), math.sinh(high))

    def set_support(self, v_min: float, v_max: float) -> None:
        """Raises UsageError unless `v_min < v_max`, both finite."""
        if not (math.isfinite(v_min) and math.isfinite(v_max) and v_min < v_max):
            raise UsageError(f"the value support [{v_min:g}, {v_max:g}] is empty: algo.v_min must be below algo.v_max.")
        self.v_min.fill_(v_min)
        self.v_max.fill_(v_max)

    def hold(self, low: float, high: float) -> str:
        """Sets a support that is open; raises UsageError where the one that was given is too small, or none can be."""
        bounded = math.isfinite(low) and math.isfinite(high)
        if self.v_min.isnan():
            if not bounded:
                raise UsageError("algo.discount=1 bounds no value: give the support, algo.v_min=... algo.v_max=...")
            v_min, v_max = self.around(low, high)
            self.set_support(v_min, v_max)
            return (
                f"value support: [{v_min:.4g}, {v_max:.4g}] in {self.outputs} bins, for values from {low:.4g} to "
                f"{high:.4g}; algo.v_min and algo.v_max set another"
            )
        v_min, v_max = self.v_min.item(), self.v_max.item()
        if not bounded:
            return f"value support: [{v_min:.4g}, {v_max:.4g}], as given"
        if low < v_min or high > v_max:
            raise UsageError(
                f"algo.v_min={v_min:g} algo.v_max={v_max:g} cannot hold the data's returns, from {low:.4g} to "
                f"{high:.4g}. Widen them, or leave both out."
            )
        return (
            f"value support: [{v_min:.4g}, {v_max:.4g}], as given; the data's returns go from {low:.4g} to {high:.4g}"
        )

    def around(self, low: float, high: float) -> tuple[float, float]:
        """The support in which values from `low` to `high` can be told without bias."""
        return low, high

    def metrics(self) -> Metrics:
        return {"clipped_targets": self.clipped}

    @torch.no_grad()
    def init_(self, critic: nn.Module) -> None:
        """With `asinh`, values begin at 0: zero weights, and as bias log probabilities that fall as 1 / (1 + value^2).

        Random weights would give the outermost bins, of values up to 1e4, random probabilities. With zero weights, as
        in DreamerV3, opposite bins that no target falls on keep equal weights, and their values cancel. The bias is for
        `c51`, whose backups hand the distribution on: a uniform one would have most of its mass above 100.
        """
        for network in critic.modules() if self.asinh else ():
            if isinstance(network, MLP | EnsembleMLP):
                last = network[-1]
                assert isinstance(last, nn.Linear | EnsembleLinear)
                last.weight.zero_()
                last.bias.view(-1, self.outputs).copy_(-self.centers().square().log1p())

    def transform(self, value: Tensor) -> Tensor:
        """Values -> where the bins are evenly spaced."""
        return value.asinh() if self.asinh else value

    def centers(self) -> Tensor:
        """The value of each bin, `[num_bins]`."""
        x = self.spread(self.outputs)
        return x.sinh() if self.asinh else x

    def spread(self, count: int) -> Tensor:
        """So many evenly spaced numbers over the transformed support, its ends included, `[count]`."""
        low, high = self.transform(self.v_min), self.transform(self.v_max)
        share = torch.linspace(0, 1, count, device=low.device, dtype=low.dtype)
        return low + share * (high - low)

    def value(self, out: Tensor) -> Tensor:
        return out.softmax(-1) @ self.centers()

    def clip(self, value: Tensor) -> Tensor:
        """Numbers brought into the support; those that were outside are counted."""
        clipped = torch.clamp(value, self.v_min, self.v_max)
        self.clipped += (clipped != value).sum()
        return clipped

    def project(self, value: Tensor) -> Tensor:
        """Probabilities `[..., num_bins]` (Farebrother et al., section 3.1)."""
        return self.share_out(self.clip(value))

    def share_out(self, value: Tensor) -> Tensor:
        """Of numbers within the support `[...]`, the share `[..., num_bins]` that each bin gets."""
        centers = self.centers()
        left = F.pad(F.pad(centers[:-1], (1, 0), value=-math.inf), (0, 1), value=math.inf)
        gap = F.pad(centers.diff(), (1, 1), value=1.0)
        # how far across each gap between centers, [..., num_bins + 1]: 1, ..., 1, share, 0, ..., 0
        way = ((value[..., None] - left) / gap).clamp(0, 1)
        return way[..., :-1] - way[..., 1:]

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy."""
        return -(target * out.log_softmax(-1)).sum(-1)

    def least(self, out: Tensor) -> Tensor:
        member = self.value(out).argmin(0)  # [B]
        return out.gather(0, member[None, :, None].expand(1, *out.shape[1:])).squeeze(0)


class C51(TwoHot):
    """`c51`: the distribution of the return (Bellemare et al. 2017, arXiv 1707.06887), each value an atom.

    `backup` shifts and shrinks the next state's whole distribution and projects it onto the atoms. A target that is but
    a number is a distribution of one atom: there it equals `two_hot`.
    """

    def backup(self, reward: Tensor, discount: Tensor, next_out: Tensor) -> Tensor:
        """Probabilities `[B, num_bins]` (their Algorithm 1)."""
        self.clip(reward + discount * self.value(next_out))  # counts the targets, not the atoms
        moved = reward[:, None] + discount[:, None] * self.centers()  # [B, num_bins], where each atom's mass goes
        shares = self.share_out(torch.clamp(moved, self.v_min, self.v_max))  # [B, num_bins from, num_bins to]
        return (next_out.softmax(-1)[:, None] @ shares).squeeze(1)


class HLGauss(TwoHot):
    """`hl_gauss`: a normal distribution about the target, integrated over each of `num_bins` bins of the support.

    Its standard deviation is three quarters of a bin's width, and its mass outside the support is shared out by
    renormalization (Farebrother et al., section 3.1 and appendix A). That moves the mean of a target near an end of the
    support inwards; so where the support is computed, it goes on for three standard deviations on either side.
    """

    sigma = 0.75  # in widths of a bin

    def around(self, low: float, high: float) -> tuple[float, float]:
        outside = min(3 * self.sigma, self.outputs / 4)  # in widths of a bin, which are wider by what lies outside
        margin = outside * (high - low) / (self.outputs - 2 * outside)
        return low - margin, high + margin

    def centers(self) -> Tensor:
        edges = self.edges()
        middle = (edges[1:] + edges[:-1]) / 2
        if not self.asinh:
            return middle
        # The normal's spread and the bins' own raise the mean of sinh: E[sinh(x + s z + w u)] = sinh(x) exp(s^2 / 2)
        # sinh(w / 2) / (w / 2) for z ~ N(0, 1), u ~ U(-1/2, 1/2). Uncorrected, backups would multiply values by that.
        width = self.width()
        growth = torch.exp((self.sigma * width).square() / 2) * torch.sinh(width / 2) / (width / 2)
        return middle.sinh() / growth

    def edges(self) -> Tensor:
        """Where the bins meet, transformed, `[num_bins + 1]`."""
        return self.spread(self.outputs + 1)

    def width(self) -> Tensor:
        """Of a bin, transformed, `[]`."""
        return (self.transform(self.v_max) - self.transform(self.v_min)) / self.outputs

    def project(self, value: Tensor) -> Tensor:
        """Probabilities `[..., num_bins]`."""
        x = self.transform(self.clip(value))
        below: Tensor = torch.special.ndtr((self.edges() - x[..., None]) / (self.sigma * self.width()))
        return torch.diff(below) / (below[..., -1:] - below[..., :1])


CATEGORICAL = {"two_hot": TwoHot, "c51": C51, "hl_gauss": HLGauss}


def value_head(config: Any, online: bool = False) -> ValueHead:
    """The head that an algorithm's config asks for by `value_head`, `v_min`, `v_max` and `num_bins`.

    Without bounds an online algorithm's bins are asinh-spaced; others get theirs of the data, by `hold`.

    Raises:
        UsageError: no such head, or bounds and bins that it cannot have.
    """
    if config.value_head in CATEGORICAL:
        asinh = online and config.v_min is None and config.v_max is None
        return CATEGORICAL[config.value_head](config.v_min, config.v_max, config.num_bins, asinh)
    if config.value_head != "mse":
        raise UsageError(
            f"algo.value_head={config.value_head} does not exist. There are: mse, {', '.join(CATEGORICAL)}."
        )
    if (config.v_min, config.v_max) != (None, None):
        raise UsageError("algo.v_min and algo.v_max are a categorical head's support. Add: algo.value_head=hl_gauss")
    return ValueHead()
