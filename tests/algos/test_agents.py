"""What one algorithm or a few promise besides their losses: gradients, initialization, exploration, normalization."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from examples import batch_for, doubles, make, specs
from plain import shake

import zoo
from zoo.agent import Agent
from zoo.algos.awac import AWAC
from zoo.algos.awac import Config as AWACConfig
from zoo.algos.cql import CQL
from zoo.algos.cql import Config as CQLConfig
from zoo.algos.dvl import DVL
from zoo.algos.dvl import Config as DVLConfig
from zoo.algos.famo2o import Config as FamO2OConfig
from zoo.algos.famo2o import FamO2O
from zoo.algos.fql import FQL
from zoo.algos.fql import Config as FQLConfig
from zoo.algos.rebrac import Config as ReBRACConfig
from zoo.algos.rebrac import ReBRAC
from zoo.algos.recoil import Config as ReCOILConfig
from zoo.algos.recoil import ReCOIL
from zoo.algos.ro2o import RO2O
from zoo.algos.ro2o import Config as RO2OConfig
from zoo.errors import UsageError
from zoo.nn import EnsembleCritic
from zoo.nn.heads import TwoHot
from zoo.nn.optim import Adam
from zoo.settings.registry import algorithms
from zoo.spec import Spec

SPEC = Spec((3,), (-0.5, -2.0), (3.0, -1.0))
EXPLORING = {  # settings with which actions are random while exploring
    "awac": {}, "bcq": {"eval_epsilon": 0.5}, "cql": {}, "discrete_cql": {"eval_epsilon": 0.5},
    "dql": {"candidates": 1}, "dsrl": {}, "dvl": {}, "edac": {}, "expo": {}, "famo2o": {}, "fql": {}, "iql": {},
    "ofql": {"candidates": 1}, "rebrac": {"exploration_noise": 0.1}, "recoil": {}, "riql": {"policy": "gaussian"},
    "ro2o": {}, "td3_bc": {"exploration_noise": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLORING)
def test_exploring_draws_anew(name):
    algorithm = algorithms()[name]
    for spec in specs(algorithm):
        torch.manual_seed(0)
        agent = make(algorithm, spec, **EXPLORING[name])
        shake(agent, by=0.1)
        obs = torch.randn(50, 3)
        assert not torch.equal(agent.act(obs, explore=True), agent.act(obs, explore=True))


@pytest.mark.parametrize("name", ["dql", "ofql"])
def test_a_candidate_that_is_valued_log_4_more_is_taken_four_times_as_often(name, monkeypatch):
    agent, two = make(algorithms()[name], SPEC, candidates=2), torch.tensor([SPEC.action_low, SPEC.action_high])
    values = torch.tensor([0.0, math.log(4)])[:, None, None]
    monkeypatch.setattr(agent.policy, "sample", lambda obs, _: two[:, None].expand(-1, obs.shape[1], -1))
    monkeypatch.setattr(agent.target_critic, "of_many", lambda obs, _: values.expand(2, -1, len(obs), -1))
    torch.manual_seed(0)
    taken = agent.act(torch.zeros(20_000, 3), explore=True)
    assert (taken == two[1]).all(-1).double().mean().item() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("name", ["dql", "ofql"])
def test_the_size_of_the_other_critics_values_has_no_gradient(name):
    torch.manual_seed(1)
    agent = make(algorithms()[name], SPEC).double()
    shake(agent)
    batch, parameters = doubles(batch_for(agent, 0)), list(agent.policy.parameters())
    torch.manual_seed(2)
    found = torch.autograd.grad(agent.q_loss(batch), parameters)
    torch.manual_seed(2)
    chain = (agent.config.diffusion_steps,) if name == "dql" else ()
    action = agent.policy.sample(batch.obs, torch.randn(*chain, *batch.action.shape, dtype=torch.float64))
    one = int(torch.rand((), dtype=torch.float64).item() <= 0.5)
    q = agent.critic(batch.obs, action).squeeze(-1)
    expected = torch.autograd.grad(-q[one].mean() / q[1 - one].detach().abs().mean(), parameters)
    torch.testing.assert_close(found, expected)


def test_the_scale_of_values_in_rebracs_and_fqls_losses_has_no_gradient():
    torch.manual_seed(1)
    agent = ReBRAC(SPEC, ReBRACConfig(hidden=[16], actor_penalty=0.0)).double()
    shake(agent)
    batch, parameters = doubles(batch_for(agent, 0)), list(agent.actor.parameters())
    found = torch.autograd.grad(agent.actor_loss(batch), parameters)
    q = agent.critic(batch.obs, agent.actor.mode(batch.obs)).squeeze(-1).amin(0)
    torch.testing.assert_close(found, torch.autograd.grad(-q.mean() / q.detach().abs().mean(), parameters))

    other = FQL(SPEC, FQLConfig(hidden=[16], alpha=1e-12, normalize_q=True)).double()
    shake(other)
    parameters = list(other.policy.parameters())
    torch.manual_seed(2)
    found = torch.autograd.grad(other.policy_loss(batch)[0], parameters)
    torch.manual_seed(2)
    x = other.policy(batch.obs, torch.randn_like(batch.action))
    q = other.critic(batch.obs, other.policy.from_unit(x)).squeeze(-1).mean(0)
    expected = torch.autograd.grad(-q.mean() / q.detach().abs().mean(), parameters)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("part", ["actor", "critic"])
def test_ro2o_pulls_both_ends_of_a_perturbation_together(part):
    """The gradient is that of central differences of the whole loss."""
    torch.manual_seed(1)
    settings = RO2OConfig(hidden=[16], num_critics=3, perturbations=4, policy_radius=0.4, critic_radius=0.4)
    agent = RO2O(SPEC, settings).double()
    shake(agent.critic, agent.actor)
    batch = doubles(batch_for(agent, 0))

    def smoothness() -> torch.Tensor:
        torch.manual_seed(2)
        if part == "actor":
            return agent.policy_smoothness(batch)
        return agent.critic_smoothness(batch, agent.critic(batch.obs, batch.action).squeeze(-1))

    weight = next(getattr(agent, part).parameters())
    (gradient,) = torch.autograd.grad(smoothness(), weight)
    direction, values = torch.randn_like(weight), []
    for step in (1e-6, -2e-6):
        weight.data += step * direction
        values.append(smoothness().item())
    assert (values[0] - values[1]) / 2e-6 == pytest.approx((gradient * direction).sum().item(), rel=1e-4)


@pytest.mark.parametrize("name", ["dsrl", "expo"])
def test_targets_are_of_the_target_critics_and_other_values_of_the_critics(name):
    torch.manual_seed(0)
    agent = make(algorithms()[name], SPEC, flow_steps=4)
    shake(agent.critic)
    batch = batch_for(agent, 0)

    def losses() -> dict[str, float]:
        found = {}
        for loss in {"critic_loss", "noise_loss", "edit_loss"} & set(dir(agent)):
            torch.manual_seed(1)
            out = getattr(agent, loss)(batch)
            found[loss] = (out[0] if isinstance(out, tuple) else out).item()
        return found

    before = losses()
    shake(agent.target_critic)
    after = losses()
    assert {loss for loss in before if before[loss] != after[loss]} == {"critic_loss"}


@pytest.mark.parametrize("name", ["dql", "ofql"])
def test_the_policys_gradient_is_of_the_critics_just_updated(name, monkeypatch):
    agent, seen, minimize = make(algorithms()[name], SPEC), [], Adam.minimize
    monkeypatch.setattr(Adam, "minimize", lambda adam, loss: (seen.append(adam), minimize(adam, loss)))
    agent.update(batch_for(agent, 0))
    assert seen == [agent.critic_optimizer, agent.policy_optimizer]


def test_where_every_exponent_is_small_the_loss_is_scaled_by_e_and_no_more():
    agent = DVL(SPEC, DVLConfig(hidden=[16], f="reverse_kl", temperature=2.0)).double()
    z = np.linspace(-9, -4, 11) / 2
    found = agent.implicit_maximum(torch.from_numpy(2 * z)).mean().item()
    assert found == pytest.approx(np.mean(np.exp(z) - z - 1) * math.e)
    other = ReCOIL(SPEC, ReCOILConfig(hidden=[16], temperature=2.0)).double()
    batch = doubles(batch_for(other, 0))
    value = other.value(batch.obs).squeeze(-1).detach()
    z = -(4 + np.arange(8)) / 2  # the mixture's half of the batch
    found = other.value_loss(batch, value - 4 - torch.arange(16).double()).item()
    assert found == pytest.approx(np.mean(np.exp(z) - z - 1) * math.e)


@pytest.mark.parametrize("name", ["dsrl", "expo", "fql"])
def test_what_is_generated_is_for_the_normalized_observation(name):
    torch.manual_seed(0)
    agent = make(algorithms()[name], SPEC)
    shake(agent, by=0.1)
    obs, noise = torch.randn(20, 3), torch.randn(20, 2)
    expected = agent.generate(obs, noise)
    agent.normalizer.mean.fill_(2.0)
    agent.normalizer.std.fill_(3.0)
    torch.testing.assert_close(agent.generate(3 * obs + 2, noise), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["bcq", "discrete_cql"])
def test_the_expected_return_is_at_the_normalized_observation(name):
    torch.manual_seed(0)
    agent = make(algorithms()[name], Spec((3,), num_actions=4))
    obs, action = torch.randn(20, 3), torch.randint(4, (20,))
    expected = agent.expected_return(obs, action)
    agent.normalizer.mean.fill_(2.0)
    agent.normalizer.std.fill_(3.0)
    torch.testing.assert_close(agent.expected_return(3 * obs + 2, action), expected, rtol=1e-4, atol=1e-4)


def test_outputs_that_are_no_values_are_not_taken_for_values():
    """Quantiles, without a head that makes values of them."""
    agent, obs, action = Agent(), torch.randn(20, 3), torch.randn(20, 2)
    for outputs in (1, 25):
        agent.critic = EnsembleCritic(2, 3, 2, [8], outputs)
        found = agent.expected_return(obs, action)
        assert (found is None) if outputs > 1 else (found.shape == (20,))
    agent.head = TwoHot(-1.0, 1.0, 25)
    assert agent.expected_return(obs, action).shape == (20,)


@pytest.mark.parametrize("listed", [False, True])
def test_an_optimizer_whose_state_no_checkpoint_holds_is_refused(listed, tmp_path, pendulum_file):
    source = algorithms()["bc"].path.read_text()
    theirs = "torch.optim.Adam(self.parameters())"
    added = f"        self.actor.theirs = {f'[{theirs}]' if listed else theirs}\n\n    def actor_loss("
    (tmp_path / "mine.py").write_text(source.replace("\n    def actor_loss(", added))
    settings = {"env": "pendulum", "dataset": str(pendulum_file), "steps": 2, "run_dir": str(tmp_path / "run")}
    with pytest.raises(UsageError, match=r"agent\.actor\.theirs is of torch\.optim, .* Use zoo\.nn\.optim\.Adam"):
        zoo.train(file=tmp_path / "mine.py", **settings)


@pytest.mark.parametrize("name", ["cql", "edac", "ro2o"])
def test_a_target_entropy_is_of_actions_in_minus_1_to_1(name):
    agent = make(algorithms()[name], Spec((3,), (-2.0, -0.5), (2.0, 0.5)), target_entropy=-3.0)
    assert agent.target_entropy == pytest.approx(-3 + math.log(2) + math.log(0.5))


def test_the_target_entropy_of_famo2os_balance_is_that_of_b_scaled_to_its_range():
    agent = FamO2O(SPEC, FamO2OConfig(lowest=2.0, highest=8.0, target_entropy=-0.5))
    assert agent.target_entropy == pytest.approx(-0.5 + math.log(3))


def test_famo2o_explores_at_the_mode_of_the_balance():
    torch.manual_seed(0)
    agent = FamO2O(Spec((3,), (-1.0,), (1.0,)), FamO2OConfig(hidden=[8]))
    agent.actor.log_std.data.fill_(-20.0)  # clamped to -5
    shake(agent.actor.net, agent.balance, by=0.6)
    obs = torch.randn(200, 3)
    assert (agent.act(obs, explore=True) - agent.act(obs)).abs().max() < 6 * math.exp(-5)


def test_awacs_policy_may_be_as_narrow_as_corls():
    torch.manual_seed(0)
    agent = AWAC(Spec((3,), (-1.0,), (1.0,)), AWACConfig(hidden=[8]))
    agent.actor.log_std.data.fill_(-9.0)
    obs = torch.zeros(1000, 3)
    assert (agent.actor.sample(obs) - agent.actor.mode(obs)).std().item() == pytest.approx(math.exp(-9), rel=0.1)


def test_cqls_networks_begin_as_corls():
    torch.manual_seed(0)
    spec = Spec((3,), (-1.0, -1.0), (1.0, 1.0))
    agent = CQL(spec, CQLConfig(hidden=[16, 16]))
    mean, log_std = agent.actor(torch.randn(50, 3))
    assert mean.abs().max() < 0.1
    assert (log_std + 1).abs().max() < 0.1
    first = agent.critic[0].weight[0].detach()  # [16, 5], its columns orthogonal and of one length
    torch.testing.assert_close(first.T @ first, first[:, 0].square().sum() * torch.eye(5), rtol=0, atol=1e-4)
    plain = CQL(spec, CQLConfig(hidden=[16, 16], orthogonal_init=False))
    assert plain.critic[0].weight.abs().max() <= 5**-0.5


@pytest.mark.parametrize("name", ["edac", "riql", "ro2o"])
def test_the_first_weights_of_critics_are_bounded_by_their_number_of_outputs(name):
    algorithm = algorithms()[name]
    settings = dataclasses.replace(algorithm.module.Config(), hidden=[64])
    agent = algorithm.agent_class(Spec((3,), (-1.0,), (1.0,)), settings)
    assert 0.9 / 8 < agent.critic[0].weight.abs().max() <= 1 / 8  # PyTorch's: 1 / 2


def test_ro2os_policy_begins_near_the_middle_of_the_actions():
    torch.manual_seed(0)
    agent = RO2O(Spec((3,), (-1.0,), (1.0,)), RO2OConfig(hidden=[8]))
    assert agent.act(torch.randn(50, 3)).abs().max() < 0.02
