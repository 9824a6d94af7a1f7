"""The vectorized sums over time against loops, over random terminations and truncations."""

import numpy as np
import pytest
import torch

from zoo.returns import ReturnsSoFar, begin_episodes, discounted_sum, gae, return_so_far


def rollout(steps: int, envs: int, seed: int):
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, steps, envs)) < 0.15
    return *rng.normal(size=(3, steps, envs)), terminated, truncated


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 37, 128])
def test_discounted_sum_is_the_loop(steps):
    x, decay = np.random.default_rng(steps).uniform(-1, 1, (2, steps, 3))
    expected, following = np.zeros_like(x), np.zeros(3)
    for t in reversed(range(steps)):
        expected[t] = following = x[t] + decay[t] * following
    given = torch.from_numpy(x), torch.from_numpy(decay)
    np.testing.assert_allclose(discounted_sum(*given), expected, rtol=1e-12, atol=1e-12)
    assert np.array_equal(given[0], x)
    assert np.array_equal(given[1], decay)


@pytest.mark.parametrize("seed", range(5))
def test_gae_is_the_sum_of_equation_16_cut_at_episode_ends(seed):
    steps, envs, discount, lambda_ = 50, 4, 0.97, 0.9
    reward, value, next_value, terminated, truncated = rollout(steps, envs, seed)
    expected = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            for k in range(t, steps):  # (gamma lambda)^l delta_{t + l}, as long as the episode lasts
                delta = reward[k, n] - value[k, n] + (0 if terminated[k, n] else discount * next_value[k, n])
                expected[t, n] += (discount * lambda_) ** (k - t) * delta
                if terminated[k, n] or truncated[k, n]:
                    break
    tensors = (torch.from_numpy(x) for x in (reward, value, next_value, terminated, terminated | truncated))
    np.testing.assert_allclose(gae(*tensors, discount, lambda_), expected, rtol=1e-10, atol=1e-10)


def test_return_so_far_continues_across_rollouts_and_starts_anew_after_an_end():
    reward, _, _, terminated, truncated = rollout(60, 3, 7)
    ended = terminated | truncated
    expected, so_far = np.zeros_like(reward), np.zeros(3)
    for t in range(60):
        expected[t] = so_far = reward[t] + 0.9 * so_far
        so_far = np.where(ended[t], 0, so_far)
    before, parts = 0.0, []
    for start in range(0, 60, 20):
        part_reward, part_ended = (torch.from_numpy(x[start : start + 20]) for x in (reward, ended))
        parts.append(return_so_far(part_reward, part_ended, 0.9, before))
        before = 0.9 * parts[-1][-1] * ~part_ended[-1]
    np.testing.assert_allclose(torch.cat(parts), expected, rtol=1e-12, atol=1e-12)


def test_returns_so_far_go_on_from_one_rollout_to_the_next_unless_all_episodes_begin_anew():
    returns, ones = ReturnsSoFar(0.5), torch.ones(2, 2)
    first_ended = torch.tensor([[False, False], [False, True]])
    assert returns.update(ones, first_ended).tolist() == [[1.0, 1.0], [1.5, 1.5]]
    assert returns.update(ones, first_ended).tolist() == [[1.75, 1.0], [1.875, 1.5]]
    begin_episodes(torch.nn.ModuleList([returns]))
    assert returns.update(ones, first_ended).tolist() == [[1.0, 1.0], [1.5, 1.5]]
