"""DSAC-T against a naive implementation that draws the same noise, and against the task that it must learn."""

import math

import pytest
import torch
import torch.nn.functional as F
from plain import GYMNASIUM, assert_close, forward, leaves, member, shake, soft_update, squashed, step

import zoo
from zoo.algos.dsac_t import DSACT, Config


def make(spec, **settings) -> DSACT:
    torch.manual_seed(1)
    agent = DSACT(spec, Config(hidden=[16, 16], actor_lr=3e-4, critic_lr=3e-4, **settings)).double()
    shake(agent.target_critic, agent.critic, agent.target_actor)
    return agent


class Reference:
    """The losses as in the authors' code, with a separate network for each critic.

    Args:
        square: the loss of an error of the spread: the authors' Huber loss, or twice that.
    """

    def __init__(self, agent: DSACT, spec, square) -> None:
        self.bounds = torch.tensor([spec.action_low, spec.action_high]).double()
        self.square, self.updates, self.usual_std = square, 0, [None, None]
        self.policy, self.target_policy = leaves(agent.actor.net.parameters()), leaves(agent.target_actor.parameters())
        self.critics = [member(agent.critic, m) for m in (0, 1)]
        self.targets = [member(agent.target_critic, m) for m in (0, 1)]
        self.log_alpha = leaves([agent.log_alpha])[0]
        self.actor_adam = torch.optim.Adam(self.policy, 3e-4)
        self.critic_adam = torch.optim.Adam([*self.critics[0], *self.critics[1]], 3e-4)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], 3e-4)

    def q(self, critic, obs, action):
        mean, spread = forward(critic, torch.cat([obs, action], 1), gelu).unbind(1)
        return mean, torch.log1p(spread.exp())

    def sample(self, policy, obs):
        mean, log_std = forward(policy, obs, gelu).split(2, 1)
        return squashed(mean, torch.clamp(log_std, -20, 0.5), *self.bounds)

    def critic_loss(self, m, batch, next_q, next_sample, next_log_prob):
        mean, std = self.q(self.critics[m], batch.obs, batch.action)
        now, old = std.mean().detach(), self.usual_std[m]
        self.usual_std[m] = usual = now if old is None else 0.995 * old + 0.005 * now
        going = 0.99 * (1 - batch.terminated.double())
        target = batch.reward + going * (next_q - self.log_alpha.exp() * next_log_prob)
        sampled = batch.reward + going * (next_sample - self.log_alpha.exp() * next_log_prob)
        bounded = mean + torch.clamp(sampled - mean, -3 * usual, 3 * usual)
        losses = []
        for i in range(len(mean)):
            s = std[i].detach()
            weight = min(max(usual**2 / (s**2 + 0.1), 0.1), 10)
            of_mean = F.huber_loss(mean[i], target[i].detach(), delta=50)
            of_spread = std[i] * (s**2 - self.square(mean[i].detach() - bounded[i].detach())) / (s + 0.1)
            losses.append(weight * (of_mean + of_spread))
        return sum(losses) / len(losses)

    def update(self, batch) -> None:
        with torch.no_grad():
            next_action, next_log_prob = self.sample(self.target_policy, batch.next_obs)
            noise = torch.randn(2, len(batch.obs), dtype=torch.float64)
            (q0, s0), (q1, s1) = (self.q(target, batch.next_obs, next_action) for target in self.targets)
            x0, x1 = (q + s * torch.clamp(z, -3, 3) for q, s, z in zip((q0, q1), (s0, s1), noise, strict=True))
            next_q, next_sample = torch.minimum(q0, q1), torch.where(q0 < q1, x0, x1)
        step(self.critic_adam, sum(self.critic_loss(m, batch, next_q, next_sample, next_log_prob) for m in (0, 1)))
        if self.updates % 2 == 0:
            action, log_prob = self.sample(self.policy, batch.obs)
            q = torch.minimum(*(self.q(critic, batch.obs, action)[0] for critic in self.critics))
            step(self.actor_adam, (self.log_alpha.exp().detach() * log_prob - q).mean())
            step(self.alpha_adam, -(self.log_alpha * (log_prob.detach() - 2)).mean())  # entropy -dim(A) = -2
            soft_update(self.target_policy, self.policy, 0.005)
            for target, critic in zip(self.targets, self.critics, strict=True):
                soft_update(target, critic, 0.005)
        self.updates += 1


