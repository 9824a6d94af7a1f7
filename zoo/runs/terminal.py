"""What a run shows in the terminal while it is running."""

import functools
import signal
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from zoo.errors import discard
from zoo.runs.interruption import Interruption


class Terminal(Console):
    """Where runs print. If that is a pipe whose reader has exited, they end with a checkpoint, as after a signal."""

    def on_broken_pipe(self) -> None:
        discard(sys.stdout.fileno())
        if Interruption.came:  # the run is already ending
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # no step has begun yet
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGTERM)


@functools.cache
def terminal() -> Console:
    """The terminal that runs side by side share."""
    return Terminal(highlight=False, soft_wrap=True)


class ProgressBar:
    """Steps done, steps/s, time left and the latest score; without a terminal, only the lines passed to `print`.

    Args:
        moves: whether the bar is shown; of runs side by side, only one shows it.
    """

    REFRESH_SECONDS = 0.25

    def __init__(self, total: int, done: int, unit: str, moves: bool = True) -> None:
        self.console = terminal()
        self.progress = Progress(
            TextColumn("{task.fields[score]}"), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn(unit),
            TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=self.console,
            disable=not moves or not self.console.is_terminal,
        )  # fmt: skip
        self.task = self.progress.add_task("", total=total, completed=done, score="", rate="")
        self.next_refresh = 0.0

    def __enter__(self) -> "ProgressBar":
        self.progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.progress.stop()

    def update(self, done: int) -> None:
        now = time.monotonic()
        if now >= self.next_refresh:
            self.next_refresh = now + self.REFRESH_SECONDS
            speed = self.progress.tasks[0].speed
            self.progress.update(self.task, completed=done, rate=f"{speed:,.0f}/s" if speed else "")

    def print(self, line: str, score: str | None = None) -> None:
        self.console.print(line, markup=False)
        if score is not None:
            self.progress.update(self.task, score=score)
