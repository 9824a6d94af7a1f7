"""Single operations of a traced update: random numbers from outside, and lists of tensors handled one by one."""

import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten

# --- Random numbers ---------------------------------------------------------------------------------------------------

Draw = Callable[[], Tensor]  # gives the next random numbers


def draw_of(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Draw:
    """A function that draws the random numbers which an operation gives for tensors of these shapes."""
    empty = emptied(arguments)
    if operation._schema.is_mutable:  # each draw goes into a new tensor
        return lambda: operation(*emptied(empty), **named)
    return functools.partial(operation, *empty, **named)


def emptied(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values, with each tensor replaced by an empty one like it."""
    return tuple(tree_map(lambda x: torch.empty_like(x) if isinstance(x, Tensor) else x, values))


def is_random(operation: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in operation.tags


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Intercepts requests for random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_random(func):
            return func(*args, **(kwargs or {}))
        if func is not aten.native_dropout.default:
            return self.drawn(func, args, kwargs or {})
        x, rate, _ = args  # one operation on a GPU; here its mask is drawn, and the rest computed
        kept = self.drawn(aten.bernoulli_.float, (torch.empty_like(x), 1 - rate), {})
        return x * kept / (1 - rate), kept.bool()

    @abstractmethod
    def drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The random numbers."""


class Recorder(Draws):  # type: ignore[no-untyped-call]
    """Records which random numbers are requested."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.draws.append(draw_of(func, args, kwargs))
        value = func(*args, **kwargs)
        if not isinstance(value, Tensor):
            raise NotImplementedError(f"{func} gives more than random numbers.")
        return value


class Player(Draws):  # type: ignore[no-untyped-call]
    """Supplies the given numbers, in order, in place of the requested random numbers."""

    def __init__(self, noise: list[Tensor]) -> None:
        super().__init__()
        self._noise = iter(noise)

    def drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = next(self._noise)
        return args[0].copy_(value) if func._schema.is_mutable else value


# --- Operations on lists of tensors, for which vmap has no rule: one tensor after the other ---------------------------


def one_by_one(operation: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """Turns an operation on one tensor into one on a list of tensors, with lists or single values beside it."""

    def apply(tensors: list[Tensor], *others: Any, **named: Any) -> list[Tensor]:
        rows = [[x[i] if isinstance(x, list | tuple) else x for x in others] for i in range(len(tensors))]
        return [operation(tensor, *row, **named) for tensor, row in zip(tensors, rows, strict=True)]

    return apply


def in_place(operation: Callable[..., Tensor]) -> Callable[..., None]:
    """Like `one_by_one`, for an operation that changes its tensors and returns nothing."""
    apply = one_by_one(operation)
    return lambda *arguments, **named: void(apply(*arguments, **named))


def void(_: Any) -> None:
    return None


def copied(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(x.dtype).expand_as(x).clone()


EACH: Any = {
    aten._foreach_lerp_.Scalar: in_place(Tensor.lerp_),
    aten._foreach_mul_.Scalar: in_place(Tensor.mul_),
    aten._foreach_mul_.Tensor: in_place(Tensor.mul_),
    aten._foreach_addcmul_.Scalar: in_place(lambda x, a, b, value=1: x.addcmul_(a, b, value=value)),
    aten._foreach_mul.Tensor: one_by_one(torch.mul),
    aten._foreach_add.List: one_by_one(lambda x, other, alpha=1: torch.add(x, other, alpha=alpha)),
    aten._foreach_norm.Scalar: one_by_one(lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype)),
}
