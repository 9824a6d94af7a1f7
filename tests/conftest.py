"""Shared setup of the tests: one thread, a seed, and small offline datasets as files in D4RL's layout."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before torch is imported: tests run in parallel

from collections.abc import Callable
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest
import torch

Act = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seeds PyTorch, so that a test has the same random numbers alone and after other tests."""
    torch.manual_seed(0)


def collect(path: Path, env_id: str, transitions: int, act: Act) -> Path:
    """Plays whole episodes until there are enough transitions, and writes them as an HDF5 file in D4RL's layout."""
    env = gymnasium.make(env_id)
    rng = np.random.default_rng(0)
    rows = []
    while len(rows) < transitions:
        obs, _ = env.reset(seed=len(rows))
        ended = False
        while not ended:
            action = act(obs, rng)
            action = action if action.dtype == np.int64 else action.astype(np.float32)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward, next_obs, terminated, truncated))
            obs, ended = next_obs, terminated or truncated
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    with h5py.File(path, "w") as file:
        for name, column in zip(names, zip(*rows, strict=True), strict=True):
            file[name] = np.array(column)
    return path


@pytest.fixture(scope="session")
def pendulum_file(tmp_path_factory) -> Path:
    """2,000 transitions of uniformly random actions; every episode is truncated after 200 steps."""
    path = tmp_path_factory.mktemp("data") / "pendulum.hdf5"
    return collect(path, "Pendulum-v1", 2_000, lambda _, rng: rng.uniform(-2, 2, 1))


@pytest.fixture(scope="session")
def cartpole_file(tmp_path_factory) -> Path:
    """5,000 transitions of a policy that pushes in the direction in which the pole falls, and 40 % random actions."""
    path = tmp_path_factory.mktemp("data") / "cartpole.hdf5"

    def act(obs, rng):
        return rng.integers(2) if rng.random() < 0.4 else np.int64(obs[2] + 0.5 * obs[3] > 0)

    return collect(path, "CartPole-v1", 5_000, act)


class Reach(gymnasium.Env):
    """A point in a square that is moved to a goal. It observes both, and ends when the point reaches the goal."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    observation_space.goal_dim = 2
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        return self._obs(), {"success": False}

    def step(self, action):
        self.state += 0.1 * action
        reached = bool(np.abs(self.state - self.goal).max() < 0.1)
        return self._obs(), float(reached), reached, False, {"success": reached}

    def _obs(self):
        return np.concatenate([self.state, self.goal]).astype(np.float32)


gymnasium.register("Reach-v0", Reach, max_episode_steps=30)


@pytest.fixture(scope="session")
def reach_file(tmp_path_factory) -> Path:
    """Fifty episodes of twenty random moves in `Reach-v0`: states without goals, and rewards unrelated to any goal."""
    rng = np.random.default_rng(0)
    action = rng.uniform(-1, 1, (50, 20, 2))
    states = np.concatenate([rng.uniform(-1, 1, (50, 1, 2)), 0.1 * action], 1).cumsum(1)
    timeouts = np.zeros((50, 20), bool)
    timeouts[:, -1] = True
    columns = {
        "observations": states[:, :-1], "actions": action, "rewards": rng.normal(size=(50, 20)),
        "next_observations": states[:, 1:], "terminals": np.zeros_like(timeouts), "timeouts": timeouts,
    }  # fmt: skip
    path = tmp_path_factory.mktemp("data") / "reach.hdf5"
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            whole = column.reshape(1_000, *column.shape[2:])
            file[name] = whole if whole.dtype == bool else whole.astype(np.float32)
    return path


GAINS = np.array([0.5, 8.0, 1.0, 1.5])  # weights of a linear policy that balances InvertedPendulum-v5


@pytest.fixture(scope="session")
def unsteady_file(tmp_path_factory) -> Path:
    """3,000 transitions of a policy that balances InvertedPendulum-v5, but takes a random action every other step."""
    path = tmp_path_factory.mktemp("data") / "unsteady.hdf5"

    def act(obs, rng):
        return rng.uniform(-3, 3, 1) if rng.random() < 0.5 else np.clip([obs @ GAINS], -3, 3)

    return collect(path, "InvertedPendulum-v5", 3_000, act)


@pytest.fixture(scope="session")
def falling_file(tmp_path_factory) -> Path:
    """3,000 transitions of a policy that pushes the pole of InvertedPendulum-v5 over, with much noise."""
    path = tmp_path_factory.mktemp("data") / "falling.hdf5"
    return collect(
        path, "InvertedPendulum-v5", 3_000, lambda obs, rng: np.clip([-obs @ GAINS + rng.normal(0, 1.0)], -3, 3)
    )


@pytest.fixture(scope="session")
def balancing_file(tmp_path_factory) -> Path:
    """Two episodes of a linear policy that balances InvertedPendulum-v5 for its 1,000 steps, with a little noise."""
    path = tmp_path_factory.mktemp("data") / "balancing.hdf5"
    return collect(
        path, "InvertedPendulum-v5", 2_000, lambda obs, rng: np.clip([obs @ GAINS + rng.normal(0, 0.3)], -3, 3)
    )
