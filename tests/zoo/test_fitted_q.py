"""Fitted Q evaluation estimates the return of the given policy, not that of the data's policy."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.agent import Agent
from zoo.commands.estimate import choice, last_return, ranking
from zoo.data.arrays import Arrays
from zoo.data.dataset import Dataset
from zoo.errors import UsageError
from zoo.models.fitted_q import Estimate, FittedQ
from zoo.spec import Spec

STATES, ACTIONS, DISCOUNT, END = 5, 2, 0.9, 4
POLICY = np.array([1, 1, 0, 1, 0])
CPU = torch.device("cpu")
SPEC = Spec((STATES,), num_actions=ACTIONS)
random = np.random.default_rng(0)
TRANSITION = random.dirichlet(np.full(STATES, 0.5), (STATES, ACTIONS))  # [S, A, S]
REWARD = random.uniform(-1, 2, (STATES, ACTIONS))


class Fixed(Agent):
    """An agent with a fixed action in each state."""

    def __init__(self, policy=POLICY):
        super().__init__()
        self.policy = torch.as_tensor(policy)

    def act(self, obs, explore=False):
        return self.policy[obs.argmax(-1)]


def episodes(count):
    """Episodes of uniform actions from state 0, until the last state or for 30 steps."""
    rows = []
    for _ in range(count):
        state = 0
        for step in range(30):
            action = random.integers(ACTIONS)
            following = random.choice(STATES, p=TRANSITION[state, action])
            rows.append((state, action, REWARD[state, action], following, following == END, step == 29))
            if following == END:
                break
            state = following
    states, action, reward, following, terminated, last = (np.array(column) for column in zip(*rows, strict=True))
    hot = np.eye(STATES, dtype=np.float32)
    return Arrays(hot[states], action, reward.astype(np.float32), hot[following], terminated, last & ~terminated)


def value_of(policy):
    """A policy's value, by the linear equations of a Markov chain that ends in the last state."""
    states = np.arange(STATES)
    going_on = TRANSITION[states, policy] * (states != END)
    return np.linalg.solve(np.eye(STATES) - DISCOUNT * going_on, REWARD[states, policy])[0]


def test_the_value_of_another_policy_than_the_datas_within_its_interval():
    torch.manual_seed(0)
    arrays = episodes(600)
    fitted = FittedQ(Fixed(), Dataset(arrays, SPEC, CPU), DISCOUNT, members=5)
    for _ in range(1500):
        fitted.update()
    estimate, expected = fitted.estimate(), value_of(POLICY)
    other = value_of(1 - POLICY)
    assert abs(expected - other) > 1
    assert estimate.value == pytest.approx(expected, abs=0.15)
    assert estimate.low - 0.1 < expected < estimate.high + 0.1
    assert 0 < estimate.high - estimate.low < 1


def test_each_critic_sees_its_own_episodes_alone_and_all_their_transitions_alike():
    torch.manual_seed(0)
    arrays = episodes(8)
    data = Dataset(arrays, SPEC, CPU)
    fitted = FittedQ(Fixed(), data, DISCOUNT, members=3)
    sampled = torch.cat([fitted.sample() for _ in range(400)], 1).numpy()
    for member in range(3):
        expected = np.zeros(len(arrays.reward))
        for episode in fitted.episodes[member]:
            first, length = int(data.episode_starts[episode]), int(data.episode_lengths[episode])
            expected[first : first + length] += 1
        found = np.bincount(sampled[member], minlength=len(expected)) / sampled.shape[1]
        np.testing.assert_allclose(found, expected / expected.sum(), atol=0.01)
        assert not found[expected == 0].any()


def test_an_estimate_is_the_mean_over_each_critics_own_starts_with_a_normal_interval():
    arrays = episodes(8)
    arrays.obs[arrays.episode_starts] = np.eye(STATES, dtype=np.float32)[np.arange(8) % 4]  # several starts
    fitted = FittedQ(Fixed(), Dataset(arrays, SPEC, CPU), DISCOUNT, members=5)
    with torch.no_grad():
        q = fitted.critic(fitted.first_obs, fitted.first_action)[..., 0].double().numpy()
    values = [fitted.scale * np.mean([q[i, e] for e in fitted.episodes[i].tolist()]) for i in range(5)]
    mean, reach = np.mean(values), 1.96 * np.std(values, ddof=1)
    np.testing.assert_allclose(tuple(fitted.estimate()), (mean, mean - reach, mean + reach), rtol=1e-5)


