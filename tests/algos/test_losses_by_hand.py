"""Losses that several algorithms share, against loops over samples: temperature, flow cloning, actor losses."""

import inspect

import pytest
import torch
from examples import batch_for, make, specs

from zoo.algos import dsrl, expo, h2o, reinflow
from zoo.nn import TanhGaussian
from zoo.settings.registry import algorithms
from zoo.spec import Spec

SPEC = Spec((3,), (-2.0, -0.5), (2.0, 0.5))
HALF_RANGE = torch.tensor([2.0, 0.5])
WITH_TEMPERATURE = [
    algorithm
    for algorithm in algorithms().values()
    if list(inspect.signature(getattr(algorithm.agent_class, "alpha_loss", make)).parameters) == ["self", "log_prob"]
]


def test_several_algorithms_have_a_temperature():
    assert {"sac", "rlpd", "h2o", "dsrl", "expo", "famo2o"} <= {algorithm.name for algorithm in WITH_TEMPERATURE}


@pytest.mark.parametrize("algorithm", WITH_TEMPERATURE, ids=[algorithm.name for algorithm in WITH_TEMPERATURE])
def test_a_temperature_rises_where_entropy_is_below_its_target_and_falls_above(algorithm):
    agent = make(algorithm, specs(algorithm)[0])
    for missing in (3.0, -3.0):
        log_prob = torch.full((16,), missing - agent.target_entropy)  # the entropy is its negative
        (slope,) = torch.autograd.grad(agent.alpha_loss(log_prob), [agent.log_alpha])
        assert -slope.sign() == torch.tensor(missing).sign()


@pytest.mark.parametrize("name", ["dsrl", "edac", "expo", "h2o", "rlpd", "sac"])
def test_the_entropy_that_is_logged_is_that_of_the_policy(name):
    """With a Gaussian before tanh that is e^3 times as narrow, it is almost 3 nats lower for each of two actions."""
    logged, algorithm = [], algorithms()[name]
    for narrower in (0.0, 3.0):
        torch.manual_seed(0)
        agent = make(algorithm, specs(algorithm)[0])
        (policy,) = (module for module in agent.modules() if isinstance(module, TanhGaussian))
        with torch.no_grad():
            policy.net[-1].weight.zero_()
            policy.net[-1].bias.copy_(torch.tensor([0.0, 0.0, -2.0 - narrower, -2.0 - narrower]))
        logged.append(float(agent.update(batch_for(agent, 0))["entropy"]))
    assert logged[0] - logged[1] == pytest.approx(2 * 3.0, abs=0.1)


@pytest.mark.parametrize("name", ["cql", "edac", "expo", "riql", "rlpd", "td3"])
def test_a_single_critic_gives_metrics_that_are_numbers(name):
    """A metric that is not finite would end the run."""
    algorithm, more = algorithms()[name], {"edac": {"eta": 0.0}, "expo": {"subset": 1}, "rlpd": {"subset": 1}}
    agent = make(algorithm, specs(algorithm)[0], num_critics=1, **more.get(name, {}))
    assert all(value.isfinite() for value in agent.update(batch_for(agent, 0)).values())


@pytest.mark.parametrize("module", [dsrl, expo, reinflow], ids=["dsrl", "expo", "reinflow"])
def test_a_cloned_flow_learns_the_way_from_noise_to_the_action(module, monkeypatch):
    torch.manual_seed(0)
    kind = {dsrl: dsrl.DSRL, expo: expo.EXPO, reinflow: reinflow.ReinFlow}[module]
    agent = kind(SPEC, module.Config(hidden=[16]))
    batch, noise, time = batch_for(agent, 0, "clone"), torch.randn(16, 2), torch.rand(16)
    monkeypatch.setattr(torch, "randn_like", lambda like: noise)
    monkeypatch.setattr(torch, "rand_like", lambda like: time)
    expected = 0.0
    for obs, action, w, t in zip(batch.obs, batch.action, noise, time, strict=True):
        unit = action / HALF_RANGE
        at = w + t * (unit - w)
        velocity = agent.flow.net(torch.cat([obs, at, t[None]])[None])[0]
        expected += float((velocity - (unit - w)).square().mean()) / 16
    assert float(agent.flow_loss(batch)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("module", [dsrl, h2o], ids=["dsrl", "h2o"])
def test_an_actor_climbs_the_lesser_value_less_what_its_entropy_costs(module, monkeypatch):
    torch.manual_seed(0)
    if module is dsrl:
        agent, scale = dsrl.DSRL(SPEC, dsrl.Config(hidden=[16], magnitude=2.5)), torch.tensor([2.5, 2.5])
        critic, unit = agent.noise_critic, torch.ones(2)  # of the density
    else:
        agent, scale = h2o.H2O(SPEC, h2o.Config(hidden=[16])), HALF_RANGE
        critic, unit = agent.critic, HALF_RANGE
    agent.log_alpha.data.fill_(-1.0)
    batch, noise = batch_for(agent, 0), torch.randn(16, 2)
    monkeypatch.setattr(torch, "randn_like", lambda like: noise)
    expected, log_probs = 0.0, []
    with torch.no_grad():
        for obs, w in zip(batch.obs, noise, strict=True):
            mean, log_std = agent.actor(obs[None])
            x = mean[0] + log_std[0].exp() * w
            density = torch.distributions.Normal(mean[0], log_std[0].exp()).log_prob(x)
            log_probs.append((density - torch.log(unit * (1 - torch.tanh(x) ** 2))).sum())
            action = (scale * torch.tanh(x))[None]
            value = min(float(critic(obs[None], action)[i]) for i in range(2))
            expected += (float(torch.exp(torch.tensor(-1.0)) * log_probs[-1]) - value) / 16
    loss, log_prob = agent.actor_loss(batch)
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(log_prob, torch.stack(log_probs), rtol=1e-4, atol=1e-4)
    (slope,) = torch.autograd.grad(loss, [next(agent.actor.parameters())])
    assert slope.abs().sum() > 0
