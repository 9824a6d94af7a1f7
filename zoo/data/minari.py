"""Minari's folders, read and written."""

import contextlib
import copy
import hashlib
import importlib.metadata
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
from gymnasium.envs.registration import EnvSpec

from zoo.checkpoint import check_free
from zoo.data.arrays import Arrays, as_flags, as_real, obs_dtype
from zoo.envs import make_one
from zoo.errors import RunError, UsageError

MAIN_DATA = "main_data.hdf5"  # where Minari keeps the episodes, a group of HDF5 datasets each
FLAT = "flat.npz"  # where the zoo keeps a copy as flat arrays: 45,000 short episodes take HDF5 half a minute to open
COMPRESS_ABOVE = 256  # bytes; below, an HDF5 filter takes more room than it saves


def read_minari(path: Path) -> Arrays:
    """A Minari dataset's folder `data`, from the flat copy that the zoo wrote beside it or else from its episodes."""
    flat = _read_flat(path)
    return read_episodes(path) if flat is None else flat


def read_episodes(path: Path) -> Arrays:
    """A Minari dataset's folder `data`, episode by episode, whichever format it is stored in."""
    metadata = json.loads((path / "metadata.json").read_text())
    if metadata.get("data_format", "hdf5") == "hdf5":
        episodes = _hdf5_episodes(path / MAIN_DATA, int(metadata["total_episodes"]))
    else:
        import minari

        episodes = (
            (flattened(episode.observations), episode.actions, episode.rewards, episode.terminations)
            for episode in minari.MinariDataset(path).iterate_episodes()
        )
    total = int(metadata["total_steps"])
    arrays: Arrays | None = None
    start = 0
    for observations, actions, rewards, terminations in episodes:
        if not isinstance(observations, np.ndarray) or not isinstance(actions, np.ndarray):
            raise ValueError("its observations or actions are not plain arrays")
        if arrays is None:
            discrete = actions.dtype.kind in "iu"
            kept = obs_dtype(observations)
            arrays = Arrays(
                np.empty((total, *observations.shape[1:]), kept),
                np.empty((total, *actions.shape[1:]), np.int64 if discrete else np.float32),
                np.empty(total, np.float32),
                np.empty((total, *observations.shape[1:]), kept),
                np.zeros(total, bool),
                np.zeros(total, bool),
            )
        for name, field in {"observations": observations, "actions": actions, "rewards": rewards}.items():
            as_real(np.asarray(field), name)
        terminations = as_flags(terminations, "terminations")
        end, lengths = start + len(rewards), (len(observations) - 1, len(actions), len(terminations))
        if not start < end <= total or lengths != (len(rewards),) * 3:
            raise ValueError("its episodes are not as long as its metadata says")
        shapes = observations.shape[1:], actions.shape[1:]
        if shapes != (arrays.obs.shape[1:], arrays.action.shape[1:]) or discrete != (actions.dtype.kind in "iu"):
            raise ValueError("its episodes have different observations or actions")
        arrays.obs[start:end] = observations[:-1]
        arrays.next_obs[start:end] = observations[1:]
        arrays.action[start:end] = actions
        arrays.reward[start:end] = rewards
        arrays.terminated[start:end] = terminations
        arrays.truncated[end - 1] = not arrays.terminated[end - 1]
        start = end
    if arrays is None or start != total:
        raise ValueError(f"it holds {start} transitions, not the {total} its metadata says")
    return arrays


def _hdf5_episodes(path: Path, count: int) -> Iterator[tuple[np.ndarray, ...]]:
    with h5py.File(path, "r") as file:
        for i in range(count):
            episode = h5py.h5g.open(file.id, b"episode_%d" % i)
            yield tuple(_read(episode, key) for key in (b"observations", b"actions", b"rewards", b"terminations"))


def flattened(observations: Any) -> Any:
    """Observations `[T, ...]`; those of dictionaries and tuples as `[T, D]`, in the order in which `zoo.envs` has them.

    A dictionary's are in the order of their names. Minari calls those of a tuple `_index_0`, `_index_1` and so on.
    """
    if not isinstance(observations, Mapping):
        return observations

    def place(name: str) -> tuple[int, str]:
        index = re.fullmatch(r"_index_(\d+)", name)
        return (int(index[1]) if index else -1), name

    parts = [np.asarray(flattened(observations[name])) for name in sorted(observations, key=place)]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _read(group: Any, key: bytes) -> np.ndarray:
    """An array; of a group of arrays, which is what dictionaries are stored as, the flattened one."""
    if h5py.h5o.get_info(group, key).type != h5py.h5o.TYPE_GROUP:
        return _read_array(group, key)
    below = h5py.h5g.open(group, key)
    array: np.ndarray = flattened({name.decode(): _read(below, name) for name in below})
    return array


