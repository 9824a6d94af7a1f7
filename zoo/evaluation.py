"""Evaluation: exactly one episode in each environment, from fixed seeds, with the deterministic policy."""

from typing import NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv

from zoo.agent import Agent, Policy

SEED_OFFSET = 10_000  # keeps the evaluation's seeds apart from the training environments'


class Episodes(NamedTuple):
    """One episode an environment: undiscounted returns `[E]` and lengths in steps `[E]`."""

    returns: np.ndarray
    lengths: np.ndarray


def evaluate(agent: Agent, envs: VectorEnv, seed: int, explore: bool = False) -> Episodes:
    """Plays the first episode of every environment of `envs`, seeded `seed + SEED_OFFSET + i`.

    One episode each, not the first N to finish: those would be the short ones.
    """
    policy = Policy(agent)
    obs, _ = envs.reset(seed=seed + SEED_OFFSET)
    returns, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, dtype=int)
    running = np.ones(envs.num_envs, dtype=bool)
    while running.any():
        obs, reward, terminated, truncated, _ = envs.step(policy.act(obs, explore))
        returns += reward * running
        lengths += running
        running &= ~(terminated | truncated)
    return Episodes(returns, lengths)
