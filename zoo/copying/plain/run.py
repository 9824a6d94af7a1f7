"""A standalone run: settings, environments, training with evaluations, the command line."""

import argparse
import csv
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
import torch

from zoo.agent import Agent, Metrics, Predictor
from zoo.copying.plain.data import Dataset, read_d4rl
from zoo.copying.plain.envs import EnvStepper, Spec, make_envs
from zoo.data.samplers import SamplerConfig
from zoo.runs.evaluation import value_error


@dataclass
class Config:
    """The run's settings, following the algorithm's."""

    env: str = "Hopper-v5"  # a Gymnasium id
    dataset: str = ""  # an HDF5 file in D4RL's layout
    steps: int = 1_000_000  # gradient updates offline, environment steps online
    online_steps: int = 0  # environment steps after the updates
    online_starts: int = 0  # online steps before the first online update
    online_updates: int = 1  # updates an online step
    online_fraction: float | None = None  # share of online transitions in a batch; 1: no dataset; none: as in all data
    seed: int = 0  # of parameters, batches, environments and evaluation
    device: str = "cuda" if torch.cuda.is_available() else "cpu"  # where it computes
    threads: int = 1  # CPU threads
    sampler: str = "uniform"
    sampler_alpha: float = 0.1  # temperature of the episodes' weights
    sampler_fraction: float = 0.1  # the share of the episodes, those of the highest returns
    num_envs: int = 1  # environments that are stepped in parallel
    eval_every: int = 10_000  # steps between evaluations
    eval_episodes: int = 10  # episodes of an evaluation, one in each of as many environments
    eval_deterministic: bool = True  # take the best action, or sample
    run_dir: str = "run"  # evaluations.csv and agent.pt are written there


def train(run: "Run", config: Config) -> Agent:
    """Stands for the algorithm's own."""
    raise NotImplementedError


# --- Training and evaluation ------------------------------------------------------------------------------------------


