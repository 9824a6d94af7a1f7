"""Prints learning curves side by side: `python benchmarks/scripts/curves.py RUN_DIR_OR_CSV ...`.

This reads the `evaluations.csv` of runs, or CSV files with the columns `step` and `return_mean`, such as `sb3.py`
writes. It prints one row per evaluation and one column per curve, then each curve's mean over its last three
evaluations (`--last`), and the mean of these means with its standard deviation over the curves and its 95 % interval
(Student's t).

    python benchmarks/scripts/curves.py --training 100000 RUN_DIR_OR_CSV ...

This prints each run's mean return of the training episodes that ended in the last 100,000 steps, from `metrics.csv` or
CSV files with the columns `step` and `episode_return`. A row is the mean of the episodes that ended since the row
before. It is weighted by the number of these episodes, which follows from the column `episode_length`; without that
column, all rows have the same weight.
"""

import argparse
import csv
import json
import math
from pathlib import Path

import numpy as np

from zoo.benchmarks.reading import episodes, offline_updates
from zoo.benchmarks.stats import LEAST_RUNS, mean


def curve(path: Path, file_name: str, column: str) -> dict[int, float]:
    """The numbers in a column by step, without empty rows."""
    with (path / file_name if path.is_dir() else path).open(newline="") as file:
        rows = {int(row["step"]): float(row.get(column) or "nan") for row in csv.DictReader(file)}
    return {step: value for step, value in rows.items() if not math.isnan(value)}


def training_return(path: Path, count: int) -> float:
    """The mean return of the episodes that ended in the last `count` steps."""
    returns, lengths = (curve(path, "metrics.csv", column) for column in ("episode_return", "episode_length"))
    steps, values = np.array(list(returns)), np.array(list(returns.values()))
    updates = offline_updates(json.loads((path / "run.json").read_text())) if path.is_dir() else 0
    weights = episodes(list(lengths), list(lengths.values()), updates) if lengths else np.ones(len(steps))
    last = steps > steps[-1] - count
    return float(np.average(values[last], weights=weights[last]))


def print_evaluations(curves: list[dict[int, float]], names: list[str], count: int) -> list[float]:
    """Prints the table. Returns each curve's mean over its last `count` evaluations."""
    width = max(10, *(len(name) + 2 for name in names))
    print(f"{'step':>10}" + "".join(f"{name:>{width}}" for name in names))
    for step in sorted(set().union(*curves)):
        cells = (f"{one[step]:.1f}" if step in one else "" for one in curves)
        print(f"{step:>10,}" + "".join(f"{cell:>{width}}" for cell in cells))
    last = [float(np.mean(list(one.values())[-count:])) for one in curves]
    print(f"{f'last {count}':>10}" + "".join(f"{value:>{width}.1f}" for value in last))
    return last


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Prints learning curves side by side.")
    parser.add_argument("paths", nargs="+", type=Path, help="folders of runs, or CSV files")
    parser.add_argument("--column", default="return_mean", help="column to print: return_mean (default) or score")
    parser.add_argument("--last", type=int, default=3, help="number of last evaluations to average (default 3)")
    parser.add_argument("--training", type=int, metavar="STEPS", help="use training episodes of the last STEPS steps")
    args = parser.parse_args()
    names = [path.stem for path in args.paths]
    if args.training is None:
        last = print_evaluations([curve(path, "evaluations.csv", args.column) for path in args.paths], names, args.last)
    else:
        last = [training_return(path, args.training) for path in args.paths]
        for name, value in zip(names, last, strict=True):
            print(f"{name:<39} {value:.1f}")
    spread = f" +- {np.std(last, ddof=1):.1f}" if len(last) > 1 else ""
    print(f"{'mean over the curves':<40}{np.mean(last):.1f}{spread}")
    if len(last) >= LEAST_RUNS:
        print(f"{'and its 95 % interval':<40}{mean(np.array(last)):.1f}")


if __name__ == "__main__":
    main()
