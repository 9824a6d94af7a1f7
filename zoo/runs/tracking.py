"""The contents of a run's checkpoints, by name: its agent, its replay buffer, and all else that an algorithm tracks."""

from pathlib import Path
from typing import Any, Protocol

import torch

from zoo.data.buffers import ReplayBuffer
from zoo.errors import RunError
from zoo.runs.replay_log import ReplayLog

FORMAT = 3  # of a checkpoint; raised when names or shapes in it change, so that older ones are refused with one line
CONTENTS = {  # of a checkpoint, beside its format
    "step": int, "seconds": float, "metrics": dict, "stages": dict, "tracked": dict, "rng": dict, "linear": dict,
    "envs": dict | None, "prefetched": torch.Tensor | None,
}  # fmt: skip


class Stateful(Protocol):
    """An object with a state dict."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class Tracked:
    """The objects tracked by the run in `run_dir`, whose algorithm is the file at `path`.

    The contents of replay buffers go to files in the folder's `replay/`.
    """

    def __init__(self, run_dir: Path, path: Path) -> None:
        self._dir, self._path = run_dir, path
        self._objects: dict[str, Stateful] = {}
        self._replay: dict[str, ReplayLog] = {}  # of the replay buffers among them

    def add(self, name: str, one: Stateful) -> None:
        assert name not in self._objects, f"{name} is tracked twice"
        self._objects[name] = one
        if isinstance(one, ReplayBuffer):
            self._replay[name] = ReplayLog(self._dir / "replay" / name, one)

    def load(self, name: str, state: dict[str, Any], new_episodes: bool) -> None:
        """Loads one object from the result of `state_dict`; `new_episodes` is that of `ReplayLog.read`.

        Raises:
            RunError: the state does not match the object.
        """
        try:
            if name in self._replay:
                self._replay[name].read(state[name], new_episodes)
            else:
                self._objects[name].load_state_dict(state[name])
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise misfit(self._dir, self._path) from error

    def state_dict(self) -> dict[str, Any]:
        """The states of all objects. Writes what has been added to the replay buffers since the last call."""
        return {
            name: self._replay[name].write() if name in self._replay else one.state_dict()
            for name, one in self._objects.items()
        }

    def prune(self) -> None:
        """Deletes the replay files that no checkpoint needs any longer."""
        for log in self._replay.values():
            log.prune()


def diverged(run_dir: Path, when: str, broken: list[str]) -> RunError:
    """The error of a run whose metrics of these names are not finite, and whose state is saved as `diverged.pt`."""
    kept = "; the last good one is checkpoint.pt" if (run_dir / "checkpoint.pt").exists() else ""
    return RunError(
        f"the run diverged {when}: {', '.join(broken)} not finite. Its state is in {run_dir / 'diverged.pt'}{kept}. "
        "A smaller learning rate or scaled rewards often help."
    )


def misfit(run_dir: Path, path: Path) -> RunError:
    """The error of a resumed run whose checkpoint the algorithm's file cannot load."""
    return RunError(
        f"{run_dir / 'checkpoint.pt'} does not fit {path}, which has changed since it was written. Start a new run."
    )


def clipped(count: float, step: int) -> str:
    """The note of a run whose value head has clipped targets."""
    return (
        f"{count:.0f} value targets up to step {step:,} were outside the support and were clipped; metrics.csv counts "
        "them on. Wider: algo.v_min, algo.v_max"
    )
