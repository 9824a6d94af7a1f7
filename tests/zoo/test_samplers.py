"""Samplers follow their weights, by a chi-squared test, and the weights follow the authors' formulas."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from sklearn.linear_model import LinearRegression

from zoo.data import ahead
from zoo.data.ahead import SampledAhead
from zoo.data.arrays import Arrays
from zoo.data.batch import gather
from zoo.data.dataset import Dataset
from zoo.data.samplers import SamplerConfig, Uniform, Weighted, top_weights
from zoo.errors import UsageError
from zoo.nn import Normalizer
from zoo.spec import Spec

CPU = torch.device("cpu")
SPEC = Spec((3,), (-1.0,), (1.0,))


def dataset(sampler: SamplerConfig, episodes: int = 12, seed: int = 0) -> Dataset:
    """Episodes of 1 to 20 steps, whose returns depend on where they start."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 21, episodes)
    size = lengths.sum()
    obs = rng.normal(size=(size, 3)).astype(np.float32)
    ends = np.zeros(size, dtype=bool)
    ends[np.cumsum(lengths) - 1] = True
    reward = (rng.normal(size=size) + obs[:, 0]).astype(np.float32)
    arrays = Arrays(obs, np.zeros((size, 1), np.float32), reward, obs, ends, np.zeros(size, dtype=bool))
    return Dataset(arrays, SPEC, CPU, sampler)


def by_the_authors(data: Dataset, name: str, alpha: float) -> np.ndarray:
    """The probability of each transition, `[N]`, as a softmax over transitions."""
    lengths, returns = data.episode_lengths.numpy(), data.episode_returns.numpy()
    if name == "advantage":
        first = data.obs[data.episode_starts].numpy().astype(np.float64)
        returns = returns - LinearRegression().fit(first, returns).predict(first)
    weights = np.repeat(returns, lengths)
    return scipy.special.softmax((weights - weights.min()) / (weights.max() - weights.min()) / alpha)


def assert_sampled_with(data: Dataset, probabilities: np.ndarray, draws: int = 400) -> None:
    torch.manual_seed(0)
    sampled = np.bincount(torch.cat([data.sample(256).index for _ in range(draws)]), minlength=len(data))
    expected = draws * 256 * probabilities
    assert (sampled[expected == 0] == 0).all()
    often = expected >= 5  # the chi-squared test needs this; the rest counts as one bin
    observed = [*sampled[often], sampled[~often].sum()]
    wanted = [*expected[often], expected[~often].sum()]
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    assert scipy.stats.chisquare(observed, np.array(wanted) * sum(observed) / sum(wanted)).pvalue > 1e-3


