"""A stand-in for a CUDA graph on any device: operations are recorded once, then computed again on the same tensors.

As with a CUDA graph no Python runs between them, what they read and write stays where it was in memory, random numbers
come from the generator as it stands at the replay, and the recording itself changes nothing. What waits for a tensor's
value is refused.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select")


class Tape(TorchDispatchMode):
    """Records what is computed within it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}  # a tensor's memory: the tensor and what it held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.name() in READS:
            raise RuntimeError(f"{func.name()} waits for the device, which no graph can hold.")
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        places = {x.untyped_storage().data_ptr() for x in given}
        if func._schema.is_mutable:
            for x in given:
                self.before.setdefault(x.untyped_storage().data_ptr(), (x, whole(x).clone()))
        # what is kept are other views of the same memory: an operation may change a tensor's shape in place
        kept_args, kept_kwargs = tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs))
        out = func(*args, **kwargs)
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        new = [x for x in made if x.untyped_storage().data_ptr() not in places]
        changes = func._schema.is_mutable and torch.Tag.inplace_view not in func.tags
        if changes or new:  # else views of what is there
            self.steps.append((func, kept_args, kept_kwargs, [] if changes else [x.detach() for x in made]))
        return out

    def undo(self) -> None:
        """Gives all memory that was there before what it held."""
        for x, held in self.before.values():
            whole(x).copy_(held)

    def replay(self) -> None:
        """Computes everything again, in place."""
        with torch.no_grad():
            for func, args, kwargs, made in self.steps:
                out = func(*args, **kwargs)
                for place, x in zip(made, [x for x in tree_leaves(out) if isinstance(x, Tensor)], strict=False):
                    place.copy_(x)


def whole(x: Tensor) -> Tensor:
    """All of the memory that a tensor is a view of."""
    storage = x.untyped_storage()
    flat = torch.empty(0, dtype=x.dtype, device=x.device)
    return flat.set_(storage, 0, (storage.nbytes() // x.element_size(),))


def recorded(call: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
    """In the place of `zoo.runs.cuda_graph.recorded`."""
    state = torch.get_rng_state()
    with Tape() as tape:
        outputs = call()
    tape.undo()
    torch.set_rng_state(state)
    return tape.replay, outputs


def warmed_up(call: Callable[[], Any], device: torch.device) -> Any:
    """In the place of `zoo.runs.cuda_graph.warmed_up`."""
    return call()
