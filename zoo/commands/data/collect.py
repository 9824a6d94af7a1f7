"""D4RL's six kinds of dataset from one run of SAC or, if actions are discrete, of DQN.

The run is trained, continued or reused; whole episodes are collected with the agents that it kept.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo import checkpoint
from zoo.agent import Agent
from zoo.commands.data.train import BACKEND
from zoo.data import mazes, waypoints
from zoo.data.arrays import Arrays, cut_at_breaks
from zoo.data.buffers import ReplayBuffer
from zoo.data.catalog import OGBENCH_KINDS, Portion, made_kinds, parse_mixture, scripted_kinds
from zoo.data.load import taken
from zoo.envs import EnvConfig, make
from zoo.envs.ogbench import PREFIX
from zoo.errors import RunError, UsageError, nearest
from zoo.runs.load import build_agent, load_state, reopen
from zoo.runs.record import evaluated, spec_of
from zoo.runs.replay_log import ReplayLog
from zoo.runs.stepper import EnvStepper

NUM_ENVS = 10  # environments in which episodes are collected
SEED_OFFSET = {
    "random": 20_000,
    "medium": 30_000,
    "expert": 40_000,
    "policy": 50_000,
}  # apart from one another
REFERENCE_SIZE = 10_000  # transitions from which the random return is estimated if the environment gives none


@dataclass(frozen=True)
class Part:
    """The episodes of one policy, and its evaluation."""

    arrays: Arrays
    step: int  # the policy's training step, in environment steps
    evaluation: float | None  # mean return of the deterministic policy at that step; None without a policy

    def record(self, kind: str) -> dict[str, Any]:
        """The part's metadata in a dataset."""
        return {
            "kind": kind,
            "transitions": len(self.arrays.reward),
            "episodes": len(self.arrays.episode_starts),
            "return_mean": float(self.arrays.episode_returns.mean()),
            "training_step": self.step,
            "evaluation_return": self.evaluation,
        }

    def head(self, transitions: float) -> "Part":
        return Part(self.arrays.head(transitions), self.step, self.evaluation)

    def take(self, portion: Portion) -> "Part":
        return Part(taken(self.arrays, portion), self.step, self.evaluation)


