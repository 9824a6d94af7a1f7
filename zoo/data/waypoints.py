"""Scripted data for Point Maze: episodes of a controller that steers from cell to cell.

In the stitching task no episode takes the best path: Zhou et al. 2023 (arXiv 2310.19308), section 5.1, as in their code
(github zhaoyizhou1123/mbrcsl, `envs/pointmaze`). Half of the episodes go from the start down to the cell below and stay
there; the other half go to the goal, but by a detour to the left, stopping at each corner. A quarter of all episodes
wander about at random once they are there. (In the paper the first half wanders; in the code and here the second.)

In gymnasium-robotics' own mazes the data are made like D4RL's Maze2D (Fu et al. 2020, arXiv 2004.07219, section 4): the
ball goes to one random cell after another, with noise on its force, and reaches the goal when that is on its way.
"""

from collections import deque
from collections.abc import Sequence

import gymnasium
import numpy as np

from zoo.data.arrays import Arrays
from zoo.envs.make import make_one
from zoo.envs.names import load_package, time_limit
from zoo.envs.pointmaze import ENV_ID, MAP, STEPS

Cell = tuple[int, int]
Maze = Sequence[str]  # rows of cells; 1 is a wall

SHORT: list[Cell] = [(2, 2)]
DETOUR: list[Cell] = [(1, 1), (2, 1), (2, 4)]
ROUTES = ((SHORT, False), (SHORT, False), (DETOUR, False), (DETOUR, True))  # goals one after another; wanders at last?
GOAL_NOISE = 0.25  # a goal lies within this distance of its cell's center
WAYPOINT_NOISE = 0.2  # a waypoint on the way, up to this distance to the lower left of its cell's center
PROPORTIONAL, DERIVATIVE = 10.0, -1.0  # gains
NEAR = 0.1  # distance at which a cell's center counts as passed
ARRIVED, SLOW = 0.5, 0.5  # a goal counts as reached within this distance if each velocity is at most this
FORCE_NOISE = 0.5  # standard deviation, in episodes that go anywhere


def center(cell: Cell, maze: Maze = MAP) -> np.ndarray:
    """The position of a cell's center, with the maze's center at the origin: `[2]`."""
    return np.array([cell[1] - (len(maze[0]) - 1) / 2, (len(maze) - 1) / 2 - cell[0]])


def cell_of(position: np.ndarray, maze: Maze = MAP) -> Cell:
    """The cell that contains a position."""
    return int(np.floor(len(maze) / 2 - position[1])), int(np.floor(position[0] + len(maze[0]) / 2))


def path(start: Cell, goal: Cell, maze: Maze = MAP) -> list[Cell]:
    """The free cells of a shortest path after `start`; among equal ones, right comes before left, up and down."""
    before: dict[Cell, Cell] = {start: start}
    queue = deque([start])
    while goal not in before:
        row, column = cell = queue.popleft()
        for neighbor in ((row, column + 1), (row, column - 1), (row - 1, column), (row + 1, column)):
            if maze[neighbor[0]][neighbor[1]] == "0" and neighbor not in before:
                before[neighbor] = cell
                queue.append(neighbor)
    cells = [goal]
    while before[cells[-1]] != start:
        cells.append(before[cells[-1]])
    return cells[::-1]


class Controller:
    """Pushes the ball towards a goal, cell by cell, like a damped spring."""

    def __init__(self, goal: Cell, obs: np.ndarray, rng: np.random.Generator, maze: Maze = MAP) -> None:
        self.rng, self.maze = rng, maze
        self.goal = center(goal, maze) + rng.uniform(-GOAL_NOISE, GOAL_NOISE, 2)
        self.cells = path(cell_of(obs[:2], maze), goal, maze)
        self.target = center(self.cells[0], maze)

    def action(self, obs: np.ndarray) -> np.ndarray:
        """The force `[2]` for an observation `[4]`."""
        if np.linalg.norm(self.target - obs[:2]) <= NEAR and len(self.cells) > 1:
            self.cells.pop(0)
            if len(self.cells) == 1:
                self.target = self.goal
            else:
                self.target = center(self.cells[0], self.maze) - self.rng.uniform(0, WAYPOINT_NOISE, 2)
        force: np.ndarray = np.clip(PROPORTIONAL * (self.target - obs[:2]) + DERIVATIVE * obs[2:], -1, 1)
        return force

    def arrived(self, obs: np.ndarray, at_any_speed: bool) -> bool:
        """Whether the ball has arrived at the goal."""
        near = np.linalg.norm(self.goal - obs[:2]) <= ARRIVED
        return bool(near and (at_any_speed or (np.abs(obs[2:]) <= SLOW).all()))


