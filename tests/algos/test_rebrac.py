"""ReBRAC's losses against NumPy with the same noise, and the dataset's next actions."""

import numpy as np
import pytest
import torch
from plain import shake

import zoo
from zoo.algos.rebrac import Config, ReBRAC, SarsaBatch
from zoo.data.arrays import Arrays
from zoo.data.dataset import Dataset
from zoo.spec import Spec


def make(spec, **settings) -> ReBRAC:
    torch.manual_seed(1)
    agent = ReBRAC(spec, Config(hidden=[16, 16], **settings)).double()
    shake(agent.target_critic, agent.critic, agent.target_actor, agent.actor)
    return agent


def sarsa(batch) -> SarsaBatch:
    *fields, index = batch
    return SarsaBatch(*fields, batch.action.flip(0), index % 3 != 0)


def normalized_network(ensemble, m: int, x: np.ndarray) -> np.ndarray:
    """One member, `[B]`: after every hidden layer ReLU, then (x - mean) / sqrt(variance + 1e-5) * weight + bias."""
    p = [parameter[m].detach().numpy() for parameter in ensemble.parameters()]
    for i in range(0, len(p) - 2, 4):
        x = np.maximum(x @ p[i].T + p[i + 1], 0)
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * p[i + 2] + p[i + 3]
    return (x @ p[-2].T + p[-1])[:, 0]


def q_values(ensemble, obs, action) -> np.ndarray:
    inputs = np.concatenate([obs, action], -1)
    return np.stack([normalized_network(ensemble, m, inputs) for m in (0, 1)])


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_critic_loss_is_equation_4(spec, make_batch, network, penalty):
    agent, batch = make(spec, critic_penalty=penalty), sarsa(make_batch())
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    torch.manual_seed(3)
    noise = np.clip(0.2 * torch.randn(batch.action.shape, dtype=torch.float64).numpy(), -0.5, 0.5)
    action = (low + high) / 2 + (high - low) / 2 * np.tanh(network(agent.target_actor.net, batch.next_obs.numpy()))
    action = np.clip(action + noise * (high - low) / 2, low, high)
    distance = (((action - batch.next_action.numpy()) / ((high - low) / 2)) ** 2).sum(-1)
    next_q = q_values(agent.target_critic, batch.next_obs, action).min(0) - penalty * distance * batch.follows.numpy()
    target = batch.reward.numpy() + 0.99 * ~batch.terminated.numpy() * next_q
    expected = ((q_values(agent.critic, batch.obs, batch.action) - target) ** 2).mean(-1).sum()
    torch.manual_seed(3)
    assert agent.update(batch)["critic_loss"].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("normalize_q", [True, False])
def test_actor_loss_is_equation_5(spec, make_batch, network, normalize_q):
    agent, batch = make(spec, actor_penalty=0.3, normalize_q=normalize_q), sarsa(make_batch())
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    action = (low + high) / 2 + (high - low) / 2 * np.tanh(network(agent.actor.net, batch.obs.numpy()))
    q = q_values(agent.critic, batch.obs, action).min(0)
    scale = 1 / np.abs(q).mean() if normalize_q else 1
    distance = (((action - batch.action.numpy()) / ((high - low) / 2)) ** 2).sum(-1)
    expected = (0.3 * distance - scale * q).mean()
    assert agent.actor_loss(batch).item() == pytest.approx(expected, rel=1e-6)


def test_the_next_action_is_the_episodes_and_its_last_step_has_none():
    flags = np.array([False, False, True, False, True])
    action = np.arange(5, dtype=np.float32)[:, None]
    obs = np.zeros((5, 3), np.float32)
    terminated = flags & (np.arange(5) == 2)
    arrays = Arrays(obs, action, np.zeros(5, np.float32), obs, terminated, flags & ~terminated)
    following, follows = Dataset(arrays, Spec((3,), (-9.0,), (9.0,)), torch.device("cpu")).next_action()
    assert follows.tolist() == [True, True, False, True, False]
    assert following[follows, 0].tolist() == [1.0, 2.0, 4.0]


def test_online_the_actors_penalty_falls_linearly_to_a_share_of_itself(spec, make_batch):
    agent, batch, shares = make(spec, online_penalty=0.5, actor_penalty=2.0), sarsa(make_batch(9)), []
    for seed in range(4):
        agent.update(sarsa(make_batch(seed)), decay=0.2)
        error = agent.actor.to_unit(agent.actor.mode(batch.obs)) - agent.actor.to_unit(batch.action)
        lost = agent.actor_loss(batch).item() - agent.actor_loss(batch, decay=0.2).item()
        shares.append(1 - lost / (2.0 * error.square().sum(-1).mean().item()))
    assert shares == pytest.approx([0.8, 0.6, 0.5, 0.5])


def test_the_actors_penalty_falls_by_as_much_in_millions_of_updates(spec, make_batch):
    agent, batch = make(spec, online_penalty=0.0, normalize_q=False), sarsa(make_batch(9))
    whole, none = agent.actor_loss(batch).item(), agent.actor_loss(batch._replace(action=agent.actor.mode(batch.obs)))
    agent.decays.fill_(3_500_000)
    left = (agent.actor_loss(batch, decay=2e-7).item() - none.item()) / (whole - none.item())
    assert left == pytest.approx(0.3, abs=1e-4)


@pytest.mark.parametrize(("starts", "decays"), [(0, [0.1] * 10), (6, [0.25] * 4)])
def test_online_nothing_is_known_to_follow_so_the_target_has_no_penalty(
    pendulum_file, tmp_path, monkeypatch, starts, decays
):
    seen, update = [], ReBRAC.update
    monkeypatch.setattr(
        ReBRAC, "update", lambda agent, batch, **k: (seen.append((batch, k)), update(agent, batch, **k))[1]
    )
    zoo.train(
        "rebrac", env="pendulum", dataset=pendulum_file, steps=3, online_steps=10, online_starts=starts, eval_every=100,
        eval_episodes=1, logger="none", run_dir=tmp_path / "run", algo_config={"hidden": [8], "batch_size": 8},
    )  # fmt: skip
    assert all(batch.follows.any() for batch, _ in seen[:3])
    assert not any(batch.follows.any() for batch, _ in seen[3:])
    assert [how["decay"] for _, how in seen[3:]] == decays