class Run:
    """Passed to `train`: environments or a dataset, and `steps` to loop over, between which it evaluates."""

    def __init__(self, config: Config) -> None:
        self.agent: Agent  # assigned by `train`
        if not config.env:
            raise SystemExit("--env is missing. Give an environment of the kind that this algorithm takes")
        self.config, self.device, self.dir = config, torch.empty(0, device=config.device).device, Path(config.run_dir)
        if any((self.dir / name).exists() for name in ("evaluations.csv", "agent.pt")):
            raise SystemExit(f"--run-dir {self.dir} already holds a run. Take another one.")
        torch.set_num_threads(config.threads)
        torch.set_flush_denormal(True)
        torch.manual_seed(config.seed)
        self.eval_envs = make_envs(config.env, config.eval_episodes)
        self.spec = Spec.of(self.eval_envs)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.done, self.end, self.stride, self.rows = 0, config.steps, 1, list[dict[str, Any]]()
        self.metrics: Metrics = {}

    def envs(self) -> EnvStepper:
        """The training environments; `steps` counts their steps."""
        self.stride = self.config.num_envs
        seed = np.random.SeedSequence([1, self.config.seed, self.done]).generate_state(self.stride).tolist()
        return EnvStepper(make_envs(self.config.env, self.config.num_envs), seed, self.device)

    def time_limit(self) -> int | None:
        """Steps after which an episode is truncated, if any."""
        spec = self.eval_envs.envs[0].spec
        return spec.max_episode_steps if spec else None

    def dataset(self) -> Dataset:
        """The dataset, on the run's device."""
        return Dataset(
            read_d4rl(self.config.dataset),
            self.spec,
            self.device,
            SamplerConfig(fraction=self.config.sampler_fraction)
            if self.config.sampler == "top"
            else SamplerConfig(alpha=self.config.sampler_alpha),
        )

    def demonstrations(self, name: str) -> Dataset:
        """Another dataset, from a file `NAME` or the first episodes of one, `1ep:NAME`."""
        episodes, _, path = name.rpartition("ep:")
        arrays = read_d4rl(path, "algo.expert")
        if episodes:
            end = np.flatnonzero(arrays[4] | arrays[5])[: int(episodes)][-1] + 1
            arrays = [array[:end] for array in arrays]
        return Dataset(arrays, self.spec, self.device)

    def track(self, agent: Agent) -> None:
        """Moves the agent to the run's device; it is the one that is evaluated."""
        self.agent = agent.to(self.device)

    def log(self, metrics: Metrics) -> None:
        """Keeps the latest value of each metric for the next row."""
        self.metrics |= metrics

    def report(self, line: str) -> None:
        print(line, flush=True)

    def stage(self, name: str, passes: int, until: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Yields passes of a stage before `steps`, at most `passes` of them, and no more once `until` holds."""
        done = 0
        while done < passes and not until():
            yield done
            done += 1
            shown = "  ".join(f"{name} {float(value):.4g}" for name, value in self.metrics.items())
            print(f"{name} {done}  {shown}", flush=True)
            self.metrics = {}

    def steps(self) -> Iterator[int]:
        """Yields the number of steps done before each pass of the loop."""
        if self.config.online_steps and self.config.steps == self.done == self.end:
            self.evaluate()
        while self.done < self.end:
            yield self.done
            before, self.done = self.done, self.done + self.stride
            if self.done >= self.end or self.done // self.config.eval_every > before // self.config.eval_every:
                self.evaluate()

    def online_steps(self) -> Iterator[int]:
        """Continues after `steps` in the training environments."""
        self.end += self.config.online_steps
        yield from self.steps()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Plays an episode in each environment, from seeded starts, and adds a row to `evaluations.csv`."""
        agent, envs = self.agent, self.eval_envs
        returns, steps, running = np.zeros(envs.num_envs), np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
        starts = np.random.SeedSequence([2, self.config.seed]).generate_state(envs.num_envs).tolist()
        played: list[tuple[np.ndarray, ...]] = []  # predictions, rewards, and which episodes ran and terminated
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):  # not training's numbers
            torch.manual_seed(starts[0])
            obs, _ = envs.reset(seed=starts)
            agent.begin(envs.num_envs)
            while running.any():
                seen = torch.as_tensor(obs, dtype=torch.float32, device=self.device)
                action = agent.act(seen, explore=not self.config.eval_deterministic)
                predicted = agent.predict(seen).cpu().numpy() if isinstance(agent, Predictor) else None
                obs, reward, terminated, truncated, _ = envs.step(action.cpu().numpy())
                agent.observe(seen, action, torch.as_tensor(reward.astype(np.float32), device=self.device))
                if predicted is not None:
                    played.append((predicted, reward, running.copy(), terminated))
                returns += reward * running
                steps += running
                running &= ~(terminated | truncated)
        row = {"step": self.done, "return_mean": returns.mean(), "return_std": returns.std()}
        if isinstance(agent, Predictor):
            row["value_error"] = value_error(agent.discount, *map(np.stack, zip(*played, strict=True)))
        self.rows.append(row | {"length_mean": steps.mean()} | {key: float(x) for key, x in self.metrics.items()})
        print(f"step {self.done:>9,}  return {row['return_mean']:8.1f} +- {row['return_std']:.1f}", flush=True)
        with (self.dir / "evaluations.csv").open("w", newline="") as file:  # rewritten: metrics appear once it learns
            csv.writer(file).writerows([self.rows[-1], *([one.get(x, "") for x in self.rows[-1]] for one in self.rows)])
        if not np.isfinite([row["return_mean"], *map(float, self.metrics.values())]).all():
            raise SystemExit(f"The run diverged before step {self.done:,}.")


# --- Command line -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    notes = dict(re.findall(r"^    (\w+): [^#]*  # (.+)", inspect.getsource(Config).replace("%", "%%"), re.MULTILINE))
    for name, default in vars(Config()).items():
        of, *others = get_args(Config.__annotations__[name]) or (Config.__annotations__[name],)  # list[int], int | None
        kind: dict[str, Any] = {"type": (lambda text, of=of: None if text == "none" else of(text)) if others else of}
        kind |= {"nargs": "+"} if isinstance(default, list) else {}
        kind = {"action": argparse.BooleanOptionalAction} if isinstance(default, bool) else kind
        shown = f"{notes[name]} (default %(default)s)"
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=shown, **kind)
    try:
        run = Run(Config(**vars(parser.parse_args())))
    except (gymnasium.error.Error, RuntimeError, AssertionError) as error:  # no such environment or device
        raise SystemExit(f"--env, --device or --threads: {error}") from error
    torch.save(train(run, run.config).state_dict(), run.dir / "agent.pt")
