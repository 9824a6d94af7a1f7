"""Trains a Stable-Baselines3 algorithm with the zoo's settings and evaluation protocol, for its learning curve.

    python benchmarks/scripts/sb3.py sac --env hopper --steps 200000 --out hopper.csv
    python benchmarks/scripts/sb3.py ppo --env pong --steps 1000000 --eval-every 50000 --out pong.csv

This needs the `peers` extra. It writes the columns of a run's `evaluations.csv` that a learning curve needs, step and
return_mean. On Atari games, `ppo` and `dqn` have the Atari settings in the comments of `algos/ppo.py` and
`algos/dqn.py`, except that `dqn` has the Huber loss and a buffer of 100,000; the games are stepped by ale-py with
Stable-Baselines3's own wrappers. On other environments, `ppo` has the settings for MuJoCo, and Stable-Baselines3
normalizes observations and rewards; `dqn` has the defaults of `algos/dqn.py`, except for the Huber loss
(`algo.value_head=huber`). `ppo` clips values as here, but its loss is the clipped error alone, not the larger of the
two, and the whole square, not half of it: hence half the coefficient.
"""

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize
from torch import Tensor

from zoo.agent import Agent
from zoo.algos.dqn import Config as DQNConfig
from zoo.envs import EnvConfig, make
from zoo.envs.names import load_package
from zoo.runs.evaluation import evaluate
from zoo.settings.compose import compose
from zoo.settings.config import RunConfig
from zoo.spec import Spec

EVAL_EPISODES = 10
EVAL_EPSILON = DQNConfig.eval_epsilon  # for DQN, if evaluations are not deterministic
OFF_POLICY: dict[str, Any] = {
    "learning_rate": 3e-4, "buffer_size": 1_000_000, "batch_size": 256, "tau": 0.005, "gamma": 0.99, "train_freq": 1,
    "gradient_steps": 1, "policy_kwargs": {"net_arch": [256, 256]},
}  # fmt: skip


def falling(start: float) -> Callable[[float], float]:
    """A linear schedule to 0."""
    return lambda left: left * start


def atari(env: EnvConfig, num_envs: int, seed: int) -> VecEnv:
    """Training games: a lost life terminates, rewards are clipped, and four frames are stacked."""
    load_package(env.id)
    once = {"frameskip": 1, "repeat_action_probability": 0.0}  # the wrapper skips frames itself
    return VecFrameStack(make_atari_env(env.id, num_envs, seed, env_kwargs=once), 4)


def sac(env: EnvConfig, seed: int) -> BaseAlgorithm:
    return SAC("MlpPolicy", gymnasium.make(env.id), learning_starts=5_000, seed=seed, device="cpu", **OFF_POLICY)


def td3(env: EnvConfig, seed: int) -> BaseAlgorithm:
    one = gymnasium.make(env.id)
    assert isinstance(one.action_space, gymnasium.spaces.Box)
    noise = NormalActionNoise(np.zeros(one.action_space.shape), np.full(one.action_space.shape, 0.1))
    return TD3("MlpPolicy", one, learning_starts=25_000, action_noise=noise, seed=seed, device="cpu", **OFF_POLICY)


def ppo(env: EnvConfig, seed: int) -> BaseAlgorithm:
    if not env.id.startswith("ALE/"):
        return PPO(
            "MlpPolicy", VecNormalize(DummyVecEnv([lambda: gymnasium.make(env.id)])), n_steps=2048, n_epochs=10,
            batch_size=64, learning_rate=falling(3e-4), clip_range=0.2, clip_range_vf=0.2, ent_coef=0.0, vf_coef=0.25,
            seed=seed, device="cpu",
        )  # fmt: skip
    return PPO(
        "CnnPolicy", atari(env, 8, seed), n_steps=128, n_epochs=4, batch_size=256, learning_rate=falling(2.5e-4),
        clip_range=0.1, clip_range_vf=0.1, ent_coef=0.01, vf_coef=0.25, seed=seed, device="cpu",
    )  # fmt: skip


