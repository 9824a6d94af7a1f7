"""Diffusion-QL's losses against NumPy with the noise of the same seed; its chain against DDPM's formulas."""

import math

import numpy as np
import pytest
import torch
from plain import shake

from zoo.algos.dql import DQL, Config
from zoo.data.batch import Batch
from zoo.errors import UsageError
from zoo.models.diffusion import DenoisingPolicy, vp_schedule
from zoo.settings.compose import compose
from zoo.spec import Spec


def make(spec, **settings) -> DQL:
    torch.manual_seed(1)
    agent = DQL(spec, Config(hidden=[16, 16], **settings)).double()
    shake(agent)
    return agent


def mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(np.log1p(np.exp(x)))


def network(layers, x: np.ndarray) -> np.ndarray:
    """A network of affine layers with Mish between them."""
    parameters = [parameter.detach().numpy() for parameter in layers]
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = mish(x @ weight.T + bias)
    return x @ parameters[-2].T + parameters[-1]


def q_values(critic, obs, action) -> np.ndarray:
    """Both members, `[2, B]`."""
    x = np.concatenate([obs, action], -1)
    return np.stack([network([parameter[m] for parameter in critic.parameters()], x)[:, 0] for m in (0, 1)])


def predicted(policy, obs, x, k: np.ndarray) -> np.ndarray:
    """The predicted noise in `x` at steps `k` `[B]`, embedded by the sines and cosines of eight frequencies."""
    phase = k[:, None] * np.exp(-math.log(10_000) / 7 * np.arange(8))
    embedded = network(policy.embedding.parameters(), np.concatenate([np.sin(phase), np.cos(phase)], -1))
    return network(policy.net.parameters(), np.concatenate([x, embedded, obs], -1))


def signals(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The variances beta, and the cumulative products of 1 - beta."""
    t = np.arange(1, steps + 1)
    beta = 1 - np.exp(-0.1 / steps - 0.5 * 9.9 * (2 * t - 1) / steps**2)
    return beta, np.cumprod(1 - beta)


def chain(policy, obs, noise: np.ndarray) -> np.ndarray:
    """Actions from -1 to 1, by the posterior of DDPM's eq. 6 and 7."""
    beta, signal = signals(len(noise))
    x = noise[-1]
    for i in reversed(range(len(noise))):
        found = predicted(policy, obs, x, np.full(len(x), i))
        clean = np.clip((x - np.sqrt(1 - signal[i]) * found) / np.sqrt(signal[i]), -1, 1)
        before = signal[i - 1] if i else 1.0
        mean = np.sqrt(before) * beta[i] / (1 - signal[i]) * clean
        mean = mean + np.sqrt(1 - beta[i]) * (1 - before) / (1 - signal[i]) * x
        x = mean + (np.sqrt((1 - before) / (1 - signal[i]) * beta[i]) * noise[i - 1] if i else 0)
    return x


def scaled(spec, x) -> np.ndarray:
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    return (high + low) / 2 + (high - low) / 2 * x


def normal(*shape: int) -> np.ndarray:
    return torch.randn(*shape, dtype=torch.float64).numpy()


def test_schedule_is_that_of_the_variance_preserving_sde():
    """After t of T steps, the remaining signal is exp(-integral of the rate 0.1 + 9.9 s over [0, t/T])."""
    for steps in (1, 5, 50):
        share = np.arange(1, steps + 1) / steps
        left = np.exp(-(0.1 * share + 9.9 * share**2 / 2))
        np.testing.assert_allclose((1 - vp_schedule(steps)).cumprod(0), left, rtol=1e-5)


@pytest.mark.parametrize("actions", [1, 4])
def test_the_critics_target_is_the_best_of_the_target_policys_actions(spec, make_batch, actions):
    agent, batch = make(spec, backup_actions=actions), make_batch()
    torch.manual_seed(3)
    noise = normal(5, actions, 32, 2)
    obs = batch.next_obs.numpy()
    next_q = [
        q_values(agent.target_critic, obs, scaled(spec, chain(agent.target_policy, obs, noise[:, n])))
        for n in range(actions)
    ]
    target = batch.reward.numpy() + 0.99 * ~batch.terminated.numpy() * np.max(next_q, 0).min(0)
    expected = ((q_values(agent.critic, batch.obs.numpy(), batch.action.numpy()) - target) ** 2).mean(-1).sum()
    torch.manual_seed(3)
    assert agent.critic_loss(batch)[0].item() == pytest.approx(expected, rel=1e-5)


def test_cloning_is_the_error_of_the_noise_in_units_of_half_the_range(spec, make_batch):
    agent, batch = make(spec), make_batch()
    torch.manual_seed(4)
    noise, step = normal(32, 2), torch.randint(5, (32,)).numpy()
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    action = (batch.action.numpy() - (high + low) / 2) / ((high - low) / 2)
    signal = signals(5)[1][step][:, None]
    x = np.sqrt(signal) * action + np.sqrt(1 - signal) * noise
    expected = ((predicted(agent.policy, batch.obs.numpy(), x, step) - noise) ** 2).mean()
    torch.manual_seed(4)
    assert agent.cloning_loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_the_value_climbed_is_one_critics_in_units_of_the_others_size(spec, make_batch):
    agent, batch = make(spec), make_batch()
    climbed = set()
    for seed in range(8):
        torch.manual_seed(seed)
        noise = normal(5, 32, 2)
        heads = int(not float(torch.rand((), dtype=torch.float64)) > 0.5)
        action = scaled(spec, chain(agent.policy, batch.obs.numpy(), noise))
        q = q_values(agent.critic, batch.obs.numpy(), action)
        torch.manual_seed(seed)
        found = agent.q_loss(batch).item()
        assert found == pytest.approx(-q[heads].mean() / np.abs(q[1 - heads]).mean(), rel=1e-5)
        climbed.add(heads)
    assert climbed == {0, 1}


def test_gradients_go_back_through_every_step_of_the_chain(spec):
    """The gradient of the action with respect to the chain's initial noise equals finite differences."""
    torch.manual_seed(0)
    policy = DenoisingPolicy(3, spec.action_low, spec.action_high, [16], 5).double()
    policy.net[-1].weight.data *= 0.1  # so that nothing is clipped
    policy.net[-1].bias.data *= 0.1
    obs, noise = torch.randn(1, 3, dtype=torch.float64), 0.003 * torch.randn(5, 1, 2, dtype=torch.float64)
    noise.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: policy.sample(obs, z), noise)
    (gradient,) = torch.autograd.grad(policy.sample(obs, noise).sum(), noise)
    assert gradient.flatten(1).abs().amax(1).min() > 0


