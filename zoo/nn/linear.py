"""Linear layers on a CPU by the faster of two libraries: MKL, which PyTorch takes, and oneDNN, which it ships too.

On AMD's processors MKL multiplies float32 matrices at half the rate of oneDNN; on Intel's both are fast. Which is
faster for a shape is measured when the shape first occurs, in milliseconds, and kept in a file for this machine
(`choices_file`). Everything but float32 on a CPU, and products too small to matter, take `F.linear` as ever.
"""

import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.machine import cache_dir, processor

SMALLEST, FEWEST_ROWS = 2**19, 32  # multiplications of a product, and rows: below, the call outweighs the arithmetic
LARGEST = 2**27  # multiplications: of a larger product as many rows are measured
GAIN = 1.1  # oneDNN is taken where it is so many times as fast: a choice must not hang on noise
ROUNDS = 5  # of a measurement, whose fastest counts
ORDINARY, ONEDNN = "mkl", "onednn"

choices: dict[str, str] = {}  # a shape "rows x inputs x outputs" -> the library that serves it
"""Of the run so far; its checkpoints hold them, so that it computes the same when it is resumed."""

_library = torch.library.Library("zoo", "DEF")  # type: ignore[no-untyped-call]
# a product's operands lie in memory as `_backward` lays them: a copy within oneDNN's call would cost a tenth of it
_library.define(  # type: ignore[no-untyped-call]
    "linear(Tensor x, Tensor weight, Tensor? bias, bool relu) -> Tensor", tags=(torch.Tag.needs_exact_strides,)
)


@torch.library.impl(_library, "linear", "CPU")
def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return _kernel()(x, weight, bias, "relu" if relu else "none", [], "")


@functools.cache
def _kernel() -> Callable[..., Tensor]:
    return torch.ops.mkldnn._linear_pointwise.default


@torch.library.impl(_library, "linear", "Meta")
def _shape(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return x.new_empty(len(x), len(weight))


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, bool], output: Tensor) -> None:
    x, weight, _, ctx.relu = inputs
    ctx.save_for_backward(x, weight, *([output] if ctx.relu else []))


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    """The gradients by the same operator, so that they have gradients of their own."""
    x, weight, *output = ctx.saved_tensors
    if ctx.relu:
        gradient = torch.ops.aten.threshold_backward(gradient, output[0], 0)
    needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
    return (
        _onednn(gradient.contiguous(), weight.T) if needs_x else None,
        _onednn(gradient.T.contiguous(), x.T) if needs_weight else None,
        gradient.sum(0) if needs_bias else None,
        None,
    )


torch.library.register_autograd("zoo::linear", _backward, setup_context=_save, lib=_library)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    return torch.ops.zoo.linear.default(x, weight, bias, relu)  # type: ignore[no-any-return]


@functools.cache
def lower() -> None:
    """What compiling is told: a choice is a constant; oneDNN is called without the detour through Python.

    Not told when this module is imported, since it imports the compiler, which takes as long as the rest of torch.
    """
    torch.compiler.assume_constant_result(serves)  # type: ignore[no-untyped-call]
    try:
        from torch._inductor.lowering import fallback_handler, register_lowering

        kernel = fallback_handler(_kernel(), add_to_fallback_set=False)  # type: ignore[no-untyped-call]
    except (AttributeError, ImportError, TypeError):
        return

    @register_lowering(torch.ops.zoo.linear.default, type_promotion_kind=None)
    def lowered(x: Any, weight: Any, bias: Any, relu: bool) -> Any:
        return kernel(x, weight, bias, "relu" if relu else "none", [], "")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    """`x` `[..., inputs]`, `weight` `[outputs, inputs]`, `bias` `[outputs]` -> `[..., outputs]`.

    Args:
        relu: negative results become 0, in the same pass over memory where the library can.
    """
    rows = math.prod(x.shape[:-1])
    if by_onednn(rows, weight, x):
        if x.dim() == 2:
            return _onednn(x, weight, bias, relu)
        return _onednn(x.reshape(rows, -1), weight, bias, relu).view(*x.shape[:-1], -1)
    if len(weight) == 1 and bias is not None and torch.compiler.is_compiling():  # fused with what stands around it
        out = (x * weight).sum(-1, keepdim=True) + bias
    else:
        out = F.linear(x, weight, bias)
    return out.relu() if relu else out


