"""The learning curves of the runs that the repository has, drawn for the documentation's pages.

They are in `docs/results`, archives of suites that `zoo bench export` wrote, and in `benchmarks/results`: archives of
other runs, and files named `<algorithm>-<task>-seed<n>.csv`, peers' with `corl-`, `sb3-` or `authors-`.

    python docs/curves.py

writes `docs/pictures`, the pictures of the README and of pages that are about no single algorithm.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zoo.benchmarks import plots
from zoo.benchmarks.analysis import Row
from zoo.benchmarks.reading import find, named, read
from zoo.benchmarks.records import MEASURES, Result
from zoo.data.samplers import SAMPLERS
from zoo.settings.registry import algorithms, environments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PEERS = {"corl": "CORL", "sb3": "Stable-Baselines3", "authors": "the authors' code"}
BINS = 50  # of a curve of training episodes, whose returns are averaged within
LEAST_EVALUATIONS = 3  # of a run of an archive whose curve is drawn
COLUMNS = 3  # panels beside each other
WIDTH, HEIGHT = 4.4, 3.4  # of a panel, in inches

PICTURES = {  # panels of each, by algorithm and task
    "curves": (("iql", "hopper, mixed"), ("sac", "halfcheetah"), ("stream_ac", "halfcheetah")),
    "start": (("iql", "demo"),),
    "samplers": (("iql", "hopper, 5-expert"), ("iql", "halfcheetah, 10-expert")),
    "value-heads": (("dqn", "cartpole"), ("dqn", "minatar, breakout")),
    "streaming": (("stream_ac", "halfcheetah"), ("stream_ac", "hopper"), ("stream_q", "minatar, breakout")),
}
OF_SUITES = {("sac", "halfcheetah")}  # of these, suites have more seeds than the files of single runs

# settings in a method's name that change only how long a run is, how often it is evaluated, and how it is rounded
OF_THE_RUN = r", (?:eval_every|matmul_precision|steps|online_steps)=[^,]+"

Curve = tuple[np.ndarray, np.ndarray]  # steps and values


@dataclass
class Panel:
    """One picture: the runs of an algorithm and of its peers on a task.

    Attributes:
        title: the task.
        measure: what the values are.
        lines: the curves of each method, one a seed.
    """

    title: str
    measure: str
    lines: dict[str, list[Curve]] = field(default_factory=lambda: defaultdict(list))


def archived(root: Path) -> list[Row]:
    """The runs in the archives below `docs/results`, by task and method."""
    return rows_of(named(find(root / "docs" / "results")[0]))


def rows_of(runs: Iterable[Result]) -> list[Row]:
    """Runs by task and method."""
    alike: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for run in runs:
        alike[run.task, run.method].append(run)
    return [
        Row(task, method, runs[0].measure, tuple(sorted(runs, key=lambda run: run.seed)))
        for (task, method), runs in sorted(alike.items())
    ]


def panels_of_archives(root: Path) -> dict[str, list[Panel]]:
    """The panels of each algorithm, from the archives in `benchmarks/results`, of runs with enough evaluations.

    Runs that differ only in settings of the run, such as its length, are one method; the longest are shown.
    """
    runs = [run for run in read(root / "benchmarks" / "results")[0] if len(run.steps) >= LEAST_EVALUATIONS]
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in rows_of(replace(run, method=re.sub(OF_THE_RUN, "", run.method)) for run in runs):
        longest = max(run.steps[-1] for run in row.runs)
        shown = tuple(run for run in row.runs if run.steps[-1] == longest)
        rows[shown[0].algo].append(replace(row, runs=shown))
    return {algo: panels_of_rows(found) for algo, found in rows.items()}


def panels_of_rows(rows: Sequence[Row]) -> list[Panel]:
    """A panel for each task."""
    panels: dict[str, Panel] = {}
    for row in rows:
        panel = panels.setdefault(row.task, Panel(row.task, MEASURES[row.measure]))
        panel.lines[row.method] += [(run.steps, run.columns[row.measure]) for run in row.runs]
    return list(panels.values())


def panels_of_files(root: Path) -> dict[str, list[Panel]]:
    """The panels of each algorithm, from `benchmarks/results`: of training episodes where peers have only those."""
    names = {name.replace("_", "-"): name for name in algorithms()}
    pattern = re.compile(
        rf"(?:(corl|sb3)-)?({'|'.join(sorted(names, key=len, reverse=True))})-(?:(authors)-)?(.+?)-seed\d+(-training)?"
    )
    found: dict[tuple[str, str], dict[tuple[str, bool], list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted((root / "benchmarks" / "results").glob("*-seed*.csv")):
        match = pattern.fullmatch(path.stem)
        if match is None:
            raise ValueError(f"{path} is not named <algorithm>-<task>-seed<n>.csv")
        variant, task = divided(match[4])
        label = ", ".join(filter(None, (PEERS.get(match[1] or match[3], "zoo"), variant)))
        found[names[match[2]], task][label, match[5] is not None].append(path)
    panels: dict[str, list[Panel]] = defaultdict(list)
    for (algo, task), lines in found.items():
        training = any((label, False) not in lines for label, _ in lines)
        kept = {label: paths for (label, is_training), paths in lines.items() if is_training == training}
        offline = algorithms()[algo].data == "required"
        curves = {label: [curve(path, training, offline) for path in paths] for label, paths in kept.items()}
        measures = {measure for runs in curves.values() for measure, _ in runs}
        if len(measures) > 1:  # a peer's that knows no score
            curves = {label: [curve(path, training, False) for path in paths] for label, paths in kept.items()}
        panel = Panel(task.replace("-", ", ", 1), MEASURES[next(iter(curves.values()))[0][0]])
        for label in sorted(curves, key=is_peers):
            panel.lines[label] = [one for _, one in curves[label]]
        if not all(map(is_peers, panel.lines)):
            panels[algo].append(panel)
    return {
        algo: sorted(found, key=lambda panel: not any(map(is_peers, panel.lines))) for algo, found in panels.items()
    }


def is_peers(label: str) -> bool:
    """Whether the curves of that label are of another library's code."""
    return any(name in label for name in (*PEERS.values(), "SB3"))


