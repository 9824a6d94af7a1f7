"""Evaluation: exactly one episode in each environment, from fixed seeds, with the deterministic policy."""

from typing import NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv

from zoo.agent import Agent, Policy

SEED_OFFSET = 10_000  # keeps the evaluation's seeds apart from the training environments'


class Episodes(NamedTuple):
    """One episode an environment: undiscounted returns `[E]` and lengths in steps `[E]`.

    And whether it was a success `[E]`, at any of its steps, where the environment says so: `info["success"]`.
    """

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray | None = None


def evaluate(agent: Agent, envs: VectorEnv, seed: int, explore: bool = False) -> Episodes:
    """Plays the first episode of every environment of `envs`, seeded `seed + SEED_OFFSET + i`.

    One episode each, not the first N to finish: those would be the short ones.
    """
    policy = Policy(agent)
    policy.begin(envs.num_envs)
    obs, info = envs.reset(seed=seed + SEED_OFFSET)
    returns, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, dtype=int)
    successes = np.zeros(envs.num_envs, dtype=bool) if "success" in info else None
    running = np.ones(envs.num_envs, dtype=bool)
    while running.any():
        action = policy.act(obs, explore)
        before = obs
        obs, reward, terminated, truncated, info = envs.step(action)
        policy.observe(before, action, reward)
        returns += reward * running
        lengths += running
        if successes is not None:
            ended = info["final_info"]["success"] if "final_info" in info else False
            successes |= running & np.where(terminated | truncated, ended, info["success"])
        running &= ~(terminated | truncated)
    return Episodes(returns, lengths, successes)
