"""The score of an algorithm if a bandit chooses its settings, by the number of episodes that may be played.

Jackson et al. 2025, "A Clean Slate for Offline Reinforcement Learning" (arXiv 2504.11453; github EmptyJackson/unifloral
evaluation.py). Runs with different settings give different policies. The policies are the arms of a bandit, and an
episode is a pull. Each arm is pulled once before any is pulled again. Ties are broken at random:

    arm_t = argmax of mean_i + sqrt(2 ln t / n_i)      n_i: number of earlier pulls of arm i, mean_i: its mean return

After each pull, the arm with the largest mean so far is chosen. Its score is the mean over all of its episodes.

Deviations: here an arm that was never pulled is not chosen; in the authors' code its mean is 0, which is above negative
scores. The authors' band is an interval of the mean, which narrows with the number of repetitions; here it is the
middle half of the repetitions.
"""

from collections.abc import Sequence

import numpy as np

from zoo.benchmarks.stats import Estimate

SUBSET = 8  # number of policies to choose from, sampled at random for each repetition
REPEATS = 1_000
MIDDLE = (0.25, 0.75)  # the quantiles between which the middle half of the repetitions lies
EXPLORATION = 2.0  # for scores from 0 to 100
PULLS = (1, 2, 5, 10, 20, 50, 100)  # numbers of pulls in the report


def reached(policies: Sequence[np.ndarray], pulls: int = PULLS[-1]) -> np.ndarray:
    """The score of the chosen policy after each pull, `[REPEATS, pulls]`.

    Args:
        policies: the normalized scores of each policy's episodes `[E]`.
        pulls: the number of episodes played.
    """
    random, each = np.random.default_rng(0), np.arange(REPEATS)
    worth, lengths = np.array([(scores.mean(), len(scores)) for scores in policies]).T
    episodes = np.concatenate(policies)
    starts = np.cumsum(lengths) - lengths
    arms = random.permuted(np.tile(np.arange(len(policies)), (REPEATS, 1)), axis=1)[:, :SUBSET]  # [repeats, arms]
    counts, sums = np.zeros(arms.shape), np.zeros(arms.shape)
    values = np.zeros((REPEATS, pulls))
    for pull in range(pulls):
        bound = _or(np.inf, counts, sums, np.sqrt(EXPLORATION * np.log(pull + 1) * counts))
        arm = np.where(bound == bound.max(1, keepdims=True), random.random(arms.shape), -1).argmax(1)
        policy = arms[each, arm]
        episode = starts[policy] + np.floor(random.random(REPEATS) * lengths[policy])
        counts[each, arm] += 1
        sums[each, arm] += episodes[episode.astype(int)]
        values[:, pull] = worth[arms[each, _or(-np.inf, counts, sums).argmax(1)]]
    return values


def _or(otherwise: float, counts: np.ndarray, *sums: np.ndarray) -> np.ndarray:
    """The sums divided by the counts; `otherwise` if a count is 0."""
    means: np.ndarray = np.where(counts > 0, sum(sums) / np.maximum(counts, 1), otherwise)
    return means


def middle(values: np.ndarray) -> Estimate:
    """The mean of repetitions `[R]`, with the interquartile range."""
    low, high = np.quantile(values, MIDDLE)
    return Estimate(float(values.mean()), float(low), float(high))
