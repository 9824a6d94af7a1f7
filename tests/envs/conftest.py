"""Environments with known observations, and a temporary working directory."""

import gymnasium
import numpy as np
import pytest


class Counting(gymnasium.Env):
    """Observes `[steps so far, length]` and terminates after `length` steps, 3 to 12, drawn at each reset.

    The reward is the action times the number of the step.
    """

    observation_space = gymnasium.spaces.Box(0, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.length = 0, int(self.np_random.integers(3, 13))
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        return self._obs(), float(action[0]) * self.count, self.count == self.length, False, {}

    def _obs(self):
        return np.array([self.count, self.length], np.float32)


@pytest.fixture
def counting():
    """The id of `Counting`. Episodes are truncated after 8 steps; one of length 8 is terminated and truncated."""
    gymnasium.register("Counting-v0", Counting, max_episode_steps=8)
    yield "Counting-v0"
    del gymnasium.registry["Counting-v0"]


class InPlace(Counting):
    """The same, but its observations are one array that it changes in place. It changes the given action too."""

    def __init__(self):
        self.array = np.zeros(2, np.float32)

    def step(self, action):
        result = super().step(action)
        action *= 0
        return result

    def _obs(self):
        self.array[:] = super()._obs()
        return self.array


@pytest.fixture
def in_place():
    """The id of `InPlace`. Its episodes end like those of `counting`."""
    gymnasium.register("InPlace-v0", InPlace, max_episode_steps=8)
    yield "InPlace-v0"
    del gymnasium.registry["InPlace-v0"]


class Succeeding(Counting):
    """The same, with successes: the second step of a long episode is one, and the last step of an episode of three.

    The reset reports success too, as in mazes, or does not, as in Adroit.
    """

    def __init__(self, of_starts):
        super().__init__()
        self.of_starts = of_starts

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, {"success": False} if self.of_starts else {}

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        succeeds = self.count == 2 if self.length > 5 else self.length == self.count == 3
        return obs, reward, terminated, truncated, {"success": succeeds}


@pytest.fixture(params=[True, False], ids=["starts too", "steps alone"])
def succeeding(request):
    """The id of `Succeeding`."""
    gymnasium.register("Succeeding-v0", Succeeding, max_episode_steps=8, kwargs={"of_starts": request.param})
    yield "Succeeding-v0"
    del gymnasium.registry["Succeeding-v0"]


@pytest.fixture(params=["gymnasium", "envpool"])
def backend(request):
    """Each backend in turn, if it is installed."""
    return pytest.importorskip(request.param).__name__


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    """MuJoCo writes its log into the working directory."""
    monkeypatch.chdir(tmp_path)
