"""Linear layers on a CPU, computed in the fastest way that PyTorch offers.

By default, MKL multiplies float32 matrices; oneDNN, which PyTorch ships too, is twice as fast on AMD's Zen 5, but no
faster on Intel's processors and on Zen 4. With `matmul_precision=medium` PyTorch rounds the factors to bfloat16 if the
processor has AMX; a processor that multiplies bfloat16 without AMX, such as Zen 4, is twice as fast too if the matrices
are rounded beforehand. PyTorch then rounds the product as well, so a network's last layer is not computed in this way.

The fastest way for a shape is measured when the shape first occurs, which takes milliseconds, and is kept in a file for
this machine (`choices_file`). Anything but float32 on a CPU, and products too small to matter, use `F.linear`.
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

SMALLEST, FEWEST_ROWS = 2**19, 32  # multiplications in a product, and rows: below, the call outweighs the arithmetic
LARGEST = 2**27  # multiplications: a larger product is measured with as many rows as this allows
GAIN = 1.1  # another way is chosen over MKL if it is this many times as fast: noise must not decide
ROUNDS = 5  # rounds of a measurement; the fastest counts
MKL, ONEDNN, BFLOAT16 = "mkl", "onednn", "bfloat16"  # the first is PyTorch's default
HIDDEN = 64  # outputs: layers with fewer give values or actions, which are not rounded

choices: dict[str, str] = {}  # a shape "rows x inputs x outputs" -> the chosen way
"""Of the run so far; its checkpoints hold them, so that it computes the same when it is resumed."""

_library = torch.library.Library("zoo", "DEF")  # type: ignore[no-untyped-call]
# the operands keep their memory layout: a copy within oneDNN's call would cost a tenth of it
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
    """Prepares for compiling: a choice is a constant; oneDNN is called directly, not by way of Python.

    Not done on import, because it imports the compiler, which takes as long as the rest of torch.
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


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, way: str) -> Tensor:
    """`x` `[B, inputs]`, `weight` `[outputs, inputs]` -> `[B, outputs]` in one of the ways, without gradients."""
    if way == ONEDNN:
        return torch.ops.zoo.linear.default(x.contiguous(), _whole(weight), bias, relu)  # type: ignore[no-any-return]
    if way == BFLOAT16:
        out = (x.bfloat16() @ weight.bfloat16().T).float()
        out = out if bias is None else out + bias
    elif bias is not None and torch.compiler.is_compiling():  # the bias is added in the loop that applies the ReLU
        out = x @ weight.T + bias
    else:
        out = F.linear(x, weight, bias)
    return out.relu() if relu else out


def _whole(matrix: Tensor) -> Tensor:
    """The matrix; a copy if it is some columns of a larger one, for which oneDNN takes hundreds of times as long."""
    return matrix if matrix.is_contiguous() or matrix.mT.is_contiguous() else matrix.contiguous()


class Layer(torch.autograd.Function):
    """A linear layer and its gradients, computed in one of the ways."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, way: str) -> Tensor:
        out = multiply(x, weight, bias, relu, way)
        ctx.relu, ctx.way = relu, way
        ctx.save_for_backward(x, weight, *([out] if relu else []))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight, *out = ctx.saved_tensors
        if ctx.relu:
            gradient = torch.ops.aten.threshold_backward(gradient, out[0], 0)
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_bias = gradient.sum(0) if needs_bias else None
        if ctx.way == BFLOAT16:  # rounded before transposing: compiled code would otherwise copy them into that order
            x, weight, gradient = x.bfloat16(), weight.bfloat16(), gradient.bfloat16()
        grad_x = layer(gradient, weight.T, None, False, ctx.way) if needs_x else None
        if not needs_weight:
            grad_weight = None
        elif x.shape[1] < gradient.shape[1]:  # long rows are up to four times as fast as short ones
            grad_weight = layer(x.T, gradient.T, None, False, ctx.way).T
        else:
            grad_weight = layer(gradient.T, x.T, None, False, ctx.way)
        return grad_x, grad_weight, grad_bias, None, None


def layer(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, way: str) -> Tensor:
    """`multiply`, with gradients if they are recorded."""
    if torch.is_grad_enabled():
        return Layer.apply(x, weight, bias, relu, way)  # type: ignore[no-any-return, no-untyped-call]
    return multiply(x, weight, bias, relu, way)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False, last: bool = False) -> Tensor:
    """`x` `[..., inputs]`, `weight` `[outputs, inputs]`, `bias` `[outputs]` -> `[..., outputs]`.

    Args:
        relu: applies a ReLU, in the same pass over memory if the library can.
        last: whether this is a network's last layer, whose outputs (values or latents) are not rounded to bfloat16.
    """
    rows = math.prod(x.shape[:-1])
    if is_large(rows, weight, x):
        outputs, inputs = weight.shape
        way = serves(rows, inputs, outputs, last)
        flat = x if x.dim() == 2 else x.reshape(rows, -1)
        out = layer(flat, weight, bias, relu, way)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], -1)
    if len(weight) == 1 and bias is not None and torch.compiler.is_compiling():  # fused with the surrounding operations
        out = (x * weight).sum(-1, keepdim=True) + bias
    else:
        out = F.linear(x, weight, bias)
    return out.relu() if relu else out


def is_large(rows: int, weight: Tensor, x: Tensor) -> bool:
    """Whether a layer with weights `[..., outputs, inputs]` is worth a choice, for that many rows of `x`'s kind."""
    if tracing.active:  # then the rows must not be examined either: their number is left open
        return False
    outputs, inputs = weight.shape[-2:]
    large = rows >= FEWEST_ROWS and rows * inputs * outputs >= SMALLEST
    return large and x.device.type == "cpu" and x.dtype == torch.float32