def test_frames_are_refused_in_one_line():
    data = type("Data", (), {"spec": Spec((2, 6, 5), num_actions=2, obs_dtype="uint8")})
    with pytest.raises(UsageError, match="frames"):
        FittedQ(Fixed(), data, DISCOUNT)


def test_goals_are_refused_in_one_line():
    data = type("Data", (), {"spec": Spec((4,), (-1.0,), (1.0,), goal_dim=2)})
    with pytest.raises(UsageError, match="needs rewards, and goals have none"):
        FittedQ(Fixed(), data, DISCOUNT)


def test_values_that_nothing_bounds_are_refused_in_one_line():
    with pytest.raises(UsageError, match=r"needs a discount below 1; algo\.discount=1 bounds no value"):
        FittedQ(Fixed(), type("Data", (), {"spec": Spec((2,), num_actions=2)}), 1.0)


def test_the_command_prints_an_estimate_and_refuses_what_it_cannot_estimate(zoo, finished, trained):
    dataset = str(finished.parent / "none.hdf5")
    result = zoo("eval", finished, "--fqe", "--updates", "20")
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1].startswith("fqe          return ")
    assert "discounted by 0.99" in result.out
    online = trained("sac", "pendulum", "algo.hidden=[16]", "steps=64", "eval_every=64", "algo.learning_starts=32",
                     "algo.batch_size=8", "env.backend=gymnasium")  # fmt: skip
    for arguments, message in (
        ((online, "--fqe"), "did not learn from a dataset. Name one: --fqe --dataset NAME"),
        ((finished, "--updates", "20"), "Add: --fqe"),
        ((finished, "--fqe", "--episodes", "2"), "--episodes is for playing. Leave it out with --fqe."),
        ((finished, "--fqe", "--explore"), "--explore is for playing."),
        ((finished, "--fqe", "--updates", "0"), "--updates 0 must be at least 1."),
        ((finished, "--fqe", "--dataset", dataset), "none.hdf5"),
    ):
        result = zoo("eval", *arguments)
        assert result.code != 0
        assert message in result.err
        assert result.err.count("\n") == 1


def test_a_choice_is_judged_by_rank_correlation_and_by_what_it_costs():
    estimates, returns = np.array([1.0, 4.0, 2.0, 3.0, 0.0]), np.array([10.0, 70.0, 30.0, 90.0, 20.0])
    made = choice(estimates, returns)
    differences = np.array([1, 4, 2, 3, 0]) - np.array([0, 3, 2, 4, 1])  # of the ranks
    assert made.correlation == pytest.approx(1 - 6 * (differences**2).sum() / (5 * 24))  # Spearman's formula
    assert (made.regret, made.spread) == (20, 80)
    assert choice(returns, returns) == pytest.approx((1, 0, 80))
    assert choice(-returns, returns) == pytest.approx((-1, 80, 80))
    assert np.isnan(choice(np.ones(5), returns).correlation)


@pytest.mark.slow
def test_policies_are_ranked_as_their_exact_values_rank_them():
    data = Dataset(episodes(600), SPEC, CPU)
    policies = [np.array([*actions, 0]) for actions in itertools.product(range(ACTIONS), repeat=END)]
    estimates = []
    for policy in policies:  # all of them: nothing follows the last state
        torch.manual_seed(0)
        fitted = FittedQ(Fixed(policy), data, DISCOUNT, members=2)
        for _ in range(800):
            fitted.update()
        estimates.append(fitted.estimate().value)
    values = np.array([value_of(policy) for policy in policies])
    made = choice(np.array(estimates), values)
    print(f"{len(policies)} policies: rank correlation {made.correlation:.3f}, regret {made.regret / made.spread:.1%}")
    assert made.correlation > 0.9
    assert made.regret < 0.1 * made.spread


