"""CQL against loops over states and actions with SciPy's logsumexp, on the actions that it draws itself."""

import math

import pytest
import scipy.special
import torch
from plain import assert_close, forward, leaves, member, soft_update, step

from zoo.algos.cql import CQL, Config
from zoo.nn import EnsembleCritic

N = 4  # actions of each kind


def make(spec, **settings) -> CQL:
    torch.manual_seed(1)
    agent = CQL(spec, Config(hidden=[16, 16], num_actions=N, **settings)).double()
    with torch.no_grad():
        for network in (agent.target_critic, agent.critic, agent.actor):
            for parameter in network.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return agent


class Reference:
    """Eq. 4 with the soft maximum of appendix F, SAC's actor and temperature; everything from the weights before."""

    def __init__(self, agent: CQL, spec, lagrange: bool, max_target: bool) -> None:
        self.low, self.high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
        self.lagrange, self.max_target = lagrange, max_target
        self.policy, (self.log_alpha, self.log_weight) = (
            leaves(agent.actor.parameters()),
            leaves([agent.log_alpha, agent.log_weight]),
        )
        self.critics = [member(agent.critic, m) for m in (0, 1)]
        self.targets = [member(agent.target_critic, m) for m in (0, 1)]
        self.actor_adam = torch.optim.Adam(self.policy, 3e-5)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], 3e-5)
        self.weight_adam = torch.optim.Adam([self.log_weight], 3e-4)
        self.critic_adam = torch.optim.Adam([p for critic in self.critics for p in critic], 3e-4)

    def draw(self, obs, noise):
        """Actions and their log densities, by the change of variables that torch.distributions makes."""
        mean, log_std = forward(self.policy, obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        affine = torch.distributions.AffineTransform((self.low + self.high) / 2, (self.high - self.low) / 2)
        squashed = torch.distributions.TransformedDistribution(
            normal, [torch.distributions.TanhTransform(cache_size=1), affine]
        )
        x = normal.mean + normal.stddev * noise
        action = affine(torch.tanh(x))
        log_det = torch.distributions.TanhTransform().log_abs_det_jacobian(x, torch.tanh(x))
        log_prob = normal.log_prob(x) - log_det - ((self.high - self.low) / 2).log()
        assert squashed.event_shape == ()
        return action, log_prob.sum(-1)

    def q(self, critic, obs, action):
        return forward(critic, torch.cat([obs, action], 1))[:, 0]

    def least(self, critics, obs, action):
        return torch.min(*(self.q(critic, obs, action) for critic in critics))

    def update(self, batch) -> tuple[float, float]:
        shape = batch.action.shape
        first = torch.randn(shape, dtype=torch.float64)
        noise = torch.randn(2, N, *shape, dtype=torch.float64)
        action, log_prob = self.draw(batch.obs, first)
        actor_loss = (self.log_alpha.exp().detach() * log_prob - self.least(self.critics, batch.obs, action)).mean()
        with torch.no_grad():
            sampled = [self.draw(batch.obs, noise[0, k]) for k in range(N)]
            sampled_next = [self.draw(batch.next_obs, noise[1, k]) for k in range(N)]
            if self.max_target:
                values = [self.least(self.targets, batch.next_obs, a) for a, _ in sampled_next]
                next_q = torch.stack(values).max(0).values
            else:
                next_action, _ = self.draw(batch.next_obs, torch.randn(shape, dtype=torch.float64))
                next_q = self.least(self.targets, batch.next_obs, next_action)
            target = batch.reward + 0.99 * (1 - batch.terminated.double()) * next_q
        uniform = self.low + (self.high - self.low) * torch.rand(N, *shape, dtype=torch.float64)
        log_uniform = -sum(math.log(b - a) for a, b in zip(self.low.tolist(), self.high.tolist(), strict=True))
        candidates = [(u, torch.full(shape[:1], log_uniform).double()) for u in uniform] + sampled_next + sampled
        loss, gaps = 0.0, []
        for critic in self.critics:
            data_q = self.q(critic, batch.obs, batch.action)
            corrected = torch.stack([self.q(critic, batch.obs, a) - density for a, density in candidates], 1)
            soft = torch.logsumexp(corrected, 1)
            for i in range(len(soft)):
                assert soft[i].item() == pytest.approx(scipy.special.logsumexp(corrected[i].tolist()), rel=1e-9)
            gaps.append((soft - data_q).mean())
            loss = loss + ((data_q - target) ** 2).mean()
        gap = torch.stack(gaps)
        penalty = 10 * gap.sum()
        if self.lagrange:
            penalty = self.log_weight.exp().item() * penalty
            gap_loss = -self.log_weight.exp() * 10 * (gap.detach() - 0.8)
            step(self.weight_adam, gap_loss.sum() * 0.5)
        step(self.alpha_adam, -(self.log_alpha * (log_prob.detach() - shape[1])).mean())
        step(self.actor_adam, actor_loss)
        step(self.critic_adam, loss + penalty)
        for target_critic, critic in zip(self.targets, self.critics, strict=True):
            soft_update(target_critic, critic, 0.005)
        return float(loss.detach()), float(gap.detach().mean())


@pytest.mark.parametrize(("lagrange", "max_target"), [(False, False), (True, True)])
def test_four_updates_equal_loops_with_the_same_actions(spec, make_batch, lagrange, max_target):
    agent = make(spec, lagrange=lagrange, max_target=max_target)
    reference = Reference(agent, spec, lagrange, max_target)
    for seed in range(4):
        torch.manual_seed(seed)
        metrics = agent.update(make_batch(seed))
        torch.manual_seed(seed)
        loss, gap = reference.update(make_batch(seed))
        assert metrics["critic_loss"].item() == pytest.approx(loss, rel=1e-6)
        assert metrics["gap"].item() == pytest.approx(gap, rel=1e-6)
    assert_close(agent.actor.parameters(), reference.policy)
    assert_close([agent.log_alpha, agent.log_weight], [reference.log_alpha, reference.log_weight])
    for m in (0, 1):
        assert_close(member(agent.critic, m), reference.critics[m])
        assert_close(member(agent.target_critic, m), reference.targets[m])
    assert (agent.log_weight.item() != 1.0) == lagrange


def test_many_actions_an_observation_are_valued_as_one_by_one():
    torch.manual_seed(0)
    critic = EnsembleCritic(3, 5, 2, [16, 16], outputs=7)
    obs, actions = torch.randn(8, 5), torch.randn(4, 8, 2)
    expected = torch.stack([critic(obs, action) for action in actions], 1)
    torch.testing.assert_close(critic.of_many(obs, actions), expected)
