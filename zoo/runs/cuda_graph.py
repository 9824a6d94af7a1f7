"""An update as a CUDA graph: its kernels are recorded once and replayed by one call, without Python between them.

`torch.cuda.graph` records what an update does on the device, see "CUDA Graphs" in the notes of PyTorch's documentation:
a replay reads and writes the same memory as the recording did. So arguments are copied into tensors that stay, metrics
out of those that the next replay overwrites, while parameters and buffers are read and written where they are. Random
numbers are those of the device's default generator, which a replay reads and moves on as the operations themselves do:
a checkpoint's generator state is all that a resumed run needs.

By hand rather than by the compiler's own `triton.cudagraphs`, which leaves out an update that changes tensors it takes
for ordinary inputs, without an error, and checks at every call what holds here by the contract of an update.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from zoo.errors import RunError

WARM_UPS = 3  # calls before an update is recorded; they compile it, and have its kernels tuned and loaded


class Replayed:
    """An update that is recorded after some calls and replayed from then on; every call is an update, from the first.

    Args:
        update: takes tensors on the device, other values, and tuples or lists of both; returns tensors in a dictionary,
            a tuple or a list. What else it reads and writes on the device must stay where it is in memory.
        device: a GPU.

    Attributes:
        recordings: by the kind of the arguments.

    Raises:
        RunError: from the update, where it cannot be recorded.
    """

    def __init__(self, update: Callable[..., Any], device: torch.device) -> None:
        self._update, self._device = update, device
        self.recordings: dict[Any, Recording] = {}

    def __call__(self, *positional: Any, **named: Any) -> Any:
        kind = kind_of(positional), *((name, kind_of(value)) for name, value in named.items())
        recording = self.recordings.get(kind)
        if recording is None:
            recording = self.recordings[kind] = Recording(self._update, positional, named, self._device)
        return recording(tensors_in((positional, named)))


class Recording:
    """An update for arguments of one kind: the same shapes, types and values that are no tensors.

    What is copied in and out is copied together, tensors of one type or shape by one kernel: a launch takes as long as
    a small matrix product.

    Attributes:
        replay: replays it for the arguments of the call before; None until it is recorded.
    """

    def __init__(
        self, update: Callable[..., Any], positional: tuple[Any, ...], named: dict[str, Any], device: torch.device
    ) -> None:
        positional, named = tree_map_only(Tensor, torch.clone, (positional, named))
        arguments = tensors_in((positional, named))  # stay where they are
        self._copies = [(rows, [arguments[i] for i in rows]) for rows in alike(x.dtype for x in arguments)]
        self._call = functools.partial(update, *positional, **named)
        self._device, self._warm_ups = device, WARM_UPS
        self.replay: Callable[[], None] | None = None

    def __call__(self, arguments: list[Tensor]) -> Any:
        for rows, places in self._copies:
            torch._foreach_copy_(places, [arguments[i] for i in rows])
        if self._warm_ups:
            self._warm_ups -= 1
            return warmed_up(self._call, self._device)
        if self.replay is None:
            self.replay, self._stacks = recorded(self._stacked, self._device)
        self.replay()
        outputs: list[Any] = [None] * self._structure.num_leaves
        for rows, stack in zip(self._rows, self._stacks, strict=True):
            for i, output in zip(rows, stack.clone().unbind(), strict=True):
                outputs[i] = output
        return tree_unflatten(outputs, self._structure)

    def _stacked(self) -> list[Tensor]:
        """Calls the update; what it returns, stacked where shapes and types are the same."""
        outputs, self._structure = tree_flatten(self._call())
        self._rows = alike((x.shape, x.dtype) for x in outputs)
        return [torch.stack([outputs[i].detach() for i in rows]) for rows in self._rows]


def alike(kinds: Iterable[Any]) -> list[list[int]]:
    """The places of each kind."""
    found: dict[Any, list[int]] = {}
    for i, kind in enumerate(kinds):
        found.setdefault(kind, []).append(i)
    return list(found.values())


def kind_of(value: Any) -> Any:
    """What a recording is made for: the shapes and types of tensors, and all other values."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return (type(value), *map(kind_of, value)) if isinstance(value, tuple | list) else value


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors among the leaves."""
    return [x for x in leaves(values) if isinstance(x, Tensor)]


def leaves(values: Any) -> list[Any]:
    """What nested tuples, lists and dictionaries hold, as `tree_flatten` gives it, in a fifth of its time."""
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, tuple | list):
        return [values]
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        else:
            found += leaves(value)
    return found


# --- What needs a GPU -------------------------------------------------------------------------------------------------


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which updates are recorded; nothing may be recorded on the default one."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def warmed_up(call: Callable[[], Any], device: torch.device) -> Any:
    """A call on the stream on which it will be recorded, so that libraries have their workspace there."""
    stream, current = side_stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        outputs = call()
    current.wait_stream(stream)
    return outputs


def recorded(call: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
    """What replays a call, on the current stream, and the tensors that hold its results after each replay.

    The call itself computes nothing, and takes no random numbers.

    Raises:
        RunError: it does what no graph can hold, such as waiting for the device.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        # thread_local: what other threads do meanwhile does not concern the recording
        with (
            torch.cuda.device(device),
            torch.cuda.graph(graph, stream=side_stream(device), capture_error_mode="thread_local"),
        ):
            outputs = call()
    except RuntimeError as error:
        cause = error.__context__ or error  # the end of a recording that has failed is an error of its own
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause from None
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise RunError(f"the update could not be recorded as a CUDA graph: {reason} Without: compile=false") from error
    return graph.replay, outputs
