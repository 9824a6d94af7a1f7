"""Reads finished runs from folders and archives, and names their tasks and methods."""

import csv
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from zoo.benchmarks import archive
from zoo.benchmarks.records import OF_LEARNING, REFERENCES, SIMULATOR, Result, seedless, shared
from zoo.data.catalog import parse_mixture
from zoo.data.corruption import CorruptionConfig
from zoo.errors import UsageError
from zoo.runs.lock import in_use
from zoo.settings.overrides import as_overrides
from zoo.settings.presets import short

LAST_EPISODES = 100  # training episodes to average, as in CleanRL's tables: rlops --metric-last-n-average-window
FILES = ("run.json", "config.yaml", "metrics.csv", "evaluations.csv")  # a folder with any of them is a run's
NONDETERMINISM = "nondeterminism: the same settings, code, data and machine gave different results:"


def read(folder: Path) -> tuple[list[Result], list[str]]:
    """The finished runs in a folder, named and without duplicates, and one line about each run that was left out."""
    results, notes = find(folder)
    return _once(named(results), folder, notes), notes


def find(folder: Path) -> tuple[list[Result], list[str]]:
    """The finished runs in a folder, from run folders and archives, and one line about each run that was left out."""
    results, notes = [], []
    below = folders(folder)
    runs = {place for place in below if (place / "run.json").exists()}
    for run_dir in below:
        if outer := next((place for place in run_dir.parents if place in runs), None):
            if run_dir in runs:  # otherwise it is a logger's folder inside a run
                notes.append(
                    f"{run_dir.relative_to(folder)} is left out: it is inside the folder of the run {outer.name}"
                )
            continue
        if not any((run_dir / name).exists() for name in FILES):
            continue
        found = read_run(run_dir)
        if isinstance(found, Result):
            results.append(found)
        else:
            notes.append(f"{folder if run_dir == folder else run_dir.relative_to(folder)} is left out: {found}")
    for place in below:
        if runs.isdisjoint((place, *place.parents)):
            for path in filter(archive.is_archive, sorted(place.glob("*.csv"))):
                results += archive.load(path, check)
    return sorted(results, key=lambda result: result.dir), notes


def folders(folder: Path) -> list[Path]:
    """A folder and its subfolders, sorted, each once. Links are followed, except to parents of the folder."""
    found: dict[Path, Path] = {}  # keyed by resolved path
    links = [folder]
    while links:
        for place, names, _ in os.walk(links.pop(0)):  # os.walk does not follow links
            path = Path(place)
            if path.resolve() in found:
                names.clear()
                continue
            found[path.resolve()] = path
            names.sort()
            linked = [path / name for name in names if (path / name).is_symlink()]
            links += [link for link in linked if not folder.resolve().is_relative_to(link.resolve())]
    return sorted(found.values())


def read_run(run_dir: Path) -> Result | str:
    """A run, or why it is left out."""
    try:
        record = json.loads((run_dir / "run.json").read_text())
        if record["status"] == "running" and not in_use(run_dir):
            return "it was killed, or runs on another machine"
        if record["status"] != "finished":
            return f"it is {record['status']}, not finished"
        text = (run_dir / "evaluations.csv").read_text()
        rows = list(csv.DictReader(text.splitlines()))
        steps = np.array([int(row["step"]) for row in rows])
        columns = {
            name: np.array([float(row[name] or "nan") for row in rows])
            for name in rows[-1]
            if name not in ("step", "returns")
        }
        metrics = _metrics(run_dir)
        columns |= _training_return(metrics, steps, offline_updates(record)) | _data_value(metrics, steps)
        returns = np.array((rows[-1].get("returns") or "").split(), float)
        result = Result(run_dir, record, steps, columns, _seconds(metrics, steps), returns=returns)
        check(result)
        if not text.endswith("\n") or result.unfinished:
            raise ValueError(result.unfinished or "its last evaluation is cut off")
    except UsageError as error:
        return str(error)
    except archive.DAMAGED as error:
        return f"it is half-written ({type(error).__name__}: {error})"
    return result