@pytest.mark.parametrize("name", ["return", "advantage"])
@pytest.mark.parametrize("alpha", [0.1, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_transitions_are_sampled_as_the_papers_weights_say(name, alpha, seed):
    data = dataset(SamplerConfig(name, alpha), seed=seed)
    assert_sampled_with(data, by_the_authors(data, name, alpha))


def test_top_draws_the_best_episodes_alone_and_their_transitions_alike():
    data = dataset(SamplerConfig("top", fraction=0.25))
    best = np.argsort(data.episode_returns.numpy())[-3:]
    within = np.isin(np.repeat(np.arange(12), data.episode_lengths), best)
    assert_sampled_with(data, within / within.sum())


def test_uniform_draws_every_transition_alike():
    data = dataset(SamplerConfig())
    assert isinstance(data.sampler, Uniform)
    assert_sampled_with(data, np.full(len(data), 1 / len(data)))


def test_few_heavy_episodes_among_many_light_ones_are_sampled_exactly():
    lengths = torch.tensor([1, 1_000, 3, 500, 1])
    weights = torch.tensor([50.0, 0.0, 1e-3, 0.1, 100.0], dtype=torch.float64)
    starts = lengths.cumsum(0) - lengths
    torch.manual_seed(0)
    episode = torch.searchsorted(starts, Weighted(starts, lengths, weights).draw(1_000_000), right=True) - 1
    mass = weights * lengths / (weights * lengths).sum()
    sampled = torch.bincount(episode, minlength=5)
    assert sampled[1] == 0
    some = mass > 0
    assert scipy.stats.chisquare(sampled[some], 1_000_000 * mass[some]).pvalue > 1e-3


def test_a_batch_does_not_depend_on_how_many_are_sampled_ahead_of_a_checkpoint():
    data, other = (dataset(SamplerConfig("return")) for _ in range(2))
    torch.manual_seed(0)
    data.sample(256)
    state, ahead = torch.get_rng_state(), data.sampler.prefetched.clone()
    expected = [data.sample(256).index for _ in range(100)]
    torch.set_rng_state(state)
    other.sampler.prefetched = ahead
    assert all(torch.equal(other.sample(256).index, index) for index in expected)


@pytest.mark.parametrize("name", ["uniform", "return"])
def test_batches_sampled_ahead_are_those_of_the_same_indices(monkeypatch, name):
    """As on a GPU, where the uniform sampler also samples many at a time."""
    data, gathered = dataset(SamplerConfig(name)), []

    def counted(source, index):
        gathered.append(len(index))
        return gather(source, index)

    torch.manual_seed(0)
    draw = data.sampler.draw if isinstance(data.sampler, Weighted) else data.sampler
    indices = torch.cat([draw(64 * 4), draw(64 * 4)]).split(4)
    data.use(data.sampler_config)
    monkeypatch.setattr(ahead, "gather", counted)
    sample = SampledAhead(data)
    torch.manual_seed(0)
    for i in range(70):
        if i == 10:  # resumed: the rest of the indices is a separate tensor
            data.sampler.prefetched, sample = data.sampler.prefetched.clone(), SampledAhead(data)
        for found, expected in zip(sample(4), gather(data, indices[i]), strict=True):
            assert torch.equal(found, expected)
    assert gathered == [256, 216, 256]


def test_batches_sampled_ahead_are_of_the_data_as_it_is(monkeypatch):
    data = dataset(SamplerConfig())
    sample = SampledAhead(data)
    before = sample(4)
    data.scale_reward(2.0)
    for size in (4, 2, 2, 0, 2, 4, 3, 4, 50):  # also no indices, and some that are not equal slices
        left, batch = data.sampler.prefetched, sample(size)
        assert len(batch.index) == size
        if len(left) >= size:
            assert torch.equal(batch.index, left[:size])
        assert torch.equal(batch.reward, data.reward[batch.index])
    assert torch.equal(2 * before.reward, data.reward[before.index])
    monkeypatch.setattr(ahead, "MOST", 100)
    batch = SampledAhead(data)(4)
    assert torch.equal(batch.obs, data.obs[batch.index])


@pytest.mark.parametrize("name", ["return", "advantage"])
def test_episodes_that_all_weigh_the_same_are_refused(name):
    ends = np.arange(1, 61) % 5 == 0
    obs, reward = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.where(ends, 7.0, 0.0)
    arrays = Arrays(obs, np.zeros((60, 1), np.float32), reward.astype(np.float32), obs, ends, np.zeros(60, dtype=bool))
    with pytest.raises(UsageError, match="every episode of this dataset weighs the same"):
        Dataset(arrays, SPEC, CPU, SamplerConfig(name))


@pytest.mark.parametrize("name", ["return", "advantage"])
def test_episodes_whose_returns_differ_by_little_of_their_size_are_weighed(name):
    """For returns of 3,000 +- 100, like an expert's, the best is sampled e^10 times as often as the worst."""
    ends = np.arange(1, 61) % 5 == 0
    rng = np.random.default_rng(0)
    obs, reward = rng.normal(size=(60, 3)).astype(np.float32), np.where(ends, 3_000.0, 0.0)
    reward[ends] += rng.uniform(-100, 100, 12)
    arrays = Arrays(obs, np.zeros((60, 1), np.float32), reward.astype(np.float32), obs, ends, np.zeros(60, dtype=bool))
    data = Dataset(arrays, SPEC, CPU, SamplerConfig(name))
    weights = data.sampler.weights
    assert float(weights.max() / weights.min()) == pytest.approx(np.exp(10), rel=1e-3)
    expected = by_the_authors(data, name, 0.1)
    np.testing.assert_allclose(weights / weights.sum(), expected, rtol=1e-3)


@pytest.mark.parametrize("name", ["return", "advantage", "top"])
def test_data_whose_episodes_are_not_marked_are_refused(name):
    obs, never = np.zeros((50, 3), np.float32), np.zeros(50, dtype=bool)
    arrays = Arrays(obs, np.zeros((50, 1), np.float32), np.arange(50, dtype=np.float32), obs, never, never)
    with pytest.raises(UsageError, match="chooses among episodes, and this is one"):
        Dataset(arrays, SPEC, CPU, SamplerConfig(name))


@pytest.mark.parametrize("name", ["return", "advantage", "top"])
def test_data_whose_episodes_return_the_same_are_refused(name):
    obs, ends = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32), np.arange(50) % 5 == 4
    nothing = np.zeros(50, np.float32)
    arrays = Arrays(obs, np.zeros((50, 1), np.float32), nothing, obs, ends, np.zeros(50, dtype=bool))
    with pytest.raises(UsageError, match=r"every episode of this dataset .* Leave"):
        Dataset(arrays, SPEC, CPU, SamplerConfig(name))


@pytest.mark.parametrize("name", ["return", "top"])
def test_returns_that_differ_by_rounding_alone_are_the_same(name):
    """Episodes of 30, 41 and 57 steps, each of which pays a return of 1."""
    lengths = [30, 41, 57] * 4
    reward = np.concatenate([np.full(n, 1 / n, np.float32) for n in lengths])
    ends, never = np.zeros(len(reward), bool), np.zeros(len(reward), bool)
    ends[np.cumsum(lengths) - 1] = True
    obs = np.random.default_rng(0).normal(size=(len(reward), 3)).astype(np.float32)
    arrays = Arrays(obs, np.zeros((len(reward), 1), np.float32), reward, obs, ends, never)
    data = Dataset(arrays, SPEC, CPU)
    assert data.episode_returns.max() > data.episode_returns.min()
    with pytest.raises(UsageError, match=r"every episode of this dataset .* Leave"):
        Dataset(arrays, SPEC, CPU, SamplerConfig(name))
    with pytest.raises(UsageError, match=r"has the same return.*algo.normalize_reward=false"):
        data.normalize_reward()


def test_a_temperature_that_would_never_draw_some_episodes_is_refused():
    with pytest.raises(UsageError, match=r"alpha=0.001 is so small that \d+ of 12 episodes would never be sampled"):
        dataset(SamplerConfig("return", alpha=0.001))


@pytest.mark.parametrize("alpha", [0.0, -1.0])
def test_temperatures_are_above_zero(alpha):
    with pytest.raises(ValueError, match="must be above 0"):
        SamplerConfig("return", alpha)


@pytest.mark.parametrize("name", ["uniform", "return", "advantage", "top"])
def test_observations_are_normalized_over_what_is_sampled(name):
    data = dataset(SamplerConfig(name, fraction=0.3), episodes=40)
    sampled = data.obs[torch.cat([data.sample(1000).index for _ in range(50)])]
    normalizer = Normalizer((3,))
    data.normalize_obs(normalizer)
    torch.testing.assert_close(normalizer.mean, sampled.mean(0), rtol=0, atol=0.03)
    torch.testing.assert_close(normalizer.std, sampled.std(0), rtol=0.03, atol=0.03)
    after = torch.cat([data.sample(1000).obs for _ in range(50)])
    torch.testing.assert_close(after.mean(0), torch.zeros(3), rtol=0, atol=0.03)


def test_a_share_of_the_episodes_is_counted_without_rounding_errors():
    assert top_weights(torch.arange(100.0), 0.29).sum() == 29  # 0.29 * 100 is 28.999999999999996
