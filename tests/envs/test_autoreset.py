"""Autoreset of Gymnasium's environments, tested with an environment that counts its steps."""

import numpy as np
import pytest
import torch

from zoo.data.buffers import ReplayBuffer
from zoo.envs import EnvConfig, make
from zoo.errors import RunError
from zoo.runs.stepper import EnvStepper

NUM_ENVS, STEPS, TIME_LIMIT = 5, 60, 8
pytestmark = pytest.mark.filterwarnings("ignore:.*share an object")  # Gymnasium warns of `in_place`


@pytest.fixture(params=["counting", "in_place"])
def experience(request):
    """The content of a buffer after 60 steps of 5 environments, `[60, 5, ...]`, and the reported episodes."""
    episodes = []
    envs = make(EnvConfig(request.getfixturevalue(request.param)), NUM_ENVS)
    stepper = EnvStepper(envs, 0, torch.device("cpu"), lambda score, length, _: episodes.append((score, length)))
    buffer = ReplayBuffer(STEPS * NUM_ENVS, stepper.spec, stepper.device)
    for _ in range(STEPS):
        buffer.add(stepper.step(stepper.random_action()))
    assert buffer.size == STEPS * NUM_ENVS
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    rows = {name: getattr(buffer, name).unflatten(0, (STEPS, NUM_ENVS)).numpy() for name in names}
    return rows, episodes


def test_every_step_is_one_transition_and_none_is_a_reset(experience):
    rows, _ = experience
    count, length = rows["next_obs"][..., 0], rows["next_obs"][..., 1]
    np.testing.assert_array_equal(count, rows["obs"][..., 0] + 1)
    np.testing.assert_array_equal(length, rows["obs"][..., 1])
    np.testing.assert_allclose(rows["reward"], rows["action"][..., 0] * count, rtol=1e-6)


def test_terminated_and_truncated_are_distinguished_also_where_both_are_true(experience):
    rows, _ = experience
    count, length = rows["next_obs"][..., 0], rows["next_obs"][..., 1]
    np.testing.assert_array_equal(rows["terminated"], count == length)
    np.testing.assert_array_equal(rows["truncated"], count == TIME_LIMIT)
    seen = {(bool(a), bool(b)) for a, b in zip(rows["terminated"].flat, rows["truncated"].flat, strict=True)}
    assert seen == {(False, False), (True, False), (False, True), (True, True)}


def test_final_observation_of_an_episode_is_never_lost(experience):
    rows, _ = experience
    ended = rows["terminated"] | rows["truncated"]
    np.testing.assert_array_equal(rows["next_obs"][ended][:, 0], np.minimum(rows["obs"][ended][:, 1], TIME_LIMIT))
    np.testing.assert_array_equal(rows["obs"][1:][ended[:-1]][:, 0], 0)  # the next row starts the next episode
    np.testing.assert_array_equal(rows["obs"][1:][~ended[:-1]], rows["next_obs"][:-1][~ended[:-1]])


def test_every_finished_episode_is_reported_once_with_its_return_and_length(experience):
    rows, episodes = experience
    expected, rewards = [], [[] for _ in range(NUM_ENVS)]
    for step in range(STEPS):
        for i in range(NUM_ENVS):
            rewards[i].append(rows["reward"][step, i])
            if rows["terminated"][step, i] or rows["truncated"][step, i]:
                expected.append((sum(rewards[i]), len(rewards[i])))
                rewards[i] = []
    np.testing.assert_allclose(episodes, expected, rtol=1e-5, atol=1e-5)


def test_random_actions_are_not_the_environments_random_numbers():
    """Hopper's start comes only from its generator, and the first random action from that of the action space."""
    for seed in (7, [7, 8]):
        envs = make(EnvConfig("Hopper-v5", backend="gymnasium"), 2)
        stepper = EnvStepper(envs, seed, torch.device("cpu"), lambda *episode: None)
        start = [np.random.default_rng(one).uniform(-1, 1, 3) for one in (7, 8)]
        np.testing.assert_allclose(stepper.obs[:, 1] / 5e-3, [one[2] for one in start], rtol=1e-4)  # as it is drawn
        assert not np.isclose(stepper.random_action().numpy().flatten(), np.concatenate(start)[:, None]).any()


@pytest.mark.parametrize("scale", [1e39, -1e39])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the conversion to float32
def test_a_reward_that_is_not_finite_once_it_is_scaled_is_not_learned_from(counting, scale):
    envs = make(EnvConfig(counting), NUM_ENVS)
    stepper = EnvStepper(envs, 0, torch.device("cpu"), lambda *episode: None, reward_scale=scale)
    with pytest.raises(RunError, match="NaN or infinite"):
        stepper.step(stepper.random_action())
