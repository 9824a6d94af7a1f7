"""Observations do not change afterwards, because a rollout keeps those of many steps."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from zoo.envs import EnvConfig, make

CASES = [
    ("CartPole-v1", "gymnasium"), ("CartPole-v1", "envpool"), ("Hopper-v5", "gymnasium"), ("Hopper-v5", "envpool"),
    ("ALE/Pong-v5", "gymnasium"), ("ALE/Pong-v5", "envpool"), ("dmc/cheetah-run", "envpool"),
    ("minatar/breakout", "gymnasium"), ("MiniGrid-Empty-5x5-v0", "envpool"),
]  # fmt: skip


@pytest.mark.parametrize(("env_id", "backend"), CASES, ids=["-".join(case) for case in CASES])
def test_later_steps_do_not_overwrite_an_observation(env_id, backend):
    packages = {"ALE/": "ale_py", "minatar/": "minatar"} if backend == "gymnasium" else {"": "envpool"}
    for prefix, package in packages.items():
        if env_id.startswith(prefix):
            pytest.importorskip(package)
    envs = make(EnvConfig(id=env_id, backend=backend), 2, training=True)
    envs.action_space.seed(0)
    observations = [envs.reset(seed=0)[0]]
    copies = [observations[0].copy()]
    for _ in range(60):
        obs, *_ = envs.step(envs.action_space.sample())
        observations.append(obs)
        copies.append(obs.copy())
    envs.close()
    assert not np.array_equal(copies[0], copies[-1])
    for obs, copy in zip(observations, copies, strict=True):
        assert np.array_equal(obs, copy)


class Several(gymnasium.Env):
    """Two observations: a vector, and an image or another vector."""

    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, image: bool) -> None:
        seen = Box(0, 255, (8, 8, 3), np.uint8) if image else Box(-1, 1, (4,), np.float32)
        self.observation_space = Dict(joints=Box(-1, 1, (2,), np.float32), seen=Dict(camera=seen))


def test_an_image_beside_other_observations_is_refused():
    for name, image in (("WithImage-v0", True), ("WithoutImage-v0", False)):
        gymnasium.register(name, entry_point=Several, kwargs={"image": image})
    with pytest.raises(ValueError, match="env=WithImage-v0 observes images and other things"):
        make(EnvConfig(id="WithImage-v0", backend="gymnasium"), 1)
    envs = make(EnvConfig(id="WithoutImage-v0", backend="gymnasium"), 1)
    assert envs.single_observation_space.shape == (6,)
