"""MiniGrid: the same worlds from both backends."""

import gymnasium
import numpy as np
import pytest

from zoo.envs import EnvConfig, make
from zoo.spec import Spec

EMPTY = "MiniGrid-Empty-5x5-v0"  # 100 steps; begins in one corner, looking right, and ends in the opposite one
LEFT, RIGHT, FORWARD, DONE = 0, 1, 2, 6


@pytest.fixture(params=["gymnasium", "envpool"])
def backend(request):
    pytest.importorskip({"gymnasium": "minigrid", "envpool": "envpool"}[request.param])
    return request.param


def test_an_observation_has_kind_colour_and_state_first_and_rows_before_columns():
    pytest.importorskip("minigrid")
    envs = make(EnvConfig(EMPTY, backend="gymnasium"), 1)
    raw = gymnasium.make(EMPTY)
    assert Spec.of(envs.single_observation_space, envs.single_action_space) == Spec(
        (3, 7, 7), num_actions=7, obs_dtype="uint8"
    )
    obs, expected = envs.reset(seed=0)[0][0], raw.reset(seed=0)[0]["image"]
    for action in (RIGHT, FORWARD, FORWARD, LEFT):
        for column in range(7):
            for row in range(7):
                np.testing.assert_array_equal(obs[:, row, column], expected[column, row])
        obs, expected = envs.step(np.array([action]))[0][0], raw.step(action)[0]["image"]
    assert not np.array_equal(obs[0], obs[0].T)


def test_both_backends_are_the_same_world():
    pytest.importorskip("minigrid")
    pytest.importorskip("envpool")
    rng = np.random.default_rng(0)
    both = [make(EnvConfig(EMPTY, backend=name), 4) for name in ("gymnasium", "envpool")]
    first = [envs.reset(seed=0)[0] for envs in both]
    np.testing.assert_array_equal(*first)
    ends = set()
    for _ in range(500):
        actions = rng.integers(7, size=4)
        ours, theirs = (envs.step(actions) for envs in both)
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)
        np.testing.assert_array_equal(ours[2], theirs[2])
        np.testing.assert_array_equal(ours[3], theirs[3])
        for i in np.flatnonzero(ours[2] | ours[3]):
            np.testing.assert_array_equal(ours[4]["final_obs"][i], theirs[4]["final_obs"][i])
            ends.add((bool(ours[2][i]), bool(ours[3][i])))
    assert ends == {(True, False), (False, True)}


def test_reaching_the_goal_in_the_very_last_step_is_a_success(backend):
    envs = make(EnvConfig(EMPTY, backend=backend), 1)
    envs.reset(seed=0)
    for action in [LEFT] * 95 + [FORWARD, FORWARD, LEFT, FORWARD]:
        _, reward, terminated, truncated, _ = envs.step(np.array([action]))
        assert (terminated[0], truncated[0], reward[0]) == (False, False, 0)
    _, reward, terminated, truncated, _ = envs.step(np.array([FORWARD]))
    assert terminated[0]
    assert truncated[0]
    assert reward[0] == pytest.approx(1 - 0.9 * 100 / 100)


def test_the_sooner_the_goal_the_larger_the_reward(backend):
    envs = make(EnvConfig(EMPTY, backend=backend), 1)
    envs.reset(seed=0)
    for action in (DONE, FORWARD, FORWARD, RIGHT, FORWARD):
        envs.step(np.array([action]))
    _, reward, terminated, truncated, _ = envs.step(np.array([FORWARD]))
    assert reward[0] == pytest.approx(1 - 0.9 * 6 / 100)
    assert terminated[0]
    assert not truncated[0]
