"""MBRCSL: its imagined episodes, which of them it keeps, and the data of its policy."""

import json
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from zoo import cli
from zoo.algos.mbrcsl import MBRCSL, Config
from zoo.data.d4rl import read_d4rl
from zoo.errors import RunError
from zoo.models.imagined import Imagined, Kept
from zoo.spec import Spec

SMALL = {"hidden": [8], "dynamics_hidden": [8] * 4, "behavior_hidden": [8], "diffusion_steps": 2}


@pytest.fixture
def agent() -> MBRCSL:
    torch.manual_seed(0)
    return MBRCSL(Spec((3,), (-1.0, -1.0), (1.0, 1.0)), Config(**SMALL))


def test_an_imagined_episode_is_a_chain_of_the_models_steps(agent):
    imagined = agent.imagine(torch.randn(5, 3), 7, lambda next_obs: torch.zeros(len(next_obs), dtype=torch.bool))
    assert imagined.obs.shape == imagined.next_obs.shape == (5, 7, 3)
    assert torch.equal(imagined.obs[:, 1:], imagined.next_obs[:, :-1])
    assert imagined.running.all()
    torch.testing.assert_close(imagined.returns(), imagined.reward.double().sum(1))


def test_nothing_is_paid_or_kept_after_the_end_of_an_imagined_episode(agent):
    calls = iter(range(7))

    def first_ends_after_three_steps(next_obs):
        ended = torch.zeros(len(next_obs), dtype=torch.bool)
        ended[0] = next(calls) == 2
        return ended

    imagined = agent.imagine(torch.randn(2, 3), 7, first_ends_after_three_steps)
    assert imagined.running.sum(1).tolist() == [3, 7]
    assert float(imagined.returns()[0]) == pytest.approx(float(imagined.reward[0, :3].double().sum()))
    arrays = imagined.arrays()
    assert arrays.episode_lengths.tolist() == [3, 7]
    assert arrays.terminated.tolist() == [False, False, True] + [False] * 7
    assert arrays.truncated.tolist() == [False] * 9 + [True]
    np.testing.assert_array_equal(arrays.reward[:3], imagined.reward[0, :3])
    np.testing.assert_array_equal(arrays.obs[3:], imagined.obs[1])


REWARDS = (0.0, 3.0)


def episodes(returns: list[float]) -> Imagined:
    """Episodes of two steps, with a reward at the second one."""
    count = len(returns)
    reward = torch.zeros(count, 2)
    reward[:, 1] = torch.tensor(returns)
    obs, flags = torch.randn(count, 2, 3), torch.zeros(count, 2, dtype=torch.bool)
    return Imagined(obs, torch.rand(count, 2, 2), reward, obs, flags, ~flags)


def test_only_episodes_above_the_threshold_are_kept_and_none_that_is_not_finite():
    kept = Kept(1.0, REWARDS)
    metrics = kept.add(episodes([0.5, 1.0, 1.5, float("nan"), float("inf"), 2.0]))
    assert len(kept) == 2
    assert kept.arrays().episode_returns.tolist() == [1.5, 2.0]
    assert (int(metrics["kept"]), int(metrics["broken"])) == (2, 2)
    blown_up = episodes([5.0])
    blown_up.next_obs[0, 0] = torch.nan
    kept.add(blown_up)
    assert len(kept) == 2


@pytest.mark.parametrize(("rewards", "low", "high"), [((0.0, 3.0), -3, 6), ((-16.0, -1.0), -32, 15), ((0, 0), -1, 1)])
def test_what_pays_far_from_the_datas_rewards_is_broken_and_said(rewards, low, high):
    kept = Kept(-100.0, rewards)
    metrics = kept.add(episodes([low - 0.1, low, high, high + 0.1, 1e9]))
    assert kept.arrays().episode_returns.tolist() == [low, high]
    assert int(metrics["broken"]) == 3
    assert "3 nothing that the data's rewards could" in kept.summary()


def test_a_model_that_diverges_in_imagination_is_said_to():
    kept = Kept(1.0, REWARDS)
    kept.add(episodes([1e9, -1e9, 0.5]))
    with pytest.raises(RunError, match=r"the dynamics model diverges in what it imagines: .*algo\.dynamics_epochs"):
        kept.arrays()


