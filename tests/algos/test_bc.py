"""BC against NumPy, a naive selection of episodes, and the policy that it must imitate."""

import numpy as np
import pytest
import torch
from plain import GYMNASIUM, mean_return
from scipy.special import log_softmax

import zoo
from zoo.algos.bc import BC, Config
from zoo.data.arrays import Arrays
from zoo.data.dataset import Dataset
from zoo.spec import Spec

from .conftest import random_batch


def test_loss_is_the_mean_squared_error_over_batch_and_action_dimensions(spec, make_batch, network):
    torch.manual_seed(0)
    agent, batch = BC(spec, Config(hidden=[16])).double(), make_batch()
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    action = low + (np.tanh(network(agent.actor.net, batch.obs.numpy())) + 1) / 2 * (high - low)
    expected = np.mean(((action - batch.action.numpy()) / ((high - low) / 2)) ** 2)
    assert agent.update(batch)["actor_loss"].item() == pytest.approx(expected, rel=1e-6)


def test_an_update_is_one_adam_step_on_that_loss(spec, make_batch):
    torch.manual_seed(0)
    agent, batch = BC(spec, Config(hidden=[16])).double(), make_batch()
    parameters = [parameter.detach().clone().requires_grad_() for parameter in agent.actor.parameters()]
    adam = torch.optim.Adam(parameters, 3e-4)
    for _ in range(3):
        x = torch.relu(batch.obs @ parameters[0].T + parameters[1]) @ parameters[2].T + parameters[3]
        loss = ((torch.tanh(x) - (batch.action - agent.actor.center) / agent.actor.scale) ** 2).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        agent.update(batch)
    for one, other in zip(agent.actor.parameters(), parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def episodes_of(lengths: list[int], spec) -> tuple[Arrays, list[list[int]]]:
    """Random transitions in episodes of the given lengths, and the indices of each episode."""
    rng = np.random.default_rng(0)
    size = sum(lengths)
    ends = np.zeros(size, bool)
    ends[np.cumsum(lengths) - 1] = True
    terminated = ends & (rng.random(size) < 0.5)
    arrays = Arrays(
        rng.normal(size=(size, 3)).astype("f4"), rng.uniform(spec.action_low, spec.action_high, (size, 2)).astype("f4"),
        rng.normal(size=size).astype("f4"), rng.normal(size=(size, 3)).astype("f4"), terminated, ends & ~terminated,
    )  # fmt: skip
    places = np.split(np.arange(size), np.cumsum(lengths)[:-1])
    return arrays, [list(place) for place in places]


@pytest.mark.parametrize(("fraction", "count"), [(0.25, 3), (0.5, 6), (1.0, 12), (0.01, 1)])
def test_top_fraction_keeps_the_episodes_of_highest_return_whole(spec, fraction, count):
    arrays, places = episodes_of([3, 1, 7, 2, 5, 4, 6, 2, 8, 1, 3, 9], spec)
    ranked = sorted(places, key=lambda place: -sum(float(arrays.reward[i]) for i in place))
    kept = sorted(i for place in ranked[:count] for i in place)
    data = Dataset(arrays, spec, torch.device("cpu"))
    data.top_episodes(fraction)
    for field in Arrays._fields:
        np.testing.assert_array_equal(getattr(data, field), getattr(arrays, field)[kept], err_msg=field)
    torch.manual_seed(0)
    assert set(data.sample(2_000).reward.tolist()) == set(arrays.reward[kept].tolist())


def test_imitates_a_linear_policy_that_balances_a_pole(tmp_path, balancing_file):
    run = zoo.train(
        "bc", env="inverted_pendulum", dataset=balancing_file, steps=1_500, eval_every=1_500, eval_episodes=5,
        logger="none", run_dir=tmp_path / "run", algo_config={"hidden": [64, 64], "lr": 1e-3},
    )  # fmt: skip
    _, episodes = run.evaluations[-1]
    assert episodes.returns.mean() == 1_000  # every step of every episode; random actions last 5


def test_of_discrete_actions_the_loss_is_the_mean_negative_log_probability(network):
    spec = Spec((3,), num_actions=4)
    agent, batch = BC(spec, Config(hidden=[16])).double(), random_batch(32, spec)
    log_prob = log_softmax(network(agent.actor.net, batch.obs.numpy()), 1)[range(32), batch.action]
    assert agent.update(batch)["actor_loss"].item() == pytest.approx(-log_prob.mean(), rel=1e-6)


def test_imitates_the_more_probable_actions_of_a_policy_that_often_errs(tmp_path, cartpole_file):
    run = zoo.train(
        "bc", env="cartpole", dataset=cartpole_file, steps=2_000, eval_every=2_000, eval_episodes=10, logger="none",
        run_dir=tmp_path / "run", algo_config={"hidden": [64, 64], "lr": 1e-3}, **GYMNASIUM,
    )  # fmt: skip
    _, episodes = run.evaluations[-1]
    assert episodes.returns.mean() > 2 * mean_return(cartpole_file)
