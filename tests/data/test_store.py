"""Datasets in the local Minari store, read back with Minari and h5py."""

import json
import os
import time
from pathlib import Path

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from minari.data_collector import EpisodeBuffer

from zoo.data import minari as stored
from zoo.data.arrays import Arrays, concatenate
from zoo.data.d4rl import read_d4rl
from zoo.data.minari import FLAT, MAIN_DATA, _digest, read_episodes, read_minari, write_minari
from zoo.envs.names import load_package
from zoo.errors import RunError, UsageError

from .conftest import episodes, frames, put_elsewhere, same, tree, write_d4rl

ROWS = episodes([4, 3, 200, 1], [True, False, False, True])
ID = "zoo/pendulum/mine-v0"


def write(folder: Path, rows=ROWS, *, force: bool = False, flat: bool = True, **metadata) -> None:
    write_minari(rows, folder, ID, "Pendulum-v1", metadata, force=force, flat=flat)


def test_an_imported_file_loads_with_minari_as_the_same_episodes(zoo, store, tmp_path) -> None:
    path = write_d4rl(tmp_path / "mine.hdf5", ROWS)
    assert zoo("data", "import", path, "pendulum/mine").code == 0
    loaded = minari.load_dataset(ID)
    assert (loaded.total_episodes, loaded.total_steps) == (4, 208)
    assert loaded.spec.env_spec.id == "Pendulum-v1"
    for episode, start, length in zip(loaded, ROWS.episode_starts, ROWS.episode_lengths, strict=True):
        rows = slice(start, start + length)
        np.testing.assert_array_equal(episode.observations[:-1], ROWS.obs[rows])
        np.testing.assert_array_equal(episode.observations[1:], ROWS.next_obs[rows])
        np.testing.assert_array_equal(episode.actions, ROWS.action[rows])
        np.testing.assert_array_equal(episode.rewards, ROWS.reward[rows])
        np.testing.assert_array_equal(episode.terminations, ROWS.terminated[rows])
        np.testing.assert_array_equal(episode.truncations, ROWS.truncated[rows])
    assert ID in minari.list_local_datasets()
    assert zoo("data", "verify", "pendulum/mine").code == 0


@pytest.mark.parametrize("flat", [True, False])
def test_what_is_written_is_what_is_read(tmp_path, flat) -> None:
    write(tmp_path / "mine", flat=flat)
    assert same(read_minari(tmp_path / "mine" / "data"), ROWS)
    assert same(read_episodes(tmp_path / "mine" / "data"), ROWS)


def test_frames_stay_bytes_and_discrete_actions_whole_numbers(zoo, store, tmp_path) -> None:
    rows = frames([4, 3, 6], [True, False, True])
    path = write_d4rl(tmp_path / "frames.hdf5", rows)
    read = read_d4rl(path, None)
    assert same(read, rows)
    assert (read.obs.dtype, read.next_obs.dtype, read.action.dtype) == (np.uint8, np.uint8, np.int64)
    for flat in (True, False):
        folder = tmp_path / f"frames-{flat}"
        write_minari(rows, folder, "zoo/minatar-breakout/mine-v0", "minatar/breakout", {}, force=False, flat=flat)
        for back in (read_minari(folder / "data"), read_episodes(folder / "data")):
            assert same(back, rows)
            assert back.obs.dtype == np.uint8
        space = minari.MinariDataset(folder / "data").observation_space
        assert (space.dtype, space.shape) == (np.uint8, (4, 10, 10))


def test_frames_that_are_not_bytes_are_refused_where_the_environment_gives_bytes(zoo, tmp_path) -> None:
    rows = frames([4, 3], [True, False])
    path = write_d4rl(tmp_path / "scaled.hdf5", rows._replace(obs=rows.obs / 255, next_obs=rows.next_obs / 255))
    result = zoo("data", "verify", path, "--env", "minatar/breakout")
    assert result.code == 2
    assert "has frames of float32; those of minatar-breakout (minatar/breakout) are bytes" in result.err


def test_a_dataset_that_minari_wrote_reads_alike(store) -> None:
    buffers = []
    for start, length in zip(ROWS.episode_starts, ROWS.episode_lengths, strict=True):
        rows = slice(start, start + length)
        buffers.append(
            EpisodeBuffer(
                observations=np.concatenate([ROWS.obs[rows], ROWS.next_obs[rows][-1:]]).astype(np.float64),
                actions=ROWS.action[rows],
                rewards=list(ROWS.reward[rows].astype(float)),
                terminations=list(ROWS.terminated[rows]),
                truncations=list(ROWS.truncated[rows]),
                infos={"speed": np.zeros(length + 1)},
            )
        )
    with pytest.warns(UserWarning, match="is set to None"):
        minari.create_dataset_from_buffers("other/pendulum/mine-v0", buffers, env="Pendulum-v1")
    assert same(read_minari(store / "other/pendulum/mine-v0/data"), ROWS)


