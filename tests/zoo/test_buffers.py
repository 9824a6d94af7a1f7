"""The replay buffer against a list that drops its oldest entries."""

from collections import deque
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from zoo.data.batch import Transition
from zoo.data.buffers import FrameBuffer, ReplayBuffer
from zoo.runs.replay_log import ReplayLog
from zoo.spec import Spec

SPEC = Spec((2,), (-1.0,), (1.0,))
CPU = torch.device("cpu")


def numbered(first: int, count: int) -> Transition:
    """`count` distinguishable transitions: every field of transition i is computed from i."""
    i = torch.arange(first, first + count).float()
    obs = torch.stack([i, -i], -1)
    return Transition(obs, i[:, None] / 1000, i, obs + 0.5, i % 3 == 0, i % 5 == 0)


def assert_draws_the_same(one: ReplayBuffer, other: ReplayBuffer) -> None:
    """Asserts that both give the same 100 transitions from the same seed."""
    torch.manual_seed(0)
    expected = one.sample(100)
    torch.manual_seed(0)
    for field, value in zip(expected, other.sample(100), strict=True):
        assert torch.equal(field, value)


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


def restore(saved: ReplayBuffer, into: ReplayBuffer, folder: Path) -> ReplayBuffer:
    """Fills another buffer with the first one's written data."""
    ReplayLog(folder, into).read(ReplayLog(folder, saved).write())
    return into


@pytest.mark.parametrize("added", [0, 4, 13])
def test_a_restored_buffer_goes_on_as_the_saved_one(added, tmp_path):
    saved = ReplayBuffer(10, SPEC, CPU)
    for first in range(added):
        saved.add(numbered(first, 1))
    restored = restore(saved, ReplayBuffer(10, SPEC, CPU), tmp_path)
    for buffer in (saved, restored):
        buffer.add(numbered(100, 3))
    assert_draws_the_same(saved, restored)


def test_discrete_actions_are_whole_numbers():
    buffer = ReplayBuffer(4, Spec((2,), num_actions=3), CPU)
    buffer.add(numbered(0, 2)._replace(action=torch.tensor([2, 1])))
    assert buffer.action.dtype == torch.int64
    assert buffer.action[:2].tolist() == [2, 1]


def episodes(lengths: list[tuple[int, bool]], first: int = 0) -> list[Transition]:
    """One environment's episodes of given lengths, terminated or truncated, with consecutive numbers."""
    transitions, number = [], first
    for length, terminates in lengths:
        for step in range(length):
            last = torch.tensor([step == length - 1])
            terminated, truncated = last & terminates, last & (not terminates)
            transitions.append(numbered(number, 1)._replace(terminated=terminated, truncated=truncated))
            number += 1
    return transitions


def together(streams: list[list[Transition]]) -> list[Transition]:
    """For each step, the transitions of all environments as one batch."""
    return [Transition(*map(torch.cat, zip(*row, strict=True))) for row in zip(*streams, strict=True)]


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("capacity", [200, 37])  # 37 wraps around, in the middle of a step of both environments
def test_n_step_returns_are_the_loops(n, capacity):
    lengths = [[(4, True), (7, False), (2, True), (9, True), (6, False), (2, False)], [(11, False), (19, True)]]
    streams = [episodes(part, first) for part, first in zip(lengths, (0, 1000), strict=True)]
    buffer = ReplayBuffer(capacity, SPEC, CPU)
    for transition in together(streams):
        buffer.add(transition)
    batch = buffer.sample_n_step(1_200, n, 0.9)  # each of at most 60 is drawn, with probability 1 - 10^-7
    by_number = {int(t.reward): (stream, i) for stream in streams for i, t in enumerate(stream)}
    seen = set()
    for obs, reward, next_obs, discount in zip(batch.obs, batch.reward, batch.next_obs, batch.discount, strict=True):
        stream, i = by_number[int(obs[0])]
        seen.add(int(obs[0]))
        expected, k = 0.0, 0
        while True:
            step = stream[i + k]
            expected += 0.9**k * float(step.reward)
            k += 1
            if k == n or step.terminated or step.truncated or i + k == len(stream):
                break
        assert float(reward) == pytest.approx(expected, rel=1e-5)
        assert torch.equal(next_obs, step.next_obs[0])
        assert float(discount) == pytest.approx(0.0 if step.terminated else 0.9**k)
    assert len(seen) == min(capacity, 60)


