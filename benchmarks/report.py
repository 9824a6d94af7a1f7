"""`zoo report DIR`: the results of the runs in a folder, with intervals, compared with published figures."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from zoo.benchmarks import markdown, page, plots, published, switch
from zoo.benchmarks.analysis import Report, build
from zoo.benchmarks.archive import is_archive
from zoo.benchmarks.reading import NONDETERMINISM
from zoo.benchmarks.records import FIGURES, MEASURES
from zoo.benchmarks.stats import Estimate
from zoo.benchmarks.trials import PULLS, middle
from zoo.commands.parser import Parser
from zoo.errors import RunError, UsageError, optional, quoted
from zoo.files import replacing

# the files of a report, in addition to one CSV file for each table that has rows
FILES = ("report.md", "report.html", "curves.png", "curves.svg", "profiles.png", "profiles.svg")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        prog="zoo report",
        description="Writes tables, curves and a page of the runs in a folder, compared with published figures.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder with runs, at any depth")
    parser.add_argument("--out", type=Path, help="folder of the report (default: DIR/report)")
    parser.add_argument(
        "--references", type=Path, action="append", default=[], metavar="CSV", help="file of more published figures"
    )
    args = parser.parse_args(arguments)
    if args.dir.is_file():
        raise UsageError(f"{args.dir} is a file. Give the folder that holds it: zoo report {quoted(args.dir.parent)}")
    if not args.dir.is_dir():
        raise UsageError(f"{args.dir} is not a folder. Give one that holds runs, such as runs or bench/smoke.")
    require()
    own = [reference for path in args.references for reference in published.read(path)]
    report = build(args.dir, own)
    write(report, args.out or args.dir / "report")
    return 0


def require() -> None:
    """Raises UsageError if a library that the report needs is not installed."""
    for name in ("scipy", "matplotlib", "plotly"):
        optional(name, "a report", "bench")


def write(report: Report, folder: Path) -> None:
    """Writes the report into a folder, each file atomically.

    Raises:
        UsageError: the folder has a file with the name of one of the report's files that no report has written.
        RunError: the report cannot be written, or it says that runs contradict each other.
    """
    numbers = tables(report)
    written = [*FILES, *(["trials.png", "trials.svg"] if report.tried else [])]
    written += [f"{name}.csv" for name, table in numbers.items() if table]
    if others := not_of_a_report(folder, numbers):
        raise UsageError(f"{folder} holds {others[0]}, which no report has written. Give another folder: --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = markdown.text(report, folder)
        with replacing(folder / "report.md") as file:
            file.write(text.encode())
        for name, table in numbers.items():
            if table:
                with replacing(folder / f"{name}.csv") as file:
                    file.write(as_csv(table).encode())
            else:  # left over from an earlier report
                (folder / f"{name}.csv").unlink(missing_ok=True)
        plots.save(plots.learning_curves(report.rows, report.styles), folder / "curves")
        plots.save(plots.profiles(report.groups, report.styles), folder / "profiles")
        if report.tried:
            plots.save(plots.trials(report.tried), folder / "trials")
        with replacing(folder / "report.html") as file:
            file.write(page.html(report, folder).encode())
    except OSError as error:
        raise RunError(f"cannot write the report to {folder}: {error.strerror}.") from error
    print(text.partition("## Curves")[0].rstrip())
    print(f"\nwritten to {folder}/: {', '.join(written)}")
    if contradicting := [note for note in report.notes if note.startswith(NONDETERMINISM)]:
        raise RunError(f"{contradicting[0]}. Find out why before you trust any of them.")


def not_of_a_report(folder: Path, names: Iterable[str]) -> list[str]:
    """The files in a folder that have the name of one of a report's files, and that no report has written.

    Args:
        folder: the folder.
        names: those of a report's tables.
    """
    pages = [name for name in ("report.md", "report.html") if (folder / name).exists()]
    others = [name for name in pages if markdown.ALWAYS not in (folder / name).read_text(errors="replace")]
    for path in (folder / f"{name}.csv" for name in names):  # an archive of runs, or the trials of a search
        if path.exists() and ("report.md" not in pages or is_archive(path)):
            others.append(path.name)
    return others


def tables(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Every number in the report, by table."""
    return {
        "results": [
            {"task": row.task, "method": row.method, "measure": MEASURES[row.measure], "seeds": len(row.runs)}
            | {"steps": row.steps, "evaluations": row.evaluations, "figure": figure}
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
            {"tasks": "; ".join(row["tasks"]), "steps": row["steps"], "method": row["method"], "runs": row["runs"]}
            | {"statistic": name}
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
        "switches": [
            {"task": one.row.task, "method": one.row.method, "measure": MEASURES[one.row.measure]}
            | {"seeds": len(one.row.runs), "figure": figure}
            | spread(getattr(one, figure))
            for one in report.switched
            for figure in switch.FIGURES
        ],
        "trials": [
            {"task": one.task, "algorithm": one.algo, "policies": one.policies, "settings": one.settings}
            | {"episodes": pulls}
            | spread(middle(one.scores[:, pulls - 1]))
            for one in report.tried
            for pulls in PULLS
        ],
        "speeds": [
            {"algo": algo, "env": env, "runs": len(values), "steps_per_second": round(median(values), 1)}
            for (algo, env), values in sorted(speeds(report).items())
        ],
    }


def speeds(report: Report) -> dict[tuple[str, str], list[float]]:
    """Training steps per second of each run, by algorithm and environment."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in report.results:
        if run.seconds[-1] > 0:  # not NaN
            found[run.algo, run.env].append(float(run.steps[-1] / run.seconds[-1]))
    return found


def spread(estimate: Estimate) -> dict[str, Any]:
    """An estimate as columns; unknown values are empty."""
    return {key: "" if np.isnan(value) else value for key, value in estimate._asdict().items()}


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """A table as CSV, with the columns of its first row."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
