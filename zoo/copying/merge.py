"""Merges a base class into the only class that inherits from it."""

import re
from typing import Any

import libcst as cst

from zoo.copying.calls import applied, argument, assigned_attributes, class_constants
from zoo.copying.expressions import Put, Substitute, assigned, count, is_simple, returned, statements
from zoo.copying.program import Program
from zoo.copying.source import code, global_names


def merge(program: Program) -> None:
    """Does this for every base class that is mentioned nowhere else."""
    bare_lists(program)
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


def bare_lists(program: Program) -> None:
    """Replaces list subclasses that add nothing but a constructor by lists."""
    for name, node in list(program.definitions.items()):
        if isinstance(node, cst.ClassDef) and node.bases and code(node.bases[0].value).startswith("list["):
            constructor = _methods(node).get("__init__")
            held = re.findall(r"self\.(\w+)", code(constructor)) if constructor else []
            used = [re.search(rf"\b{made}\.({'|'.join(held)})\b", program.source()) for made in _made(program, name)]
            if set(_methods(node)) <= {"__init__"} and not any(used):
                base = node.bases[0].value
                program.transform(lambda name=name, base=base: _Calls(name, base), [f"{name}("])  # type: ignore[misc]


def _made(program: Program, name: str) -> list[str]:
    """The names to which objects of a class are assigned."""
    return re.findall(rf"([\w.]+) = {name}\(", program.source())


class _Calls(cst.CSTTransformer):
    """Replaces a constructor by another one without arguments."""

    def __init__(self, name: str, other: cst.BaseExpression) -> None:
        self.name, self.other = name, other

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        return (
            updated_node.with_changes(func=self.other, args=[])
            if code(updated_node.func) == self.name
            else updated_node
        )


def _methods(node: cst.ClassDef) -> dict[str, cst.FunctionDef]:
    return {member.name.value: member for member in node.body.body if isinstance(member, cst.FunctionDef)}


def _joined(base: cst.ClassDef, heir: cst.ClassDef) -> cst.ClassDef | None:
    """The two as one class; None if that would not be simple."""
    name = base.name.value
    if [code(argument.value) for argument in heir.bases] != [name] or count(heir)[name] != 1:
        return None
    ours, theirs = _methods(heir), _methods(base)
    overridden = [method for method in ours if method in theirs and method != "__init__"]
    for method in overridden:
        if f"super().{method}(" in code(ours[method]):
            if returned(theirs[method]) is None:
                return None
            heir = heir.with_changes(body=heir.body.visit(_Super(method, theirs[method])))
    ours = _methods(heir)
    if base.decorators or heir.decorators or "super()." in "".join(map(code, (ours[name] for name in overridden))):
        return None
    constructor = theirs.get("__init__")
    if constructor is not None and "__init__" in ours:
        constructor = _constructor(ours["__init__"], constructor)
        if constructor is None:
            return None
    hidden = {name for member in heir.body.body for name in class_constants(member)}
    if "__init__" in ours:
        hidden |= assigned_attributes(ours["__init__"]).keys()
    inherited = [
        member
        for member in base.body.body
        if not (isinstance(member, cst.FunctionDef) and (member.name.value in ours or member.name.value == "__init__"))
        and not hidden & class_constants(member).keys()
        and not (member is base.body.body[0] and base.get_docstring() is not None)
    ]
    docstring, *members = heir.body.body if heir.get_docstring() is not None else (None, *heir.body.body)
    members = [
        member for member in members if not (isinstance(member, cst.FunctionDef) and member.name.value == "__init__")
    ]
    own = ours.get("__init__") if constructor is None else constructor
    body = [part for part in (docstring, own, *inherited, *members) if part is not None]
    return heir.with_changes(bases=base.bases, body=heir.body.with_changes(body=body))


class _Super(Put):
    """Replaces a call of a base class's method by the expression that it returns."""

    def __init__(self, name: str, function: cst.FunctionDef) -> None:
        self.name, self.function = name, function

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:
        if code(updated_node.func) != f"super().{self.name}":
            return updated_node
        return applied(self.function, updated_node, cst.Name("self")) or updated_node


def _constructor(ours: cst.FunctionDef, theirs: cst.FunctionDef) -> cst.FunctionDef | None:
    """The subclass's constructor with the base's in place of `super().__init__(...)`."""
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
