"""Stores finished runs in one CSV file. `zoo report` reads it like the runs' folders.

A row is an evaluation. The first row of each run also has the run's record, which is the content of its `run.json`. The
last row also has the returns of its episodes.
"""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from omegaconf.errors import OmegaConfBaseException

from zoo.benchmarks.records import Result, shared
from zoo.errors import RunError, quoted
from zoo.files import replacing

KEYS = ("run", "record", "step", "seconds")  # the first columns; the others are those of `evaluations.csv`
RETURNS = "returns"  # the last column; older archives have none
DAMAGED = (  # what reading the files of a run may raise if they are cut short, or hold other things than a run writes
    OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, csv.Error,
    OmegaConfBaseException,
)  # fmt: skip


def save(results: list[Result], folder: Path, path: Path) -> int:
    """Writes the runs of a folder. A column that a run does not have is empty in its rows; unknown values are `nan`.

    If a run is both in its own folder and in an archive, the one in the folder is written.

    Returns:
        The number of runs.
    """
    known = {}  # keyed by the runs' records
    for result in sorted(results, key=lambda one: one.archive is None):
        record = shared(result.record) | ({"origins": result.origins} if result.begun_with else {})
        known[json.dumps(record, sort_keys=True)] = record, result
    columns = list(dict.fromkeys(name for _, result in known.values() for name in result.columns))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file, io.StringIO() as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*KEYS, *columns, RETURNS])
        for record, result in known.values():
            first = json.dumps(record, separators=(",", ":"))
            for i, step in enumerate(result.steps):
                figures = (repr(float(result.columns[name][i])) if name in result.columns else "" for name in columns)
                returns = " ".join(map(repr, result.returns.tolist())) if i == len(result.steps) - 1 else ""
                seconds = repr(float(result.seconds[i]))
                writer.writerow([result.dir.relative_to(folder), first, int(step), seconds, *figures, returns])
                first = ""
        file.write(text.getvalue().encode())
    return len(known)


def is_archive(path: Path) -> bool:
    """Whether a CSV file was written by `save`."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline().startswith(",".join(KEYS).encode())


def load(path: Path, check: Callable[[Result], None]) -> list[Result]:
    """The runs of an archive. Raises RunError if the archive is damaged.

    Args:
        path: the archive.
        check: raises one of `DAMAGED` if a run's record is damaged.
    """
    results = []
    with path.open(newline="") as file:
        try:
            text = file.read()
            if not text.endswith("\n"):
                raise ValueError("its last line is cut off")
            runs: list[list[dict[str, str]]] = []
            for row in csv.DictReader(io.StringIO(text, newline="")):
                runs += [[]] if row["record"] else []
                runs[-1].append(row)
            for rows in runs:
                columns = [key for key in rows[0] if key not in (*KEYS, RETURNS) and rows[0][key] != ""]
                results.append(
                    Result(
                        path.with_suffix("") / rows[0]["run"],
                        json.loads(rows[0]["record"]),
                        np.array([int(row["step"]) for row in rows]),
                        {key: np.array([float(row[key]) for row in rows]) for key in columns},
                        np.array([float(row["seconds"]) for row in rows]),
                        path,
                        np.array((rows[-1].get(RETURNS) or "").split(), float),
                    )
                )
                count, due = len(results[-1].returns), results[-1].config["eval_episodes"]
                lacks = f"its last evaluation has {count} returns of {due}" if count not in (0, due) else ""
                check(results[-1])
                if lacks := results[-1].unfinished or lacks:
                    raise ValueError(f"{rows[0]['run']}: {lacks}")
        except DAMAGED as error:
            again = f"zoo bench export DIR {quoted(path)}"
            raise RunError(f"{path} is damaged ({error}). Write it again: {again}") from error
    return results
