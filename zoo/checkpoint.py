"""Atomic files: written to a temporary file, synced and renamed. Read without pickle."""

import contextlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from zoo.errors import RunError, UsageError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file that replaces `path` once it is complete; otherwise `path` stays as it was.

    Raises:
        RunError: the disk is full or the file cannot be written.
    """
    place = path.resolve()  # the target of a link is replaced, not the link
    partial = place.with_name(place.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            if place.exists():
                shutil.copymode(place, partial)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(place)
        directory = os.open(place.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}. What stood there before is untouched."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


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
            partial.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error


def check_free(path: Path, force: bool) -> None:
    """Raises UsageError if a file or a folder would be overwritten without `--force`."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists. Take another name, or replace it with --force.")


def check_file(path: Path, force: bool) -> None:
    """Like `check_free`; also checks that a file can be made there: its folder exists, and it is no folder itself."""
    check_free(path, force)
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path} is a folder." if path.is_dir() else f"the folder {path.parent} does not exist.")


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes tensors, numbers, strings and containers of these; raises RunError if that fails."""
    with replacing(path) as file:
        try:
            torch.save(_alone(state), file)
        except RuntimeError as error:  # torch's writer hides the OSError of the file below it
            raise OSError(0, _cause(error)) from error


def _alone(state: Any) -> Any:
    """Copies tensors that are views: torch would write their whole storage, a whole buffer for its first rows."""
    if isinstance(state, torch.Tensor):
        return state.clone() if state.untyped_storage().nbytes() > state.nbytes else state
    if isinstance(state, dict):
        return {key: _alone(value) for key, value in state.items()}
    if isinstance(state, tuple | list):
        return type(state)(map(_alone, state))
    return state


def _cause(error: BaseException) -> str:
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or str(error).splitlines()[0]


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Reads what `save` wrote, with its tensors on `device`. Raises RunError if the file is missing or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            if broken := archive.testzip():  # torch reads the contents whatever their checksums
                raise ValueError(f"the checksum of {broken} is wrong")
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        if not isinstance(state, dict):
            raise ValueError("it holds no state of a run")
        return state
    except FileNotFoundError as error:
        raise RunError(
            f"{path} does not exist: the run stopped before its first checkpoint. Delete the folder and start anew."
        ) from error
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # torch raises many kinds of errors on damaged files
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"{path} is not a readable checkpoint, it may be cut short or damaged: {reason}") from error


def save_json(path: Path, value: Any) -> None:
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())
