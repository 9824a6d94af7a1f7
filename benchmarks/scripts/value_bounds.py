"""Checks whether an algorithm's values exceed the returns that are possible: compares them with the dataset's bound.

    python benchmarks/scripts/value_bounds.py RUN_DIR...

A run's `q` in `metrics.csv` is the mean value of a batch. The bound is the largest absolute discounted return-to-go in
the data, with the rewards that the run learned from; a truncated episode counts as if it continued for ever with its
mean reward. The table has a row for each method: the number of runs whose values exceed ten times the bound or are not
finite, the largest value divided by the bound, and the mean of the runs' last scores.
"""

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from zoo.envs.make import spec_of
from zoo.runs.dataset import open_dataset
from zoo.runs.load import reopen
from zoo.settings.config import flat
from zoo.settings.overrides import as_overrides

BEYOND = 10  # values above this multiple of the bound are counted


def bound(run_dir: Path) -> float:
    """The largest absolute discounted return-to-go in a run's data."""
    config, _, _ = reopen(run_dir)
    data, _ = open_dataset(config, spec_of(config.env), torch.device("cpu"), None, None, lambda line: None)
    if getattr(config.algo, "normalize_reward", False):
        data.normalize_reward()
    return max(map(abs, data.value_bounds(config.algo.discount)))


def column(path: Path, name: str) -> np.ndarray:
    """The numbers in a column of a CSV file."""
    with path.open() as file:
        return np.array([float(row[name]) for row in csv.DictReader(file)])


def settings_that_differ(runs: list[Path]) -> list[str]:
    """The keys in which the runs differ, other than seeds and folders."""
    settings = [flat(json.loads((run_dir / "run.json").read_text())["config"]) for run_dir in runs]
    return [key for key in settings[0] if key not in ("seed", "run_dir") and len({str(s[key]) for s in settings}) > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    runs = [run_dir for run_dir in parser.parse_args().runs if (run_dir / "run.json").is_file()]
    if not runs:
        parser.error("none of these is the folder of a run")
    methods, differing = defaultdict(list), settings_that_differ(runs)
    for run_dir in runs:
        record = json.loads((run_dir / "run.json").read_text())
        values = np.abs(column(run_dir / "metrics.csv", "q"))
        finite = record["status"] == "finished" and np.isfinite(values).all()
        ratio = values.max() / bound(run_dir) if finite else np.inf
        scores = column(run_dir / "evaluations.csv", "score") if finite else [np.nan]
        methods[", ".join(as_overrides({key: flat(record["config"])[key] for key in differing}))].append(
            (ratio, scores[-1])
        )
    print(f"| method | runs beyond {BEYOND} times the bound | largest value / bound | last score |")
    print("|---|--:|--:|--:|")
    for method, runs in methods.items():
        ratios, scores = np.array(runs).T
        print(f"| {method} | {(ratios > BEYOND).sum()} of {len(runs)} | {ratios.max():.3g} | {scores.mean():.1f} |")


if __name__ == "__main__":
    main()