def gelu(x):
    return F.gelu(x, approximate="tanh")


def huber(error):
    return 0.5 * error**2 if abs(error) < 50 else 50 * (abs(error) - 25)


@pytest.mark.parametrize("half", [True, False])
def test_six_updates_equal_a_naive_implementation_with_the_same_noise(spec, make_batch, half):
    agent = make(spec, half_square=half)
    reference = Reference(agent, spec, huber if half else lambda error: 2 * huber(error))
    begin = [parameter.detach().clone() for parameter in agent.parameters()]
    for seed in range(6):
        batch = make_batch(seed)
        batch = batch._replace(reward=60 * batch.reward)  # some errors above the Huber loss's 50, some clipped
        torch.manual_seed(seed)
        agent.update(batch, delayed=seed % 2 == 0)
        torch.manual_seed(seed)
        reference.update(batch)
    assert all(not torch.equal(old, new) for old, new in zip(begin, agent.parameters(), strict=True))
    assert_close(agent.actor.net.parameters(), reference.policy)
    assert_close(agent.target_actor.net.parameters(), reference.target_policy)
    assert_close([agent.log_alpha], [reference.log_alpha])
    assert_close(agent.usual_std[:, 0], reference.usual_std)
    for m in (0, 1):
        assert_close(member(agent.critic, m), reference.critics[m])
        assert_close(member(agent.target_critic, m), reference.targets[m])


def test_between_its_turns_actor_temperature_and_all_targets_stand_still(spec, make_batch):
    agent = make(spec)
    networks = (agent.actor, agent.target_actor, agent.target_critic)
    still = [*(parameter for network in networks for parameter in network.parameters()), agent.log_alpha]
    before = [parameter.detach().clone() for parameter in still]
    assert "actor_loss" not in agent.update(make_batch(), delayed=False)
    assert all(torch.equal(old, new) for old, new in zip(before, still, strict=True))


@pytest.mark.parametrize(("half", "share"), [(False, 1.0), (True, math.sqrt(0.5))])
def test_the_spread_becomes_the_standard_deviation_of_rewards_or_with_half_squares_less(spec, make_batch, half, share):
    """A reward of 5 +- 2 ends the episode. Clipping to 3 S cuts off parts of the tails, more with half squares."""
    torch.manual_seed(0)
    agent = DSACT(spec, Config(hidden=[8], critic_lr=3e-3, half_square=half)).double()
    batch = make_batch(0)
    batch = batch._replace(terminated=torch.ones_like(batch.terminated))
    batch = type(batch)(*(x[:1].expand(1_024, *x.shape[1:]) for x in batch))
    for _ in range(1_500):
        agent.update(batch._replace(reward=5 + 2 * torch.randn(1_024, dtype=torch.float64)), delayed=False)
    mean, std = agent.returns(agent.critic, batch.obs[:1], batch.action[:1])
    torch.testing.assert_close(mean, torch.full_like(mean, 5), rtol=0, atol=0.1)
    torch.testing.assert_close(std, torch.full_like(std, 2 * share), rtol=0.04, atol=0)


def test_expects_the_mean_of_the_critic_with_the_lower_one(spec, make_batch):
    agent, batch = make(spec), make_batch()
    out = agent.critic(batch.obs, batch.action)
    torch.testing.assert_close(agent.expected_return(batch.obs, batch.action), torch.minimum(*out[..., 0]))


@pytest.mark.slow
def test_learns_to_swing_the_pendulum_up_within_10000_steps(tmp_path):
    run = zoo.train(
        "dsac_t", env="pendulum", steps=10_000, eval_every=10_000, eval_episodes=20, logger="none",
        run_dir=tmp_path / "run", **GYMNASIUM,
        algo_config={"hidden": [64, 64], "actor_lr": 3e-4, "critic_lr": 3e-4, "alpha_lr": 1e-3, "learning_starts": 500},
    )  # fmt: skip
    _, episodes = run.evaluations[-1]
    assert episodes.returns.mean() >= -200  # random actions: -1,200; the best published agents: -150