def collect(env: EnvConfig, policy: Callable[[EnvStepper], Tensor], size: int, seed: int) -> Arrays:
    """Collects whole episodes, with at least `size` transitions in all.

    Each of the `NUM_ENVS` environments contributes the episodes that it begins before its share is full: stopping all
    of them at the same time would lose the long ones.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    envs = make(dataclasses.replace(env, backend=BACKEND), NUM_ENVS)
    stepper = EnvStepper(envs, seed, torch.device("cpu"), lambda *_: None)
    share = math.ceil(size / NUM_ENVS)
    whole = np.zeros(NUM_ENVS, dtype=int)  # transitions of each up to the end of its last whole episode
    steps: list[tuple[np.ndarray, ...]] = []
    while (whole < share).any():
        steps.append(tuple(field.numpy().copy() for field in stepper.step(policy(stepper))))
        ended = steps[-1][4] | steps[-1][5]
        whole[ended & (whole < share)] = len(steps)
    stepper.envs.close()
    fields = (np.stack(field) for field in zip(*steps, strict=True))  # each [T, NUM_ENVS, ...]
    arrays = Arrays(*(np.concatenate([field[:end, i] for i, end in enumerate(whole)]) for field in fields))
    return arrays._replace(truncated=arrays.truncated & ~arrays.terminated).head(size)


class Collector:
    """The parts from which the datasets of one environment are made, each collected only once.

    Args:
        run_dir: a finished run of the `trainer` that kept its agents, or for full-replay any that has a replay buffer;
            None if only random data is needed.
        size: the number of transitions in each part, at least; of a replay buffer, about that many at most.
        player: the policy of the part `policy`.
    """

    def __init__(self, env: EnvConfig, run_dir: Path | None, size: int, seed: int, player: Agent | None = None) -> None:
        self.env, self.run_dir, self.size, self.seed, self.player = env, run_dir, size, seed, player
        self._parts: dict[str, Part] = {}
        if run_dir is not None:
            self.config, self.algorithm, self.record = reopen(run_dir)
            self.env = self.config.env  # with the settings with which it was trained
            self.evaluations = evaluated(run_dir)

    def part(self, kind: str) -> Part:
        """One of D4RL's kinds except medium-expert, or of the environment's own."""
        if kind not in self._parts:
            if self.player is not None:
                self._parts[kind] = Part(self._played(self.player, kind), 0, None)
            elif kind == "waypoint":
                self._parts[kind] = Part(waypoints.collect(self.env.id, self.size, self.seed), 0, None)
            elif kind in OGBENCH_KINDS:
                self._parts[kind] = Part(mazes.collect(self.env.id, kind, self.size, self.seed), 0, None)
            elif kind == "random":
                arrays = collect(self.env, EnvStepper.random_action, self.size, self.seed + SEED_OFFSET[kind])
                self._parts[kind] = Part(arrays, 0, None)
            elif kind == "medium-replay":
                self._parts[kind] = self._replay(kind, self.medium_step())
            elif kind == "full-replay":
                self._parts[kind] = self._replay(kind, max(self.evaluations))
            else:
                self._parts[kind] = self._of_agent(kind, self.medium_step() if kind == "medium" else self.expert_step())
        return self._parts[kind]

    def mixture(self, text: str) -> list[tuple[str, Part]]:
        """The parts of a kind or of a mixture such as `medium-replay+30%medium`, each cut to its share."""
        parts = []
        for portion in parse_mixture(text):
            if portion.name == "medium-expert":
                halves = [(half, self.part(half).head(self.size / 2)) for half in ("medium", "expert")]
            else:
                halves = [(portion.name, self.part(portion.name))]
            parts += [(kind, part.take(portion) if portion.amount else part) for kind, part in halves]
        return parts

    def training(self) -> dict[str, Any] | None:
        """The metadata on the run that provided the agents."""
        if self.run_dir is None:
            return None
        config = self.record["config"]
        settings = {key: config[key] for key in ("algo", "steps", "seed", "eval_every", "eval_episodes")}
        return settings | {key: self.record[key] for key in ("commit", "versions")}

    def expert_step(self) -> int:
        """The training step of the expert: the agent with the best evaluation, because the last may be worse."""
        return max(self.evaluations, key=lambda step: self.evaluations[step])

    def medium_step(self) -> int:
        """The first training step whose agent reached a third of the way from the random to the expert's return."""
        expert, random = self.evaluations[self.expert_step()], self._random_return()
        if expert <= random:
            raise RunError(
                f"{self.run_dir}: its best agent returns {expert:.1f}, no better than random actions ({random:.1f}). "
                f"Move this folder away and train longer: --steps above {self.config.steps}."
            )
        return next(s for s, value in sorted(self.evaluations.items()) if value >= random + (expert - random) / 3)

    def _random_return(self) -> float:
        if self.env.random_score is not None:
            return float(self.env.random_score)
        arrays = collect(self.env, EnvStepper.random_action, REFERENCE_SIZE, self.seed + SEED_OFFSET["random"])
        return float(arrays.episode_returns.mean())

    def _of_agent(self, kind: str, step: int) -> Part:
        assert self.run_dir is not None
        path = self.run_dir / "agents" / f"{step}.pt"
        agent = build_agent(self.config, self.algorithm, self.record, checkpoint.load(path), path)
        return Part(self._played(agent, kind), step, self.evaluations[step])

    def _played(self, agent: Agent, kind: str) -> Arrays:
        seed = self.seed + SEED_OFFSET[kind]
        return collect(self.env, lambda stepper: agent.act(stepper.obs, explore=True), self.size, seed)

    def _replay(self, kind: str, step: int) -> Part:
        """The replay buffer up to a step; if that exceeds `size`, whole episodes spread evenly over it."""
        assert self.run_dir is not None
        if self.env.is_atari:
            raise UsageError(f"{self.env.name} has no {kind}: its run keeps frames, and clipped rewards.")
        if getattr(self.config.algo, "clip_reward", False):
            raise UsageError(f"{self.run_dir}: its run keeps clipped rewards. Train with algo.clip_reward=false.")
        if not (self.run_dir / "replay" / "buffer").is_dir():
            raise UsageError(f"{self.run_dir} has no replay/, of which {kind} is made. Take the whole run.")
        state = load_state(self.run_dir / "checkpoint.pt", ". Start a new run.")
        counts = state["tracked"]["buffer"]
        if state["step"] > counts["size"]:
            raise UsageError(
                f"{self.run_dir}: its replay buffer kept {counts['size']:,} of {state['step']:,} transitions. "
                f"For {kind} train with algo.buffer_size={state['step']}."
            )
        buffer = ReplayBuffer(counts["size"], spec_of(self.record), torch.device("cpu"))
        ReplayLog(self.run_dir / "replay" / "buffer", buffer).read(counts)
        arrays = Arrays(*(getattr(buffer, field)[:step].numpy() for field in Arrays._fields))
        reward = (arrays.reward - self.config.reward_shift) / self.config.reward_scale
        arrays, _ = cut_at_breaks(arrays._replace(reward=reward, truncated=arrays.truncated & ~arrays.terminated))
        return Part(thin(arrays, self.size), step, self.evaluations[step])


def thin(arrays: Arrays, transitions: int) -> Arrays:
    """Whole episodes, evenly spaced in time, with about that many transitions; all episodes if there are no more."""
    total = len(arrays.reward)
    if total <= transitions:
        return arrays
    starts = arrays.episode_starts
    # an episode is taken when the number of transitions due by its start exceeds the number taken
    taken, keep = 0, np.zeros(total, dtype=bool)
    for start, length in zip(starts, arrays.episode_lengths, strict=True):
        if taken <= start * transitions / total:
            keep[start : start + length] = True
            taken += length
    return Arrays(*(field[keep] for field in arrays))


def check_kinds(text: str, env: EnvConfig) -> bool:
    """Whether a kind or mixture of kinds needs a trained agent. Raises UsageError if a part is not a kind."""
    kinds = [portion.name for portion in parse_mixture(text)]
    scripted, made = scripted_kinds(env.id), made_kinds(env.id)
    for kind in kinds:
        if kind not in made and env.id.startswith(PREFIX):
            raise UsageError(
                f"data of OGBench's tasks is not made by agents: there is no {kind} of {env.name}. "
                + (f"There are: {', '.join(scripted)}." if scripted else "Take a file of OGBench's: dataset=FILE.npz")
            )
        if kind not in made:
            raise UsageError(f"{kind} is not a kind of dataset. {nearest(kind, made)}")
    return any(kind != "random" and kind not in scripted for kind in kinds)
