"""OGBench's environments: the same states and goals as in OGBench, and tasks in turn."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from zoo.envs import EnvConfig, make, spec_of
from zoo.envs.ogbench import PREFIX, TASKS, GoalEnv, SingleTaskEnv
from zoo.errors import UsageError
from zoo.spec import Spec

ogbench = pytest.importorskip("ogbench")
MEDIUM = EnvConfig("ogbench/pointmaze-medium")


def test_an_episode_may_last_as_long_as_ogbenchs():
    for name, steps in TASKS.items():
        assert gymnasium.spec(f"{name}-v0").max_episode_steps == steps
        assert gymnasium.spec(f"ogbench/{name}").max_episode_steps == steps


def test_an_observation_is_the_state_and_the_goal_behind_it():
    assert spec_of(MEDIUM) == Spec((4,), (-1.0, -1.0), (1.0, 1.0), goal_dim=2)
    assert spec_of(MEDIUM).state_dim == 2
    assert spec_of(EnvConfig("ogbench/antmaze-medium")).obs_shape == (2 * 29,)


def test_a_maze_leaves_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    worlds = [GoalEnv("pointmaze-medium") for _ in range(2)]
    assert not list(tmp_path.iterdir())
    opened = len(list(Path("/proc/self/fd").iterdir()))
    worlds += [GoalEnv("antsoccer-arena") for _ in range(5)]
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def enter_teleport(env):
    """Puts the ball where the next step teleports it to a random place."""
    if getattr(env, "_teleport_info", None):
        env.set_xy(np.array(env._teleport_info["teleport_in_xys"][0]))


@pytest.mark.parametrize("name", ["pointmaze-teleport", "antmaze-medium", "cube-double", "scene", "puzzle-3x3"])
def test_an_episode_is_ogbenchs_from_the_same_random_numbers(name, monkeypatch):
    ours = GoalEnv(name, copy=2)
    theirs = gymnasium.make(f"{name}-v0").unwrapped
    actions = np.random.default_rng(0).uniform(-1, 1, (50, *theirs.action_space.shape))
    np.random.seed(5)  # OGBench draws from NumPy's own generator
    space = theirs.action_space
    if space is not theirs.action_space:  # new at every call and not seeded
        monkeypatch.setattr(type(theirs), "action_space", space)
    space.seed(5)
    state, info = theirs.reset(options={"task_id": 3}, seed=5)
    enter_teleport(theirs)
    expected = [(state, 0.0), *(theirs.step(action)[:2] for action in actions)]

    obs, about = ours.reset(seed=5)
    enter_teleport(ours.env)
    found = [(obs, 0.0)]
    for action in actions:
        np.random.seed(0)  # seeding NumPy's generator has no effect
        found.append(ours.step(action)[:2])
    assert about == {"success": False, "task": 3}
    for (obs, reward), (state, their_reward) in zip(found, expected, strict=True):
        np.testing.assert_allclose(obs, np.concatenate([state, info["goal"]]), rtol=1e-6, atol=1e-6)
        assert reward == their_reward


@pytest.mark.parametrize("name", ["pointmaze-medium", "antsoccer-arena", "cube-double", "puzzle-3x3"])
@pytest.mark.parametrize("task", ["", "-task5"])
def test_a_single_task_has_ogbenchs_states_and_rewards(name, task, monkeypatch):
    ours, theirs = SingleTaskEnv(f"{name}-singletask{task}"), gymnasium.make(f"{name}-singletask{task}-v0").unwrapped
    actions = np.random.default_rng(0).uniform(-1, 1, (30, *theirs.action_space.shape))
    np.random.seed(5)
    space = theirs.action_space
    if space is not theirs.action_space:
        monkeypatch.setattr(type(theirs), "action_space", space)
    space.seed(5)
    state, _ = theirs.reset(seed=5)
    expected = [(state, -1.0), *(theirs.step(action)[:2] for action in actions)]
    obs, info = ours.reset(seed=5)
    assert info == {"success": False}
    found = [(obs, -1.0), *(ours.step(action)[:2] for action in actions)]
    for (obs, reward), (state, their_reward) in zip(found, expected, strict=True):
        np.testing.assert_allclose(obs, state, rtol=1e-6, atol=1e-6)
        assert reward == their_reward < 0
    assert ours.env.cur_task_id == theirs.cur_task_id
    assert not task or ours.env.cur_task_id == 5


def test_every_task_can_be_had_alone_and_without_a_score():
    for name in TASKS:
        for task in ("", *(f"-task{i}" for i in range(1, 6))):
            alone = f"{name}-singletask{task}"
            assert gymnasium.spec(f"{alone}-v0").max_episode_steps == gymnasium.spec(PREFIX + alone).max_episode_steps
    assert EnvConfig("ogbench/cube-double-singletask").random_score is None
    assert spec_of(EnvConfig("ogbench/antmaze-medium-singletask-task2")).obs_shape == (29,)
    assert spec_of(EnvConfig("ogbench/antmaze-medium-singletask-task2")).goal_dim == 0


def test_a_single_task_ends_with_success_where_its_goal_is_reached():
    env = SingleTaskEnv("pointmaze-medium-singletask")
    env.reset(seed=0)
    env.env.set_xy(env.env.cur_goal_xy)
    _, reward, terminated, _, info = env.step(np.zeros(2))
    assert (reward, terminated, info["success"]) == (0.0, True, True)


def test_copies_take_the_tasks_in_turn_and_a_seed_begins_anew():
    envs = make(MEDIUM, 7)
    obs, info = envs.reset(seed=list(range(7)))
    assert info["task"].tolist() == [1, 2, 3, 4, 5, 1, 2]
    assert envs.reset()[1]["task"].tolist() == [2, 3, 4, 5, 1, 2, 3]
    again, info = envs.reset(seed=list(range(7)))
    assert info["task"].tolist() == [1, 2, 3, 4, 5, 1, 2]
    np.testing.assert_array_equal(obs, again)
    envs.close()


def test_reaching_the_goal_pays_once_and_ends_the_episode():
    envs = make(MEDIUM, 2)
    obs, _ = envs.reset(seed=0)
    envs.envs[1].unwrapped.env.set_xy(obs[1, 2:].astype(float))
    obs, reward, terminated, truncated, info = envs.step(np.zeros((2, 2), np.float32))
    assert reward.tolist() == [0, 1]
    assert terminated.tolist() == [False, True]
    assert not truncated.any()
    assert info["final_info"]["success"].tolist() == [False, True]
    envs.close()


def test_without_ogbench_what_to_install_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ogbench", None)
    with pytest.raises(UsageError, match=r"needs ogbench. Type: pip install 'rl-zoo\[ogbench\]'"):
        spec_of(MEDIUM)
