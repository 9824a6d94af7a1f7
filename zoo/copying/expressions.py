"""Pieces of source: a function's body, substituted expressions, and which may be written twice or not at all."""

from collections import Counter
from typing import Any

import libcst as cst

from zoo.copying.source import code

OPERATIONS = (cst.BinaryOperation, cst.UnaryOperation, cst.BooleanOperation, cst.Comparison, cst.IfExp, cst.Lambda)
# functions that only compute
PURE = ("zeros", "ones", "tensor", "from_numpy", "astype", "len", "float", "log", "exp", "sum")


def statements(node: cst.FunctionDef) -> list[Any]:
    """A function's body without its docstring, and without `pass`."""
    body = list(node.body.body)
    if node.get_docstring(clean=False) is not None:
        body = body[1:]
    return [statement for statement in body if code(statement).strip() not in ("pass", "return")]


def returned(node: cst.FunctionDef) -> Any:
    """The expression that a function evaluates to, if its body is a single `return`."""
    body = statements(node)
    if len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine) and isinstance(body[0].body[0], cst.Return):
        return body[0].body[0].value
    return None


class Put(cst.CSTTransformer):
    """Replaces expressions by others, in parentheses if needed."""

    def fits(self, original: Any, changed: Any) -> Any:
        if not isinstance(original, OPERATIONS) and isinstance(changed, OPERATIONS) and not changed.lpar:
            return changed.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return changed

    def leave_BinaryOperation(self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation) -> Any:
        return updated_node.with_changes(
            left=self.fits(original_node.left, updated_node.left),
            right=self.fits(original_node.right, updated_node.right),
        )

    def leave_UnaryOperation(self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation) -> Any:
        return updated_node.with_changes(expression=self.fits(original_node.expression, updated_node.expression))

    def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> Any:
        return updated_node.with_changes(left=self.fits(original_node.left, updated_node.left))

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:
        value = self.fits(original_node.value, updated_node.value)
        return updated_node.with_changes(value=value, attr=original_node.attr)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> Any:
        return updated_node.with_changes(value=self.fits(original_node.value, updated_node.value))

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)


class Substitute(Put):
    """Replaces names by expressions."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        value: cst.BaseExpression = self.values.get(updated_node.value, updated_node)
        return value

    def leave_FormattedStringExpression(
        self, original_node: cst.FormattedStringExpression, updated_node: cst.FormattedStringExpression
    ) -> cst.BaseFormattedStringContent:
        """A string within a string."""
        value = updated_node.expression
        if isinstance(value, cst.SimpleString) and not isinstance(original_node.expression, cst.SimpleString):
            return cst.FormattedStringText(value.raw_value)
        return updated_node


def is_simple(node: Any) -> bool:
    """Whether an expression may be written more than once."""
    return isinstance(node, cst.Name | cst.Attribute) or is_constant(node)


def count(node: cst.CSTNode) -> Counter[str]:
    """How often each name is mentioned."""
    names: Counter[str] = Counter()

    class Visitor(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:
            names[node.value] += 1

        def visit_Attribute(self, node: cst.Attribute) -> bool:
            node.value.visit(self)
            return False  # the attribute's name is not a name of its own

        def visit_Arg(self, node: cst.Arg) -> bool:
            node.value.visit(self)
            return False

    node.visit(Visitor())
    return names


def is_constant(node: Any) -> bool:
    """Whether an expression is a constant that reads well in its parameter's place."""
    if isinstance(node, cst.Name):
        return node.value in ("True", "False", "None")
    if isinstance(node, cst.Attribute):
        return code(node).startswith(("nn.", "torch."))
    if isinstance(node, cst.UnaryOperation):
        return is_constant(node.expression)
    if isinstance(node, cst.Tuple):
        return all(is_constant(element.value) for element in node.elements)
    return isinstance(node, cst.Integer | cst.Float | cst.SimpleString)


def is_pure(node: Any) -> bool:
    """Whether an expression can be removed without any other effect."""
    if isinstance(node, cst.Name | cst.Integer | cst.Float | cst.SimpleString):
        return True
    if isinstance(node, cst.Attribute | cst.Subscript):
        return is_pure(node.value)
    if isinstance(node, cst.Tuple | cst.List):
        return all(is_pure(element.value) for element in node.elements)
    if isinstance(node, cst.Call):
        function = node.func.attr.value if isinstance(node.func, cst.Attribute) else code(node.func)
        moved = function == "to" and isinstance(node.func, cst.Attribute) and isinstance(node.func.value, cst.Call)
        plain = function in PURE or function[:1].isupper() or moved or code(node.func).startswith("np.")
        owner = not isinstance(node.func, cst.Attribute) or is_pure(node.func.value)
        return plain and owner and all(is_pure(argument.value) for argument in node.args)
    if isinstance(node, cst.GeneratorExp):
        return is_pure(node.elt) and is_pure(node.for_in.iter)
    if isinstance(node, cst.BinaryOperation | cst.BooleanOperation):
        return is_pure(node.left) and is_pure(node.right)
    return isinstance(node, cst.UnaryOperation) and is_pure(node.expression)


def targets(node: cst.BaseExpression) -> list[str]:
    """The names that an assignment to `node` assigns."""
    if isinstance(node, cst.Tuple | cst.List):
        return [name for element in node.elements for name in targets(element.value)]
    return [node.value] if isinstance(node, cst.Name) else []


def pairs(node: cst.Assign) -> list[tuple[cst.BaseExpression, Any]]:
    """Targets and their values; None for a value that is part of another."""
    found: list[tuple[cst.BaseExpression, Any]] = []
    for target, value in ((one.target, node.value) for one in node.targets):
        if not isinstance(target, cst.Tuple):
            found.append((target, value))
        elif isinstance(value, cst.Tuple) and len(value.elements) == len(target.elements):
            elements = zip(target.elements, value.elements, strict=True)
            found += [(one.value, other.value) for one, other in elements]
        else:
            found += [(element.value, None) for element in target.elements]
    return found


def assigned(function: cst.FunctionDef) -> list[str]:
    """The local names that a function assigns, as often as it does."""
    names: list[str] = []

    class Visitor(cst.CSTVisitor):
        def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
            names.extend(targets(node.target))

        def visit_AugAssign(self, node: cst.AugAssign) -> None:
            names.extend(targets(node.target))

        def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
            names.extend(targets(node.target))

        def visit_For(self, node: cst.For) -> None:
            names.extend(targets(node.target))

    function.visit(Visitor())
    return names
