"""RCSL: its loss, the target return while it acts, and that the policy follows the target return."""

import shutil

import h5py
import numpy as np
import pytest
import torch

import zoo
from zoo.algos import mbrcsl
from zoo.algos.mbrcsl import MBRCSL
from zoo.algos.rcsl import RCSL, Config, ReturnBatch
from zoo.cli import main
from zoo.data.arrays import Arrays
from zoo.data.d4rl import read_d4rl
from zoo.data.dataset import Dataset
from zoo.errors import UsageError
from zoo.returns import ReturnToGo


def mbrcsl_with(**settings) -> mbrcsl.Config:
    return mbrcsl.Config(**settings, dynamics_hidden=[8] * 4, behavior_hidden=[8])


BOTH = pytest.mark.parametrize(("agent_class", "config_class"), [(RCSL, Config), (MBRCSL, mbrcsl_with)])


@BOTH
def test_loss_is_the_squared_error_of_the_policy_at_the_scaled_return(spec, network, agent_class, config_class):
    agent = agent_class(spec, config_class(hidden=[8, 8])).double()
    agent.goal.set_target(None, torch.tensor([-10.0, 3.0]))
    obs, action, left = (
        torch.randn(3, 32, 3, dtype=torch.float64)[0],
        torch.randn(32, 2).double(),
        torch.randn(32).double(),
    )
    inputs = np.concatenate([obs.numpy(), left.numpy()[:, None] / 10], 1)
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    unit = (action.numpy() - (low + high) / 2) / ((high - low) / 2)
    expected = np.square(network(agent.actor, inputs) - unit).mean()
    found = agent.update(ReturnBatch(obs, action, left))["actor_loss"]
    np.testing.assert_allclose(float(found), expected, rtol=1e-12)


@BOTH
def test_what_was_paid_is_no_longer_asked_for(spec, agent_class, config_class):
    agent = agent_class(spec, config_class(hidden=[8]))
    agent.actor[-1].weight.data *= 10  # or it hardly depends on anything yet; times 1,000 it is at its bounds
    agent.goal.set_target(2.0, torch.tensor([0.0, 4.0]))
    obs, reward = torch.randn(5, 3), torch.randn(5)
    agent.begin(5)
    first = agent.act(obs)
    agent.observe(obs, first, reward)
    after = agent.act(obs)
    agent.goal.set_target(3.0, torch.tensor([0.0, 4.0]))
    agent.begin(5)
    agent.observe(obs, first, reward + 1)
    torch.testing.assert_close(agent.act(obs), after)  # 3 - (r + 1) is 2 - r
    assert (first - after).abs().max() > 1e-4


