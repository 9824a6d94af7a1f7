"""How transitions are sampled from a dataset: `sampler=`. A sampler returns indices `[B]` into the data.

All draw with replacement, on the dataset's device. Weighted samplers give every transition of an episode the same
weight (Hong et al. 2023, "Harnessing Mixed Offline Reinforcement Learning Datasets via Trajectory Weighting", arXiv
2306.13085), so a draw only has to search among the episodes, not among the transitions.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zoo.errors import UsageError, nearest

SAMPLERS = ("uniform", "return", "advantage", "top")
USED_BY = {"alpha": ("return", "advantage"), "fraction": ("top",)}  # the samplers to which a setting applies
ROUNDING = 1e-6  # returns that differ by less, relative to the largest, are equal: rewards are float32
BATCHES = 64  # `Weighted` draws this many at a time; on a GPU so does `Uniform`, see `zoo.data.ahead`


@dataclass
class SamplerConfig:
    """Settings of the sampler."""

    name: str = "uniform"  # uniform; return or advantage of an episode as its weight; top: best episodes only
    alpha: float = 0.1  # of return and advantage: temperature; the paper takes 0.1, for CQL 0.2
    fraction: float = 0.1  # of top: the share of the episodes, those of the highest returns

    def __post_init__(self) -> None:
        if self.name not in SAMPLERS:
            raise ValueError(f"sampler={self.name} does not exist. {nearest(self.name, SAMPLERS).rstrip('.')}")
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"sampler.alpha={self.alpha} must be above 0 and finite; the paper takes 0.1")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"sampler.fraction={self.fraction} must be above 0 and at most 1")


class Episodes(Protocol):
    """What a sampler needs from a `Dataset`."""

    obs: Tensor  # [N, ...]

    @property
    def episode_starts(self) -> Tensor: ...  # [E]
    @property
    def episode_lengths(self) -> Tensor: ...  # [E]
    @property
    def episode_returns(self) -> Tensor: ...  # [E]


class Sampler(Protocol):
    """Returns indices `[B]`; `prefetched` holds those of the next batches.

    Attributes:
        weights: `[N]` how often each is sampled, up to a factor; None if all are equally likely.
    """

    prefetched: Tensor
    weights: Tensor | None

    def __call__(self, batch_size: int) -> Tensor: ...
    def draw(self, count: int) -> Tensor: ...


class Uniform:
    """Samples every transition with the same probability."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, self.device = size, device
        self.weights: Tensor | None = None
        self.prefetched = torch.zeros(0, dtype=torch.int64, device=device)  # used on a GPU only

    def __call__(self, batch_size: int) -> Tensor:
        return self.draw(batch_size)

    def draw(self, count: int) -> Tensor:
        """Draws that many indices."""
        return torch.randint(self.size, (count,), device=self.device)


class Weighted:
    """Samples an episode's transitions with probabilities proportional to its weight.

    Episodes are sampled by Walker's alias method (Vose 1991, "A linear algorithm for generating random numbers with a
    given distribution"), which takes the same few operations however many there are: each column of a table holds one
    episode up to `keep` and another one, its alias, above. These operations are few, but ten times those of uniform
    sampling, so many batches are sampled at a time.

    Args:
        starts, lengths: `[E]` for the episodes, which are consecutive.
        weights: `[E]` the weight of a transition in each, 0 or more.
    """

    def __init__(self, starts: Tensor, lengths: Tensor, weights: Tensor) -> None:
        self.starts, self.lengths = starts, lengths
        self.weights: Tensor | None = weights.repeat_interleave(lengths)
        mass = weights.double() * lengths
        keep, alias = alias_table((mass / mass.sum()).tolist())
        self.keep = torch.tensor(keep, device=starts.device)
        self.alias = torch.tensor(alias, device=starts.device)
        self.prefetched = starts[:0]  # indices of the next batches

    def __call__(self, batch_size: int) -> Tensor:
        if len(self.prefetched) < batch_size:
            self.prefetched = self.draw(BATCHES * batch_size)
        indices, self.prefetched = self.prefetched[:batch_size], self.prefetched[batch_size:]
        return indices

    def draw(self, count: int) -> Tensor:
        """Draws that many indices."""
        column = torch.randint(len(self.keep), (count,), device=self.starts.device)
        kept = torch.rand(count, device=self.starts.device) < self.keep.index_select(0, column)
        episode = torch.where(kept, column, self.alias.index_select(0, column))
        share = torch.rand(count, dtype=torch.float64, device=self.starts.device)  # float32 could round up to 1
        step = (share * self.lengths.index_select(0, episode)).long()
        return self.starts.index_select(0, episode) + step


