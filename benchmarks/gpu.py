"""Tests and measures the zoo on a GPU: whether its results are those of the CPU, and how fast it is.

    pip install -e . pytest pytest-xdist
    python benchmarks/gpu.py                                # at most 9 minutes; benchmarks/results/gpu.json
    python benchmarks/gpu.py --minutes 30 --out gpu.json
    python benchmarks/gpu.py graph seeds                    # these parts only
    python benchmarks/gpu.py --table                        # print the figures of the file as tables

This needs a checkout. It first runs the tests that are marked `gpu`, and then measures speeds. Each part has a share of
the time; the script names what it had no time for and what is missing. Without a GPU, it runs the same tests on the
CPU, measures nothing, and says so. The exit code is 1 if a test fails.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zoo.benchmarks.scripts.timing.budget import measure_within
from zoo.benchmarks.scripts.timing.page import as_markdown
from zoo.benchmarks.scripts.timing.rounds import Subject, Table
from zoo.files import replacing
from zoo.machine import cores, gpus, processor
from zoo.runs.compilation import GRAPH, OLDEST, needed_to_compile
from zoo.runs.provenance import commit
from zoo.settings.registry import algorithms

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "results" / "gpu.json"
FIRST = ("iql", "sac", "ppo")  # measured before the other algorithms
SEEDS = (8, 64, 256)
ALGORITHMS = ("eager", "graph", "compiled")  # parts that measure every algorithm
CUDA = {"device": "cuda"}
TO_SB3 = "The zoo's update is compiled, a CUDA graph; Stable-Baselines3's is eager."
ON_GPU = "Memory is what PyTorch allocated on the GPU."

# --- What is measured -------------------------------------------------------------------------------------------------


def updates(compiled: bool | str, title: str, count: int) -> Iterator[Table]:
    """Updates of every algorithm."""
    names = [*FIRST, *(name for name in algorithms() if name not in FIRST)]
    subjects = {
        f"zoo, {name}": Subject("gpu.py", "updates", {"algo": name, "compiled": compiled} | CUDA) for name in names
    }
    note = f"Batches of 256 with Hopper's shapes or four discrete actions; for streams, single samples. {ON_GPU}"
    yield Table(f"Updates, {title}", count, subjects, note=note)


def seeds() -> Iterator[Table]:
    """Updates of one run, in float32 and with TF32, and of several seeds as one program, with TF32."""
    note = f"Compiled, as a CUDA graph. {ON_GPU}"
    for precision, title in (("highest", ""), ("high", ", with TF32")):
        given: dict[str, Any] = {"compiled": best(), "precision": precision} | CUDA
        one = {f"zoo, {algo}": Subject("gpu.py", "updates", {"algo": algo} | given) for algo in FIRST}
        yield Table(f"Updates of a run{title}", 200, one, note=note)
    note = f"Updates of all agents together, each with its own batch of 256. {note}"
    given = {"compiled": best(), "precision": "high"} | CUDA
    for replayed, which in ((False, ""), (True, ", the CUDA graph alone")):
        several = {
            f"zoo, {algo} of {count} seeds": Subject(
                "gpu.py", "seeds", {"algo": algo, "count": count, "replayed": replayed} | given
            )
            for algo, count in itertools.product(FIRST, SEEDS)
        }
        yield Table(f"Updates of all of several seeds, with TF32{which}", 10, several, note=note)


def peers() -> Iterator[Table]:
    for title, function, algo, count, worth in (
        ("SAC on Hopper-v5, environment steps with an update each", "off_policy", {"algo": "sac"}, 200, 1),
        ("PPO on one Hopper-v5, environment steps", "on_policy", {}, 1, 2_048),
    ):
        subjects = {"zoo": Subject("online.py", function, {**algo, "compiled": best()} | CUDA)}
        if importlib.util.find_spec("stable_baselines3"):
            given = {"library": "stable_baselines3"} | {key: value.upper() for key, value in algo.items()} | CUDA
            subjects["Stable-Baselines3"] = Subject("stable.py", function, given)
        yield Table(title, count, subjects, worth, f"The environment is stepped on the CPU. {TO_SB3} {ON_GPU}")


def warp() -> Iterator[Table]:
    number = 4_096
    for env in ("Hopper-v5", "HalfCheetah-v5"):
        made = {"env": env, "num_envs": number, "backend": "warp"} | CUDA
        yield Table(f"{number} {env} of warp alone, steps", 100, {"zoo": Subject("online.py", "alone", made)}, number)
        steps = {"num_steps": 32, "compiled": best()} | made
        subjects = {"zoo, PPO": Subject("online.py", "on_policy", steps)}
        note = f"Rollouts of 32 steps per environment, with 320 gradient steps after each. {ON_GPU}"
        yield Table(f"PPO on {number} {env} of warp, steps", 1, subjects, 32 * number, note)
    learning = {"algo": "sac", "updates": 1, "compiled": best(), "num_envs": 256, "backend": "warp"} | CUDA
    subjects = {"zoo, SAC": Subject("online.py", "off_policy", learning)}
    note = f"One update per step of all environments. {ON_GPU}"
    yield Table("SAC on 256 Hopper-v5 of warp, steps", 25_600, subjects, note=note)


def best() -> bool | str:
    """The fastest way to run updates on this GPU."""
    return GRAPH if needed_to_compile("cuda", OLDEST) else True


TESTS, TESTED = "tests", 0.2  # the share of the time for the tests; the shares of the other parts are below
PARTS: dict[str, tuple[Callable[[], Iterator[Table]], float]] = {
    "graph": (partial(updates, GRAPH, "as a CUDA graph", 200), 0.15),
    "seeds": (seeds, 0.2),
    "warp": (warp, 0.25),
    "peers": (peers, 0.1),
    "compiled": (partial(updates, True, "compiled and as a CUDA graph", 200), 0.1),
    "eager": (partial(updates, False, "eager", 50), 0.05),
}
AT_ONCE = 16  # maximum number of tests at a time
OUTCOMES = ("PASSED", "FAILED", "ERROR")


def missing() -> dict[str, str]:
    """The parts that cannot be measured here, and why."""
    if not torch.cuda.is_available():
        return dict.fromkeys(PARTS, "there is no GPU")
    absent = {} if importlib.util.find_spec("mujoco_warp") else {"warp": "mujoco_warp is not installed"}
    needed = needed_to_compile("cuda", OLDEST)
    return absent | ({"compiled": f"it needs {needed}"} if needed else {})


# --- What is checked --------------------------------------------------------------------------------------------------


def tests(seconds: float, device: str) -> dict[str, Any]:
    """Runs the tests that are marked `gpu`, or the same tests on the CPU.

    Args:
        seconds: the time limit, after which the tests are stopped.

    Returns:
        The number of tests that passed, the names of those that failed, pytest's output about the failures, and in
        `over` why not all tests were run, if so.
    """
    if not importlib.util.find_spec("pytest"):
        return {"passed": 0, "failed": [], "said": "", "over": "pytest is not installed"}
    marked = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    places, marks = (marked, "gpu") if device == "cuda" else (["tests/zoo/test_gpu.py"], "not gpu and not slow")
    command = [sys.executable, "-m", "pytest", "-vv", "-m", marks, "--tb=short", "-p", "no:cacheprovider", *places]
    if device == "cuda" and importlib.util.find_spec("xdist"):
        command += ["-n", str(min(AT_ONCE, cores())), "--maxschedchunk", "1"]  # some take ten times as long
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    over = ""
    try:
        said = process.communicate(timeout=max(seconds, 0.1))[0]
    except subprocess.TimeoutExpired:
        over = "the time limit was reached"
        process.send_signal(signal.SIGINT)
        try:
            said = process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0]
    outcomes = dict(map(outcome, re.findall(rf"^.*(?:{'|'.join(OUTCOMES)}).*$", said, re.MULTILINE)))
    if process.returncode not in (0, 1) and not over:
        over = (said.strip().splitlines() or ["pytest printed nothing"])[-1]
    failed = [name for name, how in outcomes.items() if name and how != "PASSED"]
    reasons = "\n".join(re.findall(r"^E   .*", said, re.MULTILINE))
    return {"passed": list(outcomes.values()).count("PASSED"), "failed": failed, "said": reasons, "over": over}


def outcome(line: str) -> tuple[str, str]:
    """The name and outcome of the test in a line of pytest's output."""
    name = re.search(rf"\S+\.py::.*?(?= (?:{'|'.join(OUTCOMES)}|- )|\s*$)", line)
    how = re.search("|".join(OUTCOMES), line)
    return name[0] if name else "", how[0] if how else ""


