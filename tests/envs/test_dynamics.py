"""Changed dynamics of MuJoCo's tasks."""

import mujoco
import numpy as np
import pytest

from zoo.envs import EnvConfig, make
from zoo.envs.make import make_one, resolve_backend
from zoo.settings.compose import compose


def first(envs):
    return envs.envs[0].unwrapped


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_body_falls_with_the_gravity_that_is_asked_for(factor):
    envs = make(EnvConfig("HalfCheetah-v5", backend="gymnasium", gravity=factor), 1)
    envs.reset(seed=0)
    env = first(envs)
    env.data.qpos[1] += 100  # far above the ground
    mujoco.mj_forward(env.model, env.data)
    velocities = []
    for _ in range(2):
        mujoco.mj_subtreeVel(env.model, env.data)
        velocities.append(env.data.subtree_linvel[1, 2])
        start = env.data.time
        mujoco.mj_step(env.model, env.data, 1)
        mujoco.mj_forward(env.model, env.data)
        elapsed = env.data.time - start
    assert (velocities[1] - velocities[0]) / elapsed == pytest.approx(-9.81 * factor, abs=0.05)  # joints have armature


def test_contacts_that_a_task_defines_by_themselves_have_the_friction_too():
    pytest.importorskip("gymnasium_robotics")
    plain = make(EnvConfig("AdroitHandDoor-v1"), 1).envs[0].unwrapped.model.pair_friction.copy()
    envs = make(EnvConfig("AdroitHandDoor-v1", friction=0.3), 1)
    assert len(plain) > 0
    np.testing.assert_allclose(envs.envs[0].unwrapped.model.pair_friction, 0.3 * plain)


def test_every_geometry_has_the_friction_that_is_asked_for_after_resets_too():
    plain = make_one("Walker2d-v5").unwrapped.model.geom_friction
    envs = make(EnvConfig("Walker2d-v5", backend="gymnasium", friction=0.3), 2)
    for _ in range(2):
        envs.reset(seed=0)
        for env in envs.envs:
            np.testing.assert_allclose(env.unwrapped.model.geom_friction, 0.3 * plain)


def test_noise_on_actions_has_the_standard_deviation_that_is_asked_for_and_stays_within_bounds(monkeypatch):
    envs = make(EnvConfig("InvertedPendulum-v5", backend="gymnasium", action_noise=0.1), 1)  # actions in [-3, 3]
    taken = []
    monkeypatch.setattr(type(first(envs)), "do_simulation", lambda self, action, frames: taken.append(float(action[0])))
    envs.reset(seed=3)
    for _ in range(4000):
        envs.step(np.array([[1.0]]))
    assert np.mean(taken) == pytest.approx(1, abs=3 * 0.3 / 4000**0.5)
    assert np.std(taken) == pytest.approx(0.3, rel=0.05)
    taken.clear()
    for _ in range(200):
        envs.step(np.array([[3.0]]))
    assert max(taken) == 3.0 > min(taken)


@pytest.mark.parametrize(("where", "trained", "evaluated"), [("both", 2, 2), ("training", 2, 1), ("evaluation", 1, 2)])
def test_training_and_evaluation_differ_where_that_is_asked_for(where, trained, evaluated):
    config = EnvConfig("Hopper-v5", gravity=2, changed_in=where)
    gravity = [first(make(config, 1, training=training)).model.opt.gravity[2] for training in (True, False)]
    assert gravity == pytest.approx([-9.81 * trained, -9.81 * evaluated])


def test_scores_are_of_the_task_as_it_is():
    def score(*settings):
        return compose(["algo=sac", "env=hopper", *settings])[0].env.normalize(50.0)

    own = pytest.approx(100 * (50 + 20.272305) / 3254.572305)
    assert score() == score("env.gravity=2", "env.changed_in=training") == own
    assert score("env.gravity=2") is score("env.action_noise=0.1", "env.changed_in=evaluation") is None
    assert score("env.gravity=2", "env.random_score=0", "env.expert_score=100") == 50
    assert score("env.gravity=2", "env.random_score=0") is None  # the other would be the unchanged task
    given = compose(["algo=sac", "env=hopper", "env.random_score=0", "env.expert_score=100"])[0]
    assert given.env.score_source is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"gravity": -1.0}, "env.gravity=-1.0 must be a number that is not below 0"),
        ({"friction": float("nan")}, "env.friction=nan must be a number that is not below 0"),
        ({"changed_in": "nowhere"}, "env.changed_in=nowhere does not exist; there are both, training, evaluation"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        EnvConfig("Hopper-v5", **settings)


@pytest.mark.parametrize("where", ["both", "training", "evaluation"])
def test_other_simulators_are_refused_wherever_they_are_made(where):
    config = EnvConfig("Pendulum-v1", gravity=2, changed_in=where)
    assert resolve_backend(config) == "gymnasium"
    for training in (True, False):
        with pytest.raises(ValueError, match=r"env.gravity=2: Pendulum-v1 is no task of MuJoCo's"):
            make(config, 1, training=training)


@pytest.mark.parametrize(
    ("env_id", "says"),
    [("ALE/Pong-v5", "is no task of MuJoCo's"), ("dmc/cheetah-run", "is simulated within EnvPool")],
)
def test_games_and_what_envpool_simulates_are_refused(env_id, says):
    with pytest.raises(ValueError, match=rf"env.gravity=2: {env_id} {says}, and cannot be changed. Leave it out"):
        make(EnvConfig(env_id, gravity=2), 1)


def test_gravity_is_refused_where_there_is_none():
    pytest.importorskip("gymnasium_robotics")
    config = EnvConfig("PointMaze_UMaze-v3", gravity=2)
    with pytest.raises(ValueError, match=r"env.gravity=2: PointMaze_UMaze-v3 has no gravity. Leave it out"):
        make(config, 1)
    assert make(EnvConfig("PointMaze_UMaze-v3", friction=2.0), 1).num_envs == 1


@pytest.mark.parametrize("backend", ["envpool", "warp"])
def test_backends_that_hide_the_model_are_refused(backend):
    with pytest.raises(ValueError, match=rf"env.backend={backend} has no env.friction. Type: env.backend=gymnasium"):
        resolve_backend(EnvConfig("Hopper-v5", backend=backend, friction=0.3))


def test_ogbenchs_tasks_can_be_changed_too():
    pytest.importorskip("ogbench")
    plain = make(EnvConfig("ogbench/pointmaze-medium"), 1).envs[0].unwrapped.model
    envs = make(EnvConfig("ogbench/pointmaze-medium", gravity=0.5, friction=0.3, action_noise=0.1), 1)
    seen = []
    for _ in range(2):
        envs.reset(seed=0)
        seen.append([envs.step(np.array([[0.5, 0.5]], np.float32))[0] for _ in range(3)])
    np.testing.assert_array_equal(*seen)  # the noise depends on the seed
    model = envs.envs[0].unwrapped.model
    np.testing.assert_allclose(model.opt.gravity, 0.5 * plain.opt.gravity)
    np.testing.assert_allclose(model.geom_friction, 0.3 * plain.geom_friction)
