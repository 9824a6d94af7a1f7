"""Discrete BCQ: its actions and losses against loops, its updates against a plain implementation, what it learns."""

import numpy as np
import pytest
import torch
from plain import GYMNASIUM, assert_close, forward, leaves, mean_return, soft_update, step
from scipy.special import log_softmax, softmax

import zoo
from zoo.algos.bcq import BCQ, Config
from zoo.spec import Spec

from .conftest import random_batch

SPEC = Spec((3,), num_actions=4)


def make(**settings) -> BCQ:
    torch.manual_seed(1)
    agent = BCQ(SPEC, Config(hidden=[16], **settings)).double()
    with torch.no_grad():  # values and probabilities that differ, and targets that differ from both
        for network in (agent.network, agent.target_network):
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
    return agent


def best(q: np.ndarray, logits: np.ndarray, threshold: float) -> list[int]:
    """For each row, the action with the largest value among those with a probability above a share of the largest."""
    chosen = []
    for values, row in zip(q, softmax(logits, 1), strict=True):
        allowed = [a for a in range(len(row)) if row[a] / max(row) > threshold]
        chosen.append(max(allowed, key=lambda a: values[a]))
    return chosen


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.99])
def test_takes_the_best_of_the_actions_that_are_probable_enough(network, threshold):
    agent, obs = make(threshold=threshold), random_batch(200, SPEC).obs
    q, logits = network(agent.network.q, obs.numpy()), network(agent.network.behavior, obs.numpy())
    expected = best(q, logits, threshold)
    assert agent.act(obs).tolist() == expected
    if threshold == 0:
        assert expected == q.argmax(1).tolist()
    else:
        assert expected != q.argmax(1).tolist()
    if threshold == 0.99:
        assert np.mean(expected == logits.argmax(1)) > 0.95


def test_losses_are_hubers_and_the_negative_log_probability_with_its_penalty(network):
    agent, batch = make(), random_batch(32, SPEC)
    obs, next_obs = batch.obs.numpy(), batch.next_obs.numpy()
    next_action = best(network(agent.network.q, next_obs), network(agent.network.behavior, next_obs), 0.3)
    next_q = network(agent.target_network.q, next_obs)
    q, logits = network(agent.network.q, obs), network(agent.network.behavior, obs)
    errors, log_probs = [], []
    for i, action in enumerate(batch.action.tolist()):
        going_on = 0 if batch.terminated[i] else next_q[i, next_action[i]]
        error = abs(q[i, action] - (float(batch.reward[i]) + 0.99 * going_on))
        errors.append(error**2 / 2 if error < 1 else error - 0.5)
        log_probs.append(log_softmax(logits[i])[action])
    metrics = agent.update(batch)
    assert metrics["critic_loss"].item() == pytest.approx(np.mean(errors), rel=1e-6)
    assert metrics["behavior_loss"].item() == pytest.approx(-np.mean(log_probs) + 0.01 * (logits**2).mean(), rel=1e-6)


def test_three_updates_equal_a_plain_step_by_step_implementation():
    agent = make()
    q, behavior = leaves(agent.network.q.parameters()), leaves(agent.network.behavior.parameters())
    targets = leaves(agent.target_network.q.parameters())
    adam = torch.optim.Adam([*q, *behavior], 3e-4)
    for seed in range(3):
        batch = random_batch(32, SPEC, seed)
        with torch.no_grad():
            allowed = torch.softmax(forward(behavior, batch.next_obs), 1)
            allowed = allowed / allowed.max(1, keepdim=True)[0] > 0.3
            values = forward(q, batch.next_obs)
            next_action = torch.where(allowed, values, -1e8).argmax(1)
            next_q = forward(targets, batch.next_obs)[torch.arange(32), next_action]
            target = batch.reward + 0.99 * next_q * (1 - batch.terminated.double())
        error = forward(q, batch.obs)[torch.arange(32), batch.action] - target
        logits = forward(behavior, batch.obs)
        loss = torch.where(error.abs() < 1, error**2 / 2, error.abs() - 0.5).mean()
        loss = loss - torch.log_softmax(logits, 1)[torch.arange(32), batch.action].mean() + 0.01 * (logits**2).mean()
        step(adam, loss)
        soft_update(targets, q, 0.005)
        agent.update(batch)
        agent.update_target()
    assert_close(agent.network.q.parameters(), q)
    assert_close(agent.network.behavior.parameters(), behavior)
    assert_close(agent.target_network.q.parameters(), targets)


def test_exploring_is_random_in_the_share_that_is_set():
    agent, obs = make(eval_epsilon=0.4), random_batch(5_000, SPEC).obs
    differs = (agent.act(obs, explore=True) != agent.act(obs)).double().mean()
    assert differs == pytest.approx(0.4 * 3 / 4, abs=0.03)


def test_learns_more_than_the_policy_that_the_data_is_from(tmp_path, cartpole_file):
    run = zoo.train(
        "bcq", env="cartpole", dataset=cartpole_file, steps=3_000, eval_every=3_000, eval_episodes=10, logger="none",
        run_dir=tmp_path / "run", algo_config={"hidden": [64, 64], "lr": 1e-3}, **GYMNASIUM,
    )  # fmt: skip
    _, episodes = run.evaluations[-1]
    assert episodes.returns.mean() > 2 * mean_return(cartpole_file)