def _read_array(group: Any, key: bytes) -> np.ndarray:
    """h5py's low-level calls, which take half the time of `group[key][()]`."""
    dataset = h5py.h5d.open(group, key)
    array = np.empty(dataset.shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array


def _read_flat(path: Path) -> Arrays | None:
    """The flat copy, if there is one and it is of these very episodes."""
    try:
        with np.load(path / FLAT, allow_pickle=False) as flat:
            if str(flat["main_data"]) != _digest(path / MAIN_DATA):
                return None
            return Arrays(*(flat[field] for field in Arrays._fields))
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def check_replaceable(folder: Path, force: bool) -> None:
    """Raises UsageError where a dataset would overwrite another one without `--force`, or anything else.

    Raises RunError where nothing can be written there.
    """
    check_free(folder, force)
    if folder.exists() and not (folder / "data" / MAIN_DATA).is_file():
        raise UsageError(f"{folder} exists and is no dataset. Take another name.")
    with _beside(folder):
        pass


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A temporary folder on the disk of another one. Raises RunError where the disk is full or refuses."""
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=parent) as partial:
            yield Path(partial)
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror or error}. Nothing there has changed.") from error


def write_minari(
    arrays: Arrays, folder: Path, minari_id: str, env_id: str, metadata: dict[str, Any], *, force: bool, flat: bool
) -> None:
    """Writes episodes as a Minari dataset, atomically: to a temporary folder, which is renamed once it is complete.

    Args:
        arrays: within an episode each `next_obs` must be the next `obs`, since Minari stores T + 1 observations.
        folder: the dataset's folder; its `data` is what `read_minari` takes.
        metadata: what is recorded beside Minari's own keys, such as `description`.
        force: replace the dataset that is there.
        flat: add the copy of flat arrays from which `read_minari` loads many short episodes fast.

    Raises:
        UsageError: the folder exists and `force` is not set, or is no dataset.
        RunError: the disk is full or the place cannot be written to. What was there before is untouched.
    """
    check_replaceable(folder, force)
    with _beside(folder) as partial:
        whole = partial / "dataset"
        _write_data(arrays, whole / "data", minari_id, env_id, metadata, flat)
        folder.parent.mkdir(parents=True, exist_ok=True)
        check_free(folder, force)  # once more: another command may have written it meanwhile
        try:
            if folder.exists():
                folder.rename(partial / "replaced")
            whole.rename(folder)
        finally:
            if (partial / "replaced").exists() and not folder.exists():
                (partial / "replaced").rename(folder)


def _write_data(arrays: Arrays, data: Path, minari_id: str, env_id: str, metadata: dict[str, Any], flat: bool) -> None:
    from minari.dataset.minari_storage import MinariStorage

    env = make_one(env_id)
    action_space = env.action_space
    env.close()
    data.mkdir(parents=True)
    storage = MinariStorage.new(
        data,
        observation_space=(
            gymnasium.spaces.Box(-np.inf, np.inf, arrays.obs.shape[1:], np.float32)
            if arrays.obs.dtype == np.float32
            else gymnasium.spaces.Box(0, 255, arrays.obs.shape[1:], np.uint8)
        ),
        action_space=action_space,
        env_spec=_written(gymnasium.spec(env_id)),
        jpeg_encoding=False,
    )
    (data / MAIN_DATA).write_bytes(_episodes_image(arrays))
    if flat:
        with (data / FLAT).open("wb") as file:
            np.savez(file, main_data=_digest(data / MAIN_DATA), **arrays._asdict())
    storage.update_metadata(
        {
            "dataset_id": minari_id,
            "minari_version": importlib.metadata.version("minari"),
            "total_episodes": len(arrays.episode_starts),
            "total_steps": len(arrays.reward),
            "fingerprint": arrays.fingerprint(),
            **metadata,
        }
    )
    storage.update_metadata({"dataset_size": float(storage.get_size())})
    for path in data.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _written(spec: EnvSpec) -> EnvSpec:
    """The spec with the name of what makes its environment, which may be a class: JSON holds names alone."""
    if not callable(spec.entry_point):
        return spec
    named = copy.copy(spec)
    named.entry_point = f"{spec.entry_point.__module__}:{getattr(spec.entry_point, '__qualname__', 'unnamed')}"
    return named


def _episodes_image(arrays: Arrays) -> bytes:
    """An HDF5 file in the layout of Minari's storage, whose own writer makes larger files of short episodes.

    It is made in memory, because HDF5 itself brings the process down when the disk is full.
    """
    with h5py.File("episodes", "w", driver="core", backing_store=False, libver=("v110", "v110")) as file:
        for i, (start, length) in enumerate(zip(arrays.episode_starts, arrays.episode_lengths, strict=True)):
            obs, action, reward, next_obs, terminated, truncated = (field[start : start + length] for field in arrays)
            if not np.array_equal(next_obs[:-1], obs[1:], equal_nan=True):
                raise ValueError(f"episode {i} is not one: a next_obs in it is not the next obs")
            group = file.create_group(f"episode_{i}")
            group.attrs["id"], group.attrs["total_steps"] = i, length
            fields = {"observations": np.concatenate([obs, next_obs[-1:]]), "actions": action, "rewards": reward}
            fields |= {"terminations": terminated, "truncations": truncated}
            for name, field in fields.items():
                large = {"chunks": field.shape, "compression": "gzip", "shuffle": True}
                group.create_dataset(name, data=field, **(large if field.nbytes > COMPRESS_ABOVE else {}))
        file.flush()
        image: bytes = file.id.get_file_image()
    return image
