"""A replay buffer's files against the buffer itself, checkpoint after checkpoint."""

from pathlib import Path

import numpy as np
import pytest
import torch

from zoo import checkpoint
from zoo.data.batch import Transition
from zoo.data.buffers import FrameBuffer, ReplayBuffer
from zoo.errors import RunError
from zoo.runs.replay_log import ReplayLog
from zoo.spec import Spec

CPU = torch.device("cpu")
VECTORS = Spec((2,), (-1.0,), (1.0,))
FRAMES = Spec((4, 6, 5), num_actions=3, obs_dtype="uint8")


def vectors(count: int, num_envs: int, seed: int) -> list[Transition]:
    """Steps of environments whose episodes end at random."""
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(count):
        obs, next_obs = torch.from_numpy(rng.normal(size=(2, num_envs, 2))).float()
        action, reward = (
            torch.from_numpy(rng.uniform(-1, 1, (num_envs, 1))).float(),
            torch.from_numpy(rng.normal(size=num_envs)).float(),
        )
        flags = torch.from_numpy(rng.random((2, num_envs)) < 0.1)
        steps.append(Transition(obs, action, reward, next_obs, flags[0], flags[1] & ~flags[0]))
    return steps


def frames(count: int, num_envs: int, seed: int) -> list[Transition]:
    """The same with stacks of four frames. An episode begins with four equal frames."""
    rng = np.random.default_rng(seed)

    def frame() -> np.ndarray:
        return rng.integers(256, size=(6, 5), dtype=np.uint8)

    stacks = [np.stack([frame()] * 4) for _ in range(num_envs)]
    steps = []
    for _ in range(count):
        obs = torch.from_numpy(np.stack(stacks))
        stacks = [np.concatenate([stack[1:], frame()[None]]) for stack in stacks]
        next_obs, ended = torch.from_numpy(np.stack(stacks)), rng.random(num_envs) < 0.1
        action, reward = (
            torch.from_numpy(rng.integers(3, size=num_envs)),
            torch.from_numpy(rng.normal(size=num_envs)).float(),
        )
        steps.append(
            Transition(obs, action, reward, next_obs, torch.from_numpy(ended), torch.zeros(num_envs, dtype=torch.bool))
        )
        stacks = [np.stack([frame()] * 4) if over else stack for stack, over in zip(stacks, ended, strict=True)]
    return steps


KINDS = {
    "vectors": (lambda: ReplayBuffer(50, VECTORS, CPU), vectors, 1),
    "vectors of three environments": (lambda: ReplayBuffer(50, VECTORS, CPU), vectors, 3),
    "frames": (lambda: FrameBuffer(50, FRAMES, CPU, 1), frames, 1),
    "frames of two environments": (lambda: FrameBuffer(50, FRAMES, CPU, 2), frames, 2),
}
each_kind = pytest.mark.parametrize(("make", "play", "num_envs"), KINDS.values(), ids=list(KINDS))


def assert_equal(one: ReplayBuffer, other: ReplayBuffer) -> None:
    """Asserts that both have the same transitions at the same indices."""
    assert (one.added, one.size, one.position) == (other.added, other.size, other.position)
    places = (one.position - 1 - torch.arange(one.size)) % one.capacity
    for at in ("obs_at", "next_obs_at"):
        assert torch.equal(getattr(one, at)(places), getattr(other, at)(places))
    for name in ("action", "reward", "terminated", "truncated"):
        assert torch.equal(getattr(one, name)[places], getattr(other, name)[places]), name


@each_kind
def test_every_checkpoint_reads_back_as_the_buffer_was(make, play, num_envs, tmp_path):
    buffer = make()
    log = ReplayLog(tmp_path / "replay", buffer)
    for step, transition in enumerate(play(300, num_envs, 0), 1):
        buffer.add(transition)
        if step % 7 == 0 or step in (100, 101):  # the ring wraps around many times, at no checkpoint's end
            state = log.write()
            log.prune()
            restored = make()
            ReplayLog(tmp_path / "replay", restored).read(state)
            assert_equal(restored, buffer)
            assert len(list((tmp_path / "replay").iterdir())) == len(state["files"])


