"""OFQL's losses against PyTorch's own forward-mode derivative and NumPy, with the noise of the same seed."""

import numpy as np
import pytest
import torch
from plain import shake

from zoo.algos.ofql import OFQL, Config
from zoo.data.batch import Batch
from zoo.errors import UsageError
from zoo.models.flow import MeanFlowPolicy
from zoo.nn import tracing
from zoo.settings.compose import compose
from zoo.spec import Spec


def make(spec, **settings) -> OFQL:
    torch.manual_seed(1)
    agent = OFQL(spec, Config(hidden=[16, 16], **settings)).double()
    shake(agent)
    return agent


def q_values(critic, obs, action) -> np.ndarray:
    """Both members, `[2, B]`: Mish between affine layers."""
    members = []
    for m in (0, 1):
        x = np.concatenate([obs, action], -1)
        parameters = [parameter[m].detach().numpy() for parameter in critic.parameters()]
        for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
            x = x @ weight.T + bias
            x = x * np.tanh(np.log1p(np.exp(x)))
        members.append((x @ parameters[-2].T + parameters[-1])[:, 0])
    return np.stack(members)


def bounded(spec, x) -> np.ndarray:
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    return np.clip((high + low) / 2 + (high - low) / 2 * x, low, high)


def one_step(spec, policy, obs, noise) -> np.ndarray:
    """The action that the flow makes from noise, from time 1 to time 0."""
    with torch.no_grad():
        velocity = policy(obs, noise, torch.zeros(len(obs)).double(), torch.ones(len(obs)).double())
    return bounded(spec, (noise - velocity).numpy())


