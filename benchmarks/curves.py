"""Lays learning curves side by side: `python benchmarks/curves.py RUN_DIR_OR_CSV ...`.

Reads `evaluations.csv` of runs, or CSV files with the columns `step` and `return_mean` such as `sb3.py` writes.
Prints one row an evaluation and one column a curve, then each curve's mean over its last three evaluations (`--last`),
and the mean of these means with its 95 % interval, by bootstrapping the curves.

    python benchmarks/curves.py --training 100000 RUN_DIR_OR_CSV ...

Prints each run's mean return of the episodes it trained on, those that ended in so many last steps, from `metrics.csv`
or CSV files with the columns `step` and `episode_return`.
"""

import argparse
import csv
import math
import statistics
from pathlib import Path

import numpy as np


def curve(path: Path, file_name: str, column: str) -> dict[int, float]:
    """The numbers of a column by their step, rows without one left out."""
    with (path / file_name if path.is_dir() else path).open(newline="") as file:
        rows = {int(row["step"]): float(row[column] or "nan") for row in csv.DictReader(file)}
    return {step: value for step, value in rows.items() if not math.isnan(value)}


def interval(values: list[float]) -> tuple[float, float]:
    """95 % of the means of as many values, drawn from them with replacement 10,000 times."""
    drawn = np.random.default_rng(0).choice(values, (10_000, len(values)))
    low, high = np.percentile(drawn.mean(1), [2.5, 97.5])
    return float(low), float(high)


def print_evaluations(curves: list[dict[int, float]], names: list[str], count: int) -> list[float]:
    """The table; returns the means of so many last ones."""
    width = max(10, *(len(name) + 2 for name in names))
    print(f"{'step':>10}" + "".join(f"{name:>{width}}" for name in names))
    for step in sorted(set().union(*curves)):
        cells = (f"{one[step]:.1f}" if step in one else "" for one in curves)
        print(f"{step:>10,}" + "".join(f"{cell:>{width}}" for cell in cells))
    last = [statistics.mean(list(one.values())[-count:]) for one in curves]
    print(f"{f'last {count}':>10}" + "".join(f"{value:>{width}.1f}" for value in last))
    return last


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Learning curves side by side.")
    parser.add_argument("paths", nargs="+", type=Path, help="runs' folders, or CSV files")
    parser.add_argument("--column", default="return_mean", help="of evaluations: return_mean (default) or score")
    parser.add_argument("--last", type=int, default=3, help="evaluations at the end that are averaged (default 3)")
    parser.add_argument("--training", type=int, metavar="STEPS", help="the training episodes of so many last steps")
    args = parser.parse_args()
    names = [path.stem for path in args.paths]
    if args.training is None:
        last = print_evaluations([curve(path, "evaluations.csv", args.column) for path in args.paths], names, args.last)
    else:
        curves = [curve(path, "metrics.csv", "episode_return") for path in args.paths]
        last = [statistics.mean(v for step, v in one.items() if step > max(one) - args.training) for one in curves]
        for name, value in zip(names, last, strict=True):
            print(f"{name:<40}{value:.1f}")
    spread = ""
    if len(last) > 1:
        low, high = interval(last)
        spread = f" +- {statistics.stdev(last):.1f}, 95 % [{low:.1f}, {high:.1f}]"
    print(f"{'mean over the curves':<40}{statistics.mean(last):.1f}{spread}")


if __name__ == "__main__":
    main()
