"""Published figures to compare runs with, from `references/*.csv` and the user's files with the same columns.

The columns are task, algorithm, mean, std over the seeds (empty if it is not known), seeds, source and, if known:

- steps or budget
- sampler: uniform, AW, RW or top-10%
- report: last or best evaluation, or last3, the mean of the last three
- evaluations: for a best evaluation, how many evaluations it is the best of
- measure: `evaluation`, or `training` for the mean return of the last training episodes, with exploration, as in
  CleanRL's tables
- ddof: 0 if the standard deviation is the population's
- preset: the preset with whose settings the figure was measured; `paper` by default

A task is `d4rl/<dataset>`, `neorl2/<task>` or `ogbench/<dataset>`, whose figures are normalized scores, or the id of an
environment. A run is only compared with figures of the same kind.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.benchmarks.peers import EPISODES, SLACK
from zoo.benchmarks.records import MEASURES, OF_LEARNING, SIMULATOR, Result, defaults, used
from zoo.benchmarks.stats import Published
from zoo.data.catalog import parse_mixture
from zoo.data.samplers import SAMPLERS
from zoo.errors import UsageError, nearest
from zoo.settings.config import RunConfig
from zoo.settings.presets import short
from zoo.settings.registry import folder

PUBLISHED_AS = {"AW": "advantage", "RW": "return", "top-10%": "top"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # algorithms with another name here, and settings
    "10% BC": ("bc", {"algo.top_fraction": 0.1}),
    "SAC-N": ("edac", {"algo.eta": 0.0}),
}
FIGURE = {"last": "final", "last3": "last3", "best": "best"}
MEASURE = {"evaluation": "return_mean", "training": "training_return"}  # for environments; for datasets it is the score
COMPARED = (*OF_LEARNING, "num_envs", "eval_deterministic")  # settings that must equal those of the published figure
OF_DATASETS = re.compile(r"d4rl/|ogbench/|neorl2/\w+$")  # tasks with a dataset; an environment's id ends in a version


@dataclass(frozen=True)
class Reference:
    """A published figure.

    Attributes:
        task, algorithm: the published names.
        measure: the column of a run that it is compared with.
        figure: `final`, `last3` or `best`.
        sampler: the zoo's name of the sampler.
        steps: the number of steps; None if not published.
        preset: the preset with whose settings it was measured. With a preset that the zoo does not have, it is
            comparable to no run.
        evaluations: for a best evaluation, how many it is the best of: with more, it is higher. None if not published.
        published: mean, standard deviation, seeds and source.
    """

    task: str
    algorithm: str
    measure: str
    figure: str
    sampler: str
    steps: int | None
    published: Published
    preset: str = "paper"
    evaluations: int | None = None

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise ValueError(f"sampler {self.sampler}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps {self.steps}")

    @property
    def algo(self) -> str:
        """The zoo's name of the algorithm."""
        return VARIANTS.get(self.algorithm, (re.sub(r"\W+", "_", self.algorithm).lower(), {}))[0]

    @property
    def column(self) -> str:
        """The column of the report's tables that shows it."""
        return "final" if self.figure == "last3" else self.figure

    def fits(self, result: Result) -> bool:
        """Whether it has the same task, judged by its name, and the same method."""
        settings = VARIANTS.get(self.algorithm, ("", {}))[1]
        own = {key: value for _, others in VARIANTS.values() for key, value in others.items()}
        variant = all(result.settings.get(key) == value for key, value in settings.items())
        other = any(result.settings.get(key) == value for key, value in own.items() if key not in settings)
        known = result.settings.get("sampler.name", "uniform") == self.sampler
        return result.algo == self.algo and variant and not other and known and self.task in tasks(result)

    def differs(self, result: Result) -> str:
        """Why the two are not comparable; empty if they are."""
        reasons = []
        if self.measure == "score":
            parts = parse_mixture(result.dataset)
            versions = {official(part.name) for part in parts}
            if versions != {self.task.rpartition("-")[2]}:  # for NeoRL-2 it is the whole task
                reasons.append("other data" if None in versions else "other version of the data")
            if abs(sum(part.share for part in parts) - 1) > 1e-9:  # theirs have the size of each part
                reasons.append("other mixture" if len(parts) > 1 else "a part of the data")
            if result.config["online_steps"]:
                reasons.append("continues online")
            usual = defaults(result.algo, result.env) or result.usual()  # a user's environment has only its id
            if any(usual.get(f"env.{name}") not in (None, score) for name, score in result.references.items()):
                reasons.append("other reference scores")
        if self.measure == "return_mean" and (result.record.get("source") or {}).get("column") in EPISODES:
            reasons.append("returns of training episodes")
        own = used(chosen(result.usual() | result.settings))  # an option that is newer than the run has its default
        if result.file or self.settings(result) != own:
            reasons.append("other settings")
        if SIMULATOR in result.settings:
            reasons.append("another simulator")
        if self.measure not in result.columns or not np.isfinite(result.figure(self.figure, self.measure)):
            reasons.append(f"no {MEASURES[self.measure]} is known")
        if self.figure == "last3" and len(result.steps) < 3:
            reasons.append("fewer than three evaluations")
        if self.figure == "best" and abs(len(result.steps) / (self.evaluations or np.inf) - 1) > SLACK:
            theirs = self.evaluations or "an unknown number"
            reasons.append(f"the best of {len(result.steps)} evaluations, theirs of {theirs}")
        if self.steps and abs(share := result.steps[-1] / self.steps - 1) > SLACK:
            reasons.append(f"{100 * (share + 1):{',.0f' if share > -0.9 else '.2g'}} % of the steps")
        return ", ".join(reasons)

    def settings(self, result: Result) -> dict[str, Any]:
        """The settings of algorithm and sampler with which the published figure was measured."""
        usual = result.usual(self.preset) or (result.usual() if self.preset == "paper" else {})
        return used(chosen(usual) | VARIANTS.get(self.algorithm, ("", {}))[1] | {"sampler.name": self.sampler})

    def aside(self, result: Result) -> str:
        """A remark for a comparison; may be empty."""
        env = str(result.config["env"]["id"])
        same = {env, *names_elsewhere(env)}
        return f", but in {env}" if self.measure != "score" and self.task not in same else ""


