"""What environments of other packages return: arrays that change later, rewards in arrays, any kind of `info`."""

import gymnasium
import numpy as np
import pytest

from zoo.envs import EnvConfig, make
from zoo.envs.foreign import numbers


class Odd(gymnasium.Env):
    """Its reward is an array, and the types in its `info` differ from copy to copy. Observations say what is true."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.whole = bool(self.np_random.integers(2))
        return self._obs(), {}

    def _obs(self):
        self.progress = 1.0 if self.whole else self.np_random.uniform()
        return np.array([self.progress, self.whole], np.float32)

    def step(self, action):
        obs = self._obs()
        info = {
            "progress": 1 if self.whole else np.array([self.progress]),
            "grade": None if self.whole else 3,
            "history": np.zeros((3 if self.whole else 5, 2)),
            "name": "odd",
        }
        return obs, np.array([self.progress]), False, False, info


@pytest.fixture
def odd():
    gymnasium.register("Odd-v0", Odd, max_episode_steps=5)
    yield "Odd-v0"
    del gymnasium.registry["Odd-v0"]


@pytest.mark.parametrize("backend", ["gymnasium", "async"])
def test_numbers_in_info_are_those_of_each_copy_whatever_the_others_report(odd, backend):
    envs = make(EnvConfig(odd, backend=backend), 6)
    envs.reset(seed=list(range(6)))
    obs, reward, _, _, info = envs.step(envs.action_space.sample())
    envs.close()
    whole = obs[:, 1] == 1
    assert 0 < whole.sum() < 6
    np.testing.assert_allclose(info["progress"], obs[:, 0], rtol=1e-6)
    np.testing.assert_allclose(reward, obs[:, 0], rtol=1e-6)
    np.testing.assert_array_equal(info["_grade"], ~whole)
    assert not {"history", "name"} & set(info)


def test_numbers_are_those_that_are_one():
    info = {
        "a": 1,
        "b": np.float32(0.5),
        "c": True,
        "d": np.array([[2]]),
        "e": np.arange(2),
        "f": "1",
        "g": None,
        "h": {},
    }
    assert numbers(info) == {"a": 1.0, "b": 0.5, "c": 1.0, "d": 2.0}


class Reusing(gymnasium.ObservationWrapper):
    """Returns one array that it changes."""

    def __init__(self, env):
        super().__init__(env)
        self.array = np.zeros(4, np.float32)

    def observation(self, obs):
        self.array[:] = obs
        return self.array


@pytest.mark.parametrize("backend", ["gymnasium", "async"])
def test_a_wrapper_of_the_users_own_around_a_task_of_gymnasiums_may_reuse_its_array(backend):
    gymnasium.register("Reusing-v0", lambda **kwargs: Reusing(gymnasium.make("CartPole-v1", **kwargs)))
    try:
        last = []
        for env_id in ("CartPole-v1", "Reusing-v0"):
            envs = make(EnvConfig(env_id, backend=backend), 1)
            envs.reset(seed=[0])
            ended = False
            while not ended:
                _, _, terminated, _, info = envs.step(np.zeros(1, int))
                ended = terminated[0]
            last.append(info["final_obs"][0])
            envs.close()
        np.testing.assert_array_equal(*last)
    finally:
        del gymnasium.registry["Reusing-v0"]


@pytest.mark.parametrize("kind", ["Reward", "Observation"])
def test_wrappers_whose_statistics_evaluations_do_not_share_are_refused(kind):
    wrapper = getattr(gymnasium.wrappers, f"Normalize{kind}")
    gymnasium.register(
        "Normalized-v0", lambda: gymnasium.wrappers.ClipReward(wrapper(Odd()), 0, 1), max_episode_steps=5
    )
    try:
        with pytest.raises(
            ValueError, match=f"env=Normalized-v0 has Gymnasium's wrapper Normalize{kind}, .* take algo."
        ):
            make(EnvConfig("Normalized-v0", backend="gymnasium"), 2)
    finally:
        del gymnasium.registry["Normalized-v0"]
