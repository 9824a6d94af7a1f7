"""Malformed data is refused or reported in one line."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from zoo.data.arrays import Arrays, fitted
from zoo.data.catalog import Source
from zoo.data.dataset import Dataset
from zoo.data.load import load_arrays, missing_ends
from zoo.envs import EnvConfig
from zoo.errors import UsageError
from zoo.spec import Spec

from .conftest import D4RL_NAMES, episodes, write_d4rl

SPEC = Spec((3,), (-2.0,), (2.0,))
QUICK = ("steps=4", "eval_every=4", "eval_episodes=1", "logger=none", "algo.hidden=[8]", "algo.batch_size=8")


def unmarked() -> Arrays:
    """Four episodes. The file marks the end of only one of them."""
    arrays = episodes([40, 30, 50, 20], [False] * 4)
    return arrays._replace(truncated=np.arange(140) == 139)


NEEDS_ENDS = {
    "normalize_reward": lambda data: data.normalize_reward(),
    "value_bounds": lambda data: data.value_bounds(0.99),
    "return_to_go": lambda data: data.return_to_go(),
    "timesteps": lambda data: data.timesteps(),
    "next_action": lambda data: data.next_action(),
    "top_episodes": lambda data: data.top_episodes(0.5),
    "episode_returns": lambda data: data.episode_returns,
}


@pytest.mark.parametrize("use", NEEDS_ENDS.values(), ids=list(NEEDS_ENDS))
def test_nothing_that_depends_on_where_episodes_end_takes_data_that_does_not_say(use):
    arrays = unmarked()
    missing = missing_ends(arrays, [Source("mine", "hdf5", Path())], "mine", EnvConfig("Pendulum-v1", "pendulum"))
    assert "3 times a successor is not the next row" in missing
    data = Dataset(arrays, SPEC, torch.device("cpu"), missing_ends=missing)
    with pytest.raises(UsageError, match="zoo data import FILE pendulum/NAME"):
        use(data)
    use(Dataset(episodes([40, 30], [False, True]), SPEC, torch.device("cpu")))
    assert len(data.sample(16).index) == 16  # single transitions are still correct


WITH_ENDS = {
    "rebrac": ("algo=rebrac",),
    "reward normalization": ("algo=td3_bc", "algo.normalize_reward=true"),
    "a support from the data": ("algo=cql", "algo.value_head=hl_gauss", "algo.num_actions=2"),
    "the best episodes": ("algo=bc", "algo.top_fraction=0.5"),
    "rcsl": ("algo=rcsl",),
    "a sampler of episodes": ("algo=td3_bc", "sampler=top"),
    "a share in a mixture": ("algo=td3_bc",),
}


@pytest.mark.parametrize(("case", "settings"), WITH_ENDS.items(), ids=list(WITH_ENDS))
def test_a_run_that_needs_the_ends_of_episodes_is_refused_without_them(zoo, tmp_path, case, settings):
    file = write_d4rl(tmp_path / "unmarked.hdf5", unmarked())
    name = f"50%{file}" if "mixture" in case else file
    result = zoo("run", "env=pendulum", f"dataset={name}", *QUICK, *settings)
    assert result.code == 2, result
    assert re.fullmatch(r"zoo: dataset=\S+ does not say where its episodes end: [^\n]+\n", result.err), result.err


def test_a_run_that_needs_no_ends_takes_data_without(zoo, tmp_path):
    file = write_d4rl(tmp_path / "unmarked.hdf5", unmarked())
    for algo in ("td3_bc", "bc", "riql"):
        assert zoo("run", "env=pendulum", f"dataset={file}", f"algo={algo}", *QUICK).code == 0


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "next_observations"])
@pytest.mark.parametrize("dtype", [np.complex64, "S8"])
def test_what_is_not_real_numbers_is_refused(zoo, tmp_path, name, dtype):
    file = tmp_path / "odd.hdf5"
    with h5py.File(file, "w") as out:
        for field, column in zip(D4RL_NAMES, episodes([20, 20], [False, False]), strict=True):
            out[field] = column.astype(dtype) if field == name else column
    result = zoo("run", "env=pendulum", f"dataset={file}", "algo=td3_bc", *QUICK)
    assert result.code == 1, result
    assert re.fullmatch(rf"zoo: [^\n]+ its {name} are of type [^\n]+, not real numbers\n", result.err), result.err


def test_actions_outside_the_bounds_are_counted_in_one_line(zoo, tmp_path):
    arrays = episodes([50, 50], [False, False])
    action = arrays.action.copy()
    action[:7] = 100.0
    action[8] = 2.000001  # rounding
    file = write_d4rl(tmp_path / "wide.hdf5", arrays._replace(action=action))
    result = zoo("run", "env=pendulum", f"dataset={file}", "algo=td3_bc", *QUICK)
    assert result.code == 0, result.err
    (line,) = (line for line in result.out.splitlines() if "bounds" in line)
    assert "7 of 100 actions lie outside the bounds of Pendulum-v1" in line
    assert "100;" in line
    wrong = zoo("data", "verify", file, "--env", "pendulum")
    assert wrong.code == 1
    assert "7 actions outside the bounds" in wrong.err


def test_targets_that_riql_would_clip_are_reported(zoo, tmp_path):
    arrays = episodes([50, 50], [False, False])
    file = write_d4rl(tmp_path / "costly.hdf5", arrays._replace(reward=np.full(100, -8.0, np.float32)))
    result = zoo("run", "env=pendulum", f"dataset={file}", "algo=riql", *QUICK)
    assert result.code == 0, result.err
    (line,) = (line for line in result.out.splitlines() if "clipped" in line)
    assert "from -800 to -800" in line
    assert "algo.target_bounds=[-8" in line
    assert (
        "clipped"
        not in zoo("run", "env=pendulum", f"dataset={file}", "algo=riql", *QUICK, "algo.target_bounds=[-801,0]").out
    )


def test_successors_of_another_shape_or_type_are_refused(zoo, tmp_path):
    for change in (lambda x: x[:, :1], lambda x: np.pad(x, ((0, 0), (0, 1))), lambda x: x[:, None]):
        arrays = episodes([40, 30], [False, True])
        file = write_d4rl(tmp_path / "odd.hdf5", arrays._replace(next_obs=change(arrays.next_obs)))
        for command in (
            ("run", "env=pendulum", "algo=td3_bc", f"dataset={file}", *QUICK),
            ("data", "verify", file, "--env", "pendulum"),
        ):
            result = zoo(*command)
            assert result.code == 1, result
            assert re.fullmatch(r"zoo: [^\n]*observations are float32 \[70, 3\], its next_obs[^\n]+\n", result.err)


def test_actions_are_of_the_environments_type_whatever_the_files():
    arrays = episodes([40, 30], [False, True])
    env = EnvConfig("Pendulum-v1", "pendulum")
    whole = arrays._replace(action=np.sign(arrays.action).astype(np.int8))
    for given in (whole, whole._replace(action=whole.action.astype(np.float64))):
        found = fitted(given, SPEC, "mine", env).action
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, whole.action)
    discrete, cartpole = Spec((3,), num_actions=3), EnvConfig("CartPole-v1", "cartpole")
    counted = arrays._replace(action=np.arange(70) % 3)
    found = fitted(counted._replace(action=counted.action.astype(np.float32)), discrete, "mine", cartpole).action
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, counted.action)
    column = fitted(counted._replace(action=counted.action[:, None]), discrete, "mine", cartpole).action
    assert column.shape == (70,)
    np.testing.assert_array_equal(column, counted.action)
    with pytest.raises(UsageError, match=r"are whole numbers from 0 to 2\. 2 transitions have others"):
        fitted(counted._replace(action=np.where(np.arange(70) < 2, 0.4, counted.action)), discrete, "mine", cartpole)


def test_how_long_a_run_plays_does_not_change_what_was_recorded(tmp_path):
    rows = episodes([200, 200], [False, False])
    columns = dict(zip(("observations", "actions", "rewards", "next_observations", "terminals"), rows, strict=False))
    with h5py.File(tmp_path / "old.hdf5", "w") as file:  # without next observations and ends, like D4RL's first files
        file.update({name: column for name, column in columns.items() if name != "next_observations"})
    ends = rows.truncated | rows.terminated
    names = ("obs", "action", "reward", "next_obs")
    np.savez(tmp_path / "neorl2.npz", done=ends, **{name: getattr(rows, name) for name in names})
    for name, lengths in (("old.hdf5", [199, 199]), ("neorl2.npz", [200, 200])):
        for limit in (None, 400):
            env = EnvConfig("Pendulum-v1", "pendulum", max_episode_steps=limit)
            arrays, _ = load_arrays(env, str(tmp_path / name))
            assert arrays.episode_lengths.tolist() == lengths
            assert not arrays.terminated.any()


def test_episodes_may_be_as_long_as_the_run_asks_for(zoo, tmp_path):
    file = write_d4rl(tmp_path / "long.hdf5", episodes([400, 400], [False, False]))
    run = ("run", "env=pendulum", f"dataset={file}", "algo=td3_bc", "sampler=return", *QUICK)
    assert "end after 200. Give the file timeouts; if they do last longer: env.max_episode_steps=400" in zoo(*run).err
    for limit in (400, 500):
        assert zoo(*run, f"env.max_episode_steps={limit}").code == 0
    assert "end after 200" in zoo(*run, "env.max_episode_steps=50").err  # a shorter limit does not cut the data
    assert zoo("data", "import", file, "pendulum/long").code == 0
    assert zoo("run", "env=pendulum", "dataset=long", "algo=td3_bc", "sampler=return", *QUICK).code == 0
    assert "lengths from 400 to 400 steps" in zoo("data", "verify", "pendulum/long").out


def test_a_run_in_another_environment_than_the_datas_says_so(zoo, tmp_path):
    file = write_d4rl(tmp_path / "mine.hdf5", episodes([40, 30], [False, True]))
    assert zoo("data", "import", file, "pendulum/mine").code == 0
    run = ("run", "env=pendulum", "dataset=mine", "algo=td3_bc", *QUICK)
    assert "recorded in" not in zoo(*run).out
    metadata = tmp_path / "store" / "zoo" / "pendulum" / "mine-v0" / "data" / "metadata.json"
    metadata.write_text(metadata.read_text().replace("Pendulum-v1", "Pendulum-v0"))
    assert "zoo/pendulum/mine-v0 was recorded in Pendulum-v0, and this run is in Pendulum-v1" in zoo(*run).out
    assert "recorded in Pendulum-v0, not in Pendulum-v1" in zoo("data", "verify", "pendulum/mine").out
