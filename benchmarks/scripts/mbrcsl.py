"""Runs the code of MBRCSL's authors (MBRCSL, MOPO and COMBO) on the zoo's Point Maze data, with the zoo's evaluation.

    git clone https://github.com/zhaoyizhou1123/mbrcsl DIR; pip install diffusers gym
    python benchmarks/scripts/mbrcsl.py DIR --seed 0 --out mbrcsl-authors-seed0.csv
    python benchmarks/scripts/mbrcsl.py DIR --algo mopo --epoch 20 --last_eval --out mopo-authors-seed0.csv

Other arguments are passed to their script, such as the number of epochs of 1,000 updates. Training MBRCSL's behaviour
policy takes hours, or one hour with `--network resnet`, the smaller of their two noise networks. If it was interrupted,
`--behavior logs/.../diffusion/checkpoint/policy.pth` continues from there, together with their own flags
`--load_dynamics_path logs/.../dynamics/model` and `--behavior_epoch`, the number of epochs left.

Their script makes the data, the environment and its wrapper. Here these are the zoo's, so that training and evaluation
are on the same transitions and episodes. Their unused imports are left out. The script writes one row for the final
policy and prints the time of each stage.
"""

import argparse
import csv
import importlib
import importlib.machinery
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import gymnasium
import numpy as np
import torch
from torch import Tensor

from zoo.agent import Agent
from zoo.data.load import load_arrays
from zoo.envs import EnvConfig, make
from zoo.runs.evaluation import evaluate
from zoo.spec import Spec

ENV = EnvConfig("PointMazeStitch-v0", "pointmaze-stitch")
UNUSED = ("roboverse", "wandb", "d4rl", "transformers")  # imported by their package, but not used here


class Trajectory(NamedTuple):
    """An episode in their format, with one more observation than actions: the last action and reward are not used."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray


class Adapter(gymnasium.Env[np.ndarray, np.ndarray]):
    """The environment with the interface of their wrapper."""

    def __init__(self) -> None:
        self.env = gymnasium.make(ENV.id)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return self.env.reset(seed=seed)[0]

    def step(self, action: np.ndarray) -> Any:
        obs, reward, _, truncated, info = self.env.step(np.clip(action, -1, 1).astype(np.float32))
        return obs, reward, truncated, info


class Theirs(Agent):
    """Their policy."""

    def __init__(self, policy: Any, spec: Spec) -> None:
        super().__init__()
        self.policy, self.spec = policy, spec

    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return torch.as_tensor(self.policy.select_action(obs.numpy(), deterministic=True)).float()


class Conditioned(Theirs):
    """Their policy, conditioned on the return to go."""

    def __init__(self, policy: Any, spec: Spec, goal: float) -> None:
        super().__init__(policy, spec)
        self.goal = goal

    def begin(self, num_envs: int) -> None:
        self.left = torch.full((num_envs, 1), self.goal)

    def observe(self, obs: Tensor, action: Tensor, reward: Tensor) -> None:
        self.left = self.left - reward[:, None]

    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return torch.as_tensor(self.policy.select_action(obs.numpy(), self.left)).float().clamp(-1, 1)


class Anything(types.ModuleType):
    """A stub module that has every name: a class for names in upper case, otherwise a mock."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (torch.nn.Module,), {}) if name[0].isupper() else MagicMock()


