"""`zoo report DIR`: what the runs in a folder reached, with honest intervals, beside the published figures."""

import argparse
import csv
import importlib.util
import io
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from zoo.benchmarks import page, plots, published
from zoo.benchmarks.published import Reference
from zoo.benchmarks.reading import NONDETERMINISM, read
from zoo.benchmarks.records import FIGURES, MEASURES, Result
from zoo.benchmarks.stats import LEAST_RUNS, Estimate, aggregates, improvement, mean, verdict
from zoo.checkpoint import replacing
from zoo.errors import RunError, UsageError

# what is written, besides the tables, a CSV file each
FILES = ("report.md", "report.html", "curves.png", "curves.svg", "profiles.png", "profiles.svg")
SHOWN = 3  # versions of the zoo in the summary


@dataclass(frozen=True)
class Row:
    """The runs of one method on one task.

    Attributes:
        measure: the column that all runs of the task are judged by.
        runs: by their seeds.
    """

    task: str
    method: str
    measure: str
    runs: tuple[Result, ...]

    def values(self, figure: str) -> np.ndarray:
        """`[R]`."""
        return np.array([run.figure(figure, self.measure) for run in self.runs])

    def estimate(self, figure: str) -> Estimate:
        return mean(self.values(figure))


@dataclass(frozen=True)
class Comparison:
    """A row beside a published figure: our mean, what is to be said of it, and the difference of the means.

    Attributes:
        compared: whether the two can be compared.
    """

    row: Row
    reference: Reference
    ours: float
    compared: bool
    verdict: str
    difference: Estimate

    @property
    def source(self) -> str:
        """Where it was published, and of what, if that is not what the row is judged by."""
        other = self.reference.measure != self.row.measure
        return self.reference.published.source + (f" ({MEASURES[self.reference.measure]})" if other else "")

    def __str__(self) -> str:
        return self.verdict + ("" if np.isnan(self.difference.value) else f" (difference {self.difference})")


class Group(NamedTuple):
    """Methods that were set the same tasks: normalized final scores `[runs, tasks]` of each."""

    tasks: tuple[str, ...]
    scores: dict[str, np.ndarray]


@dataclass(frozen=True)
class Report:
    """The results of the runs in a folder.

    Attributes:
        folder: of the runs.
        rows: by task and method.
        notes: what was left out, and what needs looking at.
        comparisons: with published figures.
        groups: of methods that were set the same tasks, several if there are any such.
        overall: aggregates of each method on each task, and over the tasks of its group.
        improvements: for each two methods, over all tasks that both were set, and on each: how likely a run of the
            first is better.
    """

    folder: Path
    rows: list[Row]
    notes: list[str]
    comparisons: list[Comparison]
    groups: list[Group]
    overall: list[dict[str, Any]]
    improvements: list[dict[str, Any]]

    @cached_property
    def styles(self) -> dict[str, plots.Style]:
        """Each method's line, in all pictures and on the page."""
        return plots.styles({row.method: row.method.removesuffix(f" ({row.runs[0].peer})") for row in self.rows})

    @property
    def results(self) -> list[Result]:
        return [run for row in self.rows for run in row.runs]


def main(arguments: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="zoo report",
        description="Tables, curves and a page of the runs in a folder, beside the published figures.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="of runs, at any depth")
    parser.add_argument("--out", type=Path, help="where to write it (default: DIR/report)")
    parser.add_argument("--references", type=Path, nargs="*", default=[], metavar="CSV", help="further figures")
    args = parser.parse_args(arguments)
    if not args.dir.is_dir():
        raise UsageError(f"{args.dir} is not a folder. Give one that holds runs, such as runs or bench/smoke.")
    require()
    own = [reference for path in args.references for reference in published.read(path)]
    report = build(args.dir, own)
    write(report, args.out or args.dir / "report")
    return 0


def require() -> None:
    """Raises UsageError where a library is not installed."""
    for name in ("scipy", "matplotlib", "plotly"):
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"a report needs {name}. Type: pip install 'rl-zoo[bench]'")


