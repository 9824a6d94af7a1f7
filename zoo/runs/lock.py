"""The lock of a run's folder, held by the process that trains in it."""

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

    Some cluster file systems have no locks: then a printed line says so, and the run begins without one.

    Raises:
        UsageError: another process holds it.
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
    """Whether another process is running in a folder."""
    try:
        file = (run_dir / LOCK).open()  # this process may have no right to write it
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
