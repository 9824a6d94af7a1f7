"""Point Maze, the stitching task: a ball pushed through a small maze, whose data holds only detours (Zhou et al. 2023).

"Free from Bellman Completeness: Trajectory Stitching via Model-based Return-conditioned Supervised Learning" (arXiv
2310.19308), section 5.1: gymnasium-robotics' PointMaze with a map of the authors' own, from cell (1, 2) to cell (2, 4).

    # # # # # #       An observation is the ball's position and velocity; an action is the force on it. Start and goal
    # . S # # #       lie within 0.25 of their cells' centers, at random; the goal is not observed. A step pays
    # . . . G #       exp(-distance to the goal), so it pays to be early, and an episode always lasts 200 steps.
    # # # # # #
"""

from typing import Any

import gymnasium
import numpy as np

ENV_ID = "PointMazeStitch-v0"
MAP = ("111111", "100111", "100001", "111111")  # 1: a wall
START, GOAL = (1, 2), (2, 4)  # row and column
STEPS = 200  # in an episode


def observation(obs: dict[str, np.ndarray]) -> np.ndarray:
    """Position and velocity `[4]`, without the goal."""
    return obs["observation"]


def make_stitch(**kwargs: Any) -> gymnasium.Env:
    """The stitching task, without its step limit; takes `render_mode`.

    Raises:
        ImportError: gymnasium-robotics is not installed.
    """
    from gymnasium_robotics.envs.maze.point_maze import PointMazeEnv

    rows: list[list[int | str]] = [[int(cell) for cell in row] for row in MAP]
    rows[START[0]][START[1]], rows[GOAL[0]][GOAL[1]] = "r", "g"
    env = PointMazeEnv(maze_map=rows, reward_type="dense", continuing_task=True, reset_target=False, **kwargs)
    return gymnasium.wrappers.TransformObservation(env, observation, env.observation_space["observation"])


gymnasium.register(ENV_ID, "zoo.envs.pointmaze:make_stitch", max_episode_steps=STEPS)