@pytest.mark.parametrize("algo", ["rcsl", "dt", "mbrcsl"])
def test_a_dataset_that_does_not_say_where_its_episodes_end_is_refused(algo, pendulum_file, tmp_path, capsys):
    for name, says in (("all", "times a successor is not the next row"), ("one", "one has 400 steps, and those of")):
        shutil.copy(pendulum_file, tmp_path / f"{name}.hdf5")
        with h5py.File(tmp_path / f"{name}.hdf5", "r+") as file:
            file["timeouts"][:] = False
            if name == "one":  # as of one long episode
                for key in file:
                    rows = file[key][:400]
                    del file[key]
                    file[key] = rows
                file["next_observations"][:-1] = file["observations"][1:]
        settings = [f"dataset={tmp_path / name}.hdf5", f"run_dir={tmp_path / 'run'}", "logger=none", "steps=1"]
        assert main(["run", f"algo={algo}", "env=pendulum", *settings]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_each_transition_is_learned_from_with_what_was_still_to_come_of_its_episode(
    pendulum_file, tmp_path, monkeypatch
):
    batches: list[ReturnBatch] = []
    monkeypatch.setattr(RCSL, "update", lambda self, batch: batches.append(batch) or {"actor_loss": torch.zeros(())})
    settings = {"eval_episodes": 1, "logger": "none", "run_dir": str(tmp_path / "run"), "eval_every": 3}
    zoo.train("rcsl", env="pendulum", dataset=str(pendulum_file), steps=3, **settings)
    data = read_d4rl(pendulum_file, 200)
    to_come = np.concatenate([part[::-1].cumsum()[::-1] for part in np.split(data.reward, data.episode_starts[1:])])
    for batch in batches:
        for obs, action, left in zip(*(field[:20].numpy() for field in batch), strict=True):
            (found,) = np.flatnonzero((data.obs == obs).all(1))
            np.testing.assert_array_equal(data.action[found], action)
            assert left == pytest.approx(to_come[found], abs=0.01)


@pytest.mark.parametrize(("agent_class", "config"), [(RCSL, Config()), (MBRCSL, mbrcsl.Config())])
def test_begins_close_to_no_action_whatever_it_is_asked_for(spec, agent_class, config):
    last = agent_class(spec, config).actor[-1]
    assert not last.bias.any()
    bound = 0.01 * (6 / (1024 + 2)) ** 0.5  # Glorot's, times the gain
    assert 0.9 * bound < last.weight.abs().max() <= bound
    np.testing.assert_allclose(last.weight.std().item(), bound / 3**0.5, rtol=0.05)


def test_return_to_go_is_a_sum_to_the_end_of_the_episode(spec):
    rng = np.random.default_rng(0)
    size, ends = 60, [4, 5, 30, 59]
    terminated, truncated = np.zeros((2, size), bool)
    terminated[ends[:2]], truncated[ends[2:]] = True, True
    reward = rng.normal(size=size).astype(np.float32)
    obs = rng.normal(size=(size, 3)).astype(np.float32)
    arrays = Arrays(obs, rng.normal(size=(size, 2)).astype(np.float32), reward, obs, terminated, truncated)
    found = Dataset(arrays, spec, torch.device("cpu")).return_to_go()
    start = 0
    for end in ends:
        for t in range(start, end + 1):
            assert float(found[t]) == pytest.approx(sum(reward[t : end + 1]), abs=1e-5)
        start = end + 1


def test_is_asked_for_the_target_less_what_has_been_paid():
    goal = ReturnToGo()
    goal.set_target(10.0, torch.tensor([0.0, 8.0]))
    goal.begin(2)
    goal.subtract(torch.tensor([1.0, 2.0]))
    goal.subtract(torch.tensor([0.5, -1.0]))
    assert goal.remaining(2).tolist() == [8.5, 9.0]
    goal.begin(2)
    assert goal.remaining(2).tolist() == [10.0, 10.0]
    assert goal.remaining(3).tolist() == [10.0] * 3  # other episodes than those that have begun


def test_aims_at_the_best_episode_of_the_data_by_default():
    goal, returns = ReturnToGo(), torch.tensor([3.0, 12.0, 7.0])
    goal.set_target(None, returns)
    assert float(goal.target) == 12
    goal.set_target(20.0, returns)
    assert float(goal.target) == 20


def test_returns_are_in_units_of_the_largest_by_default():
    goal = ReturnToGo()
    goal.set_target(None, torch.tensor([-30.0, 12.0]))
    assert float(goal.scale) == 30
    goal.set_target(None, torch.tensor([-30.0, 12.0]), scale=5.0)
    assert float(goal.scale) == 5
    goal.set_target(None, torch.tensor([0.0, 0.0]))
    assert float(goal.scale) == 1  # nothing to scale by


@pytest.mark.parametrize("target", [1e4, -1e4, float("inf"), float("nan")])
def test_a_target_far_outside_the_data_is_refused(target):
    with pytest.raises(UsageError, match=r"far from what the episodes of the data return, 3 to 12"):
        ReturnToGo().set_target(target, torch.tensor([3.0, 12.0]))


@pytest.mark.parametrize(("target", "taken"), [(999, True), (1199, True), (801, True), (1201, False), (799, False)])
def test_near_is_near_where_all_returns_are_the_same_too(target, taken):
    goal, same = ReturnToGo(), torch.tensor([1000.0, 1000.0])
    if taken:
        goal.set_target(target, same)
        assert float(goal.target) == target
    else:
        with pytest.raises(UsageError, match="far from what"):
            goal.set_target(target, same)


@BOTH
def test_does_what_it_is_asked_for(spec, agent_class, config_class):
    """Half of the data has one action and returns 0, and half has another action and returns 1."""
    torch.manual_seed(0)
    agent = agent_class(spec, config_class(hidden=[32], lr=1e-2, weight_decay=0.0))
    good, poor = torch.tensor([2.0, -1.2]), torch.tensor([0.0, -1.8])
    for _ in range(500):
        got = torch.randint(2, (64,)).float()
        action = torch.where(got[:, None] == 1, good, poor)
        agent.update(ReturnBatch(torch.randn(64, 3), action, got))
    for target, action in ((1.0, good), (0.0, poor)):
        agent.goal.set_target(target, torch.tensor([0.0, 1.0]))
        agent.begin(50)
        torch.testing.assert_close(agent.act(torch.randn(50, 3)), action.expand(50, 2), atol=0.1, rtol=0)
