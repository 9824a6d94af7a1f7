"""SIGINT and SIGTERM: the first asks a run for a checkpoint and its end."""

import contextlib
import os
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from zoo.errors import Interrupted, quoted


class Interruption:
    """While entered, `asked` says whether SIGINT or SIGTERM came; another one, over a second later, ends the process.

    One that comes at once does not: some senders, such as `timeout`, send a signal twice.

    Several runs may enter it: only the first entry and the last exit take effect.

    Attributes:
        came: whether a signal came since the latest run of this process began.
    """

    came = False

    def __init__(self) -> None:
        self.asked = Interruption.came = False
        self._when = 0.0
        self._entered = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._entered += 1
        if self._entered > 1:
            return
        with contextlib.suppress(ValueError):  # not the main thread: signals stay with their owner
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not None:  # its handler is Python's, which can be set again
                    self._before[number] = signal.signal(number, self._ask)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered -= 1
        if self._entered:
            return
        for number, previous in self._before.items():
            signal.signal(number, previous)
        self._before = {}

    def _ask(self, number: int, _frame: Any) -> None:
        if self.asked and time.monotonic() - self._when > 1:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
        elif not self.asked:
            self.asked, self._when = True, time.monotonic()
            Interruption.came = True
            with contextlib.suppress(OSError):  # the same signal may have ended the reader of the pipe
                os.write(2, b"zoo: stopping after this step, with a checkpoint. Once more to stop at once, without.\n")


def interrupted(after: str, command: str, run_dir: Path) -> Interrupted:
    """The exception for a run that wrote its checkpoint after a request to stop; says which command continues it."""
    continued = f"{command} {quoted(f'resume={run_dir}')}"
    return Interrupted(f"interrupted after {after}; its checkpoint is written. Continue: {continued}", run_dir)
