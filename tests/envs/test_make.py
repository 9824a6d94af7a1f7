"""Every environment in the zoo can be made and stepped. If one cannot be made, one line says what to type instead."""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

import zoo
from zoo.data.minari import flattened
from zoo.envs import EnvConfig, exists, known, make, make_one, resolve_backend, spec_of, time_limit
from zoo.errors import UsageError
from zoo.settings.compose import compose
from zoo.settings.overrides import as_overrides
from zoo.spec import Spec

CONFIGS = {path.stem: path for path in sorted((Path(__file__).parents[2] / "configs" / "env").glob("*.yaml"))}


def _config(name, backend):
    config = EnvConfig(**yaml.safe_load(CONFIGS[name].read_text()), backend=backend)
    if name == "lunarlander" and backend == "gymnasium":
        pytest.importorskip("Box2D")
    if config.id.startswith("ALE/") and backend == "gymnasium":
        pytest.importorskip("ale_py")
    if name == "pointmaze-stitch":
        pytest.importorskip("gymnasium_robotics")
    if config.id.startswith("ogbench/"):
        pytest.importorskip("ogbench")
    if (name == "pointmaze-stitch" or config.id.startswith(("neorl2/", "ogbench/"))) and backend == "envpool":
        pytest.skip("EnvPool does not have it")
    return config


@pytest.mark.parametrize("name", CONFIGS)
def test_environment_of_the_zoo_can_be_made_and_stepped(name, backend):
    envs = make(_config(name, backend), 2)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    obs, _ = envs.reset(seed=0)
    assert obs.shape == envs.observation_space.shape == (2, *envs.single_observation_space.shape)
    envs.action_space.seed(0)
    for _ in range(3):
        obs, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
        assert np.isfinite(obs).all()
        assert np.isfinite(reward).all()
        assert obs.shape == envs.observation_space.shape
        assert reward.shape == terminated.shape == truncated.shape == (2,)


@pytest.mark.parametrize("name", CONFIGS)
def test_both_backends_have_the_same_shapes_and_bounds(name):
    pytest.importorskip("envpool")
    ours, theirs = make(_config(name, "gymnasium"), 1), make(_config(name, "envpool"), 1)
    assert Spec.of(ours.single_observation_space, ours.single_action_space) == Spec.of(
        theirs.single_observation_space, theirs.single_action_space
    )
    assert ours.action_space == theirs.action_space


def _refusal(env_id, backend="gymnasium"):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the caller looks at the message
        make(EnvConfig(env_id, backend=backend), 1)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("env_id", "to_type"),
    [
        ("Hoper-v5", "`Hopper`"),
        ("Hopper-v99", "`v5`"),
        ("Nowhere/Hopper-v5", "`zoo list`"),
        ("LunarLander-v1", "`LunarLander-v3`"),  # withdrawn
        ("Hopper-v3", "Try env=Hopper-v5"),  # moved to another package
        ("two words", "[namespace/](env-name)-v(version)"),
    ],
)
def test_unknown_id_is_refused_with_what_to_type(env_id, to_type):
    message = _refusal(env_id)
    assert message.startswith(f"env={env_id} ")
    assert to_type in message


def test_unknown_backend_is_refused_with_those_there_are():
    refusal = "env.backend=brax does not exist. There are: auto, envpool, gymnasium, async, warp."
    assert _refusal("Hopper-v5", "brax") == refusal


def test_id_that_envpool_lacks_is_refused_with_the_backend_that_may_have_it():
    pytest.importorskip("envpool")
    message = _refusal("Taxi-v4", "envpool")
    assert message == "env=Taxi-v4 does not exist in EnvPool. Type: env.backend=gymnasium"


@pytest.mark.parametrize("env_id", ["Nowhere/Hopper-v5", "ALE/Hopper-v5", "ALE/Breakot-v5", "dmc/lqr-lqr_2_1"])
def test_envpool_has_nothing_of_another_name(env_id):
    pytest.importorskip("envpool")
    assert not exists(env_id)
    assert f"env={env_id} does not exist in EnvPool" in _refusal(env_id, "envpool")


# --- Arguments of the constructor ---


def test_arguments_reach_the_environment_in_every_copy_and_process():
    for backend in ("auto", "gymnasium", "async"):
        envs = make(EnvConfig("FrozenLake-v1", backend=backend, kwargs={"map_name": "8x8", "is_slippery": False}), 2)
        assert envs.single_observation_space.shape == (64,)
        envs.reset(seed=0)
        obs, *_ = envs.step(np.array([1, 1]))  # down, without slipping
        assert obs.argmax(1).tolist() == [8, 8]
        envs.close()


