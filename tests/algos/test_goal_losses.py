"""The losses of goal-conditioned algorithms against their formulas, one transition at a time.

`benchmarks/scripts/goals_update.py` compares whole updates with OGBench's agents.
"""

import math

import numpy as np
import pytest
import torch
from examples import batch_for, doubles, make
from plain import shake

from zoo.agent import Agent
from zoo.algos import crl, gcbc, gciql, gcivl, hiql, ota, qrl
from zoo.settings.registry import algorithms
from zoo.spec import Spec

SPEC = Spec((6,), (-1.0, -1.0), (1.0, 1.0), goal_dim=3)
LOG_2PI = math.log(2 * math.pi)


def prepared(agent: Agent):
    """An agent in float64 with nonzero biases and with targets that differ from their networks, and a batch for it."""
    torch.manual_seed(0)
    agent = agent.double()
    shake(agent, by=0.2)
    return agent, doubles(batch_for(agent, 0))


def joined(*columns):
    return torch.cat(columns, -1)


def rows(x: torch.Tensor) -> np.ndarray:
    return x.detach().numpy()


def log_density(mean: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The log density of a Gaussian with standard deviation 1."""
    return -((x - mean) ** 2 + LOG_2PI).sum(-1) / 2


def asymmetric(advantage: float, error: float, expectile: float) -> float:
    return (expectile if advantage >= 0 else 1 - expectile) * error**2


def close(loss: torch.Tensor, expected: float) -> None:
    """Asserts equality, except for the rounding of settings that are float32 constants."""
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-6)


def test_gcbc_maximizes_the_density_of_the_datas_actions():
    agent, batch = prepared(gcbc.GCBC(SPEC, gcbc.Config(hidden=[16])))
    mean = rows(agent.actor.net(joined(batch.obs, batch.actor_goal)))
    close(agent.actor_loss(batch), -log_density(mean, rows(batch.action)).mean())


def test_gciql_is_iql_given_a_goal():
    agent, batch = prepared(gciql.GCIQL(SPEC, gciql.Config(hidden=[16], alpha=0.4)))
    state, later = joined(batch.obs, batch.value_goal), joined(batch.next_obs, batch.value_goal)
    target_q, q = (rows(critic(state, batch.action))[..., 0] for critic in (agent.target_critic, agent.critic))
    value, next_value = rows(agent.value(state))[:, 0], rows(agent.value(later))[:, 0]
    gaps = [min(pair) - v for pair, v in zip(target_q.T, value, strict=True)]
    close(agent.value_loss(batch)[0], np.mean([asymmetric(gap, gap, 0.9) for gap in gaps]))
    targets = [0 if reached else -1 + 0.99 * v for reached, v in zip(batch.reached, next_value, strict=True)]
    close(agent.critic_loss(batch), np.mean([(a - t) ** 2 + (b - t) ** 2 for a, b, t in zip(*q, targets, strict=True)]))
    obs = joined(batch.obs, batch.actor_goal)
    mean = agent.actor.net(obs)
    least = rows(agent.critic(obs, mean.clamp(-1, 1)))[..., 0].min(0)
    cloning = -log_density(rows(mean), rows(batch.action)).mean()
    close(agent.actor_loss(batch)[0], -least.mean() / (np.abs(least).mean() + 1e-6) + 0.4 * cloning)


def expectile_of_successors(agent, batch, expectile: float) -> float:
    """The value's loss of GCIVL and HIQL."""
    target_now, target_later = (
        rows(agent.values(agent.target_value, obs, batch.value_goal)).T for obs in (batch.obs, batch.next_obs)
    )
    total = 0.0
    for i, values in enumerate(rows(agent.values(agent.value, batch.obs, batch.value_goal)).T):
        targets = [0 if batch.reached[i] else -1 + 0.99 * v for v in target_later[i]]
        advantage = min(targets) - target_now[i].mean()
        total += sum(asymmetric(advantage, t - v, expectile) for t, v in zip(targets, values, strict=True))
    return total / len(batch.obs)


def weights(agent, obs, later, goal, beta: float) -> np.ndarray:
    """The weights of transitions: larger for steps that got closer to the goal."""
    now, then = (rows(agent.values(agent.value, x, goal)).mean(0) for x in (obs, later))
    return np.minimum(np.exp(beta * (then - now)), 100)


def test_an_expectile_is_of_the_least_target_where_the_two_disagree():
    for agent, expectile in (
        (gcivl.GCIVL(SPEC, gcivl.Config(hidden=[16])), 0.9),
        (hiql.HIQL(SPEC, hiql.Config()), 0.7),
    ):
        agent, batch = prepared(agent)
        with torch.no_grad():
            agent.target_value[-1].weight.mul_(20)  # values that differ by more than a reward
        close(agent.value_loss(batch)[0], expectile_of_successors(agent, batch, expectile))


def test_gcivl_clones_more_where_a_step_came_nearer():
    agent, batch = prepared(gcivl.GCIVL(SPEC, gcivl.Config(hidden=[16])))
    close(agent.value_loss(batch)[0], expectile_of_successors(agent, batch, 0.9))
    weight = weights(agent, batch.obs, batch.next_obs, batch.actor_goal, 10)
    assert weight.max() == 100
    density = log_density(rows(agent.actor.net(joined(batch.obs, batch.actor_goal))), rows(batch.action))
    close(agent.actor_loss(batch), -(weight * density).mean())


def test_hiqls_upper_policy_names_waypoints_and_the_lower_one_goes_to_subgoals():
    agent, batch = prepared(hiql.HIQL(SPEC, hiql.Config(hidden=[16], low_beta=2.0)))
    close(agent.value_loss(batch)[0], expectile_of_successors(agent, batch, 0.7))
    weight = weights(agent, batch.obs, batch.next_obs, batch.subgoal, 2)
    subgoal = agent.represent(batch.obs, batch.subgoal)
    density = log_density(rows(agent.low_actor.net(joined(batch.obs, subgoal))), rows(batch.action))
    close(agent.low_actor_loss(batch), -(weight * density).mean())
    weight = weights(agent, batch.obs, batch.waypoint, batch.actor_goal, 3)
    named, target = agent.high_actor(joined(batch.obs, batch.actor_goal)), agent.represent(batch.obs, batch.waypoint)
    density = log_density(rows(named), rows(target)) + 10 * LOG_2PI / 2  # the constant is left out
    close(agent.high_actor_loss(batch), -(weight * density).mean())


@pytest.mark.parametrize("name", ["hiql", "ota"])
def test_exploring_names_another_subgoal_each_time_of_the_same_length(name, monkeypatch):
    agent, obs, given = make(algorithms()[name], SPEC), torch.randn(5, 6), []
    act = agent.low_actor.sample
    monkeypatch.setattr(agent.low_actor, "sample", lambda inputs: (given.append(inputs), act(inputs))[1])
    for _ in range(2):
        agent.act(obs, explore=True)
    first, second = (inputs[:, 3:] for inputs in given)
    assert (first - second).abs().max() > 0.1
    torch.testing.assert_close(first.norm(dim=-1), torch.full((5,), math.sqrt(10)))


def test_crl_tells_a_transitions_own_goal_from_the_others():
    agent, batch = prepared(crl.CRL(SPEC, crl.Config(hidden=[16], latent_dim=8)))
    phi, psi = rows(agent.phi(joined(batch.obs, batch.action))), rows(agent.psi(batch.value_goal))
    terms = []
    for one, other in zip(phi, psi, strict=True):
        for i, x in enumerate(one):
            for j, y in enumerate(other):
                probability = 1 / (1 + math.exp(-(x @ y) / math.sqrt(8)))
                terms.append(-math.log(probability if i == j else 1 - probability))
    close(agent.critic_loss(batch)[0], np.mean(terms))


def test_crls_policy_climbs_the_lesser_logit_by_its_own_size_and_clones():
    agent, batch = prepared(crl.CRL(SPEC, crl.Config(hidden=[16], latent_dim=8, alpha=0.4)))
    obs = joined(batch.obs, batch.actor_goal)
    mean = agent.actor.net(obs)
    phi, psi = rows(agent.phi(joined(batch.obs, mean.clamp(-1, 1)))), rows(agent.psi(batch.actor_goal))
    logits = [min(phi[0, i] @ psi[0, i], phi[1, i] @ psi[1, i]) / math.sqrt(8) for i in range(len(obs))]
    assert min(logits) < 0 < max(logits)
    cloning = -log_density(rows(mean), rows(batch.action)).mean()
    close(agent.actor_loss(batch)[0], -np.mean(logits) / (np.abs(logits).mean() + 1e-6) + 0.4 * cloning)
    np.testing.assert_allclose(agent.goal_values(obs), logits, rtol=1e-6)


@pytest.mark.parametrize("name", ["gcivl", "gciql", "hiql", "ota"])
def test_targets_move_towards_what_was_there_before_the_update(name):
    algorithm = algorithms()[name]
    agent, batch = prepared(make(algorithm, SPEC, tau=0.25))
    before = {part: parameter.detach().clone() for part, parameter in agent.named_parameters()}
    moved = [part for part in before if part.startswith("target_")]
    agent.update(batch)
    assert moved
    for part in moved:
        expected = 0.75 * before[part] + 0.25 * before[part.removeprefix("target_")]
        torch.testing.assert_close(agent.get_parameter(part).detach(), expected)


def test_what_states_are_worth_is_the_mean_of_two_values_or_a_distance_that_is_left():
    states = torch.randn(7, 6).double()
    for agent in (gcivl.GCIVL(SPEC, gcivl.Config(hidden=[16])), hiql.HIQL(SPEC, hiql.Config(hidden=[16]))):
        agent, _ = prepared(agent)
        two = rows(agent.values(agent.value, states[:, :3], states[:, 3:]))
        np.testing.assert_allclose(agent.goal_values(states), (two[0] + two[1]) / 2)
    agent, _ = prepared(ota.OTA(SPEC, ota.Config(hidden=[16])))
    options = rows(agent.values(agent.high_value, states[:, :3], states[:, 3:]))
    np.testing.assert_allclose(agent.goal_values(states), (options[0] + options[1]) / 2)
    agent, _ = prepared(qrl.QRL(SPEC, qrl.Config(hidden=[16], latent_dim=16)))
    assert (agent.goal_values(states) < 0).all()
    np.testing.assert_allclose(agent.goal_values(states), -rows(agent.distance(states[:, :3], states[:, 3:])))


def test_qrl_pushes_states_apart_and_keeps_steps_short():
    agent, batch = prepared(qrl.QRL(SPEC, qrl.Config(hidden=[16], latent_dim=16)))
    latent, next_latent = agent.distance.encoder(batch.obs), agent.distance.encoder(batch.next_obs)
    apart, step = rows(agent.distance(batch.obs, batch.value_goal)), rows(agent.distance(batch.obs, batch.next_obs))
    multiplier, excess = math.exp(agent.log_lambda.item()), np.mean([max(d - 1, 0) ** 2 for d in step])
    push = np.mean([100 * math.log1p(math.exp(5 - d / 100)) for d in apart])
    loss, _ = agent.value_loss(batch, latent, next_latent)
    close(loss, push + multiplier * excess + multiplier * (0.05 - excess))
    (slope,) = torch.autograd.grad(loss, agent.log_lambda)
    close(slope, multiplier * (0.05 - excess))
    predicted = latent + agent.model(joined(latent, batch.action))
    there, back = agent.distance.between(next_latent, predicted), agent.distance.between(predicted, next_latent)
    close(agent.model_loss(batch, latent, next_latent), (rows(there) + rows(back)).mean() / 2)
    obs = joined(batch.obs, batch.actor_goal)
    mean = agent.actor.net(obs)
    moved = latent + agent.model(joined(latent, mean.clamp(-1, 1)))
    distance = rows(agent.distance.between(moved, agent.distance.encoder(batch.actor_goal))).mean()
    cloning = -log_density(rows(mean), rows(batch.action)).mean()
    close(agent.actor_loss(batch, latent)[0], distance / (distance + 1e-6) + 0.003 * cloning)


def test_qrls_model_moves_the_latents_too(monkeypatch):
    agent, batch = prepared(qrl.QRL(SPEC, qrl.Config(hidden=[16], latent_dim=16)))
    monkeypatch.setattr(agent, "value_loss", lambda *_: (0 * agent.log_lambda, torch.zeros(())))
    before = agent.distance.encoder[0].weight.detach().clone()
    agent.update(batch)
    assert not torch.equal(agent.distance.encoder[0].weight, before)


@pytest.mark.parametrize("name", ["hiql", "ota"])
def test_the_lower_policy_is_given_the_state_and_the_subgoal_at_its_length(name):
    agent, obs = make(algorithms()[name], SPEC), torch.randn(5, 6)
    shake(agent)
    named = agent.high_actor(obs)
    named = math.sqrt(10) * named / named.norm(dim=-1, keepdim=True)
    expected = agent.low_actor.net(torch.cat([obs[:, :3], named], -1)).clamp(-1, 1)
    torch.testing.assert_close(agent.act(obs), expected.detach())


def test_what_states_are_worth_to_gciql_is_its_value():
    agent, states = gciql.GCIQL(SPEC, gciql.Config(hidden=[16])), torch.randn(7, 6)
    torch.testing.assert_close(agent.goal_values(states), agent.value(states)[:, 0].detach())
