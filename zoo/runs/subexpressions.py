"""Common subexpressions of a compiled update: what it computes twice of the same tensors is computed once.

PyTorch's compiler does so for a forward graph and its backward graph. An update is a single graph with gradients and
optimizers in it, which it takes as it is. Losses that share a value or a representation, each with a forward pass of
its own to be read alone, then cost no more than one pass.

PyTorch's own `fx_graph_cse` does not serve: it takes two draws of a uniform or an exponential distribution for one, and
0.0 for -0.0.
"""

import operator
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node


class CommonSubexpressions(CustomGraphPass):
    def __call__(self, graph: Graph) -> None:
        returned = set(graph.output_node().all_input_nodes)  # each remains a tensor of its own
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
        """Of compiled code that is kept: another version of this file compiles anew."""
        return get_hash_for_files((__file__,))


def changes_tensors(node: Node) -> bool:
    """Whether an operation writes to its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_repeatable(node: Node) -> bool:
    """Whether an operation gives the same for the same arguments."""
    if isinstance(node.target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded not in node.target.tags
    return node.target is operator.getitem


def identity(node: Node) -> Any:
    """Equal for nodes that compute the same."""
    return node.target, frozen(node.args), frozen(node.kwargs)


def frozen(argument: Any) -> Any:
    """An argument that can be compared: neither 1, 1.0 and True nor 0.0 and -0.0 are the same."""
    if isinstance(argument, (list, tuple)):
        return tuple(frozen(one) for one in argument)
    if isinstance(argument, dict):
        return tuple((name, frozen(one)) for name, one in argument.items())
    return argument if isinstance(argument, Node) else (type(argument), repr(argument))
