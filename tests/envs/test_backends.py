"""EnvPool and Gymnasium put the same transitions into a buffer, through terminations and truncations."""

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
import torch

from zoo.data.buffers import ReplayBuffer
from zoo.envs import EnvConfig, make
from zoo.runs.stepper import EnvStepper

pytest.importorskip("envpool")

FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


def drive(envs, choose, steps):
    """Steps `envs` and fills a buffer. Returns the buffer's columns `[steps, N, ...]` and the last observations."""
    stepper = EnvStepper(envs, 0, torch.device("cpu"), lambda *_: None)
    buffer = ReplayBuffer(steps * stepper.num_envs, stepper.spec, stepper.device)
    for step in range(steps):
        buffer.add(stepper.step(torch.as_tensor(choose(step, stepper.obs.numpy()))))
    assert buffer.size == steps * stepper.num_envs
    rows = {name: getattr(buffer, name).unflatten(0, (steps, stepper.num_envs)).numpy() for name in FIELDS}
    return rows, stepper.obs.numpy()


def at_random(env_id, num_envs):
    """A policy with uniform actions, which are the same for each call."""
    space = make(EnvConfig(env_id), num_envs).action_space
    space.seed(1)
    return lambda step, obs: space.sample()


def uphill(env_id, num_envs):
    """MountainCar: pushes in the direction in which the car rolls, rarely the first cars and always the last one."""
    rng = np.random.default_rng(0)
    diligence = np.linspace(0.3, 1, num_envs)
    return lambda step, obs: np.where(rng.random(num_envs) > diligence, 1, np.where(obs[:, 1] < 0, 0, 2))


def balance_the_first(env_id, num_envs):
    """CartPole: the first pole is kept upright, and its cart near the middle; the others fall."""
    return lambda step, obs: np.where(np.arange(num_envs) == 0, obs @ [0.1, 0.2, 1, 1] > 0, step % 3 == 0).astype(int)


def set_state(env, obs):
    """Sets one of Gymnasium's environments to an observed state, and returns its observation."""
    env, obs = env.unwrapped, obs.astype(np.float64)
    match env.spec.id:
        case "CartPole-v1":
            env.state, env.steps_beyond_terminated = tuple(obs), None
        case "MountainCar-v0":
            env.state = tuple(obs)
        case "Pendulum-v1":
            env.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]])
        case "InvertedPendulum-v5":
            env.set_state(obs[:2], obs[2:])
        case "Hopper-v5":
            env.set_state(np.array([0, *obs[:5]]), obs[5:])  # the position is not observed and makes no difference
        case "Reacher-v5":
            joints = np.arctan2(obs[2:4], obs[:2])
            env.set_state(np.array([*joints, *obs[4:6]]), np.array([*obs[6:8], 0, 0]))
    return env._get_obs() if hasattr(env, "_get_obs") else obs.astype(np.float32)


class StartFrom(gymnasium.Wrapper):
    """Starts each episode from the next of `starts`, because the backends sample different initial states."""

    def __init__(self, env: gymnasium.Env, starts: Iterator[np.ndarray]) -> None:
        super().__init__(env)
        self.starts = starts

    def reset(self, **options):
        _, info = self.env.reset(**options)
        return set_state(self.env, next(self.starts)), info


@pytest.mark.parametrize(
    ("env_id", "choose", "num_envs", "steps", "ends"),
    [
        ("MountainCar-v0", uphill, 100, 410, {(1, 0), (0, 1), (1, 1)}),
        ("CartPole-v1", at_random, 6, 150, {(1, 0)}),
        ("InvertedPendulum-v5", at_random, 3, 60, {(1, 0)}),
        ("Hopper-v5", at_random, 3, 150, {(1, 0)}),
        ("Reacher-v5", at_random, 3, 110, {(0, 1)}),
    ],
)
def test_the_same_starts_and_actions_put_the_same_transitions_into_the_buffer(env_id, choose, num_envs, steps, ends):
    pool = make(EnvConfig(env_id, backend="envpool"), num_envs)
    expected, last_obs = drive(pool, choose(env_id, num_envs), steps)
    ended = expected["terminated"] | expected["truncated"]

    envs = make(EnvConfig(env_id, backend="gymnasium"), num_envs)
    for i in range(num_envs):
        first = np.concatenate([[True], ended[:, i]])
        starts = np.concatenate([expected["obs"][:, i], last_obs[None, i]])[first]
        envs.envs[i] = StartFrom(envs.envs[i], iter(starts))
    rows, _ = drive(envs, lambda step, obs: expected["action"][step], steps)

    for name in FIELDS:
        np.testing.assert_allclose(rows[name], expected[name], rtol=2e-3, atol=2e-4, err_msg=name)
    flags = np.stack([rows["terminated"][ended], rows["truncated"][ended]], axis=1).astype(int)
    assert {tuple(pair) for pair in flags.tolist()} == ends


