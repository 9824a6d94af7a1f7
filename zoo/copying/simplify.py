"""Takes out of a program what is left over once its settings are decided."""

import textwrap
from typing import Any

import libcst as cst

from zoo.copying.attributes import Uses, constant_attributes, uses_of
from zoo.copying.inline import inline
from zoo.copying.merge import merge
from zoo.copying.names import local_names
from zoo.copying.parameters import constant_parameters
from zoo.copying.program import Program
from zoo.copying.source import code, global_names, is_field

RESUMING = ("state_dict", "load_state_dict", "get_extra_state", "set_extra_state", "rows", "put", "cut", "check_run")


def simplify(program: Program) -> None:
    """Repeats every step until nothing changes any more."""
    while True:
        text = program.source()
        prune(program)
        constant_parameters(program)
        constant_attributes(program)
        inline(program)
        local_names(program)
        merge(program)
        program.fold()
        prune(program)
        if program.source() == text:
            return


def prune(program: Program) -> None:
    """Takes out methods, settings, definitions and imports that nothing reaches."""
    uses = uses_of(program)
    _members(program, uses)
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


def _members(program: Program, uses: Uses) -> None:
    """Takes out methods that nobody calls, and settings that nobody reads."""
    for name, node in list(program.definitions.items()):
        if isinstance(node, cst.ClassDef):
            kept = [member for member in node.body.body if _is_needed(name, member, uses)]
            members: list[Any] = [member for member in node.body.body if member not in kept]
            gone = [code(member.body[0].target) for member in members if is_field(member)]
            if len(kept) < len(node.body.body):
                node = node.with_changes(body=node.body.with_changes(body=kept))
                program.definitions[name] = node.visit(_WithoutKeywords(gone)) if name == "Spec" else node


class _WithoutKeywords(cst.CSTTransformer):
    """Takes keyword arguments out of calls."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        kept = [
            argument
            for argument in updated_node.args
            if not (argument.keyword and argument.keyword.value in self.names)
        ]
        return updated_node.with_changes(args=kept)


def _is_needed(owner: str, member: Any, uses: Uses) -> bool:
    if isinstance(member, cst.FunctionDef):
        name = member.name.value
        if name in RESUMING:
            return False
        if (name.startswith("__") and name.endswith("__")) or name == "forward":
            return True
        own = Uses(textwrap.dedent(code(member)))
        # where another class has an attribute of that name, only calls count
        kind = "called" if uses.stored[name] > 0 and not member.decorators else "loaded"
        return bool(getattr(uses, kind)[name] - getattr(own, kind)[name] > 0)
    if not is_field(member) or not member.body[0].value:
        return True
    name = code(member.body[0].target)
    if owner in ("Config", "Spec"):
        return name in uses.of_config
    return not name.startswith("_") or name in uses.loaded or name in uses.stored