def test_what_is_kept_survives_a_checkpoint():
    kept, other = Kept(1.0, REWARDS), Kept(1.0, REWARDS)
    other.load_state_dict(kept.state_dict())
    assert len(other) == 0
    for returns in ([0.5, 1.5], [3.0], [0.1]):
        kept.add(episodes(returns))
    other.load_state_dict(kept.state_dict())
    for one, same in zip(kept.arrays(), other.arrays(), strict=True):
        np.testing.assert_array_equal(one, same)
    assert kept.summary() == other.summary()


def test_where_none_beats_the_data_it_says_what_was_imagined_and_what_to_change():
    kept = Kept(10.0, REWARDS)
    kept.add(episodes([1.0, 2.0, 3.0]))
    with pytest.raises(
        RunError, match=r"none of 3 imagined episodes returns more than 10: .*3 at most.*algo\.min_return"
    ):
        kept.arrays()


BATCHES: list[Any] = []


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, pendulum_file):
    """A finished run on Pendulum that keeps about half of what it imagines; its batches are in `BATCHES`."""
    run_dir = tmp_path_factory.mktemp("mbrcsl") / "run"
    settings = [
        "algo.hidden=[16]", "algo.batch_size=32", "algo.dynamics_hidden=[64,64,64,64]", "algo.dynamics_epochs=60",
        "algo.behavior_hidden=[16]", "algo.behavior_epochs=5", "algo.diffusion_steps=3", "algo.min_return=-1200",
        "algo.rollouts=20", "algo.rollout_batch=10", "steps=50", "eval_every=50", "eval_episodes=2",
    ]  # fmt: skip
    files = [f"dataset={pendulum_file}", f"run_dir={run_dir}", "logger=none"]
    update = MBRCSL.update
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MBRCSL, "update", lambda agent, batch: (BATCHES.append(batch), update(agent, batch))[1])
        assert cli.main(["run", "algo=mbrcsl", "env=pendulum", "compile=false", *settings, *files]) == 0
    return run_dir


def test_the_policy_learns_with_the_rewards_that_were_still_to_come(run_dir):
    kept = read_d4rl(run_dir / "rollouts.hdf5", 200)
    episodes = np.split(kept.reward, kept.episode_starts[1:])
    to_come = np.concatenate([reward[::-1].cumsum()[::-1] for reward in episodes])
    assert len(BATCHES) == 50
    for obs, left in zip(BATCHES[0].obs.numpy(), BATCHES[0].return_to_go.numpy(), strict=True):
        assert np.isclose(to_come[(kept.obs == obs).all(1)], left, rtol=1e-4, atol=0.01).any()


def test_the_behaviour_is_cloned_from_normalized_observations(run_dir, pendulum_file):
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)["tracked"]["agent"]
    mean = read_d4rl(pendulum_file, 200).obs.mean(0)
    np.testing.assert_allclose(state["behavior.normalizer.mean"], mean, rtol=1e-3, atol=1e-4)


def test_without_a_bound_it_keeps_what_is_better_than_the_best_of_the_data(pendulum_file, tmp_path, monkeypatch):
    thresholds = []

    class Recorded(Kept):
        def __init__(self, threshold, *rest):
            thresholds.append(threshold)
            super().__init__(threshold, *rest)
            raise KeyboardInterrupt

    monkeypatch.setattr("zoo.algos.mbrcsl.Kept", Recorded)
    files = [f"dataset={pendulum_file}", f"run_dir={tmp_path / 'run'}", "logger=none"]
    assert cli.main(["run", "algo=mbrcsl", "env=pendulum", *files]) != 0
    assert thresholds == [pytest.approx(read_d4rl(pendulum_file, 200).episode_returns.max())]


def test_the_policy_is_asked_for_the_best_that_was_imagined(run_dir):
    kept = read_d4rl(run_dir / "rollouts.hdf5", 200)
    assert len(kept.episode_starts) >= 20
    assert (kept.episode_returns > -1200).all()
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)["tracked"]["agent"]
    assert float(state["goal.target"]) == pytest.approx(kept.episode_returns.max())


