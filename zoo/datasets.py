"""Offline datasets: what `catalog` found is read into flat `Arrays`, whatever its format, and held by a `Dataset`.

`write_minari` is the way back, into the local store.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import h5py
import numpy as np
import torch
from torch import Tensor

from zoo.buffers import Batch, gather
from zoo.catalog import Source, parse_mixture, resolve
from zoo.checkpoint import replacing
from zoo.envs import EnvConfig, Spec, make_one
from zoo.errors import RunError, UsageError
from zoo.nn import Normalizer
from zoo.returns import discounted_sum
from zoo.samplers import SamplerConfig, make_sampler, top_weights

MAIN_DATA = "main_data.hdf5"  # where Minari keeps the episodes, a group of HDF5 datasets each
FLAT = "flat.npz"  # where the zoo keeps a copy as flat arrays: 45,000 short episodes take HDF5 half a minute to open
ROUNDING = 1e-5  # of the range of an action: as much may it lie outside, for want of digits
COMPRESS_ABOVE = 256  # bytes; below, an HDF5 filter takes more room than it saves


class Arrays(NamedTuple):
    """Consecutive episodes, flat and float32. Where `terminated` or `truncated` is set, an episode ends."""

    obs: np.ndarray  # [N, ...]
    action: np.ndarray  # [N, A] float32, or [N] int64
    reward: np.ndarray  # [N]
    next_obs: np.ndarray  # [N, ...] the true successor, at a truncation the true last observation
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool

    @property
    def episode_starts(self) -> np.ndarray:
        """Where each episode begins, `[E]`."""
        ends = np.flatnonzero(self.terminated | self.truncated)
        return np.concatenate([[0], ends[:-1] + 1])

    @property
    def episode_lengths(self) -> np.ndarray:
        """Steps of each episode, `[E]`."""
        return np.diff(np.append(self.episode_starts, len(self.reward)))

    @property
    def episode_returns(self) -> np.ndarray:
        """Undiscounted return of each episode, `[E]` float64."""
        return np.add.reduceat(self.reward.astype(np.float64), self.episode_starts)

    def head(self, transitions: float) -> "Arrays":
        """Whole episodes from the start until they hold at least that many transitions."""
        ends = np.cumsum(self.episode_lengths)
        # a share such as 7 % of 100 is 7.000000000000001 as a float and means 7
        end = ends[min(int(np.searchsorted(ends, transitions - 1e-6)), len(ends) - 1)]
        return Arrays(*(field[:end] for field in self))

    def fingerprint(self) -> str:
        """A hash of the content: the same data has the same one wherever it was read from."""
        digest = hashlib.blake2b(digest_size=8)
        for field in self:
            digest.update(np.ascontiguousarray(field).data)
        return digest.hexdigest()


def concatenate(parts: list[Arrays]) -> Arrays:
    return parts[0] if len(parts) == 1 else Arrays(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))


def read(source: Source, max_episode_steps: int | None) -> Arrays:
    """The content of a source, checked: whole, of consistent lengths, without NaN.

    Raises:
        RunError: the file is damaged, or holds NaN or infinite numbers (says in which field and episode).
    """
    with readable(source):
        arrays = read_d4rl(source.path, max_episode_steps) if source.kind == "hdf5" else read_minari(source.path)
    _check_finite(arrays, source.name)
    return arrays


@contextlib.contextmanager
def readable(source: Source) -> Iterator[None]:
    """Turns what a damaged or foreign file makes its reader raise into one line."""
    try:
        yield
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        reason = (str(error).strip("'\"").splitlines() or [type(error).__name__])[0]
        raise RunError(f"dataset {source.name} ({source.path}) cannot be read: {reason}") from error


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
            (episode.observations, episode.actions, episode.rewards, episode.terminations)
            for episode in minari.MinariDataset(path).iterate_episodes()
        )
    total = int(metadata["total_steps"])
    arrays: Arrays | None = None
    start = 0
    for observations, actions, rewards, terminations in episodes:
        if not isinstance(observations, np.ndarray) or not isinstance(actions, np.ndarray):
            raise ValueError("its observations or actions are not plain arrays")
        if arrays is None:
            discrete = np.issubdtype(actions.dtype, np.integer)
            arrays = Arrays(
                np.empty((total, *observations.shape[1:]), np.float32),
                np.empty((total, *actions.shape[1:]), np.int64 if discrete else np.float32),
                np.empty(total, np.float32),
                np.empty((total, *observations.shape[1:]), np.float32),
                np.zeros(total, bool),
                np.zeros(total, bool),
            )
        for name, field in {"observations": observations, "actions": actions, "rewards": rewards}.items():
            _real(np.asarray(field), name)
        end = start + len(rewards)
        if not start < end <= total or len(observations) != len(rewards) + 1 or len(actions) != len(rewards):
            raise ValueError("its episodes are not as long as its metadata says")
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
            yield tuple(_read_array(episode, key) for key in (b"observations", b"actions", b"rewards", b"terminations"))


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
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def write_minari(
    arrays: Arrays, folder: Path, minari_id: str, env_id: str, metadata: dict[str, Any], *, force: bool, flat: bool
) -> None:
    """Writes episodes as a Minari dataset: beside its place first, then renamed there when it is whole.

    Args:
        arrays: within an episode each `next_obs` must be the next `obs`, since Minari stores T + 1 observations.
        folder: the dataset's folder; its `data` is what `read_minari` takes.
        metadata: what is recorded beside Minari's own keys, such as `description`.
        force: replace the dataset that is there.
        flat: add the copy of flat arrays from which `read_minari` loads many short episodes fast.

    Raises:
        UsageError: the folder exists and `force` is not set.
        RunError: the disk is full or the place cannot be written to. What was there before is untouched.
    """
    check_free(folder, force)
    beside = next(parent for parent in folder.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=beside) as partial:
            whole = Path(partial) / "dataset"
            _write_data(arrays, whole / "data", minari_id, env_id, metadata, flat)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if folder.exists():
                folder.rename(Path(partial) / "replaced")
            whole.rename(folder)
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror or error}. Nothing there has changed.") from error


def check_free(folder: Path, force: bool) -> None:
    """Raises UsageError where a dataset would be overwritten unasked."""
    if folder.exists() and not force:
        raise UsageError(f"{folder} exists. Take another name, or replace it with --force.")


def _write_data(arrays: Arrays, data: Path, minari_id: str, env_id: str, metadata: dict[str, Any], flat: bool) -> None:
    from minari.dataset.minari_storage import MinariStorage

    env = make_one(env_id)
    action_space = env.action_space
    env.close()
    data.mkdir(parents=True)
    storage = MinariStorage.new(
        data,
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, arrays.obs.shape[1:], np.float32),
        action_space=action_space,
        env_spec=gymnasium.spec(env_id),
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


def write_d4rl(arrays: Arrays, path: Path, attributes: dict[str, str]) -> None:
    """Writes a D4RL-layout HDF5 file, whole or not at all. Raises RunError where the disk is full."""
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    with h5py.File("flat", "w", driver="core", backing_store=False) as file:
        file.attrs.update(attributes)
        for name, field in zip(names, arrays, strict=True):
            file.create_dataset(name, data=field, compression="gzip", shuffle=True)
        file.flush()
        image = file.id.get_file_image()
    with replacing(path) as place:
        place.write(image)


def read_d4rl(path: Path, max_episode_steps: int | None) -> Arrays:
    """A D4RL-layout HDF5 file: flat arrays over consecutive episodes.

    Old files lack `next_observations` or `timeouts`. Without the former, the successor is the next row, and the last
    step of an episode that did not terminate is left out, since its successor is nowhere. D4RL's `qlearning_dataset`
    does both, so that the successor of a terminal step is the first observation of the next episode. Without the
    latter, an episode ends where its successor is not the next row, or after `max_episode_steps`. (D4RL counts one step
    too many after a terminal and so cuts the episode that follows one step early; this does not.)
    """
    with h5py.File(path, "r") as file:
        missing = {"observations", "actions", "rewards", "terminals"} - set(file)
        if missing:
            raise ValueError(
                f"it lacks {', '.join(sorted(missing))}; a D4RL file has observations, actions, rewards and terminals"
            )
        fields = ("observations", "actions", "rewards", "terminals", "next_observations", "timeouts")
        columns = {name: _real(file[name][()], name) for name in fields if name in file}
    obs, action = columns["observations"].astype(np.float32, copy=False), columns["actions"]
    reward = columns["rewards"].astype(np.float32, copy=False).reshape(-1)
    terminated = columns["terminals"].astype(bool).reshape(-1)
    next_obs = columns["next_observations"].astype(np.float32, copy=False) if "next_observations" in columns else None
    truncated = columns["timeouts"].astype(bool).reshape(-1) if "timeouts" in columns else None
    size = len(reward)
    for name, array in {
        "observations": obs,
        "actions": action,
        "terminals": terminated,
        "timeouts": truncated,
        "next_observations": next_obs,
    }.items():
        if array is not None and len(array) != size:
            raise ValueError(f"it has {len(array)} {name} but {size} rewards")
    if size == 0:
        raise ValueError("it is empty")
    action = action.astype(np.int64 if np.issubdtype(action.dtype, np.integer) else np.float32, copy=False)
    if truncated is None:
        truncated = _infer_timeouts(obs, next_obs, terminated, max_episode_steps)
    truncated = truncated & ~terminated
    truncated[-1] = not terminated[-1]
    if next_obs is not None:
        return Arrays(obs, action, reward, next_obs, terminated, truncated)
    next_obs = np.concatenate([obs[1:], obs[-1:]])  # a terminal step's successor is never used
    keep = ~truncated
    if not keep.any():
        raise ValueError("it has no next_observations, and no episode of two steps: no successor is known")
    truncated = np.append(truncated[1:], False) & ~terminated  # the step before the one left out now ends the episode
    return Arrays(*(field[keep] for field in (obs, action, reward, next_obs, terminated, truncated)))


def _real(array: np.ndarray, name: str) -> np.ndarray:
    """The array itself. Raises ValueError unless it holds real numbers or booleans: others would be cut short."""
    if array.dtype.kind not in "fiub":
        raise ValueError(f"its {name} are of type {array.dtype}, not real numbers")
    return array


def _infer_timeouts(
    obs: np.ndarray, next_obs: np.ndarray | None, terminated: np.ndarray, max_episode_steps: int | None
) -> np.ndarray:
    if next_obs is not None:
        return _breaks(obs, next_obs)
    if max_episode_steps is None:
        raise ValueError(
            "it has neither timeouts nor next_observations, and the env has no step limit to cut its episodes by"
        )
    ended = np.zeros(len(obs), bool)
    start = 0
    for end in [*np.flatnonzero(terminated), len(obs) - 1]:
        ended[start + max_episode_steps - 1 : end : max_episode_steps] = True
        start = end + 1
    return ended


def cut_at_breaks(arrays: Arrays) -> tuple[Arrays, int]:
    """Ends an episode, as truncated, wherever its successor is not the next row; and how many ends that adds.

    A file may lack such an end, and a replay buffer does where its run was resumed or stopped.
    """
    truncated = arrays.truncated | (_breaks(arrays.obs, arrays.next_obs) & ~arrays.terminated)
    return arrays._replace(truncated=truncated), int(truncated.sum() - arrays.truncated.sum())


def missing_ends(arrays: Arrays, name: str, env: EnvConfig, limit: int | None) -> str:
    """Why the ends of a dataset's episodes cannot be relied on, and what to type; empty where they can."""
    _, breaks = cut_at_breaks(arrays)
    longest = int(arrays.episode_lengths.max())
    if breaks:
        return (
            f"dataset={name} does not say where its episodes end: {breaks} times a successor is not the next row. "
            f"Import it, which ends them there: zoo data import FILE {env.name}/NAME"
        )
    if limit and longest > limit:
        return (
            f"dataset={name} does not say where its episodes end: one has {longest:,} steps, and those of {env.id} end "
            f"after {limit:,}. Give the file timeouts."
        )
    return ""


