"""TD3 against a naive implementation that draws the same noise, and against the task that it must learn."""

import pytest
import torch
from plain import GYMNASIUM, assert_close, forward, leaves, member, shake, soft_update, step

import zoo
from zoo.algos.td3 import TD3, Config


def make(spec, **settings) -> TD3:
    torch.manual_seed(1)
    agent = TD3(spec, Config(hidden=[16, 16], **settings)).double()
    shake(agent.target_critic, agent.critic, agent.target_actor)
    return agent


class Reference:
    """Algorithm 1 of the paper, or DDPG with one critic, no delay and no noise. Each critic is a separate network."""

    def __init__(self, agent: TD3, spec, critics: int, delay: int, noise: float) -> None:
        self.low, self.high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
        self.delay, self.noise, self.updates = delay, noise, 0
        self.policy, self.target_policy = leaves(agent.actor.parameters()), leaves(agent.target_actor.parameters())
        self.critics = [member(agent.critic, m) for m in range(critics)]
        self.targets = [member(agent.target_critic, m) for m in range(critics)]
        self.actor_adam = torch.optim.Adam(self.policy, 3e-4)
        self.critic_adam = torch.optim.Adam([p for critic in self.critics for p in critic], 3e-4)

    def mu(self, policy, obs):
        share = (torch.tanh(forward(policy, obs)) + 1) / 2
        return self.low + share * (self.high - self.low)

    def q(self, critic, obs, action):
        return forward(critic, torch.cat([obs, action], 1))[:, 0]

    def update(self, batch) -> None:
        with torch.no_grad():
            noise = torch.clamp(torch.randn(batch.action.shape, dtype=torch.float64) * self.noise, -0.5, 0.5)
            next_action = self.mu(self.target_policy, batch.next_obs) + noise * (self.high - self.low) / 2
            next_action = torch.max(torch.min(next_action, self.high), self.low)
            next_q = torch.stack([self.q(target, batch.next_obs, next_action) for target in self.targets])
            target = batch.reward + 0.99 * (1 - batch.terminated.double()) * next_q.min(0).values
        loss = sum(((self.q(critic, batch.obs, batch.action) - target) ** 2).mean() for critic in self.critics)
        step(self.critic_adam, loss)
        if self.updates % self.delay == 0:
            step(self.actor_adam, -self.q(self.critics[0], batch.obs, self.mu(self.policy, batch.obs)).mean())
            soft_update(self.target_policy, self.policy, 0.005)
            for target_critic, critic in zip(self.targets, self.critics, strict=True):
                soft_update(target_critic, critic, 0.005)
        self.updates += 1


@pytest.mark.parametrize(("critics", "delay", "noise"), [(2, 2, 0.2), (1, 1, 0.0)], ids=["td3", "ddpg"])
def test_six_updates_equal_a_naive_implementation_with_the_same_noise(spec, make_batch, critics, delay, noise):
    agent = make(spec, num_critics=critics, policy_delay=delay, target_noise=noise)
    reference = Reference(agent, spec, critics, delay, noise)
    begin = [parameter.detach().clone() for parameter in agent.parameters()]
    for seed in range(6):
        torch.manual_seed(seed)
        agent.update(make_batch(seed), delayed=seed % delay == 0)
        torch.manual_seed(seed)
        reference.update(make_batch(seed))
    assert all(not torch.equal(old, new) for old, new in zip(begin, agent.parameters(), strict=True))
    assert_close(agent.actor.parameters(), reference.policy)
    assert_close(agent.target_actor.parameters(), reference.target_policy)
    for m in range(critics):
        assert_close(member(agent.critic, m), reference.critics[m])
        assert_close(member(agent.target_critic, m), reference.targets[m])


def test_between_its_turns_the_actor_and_all_targets_stand_still(spec, make_batch):
    agent = make(spec)
    still = [*agent.actor.parameters(), *agent.target_actor.parameters(), *agent.target_critic.parameters()]
    before = [parameter.detach().clone() for parameter in still]
    assert "actor_loss" not in agent.update(make_batch(), delayed=False)
    assert all(torch.equal(old, new) for old, new in zip(before, still, strict=True))


def test_exploration_noise_is_in_units_of_half_the_actions_range(spec):
    agent, obs = make(spec), torch.zeros(20_000, 3).double()
    half = (torch.tensor(spec.action_high) - torch.tensor(spec.action_low)).double() / 2
    noise = agent.act(obs, explore=True) - agent.act(obs)
    torch.testing.assert_close(noise.std(0) / half, torch.full((2,), 0.1).double(), rtol=0.05, atol=0)


@pytest.mark.slow
def test_learns_to_swing_the_pendulum_up_within_10000_steps(tmp_path):
    run = zoo.train(
        "td3", env="pendulum", steps=10_000, eval_every=10_000, eval_episodes=20, logger="none",
        run_dir=tmp_path / "run", **GYMNASIUM,
        algo_config={"hidden": [64, 64], "actor_lr": 1e-3, "critic_lr": 1e-3, "learning_starts": 500},
    )  # fmt: skip
    _, episodes = run.evaluations[-1]
    assert episodes.returns.mean() >= -200
