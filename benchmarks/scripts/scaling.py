"""Measures the overhead and speedup of the runner of suites, with IQL runs one after another and in parallel.

    python benchmarks/scripts/scaling.py --runs 8 --steps 4000

The script prints the time of `zoo run` commands one after another; of the runner with one run at a time, and its
overhead; and of one run per core, without the runner, which is the machine's limit, and with it. Nothing else should be
running on the machine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zoo.benchmarks.jobs import Job, command
from zoo.benchmarks.launchers import Local
from zoo.benchmarks.runner import Runner
from zoo.benchmarks.suite import Planned, planned_run


def main() -> None:
    """Measures and prints the times."""
    parser = argparse.ArgumentParser(description="Measures the overhead and speedup of the runner of suites.")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4000, help="updates of each run")
    args = parser.parse_args()
    settings = ("algo=iql", "env=hopper", f"steps={args.steps}", f"eval_every={args.steps}", "env.backend=gymnasium")
    runs = [planned_run((*settings, f"seed={seed}"), "scaling") for seed in range(args.runs)]
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        alone = bare(runs, Path(folder) / "alone", 1)
        tell(f"{args.runs} times zoo run, one after another", alone)
        cpu = time.process_time()
        through = with_runner(runs, Path(folder) / "one", 1)
        cpu = time.process_time() - cpu
        added = f"{100 * (through / alone - 1):+.1f} %; its own work {100 * cpu / through:.2f} % of a core"
        tell("the runner, one at a time", through, added)
        for how, measure in ((f"zoo run, {cores} at a time", bare), (f"the runner, {cores} at a time", with_runner)):
            beside = measure(runs, Path(folder) / measure.__name__, cores)
            tell(how, beside, f"{alone / beside:.2f} times as fast")


def tell(how: str, seconds: float, more: str = "") -> None:
    """Prints a line of the table."""
    print(f"{how:<37} {seconds:7.1f} s  {more}".rstrip(), flush=True)


def bare(runs: list[Planned], folder: Path, jobs: int) -> float:
    """Seconds that `zoo run` takes with `jobs` processes at a time, without the runner."""

    def run(planned: Planned) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        arguments = command([Job(planned, folder / planned.name)])
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)

    begun = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, runs))
    return time.perf_counter() - begun


def with_runner(runs: list[Planned], folder: Path, jobs: int) -> float:
    """Seconds that the runner takes with `jobs` processes at a time."""
    begun = time.perf_counter()
    Runner(runs, folder, Local(jobs, folder)).go()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
