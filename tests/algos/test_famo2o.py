"""FamO2O: its parts against naive loops, and a balance policy that finds the better policies of the family."""

import copy
import math

import numpy as np
import pytest
import torch
from plain import shake

from zoo.algos.famo2o import Config, FamO2O, encoded
from zoo.data.batch import Batch
from zoo.spec import Spec


def make(spec, **settings) -> FamO2O:
    torch.manual_seed(1)
    agent = FamO2O(spec, Config(hidden=[16, 16], **settings)).double()
    shake(agent.target_critic, agent.critic, agent.value, agent.actor, agent.balance, by=0.4)
    return agent


def test_b_is_shown_as_sines_and_cosines_of_three_wavelengths():
    b = 2.7
    expected = [f(b / 10_000 ** (2 * i / 6)) for i in range(3) for f in (math.sin, math.cos)]
    np.testing.assert_allclose(encoded(torch.tensor([[b]], dtype=torch.float64))[0], expected)


def test_the_balance_covers_the_range_of_the_family(spec):
    agent = make(spec, lowest=2.0, highest=8.0)
    b, _ = agent.balance.sample(3 * torch.randn(500, spec.obs_dim, dtype=torch.float64))
    assert 2 <= b.min() < 2.1
    assert 7.9 < b.max() <= 8
    assert agent.balance.squash(torch.zeros(1)).item() == 5


def test_the_family_clones_actions_by_their_own_temperature(spec, make_batch):
    agent, batch = make(spec, max_weight=20.0), make_batch(0)
    b = torch.linspace(1, 5, len(batch.reward), dtype=torch.float64)[:, None]
    target_q = agent.least_value(batch.obs, batch.action)
    loss, advantage = agent.actor_loss(batch, target_q, b)
    losses, clipped = [], 0
    for i, (obs, action) in enumerate(zip(batch.obs, batch.action, strict=True)):
        q = min(agent.target_critic(obs[None], action[None])[:, 0, 0].tolist())
        a = q - agent.value(obs).item()
        clipped += math.exp(b[i].item() * a) > 20
        inputs = torch.cat([obs, encoded(b[i])])[None]
        losses.append(-min(math.exp(b[i].item() * a), 20) * agent.actor.log_prob(inputs, action[None]).item())
        assert advantage[i].item() == pytest.approx(a)
    assert 0 < clipped < len(losses)
    assert loss.item() == pytest.approx(np.mean(losses))


def test_the_balance_climbs_the_target_critics_through_the_family(spec, make_batch):
    agent, batch = make(spec), make_batch(0)
    with torch.no_grad():
        agent.log_alpha.fill_(math.log(0.3))
    torch.manual_seed(2)
    loss, b, log_prob = agent.balance_loss(batch)
    (gradient,) = torch.autograd.grad(loss, agent.balance.net[0].weight)
    torch.manual_seed(2)
    mean, log_std = agent.balance(batch.obs)
    x = mean + log_std.exp() * torch.randn_like(mean)
    expected_b = 1 + (torch.tanh(x) + 1) / 2 * 4
    density = torch.distributions.Normal(mean, log_std.exp()).log_prob(x) - (2 * (1 - torch.tanh(x) ** 2)).log()
    inputs = torch.cat([batch.obs, encoded(expected_b)], -1)
    mean, std = agent.actor.mean(inputs), agent.actor.scale * agent.actor.log_std.clamp(-5, 2).exp()
    action = agent.actor.clip(mean + std * torch.randn_like(mean))
    q = agent.target_critic(batch.obs, action).squeeze(-1)
    expected = (0.3 * density[:, 0] - torch.minimum(q[0], q[1])).mean()
    assert loss.item() == pytest.approx(expected.item())
    np.testing.assert_allclose(b, expected_b.detach())
    np.testing.assert_allclose(log_prob, density[:, 0].detach())
    np.testing.assert_allclose(gradient, torch.autograd.grad(expected, agent.balance.net[0].weight)[0], atol=1e-12)


def test_critics_and_family_see_the_value_just_updated(spec, make_batch):
    agent, batch = make(spec), make_batch(0)
    before = copy.deepcopy(agent)
    metrics = agent.update(batch)
    target_q = before.least_value(batch.obs, batch.action)
    advantage = target_q - before.value(batch.obs).squeeze(-1)
    weight = np.where(advantage.detach() > 0, 0.7, 0.3)
    assert metrics["value_loss"].item() == pytest.approx(np.mean(weight * advantage.detach().numpy() ** 2))
    np.testing.assert_allclose(metrics["advantage"], (target_q - agent.value(batch.obs).squeeze(-1)).mean().detach())
    next_value = agent.value(batch.next_obs).squeeze(-1)
    target = batch.reward + 0.99 * ~batch.terminated * next_value
    errors = before.critic(batch.obs, batch.action).squeeze(-1) - target
    assert metrics["critic_loss"].item() == pytest.approx(errors.square().mean().item())


@pytest.mark.parametrize("balanced", [False, True])
def test_the_family_learns_at_uniform_b_offline_and_at_the_balances_online(spec, make_batch, monkeypatch, balanced):
    agent, seen = make(spec, lowest=2.0, highest=3.0), []
    monkeypatch.setattr(
        agent, "balance_loss", lambda batch: (*FamO2O.balance_loss(agent, batch)[:1], b, 0 * batch.reward)
    )
    original = agent.actor_loss
    monkeypatch.setattr(agent, "actor_loss", lambda batch, q, b: (seen.append(b), original(batch, q, b))[1])
    batch = make_batch(0)
    b = torch.full_like(batch.reward, 2.5)[:, None]
    agent.update(batch, balanced=balanced)
    assert (seen[0] == 2.5).all() == balanced
    assert ((seen[0] >= 2) & (seen[0] <= 3)).all()


def test_the_balance_finds_what_the_critics_value(monkeypatch):
    """The critics prefer a large b at some states and a small b at others."""
    torch.manual_seed(0)
    spec = Spec((1,), (-1.0,), (1.0,))
    agent = FamO2O(spec, Config(hidden=[32], lowest=1.0, highest=5.0, actor_lr=3e-3))
    monkeypatch.setattr(agent.actor, "sample", lambda inputs: inputs)  # the state, and b's sines and cosines
    monkeypatch.setattr(agent, "least_value", lambda obs, inputs: -10 * obs[:, 0] * inputs[:, 3])  # for b / 21.5
    with torch.no_grad():
        agent.log_alpha.fill_(-3)
    obs = torch.where(torch.rand(256, 1) < 0.5, -1.0, 1.0)
    nothing = torch.zeros(256)
    batch = Batch(obs, nothing[:, None], nothing, obs, nothing.bool(), nothing.long())
    for _ in range(300):
        agent.balance_optimizer.minimize(agent.balance_loss(batch)[0])
    low, high = agent.balance.mode(torch.tensor([[1.0], [-1.0]])).squeeze(-1).tolist()
    assert low < 2
    assert high > 4


def test_an_empty_range_is_refused():
    with pytest.raises(ValueError, match=r"algo.lowest=5.0 must be below algo.highest=5.0"):
        Config(lowest=5.0)
