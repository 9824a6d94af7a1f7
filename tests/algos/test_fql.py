"""FQL's losses against NumPy with the same noise. The flow clones the data, and the policy improves on the flow."""

import numpy as np
import pytest
import torch
from plain import shake

from zoo.algos.fql import FQL, Config
from zoo.data.batch import Batch
from zoo.errors import UsageError
from zoo.settings.compose import compose
from zoo.spec import Spec


def make(spec, **settings) -> FQL:
    torch.manual_seed(1)
    agent = FQL(spec, Config(hidden=[16, 16], **settings)).double()
    shake(agent)
    return agent


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def network(module, *inputs) -> np.ndarray:
    """A network of affine layers with GELU between them."""
    x = np.concatenate(inputs, -1)
    parameters = [parameter.detach().numpy() for parameter in module.net.parameters()]
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = gelu(x @ weight.T + bias)
    return x @ parameters[-2].T + parameters[-1]


def q_values(critic, obs, action) -> np.ndarray:
    """Both members, `[2, B]`: after every hidden layer GELU, then normalization."""
    members = []
    for m in (0, 1):
        x = np.concatenate([obs, action], -1)
        p = [parameter[m].detach().numpy() for parameter in critic.parameters()]
        for i in range(0, len(p) - 2, 4):
            x = gelu(x @ p[i].T + p[i + 1])
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * p[i + 2] + p[i + 3]
        members.append((x @ p[-2].T + p[-1])[:, 0])
    return np.stack(members)


def unit(spec, action) -> np.ndarray:
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    return (np.asarray(action) - (high + low) / 2) / ((high - low) / 2)


def bounded(spec, x) -> np.ndarray:
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    return np.clip((high + low) / 2 + (high - low) / 2 * x, low, high)


def draws(seed: int, *likes: str) -> list[np.ndarray]:
    """The next random numbers of `randn` (`[32, 2]`) and `rand` (`[32]`) after a seed."""
    torch.manual_seed(seed)
    shapes = {"normal": (torch.randn, (32, 2)), "uniform": (torch.rand, (32,))}
    return [draw(shape, dtype=torch.float64).numpy() for draw, shape in (shapes[like] for like in likes)]


@pytest.mark.parametrize("target_q", ["mean", "min"])
def test_the_critics_target_is_the_policys_action_under_both_critics(spec, make_batch, target_q):
    agent, batch = make(spec, target_q=target_q), make_batch()
    (noise,) = draws(3, "normal")
    action = bounded(spec, network(agent.policy, batch.next_obs.numpy(), noise))
    next_q = getattr(np, target_q)(q_values(agent.target_critic, batch.next_obs.numpy(), action), axis=0)
    target = batch.reward.numpy() + 0.99 * ~batch.terminated.numpy() * next_q
    expected = ((q_values(agent.critic, batch.obs.numpy(), batch.action.numpy()) - target) ** 2).mean()
    torch.manual_seed(3)
    assert agent.critic_loss(batch)[0].item() == pytest.approx(expected, rel=1e-6)


def test_the_flow_is_matched_to_straight_lines_in_units_of_half_the_range(spec, make_batch):
    agent, batch = make(spec), make_batch()
    noise, time = draws(4, "normal", "uniform")
    action = unit(spec, batch.action)
    x = (1 - time[:, None]) * noise + time[:, None] * action
    velocity = network(agent.flow, batch.obs.numpy(), x, time[:, None])
    torch.manual_seed(4)
    assert agent.flow_loss(batch).item() == pytest.approx(((velocity - (action - noise)) ** 2).mean(), rel=1e-9)


@pytest.mark.parametrize("normalize_q", [True, False])
def test_the_policy_is_held_to_where_eulers_steps_end(spec, make_batch, normalize_q):
    agent, batch = make(spec, normalize_q=normalize_q, alpha=2.0, flow_steps=7), make_batch()
    obs = batch.obs.numpy()
    (noise,) = draws(5, "normal")
    x = noise
    for i in range(7):
        x = x + network(agent.flow, obs, x, np.full((32, 1), i / 7)) / 7
    found = network(agent.policy, obs, noise)
    distance = ((found - np.clip(x, -1, 1)) ** 2).mean()
    q = q_values(agent.critic, obs, bounded(spec, found)).mean(0)
    expected = 2 * distance - q.mean() / (np.abs(q).mean() if normalize_q else 1)
    torch.manual_seed(5)
    assert agent.policy_loss(batch)[0].item() == pytest.approx(expected, rel=1e-9)


def test_the_policys_loss_moves_neither_flow_nor_critic(spec, make_batch):
    agent, batch = make(spec), make_batch()
    loss, _ = agent.policy_loss(batch)
    assert not any(torch.autograd.grad(loss, list(agent.flow.parameters()), allow_unused=True, retain_graph=True))
    before = [parameter.clone() for parameter in agent.critic.parameters()]
    agent.policy_optimizer.minimize(loss)
    assert all(torch.equal(one, other) for one, other in zip(before, agent.critic.parameters(), strict=True))


@pytest.mark.slow
def test_the_flow_keeps_both_spots_of_the_data_and_the_policy_goes_uphill_from_them():
    """If the value of an action is the action itself, alpha |mu - x_1|^2 - mu is minimal at x_1 + 1 / (2 alpha)."""
    torch.manual_seed(0)
    agent = FQL(Spec((1,), (-1.0,), (1.0,)), Config(hidden=[64, 64], alpha=5.0, lr=1e-3))
    for _ in range(1_500):
        action = 0.5 * (torch.randint(2, (256, 1)) * 2 - 1) + 0.3 * (2 * torch.rand(256, 1) - 1)
        obs, ended = torch.zeros(256, 1), torch.ones(256, dtype=torch.bool)
        agent.update(Batch(obs, action, action[:, 0], obs, ended, torch.arange(256)))
    obs, noise = torch.zeros(2_000, 1), torch.randn(2_000, 1)
    with torch.no_grad():
        cloned, chosen = agent.flow.sample(obs, noise), agent.policy.sample(obs, noise)
    assert 0.4 < float((cloned > 0).float().mean()) < 0.6
    assert float((cloned.abs() < 0.2).float().mean()) < 0.15  # between the spots, where their mean is
    assert float((chosen - cloned).mean()) == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("algo.target_q=max", "algo.target_q=max does not exist; there are mean, min"),
        ("algo.flow_steps=0", "algo.flow_steps=0 must be at least 1"),
        ("algo.alpha=0", "algo.alpha=0.0 must be above 0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(setting, words):
    with pytest.raises(UsageError, match=words) as error:
        compose(["algo=fql", "env=hopper", setting])
    assert "\n" not in str(error.value)
