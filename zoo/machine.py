"""The machine that this process runs on."""

import functools
import os
import platform
import re
from pathlib import Path


@functools.cache
def processor() -> str:
    """Its name, where it is known, and its generation, which the name that a virtual machine gives may leave out."""
    known = Path("/proc/cpuinfo")  # Linux's; platform.processor() is empty there
    fields = dict(re.findall(r"^(.+?)\s*: (.+)$", known.read_text(), re.MULTILINE)) if known.exists() else {}
    if "model name" not in fields:
        return platform.processor()
    generation = [f"{name} {fields[name]}" for name in ("cpu family", "model") if name in fields]
    return f"{fields['model name']} ({', '.join(generation)})" if generation else fields["model name"]


def cache_dir() -> Path:
    """The folder for what can be made again; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rl-zoo"
