"""A run by itself: settings, environments, training with evaluations, the command line."""

import argparse
import ast
import contextlib
import csv
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import h5py
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from zoo.agent import Agent, Metrics, Predictor
from zoo.data import buffers, dataset
from zoo.data.batch import Batch, Transition, gather
from zoo.data.samplers import SamplerConfig
from zoo.runs.evaluation import value_error


@dataclass
class Config:
    """The run's settings, which follow the algorithm's."""

    env: str = "Hopper-v5"  # a Gymnasium id
    dataset: str = ""  # an HDF5 file in D4RL's layout
    steps: int = 1_000_000  # gradient updates offline, environment steps online
    online_steps: int = 0  # environment steps after the updates, each with an update
    online_starts: int = 0  # online steps before the first online update
    online_fraction: float | None = None  # share of online transitions in a batch; None: as in all data
    seed: int = 0  # of parameters, batches, environments and evaluation
    device: str = "cpu"  # or cuda
    threads: int = 1  # CPU threads
    num_envs: int = 1  # environments that are stepped in parallel
    eval_every: int = 10_000  # steps between evaluations
    eval_episodes: int = 10  # episodes of an evaluation, one in each of as many environments
    eval_deterministic: bool = True  # take the best action, or sample
    run_dir: str = "run"  # evaluations.csv and agent.pt are written there


def train(run: "Run", config: Config) -> Agent:
    """The algorithm's own."""
    raise NotImplementedError


# --- Environments -----------------------------------------------------------------------------------------------------


class Spec(NamedTuple):
    """Shapes and bounds of an environment: of continuous actions, or of discrete ones."""

    obs_shape: tuple[int, ...]
    obs_dim: int
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    action_dim: int = 0
    num_actions: int = 0

    @classmethod
    def of(cls, envs: VectorEnv) -> "Spec":
        shape, space = envs.single_observation_space.shape or (), envs.single_action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return cls(obs_shape=shape, obs_dim=math.prod(shape), num_actions=int(space.n))
        if isinstance(space, gymnasium.spaces.Box):
            low, high = tuple(space.low.tolist()), tuple(space.high.tolist())
            return cls(obs_shape=shape, obs_dim=math.prod(shape), action_low=low, action_high=high, action_dim=len(low))
        sys.exit(f"--env: the actions of this environment are {space}, which this algorithm cannot take")


def make_envs(env: str, count: int) -> SyncVectorEnv:
    return SyncVectorEnv([partial(gymnasium.make, env)] * count, autoreset_mode=AutoresetMode.SAME_STEP)


class EnvStepper:
    """Steps environments: tensors in, transitions out.

    Attributes:
        obs: `[N, ...]` the observations to act on.
        ended: `[N]` whether the last step was each episode's last.
    """

    def __init__(self, envs: SyncVectorEnv, seed: list[int | None], device: torch.device) -> None:
        self.envs, self.device, self.num_envs = envs, device, envs.num_envs
        self.spec = Spec.of(envs)
        self.obs = self.tensor(envs.reset(seed=seed)[0].astype(np.float32))
        envs.action_space.seed(seed[0])
        self.ended = np.zeros(self.num_envs, dtype=bool)

    def tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def random_action(self) -> Tensor:
        """Uniform actions `[N, A]` or `[N]`."""
        return self.tensor(self.envs.action_space.sample())

    def step(self, action: Tensor) -> Transition:
        """One step of every environment. `obs` moves on: past an episode's end, to the first of the next."""
        next_obs, reward, terminated, truncated, info = self.envs.step(action.cpu().numpy())
        obs, self.obs = self.obs, self.tensor(next_obs.astype(np.float32))
        successor = self.obs
        self.ended = terminated | truncated
        if self.ended.any():
            successor = self.obs.clone()
            for i in np.flatnonzero(self.ended):
                successor[i] = self.tensor(info["final_obs"][i].astype(np.float32))
        columns = (self.tensor(column) for column in (reward.astype(np.float32), terminated, truncated))
        return Transition(obs, action, next(columns), successor, *columns)


