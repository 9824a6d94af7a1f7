"""The lock of a run's folder, which the process has that trains in it."""

import contextlib
import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path

from zoo.errors import RunError, UsageError

LOCK = ".lock"


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Locks the folder for this process; the kernel releases it however the process ends.

    Some file systems of clusters have no locks: there a line says so, and the run begins without.

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
        except OSError as error:
            print(
                f"{run_dir} cannot be locked ({error.strerror}): see to it that no other process trains there",
                file=sys.stderr,
                flush=True,
            )
        yield


def in_use(run_dir: Path) -> bool:
    """Whether another process runs in a folder."""
    try:
        file = (run_dir / LOCK).open()  # which need not be one that this process may write
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            pass
    return False
