"""MBRCSL's authors' code on the zoo's Point Maze data, judged as the zoo's own runs are: their method, MOPO and COMBO.

    git clone https://github.com/zhaoyizhou1123/mbrcsl DIR; pip install diffusers gym
    python benchmarks/scripts/mbrcsl.py DIR --seed 0 --out mbrcsl-authors-seed0.csv
    python benchmarks/scripts/mbrcsl.py DIR --algo mopo --epoch 20 --last_eval --out mopo-authors-seed0.csv

Whatever else is given goes to their script, such as the epochs of 1,000 updates. MBRCSL's behaviour learns for hours;
for one with `--network resnet`, the smaller of the two noise networks that they have. If it was interrupted,
`--behavior logs/.../diffusion/checkpoint/policy.pth` continues from there, with their own flags
`--load_dynamics_path logs/.../dynamics/model` and `--behavior_epoch`, the epochs left.

Their script makes the data, the environment and the wrapper around it; here those are the zoo's, so that the same
transitions are learned from and the same episodes are played. Whatever else they import and do not use is left out.
Writes one row for the policy that they end with, and prints each stage's time.
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
UNUSED = ("roboverse", "wandb", "d4rl", "transformers")  # imported by their package, not by what this runs


class Trajectory(NamedTuple):
    """An episode as they keep it, one observation more than there are actions: the last action and reward are idle."""

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
    """Their policy, which is asked for what is left of a return."""

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
    """A module that has every name: a class to inherit from or whatever else, never used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (torch.nn.Module,), {}) if name[0].isupper() else MagicMock()


class Finder:
    """Finds what is unused, and all below it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = Anything(spec.name)
        module.__path__ = []  # a package, whatever is asked for below it
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
    parser = argparse.ArgumentParser(description="MBRCSL's authors' code on the zoo's Point Maze data.")
    parser.add_argument("folder", type=Path, help="a checkout of github zhaoyizhou1123/mbrcsl")
    parser.add_argument("--algo", choices=("mbrcsl", "mopo", "combo"), default="mbrcsl", help="which of their scripts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=10, help="of the evaluation")
    parser.add_argument("--behavior", type=Path, help="their checkpoint of MBRCSL's behaviour, which is to learn on")
    parser.add_argument("--network", choices=("unet", "resnet"), default="unet", help="of MBRCSL's behaviour")
    parser.add_argument("--out", type=Path, required=True, help="CSV of the evaluation")
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
    """The trainers that will be made of a class."""
    made: list[Any] = []
    init = trainer.__init__

    def remember(self: Any, *given: Any, **settings: Any) -> None:
        init(self, *given, **settings)
        made.append(self)

    trainer.__init__ = remember
    return made


def learn_on(trainer: Any, checkpoint: Path) -> None:
    """Has the trainers of a class begin with the weights of a checkpoint."""
    train = trainer.train

    def resumed(self: Any) -> Any:
        self.policy.load_state_dict(torch.load(checkpoint, weights_only=True))
        return train(self)

    trainer.train = resumed


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which says how long it took."""

    def call(*given: Any, **settings: Any) -> Any:
        begun = time.perf_counter()
        result = function(*given, **settings)
        print(f"{name}: {time.perf_counter() - begun:,.0f} s", flush=True)
        return result

    return call


def judge(trainer: Any, seed: int, episodes: int, out: Path) -> None:
    """Plays the episodes of the zoo's evaluation, asking for the return that their script asks for, if it does."""
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
