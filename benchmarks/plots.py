"""Plots: learning curves of each task, by steps and by training time; performance profiles."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zoo.benchmarks.records import MEASURES
from zoo.benchmarks.stats import profile
from zoo.benchmarks.trials import MIDDLE
from zoo.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from zoo.benchmarks.analysis import Group, Row, Tried

COLOURS = (  # Kelly's colours of maximum contrast (Color Engineering 3, 1965), without white and with a darker yellow
    "#875692", "#f38400", "#0067a5", "#be0032", "#008856", "#e68fac", "#848482", "#a1caf1", "#c2a83e", "#222222",
    "#604e97", "#f6a600", "#b3446c", "#8db600", "#882d17", "#f99379", "#654522", "#00a3a3", "#e25822", "#2b5d26",
)  # fmt: skip
DASHES = {"solid": "-", "dash": "--", "dashdot": "-."}  # Plotly's names, and Matplotlib's
MANY = 20  # maximum number of panels in a picture
LONG = 18  # maximum number of entries in a column of a legend
BEST = 120.0  # a profile ends at this normalized score or higher


class Style(NamedTuple):
    """The line style of a method."""

    colour: str
    dash: str


def styles(own: Mapping[str, str]) -> dict[str, Style]:
    """A colour for each method. Other libraries' runs of a method have its colour and another dash.

    Args:
        own: the zoo's name of each method, such as `iql` for `iql (CORL)`.
    """
    found: dict[str, Style] = {}
    for i, name in enumerate(sorted(set(own.values()))):
        alike = [name, *sorted(method for method in own if own[method] == name != method)]
        found |= {method: Style(COLOURS[i % len(COLOURS)], dash) for method, dash in zip(alike, cycle(DASHES))}
    return found


def save(figure: "Figure", path: Path) -> None:
    """Saves a figure as PNG and SVG. The same figure always gives the same bytes."""
    from matplotlib import rc_context

    for kind, metadata in (("png", None), ("svg", {"Date": None})):
        with replacing(path.with_suffix(f".{kind}")) as file, rc_context({"svg.hashsalt": "zoo"}):
            figure.savefig(file, format=kind, dpi=110, bbox_inches="tight", metadata=metadata)


def learning_curves(rows: "Sequence[Row]", styles: dict[str, Style]) -> "Figure":
    """Learning curves: means over seeds, with the range of the runs."""
    tasks = list(dict.fromkeys(row.task for row in rows))[:MANY]
    figure, axes = _panels(len(tasks), 2)
    for (by_steps, by_time), task in zip(axes, tasks, strict=True):
        for row in (row for row in rows if row.task == task):
            steps, values, seconds = curves(row)
            colour, dash = styles[row.method]
            for axis, x in ((by_steps, steps), (by_time, seconds / 60)):
                marker = "." if len(x) < 20 else None
                axis.plot(x, values.mean(0), DASHES[dash], color=colour, marker=marker, label=_text(row.method))
                axis.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
            by_steps.set(title=_text(task), ylabel=MEASURES[row.measure])
        by_steps.set_xlabel("steps")
        by_steps.xaxis.set_major_formatter("{x:,.0f}")
        by_steps.locator_params(axis="x", nbins=5)
        by_time.set_xlabel("minutes of training")
        _legend(by_time)
    return figure


def profiles(groups: "Sequence[Group]", styles: dict[str, Style]) -> "Figure":
    """Performance profiles: for each method, the share of runs above each score."""
    groups = groups[:MANY]
    figure, axes = _panels(max(len(groups), 1), 1)
    for (axis,), group in zip(axes, groups, strict=False):
        thresholds = profile_scores(group)
        for method, scores in group.scores.items():
            colour, dash = styles[method]
            axis.plot(thresholds, profile(scores, thresholds), DASHES[dash], color=colour, label=_text(method))
        count = len(group.tasks)
        axis.set(
            xlabel="normalized score",
            ylabel="share of runs above it",
            title=f"{f'{count} tasks' if count > 1 else _text(group.tasks[0])}, {group.steps} steps",
        )
        _legend(axis)
    return figure


def trials(tried: "Sequence[Tried]") -> "Figure":
    """The score of the policy that a bandit chooses, for each algorithm, with the middle half of the repetitions."""
    tasks = list(dict.fromkeys(one.task for one in tried))[:MANY]
    drawn = styles({one.algo: one.algo.removesuffix(f" ({one.peer})") for one in tried})
    figure, axes = _panels(len(tasks), 1)
    for (axis,), task in zip(axes, tasks, strict=True):
        for one in (one for one in tried if one.task == task):
            colour, dash = drawn[one.algo]
            episodes = np.arange(1, one.scores.shape[1] + 1)
            half = np.quantile(one.scores, MIDDLE, 0)
            axis.plot(episodes, one.scores.mean(0), DASHES[dash], color=colour, label=_text(one.algo))
            axis.fill_between(episodes, *half, color=colour, alpha=0.15, linewidth=0)
        axis.set(xscale="log", xlabel="episodes played", ylabel="normalized score, chosen policy", title=_text(task))
        axis.xaxis.set_major_formatter("{x:,.0f}")
        _legend(axis)
    return figure


def profile_scores(group: "Group") -> np.ndarray:
    """The scores at which a profile is plotted."""
    return np.linspace(0, max(BEST, *(float(scores.max()) for scores in group.scores.values())), 200)


def _panels(rows: int, columns: int) -> "tuple[Figure, np.ndarray]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0 * columns, 3.8 * rows))
    return figure, figure.subplots(rows, columns, squeeze=False, gridspec_kw={"hspace": 0.35})


def _text(name: str) -> str:
    """A name escaped for Matplotlib, which reads text between dollars as a formula and hides names such as `_own`."""
    return " " * name.startswith("_") + name.replace("$", r"\$")


def _legend(axis: "Axes") -> None:
    """Puts a legend to the right of a panel, whose size does not change."""
    columns = 1 + (len(axis.lines) - 1) // LONG
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, ncols=columns)


def curves(row: "Row") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The steps at which all runs were evaluated `[N]`, their values `[R, N]`, and the mean time until then `[N]`."""
    common = set.intersection(*(set(run.steps.tolist()) for run in row.runs))
    steps = np.array(sorted(common))
    places = [np.searchsorted(run.steps, steps) for run in row.runs]
    values = np.stack([run.columns[row.measure][at] for run, at in zip(row.runs, places, strict=True)])
    seconds = np.stack([run.seconds[at] for run, at in zip(row.runs, places, strict=True)]).mean(0)
    return steps, values, seconds
