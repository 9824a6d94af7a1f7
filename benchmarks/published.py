"""Published figures, to compare runs with: `references/*.csv`, each with its source, and files of the same columns.

Columns: task, algorithm, mean, std, seeds, source and, where they are known, `steps` or `budget`; sampler (uniform, AW,
RW, top-10%), report (last or best evaluation, or last3, the mean of the last three), evaluations: of how many a best
one is the best, measure: `evaluation`, or `training` for the mean return of the last episodes that the agent learned
from, exploring, as CleanRL's tables have it, ddof: 0 where the standard deviation is the population's, and preset: the
one whose settings the figure was measured with, `paper` where a row has none. A task is
`d4rl/<dataset>`, `neorl2/<task>` or `ogbench/<dataset>`, whose figures are normalized scores, or the id of an
environment. Like is compared with like.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.benchmarks.peers import EPISODES, SLACK
from zoo.benchmarks.records import MEASURES, OF_LEARNING, Result, defaults, used
from zoo.benchmarks.stats import Published
from zoo.data.catalog import parse_mixture
from zoo.data.samplers import SAMPLERS
from zoo.errors import UsageError, nearest
from zoo.settings.config import RunConfig
from zoo.settings.presets import short
from zoo.settings.registry import folder

PUBLISHED_AS = {"AW": "advantage", "RW": "return", "top-10%": "top"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # what has another name here: an algorithm and its settings
    "10% BC": ("bc", {"algo.top_fraction": 0.1}),
    "SAC-N": ("edac", {"algo.eta": 0.0}),
}
FIGURE = {"last": "final", "last3": "last3", "best": "best"}
MEASURE = {"evaluation": "return_mean", "training": "training_return"}  # of environments; of datasets the score
COMPARED = (*OF_LEARNING, "num_envs", "eval_deterministic")  # settings that must be those of the published figure
OF_DATASETS = re.compile(r"d4rl/|ogbench/|neorl2/\w+$")  # tasks; an environment's id ends with its version


@dataclass(frozen=True)
class Reference:
    """A published figure.

    Attributes:
        task, algorithm: by their names there.
        measure: the column of a run that it is about.
        figure: `final`, `last3` or `best`.
        sampler: by its name here.
        steps: None where it is not said.
        preset: with whose settings; one that the zoo does not have is of settings that no run has.
        evaluations: of which a best one is the best: the more, the higher; None where it is not said.
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
        """The algorithm by its name here."""
        return VARIANTS.get(self.algorithm, (re.sub(r"\W+", "_", self.algorithm).lower(), {}))[0]

    @property
    def column(self) -> str:
        """The one of a report's figures that it stands below."""
        return "final" if self.figure == "last3" else self.figure

    def fits(self, result: Result) -> bool:
        """Whether it is of the same task, as far as names go, and of the same method."""
        settings = VARIANTS.get(self.algorithm, ("", {}))[1]
        own = {key: value for _, others in VARIANTS.values() for key, value in others.items()}
        variant = all(result.settings.get(key) == value for key, value in settings.items())
        other = any(result.settings.get(key) == value for key, value in own.items() if key not in settings)
        known = result.settings.get("sampler.name", "uniform") == self.sampler
        return result.algo == self.algo and variant and not other and known and self.task in tasks(result)

    def differs(self, result: Result) -> str:
        """Why the two cannot be compared; empty where they can."""
        reasons = []
        if self.measure == "score":
            parts = parse_mixture(result.dataset)
            versions = {official(part.name) for part in parts}
            if versions != {self.task.rpartition("-")[2]}:  # of NeoRL-2, whose data have one, the whole task
                reasons.append("other data" if None in versions else "other version of the data")
            if abs(sum(part.share for part in parts) - 1) > 1e-9:  # theirs are as large as each part
                reasons.append("other mixture" if len(parts) > 1 else "a part of the data")
            if result.config["online_steps"]:
                reasons.append("continues online")
            usual = defaults(result.algo, result.env) or result.usual()  # an environment of its own has its id alone
            if any(usual.get(f"env.{name}") not in (None, score) for name, score in result.references.items()):
                reasons.append("other reference scores")
        if self.measure == "return_mean" and (result.record.get("source") or {}).get("column") in EPISODES:
            reasons.append("returns of training episodes")
        if result.file or self.settings(result) != chosen(result.settings):
            reasons.append("other settings")
        if self.measure not in result.columns or np.isnan(result.figure(self.figure, self.measure)):
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
        """The settings of algorithm and sampler that the published figure was reached with."""
        usual = result.usual(self.preset) or (result.usual() if self.preset == "paper" else {})
        return used(chosen(usual) | VARIANTS.get(self.algorithm, ("", {}))[1] | {"sampler.name": self.sampler})

    def aside(self, result: Result) -> str:
        """A remark for a comparison; empty where there is none."""
        env = str(result.config["env"]["id"])
        same = {env, *names_elsewhere(env)}
        return f", but in {env}" if self.measure != "score" and self.task not in same else ""


