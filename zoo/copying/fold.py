"""Evaluates what settings determine: conditions on them, and values that are looked up by their names."""

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import libcst as cst

from zoo.copying.expressions import Substitute
from zoo.copying.source import code

UNKNOWN = object()
SOME = object()  # a value known only to be true and not None
Lookup = Callable[[str], "cst.BaseExpression | None"]  # the value of a constant of the program, by its name

OPERATORS: dict[type[cst.BaseCompOp], Callable[[Any, Any], Any]] = {
    cst.Equal: operator.eq, cst.NotEqual: operator.ne, cst.LessThan: operator.lt, cst.GreaterThan: operator.gt,
    cst.LessThanEqual: operator.le, cst.GreaterThanEqual: operator.ge, cst.Is: operator.is_, cst.IsNot: operator.is_not,
    cst.In: lambda x, y: x in y, cst.NotIn: lambda x, y: x not in y,
}  # fmt: skip


def literal(value: Any) -> cst.BaseExpression:
    """The source of a constant."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return cst.parse_expression(text)


def fold(node: Any, known: Mapping[str, Any], lookup: Lookup) -> Any:
    """Returns a definition without the parts that the known expressions rule out.

    Args:
        known: the source of an expression -> its value.
        lookup: finds the program's constants.
    """
    return node.visit(_Fold(known, lookup))


class _Fold(cst.CSTTransformer):
    def __init__(self, known: Mapping[str, Any], lookup: Lookup) -> None:
        self.known, self.lookup = known, lookup
        self.elifs: set[cst.If] = set()

    def value(self, node: cst.BaseExpression) -> Any:
        """The constant value of an expression, or UNKNOWN."""
        bare = isinstance(node, cst.Tuple | cst.GeneratorExp | cst.Yield)
        text = code(node if bare else node.with_changes(lpar=[], rpar=[]))
        if text in self.known:
            return self.known[text]
        if isinstance(node, cst.Name) and node.value in ("True", "False", "None"):
            return {"True": True, "False": False, "None": None}[node.value]
        if isinstance(node, cst.Integer | cst.Float | cst.SimpleString):
            return node.evaluated_value
        if isinstance(node, cst.Tuple | cst.List | cst.Set):
            values = [self.value(element.value) for element in node.elements]
            return UNKNOWN if UNKNOWN in values else tuple(values)
        if isinstance(node, cst.Dict):
            return tuple(self.value(element.key) for element in node.elements if isinstance(element, cst.DictElement))
        if isinstance(node, cst.Name) and (constant := self.lookup(node.value)) is not None:
            return self.value(constant)
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            inner = self.value(node.expression)
            return UNKNOWN if inner is UNKNOWN else not inner
        if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
            left, right = self.value(node.left), self.value(node.comparisons[0].comparator)
            kind = type(node.comparisons[0].operator)
            if left is SOME and not (right is None and kind in (cst.Is, cst.IsNot)):
                return UNKNOWN
            if left is not UNKNOWN and right is not UNKNOWN and kind in OPERATORS:
                return OPERATORS[kind](left, right)
        return UNKNOWN

    # --- Expressions --------------------------------------------------------------------------------------------------

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        condition = self.value(updated_node.test)
        if condition is UNKNOWN:
            return updated_node
        return updated_node.body if condition else updated_node.orelse

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        conjunction = isinstance(updated_node.operator, cst.And)
        for side, other in (("left", "right"), ("right", "left")):
            value = self.value(getattr(updated_node, side))
            if value is not UNKNOWN and (side == "left" or isinstance(value, bool)):
                if bool(value) == conjunction:
                    rest: cst.BaseExpression = getattr(updated_node, other)
                    return rest
                decided: cst.BaseExpression = getattr(updated_node, side)
                return literal(value) if isinstance(value, bool) else decided
        return updated_node

    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        """Zero times something, and something minus zero."""
        if isinstance(updated_node.operator, cst.Multiply) and self.is_zero(updated_node.left):
            return cst.Integer("0")
        if isinstance(updated_node.operator, cst.Subtract) and self.is_zero(updated_node.right):
            return updated_node.left
        return updated_node

    def is_zero(self, node: cst.BaseExpression) -> bool:
        value = self.value(node)
        return type(value) is int and value == 0

    def leave_UnaryOperation(
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        value = self.value(updated_node)
        return literal(value) if isinstance(value, bool) else updated_node

    def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> cst.BaseExpression:
        value = self.value(updated_node)
        return updated_node if value is UNKNOWN else literal(value)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        """An entry of a constant dict, if the key is known."""
        if isinstance(updated_node.value, cst.Name) and isinstance(updated_node.slice[0].slice, cst.Index):
            table = self.lookup(updated_node.value.value)
            key = self.value(updated_node.slice[0].slice.value)
            if isinstance(table, cst.Dict) and key is not UNKNOWN:
                for element in table.elements:
                    if isinstance(element, cst.DictElement) and self.value(element.key) == key:
                        return element.value
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """`getattr(config, "name", default)`: the attribute if it is known, else the default."""
        if isinstance(updated_node.func, cst.Name) and updated_node.func.value == "isinstance":
            return self.of_made(updated_node)
        if code(updated_node.func) == "round" and self.is_zero(updated_node.args[0].value):
            return cst.Integer("0")
        if code(updated_node.func) == "getattr" and len(updated_node.args) == 3:
            owner, name, default = (argument.value for argument in updated_node.args)
            attribute = f"{code(owner)}.{self.value(name)}"
            if code(owner) == "config" and self.value(name) is not UNKNOWN:
                return cst.parse_expression(attribute) if self.value(name) in self.known["fields"] else default
        return updated_node

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """A setting that can only be 1."""
        value = self.known.get(code(updated_node))
        return literal(value) if type(value) is int and value == 1 else updated_node

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        """A switch that is passed on as an argument."""
        value = self.known.get(code(updated_node.value)) if isinstance(updated_node.value, cst.Attribute) else None
        return updated_node.with_changes(value=literal(value)) if isinstance(value, bool) else updated_node

    def of_made(self, call: cst.Call) -> cst.BaseExpression:
        """`isinstance` without the classes that are never instantiated."""
        never = self.known.get("never made", ())

        def alternatives(node: cst.BaseExpression) -> list[cst.BaseExpression]:
            if isinstance(node, cst.BinaryOperation):
                return [*alternatives(node.left), *alternatives(node.right)]
            return [node]

        kinds = alternatives(call.args[1].value)
        kept = [code(kind) for kind in kinds if code(kind) not in never]
        if len(kept) == len(kinds):
            return call
        if not kept:
            return literal(False)
        return call.with_changes(args=[call.args[0], cst.Arg(cst.parse_expression(" | ".join(kept)))])

    # --- Statements ---------------------------------------------------------------------------------------------------

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        """Removes a choice with its comment, assertions of what is known, and `x = x`."""
        if not updated_node.body or re.fullmatch(r"(\w+) = \1", code(updated_node.body[0])):
            return cst.RemoveFromParent()
        before, after = (getattr(node.body[0], "value", None) for node in (original_node, updated_node))
        if isinstance(before, cst.IfExp) and not isinstance(after, cst.IfExp):
            return updated_node.with_changes(trailing_whitespace=cst.TrailingWhitespace())
        return updated_node

    def leave_Assert(self, original_node: cst.Assert, updated_node: cst.Assert) -> cst.Assert | cst.RemovalSentinel:
        return updated_node if self.value(updated_node.test) in (UNKNOWN, False) else cst.RemoveFromParent()

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> Any:
        """A loop over one element."""
        elements = updated_node.iter.elements if isinstance(updated_node.iter, cst.List) else []
        if len(elements) != 1 or not isinstance(updated_node.target, cst.Name):
            return updated_node
        values = {updated_node.target.value: elements[0].value}
        return cst.FlattenSentinel([line.visit(Substitute(values)) for line in _statements(updated_node.body)])

    def visit_If(self, node: cst.If) -> None:
        if isinstance(node.orelse, cst.If):
            self.elifs.add(node.orelse)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        if original_node in self.elifs:
            return updated_node  # with the `if` that it belongs to
        return cst.FlattenSentinel(self.decided(updated_node))

    def decided(self, node: cst.If) -> Sequence[cst.BaseStatement]:
        """The statements that remain of an `if`."""
        condition = self.value(node.test)
        orelse = node.orelse
        if condition is UNKNOWN:
            if isinstance(orelse, cst.If):
                rest = self.decided(orelse)
                if len(rest) == 1 and isinstance(rest[0], cst.If):
                    orelse = rest[0]
                else:
                    orelse = cst.Else(cst.IndentedBlock(rest)) if rest else None
            elif orelse is not None and not _statements(orelse.body):
                orelse = None
            if not _statements(node.body):
                if orelse is None:
                    return []
                node = node.with_changes(body=cst.IndentedBlock([cst.parse_statement("pass")]))
            return [node.with_changes(orelse=orelse)]
        chosen: Sequence[Any]
        if condition:
            chosen = _statements(node.body)
        elif isinstance(orelse, cst.If):
            chosen = self.decided(orelse)
        else:
            chosen = _statements(orelse.body) if orelse else []
        if chosen and node.leading_lines:
            first: Any = chosen[0]
            chosen = [first.with_changes(leading_lines=[*node.leading_lines, *first.leading_lines]), *chosen[1:]]
        return chosen

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Removes everything after a `return` or `raise`; inserts `pass` if nothing is left."""
        body = list(updated_node.body)
        for i, statement in enumerate(body):
            if isinstance(statement, cst.SimpleStatementLine) and isinstance(
                statement.body[-1], cst.Return | cst.Raise
            ):
                body = body[: i + 1]
                break
        return updated_node.with_changes(body=body)


def _statements(suite: cst.BaseSuite) -> list[Any]:
    if isinstance(suite, cst.IndentedBlock):
        return list(suite.body)
    return [cst.SimpleStatementLine([statement]) for statement in suite.body]  # type: ignore[list-item]
