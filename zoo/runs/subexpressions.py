"""Common subexpressions of a compiled update: what it computes twice from the same tensors is computed only once.

PyTorch's compiler does this for a forward graph and its backward graph. But an update is a single graph that contains
gradients and optimizers, and is left as it is. Losses that share a value or a representation, each with its own forward
pass so that it can be read on its own, then cost no more than one pass.

PyTorch's own `fx_graph_cse` is no substitute: it merges two draws from a uniform or an exponential distribution, and
0.0 with -0.0.
"""

import operator
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node


class CommonSubexpressions(CustomGraphPass):
    def __call__(self, graph: Graph) -> None:
        returned = set(graph.output_node().all_input_nodes)  # each remains a separate tensor
        computed: dict[Any, Node] = {}
        for node in graph.nodes:
            if changes_tensors(node):
                computed.clear()
            elif is_repeatable(node) and node not in returned:
                first = computed.setdefault(identity(node), node)
                if first is not node:
                    node.replace_all_uses_with(first)
                    graph.erase_node(node)

    def uuid(self) -> bytes:
        """Part of the key of cached compiled code: another version of this file compiles afresh."""
        return get_hash_for_files((__file__,))


def changes_tensors(node: Node) -> bool:
    """Whether an operation writes to its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_repeatable(node: Node) -> bool:
    """Whether an operation returns the same for the same arguments."""
    if isinstance(node.target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded not in node.target.tags
    return node.target is operator.getitem


def identity(node: Node) -> Any:
    """A key that is equal for nodes that compute the same."""
    return node.target, frozen(node.args), frozen(node.kwargs)


def frozen(argument: Any) -> Any:
    """An argument as a comparable key: neither 1, 1.0 and True nor 0.0 and -0.0 are the same."""
    if isinstance(argument, (list, tuple)):
        return tuple(frozen(one) for one in argument)
    if isinstance(argument, dict):
        return tuple((name, frozen(one)) for name, one in argument.items())
    return argument if isinstance(argument, Node) else (type(argument), repr(argument))
