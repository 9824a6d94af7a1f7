"""The ways a command ends early, each one clear line: a mistake of the user's, a failure, an interruption."""

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """The request cannot be met as typed: exit code 2. Says what was asked, why not, and what to type instead."""


class RunError(Exception):
    """The work failed on the way (a full disk, a diverging loss, no network): exit code 1."""


class Interrupted(Exception):
    """SIGINT or SIGTERM came and the run has written a checkpoint: exit code 130. The message says how to continue."""


def nearest(name: str, options: Iterable[str], examples: Iterable[str] | None = None) -> str:
    """A sentence naming the options closest to `name`; where none is close, the `examples`, or all of them."""
    options = sorted(options)
    lowered = {option.lower(): option for option in options}
    close = [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)]
    return f"Nearest: {', '.join(close)}." if close else f"There are: {', '.join(sorted(examples or options))}."