def test_n_steps_never_run_from_before_a_resumed_run_into_its_new_episodes(tmp_path):
    saved = ReplayBuffer(20, SPEC, CPU)
    for transition in episodes([(3, True), (4, True)])[:-1]:  # the second episode continues
        saved.add(transition)
    restored = restore(saved, ReplayBuffer(20, SPEC, CPU), tmp_path)
    restored.cut()
    for transition in episodes([(5, True)], first=100):
        restored.add(transition)
    batch = restored.sample_n_step(300, 3, 1.0)
    before = batch.obs[:, 0] < 100
    assert (batch.next_obs[before, 0] < 100).all()
    last = batch.obs[:, 0] == 5
    assert (batch.discount[last] == 1).all()  # it bootstraps, because the episode was truncated


def test_a_cut_truncates_the_newest_step_of_every_environment_that_has_not_terminated():
    buffer = ReplayBuffer(6, SPEC, CPU)
    assert buffer.cut() == 0
    buffer.add(numbered(1, 2)._replace(terminated=torch.tensor([False, True]), truncated=torch.zeros(2).bool()))
    assert buffer.cut() == 2
    assert buffer.truncated.tolist() == [True, False, False, False, False, False]
    for first in (6, 11):
        buffer.add(numbered(first, 2)._replace(terminated=torch.tensor([True, False]), truncated=torch.zeros(2).bool()))
    buffer.add(numbered(16, 2)._replace(terminated=torch.zeros(2).bool(), truncated=torch.zeros(2).bool()))
    buffer.cut()  # the newest two are at the start again
    assert buffer.truncated.tolist() == [True, True, False, False, False, False]


FRAMES = Spec((4, 6, 5), num_actions=3, obs_dtype="uint8")


def play(lengths: list[tuple[int, bool]], seed: int) -> list[Transition]:
    """Episodes of random frames, stacked as in environments: the first frame four times, then shifted by one."""
    rng, transitions = np.random.default_rng(seed), []
    for length, terminates in lengths:
        frames = rng.integers(256, size=(length + 1, 6, 5), dtype=np.uint8)
        frames = np.concatenate([frames[:1]] * 3 + [frames])
        for step in range(length):
            obs, next_obs = (torch.from_numpy(frames[None, at : at + 4]) for at in (step, step + 1))
            last = torch.tensor([step == length - 1])
            action, reward = torch.from_numpy(rng.integers(3, size=1)), torch.from_numpy(rng.normal(size=1)).float()
            transitions.append(Transition(obs, action, reward, next_obs, last & terminates, last & (not terminates)))
    return transitions


@pytest.mark.parametrize("capacity", [300, 60, 37])
def test_a_frame_buffer_holds_the_same_stacks_as_one_that_stores_them_whole(capacity):
    streams = [
        play([(9, True), (1, False), (30, True), (25, False), (60, True)], 0),
        play([(50, False), (3, True), (72, True)], 1),
    ]
    buffer, whole = FrameBuffer(capacity, FRAMES, CPU, num_envs=2), ReplayBuffer(capacity, FRAMES, CPU)
    for transition in together(streams):
        buffer.add(transition)
        whole.add(transition)
        for batch in (buffer.sample(8), buffer.sample_n_step(8, 3, 0.9)):
            indices = batch.index
            assert torch.equal(batch.obs, whole.obs[indices])
            assert torch.equal(batch.action, whole.action[indices])
    batch = buffer.sample(6_000)  # each of at most 250 is drawn, with probability 1 - 10^-8
    assert torch.equal(batch.obs, whole.obs[batch.index])
    assert torch.equal(batch.next_obs, whole.next_obs[batch.index])
    assert torch.equal(batch.reward, whole.reward[batch.index])
    assert len(batch.index.unique()) == buffer.size >= 0.9 * min(capacity, 250)


