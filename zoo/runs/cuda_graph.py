"""An update as a CUDA graph: its kernels are recorded once and replayed with one call, without Python between them.

`torch.cuda.graph` records what an update does on the device (see "CUDA Graphs" in the notes of PyTorch's docs).
A replay reads and writes the same memory as the recording. Arguments are therefore copied into tensors that stay, and
metrics out of tensors that the next replay overwrites, while parameters and buffers are read and written in place.
Random numbers come from the device's default generator, which a replay reads and advances as the operations themselves
do: a checkpoint's generator state is all that a resumed run needs.

This is done by hand because the compiler's own `triton.cudagraphs` silently skips an update that changes tensors which
it takes for ordinary inputs, and checks at every call what the contract of an update guarantees here.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from zoo.errors import RunError

WARM_UPS = 3  # calls before an update is recorded; they compile it, and tune and load its kernels


class Replayed:
    """An update that is recorded after a few calls and replayed from then on; every call, from the first, is an update.

    Args:
        update: takes tensors on the device, other values, and tuples or lists of both; returns tensors in a dictionary,
            a tuple or a list. Everything else that it reads and writes on the device must stay where it is in memory.
        device: a GPU.

    Attributes:
        recordings: one for each kind of arguments.

    Raises:
        RunError: raised by the update if it cannot be recorded.
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
    """An update for arguments of one kind: the same shapes and dtypes, and the same values that are not tensors.

    Tensors of one dtype are copied in together, and those of one shape and dtype copied out together, by one kernel:
    a launch takes as long as a small matrix product.

    Attributes:
        replay: replays the update for the most recently copied arguments; None until it is recorded.
    """

    def __init__(
        self, update: Callable[..., Any], positional: tuple[Any, ...], named: dict[str, Any], device: torch.device
    ) -> None:
        positional, named = tree_map_only(Tensor, torch.clone, (positional, named))
        arguments = tensors_in((positional, named))  # their memory stays where it is
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
        """Calls the update and returns its results, stacked where shapes and dtypes are the same."""
        outputs, self._structure = tree_flatten(self._call())
        self._rows = alike((x.shape, x.dtype) for x in outputs)
        return [torch.stack([outputs[i].detach() for i in rows]) for rows in self._rows]


def alike(kinds: Iterable[Any]) -> list[list[int]]:
    """The positions of each kind."""
    found: dict[Any, list[int]] = {}
    for i, kind in enumerate(kinds):
        found.setdefault(kind, []).append(i)
    return list(found.values())


def kind_of(value: Any) -> Any:
    """What a recording is specific to: the shapes and dtypes of tensors, and all other values."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return (type(value), *map(kind_of, value)) if isinstance(value, tuple | list) else value


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors among the leaves of nested containers."""
    return [x for x in leaves(values) if isinstance(x, Tensor)]


def leaves(values: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dictionaries, as `tree_flatten` gives them, in a fifth of its time."""
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


# --- Functions that need a GPU ----------------------------------------------------------------------------------------


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which updates are recorded; nothing may be recorded on the default one."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def warmed_up(call: Callable[[], Any], device: torch.device) -> Any:
    """Makes a call on the stream on which it will be recorded, so that libraries have their workspace there."""
    stream, current = side_stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        outputs = call()
    current.wait_stream(stream)
    return outputs


def recorded(call: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
    """A function that replays a call on the current stream, and the tensors that hold its results after each replay.

    Recording computes nothing and takes no random numbers.

    Raises:
        RunError: the call does something that no graph can hold, such as waiting for the device.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        # thread_local: what other threads do meanwhile does not affect the recording
        with (
            torch.cuda.device(device),
            torch.cuda.graph(graph, stream=side_stream(device), capture_error_mode="thread_local"),
        ):
            outputs = call()
    except RuntimeError as error:
        cause = error.__context__ or error  # ending a recording that has failed raises an error of its own
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause from None
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise RunError(f"the update could not be recorded as a CUDA graph: {reason} Without: compile=false") from error
    return graph.replay, outputs