def test_the_target_policy_follows_only_where_it_is_told_to(spec, make_batch):
    agent, batch = make(spec), make_batch()
    before = [parameter.clone() for parameter in agent.target_policy.parameters()]
    agent.update(batch, average=False)
    for one, other in zip(before, agent.target_policy.parameters(), strict=True):
        assert torch.equal(one, other)
    agent.update(batch, average=True)
    for was, target, policy in zip(before, agent.target_policy.parameters(), agent.policy.parameters(), strict=True):
        torch.testing.assert_close(target, was + 0.005 * (policy - was))


def test_of_the_candidates_the_most_valued_acts_or_one_by_the_softmax_of_the_values(spec):
    agent, obs = make(spec, candidates=6), torch.randn(4, 3, dtype=torch.float64)
    actions, values = [], []
    for n in range(6):
        noise = agent.noise[:, n].expand(-1, 4, -1).numpy()
        actions.append(scaled(spec, chain(agent.policy, obs.numpy(), noise)))
        values.append(q_values(agent.target_critic, obs.numpy(), actions[-1]).min(0))
    best = np.argmax(values, 0)
    np.testing.assert_allclose(agent.act(obs), np.stack(actions)[best, np.arange(4)], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_of_two_spots_in_the_data_the_policy_finds_the_one_that_pays():
    """Actions are near -0.5 and 0.5, and 0.5 has the highest reward. There are no data at their mean."""
    torch.manual_seed(0)
    agent = DQL(Spec((1,), (-1.0,), (1.0,)), Config(hidden=[64, 64], actor_lr=3e-3, critic_lr=3e-3))
    for _ in range(800):
        action = 0.5 * (torch.randint(2, (256, 1)) * 2 - 1) + 0.3 * (2 * torch.rand(256, 1) - 1)
        reward, ended = 1 - (action[:, 0] - 0.5).square(), torch.ones(256, dtype=torch.bool)
        obs = torch.zeros(256, 1)
        agent.update(Batch(obs, action, reward, obs, ended, torch.arange(256)))
    with torch.no_grad():
        action = agent.policy.sample(torch.zeros(2_000, 1), torch.randn(5, 2_000, 1))
    assert ((action - 0.5).abs() < 0.35).double().mean().item() > 0.9
    assert agent.act(torch.zeros(1, 1)).item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("algo.diffusion_steps=0", "algo.diffusion_steps=0 must be at least 1"),
        ("algo.candidates=0", "algo.candidates=0 must be at least 1"),
        ("algo.backup_actions=0", "algo.backup_actions=0 must be at least 1"),
        ("algo.eta=-1", "algo.eta=-1.0 must be at least 0"),
        ("algo.max_grad_norm=0", "algo.max_grad_norm=0.0 must be above 0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(setting, words):
    with pytest.raises(UsageError, match=words) as error:
        compose(["algo=dql", "env=hopper", setting])
    assert "\n" not in str(error.value)
