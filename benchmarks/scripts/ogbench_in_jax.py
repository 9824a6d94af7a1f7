"""Runs one of OGBench's goal-conditioned agents, in JAX, on one of the zoo's datasets.

    git clone https://github.com/seohongpark/ogbench OGBENCH
    zoo data export pointmaze-medium/navigate navigate.hdf5
    PYTHON_WITH_JAX benchmarks/scripts/ogbench_in_jax.py OGBENCH qrl pointmaze-medium-navigate-v0 --data navigate.hdf5 \
        --steps 100000 --eval-every 25000 --set hidden=256,256,256 batch_size=256 --seed 1 --out qrl.csv

PYTHON_WITH_JAX has jax, flax, optax, distrax, ml_collections, ogbench and h5py. This imports nothing from the zoo. The
agent, the sampling of goals, the environment and the evaluation are OGBench's, and so are the settings, which its
hyperparameters.sh has for the dataset's name. `--set` changes some; `hidden` is the width of all networks' layers. The
columns of the CSV file are those of a run's `evaluations.csv`.
"""

import argparse
import csv
import importlib
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

EPISODES = 10  # per task


def settings(checkout: Path, agent: str, dataset: str) -> dict[str, str]:
    """The settings of hyperparameters.sh for an agent and a dataset."""
    for line in (checkout / "impls/hyperparameters.sh").read_text().splitlines():
        if f"--env_name={dataset} " in line and f"--agent=agents/{agent}.py" in line:
            return dict(re.findall(r"--agent\.(\w+)=(\S+)", line))
    raise SystemExit(f"hyperparameters.sh has no line for {agent} on {dataset}")


def parse(text: str, default: Any) -> Any:
    """A setting's text as the type of its default."""
    if isinstance(default, tuple):
        return tuple(int(part) for part in text.split(","))
    return type(default)(text)


def load(file: Path) -> dict[str, np.ndarray]:
    """The transitions of a file in D4RL's layout, in OGBench's."""
    with h5py.File(file) as data:
        arrays = {key: data[key][:] for key in ("observations", "actions", "next_observations")}
        ends = data["terminals"][:] | data["timeouts"][:]
    return arrays | {"terminals": ends.astype(np.float32)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a clone of OGBench's repository")
    parser.add_argument("agent", help="gcbc, gcivl, gciql, qrl, crl or hiql")
    parser.add_argument("dataset", help="OGBench's name of the data, such as pointmaze-medium-navigate-v0")
    parser.add_argument("--data", type=Path, required=True, help="what `zoo data export` wrote")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--eval-every", type=int, required=True)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other settings than OGBench's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    sys.path.insert(0, str(args.checkout / "impls"))
    import gymnasium
    import ogbench  # noqa: F401, registers the environments
    from utils import datasets  # type: ignore[import-not-found]
    from utils.evaluation import evaluate  # type: ignore[import-not-found]

    module = importlib.import_module(f"agents.{args.agent}")
    config = module.get_config()
    changes = settings(args.checkout, args.agent, args.dataset) | dict(pair.split("=", 1) for pair in args.set)
    if hidden := changes.pop("hidden", ""):
        changes |= {name: hidden for name in config if name.endswith("hidden_dims")}
    config.update({name: parse(text, config[name]) for name, text in changes.items()})
    print(config)

    random.seed(args.seed)
    np.random.seed(args.seed)
    data = getattr(datasets, config["dataset_class"])(datasets.Dataset.create(**load(args.data)), config)
    example = data.sample(1)
    create = getattr(module, f"{args.agent.upper()}Agent").create
    agent = create(args.seed, example["observations"], example["actions"], config)
    env_id = re.sub(r"-(navigate|stitch|explore|play|noisy)-", "-", args.dataset)
    env, tasks = gymnasium.make(env_id), [f"success_task{task}" for task in range(1, 6)]
    started, paused = time.perf_counter(), 0.0
    with args.out.open("w", newline="") as file:
        rows = csv.DictWriter(file, ["step", "seconds", "success", *tasks])
        rows.writeheader()
        for step in range(1, args.steps + 1):
            agent, _ = agent.update(data.sample(config["batch_size"]))
            if step % args.eval_every:
                continue
            seconds, stopped = time.perf_counter() - started - paused, time.perf_counter()
            shares = [evaluate(agent, env, task, config, EPISODES)[0]["success"] for task in range(1, 6)]
            paused += time.perf_counter() - stopped
            row = {"step": step, "seconds": round(seconds, 1), "success": round(float(np.mean(shares)), 3)}
            rows.writerow(row | {task: round(float(share), 3) for task, share in zip(tasks, shares, strict=True)})
            file.flush()


if __name__ == "__main__":
    main()