def check(result: Result) -> None:
    """Raises one of `archive.DAMAGED` if a run's record lacks what is read of it, or holds other things."""
    _ = result.figure("final"), result.task, result.settings, result.seed, result.env
    _ = result.peer or result.record["versions"]["zoo"], result.scores, _data(result), fingerprint(result)
    _ = result.file, result.identity, result.command, OmegaConf.create(shared(result.record)["config"])


def _metrics(run_dir: Path) -> list[dict[str, str]]:
    """The rows of a run's `metrics.csv`; empty if it has no such file."""
    path = run_dir / "metrics.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _seconds(metrics: list[dict[str, str]], steps: np.ndarray) -> np.ndarray:
    """The seconds of training up to each step."""
    known = [(int(row["step"]), float(row["seconds"])) for row in metrics if row["seconds"]]
    if not known:
        return np.full(len(steps), np.nan)
    times = np.array([(0, 0.0), *known])
    seconds: np.ndarray = np.interp(steps, times[:, 0], times[:, 1])
    return seconds


def _data_value(metrics: list[dict[str, str]], steps: np.ndarray) -> dict[str, np.ndarray]:
    """`data_value`: the critics' last value of the dataset before each evaluation; empty if the run has none."""
    rows = [row for row in metrics if row.get("data_value")]
    if not rows:
        return {}
    known = np.array([int(row["step"]) for row in rows])
    values = np.array([np.nan, *(float(row["data_value"]) for row in rows)])
    return {"data_value": values[np.searchsorted(known, steps, side="right")]}


def offline_updates(record: dict[str, Any]) -> int:
    """The number of a run's steps before its first environment step, according to its `run.json`."""
    config = record["config"]
    return int(config["steps"]) if config.get("online_steps") else 0


def episodes(steps: Sequence[int], lengths: Sequence[float], updates: int) -> np.ndarray:
    """The number of episodes that ended since the row before.

    Args:
        steps: the steps of the rows in which episodes have ended.
        lengths: the mean lengths of these episodes.
        updates: the number of steps before the first environment step.
    """
    counts: np.ndarray = np.diff(np.array(steps, int), prepend=updates) / np.array(lengths)
    return counts


def _training_return(metrics: list[dict[str, str]], steps: np.ndarray, updates: int) -> dict[str, np.ndarray]:
    """`training_return`: the mean return of the last training episodes, at the last evaluation; empty without any.

    Args:
        updates: the number of steps before the first environment step.
    """
    rows = [row for row in metrics if row.get("episode_return") and row.get("episode_length")]
    rows = [row for row in rows if not math.isnan(float(row["episode_length"]))]
    means = [float(row["episode_return"]) for row in rows]
    counts = episodes([int(row["step"]) for row in rows], [float(row["episode_length"]) for row in rows], updates)
    if not counts.any():  # an episode that ended at step 0 was not in training
        return {}
    later = np.cumsum(counts[::-1])[::-1] - counts  # number of episodes after those of each row
    weights = np.clip(LAST_EPISODES - later, 0, counts)
    values = np.full(len(steps), np.nan)
    values[-1] = np.average(means, weights=weights)
    return {"training_return": values}


def named(results: Sequence[Result]) -> list[Result]:
    """The runs with their tasks and methods."""
    by_task: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        by_task[_setting(result), _data(result)].append(result)
    results = []
    for found in by_task.values():  # several environments or datasets may have the same short name
        ids = {result.config["env"]["id"] for result in found}
        known = [result.references for result in found if result.references]
        varying = [name for name in REFERENCES if len({one[name] for one in known}) > 1]
        contents: dict[str, set[str]] = defaultdict(set)  # by the dataset's full name
        for result in found:
            contents[result.dataset] |= {fingerprint(result)} - {""}
        whole = len(set().union(*contents.values())) > 1
        series = {result.record.get("series") for result in found} - {None}
        for r in found:
            content = fingerprint(r)[:6] if len(contents[r.dataset]) > 1 else ""
            setting = _setting(r, len(ids) > 1, varying, (r.record.get("series") or "")[:6] if len(series) > 1 else "")
            results.append(replace(r, setting=setting, data=_data(r, whole, content)))
    origins: dict[tuple[str, str], set[str]] = defaultdict(set)  # by setting and the name in it
    for result in results:
        for key, digest in result.origins.items():
            origins[key, seedless(result.begun_with[key])].add(digest)
    alike_but_for: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        begun = result.begun_with.items()
        if apart := frozenset(key for key, one in begun if len(origins[key, seedless(one)]) > 1):
            result = replace(result, apart=apart)
        alike_but_for[result.peer, result.file or result.algo, str(result.config.get("preset"))].append(result)
    names = Counter(Path(file).name for file in {result.file for result in results})
    return [
        replace(r, method=_method(r, found, names[Path(r.file).name] > 1))
        for found in alike_but_for.values()
        for r in found
    ]


