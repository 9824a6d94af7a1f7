"""A device without values, which works on any machine: operations for which a GPU would wait fail and name their line.

PyTorch's `meta` tensors have a shape, a dtype and a device, but no values, so reading one is an error. However, they
can be mixed with some CPU tensors and copied from the CPU. So `strict()` refuses every operation that reads a value of
the device, whose result has a shape that depends on values, or that mixes tensors of the device and the CPU, including
copies between the two.

`FakeTensorMode` with `cuda` tensors would be closer to a GPU. But without CUDA, PyTorch can neither index nor
differentiate them, because it lacks the device's guard.
"""

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("meta")
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(Path(torch.__file__).parent))

IN_PLACE = (torch.ops.aten._fused_adam_.tensor_lr, torch.ops.aten._fused_adamw_.tensor_lr)  # missing for `meta`

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


class StrictDeviceError(AssertionError):
    """A line of code would make a GPU wait, or would fail on a GPU."""


def is_own(path: str) -> bool:
    """Whether a file is in the zoo or its tests, other than this file."""
    return path != __file__ and not path.startswith(("<", *LIBRARIES))


def refuse(reason: str) -> None:
    """Raises StrictDeviceError with the innermost line of the zoo's own code that is running."""
    frame: Any = sys._getframe(1)
    while not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    raise StrictDeviceError(f"{place(frame, frame.f_lineno)}: {reason}")


def place(frame: Any, line: int) -> str:
    """`file:line, in function`."""
    return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_qualname}"


def kinds(tensors: Any) -> set[str]:
    """The types of devices of the tensors among the given objects."""
    return {x.device.type for x in tree_leaves(tensors) if isinstance(x, Tensor)}


class Operations(TorchDispatchMode):
    """Checks every operation before it runs, including those of the backward pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on = kinds((args, kwargs))
        to = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
        if len(on) > 1:
            refuse(f"{func} takes tensors of the device and of the CPU")
        if on == {"cpu"} and to == DEVICE.type:
            refuse(f"{func} copies from the CPU to the device")
        if on == {DEVICE.type}:
            if to == "cpu":
                refuse(f"{func} copies from the device to the CPU")
            if torch.Tag.data_dependent_output in func.tags:
                refuse(f"{func} reads a value of the device")
            indexes = func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
            masked = indexes and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
            if masked or (torch.Tag.dynamic_output_shape in func.tags and not indexes):
                refuse(f"{func} has a result whose shape depends on values of the device")
            if func in IN_PLACE:
                return None
        return func(*args, **kwargs)


class Calls(TorchFunctionMode):
    """Checks the few calls that are not operations: they turn numbers into tensors, or tensors into text or arrays."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.numpy, Tensor.__array__, Tensor.__repr__, Tensor.__format__) and args[0].device == DEVICE:
            refuse(f"{func.__name__} reads values of the device")
        made = func is torch.tensor and torch.device(kwargs.get("device") or "cpu") == DEVICE
        if made or (func is Tensor.new_tensor and args[0].device == DEVICE):
            refuse(f"{func.__name__} copies from the CPU to the device")
        return func(*args, **kwargs)


@contextmanager
def strict() -> Iterator[None]:
    """Raises StrictDeviceError with the line of code if a GPU would have to wait or could not run the operation."""
    try:
        with Calls(), Operations():
            yield
    except StrictDeviceError:
        raise
    except Exception as error:  # PyTorch's own error: there was no value to read
        frames = traceback.walk_tb(error.__traceback__)
        *_, last = (place(frame, line) for frame, line in frames if is_own(frame.f_code.co_filename))
        raise StrictDeviceError(f"{last}: {error}") from error


def moved(module: M) -> M:
    """Moves a module to the device as a run moves it to a GPU: its parameters stay the same objects."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.to(DEVICE)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def on_device(values: Any) -> Any:
    """Moves tensors, or tuples, lists and dictionaries of tensors, to the device."""
    return tree_map_only(Tensor, lambda x: x.to(DEVICE), values)


def with_tensors_on_device(thing: T) -> T:
    """Moves the tensors of an object that was made on the CPU to the device, as if it had been made there."""
    for name, value in vars(thing).items():
        vars(thing)[name] = DEVICE if isinstance(value, torch.device) else on_device(value)
    return thing


def assert_on_device(values: Any) -> None:
    """Asserts that there are tensors among the given objects, and that all of them are on the device."""
    assert kinds(values) == {DEVICE.type}
