"""Learning curve of Stable-Baselines3's SAC or TD3 under the zoo's settings and evaluation protocol.

    python benchmarks/sb3.py sac --env Hopper-v5 --steps 200000 --seed 0 --out hopper.csv

Needs the `peers` extra. Writes the columns of a run's `evaluations.csv` that a curve needs: step and return_mean, over
ten episodes from fixed seeds with the deterministic policy every 10,000 steps, so the two files lie side by side.
"""

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise

EVAL_EVERY = 10_000
EVAL_EPISODES = 10


def evaluate(model: BaseAlgorithm, env_id: str, seed: int) -> list[float]:
    """Returns of one deterministic episode from each of the seeds `seed`, `seed + 1`, ..."""
    env = gymnasium.make(env_id)
    returns = []
    for episode in range(EVAL_EPISODES):
        obs, _ = env.reset(seed=seed + episode)
        total, done = 0.0, False
        while not done:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
    env.close()
    return returns


class Curve(BaseCallback):
    """Evaluates on schedule and appends a row at a time, so that a stopped run keeps its curve."""

    def __init__(self, env_id: str, seed: int, out: Path) -> None:
        super().__init__()
        self.env_id, self.seed, self.out = env_id, seed, out
        self.training_seconds, self.mark = 0.0, 0.0

    def _on_training_start(self) -> None:
        self.out.write_text("step,return_mean,return_std,training_seconds\n")
        self.mark = time.perf_counter()

    def _on_step(self) -> bool:
        if self.num_timesteps % EVAL_EVERY == 0:
            self.training_seconds += time.perf_counter() - self.mark
            returns = evaluate(self.model, self.env_id, self.seed + 10_000)
            with self.out.open("a") as file:
                csv.writer(file).writerow(
                    [self.num_timesteps, np.mean(returns), np.std(returns), f"{self.training_seconds:.1f}"]
                )
            self.mark = time.perf_counter()
        return True


def main() -> None:
    """Trains, evaluating on the way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algo", choices=("sac", "td3"))
    parser.add_argument("--env", default="Hopper-v5")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    env = gymnasium.make(args.env)
    shared: dict[str, Any] = {
        "learning_rate": 3e-4, "buffer_size": 1_000_000, "batch_size": 256, "tau": 0.005, "gamma": 0.99,
        "train_freq": 1, "gradient_steps": 1, "policy_kwargs": {"net_arch": [256, 256]}, "seed": args.seed,
        "device": "cpu",
    }  # fmt: skip
    model: BaseAlgorithm
    if args.algo == "sac":
        model = SAC("MlpPolicy", env, learning_starts=5_000, **shared)
    else:
        assert isinstance(env.action_space, gymnasium.spaces.Box)
        noise = NormalActionNoise(np.zeros(env.action_space.shape), np.full(env.action_space.shape, 0.1))
        model = TD3("MlpPolicy", env, learning_starts=25_000, action_noise=noise, **shared)
    model.learn(args.steps, callback=Curve(args.env, args.seed, args.out))


if __name__ == "__main__":
    main()