@pytest.mark.parametrize(
    ("env_id", "backend", "kwargs", "says"),
    [
        ("FrozenLake-v1", "gymnasium", {"slip": 1}, "unexpected keyword argument 'slip'"),
        ("FrozenLake-v1", "gymnasium", {"map_name": "9x9"}, "{'map_name': '9x9'}. KeyError: '9x9'"),
        ("FrozenLake-v1", "gymnasium", {"render_mode": "human"}, "env.kwargs.render_mode: FrozenLake-v1 takes no such"),
        ("ALE/Pong-v5", "gymnasium", {"mode": 1}, "env.kwargs.mode: ALE/Pong-v5 takes no such"),
        ("CartPole-v1", "envpool", {"a": 1}, "env.backend=envpool has no env.kwargs.a. Type: env.backend=gymnasium"),
        ("Hopper-v5", "warp", {"a": 1}, "env.backend=warp has no env.kwargs.a. Type: env.backend=gymnasium"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_one_line(env_id, backend, kwargs, says):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is looked at
        make(EnvConfig(env_id, backend=backend, kwargs=kwargs), 1)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_arguments_are_settings_and_drop_the_reference_scores():
    config, *_ = compose(["algo=sac", "env=hopper", "env.kwargs.healthy_reward=0.5", "env.kwargs.a.b=[1,2]"])
    assert config.env.kwargs == {"healthy_reward": 0.5, "a": {"b": [1, 2]}}
    assert config.env.random_score is None
    assert resolve_backend(config.env) == "gymnasium"


@pytest.mark.parametrize(
    "value", [2, "2", 0.5, "1e3", "true", True, None, "null", [1, "1"], {"a": "1"}, [{"a": 1}], "8x8"]
)
def test_arguments_are_read_back_from_a_record_as_they_were(value):
    kwargs = {"device": value, "seed": value}
    overrides = as_overrides({"env.kwargs": kwargs})
    config, _, settings = compose(["algo=sac", "env=hopper", *overrides])
    assert config.env.kwargs == settings["env"]["kwargs"] == kwargs
    assert [type(one) for one in config.env.kwargs.values()] == [type(value)] * 2


# --- Which backend ---


@pytest.mark.parametrize(
    ("env_id", "has_it"),
    [
        ("Hopper-v5", True),
        ("CartPole-v1", True),
        ("ALE/Pong-v5", True),
        ("dmc/cheetah-run", True),
        ("MiniGrid-Empty-5x5-v0", True),
        ("minatar/breakout", False),
        ("Taxi-v4", False),
        ("Blackjack-v1", False),  # EnvPool's version has other observations
        ("phys2d/CartPole-v1", False),
    ],
)
def test_auto_is_envpool_where_it_is_installed_and_has_the_environment(env_id, has_it, monkeypatch):
    pytest.importorskip("envpool")
    assert resolve_backend(EnvConfig(env_id)) == ("envpool" if has_it else "gymnasium")
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert resolve_backend(EnvConfig(env_id)) == "gymnasium"
    assert resolve_backend(EnvConfig(env_id, backend="envpool")) == "envpool"  # `make` refuses it


def test_an_environment_of_the_users_own_is_not_mistaken_for_envpools_of_the_same_name(counting, monkeypatch):
    envpool = pytest.importorskip("envpool")
    assert "Maze-v0" in envpool.list_all_envs()
    for entry_point in (gymnasium.spec(counting).entry_point, "my_package.maze:Maze"):
        monkeypatch.setitem(gymnasium.registry, "Maze-v0", gymnasium.envs.registration.EnvSpec("Maze-v0", entry_point))
        assert resolve_backend(EnvConfig("Maze-v0")) == "gymnasium"


def test_threads_step_the_same_environments():
    pytest.importorskip("envpool")
    one, two = (make(EnvConfig("Hopper-v5", backend="envpool"), 5, threads) for threads in (1, 2))
    np.testing.assert_array_equal(one.reset(seed=0)[0], two.reset(seed=0)[0])
    one.action_space.seed(0)
    for _ in range(50):
        actions = one.action_space.sample()
        for a, b in zip(one.step(actions)[:4], two.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(a, b)


# --- What is not installed ---


@pytest.mark.parametrize(
    ("env_id", "backend", "package", "extra"),
    [
        ("Hopper-v5", "envpool", "envpool", "envpool"),
        ("dmc/cheetah-run", "auto", "envpool", "envpool"),
        ("ALE/Pong-v5", "auto", "ale_py", "atari"),
        ("ALE/Pong-v5", "gymnasium", "ale_py", "atari"),
        ("minatar/breakout", "auto", "minatar", "minatar"),
        ("MiniGrid-Empty-5x5-v0", "auto", "minigrid", "minigrid"),
    ],
)
def test_what_is_not_installed_is_named_with_what_installs_it(env_id, backend, package, extra, monkeypatch):
    for name in ("envpool", "ale_py", "minatar", "minigrid"):
        monkeypatch.setitem(sys.modules, name, None)
    message = _refusal(env_id, backend)
    assert message.startswith(f"env={env_id} ")
    assert f"needs {package}." in message
    assert message.endswith(f"Type: pip install 'rl-zoo[{extra}]'")


def test_without_envpool_the_others_need_it_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    make(EnvConfig("CartPole-v1"), 1).reset(seed=0)


# --- Names ---


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("Hopper-v5", "hopper"),
        ("ALE/Pong-v5", "pong"),
        ("dmc/cheetah-run", "dmc-cheetah-run"),
        ("minatar/breakout", "minatar-breakout"),
        ("MiniGrid-Empty-5x5-v0", "minigrid-empty-5x5"),
        ("mine:Maze-v0", "mine:maze"),
    ],
)
def test_a_name_is_one_folder(env_id, name):
    assert EnvConfig(env_id).name == name


@pytest.mark.parametrize("name", ["../../x/y", "/tmp/x", "..", ".", "a b", "a\x1b[2J"])
def test_a_name_that_is_no_folders_name_is_refused(name):
    with pytest.raises(ValueError, match=r"env\.name=.* must be letters, digits and"):
        EnvConfig("Hopper-v5", name)
    assert EnvConfig("Hopper-v5", "my_maze-1.5+").name == "my_maze-1.5+"


@pytest.mark.parametrize("env_id", ["Hopper-v5", "dmc/dog-run", "minatar/asterix"])
def test_what_is_known_exists_whatever_is_installed(env_id, monkeypatch):
    for name in ("envpool", "ale_py", "minatar", "minigrid"):
        monkeypatch.setitem(sys.modules, name, None)
    assert exists(env_id)
    assert env_id in known()


def test_the_games_and_worlds_of_an_installed_package_are_known():
    pytest.importorskip("envpool")
    assert {"ALE/Pong-v5", "MiniGrid-Empty-5x5-v0", "dmc/cheetah-run"} <= set(known())
    assert exists("ALE/Pong-v5")
    assert not exists("ALE/Pnog-v5")


def test_what_another_package_has_is_said_to_need_it_where_envpool_is_installed(monkeypatch):
    pytest.importorskip("envpool")
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    for env_id in [env_id for env_id in gymnasium.registry if env_id.startswith("AntMaze")]:
        monkeypatch.delitem(gymnasium.registry, env_id)
    with pytest.raises(ValueError, match=r"env=AntMaze_UMaze-v5 needs gymnasium_robotics. Type: pip install"):
        exists("AntMaze_UMaze-v5")


def test_time_limits_are_those_of_gymnasium():
    assert [time_limit(env_id) for env_id in ("Hopper-v5", "dmc/dog-run", "minatar/breakout")] == [1000, 1000, 10_000]
    assert time_limit("MiniGrid-Nowhere-v0") is None


@pytest.mark.parametrize("limit", [7, 300])
def test_episodes_are_as_long_as_they_are_asked_to_be(limit, backend):
    config = EnvConfig("Pendulum-v1", backend=backend, max_episode_steps=limit)  # its default is 200 steps
    envs = make(config, 2)
    envs.reset(seed=0)
    ends = [envs.step(np.zeros((2, 1), np.float32))[3].tolist() for _ in range(2 * limit)]
    assert [step for step, ended in enumerate(ends, 1) if any(ended)] == [limit, 2 * limit]
    assert ends[limit - 1] == [True, True]


def test_reference_scores_are_not_those_of_episodes_of_another_length():
    def score(*settings):
        return compose(["algo=sac", *settings])[0].env.normalize(40)

    assert score("env=hopper") == pytest.approx(100 * (40 + 20.272) / 3254.57, rel=1e-4)
    assert score("env=hopper", "env.max_episode_steps=100") is None
    assert score("env=AntMaze_UMaze-v5", "env.max_episode_steps=300") is None
    own = ("env.max_episode_steps=100", "env.random_score=-10", "env.expert_score=90")
    assert score("env=hopper", *own) == score("env=AdroitHandDoor-v1", *own) == 50


def test_an_ant_mazes_score_is_the_percentage_of_episodes_that_reach_the_goal():
    returns = np.array([0.0, 1.0, 350.0, 0.0])  # it has rewards after reaching the goal
    for env_id in ("AntMaze_UMaze-v5", "AntMaze_Large_Diverse_GR-v4"):
        np.testing.assert_array_equal(EnvConfig(env_id).normalize(returns), [0, 100, 100, 0])
    assert EnvConfig("AntMaze_UMazeDense-v5").normalize(returns) is None


@pytest.mark.parametrize("env_id", ["AdroitHandDoor-v1", "AdroitHandHammer-v1", "AdroitHandRelocate-v1"])
def test_random_actions_score_nothing_by_d4rls_references_of_adroits_hands(env_id):
    pytest.importorskip("gymnasium_robotics")
    envs = make(config := EnvConfig(env_id, backend="gymnasium"), 10)
    envs.action_space.seed(0)
    envs.reset(seed=0)
    returns = sum(envs.step(envs.action_space.sample())[1] for _ in range(200))
    assert abs(config.normalize(returns).mean()) < 0.5


@pytest.mark.parametrize("env_id", ["AdroitHandPen-v1", "AdroitHandDoorSparse-v1", "PointMaze_UMaze-v3"])
def test_tasks_that_are_not_d4rls_have_none_of_its_references(env_id):
    assert EnvConfig(env_id).normalize(1.0) is None


@pytest.mark.parametrize(
    ("env_id", "limit", "says"),
    [
        ("Hopper-v5", 0, "env.max_episode_steps=0 must be at least 1"),
        ("ALE/Pong-v5", 500, "env.max_episode_steps=500: ALE/Pong-v5 keeps a time of its own"),
        ("dmc/dog-run", 500, "dmc/dog-run keeps a time of its own"),
        ("MiniGrid-Empty-5x5-v0", 500, "MiniGrid-Empty-5x5-v0 keeps a time of its own"),
    ],
)
def test_a_length_that_cannot_be_had_is_refused(env_id, limit, says):
    with pytest.raises(ValueError, match=says):
        EnvConfig(env_id, max_episode_steps=limit)


@pytest.mark.parametrize(("env_id", "sizes"), [("PointMaze_UMaze-v3", (2, 2, 4)), ("AntMaze_UMaze-v5", (2, 2, 105))])
def test_observations_of_goals_are_flattened_in_the_order_of_their_names(env_id, sizes):
    robotics = pytest.importorskip("gymnasium_robotics")
    envs = make(EnvConfig(env_id, backend="gymnasium"), 1)
    gymnasium.register_envs(robotics)
    plain = gymnasium.make(env_id)
    obs, expected = envs.reset(seed=3)[0][0], plain.reset(seed=3)[0]
    names = ("achieved_goal", "desired_goal", "observation")
    assert tuple(len(expected[name]) for name in names) == sizes
    np.testing.assert_array_equal(obs, np.concatenate([expected[name] for name in names]))
    action = plain.action_space.sample()
    obs, expected = envs.step(action[None])[0][0], plain.step(action)[0]
    np.testing.assert_array_equal(obs, np.concatenate([expected[name] for name in names]))


def test_dictionaries_are_flattened_in_the_order_of_their_names_whatever_the_spaces_order():
    box = gymnasium.spaces.Box(-1, 1, (1,))

    class Turning(gymnasium.Env):
        observation_space = gymnasium.spaces.Dict(
            {"velocity": box, "angle": gymnasium.spaces.Dict({"b": box, "a": box})}
        )
        action_space = box

        def reset(self, *, seed=None, options=None):
            values = {name: np.array([value], np.float32) for name, value in (("a", 0.1), ("b", 0.2), ("v", 0.9))}
            return {"velocity": values["v"], "angle": {"b": values["b"], "a": values["a"]}}, {}

    gymnasium.register("Turning-v0", Turning)
    try:
        obs, _ = make(EnvConfig("Turning-v0"), 1).reset(seed=0)
    finally:
        del gymnasium.registry["Turning-v0"]
    np.testing.assert_allclose(obs, [[0.1, 0.2, 0.9]])
    seen = {"velocity": np.array([[0.9]]), "angle": {"b": np.array([[0.2]]), "a": np.array([[0.1]])}}
    np.testing.assert_allclose(flattened(seen), obs)


@pytest.mark.parametrize(("env_id", "sizes"), [("FrozenLake-v1", [16]), ("Blackjack-v1", [32, 11, 2])])
def test_whole_numbers_are_observed_as_one_hot_vectors(env_id, sizes):
    envs, plain = make(EnvConfig(env_id), 1), gymnasium.make(env_id)
    obs, expected = envs.reset(seed=5)[0], plain.reset(seed=5)[0]
    for _ in range(20):
        one_hot = [np.eye(size)[number] for size, number in zip(sizes, np.atleast_1d(expected), strict=True)]
        np.testing.assert_array_equal(obs, np.concatenate(one_hot)[None])
        action = plain.action_space.sample()
        expected, _, terminated, truncated, _ = plain.step(action)
        obs = envs.step(np.array([action]))[0]
        if terminated or truncated:
            break
    assert Spec.of(envs.single_observation_space, envs.single_action_space).obs_shape == (sum(sizes),)


def test_observations_of_no_fixed_size_are_refused_in_a_line():
    class Telling(gymnasium.Env):
        observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))
        action_space = gymnasium.spaces.Discrete(2)

    gymnasium.register("Telling-v0", Telling)
    try:
        with pytest.raises(UsageError, match=r"^observations must be a Box, not Sequence"):
            spec_of(EnvConfig("Telling-v0"))
    finally:
        del gymnasium.registry["Telling-v0"]


