"""CQL against loops over states and actions with SciPy's logsumexp, on the actions that it draws itself."""

import math

import pytest
import scipy.special
import torch
from plain import assert_close, forward, leaves, member, shake, soft_update, step

from zoo.algos.cql import CQL, Config
from zoo.data.monte_carlo import MonteCarloBatch
from zoo.nn import EnsembleCritic
from zoo.spec import Spec

N = 4  # actions of each kind


def make(spec, **settings) -> CQL:
    torch.manual_seed(1)
    agent = CQL(spec, Config(hidden=[16, 16], num_actions=N, **settings)).double()
    shake(agent.target_critic, agent.critic, agent.actor)
    return agent


class Reference:
    """Eq. 4 with the soft maximum of appendix F, SAC's actor and temperature, all with the weights before an update."""

    def __init__(
        self, agent: CQL, spec, lagrange: bool = False, max_target: bool = False, calibrated: bool = False,
        subset: int | None = None,
    ) -> None:  # fmt: skip
        self.calibrated, self.subset = calibrated, subset
        self.low, self.high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
        self.lagrange, self.max_target = lagrange, max_target
        self.policy, (self.log_alpha, self.log_weight) = (
            leaves(agent.actor.parameters()),
            leaves([agent.log_alpha, agent.log_weight]),
        )
        members = range(agent.config.num_critics)
        self.critics = [member(agent.critic, m) for m in members]
        self.targets = [member(agent.target_critic, m) for m in members]
        self.actor_adam = torch.optim.Adam(self.policy, 3e-5)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], 3e-5)
        self.weight_adam = torch.optim.Adam([self.log_weight], 3e-4)
        self.critic_adam = torch.optim.Adam([p for critic in self.critics for p in critic], 3e-4)

    def draw(self, obs, noise):
        """Actions and their log densities, by torch.distributions' change of variables."""
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
        return torch.stack([self.q(critic, obs, action) for critic in critics]).min(0).values

    def update(self, batch) -> tuple[float, float]:
        shape = batch.action.shape
        first = torch.randn(shape, dtype=torch.float64)
        noise = torch.randn(2, N, *shape, dtype=torch.float64)
        action, log_prob = self.draw(batch.obs, first)
        actor_loss = (self.log_alpha.exp().detach() * log_prob - self.least(self.critics, batch.obs, action)).mean()
        with torch.no_grad():
            sampled = [self.draw(batch.obs, noise[0, k]) for k in range(N)]
            sampled_next = [self.draw(batch.next_obs, noise[1, k]) for k in range(N)]
            next_actions = [a for a, _ in sampled_next]
            if not self.max_target:
                next_actions = [self.draw(batch.next_obs, torch.randn(shape, dtype=torch.float64))[0]]
            targets = self.targets
            if self.subset:
                drawn = torch.rand(len(targets), dtype=torch.float64)
                targets = [targets[m] for m in sorted(range(len(targets)), key=lambda m: -drawn[m])[: self.subset]]
            next_q = torch.stack([self.least(targets, batch.next_obs, a) for a in next_actions]).max(0).values
            target = batch.reward + 0.99 * (1 - batch.terminated.double()) * next_q
        uniform = self.low + (self.high - self.low) * torch.rand(N, *shape, dtype=torch.float64)
        log_uniform = -sum(math.log(b - a) for a, b in zip(self.low.tolist(), self.high.tolist(), strict=True))
        candidates = [(u, torch.full(shape[:1], log_uniform).double()) for u in uniform] + sampled_next + sampled
        loss, gaps = 0.0, []
        for critic in self.critics:
            data_q = self.q(critic, batch.obs, batch.action)
            values = [self.q(critic, batch.obs, a) for a, _ in candidates]
            if self.calibrated:  # all but the uniform ones
                bound = batch.return_to_go
                values = [v if k < N else torch.where(v > bound, v, bound) for k, v in enumerate(values)]
            corrected = torch.stack([v - density for v, (_, density) in zip(values, candidates, strict=True)], 1)
            soft = torch.logsumexp(corrected, 1)
            for i in range(len(soft)):
                assert soft[i].item() == pytest.approx(scipy.special.logsumexp(corrected[i].tolist()), rel=1e-9)
            gaps.append((soft - data_q).mean() - ((self.high - self.low) / 2).log().sum())  # of actions in [-1, 1]
            loss = loss + ((data_q - target) ** 2).mean()
        gap = torch.stack(gaps)
        penalty = 10 * gap.sum()
        if self.lagrange:
            penalty = self.log_weight.exp().item() * penalty
            gap_loss = -self.log_weight.exp() * 10 * (gap.detach() - 0.8)
            step(self.weight_adam, gap_loss.sum() * 0.5)
        in_unit = log_prob.detach() + ((self.high - self.low) / 2).log().sum()  # of actions in [-1, 1]
        step(self.alpha_adam, -(self.log_alpha * (in_unit - shape[1])).mean())
        step(self.actor_adam, actor_loss)
        step(self.critic_adam, loss + penalty)
        for target_critic, critic in zip(self.targets, self.critics, strict=True):
            soft_update(target_critic, critic, 0.005)
        return float(loss.detach()), float(gap.detach().mean())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lagrange": True, "max_target": True},
        {"calibrated": True},
        {"calibrated": True, "max_target": True, "num_critics": 4, "subset": 2},
        {"num_critics": 3, "subset": 1},
    ],
    ids=["cql", "antmaze", "cal-ql", "cal-ql of an ensemble", "ensemble"],
)
def test_four_updates_equal_loops_with_the_same_actions(spec, make_batch, settings):
    agent = make(spec, **settings)
    reference = Reference(agent, spec, **{key: value for key, value in settings.items() if key != "num_critics"})
    for seed in range(4):
        batch = make_batch(seed)
        returns = 3 * torch.randn(32, dtype=torch.float64).where(torch.arange(32) < 24, -torch.inf)
        batch = MonteCarloBatch(*batch[:5], returns)
        torch.manual_seed(seed)
        metrics = agent.update(batch)
        torch.manual_seed(seed)
        loss, gap = reference.update(batch)
        assert metrics["critic_loss"].item() == pytest.approx(loss, rel=1e-6)
        assert metrics["gap"].item() == pytest.approx(gap, rel=1e-6)
    assert_close(agent.actor.parameters(), reference.policy)
    assert_close([agent.log_alpha, agent.log_weight], [reference.log_alpha, reference.log_weight])
    for m in range(agent.config.num_critics):
        assert_close(member(agent.critic, m), reference.critics[m])
        assert_close(member(agent.target_critic, m), reference.targets[m])
    assert (agent.log_weight.item() != 1.0) == ("lagrange" in settings)


