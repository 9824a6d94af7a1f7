"""Replaces local names that have a single value."""

from collections import Counter
from typing import Any

import libcst as cst

from zoo.copying.expressions import Substitute, count, is_constant
from zoo.copying.program import Program
from zoo.copying.source import code

LONGEST = 80  # characters of two lines merged into one


def local_names(program: Program) -> None:
    """Replaces local names for a constant or class, and removes those that nobody reads."""
    for name, node in list(program.definitions.items()):
        if not isinstance(node, cst.SimpleStatementLine) and program.changed("locals", node):
            program.definitions[name] = node.visit(_Locals(name in program.decided))
            program.changed("locals", program.definitions[name])


class _Locals(cst.CSTTransformer):
    """Does this in one definition.

    Args:
        decided: the settings determined something in it, so a name may be left that only the next line reads.
    """

    def __init__(self, decided: bool) -> None:
        self.decided = decided

    def leave_FunctionDef(self, original_node: Any, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        stored: Counter[str] = Counter()
        starred: Counter[str] = Counter()
        values: dict[str, Any] = {}

        def store(target: Any, value: Any) -> None:
            if isinstance(target, cst.Tuple | cst.List):
                for element in target.elements:
                    store(element.value, None)
            elif isinstance(target, cst.Name):
                stored[target.value] += 1
                values[target.value] = value

        class Visitor(cst.CSTVisitor):
            def visit_Assign(self, node: cst.Assign) -> None:
                store(node.targets[0].target, node.value if len(node.targets) == 1 else None)

            def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
                if node.value is not None:
                    store(node.target, node.value)

            def visit_AugAssign(self, node: cst.AugAssign) -> None:
                stored[code(node.target)] += 2

            def visit_For(self, node: cst.For) -> None:
                store(node.target, None)

            def visit_CompFor(self, node: cst.CompFor) -> None:
                store(node.target, None)

            def visit_Param(self, node: cst.Param) -> None:
                stored[node.name.value] += 1

            def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
                stored[code(node.target)] += 2

            def visit_Arg(self, node: cst.Arg) -> None:
                if node.star == "*":
                    starred[code(node.value)] += 1

        updated_node.visit(Visitor())
        read = count(updated_node.body)
        constant = {
            name: value
            for name, value in values.items()
            if stored[name] == 1
            and value is not None
            and (
                _is_class(value)
                or is_constant(value)
                or (read[name] == 2 and isinstance(value, cst.Attribute) and code(value).startswith("config."))
                if not isinstance(value, cst.Tuple)
                else starred[name] == 1 == read[name] - 1
            )
        }
        unread = {
            name
            for name, value in values.items()
            if stored[name] == 1
            and read[name] == 1
            and value is not None
            and not count(value)["self"]
            and _harmless(value)
        }
        body: Any = updated_node.body.visit(_WithoutAssignments({*constant, *unread}))
        if "config" in {parameter.name.value for parameter in updated_node.params.params}:
            body = body.visit(_Config())
        body = body.visit(Substitute(constant))
        body = body.visit(_Returned())
        if self.decided:
            body = body.visit(_Next({name for name in values if stored[name] == 1 and read[name] == 2}))
        return updated_node.with_changes(body=body)


class _Next(cst.CSTTransformer):
    """Turns `x = f()` and `g(x)` into `g(f())`, for names that are read once."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def leave_IndentedBlock(self, original_node: Any, updated_node: cst.IndentedBlock) -> cst.IndentedBlock:
        lines = list(updated_node.body)
        for i in reversed(range(len(lines) - 1)):
            first, second = (
                line.body[0] if isinstance(line, cst.SimpleStatementLine) else None for line in lines[i : i + 2]
            )
            if not isinstance(first, cst.Assign) or not isinstance(first.value, cst.Call | cst.Subscript):
                continue
            name, call = code(first.targets[0].target), getattr(second, "value", None)
            if name in self.names and isinstance(call, cst.Call) and call.args and code(call.args[0].value) == name:
                joined: Any = lines[i + 1].visit(Substitute({name: first.value}))
                if len(code(joined).strip()) <= LONGEST:
                    lines[i : i + 2] = [joined]
        return updated_node.with_changes(body=lines)


class _Returned(cst.CSTTransformer):
    """Turns `x: Tensor = f()` and `return x` into `return f()`."""

    def leave_IndentedBlock(self, original_node: Any, updated_node: cst.IndentedBlock) -> cst.IndentedBlock:
        lines: list[Any] = [None, None, *updated_node.body][-2:]
        made, back = (line.body[0] if isinstance(line, cst.SimpleStatementLine) else None for line in lines)
        if not isinstance(made, cst.AnnAssign) or made.value is None or not isinstance(back, cst.Return):
            return updated_node
        if not isinstance(back.value, cst.Name) or code(made.target) != back.value.value:
            return updated_node
        line = lines[0].with_changes(body=[back.with_changes(value=made.value)])
        return updated_node.with_changes(body=[*updated_node.body[:-2], line])


class _Config(cst.CSTTransformer):
    """Uses the config that `train` receives as the run's config."""

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return updated_node.attr if code(updated_node) == "run.config" else updated_node


def _is_class(node: Any) -> bool:
    return isinstance(node, cst.Name) and node.value[:1].isupper() and not node.value.isupper()


def _harmless(node: Any) -> bool:
    """Whether an expression can be moved without changing anything else."""
    calls = any(isinstance(child, cst.Call) for child in [node, *node.children])
    return not calls or code(node).startswith(("(torch.tensor(", "np."))


class _WithoutAssignments(cst.CSTTransformer):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: cst.SimpleStatementLine) -> Any:
        statement = updated_node.body[0]
        target = (
            statement.targets[0].target if isinstance(statement, cst.Assign) else getattr(statement, "target", None)
        )
        if (
            isinstance(statement, cst.Assign | cst.AnnAssign)
            and isinstance(target, cst.Name)
            and target.value in self.names
        ):
            return cst.RemoveFromParent()
        return updated_node
