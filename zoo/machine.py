"""The machine that this process runs on."""

import contextlib
import functools
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from zoo.errors import UsageError


@functools.cache
def processor() -> str:
    """The CPU's name, if known, and its generation, which the name in a virtual machine may leave out."""
    known = Path("/proc/cpuinfo")  # Linux only; platform.processor() is empty there
    fields = dict(re.findall(r"^(.+?)\s*: (.+)$", known.read_text(), re.MULTILINE)) if known.exists() else {}
    if "model name" not in fields:  # ARM
        parts = [fields[name] for name in ("CPU implementer", "CPU part") if name in fields]
        return " ".join([platform.machine(), *parts]) if parts else platform.processor() or platform.machine()
    generation = [f"{name} {fields[name]}" for name in ("cpu family", "model") if name in fields]
    return f"{fields['model name']} ({', '.join(generation)})" if generation else fields["model name"]


def gpus() -> dict[str, str]:
    """The names of the GPUs that PyTorch sees, the driver and CUDA, as `gpu`, `driver` and `cuda`; empty without a GPU.

    The driver is left out if nvidia-smi is not available.
    """
    import torch

    count = torch.cuda.device_count()
    if not count:
        return {}
    names = Counter(torch.cuda.get_device_name(i) for i in range(count))
    shown = ", ".join(name if number == 1 else f"{number} x {name}" for name, number in names.items())
    drivers = dict.fromkeys(row[0] for row in nvidia_smi("driver_version"))
    return {"gpu": shown} | ({"driver": ", ".join(drivers)} if drivers else {}) | {"cuda": str(torch.version.cuda)}


def nvidia_smi(*fields: str) -> list[list[str]]:
    """What nvidia-smi reports for each GPU of the machine, visible to this process or not: one row each.

    Args:
        fields: names from `nvidia-smi --help-query-gpu`; memory is in MiB.

    Returns:
        The rows; none if nvidia-smi is missing or fails.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[value.strip() for value in line.split(",")] for line in said.splitlines() if line.strip()]


def cores() -> int:
    """The number of cores that this process may use, also in a container whose share of the CPU is limited."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # there is no such file, or no limit: "max 100000"
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        count = min(count, math.ceil(quota / period))
    return count


def cache_dir() -> Path:
    """The folder for files that can be regenerated; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache") / "rl-zoo"


def writable(folder: Path) -> bool:
    """Makes a folder for compiled code; False, with a line on the terminal, if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        print(f"{folder} cannot be written: what is compiled is not kept for the next run", file=sys.stderr, flush=True)
        return False


def expanded(path: Path | str) -> Path:
    """A path with `~` as the user's home folder. Raises UsageError if there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{path}: there is no such home folder. Name the folder itself.") from error


def home() -> Path:
    """The user's home folder. Raises UsageError if there is none."""
    try:
        return Path.home()
    except RuntimeError as error:
        raise UsageError("this user has no home folder. Set HOME to a folder that can be written.") from error
