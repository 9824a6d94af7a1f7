"""Updates compiled by PyTorch: whether a run's is, what that needs, and where compiled code is kept."""

import functools
import importlib.util
import logging
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.errors import RunError, UsageError
from zoo.machine import cache_dir
from zoo.nn.linear import lower
from zoo.runs.cuda_graph import Replayed
from zoo.runs.device import resolve_device
from zoo.runs.interruption import Interruption
from zoo.settings.config import RunConfig

GRAPH = "graph"  # compile=graph: on a GPU the update as it is, as a CUDA graph
OLDEST, SURE = "2.11", "2.13"  # of PyTorch: can compile updates, and all of them
COMPILED_FROM = 20_000  # steps; about as many updates win back on a CPU what compiling them takes


def compiles(config: RunConfig, begun: bool | str | None = None) -> bool | str:
    """Whether a run's update is compiled, or "graph"; where `compile=auto` decides, a line says so.

    On a GPU what is not compiled, because the run is short or something is missing, is a CUDA graph all the same.

    Args:
        begun: what it was when the run began, if it is resumed.

    Raises:
        UsageError: it must be compiled, and cannot be on this machine; or there is no GPU for a graph.
    """
    chosen = config.compile if begun is None else begun
    on_gpu = resolve_device(config.device).type == "cuda"
    if chosen == GRAPH and not on_gpu and begun is None:
        raise UsageError("compile=graph is for a GPU, and this run is on the CPU. Try: compile=true")
    if chosen is False or chosen == GRAPH:
        return chosen
    if chosen == "auto" and config.steps + config.online_steps < COMPILED_FROM:
        return GRAPH if on_gpu else False
    missing = needed_to_compile(config.device, OLDEST if chosen is True else SURE)
    if missing and chosen is True:
        raise UsageError(f"compile={config.compile}: the update is to be compiled, which needs {missing}")
    if missing:
        print(f"compile=auto: the update is not compiled, which would be faster but needs {missing}", flush=True)
        return GRAPH if on_gpu else False
    if chosen == "auto":
        print(
            "compile=auto: the update is compiled, for half a minute or more the first time (compile=false: not)",
            flush=True,
        )
    return True


def accelerated(update: Callable[..., Any], how: bool | str, device: torch.device) -> Callable[..., Any]:
    """An update as a run takes it.

    Args:
        how: what `compiles` gives.
    """
    if how == GRAPH:
        return Replayed(update, device) if device.type == "cuda" else update
    return compile_update(update, device=device) if how else update


def needed_to_compile(device: str = "cpu", oldest: str = SURE) -> str | None:
    """What compiling lacks on this machine, and how to get it; None where it works.

    Args:
        oldest: of PyTorch.
    """
    keep_compiled()
    if torch.__version__ < oldest:
        return f"a newer torch than {torch.__version__}: pip install 'torch>=2.13,<2.14'"
    if resolve_device(device).type == "cuda":
        return None if importlib.util.find_spec("triton") else "Triton: pip install triton"
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # as PyTorch looks for it
    if not shutil.which(compiler):
        return f"a C++ compiler: {compiler} is not here (on Debian and Ubuntu: apt install g++)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's C headers, which are not here (on Debian and Ubuntu: apt install python3-dev)"
    return None


def compile_update(
    update: Callable[..., Any], backend: str | Callable[..., Any] = "inductor", device: torch.device | None = None
) -> Callable[..., Any]:
    """An agent's update as one compiled graph, its gradients included. It is compiled when it is called first.

    Args:
        update: of an agent, or a function of the same manner.
        backend: of `torch.compile`; "inductor" is `reproducible` where there is a GPU.
        device: if it is a GPU, the update is a CUDA graph too, see `zoo.runs.cuda_graph`; then the tensors that it
            changes must stay where they are in memory.

    Raises:
        RunError: from the compiled update, where compiling fails.
    """
    keep_compiled()
    torch._dynamo.config.trace_autograd_ops = True
    lower()
    options: dict[str, Any] = {"guard_filter_fn": changing}
    if backend == "inductor":
        from zoo.runs.subexpressions import CommonSubexpressions  # imports the compiler

        options["post_grad_custom_pre_pass"] = CommonSubexpressions()
        # no patterns: they would have a bias added by the matrix product, which is slower than fusing it with the ReLU
        options |= {"size_asserts": False, "alignment_asserts": False, "pattern_matcher": False}
        options["cpp.use_decompose_tanh"] = True  # by the sigmoid: GELU takes half as long
        options["fallback_random"] = True  # the random numbers of the update as it is, drawn no slower
        # on a GPU a reduction takes the order that it took before, not the one that is the fastest now
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            options["deterministic"], backend = True, reproducible
        if torch.__version__ < SURE:  # which on a GPU stops at an assertion of its own
            options["loop_ordering_after_fusion"] = False
        if platform.machine() == "x86_64":
            # what PyTorch says of the processor is true: its probes each load all of torch in a process of their own
            options["cpp.vec_isa_ok"] = True

    def own(*arguments: Any, **named: Any) -> Any:
        return update(*arguments, **named)

    own.__code__ = own.__code__.replace()  # a copy: PyTorch looks compiled code up by it, and each agent needs its own
    compiled = torch.compile(own, fullgraph=True, dynamic=False, backend=backend, options=options)

    def compiled_update(*arguments: Any, **named: Any) -> Any:
        try:
            return compiled(*arguments, **named)
        except torch._dynamo.exc.BackendCompilerFailed as error:  # before anything was computed
            if not Interruption.came:  # else it may have ended the compiler too, and what is kept is whole
                discard_compiled(error)
        try:
            return compiled(*arguments, **named)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise failed_to_compile(error) from error

    return Replayed(compiled_update, device) if device and device.type == "cuda" else compiled_update


def reproducible(graph: Any, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """The compiler without additions by several threads to one place, whose order is another at each call."""
    from torch._inductor.compile_fx import compile_fx

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return compile_fx(graph, inputs, config_patches=options)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def changing(guards: Sequence[Any]) -> list[bool]:
    """Which of the conditions that compiled code checks at each call are kept: those on its arguments.

    What else an agent consists of stays what it was, but for the values of its tensors. There are some 600 such
    conditions, and to check them takes as long as a small matrix product.
    """
    return [not guard.is_global and bool(re.match(r"(arguments|named)\b|$", guard.name)) for guard in guards]


def failed_to_compile(error: Exception) -> RunError:
    reason = next(line for line in str(error).splitlines() if line and not line.startswith("backend="))
    return RunError(f"the update could not be compiled: {reason}. Without: compile=false")


def kept_compiled() -> Path:
    """Where compiled code is kept."""
    return cache_dir() / "compiled"


@functools.cache
def keep_compiled() -> None:
    """Has PyTorch keep compiled code in the zoo's cache folder, not in `/tmp`, unless the environment names another.

    It comes before the compiler, `torch._dynamo`, is imported, which settles that.
    """
    folder = kept_compiled()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    except OSError:
        print(f"{folder} cannot be written: what is compiled is not kept for the next run", file=sys.stderr, flush=True)
    logging.getLogger("torch._inductor.codecache").setLevel(logging.ERROR)  # a damaged file is compiled anew: no news


def discard_compiled(error: Exception) -> None:
    """Deletes what is kept of compiled code, which may be damaged. Raises RunError where that was not the zoo's."""
    folder = kept_compiled()
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") != str(folder):
        raise failed_to_compile(error) from error
    print(f"compiled code in {folder} cannot be used: compiled anew", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    torch.compiler.reset()
    torch._inductor.utils.clear_caches()