class Finder:
    """Finds stubs for the unused packages and their submodules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = Anything(spec.name)
        module.__path__ = []  # makes it a package, so that submodules can be imported
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def trajectories() -> list[Trajectory]:
    """The episodes of `dataset=waypoint`."""
    arrays = load_arrays(ENV, "waypoint")[0]
    ends = [*arrays.episode_starts[1:], len(arrays.reward)]
    found = []
    for start, end in zip(arrays.episode_starts, ends, strict=True):
        obs = np.concatenate([arrays.obs[start:end], arrays.next_obs[end - 1 : end]])
        action, reward = arrays.action[start:end], arrays.reward[start:end]
        found.append(
            Trajectory(obs, np.concatenate([action, action[-1:] * 0]), np.append(reward, 0).astype(np.float32))
        )
    return found


def main() -> None:
    """Trains and evaluates."""
    parser = argparse.ArgumentParser(description="Runs the code of MBRCSL's authors on the zoo's Point Maze data.")
    parser.add_argument("folder", type=Path, help="a clone of github zhaoyizhou1123/mbrcsl")
    parser.add_argument("--algo", choices=("mbrcsl", "mopo", "combo"), default="mbrcsl", help="which of their scripts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=10, help="number of evaluation episodes")
    parser.add_argument("--behavior", type=Path, help="their checkpoint of MBRCSL's behaviour policy to continue from")
    parser.add_argument("--network", choices=("unet", "resnet"), default="unet", help="behaviour policy's network")
    parser.add_argument("--out", type=Path, required=True, help="CSV file for the evaluation")
    args, theirs = parser.parse_known_args()
    torch.set_num_threads(1)
    sys.meta_path.insert(0, Finder())
    sys.path[:0] = [str(args.folder), str(args.folder / "examples" / "pointmaze")]
    name = f"run_{args.algo}_maze"
    workers = ["--num_workers", "0"] if args.algo == "mbrcsl" else []
    sys.argv = [f"{name}.py", "--data_dir", ".", "--seed", str(args.seed), *workers, *theirs]
    script: Any = importlib.import_module(name)
    script.create_env_dataset = lambda args: (Adapter(), trajectories())
    script.PointMazeObsWrapper = lambda env: env
    if args.algo == "mbrcsl":
        trainer = script.RcslPolicyTrainer
        script.SimpleDiffusionPolicy = partial(script.SimpleDiffusionPolicy, model_cls=args.network)
        if args.behavior is not None:
            learn_on(script.DiffusionPolicyTrainer, args.behavior)
        script.DiffusionPolicyTrainer.train = timed("behaviour", script.DiffusionPolicyTrainer.train)
    else:
        trainer = script.MBPolicyTrainer
    trained = kept(trainer)
    for stage, owner in (("dynamics", script.EnsembleDynamics), ("policy", trainer)):
        owner.train = timed(stage, owner.train)
    timed("everything", script.train)(script.get_args())
    judge(trained[-1], args.seed, args.episodes, args.out)


def kept(trainer: Any) -> list[Any]:
    """A list to which every new trainer of a class is added."""
    made: list[Any] = []
    init = trainer.__init__

    def remember(self: Any, *given: Any, **settings: Any) -> None:
        init(self, *given, **settings)
        made.append(self)

    trainer.__init__ = remember
    return made


def learn_on(trainer: Any, checkpoint: Path) -> None:
    """Makes the trainers of a class start from the weights in a checkpoint."""
    train = trainer.train

    def resumed(self: Any) -> Any:
        self.policy.load_state_dict(torch.load(checkpoint, weights_only=True))
        return train(self)

    trainer.train = resumed


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function, so that it prints how long it took."""

    def call(*given: Any, **settings: Any) -> Any:
        begun = time.perf_counter()
        result = function(*given, **settings)
        print(f"{name}: {time.perf_counter() - begun:,.0f} s", flush=True)
        return result

    return call


def judge(trainer: Any, seed: int, episodes: int, out: Path) -> None:
    """Evaluates their policy as the zoo does. If it is conditioned on a return, this is the one from their script."""
    trainer.policy.eval()
    envs = make(ENV, episodes)
    spec = Spec.of(envs.single_observation_space, envs.single_action_space)
    goal = getattr(trainer, "goal", None)
    agent = Theirs(trainer.policy, spec) if goal is None else Conditioned(trainer.policy, spec, float(goal))
    played = evaluate(agent, envs, seed)
    assert played.successes is not None
    returns, success = played.returns, played.successes.mean()
    with out.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "return_mean", "return_std", "success", "returns"])
        each = " ".join(f"{value:.6f}" for value in returns)
        rows.writerow([1, returns.mean(), returns.std(), success, each])
    asked = "" if goal is None else f"asked for {float(goal):.1f}: "
    print(f"{asked}return {returns.mean():.1f} +- {returns.std():.1f}, success {success:.0%}")


if __name__ == "__main__":
    main()
