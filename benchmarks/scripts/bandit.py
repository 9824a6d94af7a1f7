"""Clones a mixture of four Gaussians with a Gaussian policy, DQL, FQL and OFQL, and measures their quality and speed.

    OMP_NUM_THREADS=1 python benchmarks/scripts/bandit.py --csv benchmarks/results/bandit.csv --picture docs/bandit.png

The mixture is that of Wang et al. 2022 (arXiv 2208.06193), section 5: Gaussians with standard deviation 0.05 at
(+-0.8, +-0.8), with equal weights. All policies have layers of the same widths and the same number of updates, without
rewards. The script measures the energy distance of their samples to the data, 2 E|x - y| - E|x - x'| - E|y - y'|, the
share of samples that are more than four standard deviations from every Gaussian's mean, and the time of one sample.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.algos.dql import DQL
from zoo.algos.dql import Config as DQLConfig
from zoo.algos.fql import FQL
from zoo.algos.fql import Config as FQLConfig
from zoo.algos.ofql import OFQL
from zoo.algos.ofql import Config as OFQLConfig
from zoo.data.batch import Batch
from zoo.nn import GaussianPolicy
from zoo.nn.optim import Adam
from zoo.spec import Spec

SPEC = Spec((1,), (-1.0, -1.0), (1.0, 1.0))
SPOTS = 0.8 * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
SPREAD, HIDDEN, LR, BATCH = 0.05, [128, 128, 128], 1e-3, 256
SAMPLES, TIMED = 2_000, 300

Sampler = Callable[[Tensor], Tensor]  # observations -> actions


def draw(count: int) -> Tensor:
    """Samples actions of the data."""
    return SPOTS[torch.randint(4, (count,))] + SPREAD * torch.randn(count, 2)


def batch() -> Batch:
    obs, ended = torch.zeros(BATCH, 1), torch.ones(BATCH, dtype=torch.bool)
    return Batch(obs, draw(BATCH), torch.zeros(BATCH), obs, ended, torch.arange(BATCH))


def gaussian(updates: int) -> dict[str, Sampler]:
    policy = GaussianPolicy(1, SPEC.action_low, SPEC.action_high, HIDDEN)
    optimizer = Adam(policy.parameters(), LR)
    for _ in range(updates):
        given = batch()
        optimizer.minimize(policy.cloning_loss(given.obs, given.action).mean())
    return {"bc": policy.sample}


def diffusion(updates: int) -> dict[str, Sampler]:
    agent = DQL(SPEC, DQLConfig(hidden=HIDDEN))
    optimizer = Adam(agent.policy.parameters(), LR)
    for _ in range(updates):
        optimizer.minimize(agent.cloning_loss(batch()))
    steps = agent.config.diffusion_steps
    return {"dql": lambda obs: agent.policy.sample(obs, torch.randn(steps, len(obs), 2))}


def flow(updates: int) -> dict[str, Sampler]:
    agent = FQL(SPEC, FQLConfig(hidden=HIDDEN, lr=LR))
    for _ in range(updates):
        agent.update(batch())
    return {
        "fql, its flow": lambda obs: agent.flow.sample(obs, torch.randn(len(obs), 2)),
        "fql": lambda obs: agent.policy.sample(obs, torch.randn(len(obs), 2)),
    }


def mean_flow(updates: int) -> dict[str, Sampler]:
    agent = OFQL(SPEC, OFQLConfig(hidden=HIDDEN))
    optimizer = Adam(agent.policy.parameters(), LR)
    for _ in range(updates):
        optimizer.minimize(agent.cloning_loss(batch()))
    return {"ofql": lambda obs: agent.policy.sample(obs, torch.randn(len(obs), 2))}


def energy_distance(x: Tensor, y: Tensor) -> float:
    """The energy distance of two samples `[N, 2]`, without pairs of a point with itself."""
    n, m = len(x), len(y)
    own = torch.cdist(x, x).sum() / (n * (n - 1)) + torch.cdist(y, y).sum() / (m * (m - 1))
    return float(2 * torch.cdist(x, y).mean() - own)


def microseconds(sampler: Sampler) -> float:
    """The median time of one sample."""
    obs, taken = torch.zeros(1, 1), []
    for _ in range(TIMED):
        begun = time.perf_counter()
        sampler(obs)
        taken.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=4_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--picture", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    pictured: dict[str, Tensor] = {}
    for seed in args.seeds:
        samplers: dict[str, Sampler] = {"data": lambda obs: draw(len(obs))}
        for learn in (gaussian, diffusion, flow, mean_flow):
            torch.manual_seed(seed)
            samplers |= learn(args.updates)
        torch.manual_seed(1_000 + seed)
        data = draw(SAMPLES)
        for name, sampler in samplers.items():
            with torch.no_grad():
                sample = sampler(torch.zeros(SAMPLES, 1))
                outside = (torch.cdist(sample, SPOTS).amin(1) > 4 * SPREAD).double().mean().item()
                rows.append(
                    {
                        "policy": name, "seed": seed, "energy_distance": round(energy_distance(sample, data), 4),
                        "outside": round(outside, 4), "microseconds": round(microseconds(sampler)),
                    }
                )  # fmt: skip
            print(rows[-1], flush=True)
            pictured.setdefault(name, sample)
    with args.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    draw_picture(pictured, args.picture)


def draw_picture(samples: dict[str, Tensor], path: Path) -> None:
    """Plots the samples of the first seed side by side."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(samples), figsize=(2.2 * len(samples), 2.5), sharex=True, sharey=True)
    for ax, (name, sample) in zip(axes, samples.items(), strict=True):
        ax.scatter(*sample.T, s=1, alpha=0.4)
        ax.set(title=name, xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
