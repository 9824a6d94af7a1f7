"""Statistics against SciPy, plain loops and simulations."""

import numpy as np
import pytest
import scipy.stats
from rliable import library, metrics

from zoo.benchmarks.stats import Published, aggregates, improvement, mean, profile, verdict

RNG = np.random.default_rng(0)


def test_aggregates_are_those_of_scipy_and_of_the_formula():
    scores = RNG.normal(60, 30, (8, 5))
    found = aggregates(scores, reps=200)
    expected = {
        "IQM": scipy.stats.trim_mean(scores.ravel(), 0.25),
        "mean": scores.mean(),
        "median": np.median(scores.mean(0)),
        "optimality gap": np.maximum(100 - scores, 0).mean(),
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value)
        assert found[name].low < found[name].value < found[name].high


def test_intervals_of_the_mean_are_those_of_a_plain_stratified_bootstrap():
    scores = RNG.gamma(2, 20, (10, 4))
    draws = []
    for _ in range(4000):
        drawn = np.stack([RNG.choice(scores[:, task], 10) for task in range(4)], 1)
        draws.append(drawn.mean())
    low, high = np.percentile(draws, [2.5, 97.5])
    found = aggregates(scores, reps=4000)["mean"]
    assert found.low == pytest.approx(low, abs=1.0)
    assert found.high == pytest.approx(high, abs=1.0)


def test_the_same_scores_have_the_same_intervals():
    scores = RNG.normal(60, 30, (5, 4))
    first = aggregates(scores, reps=50)
    assert aggregates(scores, reps=50) == first
    assert aggregates(scores, reps=50, seed=1) != first


@pytest.mark.filterwarnings("ignore")
def test_aggregates_and_their_intervals_are_rliables():
    functions = {
        "IQM": metrics.aggregate_iqm,
        "mean": metrics.aggregate_mean,
        "median": metrics.aggregate_median,
        "optimality gap": lambda x: metrics.aggregate_optimality_gap(x, gamma=100.0),
    }
    for shape in ((3, 6), (10, 2), (5, 9)):
        scores = RNG.gamma(4, 15, shape)
        values, intervals = library.get_interval_estimates(
            {"": scores}, lambda x: np.array([function(x) for function in functions.values()]), reps=2000
        )
        found = aggregates(scores)
        assert [found[name].value for name in functions] == pytest.approx(values[""].tolist())
        for name, low, high in zip(functions, *intervals[""], strict=True):
            near = 0.15 * (high - low)
            assert (found[name].low, found[name].high) == pytest.approx((low, high), abs=near), (shape, name)


def test_the_median_on_one_task_is_of_its_runs():
    assert aggregates(np.array([[10.0], [60.0], [90.0]]))["median"].value == 60


def test_the_mean_of_one_task_has_one_interval():
    values = RNG.normal(50, 20, 5)
    assert aggregates(values[:, None])["mean"] == mean(values)


def test_intervals_cover_the_truth_at_their_nominal_rate():
    covered = 0
    for trial in range(100):
        scores = np.random.default_rng(trial).normal(50, 20, (20, 3))
        found = aggregates(scores, reps=300, seed=trial)["mean"]
        covered += found.low <= 50 <= found.high
    assert 88 <= covered <= 99  # of 100, at 95 %; a bootstrap of 20 runs is a little narrow


def test_probability_of_improvement_counts_pairs_and_halves_ties():
    ours, others = RNG.integers(0, 5, (6, 3)).astype(float), RNG.integers(0, 5, (7, 3)).astype(float)
    pairs = [
        np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x in ours[:, task] for y in others[:, task]])
        for task in range(3)
    ]
    found = improvement(ours.T, others.T, reps=200)
    assert found.value == pytest.approx(np.mean(pairs))
    assert found.low <= found.value <= found.high


def test_probability_of_improvement_counts_all_runs_of_each_task_and_tasks_alike():
    ours, others = [np.array([1.0, 2, 3, 8, 9]), np.array([5.0, 5, 5])], [np.full(5, 4.0), np.full(4, 3.0)]
    found = improvement(ours, others)
    assert found.value == pytest.approx((0.4 + 1.0) / 2)
    drawn = (np.random.default_rng(1).choice(ours[0], (4000, 5)) > 4).mean(1) / 2 + 0.5
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, (0.025, 0.975)).tolist(), abs=0.01)


@pytest.mark.slow
def test_probability_of_improvement_and_its_interval_are_rliables():
    rng = np.random.default_rng(1)
    for tasks, runs in ((3, 8), (1, 10), (6, 6)):
        ours = rng.normal(50, 20, (runs, tasks)).round(-1)
        others = rng.normal(40, 20, (runs + 1, tasks)).round(-1)
        metric = metrics.probability_of_improvement
        value, interval = library.get_interval_estimates({"": (ours, others)}, metric, reps=1000)
        found = improvement(ours.T, others.T)
        assert found.value == pytest.approx(float(value[""]))
        assert (found.low, found.high) == pytest.approx(interval[""].ravel().tolist(), abs=0.04)


