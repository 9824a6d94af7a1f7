"""Point Maze, the stitching task."""

import gymnasium
import numpy as np
import pytest

from zoo.envs import EnvConfig, make
from zoo.spec import Spec

pytest.importorskip("gymnasium_robotics")
GOAL = np.array([1.5, -0.5])  # center of cell (2, 4)


@pytest.fixture
def envs():
    envs = make(EnvConfig("PointMazeStitch-v0"), 8)
    yield envs
    envs.close()


def test_observes_position_and_velocity_and_not_the_goal(envs):
    assert Spec.of(envs.single_observation_space, envs.single_action_space) == Spec((4,), (-1.0, -1.0), (1.0, 1.0))
    obs, _ = envs.reset(seed=0)
    assert (np.abs(obs[:, :2] - [-0.5, 0.5]) <= 0.25).all()  # around the center of cell (1, 2)
    assert (obs[:, 2:] == 0).all()
    assert len(np.unique(obs[:, 0])) == 8


def test_every_episode_is_truncated_after_200_steps_even_at_the_goal(envs):
    envs.reset(seed=0)
    for env in envs.envs:
        env.unwrapped.point_env.set_state(env.unwrapped.goal, np.zeros(2))
    for step in range(1, 201):
        _, reward, terminated, truncated, _ = envs.step(np.zeros((8, 2), np.float32))
        assert not terminated.any()
        assert truncated.all() == (step == 200)
        if step < 200:
            np.testing.assert_allclose(reward, 1, atol=1e-6)


def test_a_step_pays_by_the_distance_to_a_goal_near_its_cell(envs):
    envs.reset(seed=1)
    goals = np.array([env.unwrapped.goal for env in envs.envs])
    assert (np.abs(goals - GOAL) <= 0.25).all()
    obs, reward, *_ = envs.step(envs.action_space.sample())
    np.testing.assert_allclose(reward, np.exp(-np.linalg.norm(obs[:, :2] - goals, axis=1)), rtol=1e-6)


def test_walls_hold_the_ball():
    env = gymnasium.make("PointMazeStitch-v0")
    obs, _ = env.reset(seed=0)
    for _ in range(199):  # there are walls above and to the right of the start
        obs, *_ = env.step(np.ones(2, np.float32))
    assert (np.abs(obs[:2] - [-0.5, 0.5]) < 0.6).all()
