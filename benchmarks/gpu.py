"""What the zoo does on a GPU: whether it computes there what it computes on the CPU, and how fast.

    pip install -e . pytest pytest-xdist
    python benchmarks/gpu.py                                # at most 9 minutes; benchmarks/results/gpu.json
    python benchmarks/gpu.py --minutes 30 --out gpu.json

Needs a checkout. First come the tests that are marked `gpu`, then the speeds, each part within its own share of the
time; what no time was left for, and what is not installed, is named. Without a GPU it runs the same tests on the CPU,
measures nothing, and says so. The exit code is 1 where a test fails.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from zoo.benchmarks.scripts.timing.budget import measure_within
from zoo.benchmarks.scripts.timing.gpu import COMPILED, EAGER, GRAPH
from zoo.benchmarks.scripts.timing.page import as_markdown
from zoo.benchmarks.scripts.timing.rounds import Subject, Table
from zoo.envs.make import BACKENDS
from zoo.machine import gpus, processor
from zoo.runs.provenance import commit
from zoo.settings.registry import algorithms

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "results" / "gpu.json"
FIRST = ("iql", "sac", "ppo")  # measured before the other algorithms
SEEDS = (1, 8, 64, 256)
NUM_ENVS = (256, 4_096)
CUDA = {"device": "cuda"}
ON_GPU = "Memory is what PyTorch allocated on the GPU."

# --- What is measured -------------------------------------------------------------------------------------------------


def updates() -> Iterator[Table]:
    """Every algorithm; the compiled ones without a CUDA graph last, whose code is kept by then."""
    names = [*FIRST, *(name for name in algorithms() if name not in FIRST)]
    for how in (GRAPH, EAGER, COMPILED):
        subjects = {f"zoo, {name}": Subject("gpu.py", "updates", {"algo": name, "how": how} | CUDA) for name in names}
        note = f"Batches of 256 of Hopper's shapes, or of four discrete actions; streams: a sample. {ON_GPU}"
        title = {GRAPH: "Updates, compiled and as a CUDA graph", EAGER: "Updates, eager"}.get(how, "Updates, compiled")
        yield Table(title, 200, subjects, note=note)


def seeds() -> Iterator[Table]:
    for algo in FIRST:
        subjects = {
            f"zoo, {algo} of {count} seeds": Subject("gpu.py", "seeds", {"algo": algo, "count": count} | CUDA)
            for count in SEEDS
        }
        note = f"Of all agents together, each with a batch of 256 of its own. {ON_GPU}"
        yield Table(f"Updates of all of several seeds of {algo}", 10, subjects, note=note)


def peers() -> Iterator[Table]:
    for title, function, algo, count, worth in (
        ("SAC on Hopper-v5, environment steps with an update each", "off_policy", {"algo": "sac"}, 200, 1),
        ("PPO on one Hopper-v5, environment steps", "on_policy", {}, 1, 2_048),
    ):
        subjects = {"zoo": Subject("online.py", function, {**algo, "compiled": True} | CUDA)}
        if importlib.util.find_spec("stable_baselines3"):
            given = {"library": "stable_baselines3"} | {key: value.upper() for key, value in algo.items()} | CUDA
            subjects["Stable-Baselines3"] = Subject("stable.py", function, given)
        yield Table(title, count, subjects, worth, f"The environment is stepped on the CPU. {ON_GPU}")


def warp() -> Iterator[Table]:
    for number in NUM_ENVS:
        made = {"num_envs": number, "backend": "warp"} | CUDA
        yield Table(
            f"{number} Hopper-v5 of warp alone, steps", 100, {"zoo": Subject("online.py", "alone", made)}, number
        )
        steps = {"num_steps": 32, "compiled": True} | made
        subjects = {"zoo, PPO": Subject("online.py", "on_policy", steps)}
        note = f"Rollouts of 32 steps an environment, 320 gradient steps after each. {ON_GPU}"
        yield Table(f"PPO on {number} Hopper-v5 of warp, steps", 1, subjects, 32 * number, note)
        learning = {"algo": "sac", "updates": 1, "compiled": True} | made
        subjects = {"zoo, SAC": Subject("online.py", "off_policy", learning)}
        note = f"An update a step of all environments. {ON_GPU}"
        yield Table(f"SAC on {number} Hopper-v5 of warp, steps", 100 * number, subjects, note=note)


PARTS: dict[str, tuple[Callable[[], Iterator[Table]], float]] = {  # and their shares of the time
    "updates": (updates, 0.35), "seeds": (seeds, 0.15), "peers": (peers, 0.08), "warp": (warp, 0.12),
}  # fmt: skip
TESTS = 0.3  # the tests' share
AT_ONCE = 8  # tests
OUTCOMES = ("PASSED", "FAILED", "ERROR")


def missing() -> dict[str, str]:
    """The parts that cannot be measured here, and why."""
    if not torch.cuda.is_available():
        return dict.fromkeys(PARTS, "there is no GPU")
    return {} if "warp" in BACKENDS else {"warp": "there is no env.backend=warp"}


# --- What is checked --------------------------------------------------------------------------------------------------


def tests(seconds: float, device: str) -> dict[str, Any]:
    """Runs the tests of a GPU, on the CPU the same ones.

    Args:
        seconds: after which what still runs is ended.

    Returns:
        How many passed, which failed, and `over` if not all were run.
    """
    if not importlib.util.find_spec("pytest"):
        return {"passed": 0, "failed": [], "over": "pytest is not installed"}
    marked = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    places, marks = (marked, "gpu") if device == "cuda" else (["tests/zoo/test_gpu.py"], "not gpu and not slow")
    command = [sys.executable, "-m", "pytest", "-vv", "-m", marks, "--tb=line", "-p", "no:cacheprovider", *places]
    if device == "cuda" and importlib.util.find_spec("xdist"):
        command += ["-n", str(AT_ONCE)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    over = ""
    try:
        said = process.communicate(timeout=max(seconds, 0.1))[0]
    except subprocess.TimeoutExpired:
        over = "their time was over"
        process.send_signal(signal.SIGINT)
        try:
            said = process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0]
    outcomes = dict(map(outcome, re.findall(rf"^.*(?:{'|'.join(OUTCOMES)}).*$", said, re.MULTILINE)))
    if process.returncode not in (0, 1) and not over:
        over = (said.strip().splitlines() or ["pytest said nothing"])[-1]
    failed = [name for name, how in outcomes.items() if name and how != "PASSED"]
    return {"passed": list(outcomes.values()).count("PASSED"), "failed": failed, "over": over}


def outcome(line: str) -> tuple[str, str]:
    """The test that a line of pytest's is about, and how it ended."""
    name = re.search(rf"\S+\.py::.*?(?= (?:{'|'.join(OUTCOMES)}|- )|\s*$)", line)
    how = re.search("|".join(OUTCOMES), line)
    return name[0] if name else "", how[0] if how else ""


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9, help="at most (default: 9)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="where the figures are written (JSON)")
    args = parser.parse_args(arguments)
    seconds = 60 * args.minutes - 15  # the rest is for what has to end
    end = time.monotonic() + seconds
    # many processes compile side by side; what they print is read when they are ended, too
    os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    known = gpus() | {"processor": processor(), "torch": torch.__version__, "commit": commit()}
    print("; ".join(f"{name} {value}" for name, value in known.items()), flush=True)
    absent, unmeasured = missing(), list[str]()
    checks = tests(TESTS * seconds if absent.keys() != PARTS.keys() else seconds, device)
    print(f"\ntests on {device}: {checks['passed']} passed, {len(checks['failed'])} failed", flush=True)
    for name in checks["failed"]:
        print(f"failed: {name}", flush=True)
    if checks["over"]:
        print(f"not all tests were run: {checks['over']}", flush=True)
    figures: dict[str, Any] = {}

    def say(line: str) -> None:
        unmeasured.append(line)
        print(line, flush=True)

    def write() -> None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        kept = {"machine": known, "tests": checks, "not measured": unmeasured, "figures": figures}
        args.out.write_text(json.dumps(kept, indent=1) + "\n")

    shares = {name: share for name, (_, share) in PARTS.items() if name not in absent}
    for name, (part, share) in PARTS.items():
        if name in absent:
            say(f"{name}: not measured: {absent[name]}")
            continue
        left = [other for other in shares if list(PARTS).index(other) >= list(PARTS).index(name)]
        until = time.monotonic() + (end - time.monotonic()) * share / sum(shares[other] for other in left)
        tables = list(part())
        for number, table in enumerate(tables):
            measured = measure_within(table, (until - time.monotonic()) / (len(tables) - number), say)
            if measured.subjects:
                figures.setdefault(name, []).append(dataclasses.asdict(measured))
                print(f"\n{as_markdown(measured)}", flush=True)
            write()  # what there is, should the machine be taken away
    write()
    print(f"\nwritten to {args.out}")
    return 1 if checks["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
