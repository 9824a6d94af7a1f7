"""SAC against a naive implementation that draws the same noise, and against the task that it must learn."""

import numpy as np
import pytest
import torch
from plain import GYMNASIUM, assert_close, forward, leaves, member, shake, soft_update, squashed, step

import zoo
from zoo.algos.sac import SAC, Config
from zoo.runs.start import learned


def make(spec, **settings) -> SAC:
    torch.manual_seed(1)
    agent = SAC(spec, Config(hidden=[16, 16], **settings)).double()
    if "alpha" not in settings:
        agent.log_alpha.data.fill_(-0.7)
    shake(agent.target_critic, agent.critic)
    return agent


class Reference:
    """Equations 5, 9 and 18, one after the other, with a separate network for each critic."""

    def __init__(self, agent: SAC, spec) -> None:
        self.bounds = torch.tensor([spec.action_low, spec.action_high]).double()
        self.policy = leaves(agent.actor.net.parameters())
        self.critics = [member(agent.critic, m) for m in (0, 1)]
        self.targets = [member(agent.target_critic, m) for m in (0, 1)]
        self.log_alpha = leaves([agent.log_alpha])[0]
        self.actor_adam = torch.optim.Adam(self.policy, 3e-4)
        self.critic_adam = torch.optim.Adam([*self.critics[0], *self.critics[1]], 3e-4)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], 3e-4)

    def q(self, critic, obs, action):
        return forward(critic, torch.cat([obs, action], 1))[:, 0]

    def sample(self, obs):
        mean, log_std = forward(self.policy, obs).split(2, 1)
        return squashed(mean, torch.clamp(log_std, -20, 2), *self.bounds)

    def update(self, batch) -> None:
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = self.sample(batch.next_obs)
            next_q = [self.q(target, batch.next_obs, next_action) for target in self.targets]
            soft_value = torch.minimum(*next_q) - alpha * next_log_prob
            target = batch.reward + 0.99 * (1 - batch.terminated.double()) * soft_value
        loss = sum(((self.q(critic, batch.obs, batch.action) - target) ** 2).mean() / 2 for critic in self.critics)
        step(self.critic_adam, loss)

        action, log_prob = self.sample(batch.obs)
        q = torch.minimum(*(self.q(critic, batch.obs, action) for critic in self.critics))
        step(self.actor_adam, (alpha * log_prob - q).mean())

        step(self.alpha_adam, -(self.log_alpha * (log_prob.detach() - 2)).mean())  # entropy -dim(A) = -2
        for target_critic, critic in zip(self.targets, self.critics, strict=True):
            soft_update(target_critic, critic, 0.005)


def test_five_updates_equal_a_naive_implementation_with_the_same_noise(spec, make_batch):
    agent = make(spec)
    reference = Reference(agent, spec)
    begin = [parameter.detach().clone() for parameter in agent.parameters()]
    for seed in range(5):
        torch.manual_seed(seed)
        agent.update(make_batch(seed))
        torch.manual_seed(seed)
        reference.update(make_batch(seed))
    assert all(not torch.equal(old, new) for old, new in zip(begin, agent.parameters(), strict=True))

    assert_close(agent.actor.net.parameters(), reference.policy)
    assert_close([agent.log_alpha], [reference.log_alpha])
    for m in (0, 1):
        assert_close(member(agent.critic, m), reference.critics[m])
        assert_close(member(agent.target_critic, m), reference.targets[m])


def test_temperature_rises_where_entropy_is_below_its_target_and_falls_above(spec):
    for log_prob, direction in ((5.0, 1), (-5.0, -1)):  # entropy is -5, then 5; its target is -2
        agent = make(spec)
        agent.alpha_loss(torch.full((8,), log_prob, dtype=torch.float64)).backward()
        assert -np.sign(agent.log_alpha.grad.item()) == direction


def test_target_entropy_is_of_actions_between_minus_one_and_one_and_can_be_set(spec):
    units = np.log((np.array(spec.action_high) - np.array(spec.action_low)) / 2).sum()
    assert make(spec).target_entropy == pytest.approx(-2 + units)
    assert make(spec, target_entropy=-0.5).target_entropy == pytest.approx(-0.5 + units)


def test_the_temperature_can_be_chosen(spec, make_batch):
    agent = make(spec, alpha=0.2)
    for seed in range(3):
        assert agent.update(make_batch(seed))["alpha"].item() == pytest.approx(0.2)
    with pytest.raises(ValueError, match=r"algo\.alpha=0\.0 must be above 0"):
        Config(alpha=0.0)
    other = make(spec)
    assert "log_alpha" in learned(other)  # and so is taken over by `init_from`
    assert "log_alpha" not in learned(agent)


@pytest.mark.slow
def test_learns_to_swing_the_pendulum_up_within_6000_steps(tmp_path):
    run = zoo.train(
        "sac", env="pendulum", steps=6_000, eval_every=6_000, eval_episodes=20, logger="none", run_dir=tmp_path / "run",
        **GYMNASIUM,
        algo_config={"hidden": [64, 64], "actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-3, "learning_starts": 500},
    )  # fmt: skip
    _, episodes = run.evaluations[-1]
    assert episodes.returns.mean() >= -200  # random actions: -1,200; the best published agents: -150