def test_dictionaries_that_minari_wrote_are_read_flattened_as_gymnasium_flattens_them(store) -> None:
    pytest.importorskip("gymnasium_robotics")
    load_package("PointMaze_UMaze-v3")
    env = gymnasium.make("PointMaze_UMaze-v3", max_episode_steps=7)
    env.action_space.seed(0)
    obs, next_obs, buffers = [], [], []
    for seed in range(2):
        seen, actions, rewards = [env.reset(seed=seed)[0]], [], []
        for _ in range(7):
            actions.append(env.action_space.sample())
            following, reward, *_ = env.step(actions[-1])
            rewards.append(float(reward))
            seen.append(following)
        flat = [gymnasium.spaces.flatten(env.observation_space, one) for one in seen]
        obs, next_obs = obs + flat[:-1], next_obs + flat[1:]
        buffers.append(
            EpisodeBuffer(
                observations={name: np.array([one[name] for one in seen]) for name in seen[0]},
                actions=np.array(actions),
                rewards=rewards,
                terminations=[False] * 7,
                truncations=[False] * 6 + [True],
            )
        )
    with pytest.warns(UserWarning, match="is set to None"):
        minari.create_dataset_from_buffers("other/pointmaze/mine-v0", buffers, env="PointMaze_UMaze-v3")
    found = read_minari(store / "other/pointmaze/mine-v0/data")
    np.testing.assert_array_equal(found.obs, np.array(obs, np.float32))
    np.testing.assert_array_equal(found.next_obs, np.array(next_obs, np.float32))
    assert found.obs.shape == (14, 8)


def test_tuples_of_many_parts_that_minari_wrote_are_read_in_their_order(store, tmp_path) -> None:
    space = gymnasium.spaces.Tuple([gymnasium.spaces.Box(-99, 99, (1,), np.float32) for _ in range(12)])
    steps = [[np.full((4, 1), part, np.float32) for part in range(12)] for _ in range(2)]
    buffers = [
        EpisodeBuffer(
            observations=tuple(parts),
            actions=np.zeros((3, 1), np.float32),
            rewards=[0.0] * 3,
            terminations=[False] * 3,
            truncations=[False, False, True],
        )
        for parts in steps
    ]
    spaces = {"observation_space": space, "action_space": gymnasium.spaces.Box(-1, 1, (1,))}
    with pytest.warns(UserWarning, match="is set to None"):
        minari.create_dataset_from_buffers("other/tuple/mine-v0", buffers, **spaces)
    found = read_minari(store / "other/tuple/mine-v0/data")
    assert found.obs.tolist() == [list(range(12))] * 6


