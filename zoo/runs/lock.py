"""The lock of a run's folder, which the process has that trains in it."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from zoo.errors import RunError, UsageError

LOCK = ".lock"


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Locks the folder for this process; the kernel releases it however the process ends.

    Raises:
        UsageError: another process has it.
        RunError: nothing can be written there.
    """
    try:
        file = (run_dir / LOCK).open("a")
    except OSError as error:
        raise RunError(f"cannot write {run_dir / LOCK}: {error.strerror}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{run_dir} is in use by a run in progress. Wait for it, or stop it.") from None
        yield


def in_use(run_dir: Path) -> bool:
    """Whether another process runs in a folder."""
    try:
        with (run_dir / LOCK).open() as file:  # which need not be one that this process may write
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
