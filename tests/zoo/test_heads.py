"""Value heads against SciPy's normal distribution and naive loops, and on values that they must learn."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

import zoo
from zoo.algos import dqn, ppo, sac, td3
from zoo.algos.dqn import Config
from zoo.data.arrays import Arrays
from zoo.data.batch import Batch, NStepBatch
from zoo.data.dataset import Dataset
from zoo.errors import UsageError
from zoo.nn import MLP, EnsembleMLP
from zoo.nn.heads import C51, HLGauss, TwoHot, ValueHead, value_head
from zoo.nn.optim import Adam, linear
from zoo.spec import Spec

CATEGORICAL = [TwoHot, C51, HLGauss]
TARGETS = [-2.0, -1.999, -0.31, 0.0, 0.5, 1.7, 2.99, 3.0]
CONTINUOUS, DISCRETE = Spec((3,), (-1.0, -1.0), (1.0, 1.0)), Spec((3,), num_actions=4)
FRAMES = Spec((4, 10, 10), num_actions=4, obs_dtype="uint8")


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
    for i, chosen in enumerate(head.min_member(out)):
        assert torch.equal(chosen, out[values[:, i].argmin(), i])


@pytest.mark.parametrize("kind", CATEGORICAL)
@pytest.mark.parametrize("bins", [51, 101])
def test_a_computed_support_tells_the_bounds_themselves_without_bias(kind, bins):
    head = kind(None, None, bins).double()
    head.fit_support(-3.0, 7.0)
    ends = torch.tensor([-3.0, 7.0], dtype=torch.float64)
    torch.testing.assert_close(head.project(ends) @ head.centers(), ends, atol=0.01 * 10 / bins, rtol=0)


@pytest.mark.parametrize(("bins", "outside"), [(101, 2.25), (51, 2.25), (9, 2.25), (8, 2.0), (4, 1.0)])
def test_a_computed_support_of_hl_gauss_reaches_three_deviations_beyond_the_bounds_or_a_quarter_of_the_bins(
    bins, outside
):
    head = HLGauss(None, None, bins)
    head.fit_support(-3.0, 5.0)
    width = float(head.v_max - head.v_min) / bins
    assert [float(-3 - head.v_min) / width, float(head.v_max - 5) / width] == pytest.approx([outside] * 2, rel=1e-4)


def test_c51_counts_targets_outside_the_support_not_rewards():
    head, out = C51(-1.0, 1.0, 5), torch.full((3, 5), -1e4)
    out[0, 4], out[1, 2], out[2, 0] = 0.0, 0.0, 0.0  # values of 1, 0 and -1
    head.backup(torch.tensor([0.9, 0.9, 1.5]), torch.tensor([0.9, 0.9, 0.9]), out)  # targets of 1.8, 0.9 and 0.6
    head.backup(torch.tensor([0.5, 0.5, -0.5]), torch.tensor([0.9, 0.9, 0.9]), out)  # of 1.4, 0.5 and -1.4
    assert int(head.clipped) == 3


@pytest.mark.parametrize("kind", CATEGORICAL)
def test_the_support_is_saved_with_the_head(kind):
    saved, restored = kind(None, None, 7), kind(None, None, 7)
    assert "for values from -4 to 9" in saved.fit_support(-4.0, 9.0)
    restored.load_state_dict(saved.state_dict())
    assert torch.equal(saved.centers(), restored.centers())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value_head": "hl_gaus"}, "value_head=hl_gaus does not exist. There are: mse, huber, two_hot, c51, hl_gauss"),
        ({"value_head": "c51", "v_min": 1.0, "v_max": 1.0}, r"\[1, 1\] is empty: algo.v_min must be below algo.v_max"),
        ({"value_head": "c51", "v_min": 2.0, "v_max": -2.0}, r"\[2, -2\] is empty"),
        ({"value_head": "two_hot", "v_min": 0.0}, "go together: give both, or none"),
        ({"value_head": "hl_gauss", "num_bins": 1}, "algo.num_bins=1 must be at least 2"),
        ({"v_min": 0.0, "v_max": 1.0}, "Add: algo.value_head=hl_gauss"),
    ],
)
def test_what_no_head_can_be_made_of_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        value_head(Config(**settings))


def test_data_whose_returns_are_all_alike_need_a_support_that_is_given():
    with pytest.raises(UsageError, match=r"all returns of the data are 0, .* algo.v_min=... algo.v_max=..."):
        TwoHot(None, None, 51).fit_support(0.0, 0.0)


@pytest.mark.parametrize("discount", [0.9, 0.97, 0.99, 0.999])
def test_a_support_that_is_exactly_the_returns_holds_them(discount):
    """Rewards of -1, in an infinite episode and in one that ends: from -1 / (1 - discount) to -1."""

    def bounds(terminates: bool) -> tuple[float, float]:
        end = np.arange(200) % 100 == 99
        terminated = end & (np.arange(200) > 100) & terminates
        state, reward = np.zeros((200, 1), np.float32), np.full(200, -1, np.float32)
        arrays = Arrays(state, state, reward, state, terminated, end & ~terminated)
        return Dataset(arrays, Spec((1,), (-1.0,), (1.0,)), torch.device("cpu")).value_bounds(discount)

    lowest = -1 / (1 - discount)
    low, high = bounds(terminates=True)
    assert "as given" in TwoHot(lowest, -1.0, 51).fit_support(low, high)
    with pytest.raises(UsageError, match="cannot hold the data's returns"):
        TwoHot(0.999 * lowest, 0.0, 51).fit_support(low, high)
    with pytest.raises(UsageError, match="all returns of the data are"):
        TwoHot(None, None, 51).fit_support(*bounds(terminates=False))


def test_without_a_discount_returns_are_bounded_if_all_episodes_terminate():
    state, reward = np.zeros((6, 1), np.float32), np.array([1, 2, 3, -4, -5, 6], np.float32)
    end, never = np.array([False, False, True] * 2), np.zeros(6, bool)

    def bounds(terminated, truncated):
        arrays = Arrays(state, state, reward, state, terminated, truncated)
        return Dataset(arrays, Spec((1,), (-1.0,), (1.0,)), torch.device("cpu")).value_bounds(1.0)

    assert bounds(end, never) == (-3.0, 6.0)  # of returns-to-go 6, 5, 3, -3, 1, 6
    assert bounds(never, end) == (-math.inf, math.inf)


def test_a_support_without_an_end_is_refused():
    with pytest.raises(UsageError, match=r"\[2, inf\]"):
        C51(2.0, math.inf, 51)


def test_a_support_that_cannot_hold_the_returns_is_refused():
    head = HLGauss(0.0, 10.0, 51)
    with pytest.raises(UsageError, match=r"v_min=0 algo.v_max=10 cannot hold the data's returns, from 1 to 12"):
        head.fit_support(1.0, 12.0)
    assert "as given" in head.fit_support(1.0, 9.0)
    assert "as given" in head.fit_support(-math.inf, math.inf)  # undiscounted: there is no bound to compare with


def test_an_undiscounted_value_asks_for_a_support():
    with pytest.raises(UsageError, match=r"bounds no value.*algo.v_min=... algo.v_max=..."):
        HLGauss(None, None, 51).fit_support(-math.inf, math.inf)


def following(kind, bins: int = 51, discount: float = 0.99):
    """A head without bounds, as in online algorithms."""
    return kind(None, None, bins, discount)


def seen(head, *rewards: float) -> None:
    """Shows a head episodes of one step each."""
    for reward in rewards:
        head.update_support(torch.tensor([[reward]]), torch.tensor([[True]]))


@pytest.mark.parametrize("kind", CATEGORICAL)
def test_an_online_support_is_1_5_to_2_times_the_largest_discounted_return_so_far(kind):
    head, rng = following(kind, discount=0.9).double(), np.random.default_rng(0)
    reward = rng.normal(size=(500, 3)) * np.linspace(0, 20, 500)[:, None] - 3 * (np.arange(500) > 400)[:, None]
    reward[:20] = 0
    ended, so_far, largest = rng.random((500, 3)) < 0.1, np.zeros(3), 0.0
    for t in range(500):
        head.update_support(*(torch.from_numpy(x[t : t + 1]) for x in (reward, ended)))
        so_far = reward[t] + 0.9 * so_far
        largest = max(largest, abs(so_far).max())
        so_far[ended[t]] = 0
        if largest:
            assert 1.5 * largest * (1 - 1e-9) <= float(head.v_max) <= 2 * largest * (1 + 1e-9)
        else:
            assert 0 < float(head.v_max) <= 1e-6
        assert float(head.v_min) == -float(head.v_max)


def test_a_support_follows_whole_rollouts_as_it_does_single_steps():
    reward, ended = torch.randn(40, 3, dtype=torch.float64), torch.rand(40, 3) < 0.1
    one, whole = following(TwoHot).double(), following(TwoHot).double()
    for t in range(40):
        one.update_support(reward[t : t + 1], ended[t : t + 1])
    whole.update_support(reward[:25], ended[:25])
    whole.update_support(reward[25:], ended[25:])
    torch.testing.assert_close(one.returns.carried, whole.returns.carried)
    assert 0.74 < float(one.v_max / whole.v_max) < 1.34  # each 1.5 to 2 times the largest return


@pytest.mark.parametrize("kind", CATEGORICAL)
@pytest.mark.parametrize("bins", [51, 101])
@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0, 1e5])
def test_projections_keep_the_mean_of_targets_as_large_as_the_largest_return(kind, bins, size):
    head = following(kind, bins).double()
    seen(head, 0.0, -size)
    values = size * torch.linspace(-1, 1, 999, dtype=torch.float64)
    torch.testing.assert_close(head.project(values) @ head.centers(), values, rtol=0, atol=1e-5 * size)
    seen(head, 1.3 * size)  # within 1.5 times
    values = 1.3 * values
    torch.testing.assert_close(head.project(values) @ head.centers(), values, rtol=0, atol=1e-5 * size)
    assert int(head.metrics()["clipped_targets"]) == 0


def fitted(head, values: torch.Tensor, ensemble: bool):
    """The predictions `[50, 4]` of a critic fitted to `values` `[50, 4]`, or of 4 members fitted to 50 values."""
    obs = torch.randn(50, 3)
    critic = EnsembleMLP(4, 3, head.outputs, [64]) if ensemble else MLP(3, 4 * head.outputs, [64])
    optimizer = Adam(critic.parameters(), 3e-3)

    def outputs() -> torch.Tensor:
        return critic(obs).movedim(0, 1) if ensemble else critic(obs).unflatten(-1, (4, head.outputs))

    for _ in range(300):
        optimizer.minimize(head.loss(outputs(), head.project(values)).mean())
    return critic, lambda: head.value(outputs()).detach()


@pytest.mark.parametrize("ensemble", [False, True])
@pytest.mark.parametrize(("kind", "bins_off"), [(TwoHot, 2.0), (C51, 2.0), (HLGauss, 0.5)])
@pytest.mark.parametrize("bins", [50, 51])
def test_values_stay_where_they_are_when_the_support_grows(kind, bins_off, bins, ensemble):
    torch.manual_seed(0)
    head = following(kind, bins)
    seen(head, 10.0)
    critic, values = fitted(head, 10 * torch.rand(50, 1).expand(50, 4), ensemble)
    before, width = values(), 40 / bins
    assert before.mean() > 4
    head.update_support(torch.tensor([[-20.0]]), torch.tensor([[True]]), critic)
    assert float(head.v_max) == pytest.approx(40)
    assert (values() - before).abs().mean() < bins_off * width / 2
    assert values().mean() == pytest.approx(float(before.mean()), abs=width / 2)


@pytest.mark.parametrize("kind", CATEGORICAL)
def test_a_support_grows_from_nothing_to_large_returns_while_values_stay_zero(kind):
    head, critic = following(kind), MLP(3, 2 * 51)
    head.init_(critic)
    for reward in (0.0, 1e-3, -0.5, 7.0, 300.0):
        head.update_support(torch.tensor([[reward]]), torch.tensor([[True]]), critic)
        assert head.value(critic(torch.randn(9, 3)).unflatten(-1, (2, 51))).abs().max() < 1e-3


@pytest.mark.parametrize(("kind", "rtol"), [(TwoHot, 0.1), (C51, 0.02), (HLGauss, 0.02)])  # two_hot is slow: bin by bin
def test_values_follow_rewards_that_become_a_hundred_times_as_large(kind, rtol):
    """Gradient steps on noisy bootstrapped targets, for a cycle of three states.

    The observed returns are those of episodes of twenty steps.
    """
    torch.manual_seed(0)
    head, critic = following(kind, discount=0.9), MLP(3, 51, [32])
    head.init_(critic)
    states, state, discount = torch.eye(3), torch.arange(3).repeat(32), torch.full((96,), 0.9)
    for scale in (0.01, 1.0):
        optimizer = Adam(critic.parameters(), 0.02, 3000, linear)
        reward = scale * torch.tensor([2.0, 0.0, -40.0])
        head.update_support(reward.repeat(7)[:20, None], (torch.arange(20) == 19)[:, None], critic)
        for _ in range(3000):
            with torch.no_grad():
                noisy = reward[state] + scale * 10 * torch.randn(96) * (state == 0)
                target = head.backup(noisy, discount, critic(states[(state + 1) % 3]))
            optimizer.minimize(head.loss(critic(states[state]), target).mean())
    chain = np.linalg.solve(np.eye(3) - 0.9 * np.roll(np.eye(3), 1, 1), reward.numpy())
    np.testing.assert_allclose(head.value(critic(states)).detach(), chain, rtol=rtol)


@pytest.mark.parametrize("kind", CATEGORICAL)
def test_a_restored_support_follows_the_running_episodes_on(kind):
    saved, restored = following(kind), following(kind)
    saved.update_support(torch.tensor([[1.0, 2.0]]), torch.tensor([[False, False]]))
    restored.load_state_dict(saved.state_dict())
    for head in (saved, restored):
        head.update_support(torch.tensor([[1.0, 3.0]]), torch.tensor([[False, False]]))
        assert float(head.v_max) == pytest.approx(2 * (3 + 0.99 * 2))


@pytest.mark.parametrize("kind", CATEGORICAL)
def test_a_dataset_that_is_learned_from_as_well_widens_an_online_support(kind):
    for low, high in ((-5.0, 30.0), (-30.0, 5.0)):
        head = following(kind)
        assert "follows the returns" in head.fit_support(low, high)
        seen(head, -8.0)
        assert float(head.v_max) == 60
    assert "follows the returns" in following(kind).fit_support(-math.inf, math.inf)  # undiscounted


@pytest.mark.parametrize("kind", ["two_hot", "c51", "hl_gauss"])
def test_offline_no_support_follows_the_returns(kind):
    head = value_head(sac.Config(value_head=kind))
    assert head.returns is None
    assert head.v_max.isnan()


def test_only_a_head_that_follows_the_returns_has_more_state_than_its_support():
    assert set(TwoHot(None, None, 51).state_dict()) == {"v_min", "v_max", "clipped"}


def online_critics(head: str, num_bins: int):
    """Values `[...]` of random observations by freshly built critics of every online algorithm."""
    settings = {"value_head": head, "num_bins": num_bins}
    obs, action = 10 * torch.randn(100, 3), 2 * torch.rand(100, 2) - 1
    for spec in (DISCRETE, FRAMES):
        x = obs if spec is DISCRETE else torch.randint(2, (100, 4, 10, 10), dtype=torch.uint8)
        for dueling in (False, True):
            agent = dqn.DQN(spec, dqn.Config(**settings, dueling=dueling))
            yield agent.head.value(agent.network(x))
            yield agent.head.value(agent.target_network(x))
        agent = ppo.PPO(spec, ppo.Config(**settings))
        yield agent.head.value(agent.value(agent.encoder(x)))
    for agent in (sac.SAC(CONTINUOUS, sac.Config(**settings)), td3.TD3(CONTINUOUS, td3.Config(**settings))):
        yield agent.head.value(agent.critic(obs, action))
        yield agent.head.value(agent.target_critic(obs, action))


@pytest.mark.parametrize("head", ["two_hot", "c51", "hl_gauss"])
@pytest.mark.parametrize("num_bins", [51, 100, 101])
def test_values_of_an_online_critic_without_bounds_begin_at_zero(head, num_bins):
    torch.manual_seed(0)
    for values in online_critics(head, num_bins):
        assert values.abs().max() < 1e-3


@pytest.mark.parametrize("head", ["two_hot", "c51", "hl_gauss"])
def test_given_bounds_stay_online_as_offline_and_leave_the_critic_as_it_is(head):
    settings = {"value_head": head, "v_min": -3.0, "v_max": 5.0, "num_bins": 17}
    values = np.linspace(-3, 5, 17) if head != "hl_gauss" else -3 + (np.arange(17) + 0.5) * 8 / 17
    for online in (False, True):
        given, critic = value_head(Config(**settings), online), MLP(3, 17)
        before = [parameter.clone() for parameter in critic.parameters()]
        given.init_(critic)
        given.update_support(torch.tensor([[100.0]]), torch.tensor([[True]]), critic)
        np.testing.assert_allclose(given.centers(), values, atol=1e-6)
        assert all(map(torch.equal, before, critic.parameters()))


@pytest.mark.parametrize("head", ["two_hot", "c51", "hl_gauss"])
@pytest.mark.parametrize("algorithm", ["dqn", "sac", "td3", "ppo"])
def test_an_update_with_a_support_that_follows_the_returns_compiles_to_one_graph(algorithm, head):
    module, spec = {"dqn": dqn, "sac": sac, "td3": td3, "ppo": ppo}[algorithm], CONTINUOUS
    obs, action, one = torch.randn(8, 3), torch.rand(8, 2), torch.ones(8)
    batch = Batch(obs, action, one, obs, one > 2, torch.arange(8))
    if algorithm == "dqn":
        spec, batch = DISCRETE, NStepBatch(obs, torch.arange(8) % 4, one, obs, 0.9 * one, torch.arange(8))
    if algorithm == "ppo":
        batch = ppo.Minibatch(obs, action, *(one for _ in range(4)))
    agent = getattr(module, algorithm.upper())(spec, module.Config(value_head=head, hidden=[8]))
    seen(agent.head, 3.0)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        metrics = torch.compile(agent.update, fullgraph=True, backend="eager")(batch)
    assert all(torch.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(("algo", "head"), [("dqn", "hl_gauss"), ("dqn", "c51"), ("ppo", "two_hot")])
def test_a_run_goes_on_where_all_rewards_so_far_are_zero(tmp_path, algo, head):
    """MinAtar Freeway has no rewards until the chicken has crossed all lanes."""
    small = {"learning_starts": 100} if algo == "dqn" else {"num_steps": 64, "minibatches": 2, "epochs": 1}
    run = zoo.train(
        algo, env="minatar/freeway", steps=256, eval_every=256, eval_episodes=1, logger="none",
        run_dir=tmp_path / "run", algo_config={"value_head": head, **small},
    )  # fmt: skip
    assert run.done == 256
