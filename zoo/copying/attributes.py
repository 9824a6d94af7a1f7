"""Attributes that are always the same become constants; what nobody reads goes."""

import ast
import functools
from collections import Counter
from typing import Any

import libcst as cst

from zoo.copying.calls import bases
from zoo.copying.expressions import is_constant, is_pure, pairs
from zoo.copying.program import Program
from zoo.copying.source import code


def constant_attributes(program: Program) -> None:
    """Attributes that are a constant from the constructor on are replaced by it; those that nobody reads go."""
    uses = uses_of(program)
    for name, node in list(program.definitions.items()):
        if isinstance(node, cst.ClassDef):
            constants = {
                attribute: values[0]
                for attribute, values in _assigned(node).items()
                if len(values) == 1
                and (is_constant(values[0]) or program.is_function(values[0]))
                and uses.stored[attribute] == 1
            }
            if not constants:
                continue
            family = [other for other in program.definitions if name in bases(program, other)]
            for member in family:
                program.definitions[member] = program.definitions[member].visit(_Constant(constants))
    uses = uses_of(program)
    unread = [name for name in uses.stored if not uses.loaded[name]]
    program.transform(lambda: _Unread(uses), [f"self.{name}" for name in unread])


class Uses:
    """How often attributes are read, assigned and called, and which are those of a config or a spec."""

    def __init__(self, *texts: str) -> None:
        self.stored: Counter[str] = Counter()
        self.loaded: Counter[str] = Counter()
        self.called: Counter[str] = Counter()
        self.of_config: set[str] = set()
        for text in texts:
            stored, loaded, called, of_config = _uses(text)
            self.stored.update(stored)
            self.loaded.update(loaded)
            self.called.update(called)
            self.of_config |= of_config


@functools.cache
def _uses(text: str) -> tuple[Counter[str], Counter[str], Counter[str], set[str]]:
    stored: Counter[str] = Counter()
    loaded: Counter[str] = Counter()
    called: Counter[str] = Counter()
    of_config = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            (loaded if isinstance(node.ctx, ast.Load) else stored)[node.attr] += 1
            owner = node.value
            if (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")) in ("config", "spec"):
                of_config.add(node.attr)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            loaded[node.target.attr] += 1
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and node.value is None:
            stored[node.target.attr] -= 1  # a declaration
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called[node.func.attr] += 1
    return stored, loaded, called, of_config


def uses_of(program: Program) -> Uses:
    """Of a whole program."""
    return Uses(*map(program.text, program.definitions))


def _assigned(node: cst.ClassDef) -> dict[str, list[Any]]:
    """The values that a class assigns to its attributes."""
    found: dict[str, list[Any]] = {}

    class Visitor(cst.CSTVisitor):
        def visit_Assign(self, node: cst.Assign) -> None:
            for target, value in pairs(node):
                if isinstance(target, cst.Attribute) and code(target.value) == "self":
                    found.setdefault(target.attr.value, []).append(value)

        def visit_AugAssign(self, node: cst.AugAssign) -> None:
            if isinstance(node.target, cst.Attribute):
                found.setdefault(node.target.attr.value, []).extend([None, None])

    node.visit(Visitor())
    return found


class _Constant(cst.CSTTransformer):
    def __init__(self, constants: dict[str, cst.BaseExpression]) -> None:
        self.constants = constants
        self._targets: set[cst.CSTNode] = set()

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        target = node.target
        self._targets.update(
            [element.value for element in target.elements] if isinstance(target, cst.Tuple) else [target]
        )

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if original_node not in self._targets and code(updated_node.value) == "self":
            return self.constants.get(updated_node.attr.value, updated_node)
        return updated_node


class _Unread(cst.CSTTransformer):
    """Takes out assignments to attributes that nobody reads, where the value is a name or a constant."""

    def __init__(self, uses: Uses) -> None:
        self.uses = uses

    def goes(self, target: cst.BaseExpression, value: Any) -> bool:
        if not isinstance(target, cst.Attribute) or self.uses.loaded[target.attr.value]:
            return False
        return value is not None and is_pure(value)

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: cst.SimpleStatementLine) -> Any:
        (statement, *more) = updated_node.body
        if isinstance(statement, cst.AnnAssign) and statement.value and self.goes(statement.target, statement.value):
            return cst.RemoveFromParent()
        if more or not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            return updated_node
        targets = pairs(statement)
        kept = [(target, value) for target, value in targets if not self.goes(target, value)]
        if len(kept) == len(targets):
            return updated_node
        if not kept:
            return cst.RemoveFromParent()
        target, value = (", ".join(code(part) for part in column) for column in zip(*kept, strict=True))
        changed = cst.parse_statement(f"{target} = {value}")
        assert isinstance(changed, cst.SimpleStatementLine)
        return updated_node.with_changes(body=changed.body)
