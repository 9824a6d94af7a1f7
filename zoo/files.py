"""Files that are written whole or not at all: to a temporary file, synced and renamed."""

import contextlib
import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from zoo.errors import RunError, UsageError

UNLESS_LOCKED = fcntl.LOCK_EX | fcntl.LOCK_NB


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file that replaces `path` once it is complete; otherwise `path` stays as it was.

    Each process has a temporary file of its own. What killed ones have left is deleted.

    Raises:
        RunError: the disk is full or the file cannot be written.
    """
    place = path.resolve()  # the target of a link is replaced, not the link
    partial = place.with_name(f"{place.name}.{os.getpid()}.partial")
    try:
        for left in place.parent.glob(f"{glob.escape(place.name)}.[0-9]*.partial"):
            with contextlib.suppress(OSError), left.open("ab") as file:
                fcntl.flock(file, UNLESS_LOCKED)  # it is locked until its process has put it in place, or is dead
                left.unlink()
        with partial.open("wb") as file:
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(file, UNLESS_LOCKED)
            yield file
            if place.exists():
                shutil.copymode(place, partial)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(place)
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}. What stood there before is untouched."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not every file system can sync a folder
        sync(place.parent)


@contextlib.contextmanager
def replacing_path(path: Path) -> Iterator[Path]:
    """Like `replacing`, for files that are written by path: yields a path of the same name in a temporary folder.

    Raises:
        RunError: the file cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=path.parent) as beside:
            partial = Path(beside) / path.name
            yield partial
            sync(partial)
            partial.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error
    with contextlib.suppress(OSError):  # as above
        sync(path.parent)


def sync(path: Path) -> None:
    """Waits until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_json(path: Path, value: Any) -> None:
    """Writes a value as JSON; raises RunError if that fails."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


def check_free(path: Path, force: bool) -> None:
    """Raises UsageError if a file or a folder would be overwritten without `--force`."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists. Take another name, or replace it with --force.")


def check_file(path: Path, force: bool) -> None:
    """Like `check_free`; also checks that a file can be made there: its folder exists, and it is no folder itself."""
    check_free(path, force)
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path} is a folder." if path.is_dir() else f"the folder {path.parent} does not exist.")