def _breaks(obs: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    """Where the successor is not the next row, `[N]`; the last row's is not. NaN is taken as equal to itself."""
    unequal = (next_obs[:-1] != obs[1:]) & ~(np.isnan(next_obs[:-1]) & np.isnan(obs[1:]))
    return np.append(unequal.any(axis=tuple(range(1, obs.ndim))), True)


def _check_finite(arrays: Arrays, name: str) -> None:
    for field in ("obs", "action", "reward", "next_obs"):
        values = getattr(arrays, field)
        if np.issubdtype(values.dtype, np.floating):
            bad = ~np.isfinite(values).reshape(len(values), -1).all(-1)
            if bad.any():
                step = int(np.argmax(bad))
                episode = int(np.searchsorted(arrays.episode_starts, step, side="right")) - 1
                raise RunError(
                    f"dataset {name}: NaN or infinite {field} in {int(bad.sum())} transitions, the first in "
                    f"episode {episode}, step {step - int(arrays.episode_starts[episode])} of it."
                )


class Dataset:
    """Transitions of consecutive episodes as tensors on one device, and the sampler that draws batches of them.

    Attributes:
        obs, action, reward, next_obs, terminated: `[N, ...]` tensors as in `Batch`.
        reward_scale: what the rewards have been multiplied by.
        spec: shapes and bounds of the environment the data is for.

    Args:
        arrays: the transitions.
        missing_ends: why the ends of the episodes cannot be relied on, if so. Whatever depends on them then raises a
            UsageError that says it: lengths, returns, next actions, and samplers but the uniform one.
    """

    def __init__(
        self, arrays: Arrays, spec: Spec, device: torch.device, sampler: SamplerConfig | None = None,
        missing_ends: str = "",
    ) -> None:  # fmt: skip
        self.spec, self.device, self.reward_scale = spec, device, 1.0
        self.obs, self.action, self.reward, self.next_obs, self.terminated, self.truncated = (
            torch.from_numpy(field).to(device) for field in arrays
        )
        episodes = (arrays.episode_starts, arrays.episode_lengths, arrays.episode_returns)
        self._episodes = tuple(torch.from_numpy(column).to(device) for column in episodes)
        self._missing_ends = missing_ends
        self.use(sampler or SamplerConfig())

    @property
    def episodes(self) -> tuple[Tensor, ...]:
        """First transition, length and undiscounted return, of the rewards as they are stored, of each: `[E]` each.

        Raises:
            UsageError: the data does not say where its episodes end.
        """
        if self._missing_ends:
            raise UsageError(self._missing_ends)
        return self._episodes

    @property
    def episode_starts(self) -> Tensor:
        """`[E]`, see `episodes`."""
        return self.episodes[0]

    @property
    def episode_lengths(self) -> Tensor:
        """`[E]`, see `episodes`."""
        return self.episodes[1]

    @property
    def episode_returns(self) -> Tensor:
        """`[E]`, see `episodes`."""
        return self.episodes[2]

    def __len__(self) -> int:
        return len(self.reward)

    def use(self, sampler: SamplerConfig) -> None:
        """Draws with another sampler from here on. Raises UsageError where it cannot draw from this dataset."""
        self.sampler_config, self.sampler = sampler, make_sampler(sampler, self)

    def sample(self, batch_size: int) -> Batch:
        """`batch_size` transitions, drawn with replacement by the sampler."""
        return gather(self, self.sampler(batch_size))

    def map_obs(self, function: Callable[[Tensor], Tensor]) -> None:
        """Applies a function of observations `[N, ...]` to all of them once, rather than to every batch."""
        self.obs, self.next_obs = function(self.obs), function(self.next_obs)

    def scale_reward(self, factor: float) -> None:
        """Multiplies every reward."""
        self.reward, self.reward_scale = self.reward * factor, self.reward_scale * factor

    def normalize_obs(self, normalizer: Normalizer) -> None:
        """Fits it to the observations, each as often as it is drawn, and normalizes them, and the next ones."""
        normalizer.fit(self.obs, self.sampler.weights)
        self.map_obs(normalizer)

    def normalize_reward(self) -> None:
        """Multiplies every reward by 1000 / (largest - smallest episode return). Raises UsageError where that is 0."""
        spread = float(self.episode_returns.max() - self.episode_returns.min())
        if spread == 0:
            raise UsageError(
                "every episode of this dataset has the same return, so its range cannot scale rewards. "
                "Type: algo.normalize_reward=false"
            )
        self.scale_reward(1000 / spread)

    def value_bounds(self, discount: float) -> tuple[float, float]:
        """The least and the largest discounted return from any transition on.

        A truncated episode counts as going on for ever at its mean reward; with a discount of 1 nothing is bounded.
        """
        if discount == 1:
            return -math.inf, math.inf
        lengths = self.episode_lengths
        last = self.episode_starts + lengths - 1
        mean_reward = (
            torch.zeros_like(self.reward[last]).index_add(
                0, torch.arange(len(last), device=self.device).repeat_interleave(lengths), self.reward
            )
            / lengths
        )
        reward, decay = self.reward.clone(), torch.full_like(self.reward, discount)
        reward[last] += discount * mean_reward / (1 - discount) * ~self.terminated[last]
        decay[last] = 0
        low, high = discounted_sum(reward, decay).aminmax()
        return float(low), float(high)

    def return_to_go(self) -> Tensor:
        """What is still to come of each transition's episode, its own reward included, undiscounted: `[N]`."""
        ended = torch.zeros_like(self.terminated)
        ended[self.episode_starts + self.episode_lengths - 1] = True
        total = discounted_sum(self.reward.double(), (~ended).double())
        return total.to(self.reward)

    def timesteps(self) -> tuple[Tensor, Tensor]:
        """Of each transition, the steps of its episode before it, and those from it on, itself included: `[N]` each."""
        start = self.episode_starts.repeat_interleave(self.episode_lengths)
        length = self.episode_lengths.repeat_interleave(self.episode_lengths)
        before = torch.arange(len(self), device=self.device) - start
        return before, length - before

    def next_action(self) -> tuple[Tensor, Tensor]:
        """The action that follows each transition in its episode, `[N, A]` or `[N]`, and whether there is one `[N]`."""
        last = self.episode_starts + self.episode_lengths - 1
        follows = torch.ones_like(self.terminated).index_fill(0, last, False)
        return self.action.roll(-1, 0), follows

    def top_episodes(self, fraction: float) -> None:
        """Keeps only the given fraction of the episodes, those with the highest returns (at least one)."""
        best = top_weights(self.episode_returns, fraction) > 0
        keep = best.repeat_interleave(self.episode_lengths)
        for field in Arrays._fields:
            setattr(self, field, getattr(self, field)[keep])
        lengths = self.episode_lengths[best]
        self._episodes = (lengths.cumsum(0) - lengths, lengths, self.episode_returns[best])
        self.use(self.sampler_config)


def load(env: EnvConfig, name: str, max_episode_steps: int | None) -> tuple[Arrays, list[Source]]:
    """A dataset or a mixture by name, and what it was made of.

    In a mixture `random+10%expert` a part with a share gives whole episodes from its start until they hold that share
    of its transitions. The mixtures of Hong et al. 2023 (arXiv 2306.13085), of fixed size, are `90%random+10%expert`;
    they draw the episodes at random, with replacement.
    """
    parts, sources = [], []
    for share, part_name in parse_mixture(name):
        source = resolve(env, part_name)
        arrays = read(source, max_episode_steps)
        if share < 1:
            if missing := missing_ends(arrays, part_name, env, max_episode_steps):
                raise UsageError(missing)
            arrays = arrays.head(share * len(arrays.reward))
        parts.append(arrays)
        sources.append(source)
    shapes = {(part.obs.shape[1:], part.action.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise UsageError(f"dataset={name}: its parts have different observation or action shapes: {sorted(shapes)}.")
    return concatenate(parts), sources


def check_fits(arrays: Arrays, spec: Spec, name: str, env: EnvConfig) -> None:
    """Raises UsageError unless the data has the environment's shapes and, where they are discrete, its actions."""
    expected = (spec.obs_shape, (spec.action_dim,) if spec.num_actions is None else ())
    found = (arrays.obs.shape[1:], arrays.action.shape[1:])
    if found != expected:
        raise UsageError(
            f"dataset={name} has observations {found[0]} and actions {found[1]}; {env.name} ({env.id}) has "
            f"{expected[0]} and {expected[1]}. Take a dataset of this env (zoo data list), or the env of this dataset."
        )
    if spec.num_actions is not None and (outside := out_of_bounds(arrays.action, spec)).any():
        raise UsageError(
            f"dataset={name} has actions from {arrays.action.min()} to {arrays.action.max()}; those of {env.name} "
            f"({env.id}) go from 0 to {spec.num_actions - 1}. {int(outside.sum()):,} transitions have others."
        )


def out_of_bounds(action: np.ndarray, spec: Spec) -> np.ndarray:
    """Which of the actions, `[N, A]` or `[N]`, the environment does not have: `[N]`; rounding does not count."""
    if spec.num_actions is not None:
        return np.asarray((action < 0) | (action >= spec.num_actions))
    low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
    tolerance = ROUNDING * (high - low)
    return np.asarray(((action < low - tolerance) | (action > high + tolerance)).any(-1))
