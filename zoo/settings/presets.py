"""Published settings for a task: `preset=paper`.

`configs/presets/<preset>/<algo>.yaml` is a list of entries. Each says by `env`, `dataset` and `corruption` which tasks
it is for (patterns, those after a ! being exceptions; one that is left out matches any), what it sets, and where that
comes from. If two entries set the same key, the later one counts. Settings on the command line take precedence over
both.
"""

import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from zoo.errors import UsageError, nearest
from zoo.settings.registry import folder


def preset(name: str, algo: str, task: dict[str, set[str]]) -> dict[str, Any]:
    """The settings `{key: value}` of a preset.

    Args:
        name: the name of the preset.
        algo: the algorithm.
        task: the names by which each of env, dataset and corruption may be given.

    Raises:
        UsageError: there is no such preset, or none for this algorithm or task.
    """
    root = folder("configs") / "presets"
    names = sorted(path.name for path in root.iterdir() if path.is_dir())
    if name not in names:
        raise UsageError(f"preset={name} does not exist. {nearest(name, names)}")
    path = root / name / f"{algo}.yaml"
    if not path.exists():
        if not (folder("algos") / f"{algo}.py").exists():
            raise UsageError(
                f"preset={name} has nothing for {algo}: settings go by the name of the algorithm's file. A changed "
                "iql.py has IQL's if it keeps its name, in a folder of its own. Or leave the preset out."
            )
        able = sorted(other.stem for other in (root / name).glob("*.yaml"))
        raise UsageError(f"preset={name} has nothing for {algo}, only for {', '.join(able)}. Leave it out.")
    entries = [entry for entry in _read(path) if _matches(entry, task)]
    if not entries:
        raise UsageError(f"preset={name} has nothing for {algo} on this task; {path} says on which. Leave it out.")
    return {key: value for entry in entries for key, value in entry["set"].items()}


def short(dataset: str) -> str:
    """The kind of a dataset, from its name: `mujoco/hopper/medium-v0` and `hopper_medium-v2.hdf5` are medium.

    For a mixture, the kind of each part with its share: `random+10%medium`.
    """
    first, *others = dataset.split("+")
    if others:
        return "+".join(short(part) for part in (first, *others))
    return re.sub(r"^([\d.]+%|\d+ep:)?(.*)$", lambda part: (part[1] or "") + _short(part[2]), dataset)


def _short(dataset: str) -> str:
    name = re.sub(r"(-v\d+)?(\.hdf5|\.h5|\.npz)?$", "", dataset.rsplit("/", 1)[-1]).replace("_", "-")
    return re.sub(r"^(halfcheetah|hopper|walker2d|ant|antmaze|kitchen|pen|door|hammer|relocate)-", "", name)


@cache
def _read(path: Path) -> list[dict[str, Any]]:
    entries: Any = OmegaConf.to_container(OmegaConf.load(path))
    return list(entries)


def _matches(entry: dict[str, Any], task: dict[str, set[str]]) -> bool:
    return all(_among(names, entry[key]) for key, names in task.items() if key in entry)


def _among(names: set[str], patterns: list[str]) -> bool:
    """Whether any of the names matches one of the patterns, and none an exception."""
    exceptions = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    if any(fnmatchcase(name, exception) for name in names for exception in exceptions):
        return False
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
