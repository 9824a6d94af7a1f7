"""IQL's losses against NumPy, and its updates against a plain step-by-step implementation of the paper's equations."""

import math

import numpy as np
import pytest
import torch
from plain import GYMNASIUM, assert_close, forward, leaves, mean_return, member, shake, soft_update, step
from scipy.special import log_softmax

import zoo
from zoo.algos.iql import IQL, Config
from zoo.spec import Spec

from .conftest import random_batch


def make(spec, total_steps=1_000_000, **settings) -> IQL:
    torch.manual_seed(1)
    agent = IQL(spec, Config(hidden=[16, 16], **settings), total_steps=total_steps).double()
    with torch.no_grad():  # targets that differ from the critics, values that differ from zero
        for network in (agent.target_critic, agent.critic, agent.value, agent.actor.net):
            for parameter in network.parameters():
                parameter.add_(0.6 * torch.randn_like(parameter))
    return agent


def advantages(agent, batch, network) -> np.ndarray:
    q = network(agent.target_critic, np.concatenate([batch.obs, batch.action], -1))[..., 0]
    return np.minimum(q[0], q[1]) - network(agent.value, batch.obs.numpy())[:, 0]


def test_value_loss_is_the_expectile_loss_of_equation_5(spec, make_batch, network):
    agent, batch = make(spec, expectile=0.9), make_batch()
    u = advantages(agent, batch, network)
    assert 0 < (u < 0).mean() < 1
    expected = np.mean([abs(0.9 - (x < 0)) * x**2 for x in u])
    assert agent.update(batch)["value_loss"].item() == pytest.approx(expected, rel=1e-6)


def test_critic_loss_is_equation_6_averaged_over_two_critics(spec, make_batch, network):
    agent, batch = make(spec), make_batch()
    next_value = network(agent.value, batch.next_obs.numpy())[:, 0]
    target = batch.reward.numpy() + 0.99 * np.where(batch.terminated, 0, next_value)
    q = network(agent.critic, np.concatenate([batch.obs, batch.action], -1))[..., 0]
    assert agent.update(batch)["critic_loss"].item() == pytest.approx(((q - target) ** 2).mean(), rel=1e-6)


@pytest.mark.parametrize("max_weight", [100.0, 1.5])
def test_actor_loss_is_equation_7_with_clipped_weights(spec, make_batch, network, max_weight):
    agent, batch = make(spec, max_weight=max_weight), make_batch()
    u = advantages(agent, batch, network)
    weight = np.minimum(np.exp(3.0 * u), max_weight)
    assert (weight < max_weight).any()
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    mean = (low + high) / 2 + (high - low) / 2 * np.tanh(network(agent.actor.net, batch.obs.numpy()))
    std = np.exp(agent.actor.log_std.detach().numpy()) * (high - low) / 2
    log_prob = -0.5 * ((batch.action.numpy() - mean) / std) ** 2 - np.log(std * math.sqrt(2 * math.pi))
    expected = (weight * -log_prob.sum(-1)).mean()
    assert agent.update(batch)["actor_loss"].item() == pytest.approx(expected, rel=1e-6)


def test_deterministic_actor_loss_is_the_weighted_squared_error(spec, make_batch, network):
    agent, batch = make(spec, policy="deterministic"), make_batch()
    u = advantages(agent, batch, network)
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    mean = (low + high) / 2 + (high - low) / 2 * np.tanh(network(agent.actor.net, batch.obs.numpy()))
    error = (mean - batch.action.numpy()) / ((high - low) / 2)
    expected = (np.minimum(np.exp(3 * u), 100) * (error**2).sum(-1)).mean()
    assert agent.update(batch)["actor_loss"].item() == pytest.approx(expected, rel=1e-6)


