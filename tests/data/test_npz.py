"""Reads NumPy archives of NeoRL-2, of OGBench and with D4RL's fields, and compares with loops over their rows."""

from pathlib import Path

import numpy as np
import pytest

from zoo.data.npz import read_npz

from .conftest import D4RL_NAMES, episodes, same, write_d4rl
from .test_commands import assert_one_line

LIMIT = 5  # steps after which the imagined environment truncates


def write(path: Path, **columns: np.ndarray) -> Path:
    np.savez(path, **columns)
    return path


@pytest.mark.parametrize("index", [True, False])
def test_neorl2s_done_is_a_truncation_at_the_time_limit_alone(tmp_path, index) -> None:
    rows = episodes([5, 3, 5, 2], [False, True, False, True])
    extra = {"index": rows.episode_starts} if index else {}
    path = write(
        tmp_path / "data.npz", obs=rows.obs.astype(float), next_obs=rows.next_obs, action=rows.action,
        reward=rows.reward[:, None], done=(rows.terminated | rows.truncated)[:, None].astype(float), **extra,
    )  # fmt: skip
    assert same(read_npz(path, LIMIT), rows)


def test_neorl2s_index_ends_trajectories_that_nothing_else_ends(tmp_path) -> None:
    rows = episodes([4, 3, 2], [False, False, False])
    path = write(
        tmp_path / "data.npz", obs=rows.obs, next_obs=rows.next_obs, action=rows.action, reward=rows.reward,
        done=np.zeros(9, bool), index=rows.episode_starts,
    )  # fmt: skip
    assert same(read_npz(path, LIMIT), rows)


def test_where_neorl2_says_truncated_its_done_is_a_termination_whatever_the_length(tmp_path) -> None:
    rows = episodes([LIMIT, 3, 2, LIMIT + 2], [True, False, True, False])
    path = write(
        tmp_path / "data.npz", obs=rows.obs, next_obs=rows.next_obs, action=rows.action, reward=rows.reward,
        done=rows.terminated.astype(float), truncated=rows.truncated[:, None],
    )  # fmt: skip
    assert same(read_npz(path, LIMIT), rows)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ([0, -2, 3], "its index names row -2, and it has rows 0 to 4"),
        ([0, 3, 7], "its index names row 7, and it has rows 0 to 4"),
        ([0.0, np.nan], "its index names row nan, and it has rows 0 to 4"),
        ([0.0, 2.5], r"its index names row 2\.5, and it has rows 0 to 4"),
        (["first"], "its index are of type <U5, not real numbers"),
    ],
)
def test_a_neorl2_index_of_what_is_no_row_is_refused_by_its_value(tmp_path, index, says) -> None:
    rows = episodes([3, 2], [False, False])
    path = write(
        tmp_path / "data.npz", obs=rows.obs, next_obs=rows.next_obs, action=rows.action, reward=rows.reward,
        done=np.zeros(5, bool), index=np.array(index),
    )  # fmt: skip
    with pytest.raises(ValueError, match=says):
        read_npz(path, LIMIT)


def test_ogbenchs_last_rows_are_successors_only(tmp_path) -> None:
    rows = episodes([4, 1, 3], [False, False, False])
    obs, action, last = [], [], []
    for start, length in zip(rows.episode_starts, rows.episode_lengths, strict=True):
        steps = slice(start, start + length)
        obs += [*rows.obs[steps], rows.next_obs[start + length - 1]]
        action += [*rows.action[steps], np.full(1, 9.0)]
        last += [0.0] * length + [1.0]
    path = write(tmp_path / "data.npz", observations=obs, actions=action, terminals=last, qpos=np.zeros((11, 2)))
    assert same(read_npz(path, LIMIT), rows._replace(reward=np.zeros(8, np.float32)))


def test_what_ogbench_makes_of_its_files_ends_where_its_trajectories_do_and_terminates_by_its_masks(tmp_path) -> None:
    rows = episodes([2, 2, 3], [True, False, False])  # the first two are one trajectory with a goal in the middle
    last = np.array([0, 0, 0, 1, 0, 0, 1.0])
    columns = {"observations": rows.obs, "actions": rows.action, "next_observations": rows.next_obs, "terminals": last}
    task = {"rewards": rows.reward, "masks": 1.0 - rows.terminated}
    assert same(read_npz(write(tmp_path / "task.npz", **columns, **task), LIMIT), rows)
    without = rows._replace(reward=np.zeros(7, np.float32), terminated=np.zeros(7, bool), truncated=last > 0)
    assert same(read_npz(write(tmp_path / "goals.npz", **columns), LIMIT), without)
    del columns["next_observations"]
    with pytest.raises(ValueError, match="compact_dataset=False"):
        read_npz(write(tmp_path / "compact.npz", **columns, valids=1 - last), LIMIT)


def test_d4rls_fields_are_read_as_from_its_files(tmp_path, zoo) -> None:
    rows = episodes([5, 3], [False, True])
    path = write(tmp_path / "data.npz", **dict(zip(D4RL_NAMES, rows, strict=True)))
    assert same(read_npz(path, LIMIT), rows)
    assert "8 transitions" in zoo("data", "verify", path, "--env", "pendulum").out
    assert zoo("data", "show", path, "--env", "pendulum").code == 0


