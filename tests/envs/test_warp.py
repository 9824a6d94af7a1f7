"""MuJoCo Warp's environments against Gymnasium's: equal steps from equal states, and equal starts and ends."""

import functools
import itertools

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from zoo.envs import EnvConfig
from zoo.envs.names import IN_WARP
from zoo.envs.warp import WarpEnvs
from zoo.envs.warp_tasks import TASKS, Physics

CPU = torch.device("cpu")
STEPS = 200
# kernels are compiled once for each model and machine, and loading them takes seconds: `make test` uses only Hopper
EVERY = [pytest.param(env_id, marks=() if env_id == "Hopper-v5" else pytest.mark.slow) for env_id in IN_WARP]


@functools.cache
def warp(env_id: str, num_envs: int, max_episode_steps: int | None = None) -> WarpEnvs:
    pytest.importorskip("mujoco_warp")
    return WarpEnvs(EnvConfig(env_id, max_episode_steps=max_episode_steps), num_envs, CPU)


def oracle(env_id: str) -> gymnasium.Env:
    """Gymnasium's environment without its time limit, and with a solver that Warp has too."""
    env = gymnasium.make(env_id).unwrapped
    if env.model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        env.model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return env


def physics(data: mujoco.MjData) -> Physics:
    """Gymnasium's float64 arrays of one simulator."""
    return Physics(*(torch.from_numpy(np.array(getattr(data, name)))[None] for name in Physics._fields))


def task(env: gymnasium.Env):
    names = [env.model.body(i).name for i in range(env.model.nbody)]
    return TASKS[env.spec.id](names, torch.from_numpy(env.model.body_mass.copy()), env.dt)


def actions(env: gymnasium.Env, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)


def put(envs: WarpEnvs, env: gymnasium.Env) -> None:
    """Puts every world into the state of Gymnasium's simulator."""
    now, state = physics(env.data), envs.state_dict()
    position = task(env).position(now)
    for name, value in (("qpos", now.qpos), ("qvel", now.qvel), ("before", position)):
        state[name] = value.float().expand_as(state[name])
    envs.load_state_dict(state | {name: torch.zeros_like(state[name]) for name in ("warmstart", "elapsed")})