def test_imagined_episodes_begin_like_real_ones(run_dir, pendulum_file):
    """While errors are small, the cosine and sine of the angle are on a circle, and rewards follow from the state."""
    kept, real = read_d4rl(run_dir / "rollouts.hdf5", 200), read_d4rl(pendulum_file, 200)
    early = np.arange(len(kept.reward)) % 200 < 10
    obs, action, reward, next_obs = (field[early] for field in kept[:4])
    assert np.abs(np.hypot(next_obs[:, 0], next_obs[:, 1]) - 1).mean() < 0.15
    angle = np.arctan2(obs[:, 1], obs[:, 0])
    paid = -(angle**2 + 0.1 * obs[:, 2] ** 2 + 0.001 * action[:, 0] ** 2)
    assert np.corrcoef(paid, reward)[0, 1] > 0.95
    assert np.abs(kept.action).max() <= 2
    assert set(map(tuple, kept.obs[::200])) <= set(map(tuple, real.obs[real.episode_starts]))


def test_each_stage_leaves_a_row_a_pass_and_the_time_it_took(run_dir):
    stages = json.loads((run_dir / "run.json").read_text())["stages"]
    assert list(stages) == ["dynamics", "behavior", "rollouts"]
    for name, stage in stages.items():
        assert len((run_dir / f"{name}.csv").read_text().splitlines()) == stage["passes"] + 1
        assert stage["seconds"] > 0


def test_a_stage_logs_its_own_metrics_and_none_of_those_before(run_dir):
    logs = ("dynamics", "behavior", "rollouts", "metrics")
    of = {log: set((run_dir / f"{log}.csv").read_text().split("\n")[0].split(",")) for log in logs}
    assert of["behavior"] == {"step", "loss", "seconds"}
    assert {log for log in logs if "loss" in of[log]} == {"dynamics", "behavior"}
    assert {log for log in logs if "holdout_error" in of[log]} == {"dynamics"}


def test_what_was_imagined_is_a_dataset_like_any_other(run_dir, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["data", "show", str(run_dir / "rollouts.hdf5"), "--env", "pendulum"]) == 0
    assert "imagined by mbrcsl" in capsys.readouterr().out
    with h5py.File(run_dir / "rollouts.hdf5") as file:
        assert set(file) >= {"observations", "actions", "rewards", "next_observations", "terminals", "timeouts"}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("algo.min_return=1e6", "none of 20 imagined episodes returns more than 1e+06"),
        ("algo.dynamics_lr=1e12", "the dynamics model diverged"),
        ("algo.elites=8", "algo.elites=8 must lie between 1 and algo.members=7"),
        ("algo.rollouts=0", "algo.rollouts=0 must be at least 1"),
        ("algo.rollout_rounds=0", "algo.rollout_rounds=0 must be at least 1"),
        ("algo.behavior_hidden=[0]", "algo.behavior_hidden=[0] must hold widths of at least 1"),
        ("algo.dynamics_hidden=[8,8,8,0]", "algo.dynamics_hidden=[8, 8, 8, 0] must hold widths of at least 1"),
        ("algo.target_return=1e9", "algo.target_return=1e+09 is far from what 200 steps of the data's rewards could"),
        ("algo.target_return=1500", "algo.target_return=1500 is far from what the imagined episodes return"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(pendulum_file, tmp_path, capsys, setting, words):
    settings = [
        "algo.hidden=[8]", "algo.batch_size=32", "algo.dynamics_hidden=[32,32,32,32]", "algo.dynamics_epochs=8",
        "algo.behavior_hidden=[8]", "algo.behavior_epochs=1", "algo.diffusion_steps=1", "algo.rollout_batch=10",
        "algo.rollout_rounds=2",
    ]  # fmt: skip
    settings += ["algo.min_return=-1500"] * (not setting.startswith("algo.min_return"))
    files = [f"dataset={pendulum_file}", f"run_dir={tmp_path / 'run'}", "logger=none", "eval_episodes=1", "steps=1"]
    assert cli.main(["run", "algo=mbrcsl", "env=pendulum", *settings, setting, *files]) in (1, 2)
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
