"""What an algorithm reaches where its settings are chosen by trying: the more episodes may be played, the better.

Jackson et al. 2025, "A Clean Slate for Offline Reinforcement Learning" (arXiv 2504.11453; github EmptyJackson/unifloral
evaluation.py). Runs that differ in settings are policies to choose from; they are the arms of a bandit, an episode is a
pull, each arm is pulled once before any is pulled again, at random where several are alike:

    arm_t = argmax of mean_i + sqrt(2 ln t / n_i)      n_i: how often arm i was pulled before, mean_i: of its returns

After each pull the choice is the arm of the largest mean so far; what it is worth is the mean of all of its episodes.

Deviations: here an arm that was never pulled is not chosen; there its mean is 0, which negative scores lose to. The
authors' band is that of the mean, which narrows with the number of repetitions; here it is the middle half of them.
"""

from collections.abc import Sequence

import numpy as np

from zoo.benchmarks.stats import Estimate

SUBSET = 8  # policies to choose from, drawn at random for each repetition
REPEATS = 1_000
EXPLORATION = 2.0  # of scores from 0 to 100
PULLS = (1, 2, 5, 10, 20, 50, 100)  # after which the report says what is reached


def reached(policies: Sequence[np.ndarray], pulls: int = PULLS[-1], seed: int = 0) -> np.ndarray:
    """What the choice is worth after each pull, `[REPEATS, pulls]`.

    Args:
        policies: normalized scores of the episodes `[E]` of each policy.
        pulls: episodes that are played.
        seed: of the policies that are drawn, their episodes, and ties.
    """
    random, each = np.random.default_rng(seed), np.arange(REPEATS)
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
    """The sums over the counts; another value where a count is 0."""
    means: np.ndarray = np.where(counts > 0, sum(sums) / np.maximum(counts, 1), otherwise)
    return means


def middle(values: np.ndarray) -> Estimate:
    """The mean of repetitions `[R]`, and between what the middle half of them lies."""
    low, high = np.quantile(values, (0.25, 0.75))
    return Estimate(float(values.mean()), float(low), float(high))
