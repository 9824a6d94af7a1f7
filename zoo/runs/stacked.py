"""The updates of several agents as one: their tensors stacked, the update traced once and vectorized over the agents.

An update is turned into a graph of tensor operations (`make_fx`), with its random numbers, parameters and buffers among
the inputs; `torch.vmap` then gives every operation a further dimension, the agents'. No algorithm file knows of it.
The random numbers come from outside, so that each agent gets those that it would get on its own.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from zoo.agent import Metrics
from zoo.errors import UsageError
from zoo.nn.tracing import tracing
from zoo.runs.compilation import watched
from zoo.runs.device import enough_memory
from zoo.runs.operations import EACH, Player, Recorder, copied

aten = torch.ops.aten
PRODUCTS: dict[Any, int] = {  # matrix products, and which of their arguments is the first factor
    aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.baddbmm.default: 1,
}  # fmt: skip


class Stack:
    """The tensors of several modules of one kind, `[S, ...]` each; the modules' own tensors become views of them.

    Attributes:
        names: the names of the parameters and buffers.
        tensors: `[S, ...]` for each name.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        columns = [tensors_of(module) for module in modules]
        self.names = list(columns[0])
        self.tensors = [torch.stack([column[name].detach() for column in columns]) for name in self.names]
        for i, column in enumerate(columns):
            for name, stacked in zip(self.names, self.tensors, strict=True):
                column[name].data = stacked[i]

    def release(self, i: int) -> None:
        """Gives a module its own tensors again, to which nothing else writes."""
        for tensor in tensors_of(self.modules[i]).values():
            tensor.data = tensor.data.clone()


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """A module's parameters and buffers, by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class StackedUpdate:
    """An update of S agents, for arguments of certain shapes, as one program.

    Args:
        stack: the agents' tensors.
        update: a method of the first agent, or of a module in it.
        arguments: an example of its arguments, positional and named.
        compiler: the compiler of the program, if it is compiled.

    Attributes:
        run: the program, as the compiler returns it.

    Raises:
        UsageError: the update cannot become one program, or changes a Python attribute.
        RunError: the GPU's memory is full.
    """

    def __init__(
        self, stack: Stack, update: Callable[..., Metrics], arguments: tuple[Any, ...],
        compiler: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
    ) -> None:  # fmt: skip
        self.stack = stack
        flat, self.structure = tree_flatten(arguments)
        self.taken = [i for i, x in enumerate(flat) if isinstance(x, Tensor)]  # the others are constants of the program
        try:
            with enough_memory():
                self._program = self._batched(self._trace(watched(update), flat), flat)
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(
                f"the updates of several seeds cannot be one program: {reason} Run them one after another: -m seed=0,1"
            ) from error
        self.run = compiler(self._program) if compiler else self._program

    @property
    def random(self) -> bool:
        """Whether the update uses random numbers."""
        return bool(self._draws)

    def noise(self) -> list[Tensor]:
        """The random numbers for one agent's next update, from the generators in their present state."""
        return [draw() for draw in self._draws]

    def __call__(self, noise: Sequence[list[Tensor]], given: Sequence[list[Any]]) -> "list[Row]":
        """Updates all agents.

        Args:
            noise: for each agent, the result of `noise`.
            given: for each agent, the `leaves` of arguments like the example.

        Returns:
            The metrics of each agent.
        """
        data = [torch.stack([each[i] for each in given]) for i in self._used]
        metrics = self.run([torch.stack(each) for each in zip(*noise, strict=True)], data)
        columns = dict(zip(self._metrics, metrics, strict=True))
        return [Row(columns, i) for i in range(len(given))]

    def _trace(self, update: Callable[..., Metrics], flat: list[Any]) -> GraphModule:
        """The update as a graph without side effects: state, random numbers and data -> state and metrics."""
        module = self.stack.modules[0]
        own = tensors_of(module)
        trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        name_of = {id(tensor): name for name, tensor in own.items()}
        optimizers: list[Any] = [one for one in module.modules() if isinstance(getattr(one, "moved", None), list)]
        moved = [[name_of[id(parameter)] for parameter in optimizer.moved] for optimizer in optimizers]
        recorder = Recorder()

        def traced(state: list[Tensor], noise: list[Tensor] | None, data: list[Tensor]) -> list[Tensor]:
            live = {name: tensor.clone() for name, tensor in zip(self.stack.names, state, strict=True)}
            for name in trained:
                live[name].requires_grad_()
            given = list(flat)
            for i, tensor in zip(self.taken, data, strict=True):
                given[i] = tensor
            before = [optimizer.moved for optimizer in optimizers]
            positional, named = tree_unflatten(given, self.structure)
            with _reparametrize_module(module, live), recorder if noise is None else Player(noise):
                for optimizer, names in zip(optimizers, moved, strict=True):
                    optimizer.moved = [live[name] for name in names]
                try:
                    metrics = update(*positional, **named)
                finally:
                    for optimizer, parameters in zip(optimizers, before, strict=True):
                        optimizer.moved = parameters
            self._metrics = list(metrics)
            return [*(live[name].detach() for name in self.stack.names), *(x.detach() for x in metrics.values())]

        state, data = [tensor.detach().clone() for tensor in own.values()], [flat[i] for i in self.taken]
        device = self.stack.tensors[0].device
        # attention as separate operations: on a GPU the fused kernels draw their own dropout masks
        attention = sdpa_kernel(SDPBackend.MATH) if device.type == "cuda" else contextlib.nullcontext()
        with tracing(), attention, torch.random.fork_rng([device] if device.type == "cuda" else []):
            traced(state, None, data)
            self._draws = recorder.draws
            example = (state, self.noise(), data)
            graph = make_fx(traced, decomposition_table=EACH)(*example)
            pure = torch.func.functionalize(graph, remove="mutations")
            return make_fx(pure, decomposition_table={aten.copy.default: copied})(*example)

    def _batched(self, graph: GraphModule, flat: list[Any]) -> Callable[..., list[Tensor]]:
        """The graph with a dimension for the agents, and only those inputs that it uses."""
        size = len(self.stack.modules)
        data = [torch.stack([flat[i]] * size) for i in self.taken]
        noise = [torch.stack([each] * size) for each in self.noise()]
        whole = make_fx(torch.vmap(graph))(self.stack.tensors, noise, data)
        whole.graph.set_codegen(CodeGen())  # its inputs and outputs are flat
        placeholders = [node for node in whole.graph.nodes if node.op == "placeholder"]
        output: Any = whole.graph.output_node()
        states, metrics = output.args[0][: len(self.stack.names)], output.args[0][len(self.stack.names) :]
        changed = [i for i, node in enumerate(states) if node is not placeholders[i]]
        output.args = (tuple(states[i] for i in changed) + tuple(metrics),)
        unused = [i for i, node in enumerate(placeholders) if not node.users and node not in metrics]
        for i in unused:
            whole.graph.erase_node(placeholders[i])
        whole.recompile()
        first = len(placeholders) - len(data)
        self._used = [self.taken[i] for i in range(len(data)) if first + i not in unused]
        inputs = [i for i in range(len(self.stack.names)) if i not in unused]

        state = self.stack.tensors  # not an argument: a CUDA graph would copy it

        def program(noise: list[Tensor], given: list[Tensor]) -> list[Tensor]:
            results = whole(*(state[i] for i in inputs), *noise, *given)
            for i, new in zip(changed, results, strict=False):
                state[i].copy_(new)
            return list(results[len(changed) :])

        return program


