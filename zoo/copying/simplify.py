"""Removes what is superfluous in a program once its settings are determined."""

import ast
import re
import textwrap
from functools import partial
from typing import Any

import libcst as cst

from zoo.copying.attributes import Uses, constant_attributes
from zoo.copying.expressions import Substitute
from zoo.copying.inline import inline
from zoo.copying.merge import merge
from zoo.copying.names import local_names
from zoo.copying.parameters import constant_parameters
from zoo.copying.program import Program
from zoo.copying.source import code, global_names, is_field

SHORT = 30  # characters in a formula
BATCHES = ("Batch", "NStepBatch", "GoalBatch", "SubgoalBatch", "OptionBatch")
RESUMING = ("state_dict", "load_state_dict", "get_extra_state", "set_extra_state", "rows", "put", "cut", "check_run")


def simplify(program: Program) -> None:
    """Repeats every step until nothing changes."""
    while True:
        text = program.source()
        prune(program)
        constant_parameters(program)
        constant_attributes(program)
        inline(program)
        local_names(program)
        merge(program)
        short_constants(program)
        program.fold()
        prune(program)
        if program.source() == text:
            return


def prune(program: Program) -> None:
    """Removes methods, settings, definitions and imports that nothing reaches."""
    _nested(program)
    uses = Uses(program)
    _members(program, uses)
    _without_index(program, uses)
    reached, pending = set(), [program.agent, "train", "main", "Config"]
    while pending:
        name = pending.pop()
        if name in reached or name not in program.definitions:
            continue
        reached.add(name)
        pending += global_names(program.definitions[name])
    program.definitions = {name: node for name, node in program.definitions.items() if name in reached}
    named = {name for node in program.definitions.values() for name in global_names(node)}
    program.imports = {name: line for name, line in program.imports.items() if name in named}


def short_constants(program: Program) -> None:
    """Inlines short formulas that are mentioned once, and the type of metrics."""
    for name, node in list(program.definitions.items()):
        value = program.constant(name)
        if value is not None and (name == "Metrics" or ("math." in code(value) and len(code(value)) <= SHORT)):
            others = {other: node for other, node in program.definitions.items() if other != name}
            users = [other for other, node in others.items() if name in global_names(node)]
            if name == "Metrics" or (len(users) == 1 and len(re.findall(rf"\b{name}\b", program.source())) == 2):
                for user in users:
                    program.definitions[user] = program.definitions[user].visit(Substitute({name: value}))


def _nested(program: Program) -> None:
    """Removes nested functions that the outer function does not mention."""
    for name, node in list(program.definitions.items()):
        if isinstance(node, cst.FunctionDef):
            named = {one.id for one in ast.walk(ast.parse(textwrap.dedent(code(node)))) if isinstance(one, ast.Name)}
            body = [one for one in node.body.body if not isinstance(one, cst.FunctionDef) or one.name.value in named]
            if len(body) < len(node.body.body):
                program.definitions[name] = node.with_changes(body=node.body.with_changes(body=body))


def _members(program: Program, uses: Uses) -> None:
    """Removes methods that nobody calls, and settings that nobody reads."""
    for name, node in list(program.definitions.items()):
        if isinstance(node, cst.ClassDef):
            kept = [member for member in node.body.body if _is_needed(name, member, uses)]
            members: list[Any] = [member for member in node.body.body if member not in kept]
            gone = [code(member.body[0].target) for member in members if is_field(member)]
            if len(kept) < len(node.body.body):
                node = node.with_changes(body=node.body.with_changes(body=kept))
                program.definitions[name] = node.visit(_WithoutKeywords(gone)) if name == "Spec" else node


class _WithoutKeywords(cst.CSTTransformer):
    """Removes keyword arguments from calls."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        kept = [
            argument
            for argument in updated_node.args
            if not (argument.keyword and argument.keyword.value in self.names)
        ]
        return updated_node.with_changes(args=kept)


def _without_index(program: Program, uses: Uses) -> None:
    """Removes the indices from batches if nobody reads them."""
    for name in BATCHES:
        batch = program.definitions.get(name)
        if batch is not None and not uses.loaded["index"] and "index: " in code(batch):
            fields = [line for line in batch.body.body if not code(line).strip().startswith("index: ")]
            program.definitions[name] = batch.with_changes(body=batch.body.with_changes(body=fields))
            program.transform(partial(_WithoutLast, name, "index"), [f"{name}("])


class _WithoutLast(cst.CSTTransformer):
    """Removes the last argument from calls, if it is a name."""

    def __init__(self, function: str, name: str) -> None:
        self.function, self.name = function, name

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        last = updated_node.args[-1] if updated_node.args else None
        if code(updated_node.func) != self.function or last is None or code(last.value) != self.name:
            return updated_node
        *kept, last = updated_node.args[:-1]
        return updated_node.with_changes(args=[*kept, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _is_needed(owner: str, member: Any, uses: Uses) -> bool:
    if isinstance(member, cst.FunctionDef):
        name = member.name.value
        if name in RESUMING:
            return False
        if (name.startswith("__") and name.endswith("__")) or name == "forward":
            return True
        # if another class has an attribute of that name, only calls count
        kind = "called" if uses.stored[name] > 0 and not member.decorators else "loaded"
        itself = sum(
            isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{name}"
            for node in ast.walk(ast.parse(textwrap.dedent(code(member))))
        )
        return uses.of_class(owner, name, kind) > itself
    if not is_field(member) or not member.body[0].value:
        return True
    name = code(member.body[0].target)
    if owner in ("Config", "Spec"):
        return name in uses.of_config
    return not name.startswith("_") or name in uses.loaded or name in uses.stored
