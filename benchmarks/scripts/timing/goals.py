"""Updates of goal-conditioned algorithms, on random episodes with Ant Maze's shapes."""

import importlib
from typing import Any

import numpy as np
import torch

from zoo.benchmarks.scripts.timing.offline import Run, begin, repeat
from zoo.data.arrays import Arrays
from zoo.data.dataset import Dataset
from zoo.data.goals import Goals
from zoo.runs.compilation import compile_update
from zoo.spec import Spec

STATE_DIM, ACTION_DIM, BATCH_SIZE = 29, 8, 256  # Ant Maze
EPISODES, STEPS = 200, 1_000
SPEC = Spec((2 * STATE_DIM,), (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM, goal_dim=STATE_DIM)


def random_arrays() -> Arrays:
    """Random episodes of standard normal states."""
    rng, size = np.random.default_rng(0), EPISODES * STEPS
    states = rng.standard_normal((EPISODES, STEPS + 1, STATE_DIM), dtype=np.float32)
    obs, next_obs = (x.reshape(size, STATE_DIM) for x in (states[:, :-1], states[:, 1:]))
    action = rng.uniform(-1, 1, (size, ACTION_DIM)).astype(np.float32)
    truncated = np.arange(1, size + 1) % STEPS == 0
    return Arrays(obs, action, np.zeros(size, np.float32), next_obs, np.zeros(size, bool), truncated)


def updates(algo: str, hidden: int, depth: int, compiled: bool = False) -> Run:
    """An algorithm's loop: sample a batch and its goals, and update."""
    begin()
    module: Any = importlib.import_module(f"zoo.algos.{algo}")
    config = module.Config(hidden=[hidden] * depth)
    data = Dataset(random_arrays(), SPEC, torch.device("cpu"))
    value = getattr(config, "value_goals", [0.0, 0.0, 1.0])  # GCBC has no value
    goals = Goals(data, value, config.actor_goals, getattr(config, "discount", 0.99))
    agent = getattr(module, algo.upper())(SPEC, config)
    update = compile_update(agent.update) if compiled else agent.update
    if algo == "ota":
        return repeat(lambda: update(goals.sample_options(BATCH_SIZE, config.subgoal_steps, config.option_steps)))
    if algo == "hiql":
        return repeat(lambda: update(goals.sample_subgoals(BATCH_SIZE, config.subgoal_steps)))
    return repeat(lambda: update(goals.sample(BATCH_SIZE)))
