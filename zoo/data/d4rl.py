"""Reads and writes D4RL's HDF5 files."""

from collections.abc import Container
from pathlib import Path

import h5py
import numpy as np

from zoo.data.arrays import Arrays, as_flags, as_obs, as_real, breaks, check_successors
from zoo.data.catalog import store
from zoo.files import replacing

FIELDS = ("observations", "actions", "rewards", "terminals", "next_observations", "timeouts")
OTHER_ENDS = ("truncations", "truncateds", "truncated", "timeout")  # names that `timeouts` has elsewhere


def read_d4rl(path: Path, max_episode_steps: int | None) -> Arrays:
    """A D4RL-layout HDF5 file: flat arrays over consecutive episodes.

    Old files lack `next_observations` or `timeouts`. Without the former, the successor is the next row, and the last
    step of an episode that did not terminate is left out, because its successor is not recorded. `qlearning_dataset` of
    D4RL does both, so that the successor of a terminal step is the first observation of the next episode. Without the
    latter, an episode ends where its successor is not the next row, or after `max_episode_steps`. (After a terminal
    step, D4RL counts one step too many and so cuts the next episode one step early; this code does not.)
    """
    with h5py.File(path, "r") as file:
        arrays = {name: array for name in FIELDS if isinstance(array := file.get(name), h5py.Dataset)}
        if missing := {"observations", "actions", "rewards", "terminals"} - set(arrays):
            if "episode_0" in file:
                raise ValueError(
                    f"it is the file of a Minari dataset; copy that dataset's whole folder into {store()} and take its "
                    "id, such as dataset=my/pendulum-v0"
                )
            raise ValueError(
                f"it lacks {', '.join(sorted(missing))}; a D4RL file has observations, actions, rewards and terminals"
            )
        for array in arrays.values():
            check_within(file.id, array.id)
        check_ends(file)
        return from_columns({name: array[()] for name, array in arrays.items()}, max_episode_steps)


def check_within(file: h5py.h5f.FileID, array: h5py.h5d.DatasetID) -> None:
    """Raises ValueError if an array lies in another file, which may be any on this machine: data are passed on."""
    created = array.get_create_plist()
    elsewhere = h5py.h5o.get_info(array).fileno != h5py.h5o.get_info(file).fileno  # by an external link
    if elsewhere or created.get_external_count() or created.get_layout() == h5py.h5d.VIRTUAL:
        raise ValueError("it takes arrays from other files; copy them into it, with h5repack or h5py")


def check_ends(names: Container[str]) -> None:
    """Raises ValueError if the ends of episodes have another name than `timeouts`: they would be overlooked."""
    if "timeouts" not in names:
        for other in OTHER_ENDS:
            if other in names:
                raise ValueError(f"it has {other} and no timeouts; name them timeouts, as D4RL's files do")


def assumptions(names: Container[str], max_episode_steps: int | None) -> list[str]:
    """What `read_d4rl` assumes of a file that has arrays of these names: a sentence for each array it lacks."""
    found = []
    if "timeouts" not in names and "next_observations" in names:
        found.append("no timeouts: an episode ends where a successor is not the next row")
    elif "timeouts" not in names:
        found.append(f"no timeouts: an episode ends after {max_episode_steps:,} steps, unless it terminates earlier")
    if "next_observations" not in names:
        found.append("no next_observations: the last step of an episode that does not terminate is left out")
    return found


def from_columns(given: dict[str, np.ndarray], max_episode_steps: int | None) -> Arrays:
    """Episodes from the fields of a D4RL-layout file, see `read_d4rl`. Raises ValueError if they are inconsistent."""
    columns = {name: as_real(given[name], name) for name in FIELDS if name in given}
    obs, action = as_obs(columns["observations"]), columns["actions"]
    reward = columns["rewards"].astype(np.float32, copy=False).reshape(-1)
    terminated = as_flags(columns["terminals"], "terminals")
    next_obs = as_obs(columns["next_observations"]) if "next_observations" in columns else None
    truncated = as_flags(columns["timeouts"], "timeouts") if "timeouts" in columns else None
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
    check_successors(obs, next_obs)
    action = action.astype(np.int64 if np.issubdtype(action.dtype, np.integer) else np.float32, copy=False)
    if truncated is None:
        truncated = _infer_timeouts(obs, next_obs, terminated, max_episode_steps)
    truncated = truncated & ~terminated
    truncated[-1] = not terminated[-1]
    if next_obs is not None:
        return Arrays(obs, action, reward, next_obs, terminated, truncated)
    next_obs = np.concatenate([obs[1:], obs[-1:]])
    next_obs[terminated] = obs[terminated]  # unknown, see `without_successor`
    keep = ~truncated
    if not keep.any():
        raise ValueError("it has no next_observations, and no episode of two steps: no successor is known")
    truncated = np.append(truncated[1:], False) & ~terminated  # the step before a dropped one now ends the episode
    return Arrays(*(field[keep] for field in (obs, action, reward, next_obs, terminated, truncated)))


def _infer_timeouts(
    obs: np.ndarray, next_obs: np.ndarray | None, terminated: np.ndarray, max_episode_steps: int | None
) -> np.ndarray:
    if next_obs is not None:
        return breaks(obs, next_obs)
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


def write_d4rl(arrays: Arrays, path: Path, attributes: dict[str, str]) -> None:
    """Writes a D4RL-layout HDF5 file, completely or not at all. Raises RunError if the disk is full."""
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    with h5py.File("flat", "w", driver="core", backing_store=False) as file:
        file.attrs.update(attributes)
        for name, field in zip(names, arrays, strict=True):
            file.create_dataset(name, data=field, compression="gzip", shuffle=True)
        file.flush()
        image = file.id.get_file_image()
    with replacing(path) as place:
        place.write(image)
