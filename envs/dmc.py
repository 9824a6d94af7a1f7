"""The DeepMind Control Suite in EnvPool (Tassa et al. 2018, arXiv 1801.00690).

Episodes are truncated after 1,000 steps and never terminate; rewards lie between 0 and 1. An observation consists of
the entries of the task's dictionary, flattened and concatenated in EnvPool's order, which is dm_control's own except in
fish-swim. EnvPool has one dictionary for all tasks of a domain: entries that dm_control's task lacks are left out.
"""

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

IDS = "dmc/<domain>-<task>"
DOMAINS = {
    "acrobot": "swingup swingup_sparse",
    "ball_in_cup": "catch",
    "cartpole": "balance balance_sparse swingup swingup_sparse two_poles three_poles",
    "cheetah": "run",
    "dog": "stand walk trot run fetch",
    "finger": "spin turn_easy turn_hard",
    "fish": "upright swim",
    "hopper": "stand hop",
    "humanoid": "stand walk run run_pure_state",
    "humanoid_CMU": "stand walk run",
    "manipulator": "bring_ball bring_peg insert_ball insert_peg",
    "pendulum": "swingup",
    "point_mass": "easy hard",
    "quadruped": "walk run escape fetch",
    "reacher": "easy hard",
    "stacker": "stack_2 stack_4",
    "swimmer": "swimmer6 swimmer15",
    "walker": "stand walk run",
}  # all except lqr, which has no time limit


def _in_envpool(domain: str, task: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in f"{domain}_{task}".split("_")) + "-v1"


# the ids -> EnvPool's names for them: CheetahRun-v1 for dmc/cheetah-run
TASKS = {
    f"dmc/{domain}-{task}": _in_envpool(domain, task) for domain, tasks in DOMAINS.items() for task in tasks.split()
}

# entries of a domain's dictionary -> the tasks that observe them, if not all do
ONLY_IN = {
    "dog": {"ball_state target_position": "fetch"},
    "finger": {"target_position dist_to_target": "turn_easy turn_hard"},
    "fish": {"target": "swim"},
    "humanoid": {
        "position": "run_pure_state",
        "joint_angles head_height extremities torso_vertical com_velocity": "stand walk run",
    },
    "quadruped": {"origin rangefinder": "escape", "ball_state target_position": "fetch"},
}


def flat(
    env_id: str, space: gymnasium.Space[Any]
) -> tuple[gymnasium.spaces.Box, Callable[[dict[str, np.ndarray]], np.ndarray]]:
    """The space of flat observations `[D]`, float32, and a function from a batch of dictionaries to them, `[N, D]`."""
    assert isinstance(space, gymnasium.spaces.Dict)
    domain, _, task = env_id.removeprefix("dmc/").partition("-")
    foreign = {
        entry
        for entries, tasks in ONLY_IN.get(domain, {}).items()
        for entry in entries.split()
        if task not in tasks.split()
    }
    entries = [entry for entry in space if entry not in foreign]
    size = sum(math.prod(space[entry].shape or ()) for entry in entries)

    def flatten(obs: dict[str, np.ndarray]) -> np.ndarray:
        columns = [obs[entry].reshape(len(obs[entry]), -1) for entry in entries]
        return np.concatenate(columns, axis=1, dtype=np.float32)

    return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32), flatten


for _id in TASKS:
    gymnasium.register(_id, "zoo.envs.envpool:SingleEnv", kwargs={"env_id": _id}, max_episode_steps=1_000)
