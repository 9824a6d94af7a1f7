"""Checks whether a change of the code has changed results, with digests of the evaluations of short runs.

    python benchmarks/scripts/same.py --write benchmarks/results/digests.json
    python benchmarks/scripts/same.py --compare benchmarks/results/digests.json

Any difference changes a digest, even in the last bit. Floating-point results depend on the machine and on PyTorch's
version, so both are written to the file, and a comparison with another machine's file is refused.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import zoo
from zoo.errors import UsageError
from zoo.machine import processor

COMMON: dict[str, Any] = {"eval_episodes": 2, "logger": "none", "log_every": 100}
HOPPER: dict[str, Any] = {**COMMON, "env": "hopper", "env.backend": "gymnasium"}
RUNS: dict[str, dict[str, Any]] = {
    "iql": {**HOPPER, "dataset": "demo", "steps": 300, "eval_every": 100},
    "sac": {**HOPPER, "steps": 600, "eval_every": 200, "algo_config": {"learning_starts": 300}},
    "ppo": {**HOPPER, "steps": 2048, "eval_every": 512, "algo_config": {"num_steps": 512, "minibatches": 8}},
    "stream_ac": {**HOPPER, "steps": 600, "eval_every": 200},
    "mbrcsl": {
        **HOPPER, "dataset": "demo", "steps": 200, "eval_every": 100,
        "algo_config": {
            "hidden": [32], "dynamics_hidden": [32] * 4, "dynamics_epochs": 1, "behavior_hidden": [32],
            "behavior_epochs": 1, "diffusion_steps": 3, "rollouts": 20, "rollout_batch": 50, "min_return": 10.0,
        },
    },
}  # fmt: skip


def digests() -> dict[str, str]:
    """The SHA-256 digest of each run's `evaluations.csv`."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for algo, settings in RUNS.items():
            run = zoo.train(algo, run_dir=f"{folder}/{algo}", **settings)
            found[algo] = hashlib.sha256((run.dir / "evaluations.csv").read_bytes()).hexdigest()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FILE", help="write the digests")
    action.add_argument("--compare", type=Path, metavar="FILE", help="compare the digests with those in a file")
    args = parser.parse_args()
    machine = {"processor": processor(), "torch": torch.__version__}
    before = json.loads(args.compare.read_text()) if args.compare else None
    if before and before["machine"] != machine:
        raise UsageError(f"{args.compare} was written on {before['machine']}, this is {machine}.")
    now = {"machine": machine, "digests": digests()}
    if args.write:
        args.write.write_text(json.dumps(now, indent=2) + "\n")
        return 0
    changed = [algo for algo, digest in now["digests"].items() if before and before["digests"].get(algo) != digest]
    print(f"changed: {', '.join(changed)}" if changed else "nothing has changed")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