def test_the_gap_is_that_of_actions_in_minus_1_to_1_whatever_their_units(make_batch):
    """The same task with actions from -1 to 1 and from 3 to 4; the networks differ only in the critics' inputs."""
    one, two = (make(Spec((3,), low, high), lagrange=True) for low, high in (((-1, -1), (1, 1)), ((3, 3), (4, 4))))
    with torch.no_grad():
        for critic in (two.critic, two.target_critic):
            first = critic[0]
            first.weight[..., 3:] *= 2
            first.bias -= 3.5 * first.weight[..., 3:].sum(-1)[:, None]
    action, returns = 2 * torch.rand(32, 2, dtype=torch.float64) - 1, torch.zeros(32, dtype=torch.float64)
    gaps = []
    for agent, its_action in ((one, action), (two, 3.5 + action / 2)):
        torch.manual_seed(0)
        gaps.append(agent.update(MonteCarloBatch(*make_batch()[:5], returns)._replace(action=its_action))["gap"].item())
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-6)
    assert one.log_weight.item() == pytest.approx(two.log_weight.item(), abs=1e-6)


def test_values_below_what_the_data_returned_are_not_pushed_further_down(spec, make_batch):
    """If the return exceeds every value, the soft maximum is the return and has no gradient."""
    agent = make(spec, calibrated=True)
    with torch.no_grad():
        agent.critic[-1].weight *= 0.01
    batch = MonteCarloBatch(*make_batch()[:5], torch.full((32,), 1e3, dtype=torch.float64))
    policy = tuple(x.detach() for x in agent.actor(batch.obs))
    sampled = agent.actor.draw(*policy, torch.randn(N, *batch.action.shape, dtype=torch.float64))
    q = agent.critic(batch.obs, batch.action).squeeze(-1).detach()
    (bounded,) = torch.autograd.grad(agent.gap(batch, q, sampled, sampled).sum(), agent.critic[-1].bias)
    below = batch._replace(return_to_go=torch.full((32,), -torch.inf, dtype=torch.float64))
    (free,) = torch.autograd.grad(agent.gap(below, q, sampled, sampled).sum(), agent.critic[-1].bias)
    torch.testing.assert_close(free, torch.ones_like(free))  # all weights of the soft maximum together
    assert (bounded < 1e-100).all()


@pytest.mark.parametrize("norm", [{}, {"layer_norm": True}, {"layer_norm": True, "norm_first": True}])
def test_many_actions_an_observation_are_valued_as_one_by_one(norm):
    torch.manual_seed(0)
    critic = EnsembleCritic(3, 5, 2, [16, 16], outputs=7, **norm)
    obs, actions = torch.randn(8, 5), torch.randn(4, 8, 2)
    expected = torch.stack([critic(obs, action) for action in actions], 1)
    torch.testing.assert_close(critic.of_many(obs, actions), expected)
