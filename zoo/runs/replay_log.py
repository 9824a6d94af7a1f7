"""A replay buffer on disk: each transition is written once, with the checkpoint that follows it.

The transitions added between two checkpoints make up one file, `<first>-<last>.pt`: those numbered from `first` up to
`last`, in the order of addition. A checkpoint names the files that its buffer consists of. They are written before it,
and files that it no longer needs are deleted after it, so that the present checkpoint can always be read. A checkpoint
costs what was added since the last one, however large the buffer is.
"""

from pathlib import Path
from typing import Any

from zoo import checkpoint
from zoo.data.buffers import ReplayBuffer
from zoo.errors import RunError


class ReplayLog:
    """The files of one replay buffer.

    Args:
        folder: the folder of the files.
        buffer: the buffer, still empty; `read` fills it.
    """

    def __init__(self, folder: Path, buffer: ReplayBuffer) -> None:
        self.folder, self.buffer = folder, buffer
        self._files: list[tuple[int, int]] = []  # first and last number, in the order in which they were written
        self._written = 0  # transitions before this number are in files

    def write(self) -> dict[str, Any]:
        """Writes what was added since the last call. Returns what the checkpoint must hold.

        Raises:
            RunError: the disk is full or the folder cannot be written to.
        """
        first, last = max(self._written, self.buffer.added - self.buffer.filled), self.buffer.added
        if first < last:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(f"cannot make the folder {self.folder}: {error.strerror}.") from error
            checkpoint.save(self._path(first, last), self.buffer.rows(first, last))
            self._files.append((first, last))
            self._written = last
        overwritten = last - self.buffer.filled
        self._files = [(first, last) for first, last in self._files if last > overwritten]
        return self.buffer.state_dict() | {"files": list(self._files)}

    def prune(self) -> None:
        """Deletes the files that the last `write` did not name. Must be called once its checkpoint is written."""
        named = {self._path(*numbers) for numbers in self._files}
        for path in self.folder.glob("[0-9]*-[0-9]*.pt*"):  # half-written files too
            if path not in named:
                path.unlink()

    def read(self, state: dict[str, Any], new_episodes: bool = False) -> None:
        """Fills the buffer with the files that a checkpoint names.

        Args:
            state: the return value of `write`.
            new_episodes: transitions added next do not continue the episodes that were running: those are truncated.

        Raises:
            RunError: a file is missing or damaged.
        """
        self._files = [(first, last) for first, last in state["files"]]
        self.buffer.load_state_dict(state)
        for first, last in self._files:
            path = self._path(first, last)
            if not path.exists():
                raise RunError(f"{path} is missing, a part of the replay buffer. Start a new run.")
            self.buffer.put(first, checkpoint.load(path, self.buffer.device))
        self._written = self.buffer.added
        if new_episodes:
            self._written -= self.buffer.cut()  # they are written again, with their ends

    def _path(self, first: int, last: int) -> Path:
        return self.folder / f"{first}-{last}.pt"
