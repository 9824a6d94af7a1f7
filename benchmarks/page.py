"""The report as one HTML page that needs no network, with interactive curves, filters, and the settings of each run."""

import json
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf

from zoo.benchmarks import markdown, plots
from zoo.benchmarks.records import FIGURES, MEASURES, shared
from zoo.benchmarks.stats import Estimate, profile

if TYPE_CHECKING:
    from zoo.benchmarks.analysis import Group, Report, Row

TEMPLATE = Path(__file__).with_name("page.html")
LINKED = ("config.yaml", "run.json", "metrics.csv", "evaluations.csv")  # files of a run that the page links to


def html(report: "Report", folder: Path) -> str:
    """The page. Its links to runs are relative to a folder."""
    from plotly.offline import get_plotlyjs

    title = report.folder.resolve().name
    switches, trials = markdown.switches_lines(report.switched), markdown.trials_lines(report.tried)
    data = {
        "title": title,
        "summary": markdown.summary(report),
        "notes": report.notes,
        "rows": [row_data(row, report, folder) for row in report.rows],
        "styles": {method: style._asdict() for method, style in report.styles.items()},
        "profiles": [profile_data(group) for group in report.groups],
        "overall": [
            {key: "; ".join(value) if key == "tasks" else str(value) for key, value in row.items()}
            for row in report.overall
            if (row["tasks"], row["steps"]) in {(group.tasks, group.steps) for group in report.groups}
        ],
        "improvements": [
            {"tasks": len(row["tasks"]), "method": row["method"], "than": row["than"]}
            | {"probability": f"{row['probability']:.2f}"}
            for row in report.improvements
            if row["whole"]
        ],
        "improvements_text": markdown.IMPROVEMENT_TEXT,
        "more": [
            {"title": title, "text": text, "header": header, "lines": lines, "names": names}
            for title, text, header, lines, names in (
                (markdown.SWITCHES, markdown.SWITCHES_TEXT, markdown.SWITCHES_HEADER, switches, 4),
                (markdown.TRIALS, markdown.TRIALS_TEXT, markdown.TRIALS_HEADER, trials, 2),
            )
        ],
    }
    # browsers read </script> and <!-- even inside a string of the script, so "<" is escaped
    parts = {"title": escape(title), "plotly": get_plotlyjs()}
    parts["data"] = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], TEMPLATE.read_text())


def profile_data(group: "Group") -> dict[str, Any]:
    """A performance profile in the format of the page's script."""
    thresholds = plots.profile_scores(group)
    share = {method: numbers(profile(scores, thresholds)) for method, scores in group.scores.items()}
    tasks = f"{'; '.join(group.tasks)} ({group.steps} steps)"
    return {"tasks": tasks, "scores": numbers(thresholds), "share": share}


def row_data(row: "Row", report: "Report", folder: Path) -> dict[str, Any]:
    """A row of the report in the format of the page's script."""
    first = row.runs[0]
    steps, values, seconds = plots.curves(row)
    return {
        "task": row.task,
        "method": row.method,
        "algo": first.algo,
        "env": first.env,
        "dataset": first.data or "none",
        "measure": MEASURES[row.measure],
        "figures": {figure: str(row.estimate(figure)) for figure in FIGURES},
        "last": row.steps,
        "evaluations": row.evaluations,
        "steps": steps.tolist(),
        "minutes": numbers(seconds / 60),
        "values": [numbers(runs) for runs in values.T],  # one list per step, with the values of all runs
        "runs": [
            {
                "name": str(run.dir.relative_to(report.folder)),
                "href": markdown.link(run.source, folder),
                "files": [] if run.archive else [name for name in LINKED if (run.dir / name).exists()],
                "seed": run.seed,
                "command": run.command,
                "config": OmegaConf.to_yaml(OmegaConf.create(shared(run.record)["config"])),
                "figures": {
                    figure: str(Estimate(run.figure(figure, row.measure), np.nan, np.nan)) for figure in FIGURES
                },
            }
            for run in row.runs
        ],
        "published": [
            {
                "task": c.reference.task,
                "figure": c.reference.column,
                "mean": c.reference.published.mean,
                "shown": c.published,
                "seeds": c.reference.published.seeds,
                "steps": c.reference.steps,
                "evaluations": c.reference.evaluations,
                "source": c.source,
                "verdict": str(c),
                "drawn": c.compared and c.reference.measure == row.measure,
            }
            for c in report.comparisons
            if c.row is row
        ],
    }


def numbers(values: np.ndarray) -> list[float | None]:
    """Numbers for JSON, rounded; None if not finite."""
    return [round(float(value), 4) if np.isfinite(value) else None for value in values]
