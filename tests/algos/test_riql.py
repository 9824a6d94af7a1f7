"""RIQL's differences from IQL: the quantile against NumPy, the Huber loss against PyTorch. Without them it is IQL."""

import numpy as np
import pytest
import torch
from plain import shake

from zoo.algos import iql, riql


def make(spec, **settings) -> riql.RIQL:
    torch.manual_seed(1)
    agent = riql.RIQL(spec, riql.Config(hidden=[16, 16], **settings)).double()
    shake(agent.target_critic, agent.critic, agent.value, agent.actor.net, by=0.6)
    return agent


@pytest.mark.parametrize("quantile", [0.01, 0.1, 0.25, 0.99])
def test_the_target_is_numpys_quantile_of_the_critics(spec, make_batch, network, quantile):
    agent, batch = make(spec, quantile=quantile), make_batch()
    values = network(agent.target_critic, np.concatenate([batch.obs, batch.action], -1))[..., 0]
    np.testing.assert_allclose(agent.target_q(batch).detach(), np.quantile(values, quantile, axis=0), rtol=1e-9)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 3.0])
def test_huber_is_pytorchs_scaled(sigma):
    x = torch.linspace(-200, 200, 4_001, dtype=torch.float64)
    bend = 1 / sigma**2
    expected = torch.nn.functional.huber_loss(x, torch.zeros_like(x), reduction="none", delta=bend) / bend
    torch.testing.assert_close(riql.huber(x, sigma), expected, rtol=1e-12, atol=0)


def test_critic_loss_is_equation_8_with_clipped_targets(spec, make_batch, network):
    agent, batch = make(spec, sigma=2.0, target_bounds=[-0.5, 0.7]), make_batch()
    next_value = network(agent.value, batch.next_obs.numpy())[:, 0]
    target = np.clip(batch.reward.numpy() + 0.99 * np.where(batch.terminated, 0, next_value), -0.5, 0.7)
    error = np.abs(target - network(agent.critic, np.concatenate([batch.obs, batch.action], -1))[..., 0])
    expected = np.where(error < 0.25, 0.5 * (2 * error) ** 2, error - 0.125).mean()
    assert agent.update(batch)["critic_loss"].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("head", ["two_hot", "c51"])
def test_over_bins_the_critics_minimize_the_cross_entropy_of_clipped_targets(spec, make_batch, network, head):
    """A target's probability is on the two bins next to it. `target_bounds` clips targets, not values."""
    bins = np.linspace(-2, 2, 9)
    settings = {"value_head": head, "v_min": -2.0, "v_max": 2.0, "num_bins": 9, "target_bounds": [-0.6, 0.9]}
    agent, batch = make(spec, **settings), make_batch()
    next_value = network(agent.value, batch.next_obs.numpy())[:, 0]
    target = batch.reward.numpy() + 0.99 * np.where(batch.terminated, 0, next_value)
    assert (target < -0.6).any()
    assert (target > 0.9).any()
    out = network(agent.critic, np.concatenate([batch.obs, batch.action], -1))  # [K, B, bins]
    losses, values = [], []
    for member in out:
        for logits, y in zip(member, np.clip(target, -0.6, 0.9), strict=True):
            probabilities = np.exp(logits) / np.exp(logits).sum()
            below = int(np.flatnonzero(bins <= y)[-1])
            share = (y - bins[below]) / 0.5
            losses.append(-(1 - share) * np.log(probabilities[below]) - share * np.log(probabilities[below + 1]))
            values.append(probabilities @ bins)
    metrics = agent.update(batch)
    assert metrics["critic_loss"].item() == pytest.approx(np.mean(losses), rel=1e-6)
    assert metrics["q"].item() == pytest.approx(np.mean(values), rel=1e-6)
    assert metrics["clipped_targets"].item() == 0  # the bounds are within the bins


def test_two_critics_their_minimum_and_squares_make_iql(spec, make_batch):
    # sigma so small that every error is in the quadratic part: (sigma x)^2 / 2, a multiple of the squared error
    robust = make(spec, num_critics=2, quantile=1e-12, sigma=1e-3, target_bounds=[-1e9, 1e9])
    torch.manual_seed(1)
    plain = iql.IQL(spec, iql.Config(hidden=[16, 16], policy="deterministic")).double()
    for name in ("actor", "value", "critic", "target_critic"):
        getattr(plain, name).load_state_dict(getattr(robust, name).state_dict())
    batch = make_batch()
    ours, theirs = robust.update(batch), plain.update(batch)
    for name in ("value_loss", "actor_loss", "advantage"):
        assert ours[name].item() == pytest.approx(theirs[name].item(), rel=1e-9)
    assert ours["critic_loss"].item() == pytest.approx(theirs["critic_loss"].item() * 1e-6 / 2, rel=1e-6)