class Row(Mapping[str, Tensor]):
    """One agent's metrics, taken from those of all agents, `[S]` each, only when they are read: few are."""

    def __init__(self, columns: dict[str, Tensor], i: int) -> None:
        self._columns, self._i = columns, i

    def __getitem__(self, name: str) -> Tensor:
        return self._columns[name][self._i]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __or__(self, others: Mapping[str, Tensor]) -> Metrics:
        return {**self, **others}

    def __ror__(self, others: Mapping[str, Tensor]) -> Metrics:
        return {**others, **self}


def largest_product(update: Callable[..., Metrics], arguments: tuple[Any, ...]) -> int:
    """Multiplications in the largest matrix product of an update, found by running it once on a copy of its module.

    Args:
        update: a method of a module on the CPU.
        arguments: the arguments of the call, positional and named.
    """
    positional, named = arguments
    module: nn.Module = copy.deepcopy(update.__self__)  # type: ignore[attr-defined]
    products = Products()
    with tracing(), torch.random.fork_rng([]), products:
        update.__func__(module, *positional, **named)  # type: ignore[attr-defined]
    return products.largest


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches matrix products; `largest` is the largest number of multiplications in one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in PRODUCTS:
            self.largest = max(self.largest, math.prod(result.shape) * args[PRODUCTS[func]].shape[-1])
        return result
