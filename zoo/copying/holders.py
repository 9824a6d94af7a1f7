"""Callable objects that only store their constructor's arguments: calls of them become the expression they return."""

from typing import Any

import libcst as cst

from zoo.copying.attributes import Uses
from zoo.copying.calls import argument
from zoo.copying.expressions import Put, is_pure, pairs, returned
from zoo.copying.program import Program
from zoo.copying.source import code


def holders(program: Program, kinds: dict[str, str]) -> dict[str, cst.FunctionDef]:
    """Attributes that hold such an object -> the effect of a call, as a method of the attribute's owner.

    Args:
        kinds: attributes that always have the same class, and that class.
    """
    uses = Uses(program)
    found: dict[str, Any] = {}
    for attribute, kind in kinds.items():
        node = program.definitions[kind]
        methods = {member.name.value: member for member in node.body.body if isinstance(member, cst.FunctionDef)}
        if set(methods) != {"__init__", "__call__"} or node.bases:
            continue
        made = _made(program, attribute)
        if len(made) == 1 and isinstance(made[0], cst.Call):
            held = _held(methods["__init__"], made[0])
            only_called = uses.loaded[attribute] == uses.called[attribute]
            if held is not None and only_called and returned(methods["__call__"]) is not None:
                found[attribute] = methods["__call__"].visit(_Attributes(held))
    return found


def _made(program: Program, attribute: str) -> list[Any]:
    """The calls whose results are assigned to an attribute."""
    calls: list[Any] = []

    class Visitor(cst.CSTVisitor):
        def visit_Assign(self, node: cst.Assign) -> None:
            calls.extend(
                value
                for target, value in pairs(node)
                if isinstance(target, cst.Attribute) and target.attr.value == attribute
            )

    for node in program.definitions.values():
        node.visit(Visitor())
    return calls


def _held(constructor: cst.FunctionDef, call: cst.Call) -> dict[str, Any] | None:
    """The values of the attributes after a call of the constructor; None if it does more than store them."""
    parameters = [parameter.name.value for parameter in constructor.params.params[1:]]
    values = [argument(call, i, parameter) for i, parameter in enumerate(constructor.params.params[1:])]
    held: dict[str, Any] = {}
    for line in constructor.body.body:
        statement = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        if not isinstance(statement, cst.Assign):
            return None
        for target, value in pairs(statement):
            if value is None or code(value) not in parameters:
                return None
            given = values[parameters.index(code(value))]
            if given is None or not is_pure(given):
                return None
            held[code(target)] = given
    return held


class _Attributes(Put):
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:
        return self.values.get(code(updated_node), super().leave_Attribute(original_node, updated_node))
