"""The replay buffer against a list that forgets its oldest entries."""

from collections import deque

import numpy as np
import pytest
import scipy.stats
import torch

from zoo.buffers import ReplayBuffer, Transition
from zoo.envs import Spec

SPEC = Spec((2,), (-1.0,), (1.0,))
CPU = torch.device("cpu")


def numbered(first: int, count: int) -> Transition:
    """`count` transitions that can be told apart: every field of number i is made of i."""
    i = torch.arange(first, first + count).float()
    obs = torch.stack([i, -i], -1)
    return Transition(obs, i[:, None] / 1000, i, obs + 0.5, i % 3 == 0, i % 5 == 0)


@pytest.mark.parametrize("envs", [1, 3, 10])
def test_holds_what_a_list_of_the_last_capacity_transitions_holds(envs):
    buffer, naive = ReplayBuffer(10, SPEC, CPU), deque(maxlen=10)
    for first in range(0, 20 * envs, envs):
        transition = numbered(first, envs)
        buffer.add(transition)
        naive.extend(zip(*transition, strict=True))
        assert buffer.size == len(naive)
        order = buffer.reward[: buffer.size].argsort()
        for field, expected in zip(Transition._fields, zip(*naive, strict=True), strict=True):
            assert torch.equal(getattr(buffer, field)[: buffer.size][order], torch.stack(expected)), field


def test_a_sample_keeps_the_fields_of_a_transition_together():
    buffer = ReplayBuffer(10, SPEC, CPU)
    for first in range(0, 24, 3):
        buffer.add(numbered(first, 3))
    torch.manual_seed(0)
    batch = buffer.sample(50)
    for row in range(50):
        expected = numbered(int(batch.reward[row]), 1)
        for field in ("obs", "action", "reward", "next_obs", "terminated"):
            assert torch.equal(getattr(batch, field)[row], getattr(expected, field)[0]), field
    assert torch.equal(buffer.reward[batch.index], batch.reward)


@pytest.mark.parametrize(("added", "held"), [(7, 7), (33, 20)])
def test_every_held_transition_is_sampled_equally_often_and_no_other(added, held):
    buffer = ReplayBuffer(20, SPEC, CPU)
    for first in range(added):
        buffer.add(numbered(first, 1))
    torch.manual_seed(0)
    counts = np.bincount(buffer.sample(20_000).reward.long(), minlength=added)
    assert (counts[: added - held] == 0).all()
    assert scipy.stats.chisquare(counts[added - held :]).pvalue > 0.001


@pytest.mark.parametrize("added", [4, 13])
def test_a_restored_buffer_goes_on_as_the_saved_one(added):
    saved, restored = ReplayBuffer(10, SPEC, CPU), ReplayBuffer(10, SPEC, CPU)
    for first in range(added):
        saved.add(numbered(first, 1))
    restored.load_state_dict(saved.state_dict())
    for buffer in (saved, restored):
        buffer.add(numbered(100, 3))
    torch.manual_seed(0)
    expected = saved.sample(50)
    torch.manual_seed(0)
    for field, other in zip(expected, restored.sample(50), strict=True):
        assert torch.equal(field, other)


def test_saves_only_what_it_holds():
    buffer = ReplayBuffer(1_000, SPEC, CPU)
    buffer.add(numbered(0, 3))
    assert len(buffer.state_dict()["obs"]) == 3


def test_discrete_actions_are_whole_numbers():
    buffer = ReplayBuffer(4, Spec((2,), num_actions=3), CPU)
    buffer.add(numbered(0, 2)._replace(action=torch.tensor([2, 1])))
    assert buffer.action.dtype == torch.int64
    assert buffer.action[:2].tolist() == [2, 1]
