"""Evaluation: one episode per environment, from fixed seeds."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from zoo.agent import Agent
from zoo.envs import EnvConfig, make
from zoo.errors import RunError
from zoo.runs.evaluation import IDLE_STEPS, evaluate, seeds
from zoo.spec import Spec


class Sine(Agent):
    """A policy that depends on the whole observation, so that a wrong observation gives a wrong return."""

    def __init__(self, spec):
        super().__init__()
        self.spec = spec
        self.scale = torch.nn.Parameter(torch.tensor(0.7))

    def act(self, obs, explore=False):
        return torch.sin(self.scale * obs.sum(1, keepdim=True)).expand(-1, self.spec.action_dim)


def _evaluate(env, num_envs, seed):
    envs = make(env, num_envs)
    return evaluate(Sine(Spec.of(envs.single_observation_space, envs.single_action_space)), envs, seed)


def test_evaluation_plays_exactly_the_first_episode_of_every_environment(counting):
    episodes = _evaluate(EnvConfig(counting), 12, seed=3)
    for i, seed in enumerate(seeds("evaluation", 3, count=12)):
        env = gymnasium.make(counting)
        obs, _ = env.reset(seed=seed)
        score, steps, ended = 0.0, 0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(np.sin(np.float32(0.7) * obs.sum(keepdims=True)))
            score, steps, ended = score + reward, steps + 1, terminated or truncated
        assert episodes.lengths[i] == steps
        assert episodes.returns[i] == pytest.approx(score, rel=1e-5, abs=1e-5)
    assert len(set(episodes.lengths)) > 2  # short and long episodes count equally


def test_no_two_runs_share_a_start_and_none_is_trained_on_what_it_is_evaluated_with():
    given = [seeds("evaluation", seed, count=20) for seed in range(20)]
    given += [seeds("training", seed, done, count=8) for seed in range(20) for done in (0, 1, 10_000)]
    assert len({seed for some in given for seed in some}) == 20 * 20 + 20 * 3 * 8


def test_evaluation_from_the_same_seed_gives_the_same_returns(backend):
    env = EnvConfig("Hopper-v5", backend=backend)
    first, other = _evaluate(env, 3, seed=0), _evaluate(env, 3, seed=100)
    np.testing.assert_array_equal(_evaluate(env, 3, seed=0).returns, first.returns)
    assert not np.array_equal(other.returns, first.returns)
    assert len(set(first.returns)) == 3  # three different starts


def test_evaluating_twice_on_the_same_environments_gives_the_same_returns(backend):
    envs = make(EnvConfig("Hopper-v5", backend=backend), 2)
    agent = Sine(Spec.of(envs.single_observation_space, envs.single_action_space))
    first, second = evaluate(agent, envs, seed=5), evaluate(agent, envs, seed=5)
    np.testing.assert_array_equal(first.returns, second.returns)
    np.testing.assert_array_equal(first.lengths, second.lengths)


def test_an_episode_is_a_success_if_any_of_its_own_steps_is(succeeding):
    episodes = _evaluate(EnvConfig(succeeding), 30, seed=0)
    lengths = [int(gymnasium.make(succeeding).reset(seed=s)[0][1]) for s in seeds("evaluation", 0, count=30)]
    assert episodes.successes.tolist() == [length > 5 or length == 3 for length in lengths]
    assert {3, 4, 5} <= set(lengths)  # a success in the last step; no success, even if the next episode has one
    one = _evaluate(EnvConfig(succeeding), 1, seed=0)
    assert one.successes.tolist() == episodes.successes[:1].tolist()


def test_where_the_environment_does_not_speak_of_success_there_is_none(counting):
    assert _evaluate(EnvConfig(counting), 2, seed=0).successes is None


def test_an_agent_observes_what_came_of_every_action_from_the_beginning(counting):
    class Listening(Sine):
        def begin(self, num_envs):
            self.received = [num_envs]

        def observe(self, obs, action, reward):
            self.received.append((obs.clone(), action.clone(), reward.clone()))

    envs = make(EnvConfig(counting), 3)
    agent = Listening(Spec.of(envs.single_observation_space, envs.single_action_space))
    episodes = evaluate(agent, envs, seed=0)
    count, *steps = agent.received
    assert count == 3
    assert len(steps) == episodes.lengths.max()
    for i, (obs, action, reward) in enumerate(steps):
        running = episodes.lengths > i
        assert (obs[running, 0] == i).all()
        torch.testing.assert_close(action, torch.sin(0.7 * obs.sum(1, keepdim=True)))
        torch.testing.assert_close(reward[running], action[running, 0] * (i + 1))


class Noisy(Sine):
    """The same, with noise when it explores."""

    def act(self, obs, explore=False):
        action = super().act(obs)
        return action + 0.1 * torch.randn_like(action) if explore else action


def test_an_evaluation_has_random_numbers_of_its_own_that_follow_from_the_seed(counting):
    envs = make(EnvConfig(counting), 4)
    agent = Noisy(Spec.of(envs.single_observation_space, envs.single_action_space))
    torch.manual_seed(0)
    expected = torch.rand(5)
    torch.manual_seed(0)
    first = evaluate(agent, envs, 3, explore=True)
    assert torch.equal(torch.rand(5), expected)  # training continues as if there had been no evaluation
    again = evaluate(agent, envs, 3, explore=True)
    np.testing.assert_array_equal(again.returns, first.returns)
    assert not np.array_equal(evaluate(agent, envs, 3).returns, first.returns)


class Lives(VectorEnv):
    """Three games of `length` steps with three lives. `events` says in which steps a game scores or loses a life."""

    def __init__(self, length, events):
        self.num_envs, self.metadata = 3, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = Box(0, 1, (1,)), Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 3)
        self.action_space = batch_space(self.single_action_space, 3)
        self.length, self.events = length, events

    def reset(self, *, seed=None, options=None):
        self.count, self.lives = 0, np.full(3, 3)
        return np.zeros((3, 1), np.float32), {"zoo/lives": self.lives.copy()}

    def step(self, actions):
        self.count += 1
        what = [events.get(self.count, "") for events in self.events]
        self.lives = self.lives - np.array([event == "loses" for event in what])
        reward = np.array([float(event == "pays") for event in what])
        over = np.full(3, self.count == self.length)
        return np.zeros((3, 1), np.float32), reward, over, np.zeros(3, bool), {"zoo/lives": self.lives.copy()}


class Idle(Agent):
    spec = Spec((1,), num_actions=2)

    def __init__(self):
        super().__init__()
        self.parameter = torch.nn.Parameter(torch.zeros(()))

    def act(self, obs, explore=False):
        return torch.zeros(len(obs), dtype=torch.int64)


def test_a_game_is_over_in_which_nothing_is_scored_or_lost_for_too_long():
    events = [{}, {1_000: "pays"}, {1_000: "loses", 2_000: "pays"}]
    episodes = evaluate(Idle(), Lives(10_000, events), seed=0)
    assert episodes.lengths.tolist() == [IDLE_STEPS, 1_000 + IDLE_STEPS, 2_000 + IDLE_STEPS]
    assert episodes.returns.tolist() == [0, 1, 1]
    assert episodes.idle.tolist() == [True, True, True]


def test_a_game_that_ends_in_time_was_not_idle():
    episodes = evaluate(Idle(), Lives(IDLE_STEPS, [{}, {5: "pays"}, {}]), seed=0)
    assert episodes.lengths.tolist() == [IDLE_STEPS] * 3
    assert episodes.idle.tolist() == [False] * 3


def test_idleness_is_of_games_with_lives_alone(counting):
    assert _evaluate(EnvConfig(counting), 2, seed=0).idle is None


def test_an_episode_without_an_end_is_a_failure_that_says_what_to_type(monkeypatch):
    monkeypatch.setattr("zoo.runs.evaluation.LONGEST", 100)
    assert evaluate(Idle(), Lives(100, [{}, {}, {}]), seed=0).lengths.tolist() == [100] * 3
    with pytest.raises(RunError, match=r"not ended after 100 steps.*limit: env\.max_episode_steps=N"):
        evaluate(Idle(), Lives(101, [{}, {}, {}]), seed=0)