def divided(rest: str) -> tuple[str, str]:
    """What a file's name says of the method, before the environment or as the sampler behind it, and of the task."""
    envs = "|".join(sorted(environments(), key=len, reverse=True))
    known = re.fullmatch(rf"(?:(.+?)-)??((?:minatar-)?(?:{envs})(?:-.*)?)", rest)
    head, task = known.groups() if known else ("", rest)
    sampler = re.fullmatch(rf"(.*?)-({'|'.join(SAMPLERS)})", task)
    return (sampler[2], sampler[1]) if sampler else (head or "", task)


def curve(path: Path, training: bool, score: bool) -> tuple[str, Curve]:
    """The measure and the curve of a file: returns of training episodes averaged within bins, or evaluations."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    measure = "score" if score and all(row.get("score") for row in rows) else "return_mean"
    column = "episode_return" if training else measure
    known = [(int(row["step"]), float(row[column])) for row in rows if row[column] not in ("", "nan")]
    steps, values = (np.array(each, dtype=float) for each in zip(*known, strict=True))
    if training:
        bins = np.ceil(steps * BINS / steps[-1]).clip(1)
        present = np.unique(bins)
        return "training_return", (
            present * steps[-1] / BINS,
            np.array([values[bins == one].mean() for one in present]),
        )
    return measure, (steps, values)


def picture(name: str, panels: dict[str, list[Panel]], rows: Sequence[Row]) -> "Figure":
    """One of `PICTURES`: panels of files, or of the rows of suites."""
    of_files = {(algo, panel.title): panel for algo in panels for panel in panels[algo]}
    chosen = []
    for algo, task in PICTURES[name]:
        panel = of_files[algo, task]
        if (algo, task) in OF_SUITES:
            own = [row for row in rows if (row.runs[0].algo, row.task) == (algo, task)]
            panel = panels_of_rows([replace(row, method=re.sub(OF_THE_RUN, "", row.method)) for row in own])[0]
        lines = dict(sorted(panel.lines.items(), key=lambda line: is_peers(line[0])))
        chosen.append(replace(panel, title=f"{algo}: {task}", lines=lines))
    return draw(chosen)


def draw(panels: Sequence[Panel]) -> "Figure":
    """Means over seeds, with the range of the runs. Peers have dashed lines."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    figure.subplots_adjust(  # in inches; Matplotlib's own layouts take as long as the rest of the documentation
        left=0.65 / figure.get_figwidth(), right=1 - 0.1 / figure.get_figwidth(), wspace=0.85 / WIDTH,
        bottom=0.35 / figure.get_figheight(), top=1 - 0.3 / figure.get_figheight(), hspace=0.75 / HEIGHT,
    )  # fmt: skip
    for axis, panel in zip(axes, panels, strict=False):
        draw_panel(axis, panel)
    for axis in axes[len(panels) :]:
        axis.remove()
    return figure


def draw_panel(axis: "Axes", panel: Panel) -> None:
    for i, (label, curves) in enumerate(panel.lines.items()):
        steps, values = common(curves)
        colour, marker = plots.COLOURS[i % len(plots.COLOURS)], "." if len(steps) < 20 else None
        seeds = f" ({len(curves)})" if len(curves) > 1 else ""
        axis.plot(
            steps, values.mean(0), "--" if is_peers(label) else "-", color=colour, marker=marker, label=label + seeds
        )
        axis.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
    axis.set_title(panel.title, fontsize="medium")
    axis.set_ylabel(panel.measure, fontsize="small")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x else "0")
    axis.locator_params(axis="x", nbins=5)
    axis.tick_params(labelsize="small")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize="x-small", frameon=False)


def common(curves: Sequence[Curve]) -> Curve:
    """The steps that all curves have, and their values `[R, N]`; of curves that share none, all by interpolation."""
    shared = sorted(set.intersection(*(set(steps.tolist()) for steps, _ in curves)))
    if not shared:
        shared = np.linspace(max(s[0] for s, _ in curves), min(s[-1] for s, _ in curves), BINS).tolist()
    return np.array(shared), np.stack([np.interp(shared, steps, values) for steps, values in curves])


def save(figure: "Figure", path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    panels, rows = panels_of_files(root), archived(root)
    for name in PICTURES:
        save(picture(name, panels, rows), root / "docs" / "pictures" / f"{name}.png")