def test_what_has_timeouts_has_d4rls_fields_whatever_else_it_has(tmp_path) -> None:
    rows = episodes([4, 3, 2], [False, True, False])
    columns = dict(zip(D4RL_NAMES, rows, strict=True)) | {"masks": 1.0 - rows.terminated}
    assert same(read_npz(write(tmp_path / "data.npz", **columns), LIMIT), rows)
    del columns["rewards"]
    with pytest.raises(ValueError, match=r"it has timeouts, as D4RL's files do, and lacks rewards$"):
        read_npz(write(tmp_path / "data.npz", **columns), LIMIT)


@pytest.mark.parametrize("other", ["truncations", "truncateds", "truncated", "timeout"])
def test_timeouts_under_another_name_are_refused_not_guessed(tmp_path, other) -> None:
    columns = dict(zip(D4RL_NAMES, episodes([4, 3, 2], [False, True, False]), strict=True))
    columns[other] = columns.pop("timeouts")
    with pytest.raises(ValueError, match=f"it has {other} and no timeouts; name them timeouts"):
        read_npz(write(tmp_path / "data.npz", **columns), LIMIT)
    del columns["rewards"], columns["next_observations"]
    with pytest.raises(ValueError, match=f"it has {other} and no timeouts"):
        read_npz(write(tmp_path / "without.npz", **columns), LIMIT)


def test_arrays_that_no_layout_has_are_not_read(tmp_path) -> None:
    rows = episodes([4, 3], [False, True])
    objects = {"infos": np.array([{}, None])}
    path = write(tmp_path / "data.npz", **dict(zip(D4RL_NAMES, rows, strict=True)), **objects)
    assert same(read_npz(path, LIMIT), rows)
    with pytest.raises(ValueError, match="it has infos; an archive has"):
        read_npz(write(tmp_path / "data.npz", **objects), LIMIT)


def test_a_folder_of_episodes_is_imported_in_the_order_of_its_names(tmp_path, zoo) -> None:
    folder = tmp_path / "episodes"
    folder.mkdir()
    first, second = episodes([4], [True], seed=1), episodes([3], [False], seed=2)
    write(folder / "10.npz", **dict(zip(D4RL_NAMES, second, strict=True)))
    write_d4rl(folder / "09.hdf5", first)
    (folder / "notes.txt").write_text("no data")
    assert zoo("data", "import", folder, "pendulum/mine").code == 0
    from zoo.data.load import load_arrays
    from zoo.settings.compose import environment_config

    found, _ = load_arrays(environment_config("pendulum"), "mine")
    assert same(found, type(first)(*(np.concatenate(pair) for pair in zip(first, second, strict=True))))


def test_data_without_rewards_says_what_it_is_for(tmp_path, zoo) -> None:
    rows = episodes([4], [False])
    path = write(tmp_path / "data.npz", observations=rows.obs, actions=rows.action, terminals=np.arange(4) == 3)
    result = zoo("data", "import", path, "pendulum/mine")
    assert result.code == 0
    assert "its rewards are 0 everywhere" in result.out
    small = ("steps=1", "eval_episodes=1", "logger=none", "algo.hidden=[8]", "algo.batch_size=2")
    command = ("run", "env=pendulum", f"dataset={path}", *small)
    for algo, said in (("algo=td3_bc",), True), (("algo=td3_bc", "reward_shift=-1"), False):
        result = zoo(*command, *algo, f"run_dir={tmp_path / str(said)}")
        assert result.code == 0
        assert ("its rewards are 0 everywhere" in result.out) == said


def test_what_is_no_such_archive_is_refused_in_one_line(tmp_path, zoo, store) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("no archive")
    whole = write(tmp_path / "whole.npz", observations=np.zeros((99, 3)), actions=np.zeros((99, 1))).read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    write(tmp_path / "objects.npz", obs=np.array([{}, None]))
    rows = {"obs": np.zeros((5, 3)), "next_obs": np.zeros((5, 3)), "action": np.zeros((5, 1)), "reward": np.zeros(5)}
    write(tmp_path / "two.npz", **rows, done=np.zeros((5, 2)))
    write(tmp_path / "flags.npz", observations=np.zeros((6, 3)), actions=np.zeros((6, 1)), terminals=np.zeros((6, 2)))
    write(tmp_path / "lengths.npz", observations=np.zeros((3, 3)), actions=np.zeros((2, 1)), terminals=np.zeros(3))
    for name, words in (
        ("empty", "has no file that ends in .hdf5, .h5, .npz"),
        ("text.npz", "cannot be read"),
        ("half.npz", "cannot be read"),
        ("objects.npz", "Object arrays"),
        ("two.npz", "10 rows of done and 5 of others"),
        ("flags.npz", "12 rows of terminals and 6 of others"),
        ("lengths.npz", "2 rows of actions and 3 of others"),
        ("whole.npz", "it has actions, observations; an archive has"),
    ):
        result = zoo("data", "import", tmp_path / name, "pendulum/mine")
        assert_one_line(result, result.code, words)
        assert result.code != 0
    assert not store.exists()


def test_a_file_that_is_no_archive_is_said_to_be_none(tmp_path) -> None:
    file = tmp_path / "data.npz"
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="it is no NumPy archive"):
        read_npz(file, None)
