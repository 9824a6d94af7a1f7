"""Value heads against SciPy's normal distribution, naive loops, and what they must be able to learn."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from zoo.algos.dqn import Config
from zoo.errors import UsageError
from zoo.heads import C51, HLGauss, TwoHot, ValueHead, reward_bounds, value_head

CATEGORICAL = [TwoHot, C51, HLGauss]
TARGETS = [-2.0, -1.999, -0.31, 0.0, 0.5, 1.7, 2.99, 3.0]


def targets() -> torch.Tensor:
    return torch.tensor(TARGETS, dtype=torch.float64)


def test_mse_is_the_squared_error_of_the_one_output():
    head, out = ValueHead(), torch.tensor([[1.0], [-2.0]])
    assert head.loss(out, head.project(torch.tensor([0.5, 1.0]))).tolist() == [0.25, 9.0]
    assert head.value(out).tolist() == [1.0, -2.0]
    assert head.backup(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]), out).tolist() == [1.5, 2.0]


def test_two_hot_shares_the_mass_between_the_two_nearest_values_exactly():
    head = TwoHot(-2.0, 3.0, 11).double()
    values = np.linspace(-2, 3, 11)
    for target, probabilities in zip(TARGETS, head.project(targets()), strict=True):
        expected = np.zeros(11)
        below = min(int((target + 2) / 0.5), 9)
        expected[below + 1] = (target - values[below]) / 0.5
        expected[below] = 1 - expected[below + 1]
        np.testing.assert_allclose(probabilities, expected, atol=1e-12)


@pytest.mark.parametrize("bins", [21, 51, 101])
def test_hl_gauss_is_the_normals_mass_in_every_bin(bins):
    head = HLGauss(-2.0, 3.0, bins).double()
    edges = np.linspace(-2, 3, bins + 1)
    for target, probabilities in zip(TARGETS, head.project(targets()), strict=True):
        normal = scipy.stats.norm(target, 0.75 * 5 / bins)
        mass = np.diff(normal.cdf(edges))
        np.testing.assert_allclose(probabilities, mass / (normal.cdf(3) - normal.cdf(-2)), atol=1e-12)
        assert float(probabilities.sum()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("kind", CATEGORICAL)
def test_single_precision_keeps_the_mass_at_one(kind):
    head = kind(-20.0, 30.0, 101)
    probabilities = head.project(torch.linspace(-40, 50, 1001))
    assert (probabilities >= 0).all()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(1001), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", CATEGORICAL)
def test_the_expected_value_of_a_fitted_head_is_its_target(kind):
    head, inside = kind(-2.0, 3.0, 51).double(), targets()[2:6]
    out = torch.zeros(len(inside), 51, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([out], 0.1)
    for _ in range(2000):
        optimizer.zero_grad()
        head.loss(out, head.project(inside)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(head.value(out.detach()), inside, rtol=0, atol=5e-3)


def test_c51_projects_as_a_double_loop_over_atoms_does():
    head, generator = C51(-2.0, 3.0, 11).double(), np.random.default_rng(0)
    reward, discount = generator.uniform(-3, 3, 50), generator.choice([0.0, 0.9, 0.99], 50)
    out = generator.normal(size=(50, 11))
    probabilities = np.exp(out) / np.exp(out).sum(1, keepdims=True)
    atoms, width = np.linspace(-2, 3, 11), 0.5
    expected = np.zeros((50, 11))
    for i in range(50):  # Algorithm 1 of Bellemare et al.
        for j in range(11):
            b = (np.clip(reward[i] + discount[i] * atoms[j], -2, 3) + 2) / width
            lower, upper = math.floor(b + 1e-12), math.ceil(b - 1e-12)
            if lower == upper:
                expected[i, lower] += probabilities[i, j]
            else:
                expected[i, lower] += probabilities[i, j] * (upper - b)
                expected[i, upper] += probabilities[i, j] * (b - lower)
    projected = head.backup(*map(torch.from_numpy, (reward, discount, out)))
    np.testing.assert_allclose(projected, expected, atol=1e-10)
    np.testing.assert_allclose(projected.sum(1), 1, atol=1e-10)


@pytest.mark.parametrize("kind", [TwoHot, HLGauss])
def test_backup_is_the_projection_of_the_bellman_target(kind):
    head = kind(-20.0, 30.0, 41).double()
    out, reward = torch.randn(6, 41).double(), torch.randn(6).double()
    discount = torch.tensor([0.9, 0.0, 0.9, 0.5, 0.0, 1.0]).double()
    expected = head.project(reward + discount * (out.softmax(-1) * head.centers()).sum(-1))
    torch.testing.assert_close(head.backup(reward, discount, out), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", CATEGORICAL)
def test_targets_outside_the_support_are_clipped_and_counted(kind):
    head = kind(-1.0, 1.0, 21)
    outside, at_the_ends = torch.tensor([-5.0, 0.0, 1.5]), torch.tensor([-1.0, 0.0, 1.0])
    assert torch.equal(head.project(outside), head.project(at_the_ends))
    assert int(head.metrics()["clipped_targets"]) == 2
    head.backup(torch.tensor([3.0, 0.0]), torch.tensor([0.9, 0.9]), torch.zeros(2, 21))
    assert int(head.metrics()["clipped_targets"]) == 3


@pytest.mark.parametrize("kind", [ValueHead, *CATEGORICAL])
def test_the_least_member_is_chosen_for_each_transition(kind):
    head = kind() if kind is ValueHead else kind(-1.0, 1.0, 5)
    out = torch.randn(3, 20, head.outputs)
    values = head.value(out)
    for i, chosen in enumerate(head.least(out)):
        assert torch.equal(chosen, out[values[:, i].argmin(), i])


@pytest.mark.parametrize("kind", CATEGORICAL)
@pytest.mark.parametrize("bins", [51, 101])
def test_a_computed_support_tells_the_bounds_themselves_without_bias(kind, bins):
    head = kind(None, None, bins).double()
    head.hold(-3.0, 7.0)
    ends = torch.tensor([-3.0, 7.0], dtype=torch.float64)
    torch.testing.assert_close(head.project(ends) @ head.centers(), ends, atol=0.01 * 10 / bins, rtol=0)


@pytest.mark.parametrize("kind", CATEGORICAL)
def test_the_support_is_saved_with_the_head(kind):
    saved, restored = kind(None, None, 7), kind(None, None, 7)
    assert not saved.has_support
    assert "for values from -4 to 9" in saved.hold(-4.0, 9.0)
    restored.load_state_dict(saved.state_dict())
    assert restored.has_support
    assert torch.equal(saved.centers(), restored.centers())


def test_reward_bounds_are_the_extreme_rewards_for_ever():
    assert reward_bounds(torch.tensor([0.5, 1.0]), 0.99) == (0.0, pytest.approx(100))
    assert reward_bounds(torch.tensor([-16.0, -1.0]), 0.9) == (pytest.approx(-160), 0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value_head": "hl_gaus"}, "algo.value_head=hl_gaus does not exist. There are: mse, two_hot, c51, hl_gauss"),
        ({"value_head": "c51", "v_min": 1.0, "v_max": 1.0}, r"\[1, 1\] is empty: algo.v_min must be below algo.v_max"),
        ({"value_head": "c51", "v_min": 2.0, "v_max": -2.0}, r"\[2, -2\] is empty"),
        ({"value_head": "c51", "v_min": 2.0, "v_max": math.inf}, r"\[2, inf\]"),
        ({"value_head": "two_hot", "v_min": 0.0}, "go together: give both, or none"),
        ({"value_head": "hl_gauss", "num_bins": 1}, "algo.num_bins=1 must be at least 2"),
        ({"v_min": 0.0, "v_max": 1.0}, "Add: algo.value_head=hl_gauss"),
    ],
)
def test_what_no_head_can_be_made_of_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        value_head(Config(**settings))


def test_a_support_that_cannot_hold_the_returns_is_refused():
    head = HLGauss(0.0, 10.0, 51)
    with pytest.raises(UsageError, match=r"v_min=0 algo.v_max=10 cannot hold the data's returns, from 1 to 12"):
        head.hold(1.0, 12.0)
    assert "as given" in head.hold(1.0, 9.0)
    assert "as given" in head.hold(-math.inf, math.inf)  # undiscounted: nothing to hold it against


@pytest.mark.parametrize(("reward", "discount", "message"), [(1.0, 1.0, "bounds no value"), (0.0, 0.9, "are 0")])
def test_rewards_that_bound_nothing_ask_for_a_support(reward, discount, message):
    with pytest.raises(UsageError, match=rf"{message}.*algo.v_min=... algo.v_max=..."):
        HLGauss(None, None, 51).hold(*reward_bounds(torch.full((3,), reward), discount))
