"""Discrete CQL: its losses against loops, its updates against a plain implementation, what it learns."""

import numpy as np
import pytest
import torch
from plain import GYMNASIUM, assert_close, forward, leaves, mean_return, soft_update, step
from scipy.special import logsumexp

import zoo
from zoo.algos.discrete_cql import Config, DiscreteCQL
from zoo.spec import Spec

from .conftest import random_batch

SPEC = Spec((3,), num_actions=4)


def make(**settings) -> DiscreteCQL:
    torch.manual_seed(1)
    agent = DiscreteCQL(SPEC, Config(hidden=[16], **settings)).double()
    with torch.no_grad():  # values that differ, and targets that differ from them
        for network in (agent.network, agent.target_network):
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
    return agent


def test_losses_are_hubers_of_double_q_learning_and_the_gap_to_the_soft_maximum(network):
    agent, batch = make(), random_batch(32, SPEC)
    q, next_q = network(agent.network, batch.obs.numpy()), network(agent.network, batch.next_obs.numpy())
    target_q = network(agent.target_network, batch.next_obs.numpy())
    errors, gaps = [], []
    for i, action in enumerate(batch.action.tolist()):
        going_on = 0 if batch.terminated[i] else target_q[i, next_q[i].argmax()]
        error = abs(q[i, action] - (float(batch.reward[i]) + 0.99 * going_on))
        errors.append(error**2 / 2 if error < 1 else error - 0.5)
        gaps.append(logsumexp(q[i]) - q[i, action])
    metrics = agent.update(batch)
    assert metrics["critic_loss"].item() == pytest.approx(np.mean(errors), rel=1e-6)
    assert metrics["gap"].item() == pytest.approx(np.mean(gaps), rel=1e-6)


def test_three_updates_equal_a_plain_step_by_step_implementation():
    agent = make(alpha=4.0)
    q, targets = leaves(agent.network.parameters()), leaves(agent.target_network.parameters())
    adam = torch.optim.Adam(q, 3e-4)
    rows = torch.arange(32)
    for seed in range(3):
        batch = random_batch(32, SPEC, seed)
        with torch.no_grad():
            next_q = forward(targets, batch.next_obs)[rows, forward(q, batch.next_obs).argmax(1)]
            target = batch.reward + 0.99 * next_q * (1 - batch.terminated.double())
        values = forward(q, batch.obs)
        taken = values[rows, batch.action]
        error = (taken - target).abs()
        gap = (values.exp().sum(1).log() - taken).mean()
        step(adam, torch.where(error < 1, error**2 / 2, error - 0.5).mean() + 4 * gap)
        soft_update(targets, q, 0.005)
        agent.update(batch)
        agent.update_target()
    assert_close(agent.network.parameters(), q)
    assert_close(agent.target_network.parameters(), targets)


def test_learns_more_than_the_policy_that_the_data_is_from(tmp_path, cartpole_file):
    run = zoo.train(
        "discrete_cql", env="cartpole", dataset=cartpole_file, steps=3_000, eval_every=3_000, eval_episodes=10,
        logger="none", run_dir=tmp_path / "run", algo_config={"hidden": [64, 64], "lr": 1e-3}, **GYMNASIUM,
    )  # fmt: skip
    _, episodes = run.evaluations[-1]
    assert episodes.returns.mean() > 2 * mean_return(cartpole_file)