def build(folder: Path, own: Sequence[Reference] = ()) -> Report:
    """Reads and compares the runs in a folder.

    Args:
        folder: of runs.
        own: published figures besides the zoo's.

    Raises:
        UsageError: there are no finished runs in it.
    """
    results, notes = read(folder)
    if not results:
        why = f" {'; '.join(notes)}." if notes else ""
        raise UsageError(f"{folder} holds no finished run.{why} Run some: zoo bench SUITE, or zoo run.")
    notes += published.unmatched(own, results)
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
    known = [*own, *published.builtin()]
    comparisons = [comparison for row in rows for comparison in compare(row, known)]
    scores = scored(rows)
    groups = grouped(scores, notes)
    return Report(folder, rows, notes, comparisons, groups, over_tasks(scores, groups), improved(scores))


def compare(row: Row, references: Iterable[Reference]) -> list[Comparison]:
    """A row with each figure that is of the same task and method."""
    found = []
    first = row.runs[0]
    for reference in references:
        if reference.fits(first):
            known = all(reference.measure in run.columns for run in row.runs)
            ours = [run.figure(reference.figure, reference.measure) if known else np.nan for run in row.runs]
            says, difference = verdict(np.array(ours), reference.published)
            why = reference.differs(first)
            remark = f"not comparable: {why}" if why else says + reference.aside(first)
            found.append(Comparison(row, reference, float(np.mean(ours)), not why, remark, difference))
    return found


def scored(rows: Sequence[Row]) -> dict[str, dict[str, np.ndarray]]:
    """The normalized final scores `[runs]` of each method on each task, where they are known."""
    scores: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for row in rows:
        if all("score" in run.columns and not np.isnan(run.columns["score"]).any() for run in row.runs):
            scores[row.method][row.task] = np.array([run.figure("final", "score") for run in row.runs])
    return scores


def grouped(scores: dict[str, dict[str, np.ndarray]], notes: list[str]) -> list[Group]:
    """Methods side by side that have the same tasks: all with several or, if there are none, those on the same one."""
    groups: dict[tuple[str, ...], dict[str, np.ndarray]] = defaultdict(dict)
    for method, by_task in scores.items():
        tasks = tuple(sorted(by_task))
        groups[tasks][method] = whole = matrix(by_task, tasks)
        if any(len(values) > len(whole) for values in by_task.values()):
            notes.append(
                f"over tasks, {method} counts with {len(whole)} of the runs of each, as many as it has on all of them"
            )
    several = [Group(*group) for group in groups.items() if len(group[0]) > 1]
    return several or [Group(*group) for group in groups.items() if len(group[1]) > 1]


def matrix(by_task: dict[str, np.ndarray], tasks: Sequence[str]) -> np.ndarray:
    """`[runs, tasks]`, with as many runs of each task as there are of all."""
    count = min(len(by_task[task]) for task in tasks)
    return np.stack([by_task[task][:count] for task in tasks], 1)


