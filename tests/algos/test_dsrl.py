"""DSRL: its losses against naive loops, its stages, and that it steers the flow only by its noise."""

import copy

import pytest
import torch

import zoo
from tests.algos.examples import batch_for
from zoo.algos.dsrl import DSRL, Config
from zoo.spec import Spec

SPEC = Spec((3,), (-2.0, -0.5), (2.0, 0.5))


@pytest.fixture
def agent():
    torch.manual_seed(0)
    return DSRL(SPEC, Config(hidden=[16], flow_steps=4, magnitude=2.5))


def by_hand(agent, obs, noise):
    """The flow's actions, by a loop over samples and steps."""
    actions = []
    for o, x in zip(obs, noise, strict=True):
        for k in range(4):
            x = x + agent.flow.net(torch.cat([o, x, torch.tensor([k / 4])])[None])[0] / 4
        actions.append(torch.tensor([2.0, 0.5]) * x.clamp(-1, 1))
    return torch.stack(actions)


def test_the_critics_of_noise_are_taught_the_values_of_the_actions_that_noise_becomes(agent, monkeypatch):
    batch, noise = batch_for(agent, 0), torch.randn(16, 2)
    monkeypatch.setattr(torch, "randn_like", lambda like: noise)
    with torch.no_grad():
        actions, expected = by_hand(agent, batch.obs, noise), 0.0
        for i in range(2):
            for obs, w, a in zip(batch.obs, noise, actions, strict=True):
                taught, known = agent.noise_critic(obs[None], w[None])[i], agent.critic(obs[None], a[None])[i]
                expected += float((taught - known) ** 2) / 16
    assert float(agent.noise_loss(batch)) == pytest.approx(expected, rel=1e-5)


def test_the_target_is_of_the_action_that_the_actors_noise_becomes_less_its_entropy(agent, monkeypatch):
    batch, noise = batch_for(agent, 1), torch.randn(16, 2)
    agent.log_alpha.data.fill_(-1.0)
    monkeypatch.setattr(torch, "randn_like", lambda like: noise)
    with torch.no_grad():
        mean, log_std = agent.actor(batch.next_obs)
        x = torch.distributions.Normal(mean, log_std.exp())
        squashed = torch.distributions.TransformedDistribution(x, [torch.distributions.TanhTransform()])
        unit = torch.tanh(mean + log_std.exp() * noise)
        soft = agent.target_critic(batch.next_obs, by_hand(agent, batch.next_obs, 2.5 * unit)).squeeze(-1).amin(0)
        soft = soft - torch.exp(torch.tensor(-1.0)) * squashed.log_prob(unit).sum(-1)
        target = batch.reward + 0.99 * torch.where(batch.terminated, 0.0, soft)
        expected = sum(((agent.critic(batch.obs, batch.action)[i].squeeze(-1) - target) ** 2).mean() for i in range(2))
    assert float(agent.critic_loss(batch)[0]) == pytest.approx(float(expected), rel=1e-4)


def test_the_actor_weighs_the_density_of_noise_in_units_of_the_magnitude(agent):
    """DSRL-SAC has the same: there, the actions are noise within [-1, 1]."""
    batch = batch_for(agent, 5)
    torch.manual_seed(6)
    noise, density = agent.actor.sample(batch.obs)
    torch.manual_seed(6)
    loss, log_prob = agent.actor_loss(batch)
    in_units = density + 2 * torch.log(torch.tensor(2.5))
    torch.testing.assert_close(log_prob, in_units.detach())
    value = agent.noise_critic(batch.obs, noise).squeeze(-1).amin(0)
    torch.testing.assert_close(loss, (agent.log_alpha.exp() * in_units - value).mean())


def test_the_flow_stays_as_it_is_while_it_is_steered_and_all_else_learns(agent):
    before = copy.deepcopy(agent.state_dict())
    agent.update(batch_for(agent, 2))
    for name, value in agent.state_dict().items():
        if name.startswith("flow."):
            assert torch.equal(value, before[name]), name
        elif name.startswith(("actor.net", "critic.", "noise_critic.", "target_critic.", "log_alpha")):
            assert not torch.equal(value, before[name]), name


def test_noise_is_the_flows_own_until_the_first_update_and_then_the_actors(agent):
    obs = torch.randn(2000, 3)
    none = agent.generate(obs, torch.zeros(2000, 2))
    torch.testing.assert_close(agent.act(obs), none)
    assert (agent.act(obs, explore=True) - none).abs().max() > 0.01
    agent.update(batch_for(agent, 3))
    torch.testing.assert_close(agent.act(obs), agent.generate(obs, agent.actor.mode(agent.normalizer(obs)).detach()))


def test_a_run_clones_first_and_steers_then(pendulum_file, tmp_path, monkeypatch):
    calls = []
    for name in ("clone", "update"):
        function = getattr(DSRL, name)
        monkeypatch.setattr(DSRL, name, lambda a, b, f=function, n=name: (calls.append(n), f(a, b))[1])
    zoo.train(
        "dsrl", env="pendulum", dataset=pendulum_file, steps=6, online_steps=9, online_starts=4, eval_every=100,
        eval_episodes=1, logger="none", run_dir=tmp_path / "run", algo_config={"hidden": [8], "batch_size": 8},
    )  # fmt: skip
    assert calls == ["clone"] * 6 + ["update"] * 5