def test_the_mean_of_a_task_has_students_interval_which_covers_the_truth_even_with_three_runs():
    values = RNG.normal(50, 5, 4)
    expected = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = mean(values)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    covered = 0
    for trial in range(2000):
        found = mean(np.random.default_rng(trial).normal(50, 20, 3))
        covered += found.low <= 50 <= found.high
    assert 0.935 < covered / 2000 < 0.965
    assert np.isnan(mean(values[:2]).low)


def test_a_profile_is_the_share_of_runs_above_each_threshold():
    scores = np.array([[10.0, 50.0], [30.0, 90.0]])
    np.testing.assert_array_equal(profile(scores, np.array([0.0, 30.0, 60.0, 95.0])), [1, 0.5, 0.25, 0])


def test_of_fewer_than_three_runs_there_is_no_interval():
    assert np.isnan(aggregates(np.ones((2, 3)))["IQM"].low)
    assert str(aggregates(np.ones((2, 3)))["IQM"]) == "1.0"
    assert str(mean(np.array([0.04, 0.05]))) == "0.045"
    assert str(mean(np.array([0.04, 0.05, 3.0]))) == "1.0 [-3.2, 5.3]"
    assert np.isnan(improvement(np.ones((1, 2)), np.zeros((1, 5))).low)


def test_a_bootstrap_over_fewer_than_five_runs_of_one_task_gives_no_interval():
    """The interval of the IQM of three runs of a task, at 95 %, would contain the truth in three of four cases."""
    for runs, tasks, known in ((3, 1, False), (4, 1, False), (5, 1, True), (3, 2, True)):
        scores = RNG.normal(50, 20, (runs, tasks))
        found = aggregates(scores)
        assert [np.isfinite(found[name].low) for name in ("IQM", "median", "optimality gap")] == [known] * 3
        assert np.isfinite(found["mean"].low)
        others = scores.T + RNG.normal(0, 1, (tasks, runs))
        assert np.isfinite(improvement(scores.T, others).low) == known


def test_an_interval_is_not_a_single_point():
    found = improvement(np.full((2, 5), 1.0), np.zeros((2, 5)))
    assert (found.value, np.isnan(found.low), np.isnan(found.high)) == (1.0, True, True)
    assert str(aggregates(np.full((5, 2), 140.3))["IQM"]) == "140.3"


@pytest.mark.parametrize(
    ("ours", "published", "says"),
    [
        ([50.0, 51, 49, 50, 50], (50, 1.0, 5), "reproduced"),
        ([70.0, 71, 69], (50, 1.0, 5), "above"),
        ([30.0, 31, 29], (50, 1.0, 5), "below"),
        ([20.0, 80, 50], (50, 1.0, 5), "too few seeds to say"),
        ([50.0, 50], (50, 1.0, 5), "too few seeds to say"),
        ([20.0, 80, 50], (50, 20.0, 4), "too few published seeds to say"),
        ([50.0, 50], (50, 20.0, 4), "too few published seeds to say"),
        ([50.0, 50, 50], (50, 1.0, 1), "too few published seeds to say"),
        ([50.0, 50, 50], (50, 0.0, 3), "reproduced"),
        ([51.0, 51, 51], (50, 0.0, 3), "above"),
        ([50.0, 50, 50], (50, np.nan, 0), "no spread known"),
    ],
)
def test_verdicts(ours, published, says):
    assert verdict(np.array(ours), Published(*published, source="somewhere"))[0] == says


@pytest.mark.parametrize("seeds", [3, 5, 10, 30])
def test_too_few_published_seeds_are_those_that_no_number_of_our_runs_makes_enough(seeds):
    published, few, many = Published(50, 5.0, seeds, "x"), np.array([20.0, 80, 50]), np.tile([49.0, 51], 100_000)
    says = "too few seeds to say" if verdict(many, published)[0] == "reproduced" else "too few published seeds to say"
    assert verdict(few, published)[0] == says
    assert (says == "too few seeds to say") == (seeds >= 10)


def test_small_normalized_scores_are_reproduced_within_a_point():
    ours, published = np.array([1.1, 1.5, 1.3]), Published(1.2, 0.05, 5, "somewhere")
    assert verdict(ours, published)[0] == "too few seeds to say"
    assert verdict(ours, published, least=1.0)[0] == "reproduced"
    assert verdict(10 * ours, Published(12, 0.5, 5, "somewhere"), least=1.0)[0] == "too few seeds to say"


def test_the_difference_to_a_published_figure_has_welchs_interval():
    ours, others = RNG.normal(50, 5, 6), RNG.normal(45, 9, 8)
    _, found = verdict(ours, Published(others.mean(), others.std(ddof=1), 8, "somewhere"))
    expected = scipy.stats.ttest_ind(ours, others, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_a_population_standard_deviation_is_that_of_a_smaller_sample():
    """For the runs 0, 0, 0, 1, NumPy's is 0.433 and the sample's is 0.5."""
    runs, ours = np.array([0.0, 0, 0, 1]), np.array([0.4, 0.5, 0.7, 0.6])
    population = Published(runs.mean(), runs.std(), 4, "x", ddof=0)
    sample = Published(runs.mean(), runs.std(ddof=1), 4, "x")
    np.testing.assert_allclose(verdict(ours, population)[1], verdict(ours, sample)[1])
