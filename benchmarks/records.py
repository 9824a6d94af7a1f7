"""Finished runs, read back from their folders: what each was set, with which method, and what it reached.

Three figures of a run are kept apart: `final`, its last evaluation; `best`, the best one, which is chosen by the test
itself; and `area`, the mean over all evaluations, the area under the learning curve by its length. Evaluations have
seeds of their own, apart from the training's.
"""

import csv
import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from zoo.benchmarks.suite import ELSEWHERE, digest
from zoo.data.catalog import parse_mixture
from zoo.data.corruption import CorruptionConfig
from zoo.errors import UsageError
from zoo.settings.compose import as_overrides, compose
from zoo.settings.presets import short
from zoo.settings.registry import environments

FIGURES = ("final", "best", "area")
MEASURES = {
    "score": "normalized score", "return_mean": "return", "value_error": "value error",
    "training_return": "return of training episodes",
}  # fmt: skip
LAST_EPISODES = 100  # of training, averaged as in CleanRL's tables: rlops --metric-last-n-average-window
FILES = ("run.json", "config.yaml", "metrics.csv", "evaluations.csv")  # any of them makes a folder a run's
NONDETERMINISM = "nondeterminism: the same settings, code, data and machine gave different results:"
LEAST_IS_BEST = ("value_error",)  # of the measures; of all others the most is
ANY = "ppo"  # an algorithm, for the settings that are every one's
# settings that make one method another
METHOD = ("algo.", "sampler.", "steps", "online_steps", "num_envs", "eval_deterministic")


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        dir: its folder.
        record: its `run.json`.
        steps: of its evaluations.
        columns: of `evaluations.csv` that hold numbers, as long; NaN where one is left out.
        seconds: of training up to each evaluation; NaN where they are not known.
        setting: the environment it was set in, with what was asked of it besides: `hopper`, `pong, sticky=0.25`.
        data: what it was given to learn from: `medium, random-obs`; empty without a dataset.
        method: by what: `iql`, with the settings that tell it from others of the same algorithm.
    """

    dir: Path
    record: dict[str, Any]
    steps: np.ndarray
    columns: dict[str, np.ndarray]
    seconds: np.ndarray
    setting: str = ""
    data: str = ""
    method: str = ""

    @property
    def task(self) -> str:
        """What it was set: `hopper, medium, random-obs`."""
        return ", ".join(filter(None, (self.setting, self.data)))

    @property
    def config(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.record["config"]
        return settings

    @property
    def algo(self) -> str:
        return str(self.config["algo"]["name"])

    @property
    def env(self) -> str:
        return str(self.config["env"]["name"])

    @property
    def dataset(self) -> str:
        """The name that the data was asked for by; empty for a run without any."""
        return str(self.config.get("dataset") or "") if self.record.get("dataset") else ""

    @property
    def corruption(self) -> dict[str, Any] | None:
        """How the data was tampered with, if it was."""
        given: dict[str, Any] = self.config.get("corruption") or {"name": CorruptionConfig.name}
        return given if given["name"] != CorruptionConfig.name else None

    @property
    def altered(self) -> dict[str, Any]:
        """What makes its environment another than the one of that name: other episodes, sticky actions."""
        env = self.config["env"]
        return {key: env[key] for key in ("max_episode_steps", "sticky") if env.get(key)}

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def peer(self) -> str:
        """Whose run it is, if it is not the zoo's."""
        return str(self.record.get("peer") or "")

    @property
    def file(self) -> str:
        """That the algorithm is in, if it is not the zoo's own."""
        return str((self.record.get("algorithm") or {}).get("file") or "")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What makes up the method, flat."""
        return {key: value for key, value in flat(self.config).items() if key.startswith(METHOD) and key != "algo.name"}

    @cached_property
    def changed(self) -> dict[str, Any]:
        """Of these, what is not as it usually is, or with the run's preset; all of them for a file of one's own."""
        usual = {} if self.file else self.usual(self.config.get("preset"))
        return {key: value for key, value in self.settings.items() if (key, value) not in usual.items()}

    def usual(self, preset: str | None = None) -> dict[str, Any]:
        """All settings, flat, of a run of its algorithm and task with a preset; none where it has nothing for it."""
        given = {"preset": preset, "dataset": self.dataset, "corruption": (self.corruption or {}).get("name")}
        more = as_overrides({key: value for key, value in given.items() if value}) if preset else []
        return defaults(self.algo, environment(self.config), tuple(more))

    @property
    def measure(self) -> str:
        """The column that the run is judged by: a normalized score offline, the return itself online."""
        if "value_error" in self.columns:
            return "value_error"
        known = "score" in self.columns and not np.isnan(self.columns["score"]).any()
        return "score" if self.dataset and known else "return_mean"

    def figure(self, name: str, measure: str | None = None) -> float:
        """`final`, `best` or `area`."""
        measure = measure or self.measure
        values = self.columns[measure]
        known = values[~np.isnan(values)]
        if name == "final" or not len(known):
            return float(values[-1])
        if name == "area":
            return float(known.mean())
        return float(known.min() if measure in LEAST_IS_BEST else known.max())

    @property
    def command(self) -> str:
        """Starts the run again; empty where it is somebody else's."""
        if self.peer:
            return ""
        env = environment(self.config)
        start, named, usual = "zoo run", {"algo": self.algo, "env": env}, defaults(self.algo, env)
        if self.file:  # is not asked what its settings usually are: that would run it
            start, named = f"python {shlex.quote(self.file)}", {"env": env}
            usual = {key: value for key, value in defaults(ANY, env).items() if not key.startswith("algo.")}
        told = (*ELSEWHERE, "preset", "algo.name", "env.id", "env.name")
        changed = {k: v for k, v in flat(self.config).items() if k not in told and (k, v) not in usual.items()}
        named |= {
            group: changed.pop(f"{group}.name") for group in ("sampler", "corruption") if f"{group}.name" in changed
        }
        return " ".join([start, *as_overrides(named | changed)])

    @property
    def identity(self) -> str:
        """Digest of all that decides what the run gives, to the last bit."""
        settings = {key: value for key, value in self.config.items() if key not in ELSEWHERE or key == "threads"}
        code = [self.record.get(key) for key in ("peer", "code", "versions", "hardware")]
        data = (self.record.get("dataset") or {}).get("fingerprint")
        cut = "resumed" in self.record and not data  # not all simulators can be put back in the middle of an episode
        return digest([settings, code, data, cut])


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"algo": {"beta": 1}}` -> `{"algo.beta": 1}`."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves


def read(folder: Path) -> tuple[list[Result], list[str]]:
    """The finished runs below a folder, named and each once; and what is to be said of the others, a line each."""
    results, notes = [], []
    places = {path.parent for path in folder.rglob("*") if path.name in FILES}
    runs = {place for place in places if (place / "run.json").exists()}
    for run_dir in sorted(places):
        if not runs.isdisjoint(run_dir.parents):
            continue  # what a logger keeps inside of a run
        found = read_run(run_dir)
        if isinstance(found, Result):
            results.append(found)
        else:
            notes.append(f"{run_dir.relative_to(folder)} is left out: {found}")
    return _once(named(results), folder, notes), notes


def read_run(run_dir: Path) -> Result | str:
    """A run, or why it cannot be taken."""
    try:
        record = json.loads((run_dir / "run.json").read_text())
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
        columns |= _training_return(run_dir, steps)
        result = Result(run_dir, record, steps, columns, _seconds(run_dir, steps))
        _ = result.figure("final"), result.task, result.settings, result.seed, result.env
        _ = result.peer or result.record["versions"]["zoo"]
        due = int(result.config["steps"]) + int(result.config["online_steps"])
        if not text.endswith("\n") or (steps[-1] < due and not result.peer):
            raise ValueError(f"its evaluations end at {steps[-1]:,} of {due:,} steps")
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        return f"it is half-written ({type(error).__name__}: {error})"
    return result


def _seconds(run_dir: Path, steps: np.ndarray) -> np.ndarray:
    """Of training, up to each of some steps."""
    path = run_dir / "metrics.csv"
    told: list[tuple[int, float]] = []
    if path.exists():
        with path.open(newline="") as file:
            told = [(int(row["step"]), float(row["seconds"])) for row in csv.DictReader(file) if row["seconds"]]
    if not told:
        return np.full(len(steps), np.nan)
    known = np.array([(0, 0.0), *told])
    seconds: np.ndarray = np.interp(steps, known[:, 0], known[:, 1])
    return seconds


def _training_return(run_dir: Path, steps: np.ndarray) -> dict[str, np.ndarray]:
    """`training_return`: the mean of the last episodes of training, at the last evaluation; none where it has none."""
    path = run_dir / "metrics.csv"
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("episode_return") and row.get("episode_length")]
    means, counts, before = [], [], 0
    for row in rows:  # the mean of the episodes that ended since the row before
        length, step = float(row["episode_length"]), int(row["step"])
        if length == length:
            means.append(float(row["episode_return"]))
            counts.append((step - before) / length)
            before = step
    if not means:
        return {}
    later = np.cumsum(counts[::-1])[::-1] - counts  # episodes after those of each row
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
    for found in by_task.values():  # one short name may stand for several environments or datasets
        ids = {result.config["env"]["id"] for result in found}
        data = {(result.record.get("dataset") or {}).get("fingerprint") for result in found} - {None}
        results += [replace(r, setting=_setting(r, len(ids) > 1), data=_data(r, len(data) > 1)) for r in found]
    alike_but_for: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        alike_but_for[result.peer, result.file or result.algo, str(result.config.get("preset"))].append(result)
    return [replace(r, method=_method(r, found)) for found in alike_but_for.values() for r in found]


def _setting(result: Result, whole: bool = False) -> str:
    name = str(result.config["env"]["id"]) if whole else result.env
    return ", ".join([name, *as_overrides(result.altered)])


def _data(result: Result, whole: bool = False) -> str:
    parts = []
    if result.dataset:
        mixture = [(share, part if whole else short(part)) for share, part in parse_mixture(result.dataset)]
        parts.append("+".join(("" if share == 1 else f"{100 * share:g}%") + part for share, part in mixture))
    if corruption := result.corruption:
        parts.append(corruption["name"])
        parts += [f"{k}={corruption[k]}" for k in ("rate", "scale") if corruption[k] != getattr(CorruptionConfig, k)]
    return ", ".join(parts)


def _method(result: Result, others: Iterable[Result]) -> str:
    """The algorithm, its preset, and the settings that somebody changed or that tell it from others of the same task.

    Args:
        result: a run.
        others: all runs of the same algorithm and preset, itself among them.
    """
    preset = result.config.get("preset")
    by_task: dict[str, list[Result]] = defaultdict(list)
    for other in others:
        by_task[other.task].append(other)
    parts = [Path(result.file).name or result.algo] + ([preset] if preset else [])
    for key, value in sorted(result.changed.items()):
        varies = any(len({json.dumps(o.settings.get(key)) for o in found}) > 1 for found in by_task.values())
        if varies or (key.startswith(("algo.", "sampler.")) and not result.file):
            shown = as_overrides({key.removeprefix("algo."): value})[0]
            parts.append(str(value) if key == "sampler.name" else shown)
    return ", ".join(parts) + (f" ({result.peer})" if result.peer else "")


def environment(config: dict[str, Any]) -> str:
    """What a run's environment is asked for by."""
    name = str(config["env"]["name"])
    return name if name in environments() else str(config["env"]["id"])


@cache
def defaults(algo: str, env: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """All settings as they are where nothing but that is asked for, flat; none of what the zoo does not have."""
    try:
        return flat(compose([f"algo={algo}", f"env={env}", *more])[2])
    except UsageError:
        return {}


def _once(results: Sequence[Result], folder: Path, notes: list[str]) -> list[Result]:
    """Of the runs of one task, method and seed, one; what was decided is noted."""
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
            notes.append(f"{method} on {task}, seed {seed} was run more than once ({places}): the last one counts")
        kept.append(max(found, key=lambda result: str(result.record.get("ended", ""))))
    return kept


def _differ(results: Sequence[Result]) -> bool:
    first, *others = ({"step": result.steps, **result.columns} for result in results)
    return any(
        first.keys() != other.keys()
        or not all(np.array_equal(first[name], other[name], equal_nan=True) for name in first)
        for other in others
    )
