"""An environment that is set to a snapshot of another one continues like it, bit for bit."""

import io

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from zoo.envs import EnvConfig, make, snapshot

MUJOCO = (
    "Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedPendulum", "InvertedDoublePendulum",
    "Pusher", "Reacher", "Swimmer", "Walker2d",
)  # fmt: skip
OWN = ("series/hopper", "neorl2/Pipeline-v0", "neorl2/DMSD-v0")
CLASSIC = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0")


def play(envs, actions) -> list[np.ndarray]:
    """The results of the actions: observations, also final ones, rewards and flags."""
    seen = []
    for action in actions:
        obs, reward, terminated, truncated, info = envs.step(action)
        final = [x for x in info.get("final_obs", []) if x is not None]
        seen += [obs, reward, terminated, truncated, *final]
    return seen


@pytest.mark.parametrize(
    "env_id", [*(f"{name}-v5" for name in MUJOCO), *CLASSIC, "series/hopper", "neorl2/Pipeline-v0", "neorl2/DMSD-v0"]
)
def test_goes_on_with_the_very_same_steps(env_id):
    config = EnvConfig(env_id, backend="gymnasium")
    envs, others = make(config, 2), make(config, 2)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    play(envs, [envs.action_space.sample() for _ in range(237)])
    file = io.BytesIO()
    torch.save(snapshot.save(envs), file)  # as a checkpoint keeps it
    file.seek(0)
    others.reset(seed=1)
    snapshot.restore(others, torch.load(file, weights_only=True))
    steps = 300
    actions = [envs.action_space.sample() for _ in range(steps)]
    np.testing.assert_array_equal(actions, [others.action_space.sample() for _ in range(steps)])
    for one, other in zip(play(envs, actions), play(others, actions), strict=True):
        np.testing.assert_array_equal(one, other)


class Door(HopperEnv):
    """A third-party MuJoCo task, which may keep state anywhere."""


class Counting(gymnasium.Wrapper):
    """A wrapper, which may have its own state."""


@pytest.mark.parametrize(
    ("entry_point", "settings"),
    [
        (Door, {"max_episode_steps": 10}),
        ("gymnasium.envs.mujoco.hopper_v5:HopperEnv", {}),  # without a limit no steps are counted
        (lambda: Counting(HopperEnv()), {"max_episode_steps": 10}),
    ],
)
def test_nothing_is_known_of_what_gymnasium_has_not_made(entry_point, settings):
    gymnasium.register("Other-v0", entry_point, **settings)
    envs = make(EnvConfig("Other-v0", backend="gymnasium"), 1)
    envs.reset(seed=0)
    del gymnasium.registry["Other-v0"]
    assert snapshot.save(envs) is None


@pytest.mark.parametrize("config", [EnvConfig("minatar/breakout"), EnvConfig("CartPole-v1", backend="envpool")])
def test_of_other_environments_nothing_is_known(config):
    pytest.importorskip("envpool" if config.backend == "envpool" else "minatar")
    envs = make(config, 1)
    envs.reset(seed=0)
    assert snapshot.save(envs) is None
