"""Atari games: both backends have the same task, and how a lost life is handled in training."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from zoo.algos.dqn import DQN, Config
from zoo.envs import EnvConfig, make
from zoo.envs.atari import EpisodicLife, Lives, has_fire
from zoo.runs.evaluation import IDLE_STEPS, evaluate
from zoo.runs.stepper import EnvStepper
from zoo.spec import Spec

TIME_LIMIT = 27_000


@pytest.fixture(params=["gymnasium", "envpool"])
def backend(request):
    """Each backend in turn, if its packages for Atari games are installed."""
    pytest.importorskip({"gymnasium": "ale_py", "envpool": "envpool"}[request.param])
    return request.param


def game(name, backend, num_envs=1, training=False, sticky=0.0):
    return make(EnvConfig(f"ALE/{name}-v5", backend=backend, sticky=sticky), num_envs, training=training)


def play(envs, steps, seed=0, space_seed=0):
    """The first observations, and the results of a number of steps with random actions."""
    first, _ = envs.reset(seed=seed)
    rng = np.random.default_rng(space_seed)
    actions = rng.integers(envs.single_action_space.n, size=steps)
    return first, [envs.step(np.full(envs.num_envs, action)) for action in actions]


def test_both_backends_show_the_same_game():
    pytest.importorskip("ale_py")
    pytest.importorskip("envpool")
    # Ms. Pac-Man has no FIRE: games with the same number of initial no-ops are equal
    begun = {name: game("MsPacman", name, 12).reset(seed=0)[0][:, -1] for name in ("gymnasium", "envpool")}
    seeds = next((i, j) for i in range(12) for j in range(12) if (begun["gymnasium"][i] == begun["envpool"][j]).all())
    ours, theirs = (
        play(game("MsPacman", name, training=True), 700, [seed])[1] for name, seed in zip(begun, seeds, strict=True)
    )
    over = next(t for t in range(700) if ours[t][4]["zoo/game_over"][0])
    lives_lost = 0
    for t in range(over + 1):
        for a, b in zip(ours[t][1:4], theirs[t][1:4], strict=True):  # reward, terminated, truncated
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(ours[t][4]["zoo/game_over"], theirs[t][4]["zoo/game_over"])
        if 4 <= t < over:  # the observations of the first steps contain frames from before the game
            np.testing.assert_array_equal(ours[t][0], theirs[t][0])
        lives_lost += int(ours[t][2][0])
    assert lives_lost == 3
    assert sum(step[1][0] for step in ours[: over + 1]) > 100


def test_a_lost_life_changes_what_the_agent_sees_of_the_game_and_not_the_game(backend):
    first, steps = play(game("Breakout", backend, 2, training=True), 300)
    whole_first, whole_steps = play(game("Breakout", backend, 2), 300)
    np.testing.assert_array_equal(first, whole_first)
    lost = 0
    for (obs, reward, terminated, truncated, info), whole in zip(steps, whole_steps, strict=True):
        np.testing.assert_array_equal(obs, whole[0])
        np.testing.assert_array_equal(reward, whole[1])
        np.testing.assert_array_equal(info["zoo/game_over"], whole[2])  # here a game ends only with its last life
        assert not truncated.any()
        assert not whole[3].any()
        np.testing.assert_array_equal(info.get("_final_obs", np.zeros(2, bool)), terminated)
        for i in np.flatnonzero(terminated):
            expected = whole[4]["final_obs"][i] if whole[2][i] else obs[i]
            np.testing.assert_array_equal(info["final_obs"][i], expected)
        lost += terminated.sum()
    games = sum(whole[2].sum() for whole in whole_steps)
    assert games >= 1
    assert 5 * games <= lost < 5 * (games + 2)


def test_returns_and_lengths_are_those_of_whole_games(backend):
    episodes = []
    stepper = EnvStepper(
        game("Breakout", backend, 2, training=True),
        0,
        torch.device("cpu"),
        lambda *one: episodes.append(one[:2]),
    )
    expected, total, count, terminations = [], np.zeros(2), np.zeros(2), 0
    whole = game("Breakout", backend, 2)
    whole.reset(seed=0)
    for _ in range(300):
        action = stepper.random_action()
        transition = stepper.step(action)
        _, reward, terminated, _, _ = whole.step(action.numpy())
        total, count = total + reward, count + 1
        for i in np.flatnonzero(terminated):
            expected.append((total[i], count[i]))
            total[i] = count[i] = 0
        terminations += int(transition.terminated.sum())
    assert episodes == expected
    assert terminations > 3 * len(expected) > 0


def test_frames_stay_bytes_from_the_environment_to_the_transition(backend):
    stepper = EnvStepper(game("Pong", backend, 2), 0, torch.device("cpu"), lambda *episode: None)
    assert (stepper.spec.obs_shape, stepper.spec.obs_dtype) == ((4, 84, 84), "uint8")
    transition = stepper.step(stepper.random_action())
    assert transition.obs.dtype == transition.next_obs.dtype == stepper.obs.dtype == torch.uint8
    assert transition.reward.dtype == torch.float32
    assert int(transition.obs.max()) > 100
    np.testing.assert_array_equal(transition.next_obs[:, :3], transition.obs[:, 1:])  # the oldest frame is the first


def test_seeds_decide_how_a_game_begins(backend):
    envs = game("MsPacman", backend, 4)
    first, second = (envs.reset(seed=seed)[0] for seed in (5, 6))
    np.testing.assert_array_equal(first[1:, -1], second[:-1, -1])  # environment i is seeded seed + i
    assert not np.array_equal(first[0, -1], first[1, -1])
    np.testing.assert_array_equal(envs.reset(seed=2**40)[0], envs.reset(seed=2**40)[0])


@pytest.mark.slow
def test_a_game_that_does_not_end_is_truncated_after_its_time_limit(backend):
    envs = game("MontezumaRevenge", backend, training=True)
    envs.reset(seed=0)
    for step in range(1, TIME_LIMIT + 1):
        _, _, terminated, truncated, info = envs.step(np.zeros(1, int))  # nothing happens without actions
        assert not terminated[0]
        assert truncated[0] == info["zoo/game_over"][0] == (step == TIME_LIMIT)


def test_who_does_nothing_in_breakout_loses_every_life_since_fire_begins_each(backend):
    envs = game("Breakout", backend, 2)
    envs.reset(seed=0)
    over = np.zeros(2, bool)
    for _ in range(200):  # a ball that nobody returns is lost within 30 steps
        _, _, terminated, _, _ = envs.step(np.zeros(2, int))
        over |= terminated
    assert over.all()


@pytest.mark.slow
def test_the_games_without_fire_are_those_whose_action_1_is_another():
    ale_py = pytest.importorskip("ale_py")
    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    games = {}
    for env_id, spec in gymnasium.registry.items():
        if env_id.startswith("ALE/") and env_id.endswith("-v5"):
            ale = ale_py.ALEInterface()
            ale.loadROM(ale_py.roms.get_rom_path(spec.kwargs["game"]))
            games[env_id] = ale.getMinimalActionSet()[1] == ale_py.Action.FIRE
    assert {env_id: has_fire(env_id) for env_id in games} == games
    assert set(games.values()) == {False, True}


def test_actions_that_always_stick_are_never_taken(backend):
    def observed(sticky, actions):
        envs = game("Pong", backend, sticky=sticky)
        envs.reset(seed=0)
        return np.array([envs.step(np.array([action]))[0] for action in actions])

    up, down, both = [2] * 30, [3] * 30, [2, 3] * 30
    np.testing.assert_array_equal(observed(1.0, up), observed(1.0, down))
    assert not np.array_equal(observed(0.0, up), observed(0.0, down))
    sometimes = observed(0.25, both)
    np.testing.assert_array_equal(sometimes, observed(0.25, both))  # which actions stick depends on the seed
    assert not np.array_equal(sometimes, observed(0.0, both))


@pytest.mark.parametrize(
    ("env_id", "sticky", "says"),
    [
        ("ALE/Pong-v5", 1.5, "env.sticky=1.5 must lie between 0 and 1"),
        ("ALE/Pong-v5", -0.1, "env.sticky=-0.1 must lie between 0 and 1"),
        ("CartPole-v1", 0.25, "env.sticky=0.25: CartPole-v1 has no sticky actions, only Atari games have"),
    ],
)
def test_stickiness_that_cannot_be_had_is_refused(env_id, sticky, says):
    with pytest.raises(ValueError, match=says):
        EnvConfig(env_id, sticky=sticky)


def test_an_untrained_dqn_ends_its_games_of_breakout_in_evaluation(backend):
    torch.manual_seed(0)
    envs = game("Breakout", backend, 2)
    agent = DQN(Spec.of(envs.single_observation_space, envs.single_action_space), Config())
    episodes = evaluate(agent, envs, 0, explore=True)
    assert (episodes.lengths < IDLE_STEPS).all()
    assert not episodes.idle.any()


class Scripted(VectorEnv):
    """Two games with scripted lives, ends and truncations. Observations are the step, in the shape of frames."""

    #          lives after the step  terminated      truncated
    SCRIPT = (
        ((3, 2), (False, False), (False, False)),
        ((2, 3), (False, False), (False, True)),  # a life of the first; the second is truncated as it loses one
        ((2, 3), (False, False), (False, False)),
        ((0, 3), (False, False), (False, False)),  # the last life is lost, but the game not over yet
        ((3, 3), (True, False), (False, False)),
    )

    def __init__(self):
        self.num_envs, self.metadata = 2, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = Box(0, 255, (1,), np.uint8), Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)

    def reset(self, *, seed=None, options=None):
        self.count, self.actions = 0, []
        return np.zeros((2, 1), np.uint8), {"lives": np.array([3, 3])}

    def step(self, actions):
        lives, terminated, truncated = (np.array(column) for column in self.SCRIPT[self.count])
        self.count += 1
        self.actions.append(actions.tolist())
        info = {"lives": lives}
        if (terminated | truncated).any():
            info["final_obs"] = np.full((2, 1), 100 + self.count, np.uint8)
        return np.full((2, 1), self.count, np.uint8), np.ones(2), terminated, truncated, info


def test_a_life_ends_a_truncation_ends_a_game_and_the_last_life_ends_both():
    envs = EpisodicLife(Lives(Scripted(), fire=True))
    envs.reset()
    steps = [envs.step(np.zeros(2, int)) for _ in Scripted.SCRIPT]
    assert [step[2].tolist() for step in steps] == [[0, 1], [1, 0], [0, 0], [0, 0], [1, 0]]
    assert [step[3].tolist() for step in steps] == [[0, 0], [0, 1], [0, 0], [0, 0], [0, 0]]
    assert [step[4]["zoo/game_over"].tolist() for step in steps] == [[0, 0], [0, 1], [0, 0], [0, 0], [1, 0]]
    final = [[None if obs is None else obs[0] for obs in step[4].get("final_obs", [None, None])] for step in steps]
    assert final == [[None, 1], [2, 102], [None, None], [None, None], [105, None]]


def test_games_are_counted_across_their_lives():
    episodes = []
    stepper = EnvStepper(
        EpisodicLife(Lives(Scripted(), fire=True)),
        0,
        torch.device("cpu"),
        lambda *one: episodes.append(one[:2]),
    )
    for _ in Scripted.SCRIPT:
        stepper.step(stepper.random_action())
    assert episodes == [(2, 2), (5, 5)]


@pytest.mark.parametrize("training", [False, True])
def test_fire_begins_a_life_whatever_the_agent_does(training):
    script = Scripted()
    envs = Lives(script, fire=True)
    envs = EpisodicLife(envs) if training else envs
    envs.reset()
    for _ in Scripted.SCRIPT:
        envs.step(np.array([0, 0]))
    # not at the start of a game, which presses FIRE itself: the second one's in the third step, the first one's at last
    assert script.actions == [[0, 0], [0, 1], [1, 0], [0, 0], [0, 0]]


def test_games_without_fire_are_left_to_the_agent():
    script = Scripted()
    envs = Lives(script, fire=False)
    envs.reset()
    for _ in Scripted.SCRIPT:
        envs.step(np.array([0, 0]))
    assert script.actions == [[0, 0]] * len(Scripted.SCRIPT)
