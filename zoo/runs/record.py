"""Reads the record of an existing run from its folder: its settings, its shapes and its evaluations."""

import csv
import json
from pathlib import Path
from typing import Any

from zoo.data.catalog import from_folder
from zoo.envs import series
from zoo.errors import RunError, UsageError, quoted
from zoo.settings.config import RunConfig
from zoo.spec import Spec


def read_record(run_dir: Path) -> dict[str, Any]:
    """The contents of a run's `run.json`. Raises UsageError if it is missing, or lacks something that is needed."""
    try:
        record: dict[str, Any] = json.loads((run_dir / "run.json").read_text())
        if record.get("peer"):
            raise UsageError(f"{run_dir} holds results of {record['peer']} only: there is no agent to continue with.")
        _ = record["config"]["algo"]["name"], record["algorithm"]["file"], record["status"], record["code"]
        _ = record["config"]["env"]["id"].startswith(series.PREFIX), spec_of(record), settings_of(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        inside = ", ".join(str(path.parent) for path in sorted(run_dir.glob("*/run.json")))
        several = f" It holds others: {inside}." if inside else ""
        raise UsageError(f"{run_dir} is not the folder of a run: it has no readable run.json.{several}") from error
    return record


def finished(run_dir: Path) -> bool:
    """Whether the run in a folder has finished."""
    return bool(read_record(run_dir)["status"] == "finished")


def settings_of(record: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run. Names of files and runs, relative to the folder that it began in, become full paths.

    The preset is dropped, because the settings that it made are among them.
    """
    settings: dict[str, Any] = record["config"]
    folder = Path(record.get("folder", ""))

    def run(name: str | None) -> str | None:
        return str(folder / name) if name and (folder / name).is_dir() else name

    algo, corruption = settings["algo"], settings.get("corruption") or {}
    return settings | {
        "dataset": from_folder(settings.get("dataset", RunConfig.dataset), folder),
        "algo": algo | ({"expert": from_folder(algo["expert"], folder)} if "expert" in algo else {}),
        "corruption": corruption | {"critic": run(corruption.get("critic"))},
        "base": run(settings.get("base")),
        "preset": None,
    }


def spec_of(record: dict[str, Any]) -> Spec:
    """The shapes and bounds in a run's record."""
    shapes: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in record["spec"].items()}
    return Spec(**shapes)


def evaluated(run_dir: Path) -> dict[int, float]:
    """The mean return of each evaluation, by its step; a finished run's last one is at the step where the run ended."""
    path = run_dir / "evaluations.csv"
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["return_mean"]]  # except one that was cut short
        return {int(row["step"]): float(row["return_mean"]) for row in rows}
    except (KeyError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}.") from error


def eval_command(run_dir: Path) -> str:
    """The command line that plays episodes with a run's agent."""
    made_by = read_record(run_dir)["algorithm"]["file"]
    return f"zoo eval {quoted(run_dir)}" + (f" --file {quoted(made_by)}" if made_by else "")


def resume_command(run_dir: Path) -> str:
    """The command line that continues a run."""
    made_by = read_record(run_dir)["algorithm"]["file"]
    return f"{f'python {quoted(made_by)}' if made_by else 'zoo run'} {quoted(f'resume={run_dir}')}"