def over_tasks(scores: dict[str, dict[str, np.ndarray]], groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Aggregates of each method, on each of its tasks and over those of its group."""
    alone = [
        Group((task,), {method: values[:, None]})
        for method, by_task in scores.items()
        for task, values in by_task.items()
    ]
    several = [group for group in groups if len(group.tasks) > 1]
    return [
        {"tasks": tasks, "method": method, "runs": len(values)} | aggregates(values)
        for tasks, by_method in (*alone, *several)
        for method, values in by_method.items()
    ]


def improved(scores: dict[str, dict[str, np.ndarray]]) -> list[dict[str, Any]]:
    """For each two methods how likely a run of the one is better, over the tasks that both have and on each of them."""
    improvements = []
    for ours, others in combinations(scores, 2):
        common = tuple(sorted(scores[ours].keys() & scores[others].keys()))
        for tasks in dict.fromkeys([common, *((task,) for task in common)]) if common else ():
            probability = improvement(matrix(scores[ours], tasks), matrix(scores[others], tasks))
            row = {"tasks": tasks, "method": ours, "than": others, "probability": probability}
            improvements.append(row | {"whole": tasks == common})
    return improvements


# --- What is written --------------------------------------------------------------------------------------------------


def write(report: Report, folder: Path) -> None:
    """Everything, into a folder; each file whole or not at all.

    Raises:
        RunError: it cannot be written; or runs contradict each other, which the report says.
    """
    numbers = tables(report)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in numbers.items():
            with replacing(folder / f"{name}.csv") as file:
                file.write(as_csv(table).encode())
        plots.save(plots.learning_curves(report.rows, report.styles), folder / "curves")
        plots.save(plots.profiles(report.groups, report.styles), folder / "profiles")
        text = markdown(report, folder)
        with replacing(folder / "report.md") as file:
            file.write(text.encode())
        with replacing(folder / "report.html") as file:
            file.write(page.html(report, summary(report), folder).encode())
    except OSError as error:
        raise RunError(f"cannot write the report to {folder}: {error.strerror}.") from error
    print(text.partition("## Curves")[0].rstrip())
    print(f"\nwritten to {folder}/: {', '.join(FILES)}, {', '.join(f'{name}.csv' for name in numbers)}")
    if contradicting := [note for note in report.notes if note.startswith(NONDETERMINISM)]:
        raise RunError(f"{contradicting[0]}. Find out why before you trust any of them.")


def tables(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Every number of the report, by table."""
    return {
        "results": [
            {"task": row.task, "method": row.method, "measure": MEASURES[row.measure], "seeds": len(row.runs)}
            | {"steps": int(max(run.steps[-1] for run in row.runs)), "figure": figure}
            | spread(row.estimate(figure))
            | {"std": float(row.values(figure).std(ddof=1)) if len(row.runs) > 1 else ""}
            for row in report.rows
            for figure in FIGURES
        ],
        "runs": [
            {"run": str(run.dir.relative_to(report.folder)), "task": run.task, "method": run.method, "seed": run.seed}
            | {"steps": int(run.steps[-1]), "measure": MEASURES[row.measure]}
            | {figure: run.figure(figure, row.measure) for figure in FIGURES}
            | {"training_seconds": float(run.seconds[-1]), "command": run.command}
            for row in report.rows
            for run in row.runs
        ],
        "published": [
            {"task": c.row.task, "method": c.row.method, "figure": c.reference.figure}
            | {"measure": MEASURES[c.reference.measure]}
            | {"ours": c.ours, "seeds": len(c.row.runs)}
            | {"published_task": c.reference.task, "published": c.reference.published.mean}
            | {"published_std": c.reference.published.std, "published_seeds": c.reference.published.seeds}
            | {"published_steps": c.reference.steps, "source": c.reference.published.source}
            | {f"difference_{key}": value for key, value in spread(c.difference).items()}
            | {"verdict": c.verdict}
            for c in report.comparisons
        ],
        "overall": [
            {"tasks": "; ".join(row["tasks"]), "method": row["method"], "runs": row["runs"], "statistic": name}
            | spread(value)
            for row in report.overall
            for name, value in row.items()
            if isinstance(value, Estimate)
        ],
        "improvement": [
            {"tasks": "; ".join(row["tasks"]), "method": row["method"], "than": row["than"]}
            | spread(row["probability"])
            for row in report.improvements
        ],
        "speeds": [
            {"algo": algo, "env": env, "runs": len(values), "steps_per_second": round(median(values), 1)}
            for (algo, env), values in sorted(speeds(report).items())
        ],
    }


def speeds(report: Report) -> dict[tuple[str, str], list[float]]:
    """Steps a second of each run's training, by algorithm and environment."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in report.results:
        if run.seconds[-1] > 0:  # not NaN
            found[run.algo, run.env].append(float(run.steps[-1] / run.seconds[-1]))
    return found


def spread(estimate: Estimate) -> dict[str, Any]:
    """An estimate as columns; those that are not known are empty."""
    return {key: "" if np.isnan(value) else value for key, value in estimate._asdict().items()}


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """A table with the columns of its first row."""
    text = io.StringIO(newline="")
    if rows:
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def markdown(report: Report, folder: Path) -> str:
    """The report to be read."""
    parts = [f"# {report.folder.resolve().name}", summary(report)]
    if report.notes:
        parts += ["## To be looked at", "\n".join(f"- {note}" for note in report.notes)]
    for task in dict.fromkeys(row.task for row in report.rows):
        rows = [row for row in report.rows if row.task == task]
        parts += [f"## {task}", task_table(rows, report.comparisons)]
    for group in report.groups:
        parts.append(f"## Over tasks: {'; '.join(group.tasks)}")
        parts.append("Normalized scores of the last evaluation, 100 the reference's.")
        lines = [list(row.values())[1:] for row in report.overall if row["tasks"] == group.tasks]
        parts.append(as_markdown(["method", "runs", "IQM", "mean", "median", "optimality gap"], lines))
    if report.improvements:
        parts += ["## How likely a run of the one is better than a run of the other"]
        parts.append("Over all tasks that both were set, so many.")
        pairs = [
            [len(row["tasks"]), row["method"], row["than"], f"{row['probability']:.2f}"]
            for row in report.improvements
            if row["whole"]
        ]
        parts.append(as_markdown(["tasks", "the one", "the other", "probability"], pairs))
    tasks = {row.task for row in report.rows}
    first = f"Of the first {plots.MANY} tasks; [the page](report.html) has all {len(tasks)}."
    parts += ["## Curves", *[first] * (len(tasks) > plots.MANY), "![Learning curves by steps and by time](curves.png)"]
    if report.groups:
        parts += ["## Performance profiles", "![Share of runs above each score](profiles.png)"]
    parts.append("## Runs")
    runs = [
        [f"[{run.dir.name}]({os.path.relpath(run.source, folder)})", run.task, run.method, run.seed, f"`{run.command}`"]
        for run in report.results
    ]
    parts.append(as_markdown(["run", "task", "method", "seed", "command"], runs))
    return "\n\n".join(parts) + "\n"


def summary(report: Report) -> str:
    """What the numbers are."""
    tasks, methods = ({getattr(row, key) for row in report.rows} for key in ("task", "method"))
    made = {
        (str(run.record["versions"]["zoo"]), str(run.record.get("commit"))[:10])
        for run in report.results
        if not run.peer
    }
    by = [f"zoo {version}" + ("" if commit == "None" else f" at {commit}") for version, commit in sorted(made)]
    if len(by) > SHOWN:
        by = [*by[:SHOWN], f"{len(by) - SHOWN} more"]
    few = any(len(row.runs) < LEAST_RUNS for row in report.rows)
    return (
        f"{len(report.results)} runs of {len(methods)} methods on {len(tasks)} tasks"
        f"{', by ' * bool(by)}{', '.join(by)}. "
        "Final is a run's last evaluation, best its best one, chosen by the test itself, and area the mean of all; "
        "evaluations have other seeds than training. Means over seeds with Student's 95 % interval; over tasks, "
        "stratified bootstrap intervals (Agarwal et al. 2021)."
        + (f" Fewer than {LEAST_RUNS} seeds have no interval: they do not say how far runs lie apart." if few else "")
    )


def task_table(rows: Sequence[Row], comparisons: Sequence[Comparison]) -> str:
    """The methods on one task, each above what was published of it."""
    success = any("success" in run.columns for row in rows for run in row.runs)
    lines: list[list[Any]] = []
    for row in rows:
        steps, seconds = max(run.steps[-1] for run in row.runs), np.mean([run.seconds[-1] for run in row.runs])
        succeeded = [run.columns["success"][-1] for run in row.runs if "success" in run.columns]
        figures: list[Any] = [row.estimate(figure) for figure in FIGURES]
        extra = [f"{np.mean(succeeded):.0%}" if succeeded else ""] if success else []
        minutes = "" if np.isnan(seconds) else f"{seconds / 60:.1f}"
        lines.append([row.method, len(row.runs), f"{steps:,}", *figures, *extra, minutes, ""])
        for one in (one for one in comparisons if one.row is row):
            column, figure = FIGURES.index(one.reference.figure), one.reference.published
            cells = [""] * len(FIGURES)
            cells[column] = f"{figure.mean:.1f}" + ("" if np.isnan(figure.std) else f" ± {figure.std:.1f}")
            steps_of = f"{one.reference.steps:,}" if one.reference.steps else ""
            source = f"*{one.reference.task}: {one.source}*"
            lines.append([source, figure.seeds or "", steps_of, *cells, *[""] * len(extra), "", str(one)])
    shown = [f"{figure} {MEASURES[rows[0].measure]}" if figure == "final" else figure for figure in FIGURES]
    return as_markdown(
        ["method", "seeds", "steps", *shown, *(["success"] if success else []), "minutes", "verdict"], lines
    )


def as_markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
