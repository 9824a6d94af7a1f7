"""OGBench's tasks (Park et al. 2024, arXiv 2410.20092): `ogbench/antmaze-giant`, `ogbench/cube-double-singletask`.

An observation is the state followed by the goal, which is a state too. Reaching the goal pays 1 and ends the episode:
a return tells whether it was reached. Every environment has five tasks, each a start and a goal with some variation.
The first copy of an environment begins with the first task, the second with the second, and so on cyclically; each
copy goes through all tasks, one episode each.

`-singletask` is one of the five tasks alone, OGBench's default, and `-singletask-task1` to `-singletask-task5` name it.
Its observations are states without a goal, and its rewards OGBench's: -1, or for the arm minus the number of things
that are not in place yet, until the goal is reached.
"""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

IDS = "ogbench/<task>"
PREFIX = "ogbench/"
TASKS = {  # OGBench's name without its version -> steps in an episode
    **{f"pointmaze-{maze}": 1_000 for maze in ("medium", "large", "giant", "teleport")},
    **{f"antmaze-{maze}": 1_000 for maze in ("medium", "large", "giant", "teleport")},
    **{f"humanoidmaze-{maze}": 2_000 for maze in ("medium", "large", "teleport")}, "humanoidmaze-giant": 4_000,
    **{f"antsoccer-{maze}": 1_000 for maze in ("arena", "medium")},
    "cube-single": 200, "cube-double": 500, "cube-triple": 1_000, "cube-quadruple": 1_000, "cube-octuple": 1_500,
    "scene": 750,
    "puzzle-3x3": 500, "puzzle-4x4": 500, "puzzle-4x5": 1_000, "puzzle-4x6": 1_000,
}  # fmt: skip


class GoalBox(gymnasium.spaces.Box):
    """Observations `[state_dim + goal_dim]`, in which the goal follows the state."""

    def __init__(self, state_dim: int, goal_dim: int) -> None:
        super().__init__(-np.inf, np.inf, (state_dim + goal_dim,), np.float32)
        self.goal_dim = goal_dim


class GoalEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One of OGBench's environments; its random numbers depend only on its seed. `info` holds `success` and `task`.

    Args:
        name: OGBench's name, without a version.
        copy: the index of this copy among several: its first task is that number, modulo the number of tasks.
        render_mode: as in Gymnasium.

    Raises:
        ImportError: OGBench is not installed.
    """

    def __init__(self, name: str, copy: int = 0, render_mode: str | None = None) -> None:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as place:
            warnings.simplefilter("ignore")  # about a missing screen, and about the arm's bounds in float64
            import ogbench.locomaze.maze  # registers its environments with Gymnasium

            # a maze's model passes through a file on its way to MuJoCo, which OGBench would leave behind, and open
            files = SimpleNamespace(mkstemp=lambda **_: (None, f"{place}/maze.xml"))
            with mock.patch.object(ogbench.locomaze.maze, "tempfile", files):
                env: Any = gymnasium.make(f"{name}-v0", render_mode=render_mode or "rgb_array").unwrapped
            # the arm's environment makes a new space at every call, whose random numbers would be unseeded
            if isinstance(getattr(type(env), "action_space", None), property):
                env.__class__ = type(type(env).__name__, (type(env),), {"action_space": env.action_space})
        self.env = env
        self.render_mode = render_mode
        self.metadata = {"render_fps": 20, **env.metadata, "render_modes": ["rgb_array"]}  # the arm's lacks them
        (size,) = env.observation_space.shape
        self.observation_space, self.action_space = GoalBox(size, size), env.action_space
        self.teleports = name.endswith("teleport")  # at random, which is a step's only random number
        self.copy, self.episode, self.goal = copy, 0, np.zeros(size, np.float32)
        self._random: Any = np.random.RandomState().get_state()

    @property
    def model(self) -> Any:
        """MuJoCo's model, which is kept through all resets."""
        return self.env.model

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._random, self.episode = np.random.RandomState(seed % 2**32).get_state(), 0
            self.env.action_space.seed(seed)  # the environment takes a few random actions before an episode begins
        task = (self.copy + self.episode) % self.env.num_tasks + 1
        self.episode += 1
        with self._own_random_numbers():
            state, info = self.env.reset(options={"task_id": task}, seed=seed)
        self.goal = info["goal"].astype(np.float32)
        return self._observe(state), {"success": False, "task": task}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        with self._own_random_numbers() if self.teleports else nullcontext():
            state, reward, terminated, truncated, info = self.env.step(action)
        return self._observe(state), float(reward), terminated, truncated, {"success": bool(info["success"])}

    def render(self) -> np.ndarray:
        picture: np.ndarray = self.env.render()
        return picture

    def close(self) -> None:
        self.env.close()

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return np.concatenate([state, self.goal], dtype=np.float32)

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Makes OGBench, which draws from NumPy's global generator, use this environment's random numbers."""
        others = np.random.get_state()
        np.random.set_state(self._random)
        try:
            yield
        finally:
            self._random = np.random.get_state()
            np.random.set_state(others)


class SingleTaskEnv(GoalEnv):
    """One of OGBench's environments with a single task, for algorithms of rewards. `info` holds `success`."""

    def __init__(self, name: str, copy: int = 0, render_mode: str | None = None) -> None:
        super().__init__(name, copy, render_mode)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self.goal.shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"success": False}

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return state.astype(np.float32)


for _name, _steps in TASKS.items():
    gymnasium.register(PREFIX + _name, "zoo.envs.ogbench:GoalEnv", kwargs={"name": _name}, max_episode_steps=_steps)
    for _task in (f"{_name}-singletask", *(f"{_name}-singletask-task{i}" for i in range(1, 6))):
        _made_by = "zoo.envs.ogbench:SingleTaskEnv"
        gymnasium.register(PREFIX + _task, _made_by, kwargs={"name": _task}, max_episode_steps=_steps)
