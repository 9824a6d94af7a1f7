"""NumPy's archives, read: of NeoRL-2, of OGBench, or with D4RL's fields. Pickled objects are not loaded."""

import zipfile
from pathlib import Path

import numpy as np

from zoo.data.arrays import Arrays, as_flags, as_obs, as_real, check_successors
from zoo.data.d4rl import FIELDS, check_ends, from_columns

NEORL2 = ("obs", "next_obs", "action", "reward", "done")
OGBENCH = ("observations", "actions", "terminals")
READ = {*NEORL2, "index", "truncated", *OGBENCH, "masks", "valids", *FIELDS}


def read_npz(path: Path, max_episode_steps: int | None) -> Arrays:
    """An archive in one of three layouts, recognized by the names of its arrays.

    NeoRL-2 (Gao et al. 2025, arXiv 2503.19267): `obs, next_obs, action, reward, done`, and `index`, where trajectories
    start. Its `done` is set at time limits too: what is done after `max_episode_steps` counts as truncated. If it has
    `truncated`, episodes end there too, and `done` is taken as it is.

    OGBench (Park et al. 2024, arXiv 2410.20092): `observations, actions, terminals`, where each trajectory has a last
    row that is a successor only, and no rewards, which are 0 then. Its trajectories end by truncation. What OGBench's
    functions make of them is taken too: `next_observations`, then without such rows; for one task `rewards` and
    `masks`, which are 0 where it terminates.

    D4RL's fields, see `zoo.data.d4rl`. What has `timeouts` has these.

    Other arrays are not read.

    Raises:
        ValueError: it has none of these layouts, or its arrays do not fit each other.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no NumPy archive")
    with np.load(path, allow_pickle=False) as file:
        names = sorted(file.files)
        columns = {name: file[name] for name in names if name in READ}
    if columns.keys() >= set(NEORL2):
        return _neorl2(columns, max_episode_steps)
    if "timeouts" in columns:
        if missing := {*OGBENCH, "rewards"} - columns.keys():
            raise ValueError(f"it has timeouts, as D4RL's files do, and lacks {', '.join(sorted(missing))}")
        return from_columns(columns, max_episode_steps)
    if columns.keys() >= set(OGBENCH):
        check_ends(names)
        if "next_observations" in columns and ("masks" in columns or "rewards" not in columns):
            return _ogbench_task(columns)
        if "valids" in columns or columns.keys() >= {"masks", "rewards"}:
            raise ValueError("it is one of OGBench's compact ones; make it with compact_dataset=False")
        return from_columns(columns, max_episode_steps) if "rewards" in columns else _ogbench(columns)
    raise ValueError(
        f"it has {', '.join(names) or 'nothing'}; an archive has {', '.join(NEORL2)} (NeoRL-2), "
        f"{', '.join(OGBENCH)} (OGBench), or with rewards D4RL's fields"
    )


def _neorl2(columns: dict[str, np.ndarray], max_episode_steps: int | None) -> Arrays:
    obs, next_obs, action, reward, done = (as_real(columns[name], name) for name in NEORL2)
    size, reward, done = len(reward), reward.reshape(-1), as_flags(done, "done")
    cut = as_flags(columns.get("truncated", np.zeros(size)), "truncated")
    flags = {"done": done, "truncated": cut}
    _check_lengths({"obs": obs, "next_obs": next_obs, "action": action, "reward": reward, **flags}, size)
    obs, next_obs = as_obs(obs), as_obs(next_obs)
    check_successors(obs, next_obs)
    ends = done | cut
    starts = as_real(columns.get("index", np.zeros(1)), "index").reshape(-1)
    rows = (starts >= 0) & (starts < size) & (starts == np.floor(starts))
    if not rows.all():
        raise ValueError(f"its index names row {starts[~rows][0]}, and it has rows 0 to {size - 1}")
    starts = starts.astype(np.int64)
    ends[starts[starts > 0] - 1] = True
    ends[-1] = True
    terminated = done.copy()
    if "truncated" not in columns:
        last = np.flatnonzero(ends)
        terminated[last[np.diff(last, prepend=-1) >= (max_episode_steps or np.inf)]] = False
    return Arrays(
        obs,
        action.astype(np.float32),
        reward.astype(np.float32),
        next_obs,
        terminated,
        ends & ~terminated,
    )


def _ogbench(columns: dict[str, np.ndarray]) -> Arrays:
    obs, action, last = (as_real(columns[name], name) for name in OGBENCH)
    last = as_flags(last, "terminals")
    _check_lengths({"actions": action, "terminals": last}, len(obs))
    last[-1] = True  # a successor, which has none
    kept = ~last
    if not kept.any():
        raise ValueError("no trajectory of it has two rows")
    obs = as_obs(obs)
    ends = np.append(last[1:], True)[kept]
    nothing = np.zeros(int(kept.sum()), np.float32)
    return Arrays(obs[kept], action[kept].astype(np.float32), nothing, obs[1:][kept[:-1]], np.zeros_like(ends), ends)


def _ogbench_task(columns: dict[str, np.ndarray]) -> Arrays:
    last = as_flags(columns["terminals"], "terminals")
    masks = as_flags(columns.get("masks", np.ones(len(last))), "masks")
    _check_lengths({"masks": masks}, len(last))
    ends = {"terminals": ~masks, "timeouts": last & masks}
    return from_columns({"rewards": np.zeros(len(last), np.float32), **columns, **ends}, None)


def _check_lengths(columns: dict[str, np.ndarray], size: int) -> None:
    if size == 0:
        raise ValueError("it is empty")
    for name, array in columns.items():
        if len(array) != size:
            raise ValueError(f"it has {len(array)} rows of {name} and {size} of others")
