"""Updates compiled by PyTorch: whether a run's update is compiled, what that needs, and where compiled code is kept."""

import functools
import importlib.util
import logging
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.errors import RunError, UsageError
from zoo.machine import cache_dir, processor, writable
from zoo.nn.linear import lower
from zoo.runs.cuda_graph import Replayed
from zoo.runs.device import resolve_device
from zoo.runs.interruption import Interruption
from zoo.settings.config import RunConfig

GRAPH = "graph"  # compile=graph: on a GPU the update runs uncompiled, as a CUDA graph
OLDEST, SURE = "2.11", "2.13"  # oldest PyTorch that can compile updates, and that can compile all of them
COMPILED_FROM = 20_000  # steps; on a CPU it takes about as many updates to win back the time that compiling takes


def compiles(config: RunConfig, begun: bool | str | None = None) -> bool | str:
    """Whether a run's update is compiled, or "graph"; if `compile=auto` decides, a printed line says so.

    On a GPU, an update that is not compiled, because the run is short or something is missing, is still a CUDA graph.

    Args:
        begun: the decision when the run began, if it is resumed.

    Raises:
        UsageError: the update must be compiled but cannot be on this machine; or there is no GPU for a graph.
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
            "compile=auto: the update is compiled, which takes seconds to minutes the first time (compile=false: not)",
            flush=True,
        )
    return True


def accelerated(update: Callable[..., Any], how: bool | str, device: torch.device) -> Callable[..., Any]:
    """An update in the form in which a run calls it.

    Args:
        how: the result of `compiles`.
    """
    if how == GRAPH:
        return Replayed(watched(update), device) if device.type == "cuda" else update
    return compile_update(update, device=device) if how else update


def needed_to_compile(device: str = "cpu", oldest: str = SURE) -> str | None:
    """What is missing for compiling on this machine, and how to get it; None if nothing is.

    Args:
        oldest: the oldest version of PyTorch that will do.
    """
    keep_compiled()
    if torch.__version__ < oldest:
        return f"a newer torch than {torch.__version__}: pip install 'torch>=2.13,<2.14'"
    if resolve_device(device).type == "cuda":
        return None if importlib.util.find_spec("triton") else "Triton: pip install triton"
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # PyTorch's own choice
    if not shutil.which(compiler):
        how = "xcode-select --install" if sys.platform == "darwin" else "on Debian and Ubuntu: apt install g++"
        return f"a C++ compiler: {compiler} is not here ({how})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's C headers, which are not here (on Debian and Ubuntu: apt install python3-dev)"
    return None


def compile_update(
    update: Callable[..., Any], backend: str | Callable[..., Any] = "inductor", device: torch.device | None = None
) -> Callable[..., Any]:
    """An agent's update as one compiled graph that includes its gradients. It is compiled at its first call.

    Args:
        update: an agent's update, or a function like it.
        backend: that of `torch.compile`; "inductor" becomes `reproducible` on a GPU.
        device: if it is a GPU, the update becomes a CUDA graph too, see `zoo.runs.cuda_graph`; the tensors that it
            changes must then stay where they are in memory.

    Raises:
        RunError: raised by the compiled update if compiling fails.
        UsageError: raised by the compiled update if it changes one of its constants, or its arguments vary too much.
    """
    keep_compiled()
    torch._dynamo.config.trace_autograd_ops = True
    lower()
    constants: list[dict[str, Any]] = []  # if the update was compiled in this call: its constants before the call

    def guarded(guards: Sequence[Any]) -> list[bool]:  # called when the update has been compiled, before it runs
        constants.append(constants_of(update))
        return changing(guards)

    options: dict[str, Any] = {"guard_filter_fn": guarded}
    if backend == "inductor":
        from zoo.runs.subexpressions import CommonSubexpressions  # imports the compiler

        options["post_grad_custom_pre_pass"] = CommonSubexpressions()
        # no patterns: they would let the matrix product add a bias, which is slower than fusing the bias with the ReLU
        options |= {"size_asserts": False, "alignment_asserts": False, "pattern_matcher": False}
        options["cpp.use_decompose_tanh"] = True  # by way of the sigmoid: GELU takes half as long
        options["fallback_random"] = True  # the same random numbers as the uncompiled update, drawn no slower
        # on a GPU a reduction keeps its earlier order rather than take the one that is now the fastest
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            options["deterministic"], backend = True, reproducible
        if torch.__version__ < SURE:  # on a GPU these versions stop at an assertion of their own
            options["loop_ordering_after_fusion"] = False
        if platform.machine() == "x86_64":
            # PyTorch is right about the processor: its probes would each load all of torch in a new process
            options["cpp.vec_isa_ok"] = True

    def own(*arguments: Any, **named: Any) -> Any:
        return update(*arguments, **named)

    own.__code__ = own.__code__.replace()  # a copy: PyTorch finds compiled code by it, and each agent needs its own
    compiled = torch.compile(own, fullgraph=True, dynamic=False, backend=backend, options=options)

    def checked(*arguments: Any, **named: Any) -> Any:
        try:
            results = compiled(*arguments, **named)
        except torch._dynamo.exc.BackendCompilerFailed:
            raise
        except torch._dynamo.exc.TorchDynamoException as error:  # the update is at fault, not the compiler
            raise failed_to_compile(error) from error
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:
            raise UsageError(
                "the update is compiled anew for each shape of its arguments and each value that is not a tensor, and "
                "there are too many. Pass numbers as tensors. Without: compile=false"
            ) from error
        if constants:
            check_constants(update, constants.pop())
        return results

    def compiled_update(*arguments: Any, **named: Any) -> Any:
        try:
            return checked(*arguments, **named)
        except torch._dynamo.exc.BackendCompilerFailed as error:  # nothing has been computed yet
            if not Interruption.came:  # a signal may have killed the compiler too, and the cache is then intact
                discard_compiled(error)
        try:
            return checked(*arguments, **named)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise failed_to_compile(error) from error

    return Replayed(compiled_update, device) if device and device.type == "cuda" else compiled_update


def reproducible(graph: Any, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """The compiler without atomic additions by several threads, whose order differs from call to call."""
    from torch._inductor.compile_fx import compile_fx

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return compile_fx(graph, inputs, config_patches=options)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def changing(guards: Sequence[Any]) -> list[bool]:
    """Which of the conditions that compiled code checks at each call (guards) to keep: those on its arguments.

    Everything else in an agent stays as it was, except for the values of its tensors. There are some 600 such
    conditions, and checking them takes as long as a small matrix product.
    """
    return [not guard.is_global and bool(re.match(r"(arguments|named)\b|$", guard.name)) for guard in guards]


def constants_of(update: Callable[..., Any]) -> dict[str, Any]:
    """Numbers, strings and None among the Python attributes of an update's module and of those in it, by name.

    They are constants of an update that is compiled, recorded or taken together with others.
    """
    owner = getattr(update, "__self__", None)
    return {
        f"{type(owner).__name__}.{path}{'.' if path else ''}{name}": value
        for path, module in (owner.named_modules() if isinstance(owner, nn.Module) else ())
        for name, value in vars(module).items()
        if isinstance(value, int | float | str | None) and name != "training"
    }


def check_constants(update: Callable[..., Any], before: dict[str, Any]) -> None:
    """Raises UsageError if an update has changed one of its constants."""
    after = constants_of(update)
    for name, value in before.items():
        if after.get(name, before) != value and value == value:  # NaN differs from itself
            raise UsageError(
                f"the update changes {name}, which is a constant of a compiled update and with seeds=. Keep it in an "
                "nn.Buffer, changed in place, or pass the update what depends on it, as algos/td3.py passes `delayed`."
            )


def watched(update: Callable[..., Any]) -> Callable[..., Any]:
    """An update that raises UsageError if it changes one of its constants."""

    def watched_update(*arguments: Any, **named: Any) -> Any:
        before = constants_of(update)
        results = update(*arguments, **named)
        check_constants(update, before)
        return results

    return watched_update


def failed_to_compile(error: Exception) -> RunError:
    reason = next(line for line in str(error).splitlines() if line and not line.startswith("backend="))
    frames = re.findall(r'File "(.+)", line (\d+), in .*\n *(.*)', str(error).partition("from user code:")[2])
    frames = [frame for frame in frames if not frame[0].startswith(torch.__path__[0])]
    where = " at {}, line {}: `{}`".format(*frames[-1]) if frames else ""
    return RunError(f"the update could not be compiled: {reason}{where}. Without: compile=false")


def kept_compiled() -> Path:
    """The folder for compiled code, of its own for each kind of processor.

    PyTorch does not check whether kept code fits the processor. On another one, it would compute wrong numbers.
    """
    kind = f"{processor()} {torch.backends.cpu.get_cpu_capability()}"
    return cache_dir() / "compiled" / re.sub(r"\W+", "-", kind).strip("-")


@functools.cache
def keep_compiled() -> None:
    """Makes PyTorch keep compiled code in the zoo's cache folder, not in `/tmp`, unless the environment names another.

    Must be called before the compiler, `torch._dynamo`, is imported, because that fixes the folder.
    """
    folder = kept_compiled()
    if writable(folder):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    logging.getLogger("torch._inductor.codecache").setLevel(logging.ERROR)  # damaged files are recompiled: no news


def discard_compiled(error: Exception) -> None:
    """Deletes the kept compiled code, which may be damaged. Raises RunError if it is not in the zoo's folder."""
    folder = kept_compiled()
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") != str(folder):
        raise failed_to_compile(error) from error
    print(f"compiled code in {folder} cannot be used: compiled anew", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    torch.compiler.reset()
    torch._inductor.utils.clear_caches()