@each_kind
def test_a_checkpoint_whose_successor_was_never_finished_still_reads(make, play, num_envs, tmp_path):
    """A kill between the files of a buffer and the checkpoint that names them."""
    buffer, steps = make(), play(130, num_envs, 1)
    log = ReplayLog(tmp_path, buffer)
    for transition in steps[:90]:
        buffer.add(transition)
    state = log.write()
    log.prune()
    before = make()
    ReplayLog(tmp_path, before).read(state)
    for transition in steps[90:]:
        buffer.add(transition)
    log.write()  # and nothing after it
    restored = make()
    again = ReplayLog(tmp_path, restored)
    again.read(state)
    assert_equal(restored, before)
    for transition in steps[90:110]:  # the resumed run goes its own way
        restored.add(transition)
    state = again.write()
    again.prune()
    assert {path.name for path in tmp_path.iterdir()} == {f"{first}-{last}.pt" for first, last in state["files"]}


def test_a_checkpoint_writes_what_was_added_and_not_the_buffer(tmp_path):
    spec = Spec((4, 84, 84), num_actions=4, obs_dtype="uint8")
    buffer = FrameBuffer(3_000, spec, CPU, 1)
    log = ReplayLog(tmp_path, buffer)
    stack = torch.zeros(1, 4, 84, 84, dtype=torch.uint8)
    no, sizes = torch.tensor([False]), []
    for _ in range(4):
        for _ in range(500):
            buffer.add(Transition(stack, torch.tensor([0]), torch.tensor([0.0]), stack, no, no))
        log.write()
        log.prune()
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    added = np.diff([0, *sizes])
    assert added.max() < 1.1 * 500 * 84 * 84
    assert added.min() > 500 * 84 * 84


def test_only_its_own_files_are_deleted(tmp_path):
    buffer = ReplayBuffer(50, VECTORS, CPU)
    log = ReplayLog(tmp_path, buffer)
    for name in ("model.pt", "weights.pth", "0-10.pt", "0-10.pt.partial"):
        (tmp_path / name).touch()
    buffer.add(vectors(1, 1, 0)[0])
    log.write()
    log.prune()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-1.pt", "model.pt", "weights.pth"]


def test_the_ends_that_resuming_gave_the_running_episodes_last(tmp_path):
    buffer = ReplayBuffer(50, VECTORS, CPU)
    steps = [
        step._replace(terminated=torch.zeros(2, dtype=torch.bool), truncated=torch.zeros(2, dtype=torch.bool))
        for step in vectors(20, 2, 2)
    ]
    log = ReplayLog(tmp_path, buffer)
    for transition in steps[:10]:
        buffer.add(transition)
    state = log.write()
    resumed = ReplayBuffer(50, VECTORS, CPU)
    log = ReplayLog(tmp_path, resumed)
    log.read(state, new_episodes=True)
    for transition in steps[10:]:
        resumed.add(transition)
    state = log.write()
    again = ReplayBuffer(50, VECTORS, CPU)
    ReplayLog(tmp_path, again).read(state)
    assert again.truncated.nonzero().flatten().tolist() == [18, 19]
    assert_equal(again, resumed)


def test_a_missing_file_is_named(tmp_path):
    buffer = ReplayBuffer(50, VECTORS, CPU)
    buffer.add(vectors(1, 1, 0)[0])
    state = ReplayLog(tmp_path, buffer).write()
    (tmp_path / "0-1.pt").unlink()
    with pytest.raises(RunError, match=r"0-1\.pt is missing"):
        ReplayLog(tmp_path, ReplayBuffer(50, VECTORS, CPU)).read(state)


def test_a_full_disk_leaves_the_checkpoint_before_readable(tmp_path, monkeypatch):
    buffer, steps = ReplayBuffer(50, VECTORS, CPU), vectors(80, 1, 3)
    log = ReplayLog(tmp_path, buffer)
    for transition in steps[:40]:
        buffer.add(transition)
    state = log.write()
    expected = ReplayBuffer(50, VECTORS, CPU)
    ReplayLog(tmp_path, expected).read(state)
    for transition in steps[40:]:
        buffer.add(transition)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(RunError, match="No space left"):
            log.write()
    restored = ReplayBuffer(50, VECTORS, CPU)
    ReplayLog(tmp_path, restored).read(state)
    assert_equal(restored, expected)
    assert not list(tmp_path.glob("*.partial"))
    assert checkpoint.load(tmp_path / "0-40.pt")["reward"].shape == (40,)
