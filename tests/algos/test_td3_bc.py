"""TD3+BC against a naive implementation that draws the same noise."""

import pytest
import torch
from plain import assert_close, forward, leaves, member, shake, soft_update, step

from zoo.algos.td3_bc import TD3BC, Config


def make(spec, **settings) -> TD3BC:
    torch.manual_seed(1)
    agent = TD3BC(spec, Config(hidden=[16, 16], **settings)).double()
    shake(agent.target_critic, agent.critic, agent.target_actor)
    return agent


class Reference:
    """TD3 with Eq. 5 for the actor, with a separate network for each critic."""

    def __init__(self, agent: TD3BC, spec) -> None:
        self.low, self.high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
        self.policy, self.target_policy = leaves(agent.actor.parameters()), leaves(agent.target_actor.parameters())
        self.critics = [member(agent.critic, m) for m in (0, 1)]
        self.targets = [member(agent.target_critic, m) for m in (0, 1)]
        self.actor_adam = torch.optim.Adam(self.policy, 3e-4)
        self.critic_adam = torch.optim.Adam([p for critic in self.critics for p in critic], 3e-4)

    def mu(self, policy, obs):
        share = (torch.tanh(forward(policy, obs)) + 1) / 2
        return self.low + share * (self.high - self.low)

    def q(self, critic, obs, action):
        return forward(critic, torch.cat([obs, action], 1))[:, 0]

    def update(self, batch, delayed: bool) -> None:
        with torch.no_grad():
            noise = torch.clamp(torch.randn(batch.action.shape, dtype=torch.float64) * 0.2, -0.5, 0.5)
            next_action = self.mu(self.target_policy, batch.next_obs) + noise * (self.high - self.low) / 2
            next_action = torch.max(torch.min(next_action, self.high), self.low)
            next_q = torch.stack([self.q(target, batch.next_obs, next_action) for target in self.targets])
            target = batch.reward + 0.99 * (1 - batch.terminated.double()) * next_q.min(0).values
        step(self.critic_adam, sum(((self.q(c, batch.obs, batch.action) - target) ** 2).mean() for c in self.critics))
        if delayed:
            action = self.mu(self.policy, batch.obs)
            q = self.q(self.critics[0], batch.obs, action)
            scale = 2.5 / (sum(abs(x) for x in q.tolist()) / len(q))
            error = (action - batch.action) / ((self.high - self.low) / 2)
            step(self.actor_adam, -scale * q.mean() + (error**2).mean())
            soft_update(self.target_policy, self.policy, 0.005)
            for target_critic, critic in zip(self.targets, self.critics, strict=True):
                soft_update(target_critic, critic, 0.005)


def test_six_updates_equal_a_naive_implementation_with_the_same_noise(spec, make_batch):
    agent = make(spec)
    reference = Reference(agent, spec)
    begin = [parameter.detach().clone() for parameter in agent.parameters()]
    for seed in range(6):
        torch.manual_seed(seed)
        agent.update(make_batch(seed), delayed=seed % 2 == 1)
        torch.manual_seed(seed)
        reference.update(make_batch(seed), delayed=seed % 2 == 1)
    assert all(not torch.equal(old, new) for old, new in zip(begin, agent.parameters(), strict=True))
    assert_close(agent.actor.parameters(), reference.policy)
    assert_close(agent.target_actor.parameters(), reference.target_policy)
    for m in (0, 1):
        assert_close(member(agent.critic, m), reference.critics[m])
        assert_close(member(agent.target_critic, m), reference.targets[m])


def test_alpha_0_clones_the_data(spec, make_batch):
    agent, batch = make(spec, alpha=0.0), make_batch()
    error = (agent.actor.to_unit(agent.actor.mode(batch.obs)) - agent.actor.to_unit(batch.action)).square().mean()
    assert agent.actor_loss(batch).item() == pytest.approx(error.item(), rel=1e-12)