def play(env: gymnasium.Env, seed: int, goals: list[Cell], wanders: bool, rng: np.random.Generator) -> list[np.ndarray]:
    """One episode: observations `[T + 1, 4]`, actions `[T, 2]`, rewards `[T]`."""
    obs, _ = env.reset(seed=seed)
    ahead = list(goals)
    controller = Controller(ahead.pop(0), obs, rng)
    observations, actions = [obs], []
    rewards: list[float] = []
    wandering = False
    while len(rewards) < STEPS:
        if not wandering and controller.arrived(obs, at_any_speed=wanders and not ahead):
            if ahead:
                controller = Controller(ahead.pop(0), obs, rng)
            else:
                wandering = wanders
        action = rng.uniform(-1, 1, 2) if wandering else controller.action(obs)
        actions.append(action.astype(np.float32))
        obs, reward, *_ = env.step(actions[-1])
        observations.append(obs)
        rewards.append(float(reward))
    return [np.array(column, np.float32) for column in (observations, actions, rewards)]


def collect(env_id: str, transitions: int, seed: int) -> Arrays:
    """At least that many transitions of a Point Maze, in whole episodes."""
    load_package(env_id)
    return _detours(transitions, seed) if env_id == ENV_ID else _anywhere(env_id, transitions, seed)


def _anywhere(env_id: str, transitions: int, seed: int) -> Arrays:
    """Episodes that go from cell to cell, each chosen at random among the free ones."""
    rng, env, steps = np.random.default_rng(seed), make_one(env_id), time_limit(env_id)
    assert steps is not None
    maze = ["".join("1" if cell == 1 else "0" for cell in row) for row in env.get_wrapper_attr("maze").maze_map]
    free = [(row, column) for row, cells in enumerate(maze) for column, cell in enumerate(cells) if cell == "0"]
    columns = []
    for _ in range(-(-transitions // steps)):
        obs, _ = env.reset(seed=int(rng.integers(2**31)))
        controller = Controller(free[rng.integers(len(free))], obs[4:], rng, maze)
        for step in range(steps):
            if controller.arrived(obs[4:], at_any_speed=True):
                controller = Controller(free[rng.integers(len(free))], obs[4:], rng, maze)
            force = controller.action(obs[4:]) + FORCE_NOISE * rng.standard_normal(2)
            action = np.clip(force, -1, 1).astype(np.float32)
            before = obs
            obs, reward, terminated, *_ = env.step(action)
            ended = (np.bool_(terminated), np.bool_(step == steps - 1))
            columns.append((before.astype(np.float32), action, np.float32(reward), obs.astype(np.float32), *ended))
    env.close()
    return Arrays(*(np.stack(column) for column in zip(*columns, strict=True)))


def _detours(transitions: int, seed: int) -> Arrays:
    """Equally many episodes of the stitching task on each route, shuffled."""
    rng = np.random.default_rng(seed)
    env = gymnasium.make(ENV_ID)
    episodes = -(-transitions // (STEPS * len(ROUTES))) * len(ROUTES)
    routes = rng.permutation(np.arange(episodes) % len(ROUTES))
    played = [play(env, int(rng.integers(2**31)), *ROUTES[route], rng) for route in routes]
    env.close()
    obs, action, reward = (np.stack(columns) for columns in zip(*played, strict=True))
    truncated = np.zeros((episodes, STEPS), bool)
    truncated[:, -1] = True
    fields = (obs[:, :-1], action, reward, obs[:, 1:], np.zeros_like(truncated), truncated)
    return Arrays(*(field.reshape(-1, *field.shape[2:]) for field in fields))