class ReplayBuffer(buffers.ReplayBuffer):
    """The last `capacity` transitions, sampled uniformly; when full, the oldest are overwritten."""

    def __init__(self, capacity: int, spec: Spec, device: torch.device) -> None:
        self.capacity, self.device, self.added, self.size, self.num_envs = capacity, device, 0, 0, 1
        self.obs = torch.zeros(capacity, *spec.obs_shape, device=device)
        self.next_obs = torch.zeros_like(self.obs)
        shape = (capacity,) if spec.num_actions else (capacity, spec.action_dim)
        self.action = torch.zeros(shape, dtype=torch.int64 if spec.num_actions else torch.float32, device=device)
        self.reward = torch.zeros(capacity, device=device)
        self.terminated = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.truncated = torch.zeros_like(self.terminated)

    def add(self, transition: Transition, ended: np.ndarray | None = None) -> None:
        """Stores one transition of each environment."""
        index = (self.added + torch.arange(len(transition.reward), device=self.device)) % self.capacity
        for name, value in transition._asdict().items():
            getattr(self, name)[index] = value
        self.num_envs = len(index)
        self.added, self.size = self.added + len(index), min(self.size + len(index), self.capacity)

    def sample(self, batch_size: int) -> Batch:
        """`batch_size` transitions, sampled uniformly with replacement."""
        return gather(self, torch.randint(self.size, (batch_size,), device=self.device))


# --- Data -------------------------------------------------------------------------------------------------------------


class Dataset(dataset.Dataset):
    """Transitions of consecutive episodes as tensors on one device, and their sampler.

    Attributes:
        obs, action, reward, next_obs, terminated: `[N, ...]` tensors as in `Batch`.
        episode_starts, episode_lengths, episode_returns: `[E]` first transition, length and return of each.
        reward_scale: what the rewards have been multiplied by.
    """

    episode_starts: Tensor
    episode_lengths: Tensor
    episode_returns: Tensor
    spec: Spec  # type: ignore[assignment]

    def __init__(
        self, arrays: Sequence[np.ndarray], spec: Spec, device: torch.device, sampler: SamplerConfig | None = None
    ) -> None:
        self.spec, self.device, self.reward_scale = spec, device, 1.0
        self.obs, self.action, self.reward, self.next_obs, self.terminated, self.truncated = (
            torch.from_numpy(array).to(device) for array in arrays
        )
        ends = np.flatnonzero(arrays[4] | arrays[5])
        starts = np.append(0, ends[:-1] + 1)
        returns = np.add.reduceat(arrays[2].astype(np.float64), starts)
        self.episode_starts, self.episode_lengths, self.episode_returns = (
            torch.from_numpy(column).to(device) for column in (starts, ends + 1 - starts, returns)
        )
        self.use(sampler or SamplerConfig())


def read_d4rl(path: str) -> list[np.ndarray]:
    """Observations, actions, rewards, successors, terminals and timeouts of an HDF5 file in D4RL's layout."""
    if not Path(path).is_file():
        sys.exit(f"--dataset {path or 'FILE'}: give a file that exists, HDF5 in D4RL's layout")
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    with h5py.File(path) as file:
        if missing := ", ".join(name for name in names if name not in file):
            sys.exit(f"--dataset {path} lacks {missing}: it is not in D4RL's layout")
        arrays = [file[name][()] for name in names]
    *numbers, terminated, truncated = arrays
    truncated = truncated.astype(bool) & ~terminated.astype(bool)
    truncated[-1] = not terminated[-1]
    discrete = np.issubdtype(numbers[1].dtype, np.integer)
    kinds = (np.float32, np.int64 if discrete else np.float32, np.float32, np.float32)
    return [*(x.astype(kind) for x, kind in zip(numbers, kinds, strict=True)), terminated.astype(bool), truncated]


# --- Training and evaluation ------------------------------------------------------------------------------------------