def chosen(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of algorithm, sampler, rewards, environments and the online stage; older records lack some."""
    usual = {name: value for name, value in vars(RunConfig).items() if name in COMPARED}
    usual["eval_deterministic"] = True  # for records without this setting
    return usual | {k: v for k, v in settings.items() if k.startswith(COMPARED) and k != "algo.name"}


def tasks(result: Result) -> set[str]:
    """The names under which a run's task may be published; none if its data or environment was changed."""
    if result.corruption or result.altered:
        return set()
    env = str(result.config["env"]["id"])
    if not result.dataset:
        if elsewhere := names_elsewhere(env):
            return {env, *elsewhere}
        base, _, version = env.rpartition("-v")
        return {f"{base}-v{number}" for number in range(int(version) + 1)} if version.isdigit() else {env}
    first, *others = parse_mixture(result.dataset)
    if len(others) > 1 or any(part.episodes for part in (first, *others)):
        return set()
    if env.startswith("neorl2/"):
        return set() if others else {env.rpartition("-")[0]}
    if env.startswith("ogbench/"):
        kind, maze = official(first.name), env.removeprefix("ogbench/")
        own = kind is None or first.name.rpartition("/")[2] == f"{maze}-{kind}-v0.npz"
        return {f"{env}-{kind or first.name}"} if own and not others else set()
    name = "-".join([short(first.name), *(f"{short(part.name)}-{100 * part.share:g}%" for part in others)])
    ours = "antmaze" if env.startswith("AntMaze_") else result.env.removeprefix("adroithand")
    if any(_of_another(part.name, ours, env) for part in (first, *others)):
        return set()
    return {f"d4rl/{ours}-{name}-v{version}" for version in range(3)}


def _of_another(dataset: str, ours: str, env: str) -> bool:
    """Whether one of D4RL's datasets is, by its name, for another environment than `ours`, or for another maze."""
    found = re.fullmatch(r"D4RL/(\w+)/.*|(?:.*/)?(\w+?)_.*-v\d+\.hdf5", dataset)
    if not found:
        return False
    maze = env.split("_")[1].partition("-")[0].lower() if ours == "antmaze" else ""  # umaze for AntMaze_UMaze-v4
    return (found[1] or found[2]) != ours or not short(dataset).startswith(maze)


def names_elsewhere(env: str) -> set[str]:
    """Other libraries' names for the same environment: Atari without sticky actions, and Shimmy's dm_control."""
    if game := re.fullmatch(r"ALE/(\w+)-v5", env):
        return {f"{game[1]}NoFrameskip-v4", f"{game[1]}-v5"}  # in Gymnasium and in EnvPool
    return {f"dm_control/{env.removeprefix('dmc/')}-v0"} if env.startswith("dmc/") else set()


def official(dataset: str) -> str | None:
    """What the name of an official dataset says about it.

    For D4RL's datasets, the version: `v2` for `D4RL/hopper/medium-v2` and `hopper_medium-v2.hdf5`. For NeoRL-2's, the
    task: `neorl2/Pipeline` for `Pipeline-train.npz`. For OGBench's, the kind: `stitch` for
    `antmaze-large-stitch-v0.npz`. None for other datasets.
    """
    if found := re.fullmatch(r"(?:.*/)?[\w-]+-(navigate|stitch|explore|play|noisy)-v0\.npz", dataset):
        return found[1]
    if found := re.fullmatch(r"(?:.*/)?(\w+)-train\.npz", dataset):
        return f"neorl2/{found[1]}"
    found = re.fullmatch(r"D4RL/.*-(v\d+)|.*-(v\d+)\.hdf5", dataset)
    return found and (found[1] or found[2])


def read(path: Path) -> list[Reference]:
    """Reads the rows of a file.

    Raises:
        UsageError: the file cannot be read, or a row has no task, algorithm, mean or source.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {str(error).rstrip('.')}.") from error
    references = []
    for number, row in enumerate(rows, 2):
        try:
            steps = row.get("steps") or (row.get("budget") or "").partition(" ")[0]
            mean, std, ddof = float(row["mean"]), float(row["std"] or "nan"), int(row.get("ddof") or 1)
            published = Published(mean, std, int(row["seeds"] or 0), row["source"], ddof)
            if not row["source"] or not row["algorithm"]:
                raise ValueError("source or algorithm is empty")
            count = int(float(steps.replace(",", "").replace("_", ""))) if steps else None
            report, sampler = row.get("report") or "last", row.get("sampler") or "uniform"
            sampler, measure = PUBLISHED_AS.get(sampler, sampler), MEASURE[row.get("measure") or "evaluation"]
            measure = "score" if OF_DATASETS.match(row["task"]) else measure
            references.append(
                Reference(
                    row["task"],
                    row["algorithm"],
                    measure,
                    FIGURE[report],
                    sampler,
                    count,
                    published,
                    row.get("preset") or "paper",
                    int(row["evaluations"]) if row.get("evaluations") else None,
                )
            )
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise UsageError(
                f"{path}, line {number}: {type(error).__name__} {error}; a row has the columns task, algorithm, mean, "
                "std, seeds, source and may have steps, sampler, report (last, last3, best), evaluations, measure "
                "(evaluation, training), ddof, preset."
            ) from error
    return references


def builtin() -> list[Reference]:
    """All published figures in the zoo."""
    paths = sorted((folder("benchmarks") / "references").glob("*.csv"))
    return [reference for path in paths for reference in read(path)]


def unmatched(references: Sequence[Reference], results: Sequence[Result]) -> list[str]:
    """A line for each published figure that matches no run, with the most similar names."""
    known = sorted({task for result in results for task in tasks(result)})
    lines = []
    for reference in references:
        if not any(reference.fits(result) for result in results):
            algos = {result.algo for result in results if reference.task in tasks(result)}
            near = nearest(reference.algorithm, algos) if algos else nearest(reference.task, known) if known else ""
            lines.append(f"{reference.algorithm} on {reference.task} matches no run. {near}".rstrip())
    return lines