def as_table(figures: dict[str, list[dict[str, Any]]]) -> str:
    """Updates/s of each algorithm, eager and as CUDA graphs, and all other figures, as Markdown."""
    columns = {part: figures[part][0] for part in ALGORITHMS if figures.get(part)}
    updates = [f"| updates/s | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
    for name in sorted({name for table in columns.values() for name in table["subjects"]}):
        cells = []
        for table in columns.values():
            timed = table["subjects"].get(name)
            cells.append(f"{table['count'] / statistics.median(timed['seconds']):,.0f}" if timed else "")
        updates.append(f"| {name.removeprefix('zoo, ')} | {' | '.join(cells)} |")
    others = ["| measured | | per second |", "|---|---|--:|"]
    for table in (table for part, tables in figures.items() if part not in ALGORITHMS for table in tables):
        for name, timed in table["subjects"].items():
            seeds = re.search(r"of (\d+) seeds", name)  # their updates are counted one by one
            count = table["count"] * table["worth"] * (int(seeds[1]) if seeds else 1)
            others.append(f"| {table['title']} | {name} | {count / statistics.median(timed['seconds']):,.0f} |")
    return "\n\n".join("\n".join(lines) for lines in (updates, others) if len(lines) > 2)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[TESTS, *PARTS, []], help="parts (default: all)", metavar="PART")
    parser.add_argument("--minutes", type=float, default=9, help="time limit in minutes (default: 9)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="JSON file for the figures")
    parser.add_argument("--table", action="store_true", help="only print the figures in FILE")
    args = parser.parse_args(arguments)
    if args.table:
        if not args.out.is_file():
            parser.error(f"--out {args.out} is not a file")
        print(as_table(json.loads(args.out.read_text())["figures"]))
        return 0
    seconds = 60 * args.minutes - 15  # the rest is for stopping the processes
    end = time.monotonic() + seconds
    # many processes compile at the same time; unbuffered, so that output of stopped processes is not lost
    os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    known = gpus() | {"processor": processor(), "torch": torch.__version__, "commit": commit()}
    print("; ".join(f"{name} {value}" for name, value in known.items()), flush=True)
    absent = missing()
    chosen = {name: PARTS[name] for name in PARTS if name in args.parts or not args.parts}
    shares = {name: share for name, (_, share) in chosen.items() if name not in absent}
    checks: dict[str, Any] = {"passed": 0, "failed": [], "over": "they were not requested"}
    kept: dict[str, Any] = {"machine": known, "tests": checks, "not measured": {}, "figures": {}}
    if args.parts and args.out.exists() and (before := json.loads(args.out.read_text()))["machine"] == known:
        kept = before  # keep the figures of the other parts
    if TESTS in args.parts or not args.parts:
        checks = tests(seconds * (TESTED / (TESTED + sum(shares.values()))), device)
        print(f"\ntests on {device}: {checks['passed']} passed, {len(checks['failed'])} failed", flush=True)
        for name in checks["failed"]:
            print(f"failed: {name}", flush=True)
        if checks["over"]:
            print(f"not all tests were run: {checks['over']}", flush=True)
        print(checks.pop("said"), flush=True)
        kept["tests"] = checks

    def say(line: str) -> None:
        kept["not measured"][name].append(line)
        print(line, flush=True)

    def write() -> None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(args.out) as file:
            file.write((json.dumps(kept, indent=1) + "\n").encode())

    for name, (part, share) in chosen.items():
        kept["not measured"][name], kept["figures"][name] = [], []
        if name in absent:
            say(f"{name}: not measured: {absent[name]}")
            continue
        left = [other for other in shares if list(shares).index(other) >= list(shares).index(name)]
        share_of_left = share / sum(shares[other] for other in left)
        for measured in measure_within(list(part()), (end - time.monotonic()) * share_of_left, say):
            kept["figures"][name].append(dataclasses.asdict(measured))
            print(f"\n{as_markdown(measured)}", flush=True)
        write()  # save the results so far, in case the machine is taken away
    write()
    print(f"\nwritten to {args.out}")
    return 1 if checks["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
