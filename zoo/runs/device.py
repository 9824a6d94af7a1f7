"""The device of a run: which one, its random numbers, and updates compiled for it."""

import ctypes
import functools
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch

from zoo.agent import Metrics
from zoo.errors import UsageError
from zoo.machine import cache_dir
from zoo.nn.linear import lower
from zoo.settings.config import RunConfig

MALLOPT_TRIM_THRESHOLD, MALLOPT_MMAP_THRESHOLD = -1, -3  # malloc.h
COMPILED_FROM = 20_000  # steps; about as many updates win back on a CPU what compiling them takes


def set_up(config: RunConfig) -> torch.device:
    """Threads, precision and seed of this process as the settings have them. Returns the run's device."""
    device = resolve_device(config.device)
    keep_memory()
    torch.set_num_threads(config.threads)
    torch.set_flush_denormal(True)  # a CPU takes ten times as long with weights that have decayed to almost nothing
    torch.set_float32_matmul_precision(config.matmul_precision)
    torch.manual_seed(config.seed)
    return device


@functools.cache
def keep_memory() -> None:
    """Has this process keep the memory that it frees, where it is glibc's.

    Else large tensors are given back to the system and asked for again at every update, which costs CQL a fifth of its
    time on a CPU.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(MALLOPT_MMAP_THRESHOLD, 32 * 2**20)  # the largest that it takes
        libc.mallopt(MALLOPT_TRIM_THRESHOLD, 2**30)


def resolve_device(name: str) -> torch.device:
    """`auto` -> a GPU where there is one. Raises UsageError where the device does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device={name} is not on this machine. Try: device=cpu.") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={name} is of a kind that the zoo does not use. Try: device=cpu or device=cuda.")
    return device


def compiles(config: RunConfig) -> tuple[bool, str]:
    """Whether a run's update is to be compiled, and the line that says so where `compile=auto` decides.

    Raises UsageError where `compile=true` cannot be done.
    """
    if config.compile is False or (config.compile == "auto" and config.steps + config.online_steps < COMPILED_FROM):
        return False, ""
    missing = needed_to_compile(config.device)
    if config.compile is True:
        if missing:
            raise UsageError(f"compile=true needs {missing}")
        return True, ""
    if missing:
        return False, f"compile=auto: the update is not compiled, which would be faster but needs {missing}"
    return True, "compile=auto: the update is compiled, for up to half a minute the first time (compile=false: not)"


def needed_to_compile(device: str = "cpu") -> str | None:
    """What compiling lacks on this machine, and how to get it; None where it works."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        return f"a newer torch than {torch.__version__}: pip install 'torch>=2.13,<2.14'"
    if resolve_device(device).type == "cuda":
        return None if importlib.util.find_spec("triton") else "Triton: pip install triton"
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # as PyTorch looks for it
    return None if shutil.which(compiler) else f"a C++ compiler: {compiler} is not installed"


def compile_update(update: Callable[..., Metrics], backend: str = "inductor") -> Callable[..., Metrics]:
    """An agent's update as one compiled graph, its gradients included. Raises UsageError where torch is too old."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        raise UsageError(f"compile=true needs {needed_to_compile()}")
    torch._dynamo.config.trace_autograd_ops = True
    lower()
    keep_compiled()
    options: dict[str, Any] = {"guard_filter_fn": changing}
    if backend == "inductor":
        # no patterns: they would have a bias added by the matrix product, which is slower than fusing it with the ReLU
        options |= {"size_asserts": False, "alignment_asserts": False, "pattern_matcher": False}
    return torch.compile(update, fullgraph=True, dynamic=False, backend=backend, options=options)


def changing(guards: Sequence[Any]) -> list[bool]:
    """Which of the conditions that compiled code checks at each call are kept: those on its arguments.

    What else an agent consists of stays what it was, but for the values of its tensors. There are some 600 such
    conditions, and to check them takes as long as a small matrix product.
    """
    return [not (guard.is_global or re.match(r"\W*self\b", guard.name)) for guard in guards]


@functools.cache
def keep_compiled() -> None:
    """Has PyTorch keep compiled code in the zoo's cache folder, not in `/tmp`, unless the environment names another."""
    folder = cache_dir() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    except OSError:
        print(f"{folder} cannot be written: what is compiled is not kept for the next run", file=sys.stderr, flush=True)


def rng_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:  # else it was written where there was no GPU
        torch.cuda.set_rng_state(state["cuda"], device)