def dqn(env: EnvConfig, seed: int, n_steps: int = 1) -> BaseAlgorithm:
    if not env.id.startswith("ALE/"):
        ours = DQNConfig()
        return DQN(
            "MlpPolicy", gymnasium.make(env.id), buffer_size=ours.buffer_size, learning_rate=ours.lr,
            batch_size=ours.batch_size, learning_starts=ours.learning_starts, train_freq=ours.train_every,
            target_update_interval=ours.target_every, exploration_fraction=ours.exploration_fraction,
            exploration_final_eps=ours.epsilon, policy_kwargs={"net_arch": ours.hidden}, n_steps=n_steps, seed=seed,
            device="cpu",
        )  # fmt: skip
    return DQN(
        "CnnPolicy", atari(env, 1, seed), buffer_size=100_000, learning_rate=1e-4, batch_size=32,
        learning_starts=80_000, train_freq=4, target_update_interval=1_000, exploration_fraction=0.1,
        exploration_final_eps=0.01, max_grad_norm=float("inf"), n_steps=n_steps, seed=seed, device="cpu",
    )  # fmt: skip


class Policy(Agent):
    """Wraps Stable-Baselines3's policy as an agent for the zoo's evaluation."""

    def __init__(self, model: BaseAlgorithm, spec: Spec) -> None:
        super().__init__()
        self.spec, self.model, self.policy = spec, model, model.policy
        self.statistics = model.get_vec_normalize_env()

    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        seen = self.statistics.normalize_obs(obs.numpy()) if self.statistics else obs.numpy()
        greedy = isinstance(self.model, DQN)  # its own share of random actions is the one for training
        action = torch.as_tensor(self.model.predict(seen, deterministic=greedy or not explore)[0])
        if greedy and explore:
            random = torch.randint(self.spec.num_actions or 0, action.shape)
            return torch.where(torch.rand(action.shape) < EVAL_EPSILON, random, action)
        return action


class Curve(BaseCallback):
    """Evaluates at regular intervals and writes each row at once, so that a stopped run keeps its curve."""

    def __init__(self, config: RunConfig, seed: int, every: int, out: Path) -> None:
        super().__init__()
        self.envs, self.seed, self.every, self.out = make(config.env, EVAL_EPISODES), seed, every, out
        self.explore = not config.eval_deterministic
        self.spec = Spec.of(self.envs.single_observation_space, self.envs.single_action_space)
        self.training_seconds, self.mark, self.evaluated = 0.0, 0.0, 0

    def _on_training_start(self) -> None:
        self.out.write_text("step,return_mean,return_std,training_seconds\n")
        self.mark = time.perf_counter()

    def _on_step(self) -> bool:
        if self.num_timesteps // self.every > self.evaluated:
            self.evaluated = self.num_timesteps // self.every
            self.training_seconds += time.perf_counter() - self.mark
            returns = evaluate(Policy(self.model, self.spec), self.envs, self.seed, self.explore).returns
            row = [self.evaluated * self.every, returns.mean(), returns.std(), f"{self.training_seconds:.1f}"]
            with self.out.open("a") as file:
                csv.writer(file).writerow(row)
            self.mark = time.perf_counter()
        return True


def main() -> None:
    """Trains with evaluations."""
    algorithms: dict[str, Callable[..., BaseAlgorithm]] = {"sac": sac, "td3": td3, "ppo": ppo, "dqn": dqn}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algo", choices=algorithms)
    parser.add_argument("--env", required=True, help="as in zoo run env=")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--eval-every", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-steps", type=int, default=1, help="number of steps in dqn's n-step returns")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = compose([f"algo={args.algo}", f"env={args.env}"])[0]
    curve = Curve(config, args.seed, args.eval_every, args.out)
    own = {"n_steps": args.n_steps} if args.algo == "dqn" else {}
    algorithms[args.algo](config.env, args.seed, **own).learn(args.steps, curve)


if __name__ == "__main__":
    main()