@pytest.mark.parametrize("algo", ["dqn", "ppo", "stream_q"])
def test_learns_from_whole_numbers(algo, tmp_path):
    settings = {"dqn": {"learning_starts": 20, "batch_size": 4}, "ppo": {"num_steps": 16, "minibatches": 2}}
    run = zoo.train(
        algo, env="Blackjack-v1", steps=64, eval_episodes=2, logger="none", run_dir=tmp_path / "run",
        algo_config=settings.get(algo, {}),
    )  # fmt: skip
    assert set(run.evaluations[-1][1].returns) <= {-1.0, 0.0, 1.0, 1.5}
    obs, _ = make_one("Blackjack-v1").reset(seed=0)
    assert zoo.load(run.dir).act(obs).item() in (0, 1)


def test_what_envpool_has_otherwise_is_taken_from_gymnasium():
    pytest.importorskip("envpool")
    for env_id in ("Humanoid-v4", "HumanoidStandup-v4", "CarRacing-v3"):
        assert resolve_backend(EnvConfig(env_id)) == "gymnasium"
    assert resolve_backend(EnvConfig("Humanoid-v5")) == "envpool"


def test_an_environment_that_does_not_work_with_this_mujoco_says_so_in_one_line():
    pytest.importorskip("gymnasium_robotics")
    assert "env=FetchReach-v4 cannot be made: its package does not work with MuJoCo" in _refusal("FetchReach-v4")


