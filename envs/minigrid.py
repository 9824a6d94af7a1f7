"""MiniGrid: rooms, doors, keys and lava, seen 7x7 cells far (Chevalier-Boisvert et al. 2023, arXiv 2306.13831).

Of an observation only the image is kept. The direction is lost, which the view from the agent's own eyes hardly needs,
and so is the mission: where it differs from episode to episode (Fetch, GoToDoor, GoToObject, PutNear, ...) the agent
does not see its goal.
"""

from typing import Any

import gymnasium
import numpy as np

IDS = "MiniGrid-<World>-v0"


def image_space(space: gymnasium.Space[Any]) -> gymnasium.spaces.Box:
    """uint8 `[3, 7, 7]`: kind, colour and state of every cell, each a number up to 10, row by row from the far one."""
    assert isinstance(space, gymnasium.spaces.Dict)
    columns, rows, numbers = space["image"].shape or ()
    return gymnasium.spaces.Box(0, 255, (numbers, rows, columns), np.uint8)


def image(obs: dict[str, np.ndarray]) -> np.ndarray:
    """MiniGrid's `[..., column, row, 3]` as `[..., 3, row, column]`, of one observation or of a batch."""
    return np.ascontiguousarray(np.swapaxes(obs["image"], -1, -3))


def reward_within(limit: int, reward: np.ndarray, elapsed_step: np.ndarray) -> np.ndarray:
    """What MiniGrid pays for a success, `1 - 0.9 steps / limit`, where EnvPool has counted with another limit."""
    return np.where(reward > 0, 1 - 0.9 * elapsed_step / limit, reward).astype(np.float32)


def image_only(env: gymnasium.Env) -> gymnasium.Env:
    """An environment of the minigrid package, with the image alone as its observation."""
    return gymnasium.wrappers.TransformObservation(env, image, image_space(env.observation_space))
