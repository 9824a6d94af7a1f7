"""The device of a run: which one, its random numbers, and updates compiled for it."""

from collections.abc import Callable
from typing import Any

import torch

from zoo.agent import Metrics
from zoo.errors import UsageError
from zoo.nn.linear import lower
from zoo.settings.config import RunConfig


def set_up(config: RunConfig) -> torch.device:
    """Threads, precision and seed of this process as the settings have them. Returns the run's device."""
    device = resolve_device(config.device)
    torch.set_num_threads(config.threads)
    torch.set_flush_denormal(True)  # a CPU takes ten times as long with weights that have decayed to almost nothing
    torch.set_float32_matmul_precision(config.matmul_precision)
    torch.manual_seed(config.seed)
    return device


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


def compile_update(update: Callable[..., Metrics], backend: str = "inductor") -> Callable[..., Metrics]:
    """An agent's update as one compiled graph, its gradients included. Raises UsageError where torch is too old."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        raise UsageError(f"compile=true needs a newer torch than {torch.__version__}: pip install 'torch>=2.13,<2.14'")
    torch._dynamo.config.trace_autograd_ops = True
    lower()
    options: dict[str, Any] = {"size_asserts": False, "alignment_asserts": False} if backend == "inductor" else {}
    return torch.compile(update, fullgraph=True, dynamic=False, backend=backend, options=options)


def rng_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:  # else it was written where there was no GPU
        torch.cuda.set_rng_state(state["cuda"], device)
