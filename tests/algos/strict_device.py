"""A device without values, that any machine has: what a GPU would wait for fails here, at a line that is named.

PyTorch's `meta` tensors have a shape, a dtype and a device, but no values: whatever reads one cannot continue. But they
mix with some tensors of the CPU, and are copied from it. So under `strict()` every operation is refused that reads a
value of the device, whose result has a shape that depends on values, or that takes tensors of the device and of the CPU
at once, one that copies them from the one to the other included.

`FakeTensorMode` with tensors of `cuda` would be nearer to a GPU, but a PyTorch without CUDA cannot index them, nor
differentiate (it lacks the device's guard).
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

IN_PLACE = (torch.ops.aten._fused_adam_.tensor_lr, torch.ops.aten._fused_adamw_.tensor_lr)  # PyTorch lacks them here

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


class StrictDeviceError(AssertionError):
    """A line does what would make a GPU wait, or fail."""


def is_own(path: str) -> bool:
    """Whether a file is one of the zoo's or of its tests', but not this one."""
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
    """The kinds of devices on which the tensors among these are."""
    return {x.device.type for x in tree_leaves(tensors) if isinstance(x, Tensor)}


class Operations(TorchDispatchMode):
    """Looks at every operation, those of gradients included, before it is done."""

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
    """Looks at the few calls that are no operation: they make tensors of numbers, or text and arrays of tensors."""

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
    """Raises StrictDeviceError, which names the line, where a GPU would have to wait, or could not do what is asked."""
    try:
        with Calls(), Operations():
            yield
    except StrictDeviceError:
        raise
    except Exception as error:  # PyTorch's own: there is nothing that it could have read
        frames = traceback.walk_tb(error.__traceback__)
        *_, last = (place(frame, line) for frame, line in frames if is_own(frame.f_code.co_filename))
        raise StrictDeviceError(f"{last}: {error}") from error


def moved(module: M) -> M:
    """A module, moved to the device as a run moves it to a GPU: its parameters stay the same objects."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.to(DEVICE)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def on_device(values: Any) -> Any:
    """Tensors, or tuples, lists and dictionaries of them, on the device."""
    return tree_map_only(Tensor, lambda x: x.to(DEVICE), values)


def with_tensors_on_device(thing: T) -> T:
    """An object that was made on the CPU, with its tensors on the device, as if it had been made there."""
    for name, value in vars(thing).items():
        vars(thing)[name] = DEVICE if isinstance(value, torch.device) else on_device(value)
    return thing


def assert_on_device(values: Any) -> None:
    """There are tensors among these, and all are on the device."""
    assert kinds(values) == {DEVICE.type}
