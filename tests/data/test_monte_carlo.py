"""Returns-to-go of datasets and of a run's own episodes, against explicit sums."""

import numpy as np
import pytest
import torch

from zoo.data.arrays import Arrays
from zoo.data.batch import Transition
from zoo.data.buffers import ReplayBuffer
from zoo.data.dataset import Dataset
from zoo.data.monte_carlo import MonteCarloReturns, returns_to_go
from zoo.spec import Spec

CPU = torch.device("cpu")
SPEC = Spec((1,), (-1.0,), (1.0,))
GAMMA = 0.9


def written_out(rewards: list[float], terminated: bool) -> list[float]:
    if not terminated and len(set(rewards)) == 1:
        return [rewards[0] / (1 - GAMMA)] * len(rewards)
    return [sum(GAMMA**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]


def episodes_of(seed: int) -> list[tuple[list[float], bool]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, 30)
    missed = [([-1.0] * 4, False)]  # the goal of a sparse task
    return [(rng.choice([-1.0, 0.0, 0.5], length).tolist(), bool(rng.random() < 0.5)) for length in lengths] + missed


def columns(episodes) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    reward = torch.tensor([r for rewards, _ in episodes for r in rewards])
    ended = torch.tensor([t == len(rewards) - 1 for rewards, _ in episodes for t in range(len(rewards))])
    terminated = torch.tensor([end for _, end in episodes]).repeat_interleave(
        torch.tensor([len(rewards) for rewards, _ in episodes])
    )
    return reward, terminated & ended, ended


def test_returns_are_the_discounted_rewards_up_to_the_end_of_the_episode():
    episodes = episodes_of(0)
    expected = [value for episode in episodes for value in written_out(*episode)]
    np.testing.assert_allclose(returns_to_go(*columns(episodes), GAMMA), expected, rtol=1e-5, atol=1e-6)


def test_a_goal_that_was_missed_is_missed_for_ever_and_one_that_was_reached_is_not():
    reward, terminated, ended = columns([([-1.0] * 3, False), ([-1.0, -1.0, 0.0], True), ([-1.0, -1.0], True)])
    found = returns_to_go(reward, terminated, ended, GAMMA).tolist()
    assert found == pytest.approx([-10, -10, -10, -1.9, -1, 0, -1.9, -1], rel=1e-5)


def test_undiscounted_returns_are_sums():
    reward, terminated, ended = columns([([-1.0] * 3, False)])
    assert returns_to_go(reward, terminated, ended, 1.0).tolist() == [-3, -2, -1]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_own_returns_follow_the_datasets_and_are_known_when_their_episode_has_ended(num_envs):
    episodes = episodes_of(1)
    reward, terminated, ended = columns(episodes)
    arrays = Arrays(
        *(x.numpy() for x in (reward[:, None], reward[:, None].clamp(-1, 1), reward, reward[:, None], terminated)),
        (ended & ~terminated).numpy(),
    )
    data = Dataset(arrays, SPEC, CPU, report=lambda _: None)
    returns = MonteCarloReturns(data, GAMMA)
    np.testing.assert_allclose(
        returns.all, [value for episode in episodes for value in written_out(*episode)], rtol=1e-5, atol=1e-6
    )
    steps, rng = 40, np.random.default_rng(2)
    buffer = ReplayBuffer(steps * num_envs, SPEC, CPU)
    by_episode = MonteCarloReturns(data, GAMMA)  # reads only the latest steps
    returns.take_in(buffer)
    by_episode.take_in(buffer)
    assert torch.isinf(returns.all[len(data) :]).all()
    running = [[] for _ in range(num_envs)]  # for each environment, the steps and rewards of its episode
    expected = np.full((steps, num_envs), -np.inf)
    for step in range(steps - 5):
        r = rng.choice([-1.0, 1.0], num_envs).astype(np.float32)
        over = rng.random(num_envs) < 0.2
        truncated = over & (rng.random(num_envs) < 0.5)
        obs = torch.zeros(num_envs, 1)
        buffer.add(
            Transition(obs, obs, torch.from_numpy(r), obs, *map(torch.from_numpy, (over & ~truncated, truncated)))
        )
        for env in range(num_envs):
            running[env].append((step, float(r[env])))
            if over[env]:
                values = written_out([reward for _, reward in running[env]], not truncated[env])
                expected[[step for step, _ in running[env]], env] = values
                running[env] = []
        returns.take_in(buffer)
        if over.any():
            by_episode.take_in(buffer, over)
        if step == 20:  # a resumed run
            by_episode = MonteCarloReturns(data, GAMMA)
            by_episode.take_in(buffer)
        torch.testing.assert_close(by_episode.all, returns.all)
        np.testing.assert_allclose(returns.all[len(data) :], expected.flatten(), rtol=1e-5, atol=1e-6)
    batch = data.sample(16)
    assert torch.equal(returns.add_to(batch).return_to_go, returns.all[batch.index])
    own = buffer.sample(16)
    own = own._replace(index=own.index + len(data))
    np.testing.assert_allclose(returns.add_to(own).return_to_go, expected.flatten()[own.index - len(data)], rtol=1e-5)
