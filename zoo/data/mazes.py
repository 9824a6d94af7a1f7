"""Scripted data for OGBench's Point Mazes, collected by OGBench's rules.

Park et al. 2024 (arXiv 2410.20092), as in their code (github seohongpark/ogbench, `data_gen_scripts`). A controller
steers from cell to cell, with much noise: `navigate` goes from goal to goal; `stitch` goes to a goal four cells away
and stays there, so that no episode goes far; `explore` takes a new direction every ten steps, without a goal (OGBench
has it only for ants). Neither goals nor rewards are recorded: any state can be a goal.
"""

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from zoo.data.arrays import Arrays
from zoo.envs.names import load_package
from zoo.envs.ogbench import PREFIX, GoalEnv, SingleTaskEnv

Cell = tuple[int, int]
NEIGHBORS = ((-1, 0), (0, -1), (1, 0), (0, 1))
STITCH_CELLS = 4  # from the start of a `stitch` episode to its goal
NEAR = 1.0  # a goal counts as reached within this distance
AROUND = 1.0  # starts and goals lie within this distance of their cells' centers, along each axis
EXPLORE_STEPS = 10  # steps in one direction


class Kind(NamedTuple):
    """Steps of an episode, and the standard deviation of the noise on its actions."""

    steps: int
    noise: float = 0.5


KINDS = {"navigate": Kind(1_000), "stitch": Kind(200), "explore": Kind(500, noise=1.0)}
GIANT_NAVIGATE = Kind(2_000)


class Maze:
    """The layout of walls and corridors. A cell is a row and a column; OGBench knows the cells' size.

    Attributes:
        world: the environment.
        env: OGBench's own environment, whose state is the ball's position `[2]`.
        free: the cells without a wall.
        corners: those free cells that are not the middle of a straight corridor: the goals of `navigate`.
    """

    def __init__(self, world: GoalEnv) -> None:
        self.world, self.env = world, world.env
        self.map: np.ndarray = self.env.maze_map
        self.free: list[Cell] = [(int(i), int(j)) for i, j in np.argwhere(self.map == 0)]
        self.corners = [cell for cell in self.free if not self._is_straight(cell)]
        self.distances: Callable[[Cell], np.ndarray] = lru_cache(None)(self._distances)

    def _is_straight(self, cell: Cell) -> bool:
        up, left, down, right = (self.map[cell[0] + i, cell[1] + j] == 0 for i, j in NEIGHBORS)
        return bool((up and down and not left and not right) or (left and right and not up and not down))

    def _distances(self, goal: Cell) -> np.ndarray:
        """The number of steps from each cell to a goal along a shortest path; -1 if there is none."""
        found = np.full(self.map.shape, -1)
        found[goal] = 0
        queue = deque([goal])
        while queue:
            row, column = cell = queue.popleft()
            for i, j in NEIGHBORS:
                neighbor = row + i, column + j
                if self.map[neighbor] == 0 and found[neighbor] == -1:
                    found[neighbor] = found[cell] + 1
                    queue.append(neighbor)
        return found

    def next_cell(self, cell: Cell, goal: Cell) -> Cell:
        """The next cell on a shortest path; at the goal, the goal itself."""
        distances, best = self.distances(goal), cell
        for i, j in NEIGHBORS:
            neighbor = cell[0] + i, cell[1] + j
            if self.map[neighbor] == 0 and distances[neighbor] < distances[best]:
                best = neighbor
        return best

    def far(self, start: Cell, cells: int) -> list[Cell]:
        """The cells at that distance; the start itself if there are none."""
        return [(int(i), int(j)) for i, j in np.argwhere(self.distances(start) == cells)] or [start]

    def near_center(self, cell: Cell, rng: np.random.Generator) -> np.ndarray:
        """A position near a cell's center: `[2]`."""
        position: np.ndarray = np.array(self.env.ij_to_xy(cell)) + rng.uniform(-AROUND, AROUND, 2)
        return position

    def toward(self, position: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """The unit vector `[2]` towards the center of the next cell on the way from one position to another."""
        cell = self.next_cell(self.env.xy_to_ij(position), self.env.xy_to_ij(goal))
        return unit(np.array(self.env.ij_to_xy(cell)) - position)


def unit(x: np.ndarray) -> np.ndarray:
    """A vector scaled to a length of 1."""
    scaled: np.ndarray = x / (np.linalg.norm(x) + 1e-6)
    return scaled


def play(maze: Maze, kind: str, steps: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One episode: positions `[T + 1, 2]`, actions `[T, 2]`."""

    def choice(cells: list[Cell]) -> Cell:
        return cells[rng.integers(len(cells))]

    start = choice(maze.free)
    goal = maze.near_center(choice(maze.far(start, STITCH_CELLS) if kind == "stitch" else maze.corners), rng)
    maze.env.set_xy(maze.near_center(start, rng))
    positions, actions, direction = [maze.env.get_xy()], [], np.zeros(2)
    for step in range(steps):
        if kind != "explore":
            direction = maze.toward(maze.env.get_xy(), goal)
        elif step % EXPLORE_STEPS == 0:
            direction = unit(rng.normal(size=2))
        actions.append(np.clip(direction + rng.normal(0, noise, 2), -1, 1))
        state, *_ = maze.world.step(actions[-1])
        positions.append(state[:2])  # inside a portal, where the ball has moved elsewhere by now
        if kind == "navigate" and np.linalg.norm(positions[-1] - goal) <= NEAR:
            goal = maze.near_center(choice(maze.corners), rng)
    return np.array(positions, np.float32), np.array(actions, np.float32)


def collect(env_id: str, kind: str, transitions: int, seed: int) -> Arrays:
    """At least that many transitions, in whole episodes.

    Args:
        env_id: the id of a Point Maze, such as `ogbench/pointmaze-large`; data of a single task have its rewards.
        kind: one of `KINDS`.
        transitions: the smallest number of transitions.
        seed: determines everything.
    """
    rng = np.random.default_rng(seed)
    load_package(env_id)
    task = env_id.removeprefix(PREFIX)
    name = task.partition("-singletask")[0]
    world = GoalEnv(name)
    world.reset(seed=seed)
    steps, noise = GIANT_NAVIGATE if (name, kind) == ("pointmaze-giant", "navigate") else KINDS[kind]
    maze, episodes = Maze(world), -(-transitions // steps)
    played = [play(maze, kind, steps, noise, rng) for _ in range(episodes)]
    world.close()
    position, action = (np.stack(columns) for columns in zip(*played, strict=True))
    truncated = np.zeros((episodes, steps), bool)
    truncated[:, -1] = True
    nothing = np.zeros((episodes, steps), np.float32)
    fields = (position[:, :-1], action, nothing, position[:, 1:], np.zeros_like(truncated), truncated)
    arrays = Arrays(*(field.reshape(-1, *field.shape[2:]) for field in fields))
    return arrays if task == name else with_rewards(arrays, task)


def with_rewards(arrays: Arrays, task: str) -> Arrays:
    """Data with the rewards and ends of a single task, as OGBench relabels them: 0 at the goal, which ends, else -1."""
    from ogbench.relabel_utils import relabel_dataset

    world, columns = SingleTaskEnv(task), {"qpos": arrays.obs}
    relabel_dataset(task, world.env, columns)
    world.close()
    terminated = columns["masks"] == 0
    reward = columns["rewards"].astype(np.float32)
    return arrays._replace(reward=reward, terminated=terminated, truncated=arrays.truncated & ~terminated)