@pytest.mark.parametrize("equally_long", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_jpeg_images_that_minari_wrote_are_refused_by_name(zoo, store, equally_long, nested) -> None:
    image = gymnasium.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    rng = np.random.default_rng(0)
    frames = np.zeros((4, 32, 32, 3), np.uint8) if equally_long else rng.integers(0, 256, (4, 32, 32, 3), np.uint8)
    steps = EpisodeBuffer(
        observations={"image": frames} if nested else frames,
        actions=np.zeros((3, 1), np.float32),
        rewards=[0.0] * 3,
        terminations=[False] * 3,
        truncations=[False, False, True],
    )
    space = gymnasium.spaces.Dict({"image": image}) if nested else image
    spaces = {"observation_space": space, "action_space": gymnasium.spaces.Box(-1, 1, (1,))}
    with pytest.warns(UserWarning, match="is set to None"):
        minari.create_dataset_from_buffers("other/images/mine-v0", [steps], **spaces)
    result = zoo("data", "verify", "other/images/mine-v0", "--env", "pendulum")
    assert result.code == 1
    assert result.err.endswith("cannot be read: its images are JPEG; create it with jpeg_encoding=False\n")


class Own(PendulumEnv):
    """An environment that is registered by its class."""


def test_the_environment_of_a_dataset_may_be_registered_by_its_class(tmp_path) -> None:
    gymnasium.register("Own-v0", Own, max_episode_steps=200)
    write_minari(ROWS, tmp_path / "mine", "zoo/Own-v0/mine-v0", "Own-v0", {}, force=False, flat=False)
    spec = minari.MinariDataset(tmp_path / "mine" / "data").spec.env_spec
    assert (spec.id, spec.entry_point) == ("Own-v0", f"{__name__}:Own")
    assert type(gymnasium.make(spec).unwrapped) is Own
    assert gymnasium.spec("Own-v0").entry_point is Own


def test_the_flat_copy_is_read_only_while_it_is_of_these_episodes(tmp_path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first)
    other = episodes([5, 6], [True, True], seed=1)
    write(second, other)
    (first / "data" / FLAT).write_bytes((second / "data" / FLAT).read_bytes())
    assert same(read_minari(first / "data"), ROWS)
    (second / "data" / FLAT).write_bytes(b"not a zip")
    assert same(read_minari(second / "data"), other)
    (second / "data" / FLAT).write_bytes(b"")
    assert same(read_minari(second / "data"), other)


def test_no_pickle_is_read(tmp_path) -> None:
    write(tmp_path / "mine")
    flat = tmp_path / "mine" / "data" / FLAT
    with np.load(flat) as file:
        fields = dict(file)
    fields["reward"] = np.array([os.system] * len(ROWS.reward), dtype=object)
    np.savez(flat, **fields)
    assert same(read_minari(tmp_path / "mine" / "data"), ROWS)  # from the episodes


@pytest.mark.parametrize("how", ["external", "virtual", "episode_1", "episode_1/rewards"])
def test_episodes_in_other_files_are_refused(tmp_path, how) -> None:
    write(tmp_path / "mine", flat=False)
    write(tmp_path / "secret", flat=False)
    secret = tmp_path / "secret" / "data" / MAIN_DATA
    with h5py.File(tmp_path / "mine" / "data" / MAIN_DATA, "r+") as file:
        del file["episode_1" if how == "episode_1" else "episode_1/rewards"]
        if how in ("external", "virtual"):
            put_elsewhere(file, "episode_1/rewards", secret, "episode_1/rewards", 3, how)
        else:
            file[how] = h5py.ExternalLink(secret, how)
    with pytest.raises(ValueError, match="it takes arrays from other files"):
        read_minari(tmp_path / "mine" / "data")


def test_episodes_of_bytes_and_of_other_numbers_are_refused(tmp_path) -> None:
    write_minari(frames([4, 3], [True, True]), tmp_path / "mine", ID, "Pendulum-v1", {}, force=False, flat=False)
    with h5py.File(tmp_path / "mine" / "data" / MAIN_DATA, "r+") as file:
        obs = file["episode_1/observations"][()]
        del file["episode_1/observations"]
        file["episode_1/observations"] = obs / np.float32(255)
    with pytest.raises(ValueError, match="its episodes have different observations or actions"):
        read_minari(tmp_path / "mine" / "data")


def test_the_same_data_has_the_same_fingerprint_wherever_it_was_read_from(tmp_path) -> None:
    write(tmp_path / "mine")
    recorded = json.loads((tmp_path / "mine/data/metadata.json").read_text())["fingerprint"]
    path = write_d4rl(tmp_path / "mine.hdf5", ROWS)
    assert recorded == ROWS.fingerprint() == read_d4rl(path, 200).fingerprint()


def test_a_dataset_is_replaced_only_by_force(tmp_path) -> None:
    write(tmp_path / "mine")
    before = tree(tmp_path)
    other = episodes([5, 6], [True, True], seed=1)
    with pytest.raises(UsageError, match="--force"):
        write(tmp_path / "mine", other)
    assert tree(tmp_path) == before
    write(tmp_path / "mine", other, force=True)
    assert same(read_minari(tmp_path / "mine" / "data"), other)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_another_command_wrote_meanwhile_is_not_replaced(tmp_path, monkeypatch) -> None:
    other, write_data = episodes([5, 6], [True, True], seed=1), stored._write_data
    meanwhile = [other]

    def slowly(*arguments) -> None:
        write_data(*arguments)
        if meanwhile:
            write(tmp_path / "mine", meanwhile.pop())

    monkeypatch.setattr(stored, "_write_data", slowly)
    with pytest.raises(UsageError, match="--force"):
        write(tmp_path / "mine")
    assert same(read_minari(tmp_path / "mine" / "data"), other)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_cannot_be_put_in_place_leaves_what_was_there(tmp_path, monkeypatch) -> None:
    write(tmp_path / "mine")
    before, rename = tree(tmp_path), Path.rename

    def refuses(path: Path, target: Path) -> Path:
        if path.name == "dataset":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuses)
    with pytest.raises(RunError, match="Nothing there has changed"):
        write(tmp_path / "mine", force=True)
    assert tree(tmp_path) == before