def by_onednn(rows: int, weight: Tensor, x: Tensor) -> bool:
    """Whether oneDNN serves layers of weights `[..., outputs, inputs]` for so many rows of the kind of `x`."""
    outputs, inputs = weight.shape[-2:]
    return (
        rows >= FEWEST_ROWS
        and rows * inputs * outputs >= SMALLEST
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and serves(rows, inputs, outputs) == ONEDNN
    )


class Linear(nn.Linear):
    """`nn.Linear`, by the library that is faster on this machine."""

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        return linear(x, self.weight, self.bias, relu)


# --- The choice of the library ----------------------------------------------------------------------------------------


def serves(rows: int, inputs: int, outputs: int) -> str:
    """The library that is faster for a layer of that shape and its gradients: `mkl` or `onednn`."""
    if not available() or torch.get_float32_matmul_precision() != "highest":
        return ORDINARY
    rows = min(rows, max(FEWEST_ROWS, LARGEST // (inputs * outputs)))
    shape = f"{rows}x{inputs}x{outputs}"
    if shape not in choices:
        kept = _read()
        if shape not in kept:
            kept[shape] = measure(rows, inputs, outputs)
            _write(kept)
        choices[shape] = kept[shape]
    return choices[shape]


def begin(given: dict[str, str]) -> None:
    """Forgets all choices but these, which a run that is resumed began with."""
    choices.clear()
    choices.update(given)


@functools.cache
def available() -> bool:
    """Whether this PyTorch has oneDNN's linear layer, and the processor serves it."""
    try:
        one = torch.ones(2, 2)
        return torch.equal(_forward(one, one, None, False), one @ one)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


@torch.no_grad()
def measure(rows: int, inputs: int, outputs: int) -> str:
    """Times a layer's three products, with both libraries in turn."""
    x, weight, gradient = torch.ones(rows, inputs), torch.ones(outputs, inputs), torch.ones(rows, outputs)

    def ordinary() -> None:
        F.linear(x, weight), gradient @ weight, gradient.T @ x

    def onednn() -> None:
        _forward(x, weight, None, False), _forward(gradient, weight.T, None, False)
        _forward(gradient.T.contiguous(), x.T, None, False)

    seconds: dict[str, list[float]] = {ORDINARY: [], ONEDNN: []}
    for _ in range(1 + ROUNDS):  # the first warms up
        for name, products in ((ORDINARY, ordinary), (ONEDNN, onednn)):
            begun = time.perf_counter()
            products()
            seconds[name].append(time.perf_counter() - begun)
    return ONEDNN if GAIN * min(seconds[ONEDNN]) < min(seconds[ORDINARY]) else ORDINARY


def choices_file() -> Path:
    """Where a machine's choices are kept."""
    return cache_dir() / "linear.json"


def _machine() -> str:
    return f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def _read() -> dict[str, str]:
    """This machine's choices so far."""
    return _all().get(_machine(), {})


def _all() -> dict[str, dict[str, str]]:
    file = choices_file()
    try:
        kept: dict[str, dict[str, str]] = json.loads(file.read_text())
        assert all(name in (ORDINARY, ONEDNN) for shapes in kept.values() for name in shapes.values())
        return kept
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, AssertionError):
        _say(f"{file} is not readable: the choices in it are measured again")
        return {}


def _write(kept: dict[str, str]) -> None:
    file = choices_file()
    partial = file.with_suffix(f".{os.getpid()}")  # runs that start side by side write their own
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(_all() | {_machine(): kept}, indent=2))
        partial.replace(file)
    except OSError:
        _say(f"{file} cannot be written: what is faster on this machine is measured in every run")


@functools.cache
def _say(line: str) -> None:
    """Prints a line, once."""
    print(line, file=sys.stderr, flush=True)
