"""NeoRL-2's Pipeline and DMSD, against loops that follow the paper's rules step by step."""

import math

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from zoo.envs import EnvConfig, make, time_limit
from zoo.envs.neorl2 import DMSD, Pipeline, RandomFrictionHopper, SafetyHalfCheetah
from zoo.settings.compose import environment_config


@pytest.mark.parametrize("name", ["Pipeline", "DMSD", "SafetyHalfCheetah", "RandomFrictionHopper"])
def test_gymnasium_finds_nothing_wrong(name):
    check_env(gymnasium.make(f"neorl2/{name}-v0").unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    ("name", "steps", "least", "largest"),
    [
        ("pipeline", 1000, -296, 751),
        ("dmsd", 100, 30.6, 849.51),
        ("safety_halfcheetah", 1000, -283, 2507),
        ("random_friction_hopper", 1000, -3, 503),
    ],
)
def test_its_name_its_length_and_its_scores(name, steps, least, largest):
    config = environment_config(name)
    assert isinstance(config, EnvConfig)
    assert time_limit(config.id) == steps
    assert (config.random_score, config.expert_score) == (least, largest)


def test_water_reaches_the_end_of_the_pipe_twenty_steps_after_the_valve_lets_it_in():
    env = Pipeline()
    obs, _ = env.reset(seed=0)
    start = float(obs[0])
    np.testing.assert_array_equal(obs[2:27], np.float32(start))
    np.testing.assert_array_equal(obs[27:], 0)
    entering, gates, flows, actions = start, [], [start], []
    random = np.random.default_rng(0)
    for step in range(300):
        action = random.uniform(-2, 2, 1).astype(np.float32)
        obs, reward, terminated, truncated, _ = env.step(action)
        clipped = min(max(float(action[0]), -1.0), 1.0)
        entering = min(max(entering + clipped, 0.0), 200.0)
        gates.append(entering)
        actions.append(clipped)
        flow = gates[step - 19] if step >= 19 else start
        assert obs[0] == pytest.approx(flow, abs=1e-4)
        assert obs[1] in (50, 80, 110, 140)
        np.testing.assert_allclose(obs[2:27], [*flows[::-1], *[start] * 25][:25], rtol=1e-5)
        np.testing.assert_allclose(obs[27:], [*actions[::-1], *[0] * 25][:25], rtol=1e-5)
        flows.append(flow)
        assert reward == pytest.approx(((200 - abs(flow - float(obs[1]))) * 0.01) ** 2 - 3, abs=1e-4)
        assert (terminated, truncated) == (False, False)


def test_demands_change_three_times_in_a_thousand_steps():
    env = Pipeline()
    env.reset(seed=1)
    demands = [env.step(np.zeros(1))[0][1] for _ in range(60_000)]
    changes = np.count_nonzero(np.diff(demands))
    # a quarter of the changes, which have probability 0.003, keep the same demand
    expected, spread = 60_000 * 0.003 * 0.75, math.sqrt(60_000 * 0.003 * 0.75)
    assert abs(changes - expected) < 4 * spread
    assert set(demands) == {50, 80, 110, 140}


def test_masses_move_as_their_springs_and_dampers_have_it():
    env = DMSD()
    obs, _ = env.reset(seed=0)
    x, v = [float(value) for value in obs[:2]], [float(value) for value in obs[2:4]]
    random = np.random.default_rng(0)
    for step in range(1, 101):
        action = random.uniform(-1.5, 1.5, 2)
        obs, reward, terminated, truncated, _ = env.step(action)
        force = [30 * min(max(float(a), -1.0), 1.0) for a in action]
        accelerations = []
        for i in range(2):
            other = 1 - i
            wall = -2.0 * x[i] - 4.0 * v[i]
            between = 2.0 * (x[other] - x[i]) + 4.0 * (v[other] - v[i])
            accelerations.append((wall + between + force[i]) / 20.0)
        x = [x[i] + 0.2 * v[i] for i in range(2)]
        v = [v[i] + 0.2 * accelerations[i] for i in range(2)]
        np.testing.assert_allclose(obs[:4], [*x, *v], rtol=1e-4, atol=1e-5)
        errors = [abs(x[i] - env.targets[int(min(step, 99) >= 50)][i]) for i in range(2)]
        assert reward == pytest.approx(-sum(math.log(error + 0.01) for error in errors), abs=1e-4)
        assert (terminated, truncated) == (False, False)


def test_a_target_lasts_the_episode_or_half_of_it_in_half_of_the_episodes_each():
    env, halves = DMSD(), 0
    for seed in range(400):
        env.reset(seed=seed)
        assert np.abs(env.targets).max() <= 1.5
        halves += int((env.targets[0] != env.targets[1]).sum())
    assert abs(halves - 400) < 4 * math.sqrt(800 * 0.25)


def test_the_cheetah_is_halfcheetah_v5_but_fined_where_it_runs_too_fast():
    ours, plain = SafetyHalfCheetah(), gymnasium.make("HalfCheetah-v5").unwrapped
    ours.reset(seed=0)
    plain.reset(seed=0)
    random, fined = np.random.default_rng(0), 0
    for step in range(60):
        if step % 20 == 0:  # a push
            for env in (ours, plain):
                speeds = np.array(env.data.qvel)
                speeds[0] = 5.0
                env.set_state(np.array(env.data.qpos), speeds)
        action = random.uniform(-1, 1, 6)
        obs, reward, terminated, truncated, info = ours.step(action)
        expected, plain_reward, *_ = plain.step(action)
        np.testing.assert_array_equal(obs, [plain.data.qpos[0], *expected])
        too_fast = info["x_velocity"] > 3.2096
        assert reward == (-100 if too_fast else plain_reward)
        fined += too_fast
        assert (terminated, truncated) == (False, False)
    assert 0 < fined < 60


def test_the_hopper_is_hopper_v5_with_another_foot_in_every_episode_and_nothing_for_standing():
    ours, plain = RandomFrictionHopper(), gymnasium.make("Hopper-v5").unwrapped
    foot, frictions = plain.model.geom("foot_geom").id, []
    random = np.random.default_rng(0)
    for seed in range(6):
        obs, _ = ours.reset(seed=seed)
        plain.reset(seed=seed)
        frictions.append(obs[-1])
        plain.model.geom_friction[foot, 0] = obs[-1]
        plain.set_state(np.array(ours.data.qpos), np.array(ours.data.qvel))
        terminated = False
        for _ in range(200):
            if terminated:
                break
            action, before = random.uniform(-1, 1, 3), float(ours.data.qpos[0])
            obs, reward, terminated, _, _ = ours.step(action)
            expected, _, plain_terminated, _, _ = plain.step(action)
            np.testing.assert_array_equal(obs, [plain.data.qpos[0], *expected, frictions[-1]])
            assert terminated == plain_terminated
            assert reward == pytest.approx((obs[0] - before) / 0.008 - 1e-3 * np.square(action).sum(), rel=1e-6)
        assert terminated
    assert all(1.5 <= friction <= 2.5 for friction in frictions)
    assert len(set(frictions)) == 6


def test_the_friction_of_the_hoppers_foot_is_multiplied_as_all_others_are():
    envs = [
        make(EnvConfig("neorl2/RandomFrictionHopper-v0", friction=factor), 1).envs[0].unwrapped for factor in (1, 0.1)
    ]
    for seed in range(3):
        plain, changed = (env.reset(seed=seed)[0][-1] for env in envs)
        assert changed == pytest.approx(0.1 * plain)
        np.testing.assert_allclose(envs[1].model.geom_friction, 0.1 * envs[0].model.geom_friction)