def test_an_assertion_of_an_environments_own_is_passed_on(monkeypatch):
    def fails(*args, **kwargs):
        raise AssertionError(*says)

    monkeypatch.setattr(gymnasium, "make", fails)
    says = ["a map has three rows or more"]
    assert _refusal("Hopper-v5") == "env=Hopper-v5 cannot be made. a map has three rows or more"
    says = []
    assert _refusal("Hopper-v5") == "env=Hopper-v5 cannot be made. An assertion in it failed."


@pytest.mark.parametrize("algo", ["dqn", "ppo", "stream_q"])
def test_an_observation_of_one_number_is_a_vector_of_one(algo, tmp_path):
    class Number(gymnasium.Env):
        observation_space, action_space = Box(-1, 1, (), np.float32), Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.float32(0.5), {}

        def step(self, action):
            return np.float32(-0.5), 1.0, False, False, {}

    gymnasium.register("Number-v0", Number, max_episode_steps=10)
    settings = {"dqn": {"learning_starts": 8}, "ppo": {"num_steps": 16, "minibatches": 2}}.get(algo, {})
    run = zoo.train(
        algo, env="Number-v0", steps=32, eval_every=32, logger="none", run_dir=tmp_path / "run", algo_config=settings
    )  # fmt: skip
    assert run.evaluations[-1][1].returns.tolist() == [10] * 10
    assert zoo.load(run.dir).act(np.float32([0.5])).item() in (0, 1)
    del gymnasium.registry["Number-v0"]


def test_a_walkers_episode_does_not_depend_on_those_before():
    pytest.importorskip("Box2D")

    def episode(env: gymnasium.Env, seed: int) -> np.ndarray:
        env.reset(seed=seed)
        env.action_space.seed(seed)
        return np.stack([env.step(env.action_space.sample())[0] for _ in range(60)])

    used = make_one("BipedalWalker-v3")
    for seed in range(5):
        np.testing.assert_array_equal(episode(used, seed), episode(make_one("BipedalWalker-v3"), seed))
