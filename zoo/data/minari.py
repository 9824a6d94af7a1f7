"""Reads and writes Minari's folders."""

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

from zoo.data.arrays import Arrays, as_flags, as_real, obs_dtype
from zoo.data.d4rl import check_within
from zoo.envs import make_one
from zoo.errors import RunError, UsageError
from zoo.files import check_free

MAIN_DATA = "main_data.hdf5"  # Minari's file of episodes, each of them a group of HDF5 datasets
FLAT = "flat.npz"  # the zoo's copy as flat arrays: opening 45,000 short episodes takes HDF5 half a minute
JPEG = b"\xff\xd8\xff"  # with which such an image begins; Minari stores one as a row of bytes
COMPRESS_ABOVE = 256  # bytes; for less, an HDF5 filter takes more space than it saves


def read_minari(path: Path) -> Arrays:
    """Reads a Minari dataset's folder `data`, from the zoo's flat copy in it or else from its episodes."""
    flat = _read_flat(path)
    return read_episodes(path) if flat is None else flat


def read_episodes(path: Path) -> Arrays:
    """Reads a Minari dataset's folder `data` episode by episode, whichever format it is stored in."""
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
        dtypes = obs_dtype(observations), actions.dtype.kind in "iu"
        if shapes != (arrays.obs.shape[1:], arrays.action.shape[1:]) or dtypes != (kept, discrete):
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
            names = (b"observations", b"actions", b"rewards", b"terminations")
            yield tuple(_read(file.id, episode, name) for name in names)


def flattened(observations: Any) -> Any:
    """Observations `[T, ...]`; dictionaries and tuples become `[T, D]`, in the same order as in `zoo.envs`.

    Entries of a dictionary are ordered by name. Minari names those of a tuple `_index_0`, `_index_1` and so on.
    """
    if not isinstance(observations, Mapping):
        return observations

    def place(name: str) -> tuple[int, str]:
        index = re.fullmatch(r"_index_(\d+)", name)
        return (int(index[1]) if index else -1), name

    parts = [np.asarray(flattened(observations[name])) for name in sorted(observations, key=place)]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _read(file: Any, group: Any, key: bytes) -> np.ndarray:
    """An array; for a group of arrays, which is how dictionaries are stored, the flattened one."""
    if h5py.h5o.get_info(group, key).type != h5py.h5o.TYPE_GROUP:
        return _read_array(file, group, key)
    below = h5py.h5g.open(group, key)
    array: np.ndarray = flattened({name.decode(): _read(file, below, name) for name in below})
    return array


def _read_array(file: Any, group: Any, key: bytes) -> np.ndarray:
    """Reads with h5py's low-level calls, which take half the time of `group[key][()]`.

    Raises ValueError for JPEG, and for an array that lies in another file.
    """
    dataset = h5py.h5d.open(group, key)
    check_within(file, dataset)
    array = np.empty(dataset.shape, dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    rows_of_bytes = array.dtype in (np.uint8, object) and array.ndim in (1, 2) and len(array)
    if rows_of_bytes and np.asarray(array[0]).tobytes().startswith(JPEG):
        raise ValueError("its images are JPEG; create it with jpeg_encoding=False")
    return array


def _read_flat(path: Path) -> Arrays | None:
    """The flat copy, if it exists and belongs to these very episodes."""
    try:
        with np.load(path / FLAT, allow_pickle=False) as flat:
            if str(flat["main_data"]) != _digest(path / MAIN_DATA):
                return None
            arrays = Arrays(*(flat[field] for field in Arrays._fields))
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    sizes, dtypes = {len(field) for field in arrays}, [field.dtype for field in arrays]
    written = dtypes[0] in (np.float32, np.uint8) and dtypes[2:] == [np.float32, dtypes[0], np.bool_, np.bool_]
    whole = written and len(sizes) == 1 and sizes != {0} and (arrays.terminated | arrays.truncated)[-1]
    return arrays if whole else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def check_replaceable(folder: Path, force: bool) -> None:
    """Raises UsageError if a dataset would overwrite another one without `--force`, or anything else.

    Raises RunError if nothing can be written there.
    """
    check_free(folder, force)
    if folder.exists() and not (folder / "data" / MAIN_DATA).is_file():
        raise UsageError(f"{folder} exists and is no dataset. Take another name.")
    with _beside(folder):
        pass


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A temporary folder on the same disk as another folder. Raises RunError if the disk is full or refuses."""
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=parent, ignore_cleanup_errors=True) as partial:
            yield Path(partial)
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror or error}. Nothing there has changed.") from error


def write_minari(
    arrays: Arrays, folder: Path, minari_id: str, env_id: str, metadata: dict[str, Any], *, force: bool, flat: bool
) -> None:
    """Writes episodes as a Minari dataset: to a temporary folder, which is renamed once it is complete.

    With `force`, the existing dataset is moved into that folder first. If the process is killed between the two
    renames, both stay in the folder, `.partial-*`, which `zoo data list` names.

    Args:
        arrays: within an episode, each `next_obs` must be the next `obs`, because Minari stores T + 1 observations.
        folder: the dataset's folder; `read_minari` takes its subfolder `data`.
        metadata: recorded beside Minari's own keys, such as `description`.
        force: replace an existing dataset.
        flat: add the copy as flat arrays, from which `read_minari` loads many short episodes quickly.

    Raises:
        UsageError: the folder exists and `force` is not set, or it is not a dataset.
        RunError: the disk is full or the folder cannot be written to. Previous contents are left untouched.
    """
    check_replaceable(folder, force)
    with _beside(folder) as partial:
        whole = partial / "dataset"
        _write_data(arrays, whole / "data", minari_id, env_id, metadata, flat)
        folder.parent.mkdir(parents=True, exist_ok=True)
        check_free(folder, force)  # checked again: another command may have written it meanwhile
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
    """The spec with its environment's entry point as a name; it may be a class, which JSON cannot hold."""
    if not callable(spec.entry_point):
        return spec
    named = copy.copy(spec)
    named.entry_point = f"{spec.entry_point.__module__}:{getattr(spec.entry_point, '__qualname__', 'unnamed')}"
    return named


def _episodes_image(arrays: Arrays) -> bytes:
    """An HDF5 file in Minari's storage layout; Minari's own writer makes larger files for short episodes.

    It is built in memory, because HDF5 itself crashes the process when the disk is full.
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