def test_what_was_replaced_and_cannot_be_removed_is_no_failure(tmp_path, monkeypatch) -> None:
    write(tmp_path / "mine")
    other, rmdir = episodes([5, 6], [True, True], seed=1), os.rmdir

    def refuses(path, *arguments, **options) -> None:
        if str(path).endswith("replaced"):
            raise OSError(39, "Directory not empty")
        rmdir(path, *arguments, **options)

    monkeypatch.setattr(os, "rmdir", refuses)
    write(tmp_path / "mine", other, force=True)
    assert same(read_minari(tmp_path / "mine" / "data"), other)


def test_what_is_no_dataset_is_not_replaced_even_by_force(tmp_path) -> None:
    (tmp_path / "results" / "data").mkdir(parents=True)
    (tmp_path / "results" / "data" / "thesis.txt").write_text("all of it")
    (tmp_path / "notes").write_text("more")
    before = tree(tmp_path)
    for name in ("results", "notes"):
        with pytest.raises(UsageError, match=f"{name} exists and is no dataset"):
            write(tmp_path / name, force=True)
    assert tree(tmp_path) == before


def test_what_fails_half_way_leaves_what_was_there(tmp_path, monkeypatch) -> None:
    write(tmp_path / "mine")
    before = tree(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(RunError, match="No space left on device"):
        write(tmp_path / "mine", force=True)
    assert tree(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_rows_that_are_no_episodes_are_not_written(tmp_path) -> None:
    broken = ROWS._replace(next_obs=ROWS.next_obs + 1)
    with pytest.raises(ValueError, match="episode 0 is not one"):
        write(tmp_path / "mine", broken)
    assert list(tmp_path.iterdir()) == []


def test_100_000_hopper_transitions_of_mixed_lengths_fit_8_mb_without_the_flat_copy(tmp_path) -> None:
    rng = np.random.default_rng(0)
    lengths = [22] * 1_000 + [200] * 140 + [1_000] * 50
    rows = episodes(lengths, [True] * len(lengths), obs_dim=11)
    rows = rows._replace(action=rng.uniform(-1, 1, (len(rows.reward), 3)).astype(np.float32))
    write_minari(rows, tmp_path / "mine", "zoo/hopper/mine-v0", "Hopper-v5", {}, force=False, flat=False)
    assert len(rows.reward) == 100_000
    assert sum(len(content) for content in tree(tmp_path).values()) <= 8_000_000


ODD_COPIES = {
    "rewards of text": lambda rows: rows._replace(reward=rows.reward.astype(str)),
    "fewer rewards": lambda rows: rows._replace(reward=rows.reward[:3]),
    "whole numbers": lambda rows: rows._replace(obs=rows.obs.astype(int), next_obs=rows.next_obs.astype(int)),
    "nothing": lambda rows: Arrays(*(field[:0] for field in rows)),
    "no end": lambda rows: rows._replace(terminated=rows.terminated & False, truncated=rows.truncated & False),
}


@pytest.mark.parametrize("kind", ODD_COPIES)
def test_a_flat_copy_that_no_dataset_was_written_with_is_not_read(tmp_path, kind) -> None:
    rows = episodes([3, 4], [True, False])
    write_minari(rows, tmp_path / "mine", "zoo/hopper/mine-v0", "Hopper-v5", {}, force=False, flat=True)
    data = tmp_path / "mine" / "data"
    np.savez(data / FLAT, main_data=_digest(data / MAIN_DATA), **ODD_COPIES[kind](rows)._asdict())
    for field, expected in zip(read_minari(data), rows, strict=True):
        np.testing.assert_array_equal(field, expected)


def test_45_000_short_episodes_load_within_5_s(tmp_path) -> None:
    flat = tmp_path / "data"
    flat.mkdir()
    (flat / MAIN_DATA).write_bytes(b"stands for the episodes")
    rows = episodes([22] * 500, [True] * 500, obs_dim=11)
    rows = concatenate([rows] * 90)
    np.savez(flat / FLAT, main_data=_digest(flat / MAIN_DATA), **rows._asdict())
    start = time.perf_counter()
    assert len(read_minari(flat).episode_starts) == 45_000
    assert time.perf_counter() - start < 5