def test_no_policy_is_estimated_before_all_can_be(zoo, trained, pendulum_file):
    settings = ("pendulum", f"dataset={pendulum_file}", "steps=20", "eval_every=20", "algo.hidden=[16]")
    first, last = trained("bc", *settings), trained("rcsl", *settings)
    result = zoo("eval", first, last, "--fqe", "--updates", "5")
    assert result.code == 2
    assert "this one has a memory" in result.err
    assert "fqe   " not in result.out


def test_a_ranking_begins_with_the_largest_estimate_and_judges_runs_that_were_played_alone():
    paths = [Path("runs/a"), Path("runs/b"), Path("runs/unplayed"), Path("runs/c")]
    estimates = [Estimate(value, value - 1, value + 1) for value in (10.0, 30.0, 40.0, 20.0)]
    lines = ranking(paths, estimates, [5.0, 6.0, np.nan, 10.0])
    assert [line.split()[0] for line in lines[:5]] == ["run", "runs/unplayed", "runs/b", "runs/c", "runs/a"]
    assert lines[1].endswith("[39.00, 41.00]")
    assert lines[2].split()[-1] == "6.00"
    assert lines[-2] == "Spearman's rank correlation with the returns of 3 runs: 0.50"
    assert lines[-1] == "regret of the first: 4.00, 80% of best less worst"
    assert len(ranking(paths[:2], estimates[:2], [5.0, np.nan])) == 3


def test_the_last_return_is_that_of_the_last_evaluation_that_was_not_cut_short(tmp_path):
    assert np.isnan(last_return(tmp_path))
    (tmp_path / "evaluations.csv").write_text("step,return_mean,score\n10,5.0,1.0\n20,7.0,2.0\n30,")
    assert last_return(tmp_path) == 7.0


def test_policies_of_other_makers_are_ranked_beside_runs(zoo, finished, trained, tmp_path):
    online = trained("sac", "pendulum", "algo.hidden=[16]", "steps=64", "eval_every=64", "algo.learning_starts=32",
                     "algo.batch_size=8", "env.backend=gymnasium")  # fmt: skip
    assert zoo("export", online, "--format", "sb3", "--out", tmp_path / "policy.zip").code == 0
    dataset = json.loads((finished / "run.json").read_text())["config"]["dataset"]
    arguments = ("--fqe", "--updates", "5", "--dataset", dataset)
    result = zoo("eval", finished, tmp_path / "policy.zip", *arguments, "--env", "pendulum")
    assert result.code == 0, result.err
    assert str(tmp_path / "policy.zip") in result.out
    assert "is for ZIP files with --fqe" in zoo("eval", finished, *arguments, "--env", "pendulum").err


def test_the_command_ranks_several_runs_and_refuses_those_that_cannot_be_compared(zoo, finished, train, trained):
    other = train("other", "algo=bc", "steps=20", "eval_every=20", "eval_episodes=2", "logger=none")
    result = zoo("eval", finished, other, "--fqe", "--updates", "20")
    assert result.code == 0, result.err
    alone = zoo("eval", other, "--fqe", "--updates", "20", "--seed", "3")  # the first run's seed
    estimate = alone.out.splitlines()[-1].split()[2]
    (row,) = [line for line in result.out.splitlines() if line.startswith(str(other))]
    assert row.split()[1] == estimate
    last = (other / "evaluations.csv").read_text().splitlines()[-1].split(",")[1]
    assert row.split()[-1] == f"{float(last):.2f}"
    assert result.out.splitlines()[-2].startswith("Spearman's rank correlation with the returns of 2 runs: ")
    online = trained("sac", "pendulum", "algo.hidden=[16]", "steps=64", "eval_every=64", "algo.learning_starts=32",
                     "algo.batch_size=8", "env.backend=gymnasium")  # fmt: skip
    for arguments, message in (
        ((finished, other), "one run is played at a time; several are ranked without playing. Add: --fqe"),
        ((finished, online, "--fqe"), "did not learn from a dataset. Name one"),
    ):
        result = zoo("eval", *arguments)
        assert result.code == 2
        assert message in result.err
        assert result.err.count("\n") == 1