def chosen(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of algorithm, sampler, rewards, environments and the online stage; older records lack some."""
    usual = {name: value for name, value in vars(RunConfig).items() if name in COMPARED}
    usual["eval_deterministic"] = True  # as runs were that do not say
    return usual | {k: v for k, v in settings.items() if k.startswith(COMPARED) and k != "algo.name"}


def tasks(result: Result) -> set[str]:
    """The names under which a run's task may have been published; none for tampered data or an altered environment."""
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
    """Whether a dataset of D4RL's own is, by its name, not of the environment `ours`, or in another of its mazes."""
    found = re.fullmatch(r"D4RL/(\w+)/.*|(?:.*/)?(\w+?)_.*-v\d+\.hdf5", dataset)
    if not found:
        return False
    maze = env.split("_")[1].partition("-")[0].lower() if ours == "antmaze" else ""  # umaze of AntMaze_UMaze-v4
    return (found[1] or found[2]) != ours or not short(dataset).startswith(maze)


def names_elsewhere(env: str) -> set[str]:
    """Other libraries' names for the same environment: Atari's without sticky actions, dm_control's by Shimmy."""
    if game := re.fullmatch(r"ALE/(\w+)-v5", env):
        return {f"{game[1]}NoFrameskip-v4", f"{game[1]}-v5"}  # Gymnasium's, EnvPool's
    return {f"dm_control/{env.removeprefix('dmc/')}-v0"} if env.startswith("dmc/") else set()


def official(dataset: str) -> str | None:
    """The version of a dataset of D4RL's own, by its name: `D4RL/hopper/medium-v2`, `hopper_medium-v2.hdf5`.

    The task of one of NeoRL-2's: `neorl2/Pipeline` of `Pipeline-train.npz`. The kind of one of OGBench's: `stitch` of
    `antmaze-large-stitch-v0.npz`.
    """
    if found := re.fullmatch(r"(?:.*/)?[\w-]+-(navigate|stitch|explore|play|noisy)-v0\.npz", dataset):
        return found[1]
    if found := re.fullmatch(r"(?:.*/)?(\w+)-train\.npz", dataset):
        return f"neorl2/{found[1]}"
    found = re.fullmatch(r"D4RL/.*-(v\d+)|.*-(v\d+)\.hdf5", dataset)
    return found and (found[1] or found[2])


def read(path: Path) -> list[Reference]:
    """The rows of a file.

    Raises:
        UsageError: it cannot be read, or a row has no task, algorithm, mean or source.
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
    """All published figures that the zoo has."""
    paths = sorted((folder("benchmarks") / "references").glob("*.csv"))
    return [reference for path in paths for reference in read(path)]


def unmatched(references: Sequence[Reference], results: Sequence[Result]) -> list[str]:
    """A line for each figure that matches no run, with the nearest names."""
    known = sorted({task for result in results for task in tasks(result)})
    lines = []
    for reference in references:
        if not any(reference.fits(result) for result in results):
            algos = {result.algo for result in results if reference.task in tasks(result)}
            near = nearest(reference.algorithm, algos) if algos else nearest(reference.task, known) if known else ""
            lines.append(f"{reference.algorithm} on {reference.task} matches no run. {near}".rstrip())
    return lines
