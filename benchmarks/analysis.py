"""Compares the runs in a folder: by task and method, with published figures, over several tasks, and in pairs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zoo.benchmarks import plots
from zoo.benchmarks.peers import SLACK
from zoo.benchmarks.published import Reference, builtin, unmatched
from zoo.benchmarks.reading import read
from zoo.benchmarks.records import MEASURES, Result
from zoo.benchmarks.stats import SCORE_TOLERANCE, Estimate, aggregates, digits, improvement, mean, verdict
from zoo.benchmarks.switch import Switch, switches
from zoo.benchmarks.trials import reached
from zoo.errors import UsageError


@dataclass(frozen=True)
class Row:
    """The runs of one method on one task.

    Attributes:
        measure: the column by which all runs of the task are compared.
        runs: the runs, sorted by seed.
    """

    task: str
    method: str
    measure: str
    runs: tuple[Result, ...]

    @property
    def steps(self) -> int:
        """The step of the last evaluation."""
        return int(max(run.steps[-1] for run in self.runs))

    @property
    def budget(self) -> str:
        """The steps that it was set to, as text: `20,000` or, if it continued online, `20,000 + 5,000 online`."""
        steps, online = (int(self.runs[0].config[name]) for name in ("steps", "online_steps"))
        return f"{steps:,} + {online:,} online" if online else f"{steps:,}"

    @property
    def evaluations(self) -> int:
        """The number of evaluations of a run; the largest if the runs differ."""
        return max(len(run.steps) for run in self.runs)

    def values(self, figure: str) -> np.ndarray:
        """A figure of each run, `[R]`."""
        return np.array([run.figure(figure, self.measure) for run in self.runs])

    def estimate(self, figure: str) -> Estimate:
        return mean(self.values(figure))


@dataclass(frozen=True)
class Comparison:
    """Compares a row with a published figure: our mean, the verdict, and the difference of the means.

    Attributes:
        compared: whether the two are comparable.
    """

    row: Row
    reference: Reference
    ours: float
    compared: bool
    verdict: str
    difference: Estimate

    @property
    def source(self) -> str:
        """Where it was published, and what was measured if this differs from the row's own measure and figure."""
        other = [MEASURES[self.reference.measure]] if self.reference.measure != self.row.measure else []
        if self.reference.figure == "last3":
            other.append("means of the last three evaluations")
        return self.reference.published.source + (f" ({', '.join(other)})" if other else "")

    @property
    def published(self) -> str:
        """The published mean, and its standard deviation if known."""
        mean, std = self.reference.published.mean, self.reference.published.std
        shown = digits(np.array([mean, std]))
        return f"{mean:{shown}}" + ("" if np.isnan(std) else f" ± {std:{shown}}")

    def __str__(self) -> str:
        return self.verdict + ("" if np.isnan(self.difference.value) else f" (difference {self.difference})")


class Group(NamedTuple):
    """Methods that ran on the same tasks for as many steps.

    Attributes:
        budgets: the steps on each task, as text.
        scores: the normalized final scores of each method, `[runs, tasks]`.
    """

    tasks: tuple[str, ...]
    budgets: tuple[str, ...]
    scores: dict[str, np.ndarray]

    @property
    def steps(self) -> str:
        """The steps on the tasks: once if they are the same on all tasks, else in the tasks' order."""
        return "; ".join(self.budgets[:1] if len(set(self.budgets)) == 1 else self.budgets)


class Tried(NamedTuple):
    """The runs of one algorithm on one task with several settings, and the scores if a bandit chooses among them.

    Attributes:
        peer: the other library whose runs they are; empty for the zoo. It is also in `algo`, in brackets.
        policies, settings: the number of policies and of settings.
        scores: scores of the chosen policy after each episode played, `[repetitions, episodes]`.
    """

    task: str
    algo: str
    peer: str
    policies: int
    settings: int
    scores: np.ndarray


