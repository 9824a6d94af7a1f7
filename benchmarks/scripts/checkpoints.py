"""Measures checkpoints of a replay buffer: of all transitions, and of those added since the last checkpoint.

python benchmarks/scripts/checkpoints.py --size 100000
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from zoo import checkpoint
from zoo.data.batch import Transition
from zoo.data.buffers import FrameBuffer, ReplayBuffer
from zoo.runs.replay_log import ReplayLog
from zoo.spec import Spec

CPU = torch.device("cpu")
ADDED = 10_000  # transitions between two checkpoints, the default of `checkpoint_every`


def frames(capacity: int) -> tuple[ReplayBuffer, Transition]:
    """A buffer of Atari frames, and a transition for it."""
    stack, no = torch.randint(256, (1, 4, 84, 84), dtype=torch.uint8), torch.tensor([False])
    spec = Spec((4, 84, 84), num_actions=4, obs_dtype="uint8")
    return FrameBuffer(capacity, spec, CPU, 1), Transition(stack, torch.tensor([0]), torch.zeros(1), stack, no, no)


def vectors(capacity: int) -> tuple[ReplayBuffer, Transition]:
    """A buffer of Hopper's observations, and a transition for it."""
    obs, no = torch.randn(1, 11), torch.tensor([False])
    spec = Spec((11,), (-1.0,) * 3, (1.0,) * 3)
    return ReplayBuffer(capacity, spec, CPU), Transition(obs, torch.zeros(1, 3), torch.zeros(1), obs, no, no)


def timed(write: Callable[[], object], folder: Path) -> str:
    """The megabytes that a write adds to a folder, and its time in seconds."""
    before, start = size(folder), time.perf_counter()
    write()
    return f"{(size(folder) - before) / 1e6:8.1f} MB {time.perf_counter() - start:6.2f} s"


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Fills buffers and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=100_000, help="transitions in the buffer before the last 10,000")
    args = parser.parse_args()
    for make in (frames, vectors):
        buffer, transition = make(args.size + ADDED)
        for _ in range(args.size):
            buffer.add(transition)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            log = ReplayLog(folder / "replay", buffer)
            log.write()
            for _ in range(ADDED):
                buffer.add(transition)
            new = timed(log.write, folder)
            whole = timed(partial(checkpoint.save, folder / "whole.pt", buffer.rows(0, buffer.added)), folder)
        print(f"{make.__name__:8} {buffer.added:9,} transitions: all {whole}, what is new {new}")


if __name__ == "__main__":
    main()