def test_a_frame_buffer_of_hardly_more_than_a_step_of_its_environments_holds_the_latest():
    streams = [play([(1 + (seed + i) % 3, i % 2 == 0) for i in range(20)], seed)[:35] for seed in range(5)]
    buffer, whole = FrameBuffer(7, FRAMES, CPU, num_envs=5), ReplayBuffer(7, FRAMES, CPU)
    for transition in together(streams):
        buffer.add(transition)
        whole.add(transition)
        assert 1 <= buffer.size <= 7
        batch = buffer.sample(50)
        assert torch.equal(batch.obs, whole.obs[batch.index])
        assert torch.equal(batch.next_obs, whole.next_obs[batch.index])


def test_no_stack_of_a_frame_buffer_crosses_an_episodes_start():
    buffer = FrameBuffer(100, FRAMES, CPU, num_envs=1)
    for episode, length in enumerate((1, 2, 3, 5, 8, 13, 1, 1, 21)):
        frames = torch.full((length + 4, 6, 5), episode, dtype=torch.uint8)
        for step in range(length):
            last = torch.tensor([step == length - 1])
            obs, next_obs = frames[None, step : step + 4], frames[None, step + 1 : step + 5]
            number = torch.tensor([float(episode)])
            buffer.add(Transition(obs, number.long(), number, next_obs, last, torch.zeros_like(last)))
    batch = buffer.sample(1_000)
    for stacks in (batch.obs, batch.next_obs):
        assert (stacks == batch.reward[:, None, None, None]).all()


def test_where_episodes_are_short_a_frame_buffer_forgets_early_but_never_mixes():
    buffer, whole = FrameBuffer(400, FRAMES, CPU, num_envs=1), ReplayBuffer(400, FRAMES, CPU)
    for transition in play([(2, True)] * 400, 3):  # six frames for two transitions
        buffer.add(transition)
        whole.add(transition)
    assert 100 < buffer.size < 200
    batch = buffer.sample(2_000)
    assert torch.equal(batch.obs, whole.obs[batch.index])
    assert torch.equal(batch.next_obs, whole.next_obs[batch.index])


def test_a_restored_frame_buffer_goes_on_as_the_saved_one(tmp_path):
    saved = FrameBuffer(50, FRAMES, CPU, num_envs=1)
    for transition in play([(20, True), (45, True)], 4):
        saved.add(transition)
    restored = restore(saved, FrameBuffer(50, FRAMES, CPU, num_envs=1), tmp_path)
    for transition in play([(7, False)], 5):
        saved.add(transition)
        restored.add(transition)
    assert_draws_the_same(saved, restored)


def test_a_restored_frame_buffer_forgets_as_early_as_the_saved_one(tmp_path):
    saved = FrameBuffer(50, FRAMES, CPU, num_envs=1)
    for transition in play([(2, True)] * 60, 4):  # six frames for two transitions
        saved.add(transition)
    restored = restore(saved, FrameBuffer(50, FRAMES, CPU, num_envs=1), tmp_path)
    for transition in play([(2, True)] * 5, 5):
        saved.add(transition)
        restored.add(transition)
    assert restored.size == saved.size < 50
    assert_draws_the_same(saved, restored)


def test_a_million_frames_take_less_than_seven_and_a_half_gibibytes():
    atari = Spec((4, 84, 84), num_actions=6, obs_dtype="uint8")
    buffer = FrameBuffer(1_000_000, atari, torch.device("meta"), num_envs=1)
    tensors = [value for value in vars(buffer).values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.nbytes for tensor in tensors) < 7.5 * 2**30


@pytest.mark.parametrize("spec", [Spec((84, 84), num_actions=2, obs_dtype="uint8"), Spec((4, 84, 84), num_actions=2)])
def test_a_frame_buffer_refuses_what_is_no_stack_of_frames(spec):
    with pytest.raises(ValueError, match="frames are uint8 of three dimensions, not"):
        FrameBuffer(10, spec, CPU, num_envs=1)