@pytest.mark.parametrize(
    ("env_id", "choose", "time_limit", "bound_of_starts"),
    [
        ("CartPole-v1", balance_the_first, 500, [0.05, 0.05, 0.05, 0.05]),
        ("Pendulum-v1", at_random, 200, [1, 1, 1]),
    ],
)
def test_each_transition_of_envpool_is_a_step_of_gymnasium(env_id, choose, time_limit, bound_of_starts):
    pool = make(EnvConfig(env_id, backend="envpool"), 2)
    rows, _ = drive(pool, choose(env_id, 2), 2 * time_limit + 10)
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    for i in range(2):
        length = 0
        for obs, action, reward, next_obs, terminated, truncated in zip(*(rows[n][:, i] for n in FIELDS), strict=True):
            if length == 0:
                assert (np.abs(obs) <= bound_of_starts).all()
            length += 1
            set_state(env, obs)
            expected_obs, expected_reward, expected_terminated, _, _ = env.step(action)
            np.testing.assert_allclose(next_obs, expected_obs, rtol=1e-5, atol=1e-5)
            assert reward == pytest.approx(expected_reward, rel=1e-4, abs=1e-4)
            assert terminated == expected_terminated
            assert truncated == (length == time_limit)
            if terminated or truncated:
                length = 0
    assert rows["truncated"][:, 0].sum() == 2
    assert rows["terminated"].any() == (env_id == "CartPole-v1")


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Reacher-v5"])
def test_rows_chain_except_where_an_episode_ends(env_id, backend):
    rows, _ = drive(make(EnvConfig(env_id, backend=backend), 3), at_random(env_id, 3), 210)
    ended = (rows["terminated"] | rows["truncated"])[:-1]
    assert ended.any(axis=0).all()
    chained = (rows["next_obs"][:-1] == rows["obs"][1:]).all(axis=-1)
    np.testing.assert_array_equal(chained, ~ended)
    if env_id == "Reacher-v5":
        np.testing.assert_array_equal(np.flatnonzero(rows["truncated"].all(axis=1)) + 1, [50, 100, 150, 200])
        assert not rows["terminated"].any()


def test_environment_i_starts_as_seeded_seed_plus_i(backend):
    def first(seed, num_envs=3):
        return make(EnvConfig("Hopper-v5", backend=backend), num_envs).reset(seed=seed)[0]

    np.testing.assert_array_equal(first(7), first([7, 8, 9]))
    np.testing.assert_array_equal(first(7)[2], first(9, num_envs=1)[0])
    assert not np.array_equal(first(7)[0], first(7)[1])
    assert not np.array_equal(first(None), first(None))


def test_seeded_reset_starts_over_and_an_unseeded_one_goes_on(backend):
    envs = make(EnvConfig("Hopper-v5", backend=backend), 2)
    first, _ = envs.reset(seed=3)
    envs.step(envs.action_space.sample())
    second, _ = envs.reset()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(envs.reset(seed=3)[0], first)
    np.testing.assert_array_equal(envs.reset()[0], second)


def test_final_observations_are_given_for_the_ended_episodes_only(backend):
    envs = make(EnvConfig("CartPole-v1", backend=backend), 3)
    envs.reset(seed=0)
    for step in range(100):
        _, _, terminated, truncated, info = envs.step(np.array([1, step % 2, step // 2 % 2]))
        if (terminated | truncated).any():
            np.testing.assert_array_equal(info["_final_obs"], terminated | truncated)
            for i in range(3):
                if terminated[i]:
                    assert max(abs(info["final_obs"][i][0]) / 2.4, abs(info["final_obs"][i][2]) / 0.2095) >= 1
                else:
                    assert info["final_obs"][i] is None
        else:
            assert "final_obs" not in info


@pytest.mark.parametrize("seed", [2**31 - 1, 2**40])
def test_envpool_takes_any_seed_that_gymnasium_takes(seed):
    envs = make(EnvConfig("CartPole-v1", backend="envpool"), 2)
    np.testing.assert_array_equal(envs.reset(seed=seed)[0], envs.reset(seed=seed)[0])
