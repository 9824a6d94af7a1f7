"""Finds a dataset by its name, reads it and checks it, in any format."""

import contextlib
from collections.abc import Iterator

import numpy as np

from zoo.data.arrays import Arrays, check_finite, concatenate, cut_at_breaks
from zoo.data.catalog import Portion, Source, parse_mixture, resolve
from zoo.data.d4rl import read_d4rl
from zoo.data.minari import read_minari
from zoo.data.npz import read_npz
from zoo.envs import EnvConfig, time_limit
from zoo.envs.ogbench import PREFIX
from zoo.errors import RunError, UsageError

NO_REWARDS = "its rewards are 0 everywhere: it is for algorithms that need none, such as bc and recoil"


def load_arrays(env: EnvConfig, name: str) -> tuple[Arrays, list[Source]]:
    """A dataset or a mixture, by name, and its sources.

    In a mixture such as `random+10%expert`, a part with a share contributes whole episodes from its start until they
    hold that share of its transitions; `30ep:expert` contributes its first 30 episodes. The mixtures of Hong et al.
    2023 (arXiv 2306.13085), of fixed size, are `90%random+10%expert`; they draw episodes at random, with replacement.
    """
    parts, sources, limit = [], [], step_limit(env)
    for portion in parse_mixture(name):
        source = resolve(env, portion.name)
        arrays = read(source, limit)
        if portion.amount:
            if missing := missing_ends(arrays, [source], portion.name, env):
                raise UsageError(missing)
            arrays = taken(arrays, portion)
        parts.append(arrays)
        sources.append(source)
    shapes = {(part.obs.shape[1:], part.action.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise UsageError(f"dataset={name}: its parts have different observation or action shapes: {sorted(shapes)}.")
    return concatenate(parts), sources


def step_limit(env: EnvConfig) -> int | None:
    """Steps after which the environment itself ends an episode, whatever limit a run sets: data were recorded earlier.

    None if unknown, or if data differ: the episodes in OGBench's data are longer than those of its tasks.
    """
    return None if env.id.startswith(PREFIX) else time_limit(env.id)


def missing_ends(arrays: Arrays, sources: list[Source], name: str, env: EnvConfig) -> str:
    """Why the ends of a dataset's episodes are unreliable, and what to type; empty if they are reliable."""
    _, unmarked = cut_at_breaks(arrays)
    if unmarked:
        return (
            f"dataset={name} does not say where its episodes end: {unmarked} times a successor is not the next row. "
            f"Import it, which ends them there: zoo data import FILE {env.argument}/NAME"
        )
    limit = None if all(source.in_episodes for source in sources) else step_limit(env)
    longest = int(arrays.episode_lengths.max())
    if limit and longest > max(limit, env.max_episode_steps or 0):
        return (
            f"dataset={name} does not say where its episodes end: one has {longest:,} steps, and those of {env.id} end "
            f"after {limit:,}. Give the file timeouts; if they do last longer: env.max_episode_steps={longest}"
        )
    return ""


def taken(arrays: Arrays, portion: Portion) -> Arrays:
    """The part of a dataset that a mixture takes. Raises UsageError if it has fewer episodes than requested."""
    if portion.episodes is None:
        return arrays.head(portion.share * len(arrays.reward))
    if portion.episodes > (there := len(arrays.episode_starts)):
        raise UsageError(f"{portion.amount}{portion.name} asks for more episodes than there are: {there}.")
    return arrays.first(portion.episodes)


def read(source: Source, max_episode_steps: int | None) -> Arrays:
    """The contents of a source, checked: complete, of consistent lengths, and without NaN.

    Raises:
        RunError: the file is damaged, or holds NaN or infinite numbers (the message names the field and the episode).
    """
    with readable(source), np.errstate(over="ignore", invalid="ignore"):  # infinities are detected below
        if source.kind == "hdf5":
            arrays = read_d4rl(source.path, max_episode_steps)
        elif source.kind == "npz":
            arrays = read_npz(source.path, max_episode_steps)
        else:
            arrays = read_minari(source.path)
    check_finite(arrays, source.name)
    return arrays


@contextlib.contextmanager
def readable(source: Source) -> Iterator[None]:
    """Turns the errors that a reader raises on a damaged or foreign file into one line."""
    try:
        yield
    except Exception as error:  # of many kinds, from h5py, NumPy and Minari
        text = str(error.args[0] if isinstance(error, KeyError) else error)
        reason = (text.splitlines() or [type(error).__name__])[0]
        raise RunError(f"dataset {source.name} ({source.path}) cannot be read: {reason}") from error
