"""Episodes as flat NumPy arrays, and the checks on them."""

import copy
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zoo.errors import RunError, UsageError

if TYPE_CHECKING:
    from zoo.envs import EnvConfig
    from zoo.spec import Spec

ROWS = 4_096  # compared at a time
ROUNDING = 1e-5  # tolerance for actions outside their bounds, as a share of the range: digits may have been cut off


class Arrays(NamedTuple):
    """Consecutive episodes, flat and float32. An episode ends wherever `terminated` or `truncated` is set."""

    obs: np.ndarray  # [N, ...]; frames: [N, C, H, W] uint8
    action: np.ndarray  # [N, A] float32, or [N] int64
    reward: np.ndarray  # [N]
    next_obs: np.ndarray  # [N, ...] the true successor; at a truncation, the true last observation
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool

    @property
    def episode_starts(self) -> np.ndarray:
        """The first row of each episode, `[E]`."""
        ends = np.flatnonzero(self.terminated | self.truncated)
        return np.concatenate([[0], ends[:-1] + 1])

    @property
    def episode_lengths(self) -> np.ndarray:
        """The number of steps of each episode, `[E]`."""
        return np.diff(np.append(self.episode_starts, len(self.reward)))

    @property
    def episode_returns(self) -> np.ndarray:
        """Undiscounted return of each episode, `[E]` float64."""
        return np.add.reduceat(self.reward.astype(np.float64), self.episode_starts)

    def head(self, transitions: float) -> "Arrays":
        """Whole episodes from the start, until they hold at least that many transitions."""
        ends = np.cumsum(self.episode_lengths)
        # a share such as 7 % of 100 is 7.000000000000001 as a float but means 7
        end = ends[min(int(np.searchsorted(ends, transitions - 1e-6)), len(ends) - 1)]
        return Arrays(*(field[:end] for field in self))

    def first(self, episodes: int) -> "Arrays":
        """The first `episodes` episodes, or all if there are fewer."""
        end = int(self.episode_lengths[:episodes].sum())
        return Arrays(*(field[:end] for field in self))

    def fingerprint(self) -> str:
        """A hash of the content: equal arrays of the same types have the same hash wherever they were read from."""
        digest = hashlib.blake2b(digest_size=8)
        for field in self:
            digest.update(np.ascontiguousarray(field).data)
        return digest.hexdigest()


def concatenate(parts: list[Arrays]) -> Arrays:
    return parts[0] if len(parts) == 1 else Arrays(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))


def as_obs(array: np.ndarray) -> np.ndarray:
    """Observations `[N, ...]` as they are stored: float32, or uint8 for frames `[N, C, H, W]` of bytes."""
    return array.astype(obs_dtype(array), copy=False)


def obs_dtype(array: np.ndarray) -> type:
    """The dtype of `as_obs`."""
    return np.uint8 if array.dtype == np.uint8 and array.ndim == 4 else np.float32


def as_real(array: np.ndarray, name: str) -> np.ndarray:
    """The array itself. Raises ValueError unless it holds real numbers or booleans: a cast would truncate others."""
    if array.dtype.kind not in "fiub":
        raise ValueError(f"its {name} are of type {array.dtype}, not real numbers")
    return array


def as_flags(array: np.ndarray, name: str) -> np.ndarray:
    """Episode ends as flat booleans. Raises ValueError if a number is neither 0 nor 1: NaN would count as an end."""
    array = as_real(np.asarray(array), name).reshape(-1)
    if array.dtype != bool and not ((array == 0) | (array == 1)).all():
        raise ValueError(f"its {name} are not all 0 or 1")
    return array.astype(bool)


def cut_at_breaks(arrays: Arrays) -> tuple[Arrays, int]:
    """Ends an episode, as truncated, wherever its successor is not the next row. Also returns how many ends that adds.

    A file may lack such an end, and a replay buffer lacks one wherever its run was resumed or stopped.
    """
    truncated = arrays.truncated | (breaks(arrays.obs, arrays.next_obs) & ~arrays.terminated)
    return arrays._replace(truncated=truncated), int(truncated.sum() - arrays.truncated.sum())


