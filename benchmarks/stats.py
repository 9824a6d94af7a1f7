"""Honest statistics of a few runs (Agarwal et al. 2021, arXiv 2108.13264, "... the Edge of the Statistical Precipice").

Aggregates over runs and tasks with stratified bootstrap intervals, by the authors' rliable; and what a published figure
says of ours: a verdict, which is that there are too few seeds wherever there are.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.stats

LEAST_RUNS = 3  # fewer do not say how far runs lie apart
CONFIDENCE = 0.95
TOLERANCE = 0.1  # a published figure is reproduced if ours is within that share of it


class Estimate(NamedTuple):
    """A figure and its interval; NaN where there are too few runs for one."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return format(self)

    def __format__(self, spec: str) -> str:
        spec = spec or digits(np.array(self))
        known = "" if np.isnan(self.low) else f" [{self.low:{spec}}, {self.high:{spec}}]"
        return f"{self.value:{spec}}{known}"


def digits(values: np.ndarray) -> str:
    """How numbers are written that stand together: with one digit after the point, small ones with three."""
    return ".3f" if 0 < np.nanmax(np.abs(values), initial=0) < 1 else ".1f"


def mean(values: np.ndarray) -> Estimate:
    """Of the runs `[R]` of one task, with Student's interval: bootstrapping a handful of runs makes it too narrow."""
    value = float(values.mean())
    if len(values) < LEAST_RUNS:
        return Estimate(value, np.nan, np.nan)
    reach = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Estimate(value, value - reach, value + reach)


def aggregates(scores: np.ndarray, reps: int = 2_000, seed: int = 0) -> dict[str, Estimate]:
    """IQM, mean, median and optimality gap, of 100, over runs and tasks.

    Args:
        scores: `[runs, tasks]`, normalized: 100 is the reference.
        reps: bootstrap samples, of the runs of each task.
        seed: of them.
    """
    from rliable import library, metrics

    functions: dict[str, Callable[[np.ndarray], float]] = {
        "IQM": metrics.aggregate_iqm,
        "mean": metrics.aggregate_mean,
        "median": metrics.aggregate_median,
        "optimality gap": lambda x: metrics.aggregate_optimality_gap(x, gamma=100.0),
    }
    values = {name: float(function(scores)) for name, function in functions.items()}
    if len(scores) < LEAST_RUNS:
        return {name: Estimate(value, np.nan, np.nan) for name, value in values.items()}
    with warnings.catch_warnings(), drawing(seed):
        warnings.simplefilter("ignore")  # of what rliable calls
        _, intervals = library.get_interval_estimates(
            {"": scores},
            lambda x: np.array([function(x) for function in functions.values()]),
            reps=reps,
            confidence_interval_size=CONFIDENCE,
        )
    low, high = intervals[""]
    return {
        name: Estimate(values[name], *map(float, bounds)) for name, *bounds in zip(functions, low, high, strict=True)
    }


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """NumPy's global generator starts from a seed, and goes on afterwards as before: rliable draws from no other."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)


def improvement(ours: np.ndarray, others: np.ndarray, reps: int = 2_000, seed: int = 0) -> Estimate:
    """The probability that a run of ours is better than one of the others, mean over tasks: `[runs, tasks]` each.

    As rliable's `probability_of_improvement` with its stratified bootstrap, which takes seconds for two methods.
    """
    ours, others = ours.T, others.T
    wins = (ours[:, :, None] > others[:, None]) + 0.5 * (ours[:, :, None] == others[:, None])  # [tasks, runs, runs]
    value = float(wins.mean())
    if min(ours.shape[1], others.shape[1]) < LEAST_RUNS:
        return Estimate(value, np.nan, np.nan)
    rng, tasks = np.random.default_rng(seed), np.arange(len(wins))[:, None, None]
    drawn = [rng.integers(0, x.shape[1], (reps, *x.shape)) for x in (ours, others)]
    values = wins[tasks, drawn[0][..., None], drawn[1][..., None, :]].mean((1, 2, 3))
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(low), float(high))


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The share of runs above each threshold, mean over tasks: `[runs, tasks] -> [thresholds]`."""
    share: np.ndarray = (scores[None] > thresholds[:, None, None]).mean((1, 2))
    return share


@dataclass(frozen=True)
class Published:
    """A figure of somebody else's: mean and standard deviation over so many seeds."""

    mean: float
    std: float
    seeds: int
    source: str


def verdict(ours: np.ndarray, published: Published) -> tuple[str, Estimate]:
    """What our runs `[R]` say of a published figure, and the difference of the means with Welch's interval.

    `above`, `below`: the interval lies on that side of 0. `reproduced`: it holds 0 and no difference larger than
    `TOLERANCE` of the published figure. Else there are `too few seeds to say`. Where nothing was published of how far
    runs lie apart, nothing can be said.
    """
    difference = float(ours.mean() - published.mean)
    if np.isnan(published.std):
        return "no spread published", Estimate(difference, np.nan, np.nan)
    if len(ours) < LEAST_RUNS or published.seeds < LEAST_RUNS:
        return "too few seeds to say", Estimate(difference, np.nan, np.nan)
    errors = np.array([ours.var(ddof=1) / len(ours), published.std**2 / published.seeds])
    total = errors.sum()
    if total == 0:
        low = high = difference
    else:
        freedom = total**2 / (errors**2 / np.array([len(ours) - 1, published.seeds - 1])).sum()
        reach = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(total))
        low, high = difference - reach, difference + reach
    estimate = Estimate(difference, low, high)
    if low > 0 or high < 0:
        return ("above" if low > 0 else "below"), estimate
    tolerated = TOLERANCE * abs(published.mean)
    return ("reproduced" if -tolerated <= low and high <= tolerated else "too few seeds to say"), estimate
