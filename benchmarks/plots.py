"""Pictures: learning curves, a row a task, by steps and by the time of training; performance profiles."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zoo.benchmarks.records import MEASURES
from zoo.benchmarks.stats import profile
from zoo.checkpoint import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from zoo.benchmarks.report import Group, Row

COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf",
    "#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#666666",
)  # fmt: skip
MANY = 20  # panels in one picture
BEST = 120.0  # the normalized score at which a profile ends, at least


def save(figure: "Figure", path: Path) -> None:
    """As PNG and as SVG."""
    for kind in ("png", "svg"):
        with replacing(path.with_suffix(f".{kind}")) as file:
            figure.savefig(file, format=kind, dpi=110)


def learning_curves(rows: "Sequence[Row]") -> "Figure":
    """The means over seeds, with the range of the runs."""
    tasks = list(dict.fromkeys(row.task for row in rows))[:MANY]
    figure, axes = _panels(len(tasks), 2)
    colours = _colours({row.method for row in rows})
    for (by_steps, by_time), task in zip(axes, tasks, strict=True):
        for row in (row for row in rows if row.task == task):
            steps, values, seconds = curves(row)
            for axis, x in ((by_steps, steps), (by_time, seconds / 60)):
                marker = "." if len(x) < 20 else None
                axis.plot(x, values.mean(0), color=colours[row.method], marker=marker, label=row.method)
                axis.fill_between(x, values.min(0), values.max(0), color=colours[row.method], alpha=0.15, linewidth=0)
            by_steps.set(title=task, ylabel=MEASURES[row.measure])
        by_steps.set_xlabel("steps")
        by_steps.xaxis.set_major_formatter("{x:,.0f}")
        by_steps.locator_params(axis="x", nbins=5)
        by_time.set_xlabel("minutes of training")
        by_time.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def profiles(groups: "Sequence[Group]") -> "Figure":
    """Of methods over their tasks, the share of runs above each score."""
    groups = groups[:MANY]
    figure, axes = _panels(max(len(groups), 1), 1)
    colours = _colours({method for group in groups for method in group.scores})
    for (axis,), group in zip(axes, groups, strict=False):
        thresholds = profile_scores(group)
        for method, scores in group.scores.items():
            axis.plot(thresholds, profile(scores, thresholds), color=colours[method], label=method)
        count = len(group.tasks)
        axis.set(
            xlabel="normalized score",
            ylabel="share of runs above it",
            title=f"{count} tasks" if count > 1 else group.tasks[0],
        )
        axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def profile_scores(group: "Group") -> np.ndarray:
    """The scores at which a profile is drawn."""
    return np.linspace(0, max(BEST, *(float(scores.max()) for scores in group.scores.values())), 200)


def _panels(rows: int, columns: int) -> "tuple[Figure, np.ndarray]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * columns, 3.2 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _colours(methods: set[str]) -> dict[str, str]:
    return {method: COLOURS[i % len(COLOURS)] for i, method in enumerate(sorted(methods))}


def curves(row: "Row") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The steps at which all runs were evaluated `[N]`, their values `[R, N]`, and the mean time until then `[N]`."""
    common = set.intersection(*(set(run.steps.tolist()) for run in row.runs))
    steps = np.array(sorted(common))
    places = [np.searchsorted(run.steps, steps) for run in row.runs]
    values = np.stack([run.columns[row.measure][at] for run, at in zip(row.runs, places, strict=True)])
    seconds = np.stack([run.seconds[at] for run, at in zip(row.runs, places, strict=True)]).mean(0)
    return steps, values, seconds
