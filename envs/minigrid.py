"""MiniGrid: rooms, doors, keys and lava, seen 7x7 cells far (Chevalier-Boisvert et al. 2023, arXiv 2306.13831).

Only the image of an observation is kept. The direction is lost, which the view from the agent's own eyes hardly needs.
So is the mission: if it differs from episode to episode (Fetch, GoToDoor, GoToObject, PutNear, ...), the agent does not
see its goal.
"""

from typing import Any

import gymnasium
import numpy as np

IDS = "MiniGrid-<World>-v0"


def image_space(space: gymnasium.Space[Any]) -> gymnasium.spaces.Box:
    """uint8 `[3, 7, 7]`: kind, colour and state of every cell, each a number up to 10; the farthest row is first."""
    assert isinstance(space, gymnasium.spaces.Dict)
    columns, rows, numbers = space["image"].shape or ()
    return gymnasium.spaces.Box(0, 255, (numbers, rows, columns), np.uint8)


def image(obs: dict[str, np.ndarray]) -> np.ndarray:
    """Converts MiniGrid's `[..., column, row, 3]` to `[..., 3, row, column]`, for one observation or a batch."""
    return np.ascontiguousarray(np.swapaxes(obs["image"], -1, -3))


def reward_within(limit: int, reward: np.ndarray, elapsed_step: np.ndarray) -> np.ndarray:
    """MiniGrid's reward for a success, `1 - 0.9 steps / limit`, corrected where EnvPool used another limit."""
    return np.where(reward > 0, 1 - 0.9 * elapsed_step / limit, reward).astype(np.float32)


def image_only(env: gymnasium.Env) -> gymnasium.Env:
    """An environment of the minigrid package, whose observation is only the image."""
    return gymnasium.wrappers.TransformObservation(env, image, image_space(env.observation_space))