def fingerprint(result: Result) -> str:
    """The fingerprint of a run's dataset; empty if there is no dataset or it is unknown."""
    return str((result.record.get("dataset") or {}).get("fingerprint") or "")


def _setting(result: Result, whole: bool = False, varying: Iterable[str] = (), content: str = "") -> str:
    """The name of the environment, with a series' digest and the reference scores that vary between its runs."""
    name = f"{result.config['env']['id'] if whole else result.env} {content}".strip()
    scores = {key: result.references[key] for key in varying if result.references}
    return ", ".join([name, *as_overrides(result.altered | scores)])


def _data(result: Result, whole: bool = False, content: str = "") -> str:
    parts = []
    if result.dataset:
        mixture = parse_mixture(result.dataset)
        name = "+".join(part.amount + (part.name if whole else short(part.name)) for part in mixture)
        parts.append(f"{name} {content}".strip())
    if corruption := result.corruption:
        parts.append(corruption["name"])
        parts += [f"{k}={corruption[k]}" for k in ("rate", "scale") if corruption[k] != getattr(CorruptionConfig, k)]
    return ", ".join(parts)


def _method(result: Result, others: Iterable[Result], whole: bool) -> str:
    """The algorithm, its preset, its online steps, and settings that were changed or that distinguish it from others.

    Args:
        result: a run.
        others: all runs of the same algorithm and preset, including this one.
        whole: whether a user's file is named with its folder.
    """
    preset = result.config.get("preset")
    by_task: dict[str, list[Result]] = defaultdict(list)
    for other in others:
        by_task[other.task].append(other)
    file = result.file if whole else Path(result.file).name
    parts = [file or result.algo] + ([preset] if preset else [])
    for key, value in sorted(result.settings.items()):
        varies = any(len({json.dumps(o.settings.get(key)) for o in found}) > 1 for found in by_task.values())
        is_shown = varies or key == SIMULATOR or (key.startswith(OF_LEARNING) and not result.file)
        if (is_shown and key in result.changed) or (key == "online_steps" and value):
            shown = as_overrides({key.removeprefix("algo."): value})[0]
            parts.append(str(value) if key == "sampler.name" else shown)
    return ", ".join(parts) + (f" ({result.peer})" if result.peer else "")


def _once(results: Sequence[Result], folder: Path, notes: list[str]) -> list[Result]:
    """Keeps one run of each task, method and seed, and adds a note about it."""
    groups: dict[tuple[str, str, int], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.task, result.method, result.seed].append(result)
    kept = []
    for (task, method, seed), found in groups.items():
        same: dict[str, list[Result]] = defaultdict(list)
        for result in found:
            same[result.identity].append(result)
        for contradicting in filter(_differ, same.values()):
            places = ", ".join(str(result.dir.relative_to(folder)) for result in contradicting)
            notes.append(f"{NONDETERMINISM} {method} on {task}, seed {seed}: {places} are left out")
            found = [result for result in found if result.identity != contradicting[0].identity]
        if not found:
            continue
        places = ", ".join(str(result.dir.relative_to(folder)) for result in found)
        if _differ(found):
            begun = sorted({run_dir for result in found for run_dir in result.begun_with.values()})
            after = f", beginning with {', '.join(begun)}" if len(begun) > 1 else ""
            notes.append(
                f"{method} on {task}, seed {seed} was run more than once ({places}){after}: the last one counts"
            )
        kept.append(max(found, key=lambda result: str(result.record.get("ended", ""))))
    return kept


def _differ(results: Sequence[Result]) -> bool:
    first, *others = ({"step": result.steps, **result.columns} for result in results)
    return any(
        first.keys() != other.keys()
        or not all(np.array_equal(first[name], other[name], equal_nan=True) for name in first)
        for other in others
    )
