"""The device of a run: its choice, threads, memory and random numbers."""

import contextlib
import ctypes
import functools
import platform
import re
from collections.abc import Iterator

import torch

from zoo.errors import RunError, UsageError
from zoo.settings.config import RunConfig

MALLOPT_TRIM_THRESHOLD, MALLOPT_MMAP_THRESHOLD = -1, -3  # malloc.h


def set_up(config: RunConfig) -> torch.device:
    """Sets threads, precision and seed of this process as configured. Returns the run's device."""
    device = resolve_device(config.device)
    keep_memory()
    torch.set_num_threads(config.threads)
    torch.set_flush_denormal(True)  # weights that have decayed to almost nothing make a CPU ten times slower
    torch.set_float32_matmul_precision(config.matmul_precision)
    torch.manual_seed(config.seed)
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # without it there are no statistics yet
        torch.cuda.reset_peak_memory_stats(device)
    return device


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Inside this context, runs may configure PyTorch; afterwards everything, random numbers included, is as before."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    dtype, flushed = torch.get_default_dtype(), not torch.tensor([1e-40], dtype=torch.float32).mul(1).any()
    torch.set_default_dtype(torch.float32)
    try:
        used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        with torch.random.fork_rng(range(torch.cuda.device_count() if used else 0)):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.set_flush_denormal(flushed)


@functools.cache
def keep_memory() -> None:
    """Makes this process keep the memory that it frees, if it uses glibc.

    Otherwise large tensors are given back to the system and requested again at every update, which costs CQL a fifth of
    its time on a CPU.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(MALLOPT_MMAP_THRESHOLD, 32 * 2**20)  # the largest value that it accepts
        libc.mallopt(MALLOPT_TRIM_THRESHOLD, 2**30)


def resolve_device(name: str) -> torch.device:
    """`auto` -> a GPU where there is one.

    Raises:
        UsageError: the device does not exist.
        RunError: the device's memory is full.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        with enough_memory():
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device={name} is not on this machine. Try: device=cpu.") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={name} is of a kind that the zoo does not use. Try: device=cpu or device=cuda.")
    return device


def peak_memory(device: torch.device) -> int | None:
    """The peak number of bytes of GPU memory that this process allocated since its latest run began; None for a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """Inside this context, running out of memory is a one-line failure: RunError in place of PyTorch's error."""
    try:
        yield
    except RuntimeError as error:
        if of_cpu := re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", str(error)):
            raise RunError(
                f"the memory is full: {int(of_cpu[1]) / 2**30:,.1f} GiB were asked for. Lower what takes memory "
                "(algo.batch_size, algo.hidden, algo.buffer_size, online_steps, num_envs, seeds)"
            ) from error
        if not isinstance(error, torch.OutOfMemoryError) and "CUDA error: out of memory" not in str(error):
            raise
        asked = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", str(error))
        free = re.search(r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free", str(error))
        raise RunError(
            f"the GPU is full: {asked[1] if asked else 'more'} was asked for"
            f"{f', {free[2]} of {free[1]} is free' if free else ''}. Lower what takes memory (algo.batch_size, "
            "algo.hidden, algo.buffer_size, num_envs, seeds), or give device=cpu"
        ) from error


def rng_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:  # otherwise it was written where there was no GPU
        torch.cuda.set_rng_state(state["cuda"], device)


class OwnRandomNumbers:
    """Random numbers for one of several runs in a process, which the other runs do not advance.

    They start from the generators' current states. Inside `with`, operations draw from them.
    """

    def __init__(self, device: torch.device) -> None:
        self._cpu = torch.get_rng_state()
        self._gpu: torch.Generator | None = None
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]  # without it there are no generators yet
            self._generator = torch.cuda.default_generators[device.index or 0]
            self._gpu = self._generator.clone_state()

    def __enter__(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._gpu:  # on a GPU the generator is lent a state, which it advances: copying one would take longer
            self._others = self._generator.graphsafe_get_state()
            self._generator.graphsafe_set_state(self._gpu)

    def __exit__(self, *_: object) -> None:
        self._cpu = torch.get_rng_state()
        if self._gpu:
            self._generator.graphsafe_set_state(self._others)