def forward_mode(policy, obs, x, r, t, v) -> tuple[torch.Tensor, torch.Tensor]:
    with tracing.tracing():
        return torch.func.jvp(
            lambda x, r, t: policy(obs, x, r, t), (x, r, t), (v, torch.zeros_like(r), torch.ones_like(t))
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_velocity_and_its_derivative_are_those_of_pytorchs_forward_mode(dtype):
    """In float32 and with this size, layers use the library that was measured to be faster."""
    torch.manual_seed(0)
    policy = MeanFlowPolicy(5, (-1.0, -1.0), (1.0, 1.0), [256, 256]).to(dtype)
    obs, x, v = (torch.randn(64, n, dtype=dtype) for n in (5, 2, 2))
    r, t = torch.rand(2, 64, dtype=dtype).sort(0).values
    velocity, derivative = policy.with_derivative(obs, x, r, t, v)
    exact = forward_mode(policy.double(), *(each.double() for each in (obs, x, r, t, v)))
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(velocity.double(), exact[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(derivative.double(), exact[1], rtol=tolerance, atol=tolerance)
    assert velocity.requires_grad
    assert not derivative.requires_grad


@pytest.mark.parametrize("flow_ratio", [0.0, 0.5, 1.0])
def test_the_field_is_matched_to_meanflows_target(spec, make_batch, flow_ratio):
    agent, batch = make(spec, flow_ratio=flow_ratio), make_batch()
    torch.manual_seed(4)
    eps = torch.randn(32, 2, dtype=torch.float64)
    r, t = agent.times(batch.reward)
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    action = (batch.action - (high + low) / 2) / ((high - low) / 2)
    x, v = (1 - t)[:, None] * action + t[:, None] * eps, eps - action
    u, du_dt = forward_mode(agent.policy, batch.obs, x, r, t, v)
    expected = (u - (v - (t - r)[:, None] * du_dt).detach()).square().mean()
    torch.manual_seed(4)
    found = agent.cloning_loss(batch)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    if flow_ratio == 1:  # plain flow matching
        torch.testing.assert_close(expected, (agent.policy(batch.obs, x, t, t) - v).square().mean())
    parameters = list(agent.policy.parameters())
    for one, other in zip(
        torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)


def test_times_are_ordered_logit_normals_of_which_so_many_are_one(spec):
    agent = make(spec, flow_ratio=0.25)
    torch.manual_seed(0)
    r, t = agent.times(torch.zeros(100_000))
    assert ((r > 0) & (r <= t) & (t < 1)).all()
    assert (r == t).double().mean().item() == pytest.approx(0.25, abs=0.01)
    apart = torch.cat([r, t]).reshape(2, -1)[:, r < t].logit()
    assert apart.mean().item() == pytest.approx(-0.4, abs=0.02)
    assert apart.std().item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("actions", [1, 4])
def test_the_critics_target_is_the_best_of_the_target_policys_one_step_actions(spec, make_batch, actions):
    agent, batch = make(spec, backup_actions=actions), make_batch()
    torch.manual_seed(3)
    noise = torch.randn(actions, 32, 2, dtype=torch.float64)
    next_q = [
        q_values(agent.target_critic, batch.next_obs.numpy(), one_step(spec, agent.target_policy, batch.next_obs, one))
        for one in noise
    ]
    target = batch.reward.numpy() + 0.99 * ~batch.terminated.numpy() * np.max(next_q, 0).min(0)
    expected = ((q_values(agent.critic, batch.obs.numpy(), batch.action.numpy()) - target) ** 2).mean(-1).sum()
    torch.manual_seed(3)
    assert agent.critic_loss(batch)[0].item() == pytest.approx(expected, rel=1e-6)


def test_each_target_critic_takes_its_best_action_before_the_lesser_value_is_taken(spec, make_batch, monkeypatch):
    agent, batch = make(spec, backup_actions=2), make_batch()
    values = torch.tensor([[1.0, 5.0], [4.0, 0.0]], dtype=torch.float64)[:, :, None, None]  # of each critic and action
    monkeypatch.setattr(agent.target_critic, "of_many", lambda obs, _: values.expand(2, 2, len(obs), 1))
    target = batch.reward.numpy() + 0.99 * ~batch.terminated.numpy() * 4
    expected = ((q_values(agent.critic, batch.obs.numpy(), batch.action.numpy()) - target) ** 2).mean(-1).sum()
    assert agent.critic_loss(batch)[0].item() == pytest.approx(expected, rel=1e-6)


def test_the_value_climbed_is_one_critics_in_units_of_the_others_size(spec, make_batch):
    agent, batch = make(spec), make_batch()
    climbed = set()
    for seed in range(8):
        torch.manual_seed(seed)
        noise = torch.randn(32, 2, dtype=torch.float64)
        member = int(torch.rand((), dtype=torch.float64).item() <= 0.5)
        q = q_values(agent.critic, batch.obs.numpy(), one_step(spec, agent.policy, batch.obs, noise))
        torch.manual_seed(seed)
        found = agent.q_loss(batch).item()
        assert found == pytest.approx(-q[member].mean() / np.abs(q[1 - member]).mean(), rel=1e-6)
        climbed.add(member)
    assert climbed == {0, 1}


def test_without_candidates_acting_takes_noise_0_and_with_them_the_most_valued(spec):
    obs = torch.randn(4, 3, dtype=torch.float64)
    alone, many = make(spec), make(spec, candidates=6)
    zero = torch.zeros(4, 2, dtype=torch.float64)
    np.testing.assert_allclose(alone.act(obs), one_step(spec, alone.policy, obs, zero), rtol=1e-6)
    actions = [one_step(spec, many.policy, obs, noise.expand(4, -1)) for noise in many.noise]
    values = [q_values(many.target_critic, obs.numpy(), action).min(0) for action in actions]
    np.testing.assert_allclose(many.act(obs), np.stack(actions)[np.argmax(values, 0), np.arange(4)], rtol=1e-6)


@pytest.mark.slow
def test_the_field_learns_the_average_velocities_of_a_gaussians_flow():
    """For actions with standard deviation 0.3, the flow moves x at time t to x sigma(r) / sigma(t) at time r.

    Here sigma(t)^2 is 0.09 (1 - t)^2 + t^2, and the velocity at time t is x sigma'(t) / sigma(t).
    """
    torch.manual_seed(0)
    agent = OFQL(Spec((1,), (-1.0,), (1.0,)), Config(hidden=[64, 64], eta=0.0, lr=1e-3))
    for _ in range(1_000):
        obs = torch.zeros(256, 1)
        batch = Batch(obs, 0.3 * torch.randn(256, 1), obs[:, 0], obs, obs[:, 0] == 0, torch.arange(256))
        agent.policy_optimizer.minimize(agent.cloning_loss(batch))
    x, r, t = (each.flatten() for each in torch.meshgrid(
        torch.tensor([-0.8, -0.4, 0.4, 0.8]), torch.tensor([0.1, 0.2]), torch.tensor([0.6, 0.7]), indexing="ij"
    ))  # fmt: skip
    from_square, to_square = ((0.09 * (1 - time) ** 2 + time**2) for time in (r, t))
    average = x * (1 - (from_square / to_square).sqrt()) / (t - r)
    at_once = x * (t - 0.09 * (1 - t)) / to_square
    with torch.no_grad():
        found = agent.policy(torch.zeros(len(x), 1), x[:, None], r, t)[:, 0]
    assert (found - average).abs().mean() < 0.3 * (found - at_once).abs().mean()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("algo.flow_ratio=1.5", "algo.flow_ratio=1.5 must lie between 0 and 1"),
        ("algo.backup_actions=0", "algo.backup_actions=0 must be at least 1"),
        ("algo.candidates=0", "algo.candidates=0 must be at least 1"),
        ("algo.time_std=-1", "algo.time_std=-1.0 must be at least 0"),
        ("algo.eta=-1", "algo.eta=-1.0 must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(setting, words):
    with pytest.raises(UsageError, match=words) as error:
        compose(["algo=ofql", "env=hopper", setting])
    assert "\n" not in str(error.value)
