"""A maze as seen by a goal-conditioned agent: the value of each place on the way to a goal, and its subgoals."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zoo.errors import UsageError
from zoo.runs.evaluation import Moment, evaluate

if TYPE_CHECKING:
    from zoo.agent import Agent
    from zoo.settings.config import RunConfig

PLACES = 8  # places to evaluate along each side of a cell
MARKED_EVERY = 25  # steps of an episode between marked subgoals


class Trace:
    """Records the observations of each episode, for `zoo.runs.evaluation.evaluate`."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []  # [E, obs] before each step
        self.running: list[np.ndarray] = []

    def __call__(self, now: Moment) -> None:
        self.seen.append(now.obs)
        self.running.append(now.running)

    def of(self, episode: int) -> np.ndarray:
        """The observations `[T, obs]` of an episode."""
        running = np.array(self.running)[:, episode]
        found: np.ndarray = np.array(self.seen)[running, episode]
        return found


class Maze:
    """The places in one of OGBench's mazes; a cell is a row and a column, whose center OGBench's code knows."""

    def __init__(self, env: Any) -> None:
        self.walls = np.asarray(env.maze_map) == 1
        first, second = np.array(env.ij_to_xy((0, 0))), np.array(env.ij_to_xy((1, 1)))
        unit = second - first
        rows, columns = self.walls.shape
        low, high = first - unit / 2, first + unit * (np.array([columns, rows]) - 0.5)
        self.extent = (low[0], high[0], low[1], high[1])
        inside = (np.arange(PLACES) + 0.5) / PLACES - 0.5
        x = (first[0] + unit[0] * (np.arange(columns)[:, None] + inside)).ravel()
        y = (first[1] + unit[1] * (np.arange(rows)[:, None] + inside)).ravel()
        self.xy = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2).astype(np.float32)  # [rows * columns * places^2, 2]
        self.shape = (len(y), len(x))
        self.open = ~np.kron(self.walls, np.ones((PLACES, PLACES), bool)).ravel()

    def states(self, state: np.ndarray) -> torch.Tensor:
        """A state `[S]`, whose first two numbers are its position, moved to every place without a wall: `[N, S]`."""
        moved = np.repeat(state[None], self.open.sum(), 0)
        moved[:, :2] = self.xy[self.open]
        return torch.from_numpy(moved)


def draw(agent: "Agent", config: "RunConfig", path: Path, episodes: int, seed: int, explore: bool) -> None:
    """Plays episodes and draws a picture of each: values, the path taken, the subgoals along it, and the goal.

    Raises:
        UsageError: the environment is no maze, or the agent has no values for goals.
    """
    import matplotlib.pyplot as plt

    from zoo.envs import make_with_spec

    env = dataclasses.replace(config.env, backend="gymnasium")
    envs: Any = make_with_spec(env, episodes, config.threads, trained=agent.spec)[0]
    world = getattr(envs.envs[0].unwrapped, "env", None) if hasattr(envs, "envs") else None
    if not hasattr(world, "maze_map"):
        raise UsageError(f"--map: {config.env.id} is no maze of OGBench's. Leave --map out.")
    if agent.goal_values(torch.zeros(1, agent.spec.obs_dim)) is None:
        raise UsageError(f"--map: {type(agent).__name__} has no values of goals. Leave --map out.")
    maze, size, watch = Maze(world), agent.spec.state_dim, Trace()
    played = evaluate(agent, envs, seed, explore, watch=watch)
    figure, panels = plt.subplots(1, episodes, figsize=(3.2 * episodes, 3.2), squeeze=False)
    for episode, panel in enumerate(panels[0]):
        seen = watch.of(episode)
        states, goal = maze.states(seen[0, :size]), torch.from_numpy(seen[:1, size:])
        values = agent.goal_values(torch.cat([states, goal.expand(len(states), -1)], -1))
        assert values is not None
        shown = np.full(maze.open.shape, np.nan)
        shown[maze.open] = values.numpy()
        panel.imshow(shown.reshape(maze.shape), origin="lower", extent=maze.extent, cmap="viridis")
        panel.plot(*seen[:, :2].T, color="white", linewidth=1)
        for one in torch.from_numpy(seen[::MARKED_EVERY, None]):  # one at a time: the places alone take much memory
            if (subgoal := agent.subgoals(one, states)) is not None:
                panel.scatter(*states[subgoal, :2].T, s=14, color="tab:red", zorder=3)
        panel.plot(*seen[0, :2], "o", color="white", markersize=5)
        panel.plot(*goal[0, :2], "*", color="gold", markersize=12, markeredgecolor="black")
        reached = "reached" if played.successes is not None and played.successes[episode] else "not reached"
        panel.set_title(f"{reached}, {played.lengths[episode]:,} steps", fontsize=9)
        panel.set_facecolor("0.2")
        panel.set_xticks([])
        panel.set_yticks([])
    figure.tight_layout()
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)
