"""DQN's value heads under noisy rewards: a small version of Farebrother et al. 2024 (arXiv 2403.03950, section 5).

    python benchmarks/scripts/noisy_rewards.py --noise 0 2 4 --seeds 5 --out noisy.csv

CartPole's reward is 1 per step. Here, uniform noise from [-noise, noise] is added at every step. A policy is evaluated
by how long it balances the pole, which does not depend on the noise: the mean episode length of the evaluations in the
second half of training. For each noise and head, the script prints the mean over seeds and Student's t 95 % interval.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import zoo
from zoo.benchmarks.stats import mean

HEADS = ("mse", "two_hot", "c51", "hl_gauss")


def noisy_cartpole(**settings: Any) -> gymnasium.Env:
    """CartPole-v1 with reward noise from [-noise, noise]."""
    noise = settings.pop("noise")
    env = gymnasium.make("CartPole-v1", **settings)
    rng = np.random.default_rng(0)
    return gymnasium.wrappers.TransformReward(env, lambda reward: float(reward) + rng.uniform(-noise, noise))


def balanced(head: str, noise: float, seed: int, steps: int) -> float:
    """The mean length of the episodes in the second half of one run's evaluations."""
    env_id = f"NoisyCartPole{noise:g}-v0".replace(".", "_")
    if env_id not in gymnasium.registry:
        gymnasium.register(env_id, noisy_cartpole, kwargs={"noise": noise})
    support = {} if head == "mse" else {"v_min": -50.0, "v_max": 150.0}
    with tempfile.TemporaryDirectory() as folder:
        run = zoo.train(
            "dqn", env=env_id, steps=steps, seed=seed, eval_every=steps // 20, logger="none", run_dir=f"{folder}/run",
            algo_config={"value_head": head, **support},
        )  # fmt: skip
        return float(np.mean([episodes.lengths.mean() for _, episodes in run.evaluations[len(run.evaluations) // 2 :]]))


def main() -> None:
    """Trains every combination. A row is added to the CSV file when a run ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 2.0, 4.0])
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=HEADS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    lines = []
    with args.out.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["noise", "head", "seed", "length"])
        for noise in args.noise:
            for head in args.heads:
                lengths = []
                for seed in range(args.seeds):
                    lengths.append(balanced(head, noise, seed, args.steps))
                    rows.writerow([noise, head, seed, lengths[-1]])
                    file.flush()
                lines.append(f"{noise:>6g}  {head:<9}   {mean(np.array(lengths)):.1f}")
    print(f" noise  head        mean length, 95 % of {args.seeds} seeds")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
