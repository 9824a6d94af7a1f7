"""DeepMind Control in EnvPool: flat observations, lengths of tasks, and single environments."""

import gymnasium
import numpy as np
import pytest

from zoo.envs import EnvConfig, make
from zoo.envs.dmc import TASKS
from zoo.spec import Spec

envpool = pytest.importorskip("envpool")


@pytest.mark.parametrize("name", ["cheetah-run", "dog-fetch", "fish-swim", "humanoid_CMU-stand"])
def test_an_observation_is_the_dictionarys_entries_one_after_another(name):
    env_id = f"dmc/{name}"
    envs = make(EnvConfig(env_id), 2)
    raw = envpool.make_gymnasium(TASKS[env_id], num_envs=2, num_threads=1, seed=[3, 4])
    flat, entries = envs.reset(seed=3)[0], raw.reset()[0]
    envs.action_space.seed(0)
    for _ in range(5):
        for i in range(2):
            expected = [number for entry in raw.observation_space for number in np.ravel(entries[entry][i])]
            np.testing.assert_array_equal(flat[i], np.float32(expected))
        assert flat.dtype == np.float32
        action = envs.action_space.sample()
        flat, entries = envs.step(action)[0], raw.step(action)[0]


@pytest.mark.parametrize(
    ("name", "size", "num_actions"),  # dm_control's tasks
    [
        ("cheetah-run", 17, 6),
        ("dog-run", 223, 38),
        ("dog-fetch", 232, 38),
        ("finger-spin", 9, 2),
        ("finger-turn_hard", 12, 2),
        ("fish-upright", 21, 5),
        ("fish-swim", 24, 5),
        ("humanoid-run", 67, 21),
        ("humanoid-run_pure_state", 55, 21),
        ("quadruped-run", 78, 12),
        ("quadruped-escape", 101, 12),
        ("quadruped-fetch", 90, 12),
        ("walker-walk", 24, 6),
    ],
)
def test_a_task_observes_what_it_observes_in_dm_control(name, size, num_actions):
    envs = make(EnvConfig(f"dmc/{name}"), 1)
    spec = Spec.of(envs.single_observation_space, envs.single_action_space)
    assert (spec.obs_shape, spec.obs_dtype, spec.action_dim) == ((size,), "float32", num_actions)


def test_every_task_is_one_of_envpools_and_has_a_name_without_a_slash():
    assert set(TASKS.values()) <= set(envpool.list_all_envs())
    assert EnvConfig("dmc/point_mass-easy").name == "dmc-point_mass-easy"


def test_an_episode_is_truncated_after_a_thousand_steps_and_never_terminated():
    envs = make(EnvConfig("dmc/cartpole-balance"), 2)
    envs.reset(seed=0)
    total = np.zeros(2)
    for step in range(1, 2001):
        _, reward, terminated, truncated, _ = envs.step(np.zeros((2, 1), np.float32))
        assert not terminated.any()
        assert truncated.all() == truncated.any() == (step % 1000 == 0)
        assert ((reward >= 0) & (reward <= 1)).all()
        total += reward
    assert (total > 100).all()


def test_one_environment_at_a_time_is_the_same_environment():
    env, envs = gymnasium.make("dmc/cheetah-run"), make(EnvConfig("dmc/cheetah-run"), 1)
    np.testing.assert_array_equal(env.reset(seed=7)[0], envs.reset(seed=7)[0][0])
    env.action_space.seed(0)
    for step in range(1, 1001):
        action = env.action_space.sample()
        obs, reward, terminated, truncated, _ = env.step(action)
        all_obs, all_reward, _, all_truncated, info = envs.step(action[None])
        np.testing.assert_array_equal(obs, info["final_obs"][0] if step == 1000 else all_obs[0])
        assert (reward, terminated, truncated) == (all_reward[0], False, all_truncated[0])
    assert truncated
