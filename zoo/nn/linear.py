"""Linear layers on a CPU by the faster of two libraries: MKL, which PyTorch takes, and oneDNN, which it ships too.

On AMD's Zen 5 MKL multiplies float32 matrices at half the rate of oneDNN; on Intel's processors and on Zen 4 both are
fast. Which is faster for a shape is measured when the shape first occurs, in milliseconds, and kept in a file for this
machine (`choices_file`). Everything but float32 on a CPU, and products too small to matter, take `F.linear`.
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
from zoo.nn import tracing

SMALLEST, FEWEST_ROWS = 2**19, 32  # multiplications of a product, and rows: below, the call outweighs the arithmetic
LARGEST = 2**27  # multiplications: of a larger product as many rows are measured
GAIN = 1.1  # oneDNN is taken where it is so many times as fast: a choice must not hang on noise
ROUNDS = 5  # of a measurement, whose fastest counts
MKL, ONEDNN = "mkl", "onednn"

choices: dict[str, str] = {}  # a shape "rows x inputs x outputs" -> the library that serves it
"""Of the run so far; its checkpoints hold them, so that it computes the same when it is resumed."""

_library = torch.library.Library("zoo", "DEF")  # type: ignore[no-untyped-call]
# the operands lie in memory as they are given: a copy within oneDNN's call would cost a tenth of it
_library.define(  # type: ignore[no-untyped-call]
    "linear(Tensor x, Tensor weight, Tensor? bias, bool relu) -> Tensor", tags=(torch.Tag.needs_exact_strides,)
)


@torch.library.impl(_library, "linear", "CPU")
def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return _kernel()(x, weight, bias, "relu" if relu else "none", [], "")


@functools.cache
def _kernel() -> Callable[..., Tensor]:
    return torch.ops.mkldnn._linear_pointwise.default


@torch.library.impl(_library, "linear", "Meta")
def _shape(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return x.new_empty(len(x), len(weight))


@functools.cache
def lower() -> None:
    """Prepares compiling: a choice is a constant; oneDNN is called without the detour through Python.

    Not done when this module is imported: it imports the compiler, which takes as long as the rest of torch.
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


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, library: str) -> Tensor:
    """`x` `[B, inputs]`, `weight` `[outputs, inputs]` -> `[B, outputs]` by one of the libraries, without gradients."""
    if library == ONEDNN:
        return torch.ops.zoo.linear.default(x.contiguous(), weight, bias, relu)  # type: ignore[no-any-return]
    if bias is not None and torch.compiler.is_compiling():  # it is added in the loop that takes the ReLU
        return (x @ weight.T + bias).relu() if relu else x @ weight.T + bias
    out = F.linear(x, weight, bias)
    return out.relu() if relu else out


class Layer(torch.autograd.Function):
    """A linear layer, and its gradients, by one of the libraries."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, library: str) -> Tensor:
        out = multiply(x, weight, bias, relu, library)
        ctx.relu, ctx.library = relu, library
        ctx.save_for_backward(x, weight, *([out] if relu else []))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight, *out = ctx.saved_tensors
        if ctx.relu:
            gradient = torch.ops.aten.threshold_backward(gradient, out[0], 0)
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_x = layer(gradient, weight.T, None, False, ctx.library) if needs_x else None
        if not needs_weight:
            grad_weight = None
        elif x.shape[1] < gradient.shape[1]:  # rows that are long are up to four times as fast as those that are short
            grad_weight = layer(x.T, gradient.T, None, False, ctx.library).T
        else:
            grad_weight = layer(gradient.T, x.T, None, False, ctx.library)
        return grad_x, grad_weight, gradient.sum(0) if needs_bias else None, None, None


def layer(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, library: str) -> Tensor:
    """`multiply`, with gradients where they are recorded."""
    if torch.is_grad_enabled():
        return Layer.apply(x, weight, bias, relu, library)  # type: ignore[no-any-return, no-untyped-call]
    return multiply(x, weight, bias, relu, library)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    """`x` `[..., inputs]`, `weight` `[outputs, inputs]`, `bias` `[outputs]` -> `[..., outputs]`.

    Args:
        relu: negative results become 0, in the same pass over memory where the library can.
    """
    rows = math.prod(x.shape[:-1])
    if is_large(rows, weight, x):
        library = serves(rows, *reversed(weight.shape))
        flat = x if x.dim() == 2 else x.reshape(rows, -1)
        out = layer(flat, weight, bias, relu, library)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], -1)
    if len(weight) == 1 and bias is not None and torch.compiler.is_compiling():  # fused with what stands around it
        out = (x * weight).sum(-1, keepdim=True) + bias
    else:
        out = F.linear(x, weight, bias)
    return out.relu() if relu else out


def is_large(rows: int, weight: Tensor, x: Tensor) -> bool:
    """Whether a layer of weights `[..., outputs, inputs]` for so many rows of the kind of `x` is worth a choice."""
    if tracing.active:  # then the rows are not to be looked at either: their number is left open
        return False
    outputs, inputs = weight.shape[-2:]
    large = rows >= FEWEST_ROWS and rows * inputs * outputs >= SMALLEST
    return large and x.device.type == "cpu" and x.dtype == torch.float32


class Linear(nn.Linear):
    """`nn.Linear`, by the library that is faster on this machine."""

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        return linear(x, self.weight, self.bias, relu)


# --- The choice of the library ----------------------------------------------------------------------------------------


def serves(rows: int, inputs: int, outputs: int) -> str:
    """The library that is faster for a layer of that shape and its gradients: `mkl` or `onednn`."""
    if not available() or torch.get_float32_matmul_precision() != "highest":
        return MKL
    rows = min(rows, max(FEWEST_ROWS, LARGEST // (inputs * outputs)))
    rows = 2 ** (rows.bit_length() - 1)  # the next smaller power of two: some algorithms' numbers of rows vary
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
        return torch.equal(_onednn(one, one, None, False), one @ one)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


@torch.no_grad()
def measure(rows: int, inputs: int, outputs: int) -> str:
    """Times a layer's three products, with both libraries in turn."""
    x, weight, gradient = torch.ones(rows, inputs), torch.ones(outputs, inputs), torch.ones(rows, outputs)
    gradient_of_weights = (x.T, gradient.T) if inputs < outputs else (gradient.T, x.T)
    seconds: dict[str, list[float]] = {MKL: [], ONEDNN: []}
    for _ in range(1 + ROUNDS):  # the first warms up
        for library, taken in seconds.items():
            begun = time.perf_counter()
            for operands in ((x, weight), (gradient, weight.T), gradient_of_weights):
                multiply(*operands, None, False, library)
            taken.append(time.perf_counter() - begun)
    return ONEDNN if GAIN * min(seconds[ONEDNN]) < min(seconds[MKL]) else MKL


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
        assert all(name in (MKL, ONEDNN) for shapes in kept.values() for name in shapes.values())
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
