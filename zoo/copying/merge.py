"""Joins a base class with the only class that inherits from it."""

from typing import Any

import libcst as cst

from zoo.copying.calls import argument
from zoo.copying.expressions import Substitute, assigned, is_simple, statements
from zoo.copying.program import Program
from zoo.copying.source import code, global_names


def merge(program: Program) -> None:
    """Does so for every base class that is mentioned nowhere else."""
    for name, node in list(program.definitions.items()):
        if isinstance(node, cst.ClassDef):
            users = [
                other
                for other in program.definitions
                if other != name and name in global_names(program.definitions[other])
            ]
            if len(users) == 1 and isinstance(heir := program.definitions[users[0]], cst.ClassDef):
                joined = _joined(node, heir)
                if joined is not None:
                    program.definitions[users[0]] = joined
                    del program.definitions[name]


def _methods(node: cst.ClassDef) -> dict[str, cst.FunctionDef]:
    return {member.name.value: member for member in node.body.body if isinstance(member, cst.FunctionDef)}


def _joined(base: cst.ClassDef, heir: cst.ClassDef) -> cst.ClassDef | None:
    """The two as one class; None where that would not be simple."""
    name = base.name.value
    text = code(heir)
    if [code(argument.value) for argument in heir.bases] != [name] or text.count(name) - heir.name.value.count(
        name
    ) != 1:
        return None
    ours, theirs = _methods(heir), _methods(base)
    overridden = [method for method in ours if method in theirs and method != "__init__"]
    if any(f"super().{method}(" in code(ours[method]) for method in overridden) or base.decorators or heir.decorators:
        return None
    constructor = theirs.get("__init__")
    if constructor is not None and "__init__" in ours:
        constructor = _constructor(ours["__init__"], constructor)
        if constructor is None:
            return None
    inherited = [
        member
        for member in base.body.body
        if not (isinstance(member, cst.FunctionDef) and (member.name.value in ours or member.name.value == "__init__"))
        and not (member is base.body.body[0] and base.get_docstring() is not None)
    ]
    docstring, *members = heir.body.body if heir.get_docstring() is not None else (None, *heir.body.body)
    members = [
        member for member in members if not (isinstance(member, cst.FunctionDef) and member.name.value == "__init__")
    ]
    own = ours.get("__init__") if constructor is None else constructor
    body = [part for part in (docstring, own, *inherited, *members) if part is not None]
    return heir.with_changes(bases=base.bases, body=heir.body.with_changes(body=body))


def _constructor(ours: cst.FunctionDef, theirs: cst.FunctionDef) -> cst.FunctionDef | None:
    """The heir's constructor with the base's in the place of `super().__init__(...)`."""
    lines: list[Any] = list(ours.body.body)
    i = next((i for i, line in enumerate(lines) if code(line).strip().startswith("super().__init__(")), None)
    call: Any = lines[i].body[0].value if i is not None else None
    if i is None or not isinstance(call, cst.Call):
        return None
    their_locals = set(assigned(theirs))
    parameters = [parameter.name.value for parameter in theirs.params.params[1:]]
    our_names = {parameter.name.value for parameter in ours.params.params} | set(assigned(ours))
    if (their_locals - set(parameters)) & our_names:
        return None
    before: list[Any] = []
    values: dict[str, Any] = {}
    for position, parameter in enumerate(theirs.params.params[1:]):
        name = parameter.name.value
        value = argument(call, position, parameter)
        if value is None:
            return None
        if code(value) == name:
            if name in their_locals and any(name in code(other) for other in lines[i + 1 :]):
                return None
        elif name in their_locals or not is_simple(value):
            if name in our_names:
                return None
            before.append(cst.parse_statement(f"{name} = {code(value)}"))
        else:
            values[name] = value
    body = [line.visit(Substitute(values)) for line in statements(theirs)]
    return ours.with_changes(body=ours.body.with_changes(body=[*lines[:i], *before, *body, *lines[i + 1 :]]))