def check_successors(obs: np.ndarray, next_obs: np.ndarray | None) -> None:
    """Raises ValueError if observations and their successors, if there are any, differ in shape or type."""
    if next_obs is not None and (next_obs.shape, next_obs.dtype) != (obs.shape, obs.dtype):
        raise ValueError(
            f"its observations are {obs.dtype} {list(obs.shape)}, its next_observations {next_obs.dtype} "
            f"{list(next_obs.shape)}"
        )


def breaks(obs: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    """Where the successor is not the next row, `[N]`; true for the last row. NaN counts as equal to itself."""
    found = np.ones(len(obs), bool)
    for start in range(0, len(obs) - 1, ROWS):  # in chunks: frames, all at once, would take more memory than the data
        end = min(start + ROWS, len(obs) - 1)
        successor, row = next_obs[start:end], obs[start + 1 : end + 1]
        unequal = successor != row
        if obs.dtype.kind == "f":
            unequal &= ~(np.isnan(successor) & np.isnan(row))
        found[start:end] = unequal.any(axis=tuple(range(1, obs.ndim)))
    return found


def without_successor(data: Any) -> Any:
    """Which terminal transitions of arrays or a `Dataset` have an unknown successor: they repeat the observation."""
    unknown = copy.deepcopy(data.terminated)
    repeats = data.next_obs[data.terminated] == data.obs[data.terminated]  # of all rows, frames would take much memory
    unknown[data.terminated] = repeats.all(tuple(range(1, repeats.ndim)))
    return unknown


def check_finite(arrays: Arrays, name: str) -> None:
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


def fitted(arrays: Arrays, spec: "Spec", name: str, env: "EnvConfig") -> Arrays:
    """The data with actions of the environment's type: float32, or int64 `[N]` if they are discrete.

    Raises:
        UsageError: the shapes differ from the environment's, or discrete actions are not among the environment's.
    """
    if spec.num_actions is not None and arrays.action.shape[1:] == (1,):  # a column, as Stable-Baselines3 keeps it
        arrays = arrays._replace(action=arrays.action[:, 0])
    expected = (spec.state_shape, (spec.action_dim,) if spec.num_actions is None else ())
    found = (arrays.obs.shape[1:], arrays.action.shape[1:])
    if found != expected:
        raise UsageError(
            f"dataset={name} has observations {found[0]} and actions {found[1]}; {env.name} ({env.id}) has "
            f"{expected[0]} and {expected[1]}. Take a dataset of this env (zoo data list), or the env of this dataset."
        )
    if spec.obs_dtype == "uint8" and arrays.obs.dtype != np.uint8:
        raise UsageError(
            f"dataset={name} has frames of {arrays.obs.dtype}; those of {env.name} ({env.id}) are bytes. "
            "Store them as uint8, from 0 to 255, as the environment gives them."
        )
    if spec.num_actions is None:
        return arrays._replace(action=arrays.action.astype(np.float32, copy=False))
    action = arrays.action.astype(np.int64, copy=False)
    if (outside := out_of_bounds(action, spec) | (action != arrays.action)).any():
        raise UsageError(
            f"dataset={name} has actions from {arrays.action.min()} to {arrays.action.max()}; those of {env.name} "
            f"({env.id}) are whole numbers from 0 to {spec.num_actions - 1}. {int(outside.sum()):,} transitions have "
            "others."
        )
    return arrays._replace(action=action)


def out_of_bounds(action: np.ndarray, spec: "Spec") -> np.ndarray:
    """Which of the actions, `[N, A]` or `[N]`, are invalid in the environment: `[N]`; rounding errors are tolerated."""
    if spec.num_actions is not None:
        return np.asarray((action < 0) | (action >= spec.num_actions))
    low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
    tolerance = ROUNDING * (high - low)
    return np.asarray(((action < low - tolerance) | (action > high + tolerance)).any(-1))
