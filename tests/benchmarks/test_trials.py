"""The bandit that chooses among policies, and its section in the report."""

import math
import random

import numpy as np
import pytest

from zoo.benchmarks.trials import REPEATS, SUBSET, middle, reached


def naive(policies: list[list[float]], pulls: int, repeats: int) -> np.ndarray:
    """The mean after each pull, by a loop over repetitions, pulls and arms: UCB1 with bonus sqrt(2 ln t / n)."""
    draw, total = random.Random(1), np.zeros(pulls)
    for _ in range(repeats):
        arms = draw.sample(policies, min(SUBSET, len(policies)))
        seen: list[list[float]] = [[] for _ in arms]
        for pull in range(1, pulls + 1):
            new = [i for i, returns in enumerate(seen) if not returns]
            bounds = [sum(r) / len(r) + math.sqrt(2 * math.log(pull) / len(r)) if r else 0 for r in seen]
            arm = draw.choice(new) if new else max(range(len(arms)), key=bounds.__getitem__)
            seen[arm].append(draw.choice(arms[arm]))
            best = max((i for i, returns in enumerate(seen) if returns), key=lambda i: sum(seen[i]) / len(seen[i]))
            total[pull - 1] += sum(arms[best]) / len(arms[best])
    return total / repeats


def test_the_bandit_reaches_what_a_loop_over_arms_reaches():
    made = np.random.default_rng(0)
    policies = [made.normal(made.uniform(20, 80), 15, 4 + i) for i in range(11)]  # different numbers of episodes
    values = reached(policies, 40)
    expected = naive([list(policy) for policy in policies], 40, 3000)
    error = values.std(0) * math.sqrt(1 / REPEATS + 1 / 3000)
    assert (abs(values.mean(0) - expected) < 4 * error + 1e-9).all()
    assert values.mean(0)[-1] - values.mean(0)[0] > 5


def test_one_episode_chooses_at_random_and_one_of_each_the_best_of_those_that_never_vary():
    values = reached([np.zeros(5), np.full(3, 100.0)], 3)
    assert set(values[:, 0]) == {0, 100}
    assert values[:, 0].mean() == pytest.approx(50, abs=6)
    assert (values[:, 1:] == 100).all()


def test_policies_are_drawn_anew_so_that_the_best_is_not_always_among_them():
    policies = [np.full(2, float(worth)) for worth in (100, *[0] * 15)]
    values = reached(policies, SUBSET)
    assert values[:, -1].mean() == pytest.approx(100 * SUBSET / 16, abs=6)


def test_a_policy_that_was_not_tried_is_not_chosen_however_bad_the_others_are():
    values = reached([np.full(2, -10.0), np.full(2, -20.0)], 2)
    assert set(values[:, 0]) == {-10, -20}
    assert (values[:, 1] == -10).all()


def test_the_middle_half_is_that_of_the_repetitions():
    assert tuple(middle(np.arange(101.0))) == (50, 25, 75)
