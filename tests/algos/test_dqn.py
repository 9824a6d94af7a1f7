"""DQN and its options against plain implementations, and against the task that it must learn."""

import pytest
import torch
from plain import GYMNASIUM, assert_close, forward, leaves, step

import zoo
from zoo.algos.dqn import DQN, Config
from zoo.data.batch import NStepBatch
from zoo.spec import Spec

SPEC = Spec((3,), num_actions=4)


def make(**settings) -> DQN:
    torch.manual_seed(1)
    agent = DQN(SPEC, Config(hidden=[16, 8], **settings)).double()
    with torch.no_grad():
        for parameter in agent.target_network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return agent


def batch(seed: int) -> NStepBatch:
    torch.manual_seed(seed)
    obs, next_obs = torch.randn(2, 32, 3).double()
    discount = torch.where(torch.rand(32) < 0.3, 0.0, 0.99**3).double()
    return NStepBatch(obs, torch.randint(4, (32,)), torch.randn(32).double(), next_obs, discount, torch.arange(32))


def plain_q(parameters, obs, dueling):
    if not dueling:
        return forward(parameters, obs)
    half = len(parameters) // 2
    advantage, value = (forward(part, obs) for part in (parameters[:half], parameters[half:]))
    return torch.stack([value[:, 0] + advantage[:, a] - advantage.sum(1) / 4 for a in range(4)], 1)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_five_updates_equal_a_plain_implementation(double, dueling):
    agent = make(double=double, dueling=dueling)
    online, target = leaves(agent.network.parameters()), leaves(agent.target_network.parameters())
    adam = torch.optim.Adam(online, 1e-3)
    begin = [parameter.detach().clone() for parameter in agent.network.parameters()]
    for seed in range(5):
        agent.update(batch(seed))
        data, loss = batch(seed), 0.0
        with torch.no_grad():
            next_q, next_online = (plain_q(p, data.next_obs, dueling) for p in (target, online))
        q = plain_q(online, data.obs, dueling)
        for i in range(32):
            best = next_online[i].argmax() if double else next_q[i].argmax()
            y = data.reward[i] + data.discount[i] * next_q[i, best]
            loss = loss + (q[i, data.action[i]] - y) ** 2 / 32
        step(adam, loss, max_norm=10.0)
    assert all(not torch.equal(old, new) for old, new in zip(begin, agent.network.parameters(), strict=True))
    assert_close(agent.network.parameters(), online)
    assert_close(agent.target_network.parameters(), target)


def test_hubers_loss_and_adams_epsilon_without_clipping_equal_pytorchs():
    agent = make(value_head="huber", max_grad_norm=None, adam_eps=1e-2)
    online, target = leaves(agent.network.parameters()), leaves(agent.target_network.parameters())
    adam = torch.optim.Adam(online, 1e-3, eps=1e-2)
    for seed in range(3):
        data = batch(seed)
        data = data._replace(reward=10 * data.reward)  # errors in both parts of the Huber loss
        agent.update(data)
        with torch.no_grad():
            y = data.reward + data.discount * plain_q(target, data.next_obs, False).amax(1)
        q = plain_q(online, data.obs, False).gather(1, data.action[:, None])[:, 0]
        adam.zero_grad()
        torch.nn.functional.smooth_l1_loss(q, y).backward()
        adam.step()
    assert_close(agent.network.parameters(), online)


def test_the_target_network_moves_the_fraction_tau():
    agent = make(tau=0.25)
    before = leaves(agent.target_network.parameters())
    agent.update_target()
    expected = [0.75 * old + 0.25 * new for old, new in zip(before, agent.network.parameters(), strict=True)]
    assert_close(agent.target_network.parameters(), expected)


@pytest.mark.parametrize("head", ["two_hot", "c51", "hl_gauss"])
def test_a_categorical_head_minimizes_the_cross_entropy_of_its_action(head):
    agent, data = make(value_head=head, v_min=-3.0, v_max=3.0, num_bins=7), batch(0)
    with torch.no_grad():
        next_out = forward(list(agent.target_network.parameters()), data.next_obs).view(32, 4, 7)
        out = forward(list(agent.network.parameters()), data.obs).view(32, 4, 7)
    expected = 0.0
    for i in range(32):
        best = (next_out[i].softmax(-1) * agent.head.centers()).sum(-1).argmax()
        target = agent.head.backup(data.reward[i : i + 1], data.discount[i : i + 1], next_out[i, best][None])[0]
        expected -= float((target * out[i, data.action[i]].log_softmax(-1)).sum()) / 32
    assert agent.update(data)["critic_loss"].item() == pytest.approx(expected, rel=1e-6)


def test_the_target_network_moves_only_when_it_is_copied_to():
    agent = make()
    before = leaves(agent.target_network.parameters())
    agent.update(batch(0))
    assert_close(agent.target_network.parameters(), before, atol=0)
    agent.update_target()
    assert_close(agent.target_network.parameters(), agent.network.parameters(), atol=0)


def test_the_expected_return_is_what_the_learning_network_says_of_the_action():
    agent, obs, action = make(dueling=True), torch.randn(32, 3).double(), torch.randint(4, (32,))
    q = plain_q(list(agent.network.parameters()), obs, True)
    torch.testing.assert_close(agent.expected_return(obs, action), q[torch.arange(32), action])


def test_frames_have_the_layers_of_their_encoder_and_one_more_whatever_hidden_is():
    for side, features in ((84, 512), (10, 128)):
        spec = Spec((4, side, side), num_actions=3, obs_dtype="uint8")
        network = DQN(spec, Config(hidden=[16, 8], dueling=True)).network
        shapes = [tuple(p.shape) for part in (network.advantage, network.value) for p in part.parameters()]
        assert shapes == [(3, features), (3,), (1, features), (1,)]


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_a_share_epsilon_of_the_actions_is_random(epsilon):
    agent, greedy = make(), torch.full((40_000,), 2)
    other = (agent.explore(greedy, epsilon) != greedy).double().mean()
    assert float(other) == pytest.approx(0.75 * epsilon, abs=0.01)


def test_an_evaluation_that_explores_takes_a_share_eval_epsilon_of_random_actions():
    agent, obs = make(eval_epsilon=0.3, epsilon=0.9), torch.randn(40_000, 3).double()
    other = (agent.act(obs, explore=True) != agent.act(obs)).double().mean()
    assert float(other) == pytest.approx(0.75 * 0.3, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["mse", "hl_gauss"])
def test_solves_cartpole_within_50000_steps(tmp_path, head):
    run = zoo.train(
        "dqn", env="cartpole", steps=50_000, eval_every=5_000, logger="none", run_dir=tmp_path / "run", **GYMNASIUM,
        algo_config={"value_head": head},
    )  # fmt: skip
    assert max(episodes.returns.mean() for _, episodes in run.evaluations) >= 475


def test_dueling_streams_are_combined_for_each_output_of_the_head():
    agent = make(dueling=True, value_head="two_hot", v_min=-3.0, v_max=3.0, num_bins=7)
    parameters, obs = list(agent.network.parameters()), torch.randn(32, 3).double()
    half = len(parameters) // 2
    advantage, value = forward(parameters[:half], obs).view(32, 4, 7), forward(parameters[half:], obs)
    expected = torch.stack([value + advantage[:, a] - advantage.sum(1) / 4 for a in range(4)], 1)
    torch.testing.assert_close(agent.network(obs), expected)