@dataclass(frozen=True)
class Report:
    """The results of the runs in a folder.

    Attributes:
        folder: the folder of the runs.
        rows: one row per task and method.
        notes: runs that were left out, and warnings.
        comparisons: comparisons with published figures.
        groups: groups of methods that ran on the same tasks for as many steps: on several tasks, if there are such
            groups.
        overall: aggregates of each method on each task, and over the tasks of its group.
        improvements: for each pair of methods, the probability that a run of the first is better, over all tasks that
            both ran on for the same number of steps, and on each of them.
        tried: for each algorithm that ran with several settings, the scores if a bandit chooses among them.
        switched: the methods that continued online.
    """

    folder: Path
    rows: list[Row]
    notes: list[str]
    comparisons: list[Comparison]
    groups: list[Group]
    overall: list[dict[str, Any]]
    improvements: list[dict[str, Any]]
    tried: list[Tried]
    switched: list[Switch]

    @cached_property
    def styles(self) -> dict[str, plots.Style]:
        """The line style of each method, in all plots and on the page."""
        return plots.styles({row.method: row.method.removesuffix(f" ({row.runs[0].peer})") for row in self.rows})

    @property
    def results(self) -> list[Result]:
        return [run for row in self.rows for run in row.runs]


def build(folder: Path, own: Sequence[Reference] = ()) -> Report:
    """Reads and compares the runs in a folder.

    Args:
        folder: a folder of runs.
        own: published figures in addition to the zoo's.

    Raises:
        UsageError: the folder has no finished runs.
    """
    results, notes = read(folder)
    if not results:
        why = f" {'; '.join(notes).rstrip('.')}." if notes else ""
        raise UsageError(f"{folder} holds no finished run.{why} Run some: zoo bench SUITE, or zoo run.")
    notes += unmatched(own, results)
    alike: dict[tuple[str, str], list[Result]] = defaultdict(list)
    measures: dict[str, set[str]] = defaultdict(set)
    for result in results:
        alike[result.task, result.method].append(result)
        measures[result.task].add(result.measure)
    rows = []
    for (task, method), runs in sorted(alike.items()):
        measure = next(iter(measures[task])) if len(measures[task]) == 1 else "return_mean"
        rows.append(Row(task, method, measure, tuple(sorted(runs, key=lambda run: run.seed))))
        if len({run.record.get("code") for run in runs}) > 1:
            notes.append(f"{method} on {task}: not all of its seeds were run by the same code")
        ends = [int(run.steps[-1]) for run in runs]
        if min(ends) < (1 - SLACK) * max(ends):
            notes.append(f"{method} on {task}: its seeds end at different steps, from {min(ends):,} to {max(ends):,}")
    known = [*own, *builtin()]
    comparisons = [comparison for row in rows for comparison in compare(row, known)]
    scores = scored(rows, notes)
    budgets = {(row.method, row.task): row.budget for row in rows}
    groups = grouped(scores, budgets, notes)
    overall, improvements = over_tasks(scores, budgets, groups), improved(scores, budgets)
    return Report(folder, rows, notes, comparisons, groups, overall, improvements, tries(rows), switches(rows))


def compare(row: Row, references: Iterable[Reference]) -> list[Comparison]:
    """Compares a row with each published figure of the same task and method."""
    found = []
    first = row.runs[0]
    for reference in references:
        if reference.fits(first):
            known = all(reference.measure in run.columns for run in row.runs)
            ours = [run.figure(reference.figure, reference.measure) if known else np.nan for run in row.runs]
            least = SCORE_TOLERANCE if reference.measure == "score" else 0.0
            says, difference = verdict(np.array(ours), reference.published, least)
            why = next(filter(None, map(reference.differs, row.runs)), "")
            remark = f"not comparable: {why}" if why else says + reference.aside(first)
            found.append(Comparison(row, reference, float(np.mean(ours)), not why, remark, difference))
    return found


