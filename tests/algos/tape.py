"""A stand-in for a CUDA graph on any device: operations are recorded once, then computed again on the same tensors.

As with a CUDA graph, no Python runs between the operations, their inputs and outputs stay at the same place in memory,
random numbers come from the generator's state at the time of the replay, and the recording itself changes nothing.
Operations that wait for a tensor's value are refused.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select")


class Tape(TorchDispatchMode):
    """Records the operations that are computed within it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}  # by a tensor's memory: the tensor and its content before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.name() in READS:
            raise RuntimeError(f"{func.name()} waits for the device, which no graph can hold.")
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        places = {x.untyped_storage().data_ptr() for x in given}
        if func._schema.is_mutable:
            for x in given:
                self.before.setdefault(x.untyped_storage().data_ptr(), (x, whole(x).clone()))
        # keep other views of the same memory, because an operation may change a tensor's shape in place
        kept_args, kept_kwargs = tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs))
        out = func(*args, **kwargs)
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        new = [x for x in made if x.untyped_storage().data_ptr() not in places]
        changes = func._schema.is_mutable and torch.Tag.inplace_view not in func.tags
        if changes or new:  # otherwise they are views of existing memory
            self.steps.append((func, kept_args, kept_kwargs, [] if changes else [x.detach() for x in made]))
        return out

    def undo(self) -> None:
        """Restores the content of all memory that existed before."""
        for x, held in self.before.values():
            whole(x).copy_(held)

    def replay(self) -> None:
        """Computes all operations again, in place."""
        with torch.no_grad():
            for func, args, kwargs, made in self.steps:
                out = func(*args, **kwargs)
                for place, x in zip(made, [x for x in tree_leaves(out) if isinstance(x, Tensor)], strict=False):
                    place.copy_(x)


def whole(x: Tensor) -> Tensor:
    """The whole memory that a tensor is a view of."""
    storage = x.untyped_storage()
    flat = torch.empty(0, dtype=x.dtype, device=x.device)
    return flat.set_(storage, 0, (storage.nbytes() // x.element_size(),))


def recorded(call: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
    """Replaces `zoo.runs.cuda_graph.recorded`."""
    state = torch.get_rng_state()
    with Tape() as tape:
        outputs = call()
    tape.undo()
    torch.set_rng_state(state)
    return tape.replay, outputs


def warmed_up(call: Callable[[], Any], device: torch.device) -> Any:
    """Replaces `zoo.runs.cuda_graph.warmed_up`."""
    return call()
