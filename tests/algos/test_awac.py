"""AWAC against a naive implementation that draws the same actions."""

import torch
from plain import assert_close, forward, leaves, member, shake, soft_update, step

from zoo.algos.awac import AWAC, Config


class Reference:
    """Eq. 8 and 13 with a network each and `torch.distributions`."""

    def __init__(self, agent: AWAC, spec, temperature: float) -> None:
        self.low, self.high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
        self.temperature = temperature
        self.mean, (self.log_std,) = leaves(agent.actor.net.parameters()), leaves([agent.actor.log_std])
        self.critics = [member(agent.critic, m) for m in (0, 1)]
        self.targets = [member(agent.target_critic, m) for m in (0, 1)]
        self.actor_adam = torch.optim.Adam([*self.mean, self.log_std], 3e-4)
        self.critic_adam = torch.optim.Adam([p for critic in self.critics for p in critic], 3e-4)

    def policy(self, obs):
        half = (self.high - self.low) / 2
        mean = (self.low + self.high) / 2 + half * forward(self.mean, obs)
        return torch.distributions.Normal(mean, (half * self.log_std.exp()).expand_as(mean))

    def sample(self, obs):
        policy = self.policy(obs)
        action = policy.mean + policy.stddev * torch.randn(policy.mean.shape, dtype=torch.float64)
        return torch.max(torch.min(action, self.high), self.low)

    def least(self, critics, obs, action):
        return torch.min(*(forward(critic, torch.cat([obs, action], 1))[:, 0] for critic in critics))

    def update(self, batch) -> None:
        obs, action = batch.obs, batch.action
        with torch.no_grad():
            next_q = self.least(self.targets, batch.next_obs, self.sample(batch.next_obs))
            target = batch.reward + 0.99 * (1 - batch.terminated.double()) * next_q
        inputs = torch.cat([obs, action], 1)
        step(self.critic_adam, sum(((forward(critic, inputs)[:, 0] - target) ** 2).mean() for critic in self.critics))
        with torch.no_grad():
            value = self.least(self.critics, obs, self.sample(obs))
            advantage = self.least(self.critics, obs, action) - value
            weight = (advantage / self.temperature).exp().clamp(max=1.5)
        step(self.actor_adam, -(weight * self.policy(obs).log_prob(action).sum(-1)).mean())
        for target_critic, critic in zip(self.targets, self.critics, strict=True):
            soft_update(target_critic, critic, 0.005)


def test_six_updates_equal_a_naive_implementation_with_the_same_actions(spec, make_batch):
    torch.manual_seed(1)
    agent = AWAC(spec, Config(hidden=[16, 16], temperature=0.3, max_weight=1.5)).double()  # some weights are clipped
    shake(agent.target_critic, agent.critic)
    reference = Reference(agent, spec, 0.3)
    begin = [parameter.detach().clone() for parameter in agent.parameters()]
    for seed in range(6):
        torch.manual_seed(seed)
        agent.update(make_batch(seed))
        torch.manual_seed(seed)
        reference.update(make_batch(seed))
    assert all(not torch.equal(old, new) for old, new in zip(begin, agent.parameters(), strict=True))
    assert_close(agent.actor.net.parameters(), reference.mean)
    assert_close([agent.actor.log_std], [reference.log_std])
    for m in (0, 1):
        assert_close(member(agent.critic, m), reference.critics[m])
        assert_close(member(agent.target_critic, m), reference.targets[m])


def test_what_is_played_lies_within_the_bounds(spec):
    torch.manual_seed(0)
    agent = AWAC(spec, Config(hidden=[16]))
    with torch.no_grad():
        agent.actor.net[-1].bias.fill_(3.0)
    obs = torch.randn(500, 3)
    for action in (agent.act(obs), agent.act(obs, explore=True)):
        assert (action >= torch.tensor(spec.action_low)).all()
        assert (action <= torch.tensor(spec.action_high)).all()
