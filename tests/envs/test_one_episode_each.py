"""Evaluation: one episode an environment, from fixed seeds."""

import gymnasium
import numpy as np
import pytest
import torch

from zoo.agent import Agent
from zoo.envs import EnvConfig, Spec, make
from zoo.evaluation import evaluate, seeds


class Sine(Agent):
    """Acts on all that it observes, so that a wrong observation gives a wrong return."""

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
    assert len(set(episodes.lengths)) > 2  # short and long ones count alike


def test_no_two_runs_share_a_start_and_none_is_trained_on_what_it_is_evaluated_with():
    given = [seeds("evaluation", seed, count=20) for seed in range(20)]
    given += [seeds("training", seed, done, count=8) for seed in range(20) for done in (0, 1, 10_000)]
    assert len({seed for some in given for seed in some}) == 20 * 20 + 20 * 3 * 8


def test_evaluation_from_the_same_seed_gives_the_same_returns(backend):
    env = EnvConfig("Hopper-v5", backend=backend)
    first, other = _evaluate(env, 3, seed=0), _evaluate(env, 3, seed=100)
    np.testing.assert_array_equal(_evaluate(env, 3, seed=0).returns, first.returns)
    assert not np.array_equal(other.returns, first.returns)
    assert len(set(first.returns)) == 3  # three starts, not one thrice


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
    assert {3, 4, 5} <= set(lengths)  # a success in the very last step; none, whatever the next episode does


def test_where_the_environment_does_not_speak_of_success_there_is_none(counting):
    assert _evaluate(EnvConfig(counting), 2, seed=0).successes is None


def test_an_agent_is_told_what_came_of_every_action_from_the_beginning(counting):
    class Listening(Sine):
        def begin(self, num_envs):
            self.told = [num_envs]

        def observe(self, obs, action, reward):
            self.told.append((obs.clone(), action.clone(), reward.clone()))

    envs = make(EnvConfig(counting), 3)
    agent = Listening(Spec.of(envs.single_observation_space, envs.single_action_space))
    episodes = evaluate(agent, envs, seed=0)
    count, *steps = agent.told
    assert count == 3
    assert len(steps) == episodes.lengths.max()
    for i, (obs, action, reward) in enumerate(steps):
        running = episodes.lengths > i
        assert (obs[running, 0] == i).all()
        torch.testing.assert_close(action, torch.sin(0.7 * obs.sum(1, keepdim=True)))
        torch.testing.assert_close(reward[running], action[running, 0] * (i + 1))
