"""Checkpoints: tensors, numbers, strings and containers of these, written whole and read without pickle."""

import zipfile
from pathlib import Path
from typing import Any

import torch

from zoo.errors import RunError
from zoo.files import replacing


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