def scored(rows: Sequence[Row], notes: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """The normalized final scores `[runs]` of each method on each task, if they are known for all of its runs."""
    scores: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    without = []
    for row in rows:
        final = np.array([run.figure("final", "score") if "score" in run.columns else np.nan for run in row.runs])
        known = ~np.isnan(final)
        if known.all():
            scores[row.method][row.task] = final
        elif any("score" in run.columns and not np.isnan(run.columns["score"]).all() for run in row.runs):
            lack = f"{(~known).sum()} of its {len(final)} runs have no normalized score of their last evaluation"
            notes.append(f"{row.method} on {row.task} is left out of comparisons of methods by scores: {lack}")
        else:
            without.append(row.task)
    if without:
        names = "; ".join(dict.fromkeys(without))
        notes.append(f"tasks without normalized scores, which are left out of comparisons of methods: {names}")
    return scores


def grouped(
    scores: dict[str, dict[str, np.ndarray]], budgets: dict[tuple[str, str], str], notes: list[str]
) -> list[Group]:
    """Groups methods that ran on the same tasks for as many steps: on several tasks or, without such groups, on one.

    Args:
        scores: the scores of each method on each task.
        budgets: the steps of each method on each task.
        notes: takes a note if not all runs count.
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, np.ndarray]] = defaultdict(dict)
    for method, by_task in scores.items():
        tasks = tuple(sorted(by_task))
        groups[tasks, tuple(budgets[method, task] for task in tasks)][method] = whole = matrix(by_task, tasks)
        if any(len(values) > len(whole) for values in by_task.values()):
            notes.append(
                f"over tasks, {method} counts with {len(whole)} runs per task, because one task has no more; "
                "probabilities of improvement use all of its runs"
            )
    found = [Group(*key, by_method) for key, by_method in groups.items()]
    return [one for one in found if len(one.tasks) > 1] or [one for one in found if len(one.scores) > 1]


def matrix(by_task: dict[str, np.ndarray], tasks: Sequence[str]) -> np.ndarray:
    """The scores as `[runs, tasks]`, with the same number of runs for each task: that of the task with the fewest."""
    count = min(len(by_task[task]) for task in tasks)
    return np.stack([by_task[task][:count] for task in tasks], 1)


def over_tasks(
    scores: dict[str, dict[str, np.ndarray]], budgets: dict[tuple[str, str], str], groups: Sequence[Group]
) -> list[dict[str, Any]]:
    """Aggregates of each method, on each of its tasks and over all tasks of its group."""
    alone = [
        Group((task,), (budgets[method, task],), {method: values[:, None]})
        for method, by_task in scores.items()
        for task, values in by_task.items()
    ]
    several = [group for group in groups if len(group.tasks) > 1]
    return [
        {"tasks": group.tasks, "steps": group.steps, "method": method, "runs": len(values)} | aggregates(values)
        for group in (*alone, *several)
        for method, values in group.scores.items()
    ]


def improved(scores: dict[str, dict[str, np.ndarray]], budgets: dict[tuple[str, str], str]) -> list[dict[str, Any]]:
    """The probability of improvement for each pair of methods, over their common tasks and on each of them.

    A task counts if both ran on it for the same number of steps.
    """
    improvements = []
    for ours, others in combinations(scores, 2):
        both = sorted(scores[ours].keys() & scores[others].keys())
        common = tuple(task for task in both if budgets[ours, task] == budgets[others, task])
        for tasks in dict.fromkeys([common, *((task,) for task in common)]) if common else ():
            mine, theirs = ([scores[method][task] for task in tasks] for method in (ours, others))
            probability = improvement(mine, theirs)
            row = {"tasks": tasks, "method": ours, "than": others, "probability": probability}
            improvements.append(row | {"whole": tasks == common})
    return improvements


def tries(rows: Sequence[Row]) -> list[Tried]:
    """The scores of each algorithm on each task if a bandit chooses among its settings, where it has several."""
    alike: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        peer = row.runs[0].peer
        alike[row.task, (Path(row.runs[0].file).name or row.runs[0].algo) + f" ({peer})" * bool(peer)].append(row)
    found = []
    for (task, algo), settings in alike.items():
        policies = [run.scores for row in settings for run in row.runs]
        if len(settings) > 1 and all(len(scores) for scores in policies):
            found.append(Tried(task, algo, settings[0].runs[0].peer, len(policies), len(settings), reached(policies)))
    return found