class Linear(nn.Linear):
    """`nn.Linear`, computed in the way that is fastest on this machine."""

    def forward(self, x: Tensor, relu: bool = False, last: bool = False) -> Tensor:
        return linear(x, self.weight, self.bias, relu, last)


# --- The choice of the way ------------------------------------------------------------------------------------------


def serves(rows: int, inputs: int, outputs: int, last: bool = False) -> str:
    """The fastest way for a layer of that shape and its gradients: `mkl`, `onednn` or `bfloat16`."""
    rounded = torch.get_float32_matmul_precision()
    if rounded == "highest" and available():
        other = ONEDNN
    elif rounded == "medium" and outputs >= HIDDEN and not last:
        other = BFLOAT16
    else:
        return MKL
    rows = min(rows, max(FEWEST_ROWS, LARGEST // (inputs * outputs)))
    rows = 2 ** (rows.bit_length() - 1)  # rounded down to a power of two: in some algorithms the number of rows varies
    shape = f"{rows}x{inputs}x{outputs}"
    if shape not in choices:
        kept = _read(other)
        if shape not in kept:
            kept[shape] = measure(rows, inputs, outputs, other)
            _write(other, kept)
        choices[shape] = kept[shape]
    return choices[shape]


def begin(given: dict[str, str]) -> None:
    """Forgets all choices but the given ones, with which a resumed run began."""
    choices.clear()
    choices.update(given)


@functools.cache
def available() -> bool:
    """Whether this PyTorch has oneDNN's linear layer, and the processor supports it."""
    try:
        one = torch.ones(2, 2)
        return torch.equal(_onednn(one, one, None, False), one @ one)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


def measure(rows: int, inputs: int, outputs: int, other: str) -> str:
    """The faster one of MKL and another way."""
    seconds = fastest(rows, inputs, outputs, MKL, other)
    return other if GAIN * seconds[other] < seconds[MKL] else MKL


@torch.no_grad()
def fastest(rows: int, inputs: int, outputs: int, *ways: str) -> dict[str, float]:
    """The seconds that a layer's three products take in each way; the ways are timed in turn."""
    x, weight, gradient = torch.ones(rows, inputs), torch.ones(outputs, inputs), torch.ones(rows, outputs)
    gradient_of_weights = (x.T, gradient.T) if inputs < outputs else (gradient.T, x.T)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(1 + ROUNDS):  # the first round warms up
        for way, taken in seconds.items():
            begun = time.perf_counter()
            for operands in ((x, weight), (gradient, weight.T), gradient_of_weights):
                multiply(*operands, None, False, way)
            taken.append(time.perf_counter() - begun)
    return {way: min(taken) for way, taken in seconds.items()}


def choices_file() -> Path:
    """The file of a machine's choices."""
    return cache_dir() / "linear.json"


def _machine(other: str) -> str:
    """The key under which choices between MKL and another way are stored."""
    return f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads, {other}"


def _read(other: str) -> dict[str, str]:
    """This machine's choices so far."""
    return _all().get(_machine(other), {})


def _all() -> dict[str, dict[str, str]]:
    file = choices_file()
    try:
        kept: dict[str, dict[str, str]] = json.loads(file.read_text())
        assert all(name in (MKL, ONEDNN, BFLOAT16) for shapes in kept.values() for name in shapes.values())
        return kept
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, AssertionError):
        _say(f"{file} is not readable: the choices in it are measured again")
        return {}


def _write(other: str, kept: dict[str, str]) -> None:
    file = choices_file()
    partial = file.with_suffix(f".{os.getpid()}")  # runs that start side by side write their own files
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(_all() | {_machine(other): kept}, indent=2))
        partial.replace(file)
    except OSError:
        _say(f"{file} cannot be written: what is faster on this machine is measured in every run")


@functools.cache
def _say(line: str) -> None:
    """Prints a line, once."""
    print(line, file=sys.stderr, flush=True)
