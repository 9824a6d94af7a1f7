"""Statistics of a few runs (Agarwal et al. 2021, arXiv 2108.13264, "... the Edge of the Statistical Precipice").

This has aggregates over runs and tasks with stratified bootstrap intervals, and verdicts that compare our runs with a
published figure. If there are too few seeds for a comparison, the verdict says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LEAST_RUNS = 3  # fewer runs are too few to show their spread
LEAST_ON_ONE_TASK = 5  # a bootstrap over fewer runs of a single task gives intervals that are far too narrow
CONFIDENCE = 0.95
TOLERANCE = 0.1  # a published figure is reproduced if the difference's whole interval is within this share of it
SCORE_TOLERANCE = 1.0  # of normalized scores, the least difference that is tolerated


class Estimate(NamedTuple):
    """A figure and its interval, which is NaN if there are too few runs."""

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
    """The format of numbers: one digit after the decimal point, or three for small numbers."""
    return ".3f" if 0 < np.nanmax(np.abs(values), initial=0) < 1 else ".1f"


def mean(values: np.ndarray) -> Estimate:
    """The mean of runs `[R]` on one task, with Student's t interval: a bootstrap of a few runs is too narrow."""
    value = float(values.mean())
    if len(values) < LEAST_RUNS:
        return Estimate(value, np.nan, np.nan)
    reach = student(len(values) - 1) * float(values.std(ddof=1)) / np.sqrt(len(values))
    return Estimate(value, value - reach, value + reach)


def student(freedom: float) -> float:
    """The quantile of Student's t distribution: an interval's half width in standard errors."""
    import scipy.stats

    return float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, freedom))


def aggregates(scores: np.ndarray, reps: int = 2_000, seed: int = 0) -> dict[str, Estimate]:
    """IQM, mean, median and optimality gap to 100, over runs and tasks, with stratified bootstrap intervals.

    They are computed as in rliable, which takes a second for each method. For a single task, the median is over its
    runs, and the mean has Student's t interval. An interval is NaN if it rests on too few runs, or is a single point.

    Args:
        scores: `[runs, tasks]`, normalized: 100 is the reference.
        reps: the number of bootstrap samples of each task's runs.
        seed: the seed of the bootstrap.
    """
    values = statistics(scores)
    runs, tasks = scores.shape
    if enough(runs, tasks):
        resampled = scores[np.random.default_rng(seed).integers(0, runs, (reps, runs, tasks)), np.arange(tasks)]
        found = {name: interval(float(values[name]), samples) for name, samples in statistics(resampled).items()}
    else:
        found = {name: Estimate(float(value), np.nan, np.nan) for name, value in values.items()}
    return found | ({"mean": mean(scores[:, 0])} if tasks == 1 else {})


def enough(runs: int, tasks: int) -> bool:
    """Whether so many runs of each task are enough for a bootstrap."""
    return runs >= (LEAST_RUNS if tasks > 1 else LEAST_ON_ONE_TASK)


def statistics(scores: np.ndarray) -> dict[str, np.ndarray]:
    """The statistics of matrices `[..., runs, tasks]`, each `[...]`."""
    import scipy.stats

    together = scores.reshape(*scores.shape[:-2], -1)
    return {
        "IQM": scipy.stats.trim_mean(together, 0.25, axis=-1),
        "mean": together.mean(-1),
        "median": np.median(scores.mean(-2) if scores.shape[-1] > 1 else together, axis=-1),
        "optimality gap": np.maximum(100 - together, 0).mean(-1),
    }


def interval(value: float, samples: np.ndarray) -> Estimate:
    """A figure with the percentiles of its bootstrap samples; NaN if these are a single point."""
    low, high = np.quantile(samples, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, np.nan, np.nan) if np.isclose(low, high) else Estimate(value, float(low), float(high))


def improvement(ours: Sequence[np.ndarray], others: Sequence[np.ndarray], reps: int = 2_000) -> Estimate:
    """The probability that a run of ours is better than one of the others, mean over tasks; `[runs]` for each task.

    This is rliable's `probability_of_improvement` with its stratified bootstrap. rliable's own takes seconds for two
    methods and needs the same number of runs for each task.
    """
    rng, values, resampled = np.random.default_rng(0), [], []
    for x, y in zip(ours, others, strict=True):
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        drawn = [rng.integers(0, len(z), (reps, len(z))) for z in (x, y)]
        values.append(float(wins.mean()))
        resampled.append(wins[drawn[0][..., None], drawn[1][:, None]].mean((1, 2)))
    value = float(np.mean(values))
    if not enough(min(map(len, (*ours, *others))), len(values)):
        return Estimate(value, np.nan, np.nan)
    return interval(value, np.mean(resampled, 0))


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The share of runs above each threshold, as a mean over tasks: `[runs, tasks] -> [thresholds]`."""
    share: np.ndarray = (scores[None] > thresholds[:, None, None]).mean((1, 2))
    return share


@dataclass(frozen=True)
class Published:
    """A published mean and standard deviation over seeds; `ddof` 0 is the population's, which is NumPy's default."""

    mean: float
    std: float
    seeds: int
    source: str
    ddof: int = 1

    def __post_init__(self) -> None:
        if not np.isfinite(self.mean) or self.std < 0 or np.isinf(self.std) or self.seeds < 0:
            raise ValueError(f"mean {self.mean}, std {self.std}, seeds {self.seeds}")
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof {self.ddof}")


def verdict(ours: np.ndarray, published: Published, least: float = 0.0) -> tuple[str, Estimate]:
    """Compares our runs `[R]` with a published figure. Returns a verdict, and the difference of the means.

    The difference has Welch's interval. The verdict is `above` or `below` if the interval is on that side of 0, and
    `reproduced` if it contains 0 and no difference larger than what is tolerated. Otherwise it is `too few seeds to
    say`, or `too few published seeds to say` if the published seeds alone make the interval wider than that. Without a
    published standard deviation it is `no spread known`.

    Args:
        ours: the figures of our runs.
        published: the published figure.
        least: the least difference that is tolerated, if it is more than `TOLERANCE` times the published figure.
    """
    difference = float(ours.mean() - published.mean)
    unknown = Estimate(difference, np.nan, np.nan)
    if np.isnan(published.std):
        return "no spread known", unknown
    if published.seeds < LEAST_RUNS:
        return "too few published seeds to say", unknown
    error = published.std**2 / (published.seeds - 1 + published.ddof)
    tolerated = max(TOLERANCE * abs(published.mean), least)
    enough_published = student(published.seeds - 1) * np.sqrt(error) <= tolerated  # with any number of runs of ours
    too_few = "too few seeds to say" if enough_published else "too few published seeds to say"
    if len(ours) < LEAST_RUNS:
        return too_few, unknown
    errors = np.array([ours.var(ddof=1) / len(ours), error])
    total = errors.sum()
    if total == 0:
        low = high = difference
    else:
        freedom = total**2 / (errors**2 / np.array([len(ours) - 1, published.seeds - 1])).sum()
        reach = student(float(freedom)) * float(np.sqrt(total))
        low, high = difference - reach, difference + reach
    estimate = Estimate(difference, low, high)
    if low > 0 or high < 0:
        return ("above" if low > 0 else "below"), estimate
    return ("reproduced" if -tolerated <= low and high <= tolerated else too_few), estimate