def turned(env: gymnasium.Env, action: np.ndarray) -> bool:
    """Whether a capsule that is steeper than about 50 degrees touches anything in the next step.

    From 60 degrees on, Warp turns the friction pyramid; see `zoo.envs.warp`.
    """
    model, data = env.model, mujoco.MjData(env.model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = env.data.qpos, env.data.qvel, action
    capsules = model.geom_type == mujoco.mjtGeom.mjGEOM_CAPSULE
    for _ in range(env.frame_skip):
        mujoco.mj_forward(model, data)
        steep = capsules & (np.abs(data.geom_xmat[:, 8]) > 0.77)
        low = data.geom_xpos[:, 2] - np.abs(data.geom_xmat[:, 8]) * model.geom_size[:, 1] - model.geom_size[:, 0]
        if (steep & (low < 0.05)).any():
            return True
        mujoco.mj_step(model, data)
    return False


def deviation(ours: torch.Tensor, theirs: np.ndarray) -> float:
    """The largest difference, which is relative for large numbers."""
    return float((np.abs(ours.numpy() - theirs) / (1 + np.abs(theirs))).max())


def test_what_is_said_to_be_there_is_there():
    assert sorted(TASKS) == sorted(IN_WARP)


# --- Tasks, computed from Gymnasium's own arrays ---


@pytest.mark.parametrize("env_id", IN_WARP)
def test_observations_rewards_and_terminations_are_gymnasiums(env_id):
    env, rng = gymnasium.make(env_id).unwrapped, np.random.default_rng(0)
    ours, terminations, touched = task(env), 0, 0
    env.reset(seed=0)
    for step in range(STEPS):
        before = ours.position(physics(env.data))
        action = actions(env, rng)
        obs, reward, terminated, _, _ = env.step(action)
        now = physics(env.data)
        np.testing.assert_allclose(ours.observe(now)[0].numpy(), obs, rtol=1e-9, atol=1e-9)
        at = torch.from_numpy(action).double()[None]
        assert float(ours.reward(now, at, before)) == pytest.approx(float(reward), rel=1e-5, abs=1e-5)
        assert bool(ours.healthy(now)) == (not terminated)
        touched += bool((np.abs(env.data.cfrc_ext) > 1).any())  # large enough that Ant's are clipped
        if terminated:
            terminations += 1
            env.reset(seed=step)
    assert (terminations > 0) == (
        env_id in ("Ant-v5", "Hopper-v5", "Humanoid-v5", "InvertedPendulum-v5", "Walker2d-v5")
    )
    assert touched or env_id in ("InvertedPendulum-v5", "Reacher-v5", "Swimmer-v5")


@pytest.mark.parametrize(
    ("env_id", "place", "low", "high"),
    [
        ("Hopper-v5", 1, 0.7, None),
        ("Hopper-v5", 2, -0.2, 0.2),
        ("Hopper-v5", 5, -100, 100),
        ("Walker2d-v5", 1, 0.8, 2),
        ("Walker2d-v5", 2, -1, 1),
        ("Ant-v5", 2, 0.2, 1),
        ("Humanoid-v5", 2, 1, 2),
        ("InvertedPendulum-v5", 1, -0.2, 0.2),
    ],
)
def test_an_episode_terminates_where_gymnasiums_does(env_id, place, low, high):
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    ended = set()
    for bound in filter(None, (low, high)):
        for position in (bound - 1e-3, bound, bound + 1e-3):
            env.data.qpos[place] = position
            expected = abs(position) <= 0.2 if env_id == "InvertedPendulum-v5" else bool(env.is_healthy)
            assert bool(task(env).healthy(physics(env.data))) == expected
            ended.add(not expected)
    assert ended == {True, False}


# --- Steps ---


@pytest.mark.parametrize("env_id", EVERY)
def test_each_step_leads_where_gymnasiums_leads_from_the_same_state(env_id):
    """Steps start in Gymnasium's state, rounded to float32. Swimmer, which has no contacts, continues from its own.

    Observations differ by at most 1e-4, relative for large numbers. The limit is 1e-3 if feet that slide on the floor
    (HalfCheetah) or contact forces (Humanoid) are observed, and after Swimmer's 200 steps.
    """
    bound = 1e-3 if env_id in ("HalfCheetah-v5", "Humanoid-v5", "Swimmer-v5") else 1e-4
    env, envs, rng = oracle(env_id), warp(env_id, 2), np.random.default_rng(0)
    env.reset(seed=0)
    put(envs, env)
    compared = 0
    for step in range(STEPS):
        action = actions(env, rng)
        comparable = env_id != "Ant-v5" or not turned(env, action)
        ours = envs.step(torch.from_numpy(action).expand(2, -1))
        obs, reward, terminated, _, _ = env.step(action)
        if comparable:
            compared += 1
            assert deviation(ours.next_obs, obs) < bound, step
            assert deviation(ours.reward, np.asarray(reward)) < bound
            assert ours.terminated.tolist() == [terminated] * 2
            if not terminated and env_id != "Swimmer-v5":  # the next step's velocity is measured from here
                assert float(envs.state_dict()["before"][0]) == pytest.approx(
                    float(task(env).position(physics(env.data))), rel=1e-6, abs=2e-6
                )
        if terminated:
            env.reset(seed=step)
        if terminated or env_id != "Swimmer-v5":
            put(envs, env)
    assert compared == STEPS or (env_id == "Ant-v5" and compared > 50)


def test_a_step_of_humanoids_is_the_same_with_newtons_solver():
    pgs, newton, rng = gymnasium.make("Humanoid-v5").unwrapped, oracle("Humanoid-v5"), np.random.default_rng(0)
    pgs.reset(seed=0)
    newton.reset(seed=0)
    assert pgs.model.opt.solver != newton.model.opt.solver
    touched = 0
    for step in range(300):
        action = actions(pgs, rng)
        newton.set_state(pgs.data.qpos, pgs.data.qvel)
        terminated = pgs.step(action)[2]
        newton.step(action)
        touched += pgs.data.ncon > 0
        np.testing.assert_allclose(newton.data.qpos, pgs.data.qpos, atol=1e-5)
        np.testing.assert_allclose(newton.data.qvel, pgs.data.qvel, atol=1e-3)
        if terminated:
            pgs.reset(seed=step)
    assert touched > 10


# --- Starts and ends of episodes ---


@pytest.mark.parametrize("env_id", EVERY)
def test_episodes_start_as_gymnasiums_do(env_id):
    env, envs, count = gymnasium.make(env_id).unwrapped, warp(env_id, 2), 1_000
    bodies = task(env)
    theirs = []
    for seed in range(count):
        env.reset(seed=seed)
        theirs.append(np.concatenate([env.data.qpos, env.data.qvel]))
    at_rest = (torch.from_numpy(x).repeat(count, 1) for x in (env.init_qpos, env.init_qvel))
    ours = torch.cat(bodies.start(*at_rest, torch.Generator().manual_seed(0)), 1).numpy()
    for one, other in zip(ours.T, np.array(theirs).T, strict=True):
        assert ks_2samp(one, other).pvalue > 1e-4
        assert np.abs(one).max() <= np.abs(other).max() * 1.5
    obs, state = envs.reset(3), envs.state_dict()
    assert torch.equal(envs.reset(3), obs)
    assert not torch.equal(envs.reset(4), obs)
    for i in range(2):
        mujoco.mj_resetData(env.model, env.data)
        env.set_state(state["qpos"][i].double().numpy(), state["qvel"][i].double().numpy())
        assert deviation(obs[i], env._get_obs()) < 1e-5
        assert float(state["before"][i]) == pytest.approx(float(bodies.position(physics(env.data))), abs=1e-6)


@pytest.mark.parametrize(
    ("env_id", "asked", "limit"), [("Hopper-v5", 7, 7), pytest.param("Reacher-v5", None, 50, marks=pytest.mark.slow)]
)
def test_episodes_are_truncated_at_their_time_limit(env_id, asked, limit):
    envs = warp(env_id, 2, asked)
    envs.reset(0)
    truncated = torch.stack([envs.step(torch.zeros_like(envs.random_action())).truncated for _ in range(120)])
    assert (np.flatnonzero(truncated.all(1).numpy()) + 1).tolist() == list(range(limit, 121, limit))
    assert torch.equal(truncated.any(1), truncated.all(1))


def test_a_worlds_clock_is_its_own_and_hoppers_limit_gymnasiums():
    envs = warp("Hopper-v5", 2)
    envs.reset(0)
    envs.load_state_dict(envs.state_dict() | {"elapsed": torch.tensor([998, 0])})
    flags = [envs.step(torch.zeros(2, 3)).truncated.tolist() for _ in range(3)]
    assert flags == [[False, False], [True, False], [False, False]]


def test_one_world_starts_anew_while_the_others_go_on():
    envs = warp("Hopper-v5", 3)
    envs.reset(0)
    begin = envs.state_dict()
    fallen = {**begin, "qpos": begin["qpos"].clone()}
    fallen["qpos"][1, 2] = 0.5  # rad, beyond where it is healthy
    runs = []
    for state in (begin, fallen):
        envs.load_state_dict(state)
        runs.append([envs.step(torch.full((3, 3), 0.3)) for _ in range(10)])
    undisturbed, disturbed = runs
    assert not any(step.terminated.any() for step in undisturbed)
    first = disturbed[0]
    assert first.terminated.tolist() == [False, True, False]
    assert first.next_obs[1, 1] > 0.4  # where it fell
    assert first.obs[1, 1].abs() <= 5e-3  # where it starts
    for one, other in zip(undisturbed, disturbed, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            assert torch.equal(ours[[0, 2]], theirs[[0, 2]])
    for before, after in itertools.pairwise(disturbed):
        assert not torch.equal(before.obs[1], after.obs[1])
    assert not any(step.terminated.any() for step in disturbed[1:])
    assert disturbed[-1].obs[1, 1].abs() < 0.2


def test_an_observation_is_its_steps_successor_except_where_an_episode_ended():
    envs = warp("Hopper-v5", 8)
    envs.reset(0)
    ends = 0
    for _ in range(60):
        step = envs.step(envs.random_action())
        ended = step.terminated | step.truncated
        assert torch.equal((step.obs == step.next_obs).all(1), ~ended)
        height, angle = step.next_obs[:, :2].T
        assert torch.equal(step.terminated, (height <= 0.7) | (angle.abs() >= 0.2))
        assert (step.obs[ended, 1:5].abs() <= 5e-3).all()
        ends += int(ended.sum())
    assert ends > 8


@pytest.mark.parametrize("env_id", EVERY)
def test_a_restored_state_goes_on_with_the_very_same_steps(env_id):
    envs, other = warp(env_id, 2), warp.__wrapped__(env_id, 2)
    envs.reset(0)
    for _ in range(60):
        envs.step(envs.random_action())
    state = envs.state_dict()
    other.reset(1)
    other.load_state_dict(state)
    for _ in range(60):
        action = envs.random_action()
        assert torch.equal(action, other.random_action())
        for one, two in zip(envs.step(action), other.step(action), strict=True):
            assert torch.equal(one, two)


def test_actions_are_uniform_between_their_bounds():
    envs = warp("Hopper-v5", 8)
    drawn = torch.cat([envs.random_action() for _ in range(200)])
    assert drawn.shape == (1_600, 3)
    assert drawn.abs().max() <= 1
    assert ((drawn.min(0).values < -0.98) & (drawn.max(0).values > 0.98)).all()
