"""Replaces attributes that are always the same by constants, and removes those that nobody reads."""

import ast
import functools
from collections import Counter
from typing import Any

import libcst as cst

from zoo.copying.calls import assigned_attributes, bases, class_constants, related
from zoo.copying.expressions import is_constant, is_pure, pairs
from zoo.copying.parameters import without_documentation
from zoo.copying.program import Program
from zoo.copying.source import code

OF_CLASS = {
    "run": "Run", "envs": "EnvStepper", "self.envs": "VectorEnv",
    "self.eval_envs.envs[0]": "VectorEnv", "torch": "torch", "np": "numpy", "nn": "torch",
    "config": "Config", "self.config": "Config", "run.config": "Config", "spec": "Spec", "self.spec": "Spec",
}  # fmt: skip
"""What goes by these names is an object of these classes, and nothing else is."""
FORMULA = (ast.BinOp, ast.operator, ast.Attribute, ast.Name, ast.Constant, ast.expr_context)


def constant_attributes(program: Program) -> None:
    """Replaces attributes that are constant from the constructor on, and removes those that nobody reads."""
    uses = Uses(program)
    for name, node in list(program.definitions.items()):
        if isinstance(node, cst.ClassDef):
            constants = {
                attribute: values[0]
                for attribute, values in assigned_attributes(node).items()
                if len(values) == 1
                and (is_constant(values[0]) or program.is_function(values[0]))
                and uses.stored[attribute] == 1
            }
            if not constants:
                continue
            family = [other for other in program.definitions if name in bases(program, other)]
            for member in family:
                program.definitions[member] = program.definitions[member].visit(_Constant(constants))
    uses = Uses(program)
    for name, node in list(program.definitions.items()):
        unread = [one for one in uses.stored if f"self.{one}" in program.text(name) and not uses.of_class(name, one)]
        if isinstance(node, cst.ClassDef) and unread:
            changed: Any = node.visit(_Unread(unread))
            gone = [attribute for attribute in unread if f"self.{attribute}" not in code(changed)]
            program.definitions[name] = without_documentation(changed, gone)
    for name, node in list(program.definitions.items()):
        if isinstance(node, cst.ClassDef):
            kept = [
                member
                for member in node.body.body
                if not any(one.isupper() and not uses.loaded[one] for one in class_constants(member))
            ]
            program.definitions[name] = node.with_changes(body=node.body.with_changes(body=kept))


class Uses:
    """Counts how often a program's attributes are read, assigned and called, and which belong to a config or a spec."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.stored: Counter[str] = Counter()
        self.loaded: Counter[str] = Counter()
        self.called: Counter[str] = Counter()
        self.of_config: set[str] = set()
        self._receivers: dict[tuple[str, str], Counter[str]] = {}
        for name in program.definitions:
            stored, loaded, called, of_config = _uses(program.text(name))
            self.stored.update(stored)
            self.of_config |= of_config
            for kind, found in (("loaded", loaded), ("called", called)):
                for (receiver, attribute), times in found.items():
                    getattr(self, kind)[attribute] += times
                    receivers = self._receivers.setdefault((kind, attribute), Counter())
                    receivers[f"self of {name}" if receiver == "self" else receiver] += times

    def of_class(self, owner: str, attribute: str, kind: str = "loaded") -> int:
        """How often the attribute is used in this way, as far as the receiver may be an object of the class."""
        receivers = self._receivers.get((kind, attribute), Counter())
        return sum(times for receiver, times in receivers.items() if self._may_be(receiver, owner))

    def _may_be(self, receiver: str, owner: str) -> bool:
        if receiver.startswith("self of "):
            return related(self.program, owner, receiver.removeprefix("self of "))
        if receiver == owner:
            return True
        if receiver.startswith("a "):
            kind = receiver.removeprefix("a ")
            node = self.program.definitions.get(kind)
            is_protocol = isinstance(node, cst.ClassDef) and "Protocol" in [code(base.value) for base in node.bases]
            return is_protocol or related(self.program, owner, kind)
        return OF_CLASS[receiver] == owner if receiver in OF_CLASS else owner not in OF_CLASS.values()


@functools.cache
def _uses(text: str) -> tuple[Counter[str], Counter[tuple[str, str]], Counter[tuple[str, str]], set[str]]:
    stored: Counter[str] = Counter()
    loaded: Counter[tuple[str, str]] = Counter()
    called: Counter[tuple[str, str]] = Counter()
    of_config = set()
    tree = ast.parse(text)
    kinds, updates = _kinds(tree), _updates(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in updates:
            receiver = kinds.get(ast.unparse(node.value), ast.unparse(node.value))
            if isinstance(node.ctx, ast.Load):
                loaded[receiver, node.attr] += 1
            else:
                stored[node.attr] += 1
            if ast.unparse(node.value).rpartition(".")[2] in ("config", "spec"):
                of_config.add(node.attr)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            owner = ast.unparse(node.target.value)
            loaded[kinds.get(owner, owner), node.target.attr] += 1
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and node.value is None:
            stored[node.target.attr] -= 1  # a declaration
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            called[kinds.get(owner, owner), node.func.attr] += 1
    return stored, loaded, called, of_config


def _updates(tree: ast.AST) -> set[ast.AST]:
    """The attributes that are read only to compute their own new value: `self.x, y = self.x * 2, 0`."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            both = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                both = list(zip(target.elts, value.elts, strict=False))
            for one, other in both:
                parts = list(ast.walk(other))
                if isinstance(one, ast.Attribute) and all(isinstance(part, FORMULA) for part in parts):
                    found |= {part for part in parts if ast.unparse(part) == ast.unparse(one)}
    return found


def _kinds(tree: ast.AST) -> dict[str, str]:
    """Names that always have the same class, by annotation or by assigned value: "a" and the class."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            found.setdefault(node.arg, set()).add(ast.unparse(node.annotation).strip("'"))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                value = node.value.func if isinstance(node.value, ast.Call) else node.value
                found.setdefault(ast.unparse(target), set()).add(ast.unparse(value))
        elif isinstance(node, ast.For | ast.comprehension | ast.NamedExpr | ast.AugAssign | ast.AnnAssign):
            found.setdefault(ast.unparse(node.target), set()).add("?")
    single = {name: kinds.pop() for name, kinds in found.items() if len(kinds) == 1}
    return {
        name: f"a {kind}"
        for name, kind in single.items()
        if kind.isidentifier() and kind[:1].isupper() and kind != "Any"
    }


class _Constant(cst.CSTTransformer):
    def __init__(self, constants: dict[str, cst.BaseExpression]) -> None:
        self.constants = constants
        self._targets: set[cst.CSTNode] = set()

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        target = node.target
        self._targets.update(
            [element.value for element in target.elements] if isinstance(target, cst.Tuple) else [target]
        )

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._targets.add(node.target)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if original_node not in self._targets and code(updated_node.value) == "self":
            return self.constants.get(updated_node.attr.value, updated_node)
        return updated_node


class _Unread(cst.CSTTransformer):
    """Removes assignments to attributes that nobody reads, if the value is a name or a constant."""

    def __init__(self, unread: list[str]) -> None:
        self.unread = unread

    def goes(self, target: cst.BaseExpression, value: Any) -> bool:
        if (
            not isinstance(target, cst.Attribute)
            or code(target.value) != "self"
            or target.attr.value not in self.unread
        ):
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