class Run:
    """What `train` is given: environments or a dataset, and `steps` to loop over, between which it evaluates."""

    agent: Agent

    def __init__(self, config: Config) -> None:
        self.config, self.device, self.dir = config, torch.device(config.device), Path(config.run_dir)
        if (self.dir / "evaluations.csv").exists():
            sys.exit(f"--run-dir {self.dir} already holds a run. Take another one.")
        self.dir.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(config.threads)
        torch.set_flush_denormal(True)
        torch.manual_seed(config.seed)
        self.eval_envs = make_envs(config.env, config.eval_episodes)
        self.spec = Spec.of(self.eval_envs)
        self.done, self.end, self.stride = 0, config.steps, 1
        self.metrics: Metrics = {}

    def envs(self) -> EnvStepper:
        """The training environments; `steps` counts theirs."""
        self.stride = self.config.num_envs
        seed = np.random.SeedSequence([1, self.config.seed, self.done]).generate_state(self.stride).tolist()
        return EnvStepper(make_envs(self.config.env, self.config.num_envs), seed, self.device)

    def time_limit(self) -> int | None:
        """Steps after which an episode is truncated, if any."""
        return gymnasium.spec(self.config.env).max_episode_steps

    def dataset(self) -> Dataset:
        """The dataset, on the run's device."""
        return Dataset(read_d4rl(self.config.dataset), self.spec, self.device)

    def track(self, agent: Agent) -> None:
        """Moves the agent to the run's device; it is the one that is evaluated."""
        self.agent = agent.to(self.device)

    def log(self, metrics: Metrics) -> None:
        """Keeps the latest metrics for the next row."""
        self.metrics = metrics

    def report(self, line: str) -> None:
        print(line, flush=True)

    def stage(self, name: str, passes: int, until: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Passes of what comes before `steps`, at most so many, and no more once `until` holds."""
        done = 0
        while done < passes and not until():
            yield done
            done += 1
            shown = "  ".join(f"{name} {float(value):.4g}" for name, value in self.metrics.items())
            print(f"{name} {done}  {shown}", flush=True)

    def steps(self) -> Iterator[int]:
        """The number of steps done before each pass of the loop."""
        while self.done < self.end:
            yield self.done
            before, self.done = self.done, self.done + self.stride
            if self.done >= self.end or self.done // self.config.eval_every > before // self.config.eval_every:
                self.evaluate()

    def online_steps(self) -> Iterator[int]:
        """Goes on after `steps` in the training environments."""
        self.end += self.config.online_steps
        yield from self.steps()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Plays an episode in each environment, from starts that follow from the seed; a row in `evaluations.csv`."""
        agent, envs = self.agent, self.eval_envs
        returns, lengths, running = np.zeros(envs.num_envs), np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
        starts = np.random.SeedSequence([2, self.config.seed]).generate_state(envs.num_envs).tolist()
        steps: list[tuple[np.ndarray, ...]] = []  # predictions, rewards, who was running, who terminated
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):  # not training's numbers
            torch.manual_seed(starts[0])
            obs, _ = envs.reset(seed=starts)
            agent.begin(envs.num_envs)
            while running.any():
                seen = torch.as_tensor(obs.astype(np.float32), device=self.device)
                action = agent.act(seen, explore=not self.config.eval_deterministic)
                predicted = agent.predict(seen).cpu().numpy() if isinstance(agent, Predictor) else None
                obs, reward, terminated, truncated, _ = envs.step(action.cpu().numpy())
                agent.observe(seen, action, torch.as_tensor(reward.astype(np.float32), device=self.device))
                if predicted is not None:
                    steps.append((predicted, reward, running.copy(), terminated))
                returns += reward * running
                lengths += running
                running &= ~(terminated | truncated)
        row = {
            "step": self.done,
            "return_mean": returns.mean(),
            "return_std": returns.std(),
            "length_mean": lengths.mean(),
        }
        if isinstance(agent, Predictor):
            row["value_error"] = value_error(agent.discount, *map(np.stack, zip(*steps, strict=True)))
        row |= {name: float(value) for name, value in self.metrics.items()}
        print(f"step {self.done:>9,}  return {row['return_mean']:8.1f} +- {row['return_std']:.1f}", flush=True)
        with (self.dir / "evaluations.csv").open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)


# --- Command line -----------------------------------------------------------------------------------------------------


def setting(text: str) -> Any:
    """`0.5`, `true`, `none`, `[256,256]`, or a name."""
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text.title() if text in ("true", "false", "none") else text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Config()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=setting, default=default, metavar=str(default))
    config = Config(**vars(parser.parse_args()))
    for name, default in vars(Config()).items():
        value = getattr(config, name)
        if default is not None and type(value) not in (type(default), int if type(default) is float else type(default)):
            parser.error(f"--{name.replace('_', '-')} {value}: it must be of the kind of its default, {default}")
    run = Run(config)
    agent = train(run, config)
    torch.save(agent.state_dict(), run.dir / "agent.pt")
