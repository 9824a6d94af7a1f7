"""The report as Markdown: first the comparisons with published figures, then every task, then every run."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from zoo.benchmarks import plots, switch
from zoo.benchmarks.analysis import Comparison, Report, Row, Tried
from zoo.benchmarks.records import FIGURES, MEASURES
from zoo.benchmarks.stats import LEAST_RUNS, SCORE_TOLERANCE, TOLERANCE, Estimate
from zoo.benchmarks.trials import PULLS, REPEATS, SUBSET, middle
from zoo.errors import printable

ALWAYS = "Evaluations have other seeds than training."  # in every report, Markdown and page; a report is known by it
SHOWN = 3  # number of versions of the zoo in the summary
BY_CHANCE = "Each interval is at 95 % by itself; of many, some exclude the truth by chance."
VERDICTS_TEXT = (
    "± is the published standard deviation, and the difference from the published mean has Welch's 95 % interval. The "
    "verdict is above or below if the interval excludes 0, and reproduced if it contains 0 and no difference of more "
    f"than {100 * TOLERANCE:g} % of the published mean; for normalized scores, {SCORE_TOLERANCE:g} is always tolerated."
)
SCORES_TEXT = "A normalized score is 0 at a task's random score and 100 at its expert score."
CURVES_TEXT = "Lines are means over the seeds. The shading is the range of the runs."
TRIALS = "Settings chosen by a bandit"
TRIALS_TEXT = (
    "Runs of an algorithm with different settings give different policies, and playing episodes shows which is best. "
    f"A bandit chooses among {SUBSET} of them, which are sampled at random (Jackson et al. 2025). For each number of "
    "episodes played, the table has the normalized score of the policy with the best mean so far, and the "
    f"interquartile range over {REPEATS:,} repetitions. After one episode, this is a random policy."
)
IMPROVEMENT_TEXT = (
    "How likely a run of the first method is better than a run of the second, over the tasks that both ran on for the "
    f"same number of steps. The first column is the number of these tasks. {BY_CHANCE}"
)
SWITCHES = "From offline to online"
SWITCHES_TEXT = (
    "Offline is the last evaluation before the first online step. Dip is the difference between it and the lowest "
    "online evaluation. Online is the mean of all online evaluations; with normalized scores, the regret is 100 minus "
    "this mean. The data's value is the critics' mean value of transitions from the dataset: at the first online "
    "evaluation, at its lowest, and at the last evaluation."
)
SWITCHES_HEADER = ("task", "method", "seeds", "measure", *switch.FIGURES, "the data's value")
TRIALS_HEADER = ("task", "algorithm", "policies", "settings", *(f"{pulls:,}" for pulls in PULLS))


class Markup(str):
    """A cell that is Markdown already; all others are text."""


def text(report: Report, folder: Path) -> str:
    """The whole report."""
    parts = [f"# {plain(report.folder.resolve().name)}", plain(summary(report))]
    judged = [one for one in report.comparisons if one.compared]
    if judged:
        parts += ["## Comparison with published figures", judged_table(judged), BY_CHANCE]
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {plain(note)}" for note in report.notes)]
    for task in dict.fromkeys(row.task for row in report.rows):
        rows = [row for row in report.rows if row.task == task]
        parts += [f"## {plain(task)}", task_table(rows, judged)]
    if lines := scored_by(report.rows):
        parts += ["## Reference scores", SCORES_TEXT, as_markdown(["tasks", "source of the two scores"], lines)]
    for group in report.groups:
        parts.append(f"## Over tasks: {plain('; '.join(group.tasks))} ({group.steps} steps)")
        parts.append("Normalized scores of the last evaluation.")
        alike = [row for row in report.overall if (row["tasks"], row["steps"]) == (group.tasks, group.steps)]
        lines = [list(row.values())[2:] for row in alike]
        parts.append(as_markdown(["method", "runs", "IQM", "mean", "median", "optimality gap"], lines))
    if report.improvements:
        parts += ["## Probability of improvement", IMPROVEMENT_TEXT]
        pairs = [
            [len(row["tasks"]), row["method"], row["than"], f"{row['probability']:.2f}"]
            for row in report.improvements
            if row["whole"]
        ]
        parts.append(as_markdown(["tasks", "first", "second", "probability"], pairs))
    if report.switched:
        parts += [f"## {SWITCHES}", SWITCHES_TEXT, as_markdown(SWITCHES_HEADER, switches_lines(report.switched))]
    if report.tried:
        parts += [f"## {TRIALS}", TRIALS_TEXT, as_markdown(TRIALS_HEADER, trials_lines(report.tried))]
        parts.append("![Score of the chosen policy by the number of episodes played](trials.png)")
    tasks = {row.task for row in report.rows}
    first = f"These are the first {plots.MANY} tasks; [the page](report.html) has all {len(tasks)}."
    parts += [
        "## Curves",
        CURVES_TEXT,
        *[first] * (len(tasks) > plots.MANY),
        "![Learning curves by steps and by time](curves.png)",
    ]
    if report.groups:
        parts += ["## Performance profiles", "![Share of runs above each score](profiles.png)"]
    others = [one for one in report.comparisons if not one.compared]
    if others:
        parts.append("## Published figures with other settings, data or budgets")
        lines = [[one.row.task, one.row.method, one.published, one.source, one.verdict] for one in others]
        parts.append(as_markdown(["task", "method", "published", "source", "verdict"], lines))
    parts.append("## Runs")
    runs = [
        [linked(run.dir.name, run.source, folder), run.task, run.method, run.seed, code(run.command)]
        for run in report.results
    ]
    parts.append(as_markdown(["run", "task", "method", "seed", "command"], runs))
    return "\n\n".join(parts) + "\n"


def summary(report: Report) -> str:
    """The first paragraph: the number of runs, and what the figures mean."""
    tasks, methods = ({getattr(row, key) for row in report.rows} for key in ("task", "method"))
    made = {
        (str(run.record["versions"]["zoo"]), str(run.record.get("commit"))[:10])
        for run in report.results
        if not run.peer
    }
    by = [f"zoo {version}" + ("" if commit == "None" else f" at {commit}") for version, commit in sorted(made)]
    if len(by) > SHOWN:
        by = [*by[:SHOWN], f"{len(by) - SHOWN} more"]
    on_gpus = [run.record for run in report.results if run.record.get("gpu_memory")]
    where = ""
    if on_gpus:
        gpus = ", ".join(sorted({str(record["hardware"]["gpu"]) for record in on_gpus}))
        most = max(record["gpu_memory"] for record in on_gpus) / 2**30
        where = f" On {gpus}. A run used at most {most:.1f} GiB of a GPU's memory."
    hardware = [run.record.get("hardware") or {} for run in report.results]
    if processors := sorted({str(one["processor"]) for one in hardware if one.get("processor")}):
        where += f" Processors: {', '.join(processors)}"
        where += f"{'; minutes are not comparable across them' * (len(processors) > 1)}."
    few = any(len(row.runs) < LEAST_RUNS for row in report.rows)
    return (
        f"{len(report.results)} runs of {len(methods)} methods on {len(tasks)} tasks"
        f"{', by ' * bool(by)}{', '.join(by)}.{where} "
        "Final is a run's last evaluation. Best is its best one, which is selected on the evaluation episodes. Area "
        f"is the mean of all evaluations. {ALWAYS} Means over seeds have Student's t "
        "95 % intervals; results over tasks have stratified bootstrap 95 % intervals (Agarwal et al. 2021). Bootstrap "
        "intervals of three to five runs a task are narrow: they cover less than 95 %."
        + (
            f" There is no interval for fewer than {LEAST_RUNS} seeds, which are too few to show the spread of runs."
            if few
            else ""
        )
        + (f" {VERDICTS_TEXT}" if any(one.compared for one in report.comparisons) else "")
    )


def scored_by(rows: Sequence[Row]) -> list[list[str]]:
    """The tasks with normalized scores, by the source of their reference scores."""
    tasks: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.runs[0].references:
            source = row.runs[0].config["env"].get("score_source") or "the runs' settings"
            tasks[source].append(row.task)
    return [["; ".join(dict.fromkeys(names)), source] for source, names in tasks.items()]


def judged_table(comparisons: Sequence[Comparison]) -> str:
    """Compares methods with published figures of the same settings and budget."""
    header = ["task", "method", "seeds", "ours", "published", "published seeds", "of", "verdict"]
    lines = []
    for one in comparisons:
        source, seeds = f"{one.reference.task}: {one.source}", one.reference.published.seeds or ""
        ours = Estimate(one.ours, np.nan, np.nan)
        row = [one.row.task, one.row.method, len(one.row.runs), ours, one.published, seeds, source, one]
        lines.append(row)
    return as_markdown(header, lines)


def task_table(rows: Sequence[Row], comparisons: Sequence[Comparison]) -> str:
    """The methods on one task, each followed by its published figures."""
    columns = {name for row in rows for run in row.runs for name in run.columns}
    of_tasks = sorted(
        (name for name in columns if re.fullmatch(r"success_task\d+", name)), key=lambda name: int(name[12:])
    )
    successes = {"success": ["success"] if "success" in columns else [], "of each task": of_tasks}
    lines: list[list[Any]] = []
    for row in rows:
        steps, seconds = row.steps, np.mean([run.seconds[-1] for run in row.runs])
        figures: list[Any] = [row.estimate(figure) for figure in FIGURES]
        extra = [last_shares(row, names) for names in successes.values() if names]
        minutes = "" if np.isnan(seconds) else f"{seconds / 60:.1f}"
        lines.append([row.method, len(row.runs), f"{steps:,}", row.evaluations, *figures, *extra, minutes, ""])
        for one in (one for one in comparisons if one.row is row):
            cells = [""] * len(FIGURES)
            cells[FIGURES.index(one.reference.column)] = one.published
            steps_of = f"{one.reference.steps:,}" if one.reference.steps else ""
            source = f"*{one.reference.task}: {one.source}*"
            seeds = one.reference.published.seeds or ""
            evaluations = one.reference.evaluations or ""
            lines.append([source, seeds, steps_of, evaluations, *cells, *[""] * len(extra), "", str(one)])
    shown = [f"{figure} {MEASURES[rows[0].measure]}" if figure == "final" else figure for figure in FIGURES]
    shares = [header for header, names in successes.items() if names]
    header = ["method", "seeds", "steps", "evaluations", *shown, *shares, "minutes", "verdict"]
    return as_markdown(header, lines)


def last_shares(row: Row, names: Sequence[str]) -> str:
    """The last values of columns of shares, as means over the runs that have these columns."""
    runs = [run for run in row.runs if all(name in run.columns for name in names)]
    return ", ".join(f"{np.mean([run.columns[name][-1] for run in runs]):.0%}" for name in names) if runs else ""


def switches_lines(switched: Sequence[switch.Switch]) -> list[list[Any]]:
    """A row of cells under `SWITCHES_HEADER` for each method that continued online."""
    return [
        [one.row.task, one.row.method, len(one.row.runs), MEASURES[one.row.measure]]
        + [str(getattr(one, figure)) for figure in switch.FIGURES]
        + [", ".join(f"{value:.1f}" for value in one.data_value)]
        for one in switched
    ]


def trials_lines(tried: Sequence[Tried]) -> list[list[Any]]:
    """A row of cells under `TRIALS_HEADER` for each algorithm: the scores by the number of episodes played."""
    return [
        [one.task, one.algo, one.policies, one.settings, *(str(middle(one.scores[:, pulls - 1])) for pulls in PULLS)]
        for one in tried
    ]


def linked(name: str, path: Path, folder: Path) -> Markup:
    """A name with a link to a file or folder."""
    return Markup(f"[{plain(name)}]({link(path, folder)})")


def link(path: Path, folder: Path) -> str:
    """The URL of a file or folder, relative to the folder of the report."""
    return quote(Path(os.path.relpath(path, folder)).as_posix())


def as_markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(plain(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def plain(text: object) -> str:
    """A text on one line, without HTML, links and a terminal's commands: names come from the folders of runs."""
    if isinstance(text, Markup):
        return text
    return re.sub(r"](?=[(:])", "&#93;", printable(text).replace("<", "&lt;"))


def code(text: str) -> Markup:
    """A text on one line as a code span, which ends where the text does, also in a table."""
    line = printable(text).replace("\\|", "\\ |")
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return Markup(f"`{line}`" if fence == "`" else f"{fence} {line} {fence}")
