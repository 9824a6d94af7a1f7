"""The machine that this process runs on."""

import functools
import os
import platform
import re
from pathlib import Path


@functools.cache
def processor() -> str:
    """Its name, where it is known: another one may round otherwise."""
    known = Path("/proc/cpuinfo")  # Linux's; platform.processor() is empty there
    named = re.search(r"^model name\s*: (.+)$", known.read_text(), re.MULTILINE) if known.exists() else None
    return named[1] if named else platform.processor()


def cache_dir() -> Path:
    """The folder for what can be made again; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rl-zoo"