def alias_table(probabilities: list[float]) -> tuple[list[float], list[int]]:
    """For each column, the share that its own entry keeps, and the entry that gets the rest."""
    count = len(probabilities)
    keep, alias = [p * count for p in probabilities], list(range(count))
    small = [i for i in range(count) if keep[i] < 1]
    large = [i for i in range(count) if keep[i] >= 1]
    while small and large:
        i, j = small.pop(), large[-1]
        alias[i] = j
        keep[j] -= 1 - keep[i]
        if keep[j] < 1:
            small.append(large.pop())
    for i in small + large:  # full, except for rounding errors
        keep[i] = 1.0
    return keep, alias


def make_sampler(config: SamplerConfig, data: Episodes) -> Sampler:
    """Makes the sampler that the settings name.

    Raises:
        UsageError: it gives all episodes of this dataset the same weight, or gives some of them none.
    """
    if config.name == "uniform":
        return Uniform(len(data.obs), data.obs.device)
    if len(data.episode_returns) == 1:
        raise UsageError(
            f"sampler={config.name} chooses among episodes, and this is one: a dataset needs terminals or timeouts to "
            "have several. Leave it out: sampler=uniform."
        )
    if config.name == "top":
        weights = top_weights(data.episode_returns, config.fraction)
    elif config.name == "return":
        weights = tempered(data.episode_returns, data.episode_returns, config)
    else:
        weights = tempered(data.episode_returns - initial_values(data), data.episode_returns, config)
    return Weighted(data.episode_starts, data.episode_lengths, weights)


def top_weights(returns: Tensor, fraction: float) -> Tensor:
    """1 for the given fraction of the episodes, those with the highest returns (at least one), else 0: `[E]`.

    Raises:
        UsageError: all returns are equal.
    """
    if returns.max() - returns.min() <= ROUNDING * returns.abs().max():
        raise UsageError(
            f"every episode of this dataset returns {returns[0]:g}, so that none is among the best. "
            "Leave out sampler=top and algo.top_fraction."
        )
    count = max(1, int(round(fraction * len(returns), 6)))  # 0.29 of 100 is 28.999999999999996
    weights = torch.zeros_like(returns)
    weights[returns.argsort(descending=True, stable=True)[:count]] = 1
    return weights


def initial_values(data: Episodes) -> Tensor:
    """`V(s0)` of each episode `[E]`: the linear regression of the returns on the first observations."""
    first = data.obs[data.episode_starts].flatten(1).double()
    inputs = torch.cat([first, torch.ones_like(first[:, :1])], 1)
    # only gelsd accepts inputs without a unique solution (few episodes, a constant dimension), and only on the CPU
    solution = torch.linalg.lstsq(inputs.cpu(), data.episode_returns.double().cpu()[:, None], driver="gelsd").solution
    values: Tensor = inputs @ solution.squeeze(1).to(inputs.device)
    return values


def tempered(weights: Tensor, returns: Tensor, config: SamplerConfig) -> Tensor:
    """`exp(w / alpha)` for weights normalized to [0, 1] by their extremes, `[E]`, up to a factor."""
    low, high = weights.aminmax()
    if not torch.isfinite(weights).all():
        raise UsageError(
            f"sampler={config.name}: an episode's weight is not a number. zoo data verify checks the data."
        )
    if high - low <= ROUNDING * returns.abs().max():  # a regression that fits all returns leaves only rounding errors
        raise UsageError(
            f"sampler={config.name}: every episode of this dataset weighs the same. Leave it out: sampler=uniform."
        )
    probabilities = ((weights.double() - high) / (high - low) / config.alpha).exp()
    if never := int((probabilities == 0).sum()):
        raise UsageError(
            f"sampler.alpha={config.alpha} is so small that {never} of {len(weights)} episodes would never be sampled. "
            "Take 0.002 or more, or the best episodes alone: sampler=top"
        )
    return probabilities
