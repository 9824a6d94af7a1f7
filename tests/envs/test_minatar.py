"""MinAtar's games as Gymnasium environments."""

import gymnasium
import numpy as np
import pytest
import torch

from zoo.data.buffers import ReplayBuffer
from zoo.envs import EnvConfig, make
from zoo.envs.minatar import GAMES
from zoo.runs.stepper import EnvStepper
from zoo.spec import Spec

minatar = pytest.importorskip("minatar")


def raw_game(env):
    """The game behind a Gymnasium environment."""
    return env.unwrapped._game


@pytest.mark.parametrize(
    ("name", "kinds"), [("asterix", 4), ("breakout", 4), ("freeway", 7), ("seaquest", 10), ("spaceinvaders", 6)]
)
def test_an_observation_has_the_kinds_of_things_first(name, kinds):
    env = gymnasium.make(f"minatar/{name}")
    assert Spec.of(env.observation_space, env.action_space) == Spec((kinds, 10, 10), num_actions=6, obs_dtype="uint8")
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(20):
        state = raw_game(env).state()
        places = {(kind, row, column) for row, column, kind in np.argwhere(state).tolist()}
        assert {tuple(place) for place in np.argwhere(obs == 1).tolist()} == places
        assert obs.sum() == len(places) > 0
        obs, _, terminated, _, _ = env.step(env.action_space.sample())
        if terminated:
            obs, _ = env.reset()
    assert set(GAMES) == {"asterix", "breakout", "freeway", "seaquest", "spaceinvaders"}


def test_the_game_is_minatars_own():
    env, game = gymnasium.make("minatar/breakout"), minatar.Environment("breakout")
    env.reset(seed=4)
    game.seed(int(np.random.Generator(np.random.PCG64(4)).integers(2**32)))  # how Gymnasium seeds an environment
    game.reset()
    np.testing.assert_array_equal(raw_game(env).state(), game.state())
    assert game.sticky_action_prob == 0.1
    rng = np.random.default_rng(0)
    total = 0
    for _ in range(200):
        action = int(rng.integers(6))
        obs, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated) == game.act(action)
        assert not truncated
        np.testing.assert_array_equal(obs.transpose(1, 2, 0), game.state())
        total += reward
        if terminated:
            env.reset()
            game.reset()
    assert total > 0


def test_an_episode_is_truncated_after_ten_thousand_steps():
    env = gymnasium.make("minatar/freeway")
    env.reset(seed=0)
    raw_game(env).act = lambda action: (0, False)  # no MinAtar game lasts so long
    for step in range(1, 10_001):
        truncated = env.step(0)[3]
        assert truncated == (step == 10_000)


def test_no_final_observation_is_lost_and_none_is_a_reset():
    stepper = EnvStepper(make(EnvConfig("minatar/breakout"), 3), 0, torch.device("cpu"), lambda *episode: None)
    buffer = ReplayBuffer(300, stepper.spec, stepper.device)
    for _ in range(100):
        before = [raw_game(env) for env in stepper.envs.envs]
        transition = stepper.step(stepper.random_action())
        buffer.add(transition)
        for i, game in enumerate(before):
            now = torch.as_tensor(game.state().transpose(2, 0, 1))
            ended = bool(transition.terminated[i])
            assert torch.equal(stepper.obs[i].bool(), now)
            assert torch.equal(transition.next_obs[i].bool(), now) != ended
    assert buffer.terminated.any()
    assert buffer.size == 300


def test_an_episode_does_not_depend_on_the_one_before():
    """A step may repeat the previous action, but the first step of an episode has no previous action."""
    env = gymnasium.make("minatar/breakout")

    def played(seed):
        seen = [env.reset(seed=seed)[0], *(env.step(1)[0] for _ in range(3))]
        return np.stack(seen)

    fresh = []
    for seed in range(60):
        env = gymnasium.make("minatar/breakout")
        fresh.append(played(seed))
    for seed in range(60):
        env.reset(seed=1_000 + seed)
        for _ in range(3):
            env.step(3)
        np.testing.assert_array_equal(played(seed), fresh[seed])
