"""Lays learning curves side by side: `python benchmarks/curves.py RUN_DIR_OR_CSV ...`.

Reads `evaluations.csv` of runs, or CSV files with the columns `step` and `return_mean` such as `sb3.py` writes.
Prints one row an evaluation and one column a curve, then each curve's mean over its last three evaluations.
"""

import argparse
import csv
from pathlib import Path


def curve(path: Path, column: str) -> dict[int, float]:
    """The value of every evaluation by its step."""
    with (path / "evaluations.csv" if path.is_dir() else path).open(newline="") as file:
        return {int(row["step"]): float(row[column]) for row in csv.DictReader(file)}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Learning curves side by side.")
    parser.add_argument("paths", nargs="+", type=Path, help="runs' folders, or CSV files")
    parser.add_argument("--column", default="return_mean", help="return_mean (default) or score")
    args = parser.parse_args()
    curves = [curve(path, args.column) for path in args.paths]
    names = [path.stem for path in args.paths]
    width = max(10, *(len(name) + 2 for name in names))
    print(f"{'step':>10}" + "".join(f"{name:>{width}}" for name in names))
    for step in sorted(set().union(*curves)):
        cells = (f"{one[step]:.1f}" if step in one else "" for one in curves)
        print(f"{step:>10,}" + "".join(f"{cell:>{width}}" for cell in cells))
    last = [sum(list(one.values())[-3:]) / len(list(one.values())[-3:]) for one in curves]
    print(f"{'last three':>10}" + "".join(f"{value:>{width}.1f}" for value in last))
    print(f"{'mean of them over the curves':<30}{sum(last) / len(last):.1f}")


if __name__ == "__main__":
    main()
