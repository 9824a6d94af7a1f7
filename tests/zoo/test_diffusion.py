"""Diffusion: its schedule and steps against the formulas, and its samples against the data."""

import copy
import math

import numpy as np
import pytest
import torch

from zoo.models.diffusion import DiffusionPolicy, cosine_schedule


@pytest.fixture
def policy() -> DiffusionPolicy:
    torch.manual_seed(0)
    return DiffusionPolicy(3, (-2.0, 0.0), (2.0, 1.0), [16, 16], steps=10, lr=1e-3, decay_steps=100)


def test_schedule_is_the_cosine_one():
    def signal(t: float) -> float:
        return math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2

    expected = [min(1 - signal((i + 1) / 10) / signal(i / 10), 0.999) for i in range(10)]
    np.testing.assert_allclose(cosine_schedule(10), expected, rtol=1e-6)


def test_noise_added_step_by_step_has_the_marginals_that_are_drawn_at_once(policy):
    start = torch.tensor([[0.7, -0.4]])
    x, noise = start.expand(200_000, 2), torch.randn(200_000, 2)
    for i, beta in enumerate(policy.beta):
        x = (1 - beta).sqrt() * x + beta.sqrt() * torch.randn_like(x)  # DDPM, eq. 2
        step = torch.full((len(x),), i)
        at_once = policy.noised(start, step, noise)
        torch.testing.assert_close(x.mean(0), at_once.mean(0), atol=0.01, rtol=0)
        torch.testing.assert_close(x.var(0), at_once.var(0), atol=0.015, rtol=0)


def test_a_step_back_draws_from_the_posterior(policy):
    """q(x[t-1] | x[t], x[0]) by conditioning the joint Gaussian of x[t-1] and x[t], with a network that knows x[0]."""
    clean, i = 0.3, 6
    signal, before, beta = float(policy.signal[i]), float(policy.signal[i - 1]), float(policy.beta[i])
    x = 0.9
    covariance = math.sqrt(1 - beta) * (1 - before)  # of x[t-1] and x[t], given x[0]
    mean = math.sqrt(before) * clean + covariance / (1 - signal) * (x - math.sqrt(signal) * clean)
    variance = (1 - before) - covariance**2 / (1 - signal)

    drawn = []

    class Knows(torch.nn.Module):
        def forward(self, x_t, step, _):
            if int(step[0]) == i:
                x_t.fill_(x)
            elif int(step[0]) == i - 1:
                drawn.append(x_t.clone())
            at = policy.signal[step][:, None]
            return (x_t - at.sqrt() * clean) / (1 - at).sqrt()

    policy.average = Knows()
    action = policy.sample(torch.zeros(100_000, 3))
    assert float(drawn[0].mean()) == pytest.approx(mean, abs=0.005)
    assert float(drawn[0].var()) == pytest.approx(variance, rel=0.02)
    scaled = (action - policy.center) / policy.scale
    torch.testing.assert_close(
        scaled, torch.full_like(scaled, clean), atol=1e-4, rtol=0
    )  # the last step is without noise


def test_loss_is_the_error_of_the_noise_in_scaled_actions(policy):
    policy.normalizer.fit(torch.randn(500, 3) * torch.tensor([2.0, 0.1, 30.0]) + torch.tensor([5.0, 0.0, -40.0]))
    obs, action = torch.randn(64, 3), torch.rand(64, 2) * torch.tensor([4.0, 1.0]) - torch.tensor([2.0, 0.0])
    torch.manual_seed(5)
    loss = policy.loss(obs, action)
    torch.manual_seed(5)
    noise, step = torch.randn(64, 2), torch.randint(10, (64,))
    scaled = (action - torch.tensor([0.0, 0.5])) / torch.tensor([2.0, 0.5])
    signal = torch.cumprod(1 - cosine_schedule(10), 0)[step][:, None]
    seen = (obs - policy.normalizer.mean) / policy.normalizer.std
    found = policy.net(signal.sqrt() * scaled + (1 - signal).sqrt() * noise, step, seen)
    torch.testing.assert_close(loss, (found - noise).square().mean())


def test_drawing_weights_are_a_growing_average_of_those_that_learn(policy):
    obs, action = torch.randn(32, 3), torch.rand(32, 2)
    expected = [parameter.detach().clone() for parameter in policy.net.parameters()]
    for n in range(20):
        policy.update(obs, action)
        kept = min((1 + n) / (10 + n), 0.9999)
        for average, weight in zip(expected, policy.net.parameters(), strict=True):
            average.mul_(kept).add_((1 - kept) * weight.detach())
    for average, found in zip(expected, policy.average.parameters(), strict=True):
        torch.testing.assert_close(found, average, rtol=1e-4, atol=1e-6)


def test_actions_lie_within_the_bounds(policy):
    action = policy.sample(10 * torch.randn(1_000, 3))
    assert ((action >= torch.tensor([-2.0, 0.0])) & (action <= torch.tensor([2.0, 1.0]))).all()


@pytest.mark.slow
def test_draws_a_mixture_whose_parts_depend_on_the_observation():
    """At observation 0 there are two modes, one twice as frequent, and at 1 a third: means, spreads and shares."""
    torch.manual_seed(0)
    policy = DiffusionPolicy(1, (-1.0, -1.0), (1.0, 1.0), [64, 64], steps=10, lr=2e-3, decay_steps=2_500)
    spots = torch.tensor([[-0.6, 0.4], [0.5, -0.5], [0.0, 0.7]])

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        obs = torch.randint(2, (count, 1)).float()
        spot = torch.where(obs[:, 0] == 1, 2, (torch.rand(count) < 1 / 3).long())
        return obs, spots[spot] + 0.08 * torch.randn(count, 2)

    for _ in range(2_500):
        policy.update(*draw(256))
    action = policy.sample(torch.zeros(5_000, 1))
    nearest = torch.cdist(action, spots).argmin(1)
    shares = torch.bincount(nearest, minlength=3) / 5_000
    torch.testing.assert_close(shares, torch.tensor([2 / 3, 1 / 3, 0.0]), atol=0.05, rtol=0)
    for i in (0, 1):
        part = action[nearest == i]
        torch.testing.assert_close(part.mean(0), spots[i], atol=0.03, rtol=0)
        assert ((part.std(0) > 0.04) & (part.std(0) < 0.13)).all()
    action = policy.sample(torch.ones(2_000, 1))
    assert (torch.cdist(action, spots).argmin(1) == 2).float().mean() > 0.97


def test_a_restored_policy_draws_the_same(policy):
    for _ in range(3):
        policy.update(torch.randn(8, 3), torch.rand(8, 2))
    other = DiffusionPolicy(3, (-2.0, 0.0), (2.0, 1.0), [16, 16], steps=10, lr=1e-3, decay_steps=100)
    other.load_state_dict(copy.deepcopy(policy.state_dict()))
    drawn = []
    for each in (policy, other):
        torch.manual_seed(1)
        drawn.append(each.sample(torch.ones(4, 3)))
    assert torch.equal(*drawn)