class Reference:
    """IQL step by step by Eq. 5 to 7: value, critics and their targets, actor, each with its own Adam."""

    DECAY_STEPS = 20

    def __init__(self, agent: IQL, spec) -> None:
        self.low, self.high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
        self.value = leaves(agent.value.parameters())
        self.policy = leaves(agent.actor.net.parameters())
        self.log_std = leaves([agent.actor.log_std])[0]
        self.critics = [member(agent.critic, m) for m in (0, 1)]
        self.targets = [member(agent.target_critic, m) for m in (0, 1)]
        self.value_adam = torch.optim.Adam(self.value, 3e-4)
        self.critic_adams = [torch.optim.Adam(critic, 3e-4) for critic in self.critics]
        self.actor_adam = torch.optim.Adam([*self.policy, self.log_std], 3e-4)
        self.updates = 0

    def v(self, obs):
        return forward(self.value, obs)[:, 0]

    def q(self, critic, batch):
        return forward(critic, torch.cat([batch.obs, batch.action], 1))[:, 0]

    def update(self, batch) -> None:
        with torch.no_grad():
            next_v = self.v(batch.next_obs)
            min_q = torch.minimum(self.q(self.targets[0], batch), self.q(self.targets[1], batch))
        difference = min_q - self.v(batch.obs)
        step(self.value_adam, (torch.abs(0.7 - (difference < 0).double()) * difference**2).mean())

        target = batch.reward + 0.99 * next_v * (1 - batch.terminated.double())
        for critic, target_critic, adam in zip(self.critics, self.targets, self.critic_adams, strict=True):
            step(adam, ((self.q(critic, batch) - target) ** 2).mean() / 2)
            soft_update(target_critic, critic, 0.005)

        mean = torch.tanh(forward(self.policy, batch.obs))
        mean = self.low + (mean + 1) / 2 * (self.high - self.low)
        normal = torch.distributions.Normal(mean, self.log_std.exp() * (self.high - self.low) / 2)
        weight = torch.exp(3.0 * difference.detach()).clamp(max=100)
        for group in self.actor_adam.param_groups:
            group["lr"] = 3e-4 * (1 + math.cos(math.pi * self.updates / self.DECAY_STEPS)) / 2
        step(self.actor_adam, -(weight * normal.log_prob(batch.action).sum(1)).mean())
        self.updates += 1


def test_five_updates_equal_a_plain_step_by_step_implementation(spec, make_batch):
    agent = make(spec, total_steps=Reference.DECAY_STEPS)
    reference = Reference(agent, spec)
    begin = [parameter.detach().clone() for parameter in agent.parameters()]
    for seed in range(5):
        agent.update(make_batch(seed))
        reference.update(make_batch(seed))
    assert all(not torch.equal(old, new) for old, new in zip(begin, agent.parameters(), strict=True))

    assert_close(agent.value.parameters(), reference.value)
    assert_close([*agent.actor.net.parameters(), agent.actor.log_std], [*reference.policy, reference.log_std])
    for m in (0, 1):
        assert_close(member(agent.critic, m), reference.critics[m])
        assert_close(member(agent.target_critic, m), reference.targets[m])


def test_after_the_cosine_has_reached_zero_the_actor_stands_still_and_the_critics_learn_on(spec, make_batch):
    agent = make(spec, total_steps=4)

    def moved() -> list[bool]:
        before = [parameter.detach().clone() for parameter in agent.parameters()]
        agent.update(make_batch())
        names = [name for name, _ in agent.named_parameters()]
        changed = [not torch.equal(old, new) for old, new in zip(before, agent.parameters(), strict=True)]
        return [
            any(c for n, c in zip(names, changed, strict=True) if n.startswith(part)) for part in ("actor", "value")
        ]

    assert [moved() for _ in range(5)] == [[True, True]] * 4 + [[False, True]]


# --- Discrete actions -------------------------------------------------------------------------------------------------


def test_of_discrete_actions_the_losses_are_those_of_a_categorical_policy_and_of_each_actions_value(network):
    spec = Spec((3,), num_actions=4)
    agent, batch = IQL(spec, Config(hidden=[16])).double(), random_batch(32, spec)
    shake(agent, by=0.6)
    obs, action = batch.obs.numpy(), batch.action.numpy()
    target_q = network(agent.target_critic.net, obs)[:, range(32), action].min(0)  # [2, B, 4]
    u = target_q - network(agent.value, obs)[:, 0]
    next_value = network(agent.value, batch.next_obs.numpy())[:, 0]
    target = batch.reward.numpy() + 0.99 * np.where(batch.terminated, 0, next_value)
    q = network(agent.critic.net, obs)[:, range(32), action]
    log_prob = log_softmax(network(agent.actor.net, obs), 1)[range(32), action]
    metrics = agent.update(batch)
    expected = {
        "value_loss": np.mean(np.where(u > 0, 0.7, 0.3) * u**2),
        "critic_loss": ((q - target) ** 2).mean(),
        "actor_loss": -(np.minimum(np.exp(3 * u), 100) * log_prob).mean(),
    }
    for name, value in expected.items():
        assert metrics[name].item() == pytest.approx(value, rel=1e-6), name


def test_of_discrete_actions_the_policy_becomes_better_than_the_one_that_it_learns_from(tmp_path, cartpole_file):
    run = zoo.train(
        "iql", env="cartpole", dataset=cartpole_file, steps=3_000, eval_every=3_000, eval_episodes=10, logger="none",
        run_dir=tmp_path / "run", algo_config={"hidden": [64, 64], "actor_lr": 1e-3, "critic_lr": 1e-3}, **GYMNASIUM,
    )  # fmt: skip
    _, episodes = run.evaluations[-1]
    assert episodes.returns.mean() > 2 * mean_return(cartpole_file)
