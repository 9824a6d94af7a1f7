"""The ways in which a command ends early, each with one clear line: a user's mistake, a failure, an interruption."""

import difflib
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

INTERRUPTED = 130  # the shell's 128 + SIGINT


class UsageError(Exception):
    """The request cannot be met as typed: exit code 2. Says what was asked, why not, and what to type instead."""


class RunError(Exception):
    """The work failed on the way (a full disk, a diverging loss, no network): exit code 1."""


class Interrupted(Exception):
    """SIGINT or SIGTERM came, and the run has written a checkpoint: exit code 130. The message says how to continue.

    Attributes:
        run_dir: the folder of the run, if there is one.
    """

    def __init__(self, message: str, run_dir: Path | None = None) -> None:
        super().__init__(message)
        self.run_dir = run_dir


def nearest(name: str, options: Iterable[str], examples: Iterable[str] | None = None) -> str:
    """A sentence naming the options closest to `name`; if none is close, the `examples`, or all of them."""
    options = sorted(options)
    lowered = {option.lower(): option for option in options}
    close = [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)]
    return f"Nearest: {', '.join(close)}." if close else f"There are: {', '.join(sorted(examples or options))}."


def quoted(word: object) -> str:
    """A word of a command to be typed, such as a folder's name, quoted for the shell if it needs that."""
    return shlex.quote(str(word))


def optional(package: str, user: str, extra: str) -> Any:
    """A package that not everybody needs, imported. Raises UsageError if it is missing: `user` needs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(f"{user} needs {error.name or package}. Type: pip install 'rl-zoo[{extra}]'") from error


def guarded(command: Callable[..., int], *arguments: Any) -> int:
    """Runs a command; turns its errors into one line and an exit code: 2 for the user's mistake, 1 for a failure."""
    try:
        return command(*arguments)
    except UsageError as error:
        complain(error)
        return 2
    except RunError as error:
        complain(error)
        return 1
    except Interrupted as error:
        complain(error)
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has exited
        return 0
    except OSError as error:
        if error.filename is None or error.strerror is None:  # it is not about a file
            raise
        complain(RunError(f"{error.filename}: {error.strerror}"))
        return 1


def printable(text: object) -> str:
    """A text as one line, without what a terminal would take as a command: it may come from a file."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(str(text).split()))


def complain(error: Exception) -> None:
    """Prints an error as one line."""
    try:
        print(f"zoo: {printable(error)}", file=sys.stderr, flush=True)
    except BrokenPipeError:  # the exit code still tells
        discard(2)


def discard(descriptor: int) -> None:
    """Discards all further writes to a file descriptor, a pipe whose reader has exited."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
