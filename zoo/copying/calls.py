"""Who calls what in a program, with which arguments, and what a call evaluates to."""

import functools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import libcst as cst

from zoo.copying.expressions import Substitute, count, is_simple, pairs, returned
from zoo.copying.program import Program
from zoo.copying.source import code

NOT_OURS = ("np", "torch", "nn", "F", "math", "config", "self.config", "run.config")  # these have no method of ours
Key = tuple[str, str]  # class and method, or "" and function


class Site(NamedTuple):
    """A call, and the names that stand for tuples around it."""

    call: cst.Call
    tuples: dict[str, cst.Tuple]


def functions(program: Program) -> Iterator[tuple[Key, cst.FunctionDef]]:
    """Every function and method."""
    for name, node in program.definitions.items():
        if isinstance(node, cst.FunctionDef):
            yield ("", name), node
        elif isinstance(node, cst.ClassDef):
            for member in node.body.body:
                if isinstance(member, cst.FunctionDef):
                    yield (name, member.name.value), member


def bases(program: Program, name: str) -> list[str]:
    """A class, followed by the program's classes from which it inherits."""
    node = program.definitions.get(name)
    if not isinstance(node, cst.ClassDef):
        return []
    return [name, *(ancestor for base in node.bases for ancestor in bases(program, code(base.value)))]


def related(program: Program, one: str, other: str) -> bool:
    """Whether one class inherits from the other, in either direction, or both inherit from a third."""
    return bool({one, *bases(program, one)} & {other, *bases(program, other)})


class _Sites(cst.CSTVisitor):
    """Collects the calls of every function, and the functions that are mentioned without being called."""

    def __init__(self, program: Program, inside: str, methods: dict[str, list[Key]]) -> None:
        self.program, self.inside, self.methods = program, inside, methods
        self.sites: dict[Key, list[Site]] = defaultdict(list)
        self.mentioned: set[Key] = set()
        self.tuples: list[dict[str, cst.Tuple]] = [{}]
        self.called: set[cst.CSTNode] = set()
        self.types = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.tuples.append({})

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.tuples.pop()

    def visit_Assign(self, node: cst.Assign) -> None:
        for target, value in pairs(node):
            if isinstance(target, cst.Name) and isinstance(value, cst.Tuple):
                self.tuples[-1][target.value] = value

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self.types += 1

    def leave_Annotation(self, original_node: cst.Annotation) -> None:
        self.types -= 1

    def visit_ClassDef_bases(self, node: cst.ClassDef) -> None:
        self.types += 1

    def leave_ClassDef_bases(self, node: cst.ClassDef) -> None:
        self.types -= 1

    def visit_Call(self, node: cst.Call) -> None:
        site = Site(node, self.tuples[-1])
        self.called.add(node.func)
        if code(node.func) == "isinstance":
            self.called.update(_names(node.args[1].value))
        if isinstance(node.func, cst.Name):
            for key in self.of_name(node.func.value):
                self.sites[key].append(site)
        elif isinstance(node.func, cst.Attribute):
            name = node.func.attr.value
            if code(node.func.value) == "super()":
                for ancestor in bases(self.program, self.inside)[1:]:
                    if (ancestor, name) in self.methods[name]:
                        self.sites[ancestor, name].append(site)
                        break
            elif name != "__init__":
                for key in self.of_method(node.func):
                    self.sites[key].append(site)

    def of_name(self, name: str) -> list[Key]:
        """The function of this name, or the constructor of this class."""
        if isinstance(self.program.definitions.get(name), cst.FunctionDef):
            return [("", name)]
        for ancestor in bases(self.program, name):
            if (ancestor, "__init__") in self.methods.get("__init__", []):
                return [(ancestor, "__init__")]
        return []

    def of_method(self, node: cst.Attribute) -> list[Key]:
        """The methods that an attribute may be: for `self` its own class's, for `run` a run's, else any but a run's."""
        keys, receiver = self.methods.get(node.attr.value, []), code(node.value)
        if receiver in NOT_OURS:
            return []
        if receiver == "self":
            return [key for key in keys if related(self.program, key[0], self.inside)]
        return [key for key in keys if (key[0] == "Run") == (receiver == "run")]

    def visit_Name(self, node: cst.Name) -> None:
        if node not in self.called and not self.types:
            self.mentioned.update(self.of_name(node.value))

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if node not in self.called:
            self.mentioned.update(self.of_method(node))
        node.value.visit(self)
        return False  # the attribute is not a name

    def visit_Arg_keyword(self, node: cst.Arg) -> None:
        if node.keyword:
            self.called.add(node.keyword)

    def visit_Param(self, node: cst.Param) -> None:
        self.called.add(node.name)


def _names(node: cst.BaseExpression) -> list[cst.CSTNode]:
    if isinstance(node, cst.BinaryOperation):
        return [*_names(node.left), *_names(node.right)]
    if isinstance(node, cst.Tuple):
        return [name for element in node.elements for name in _names(element.value)]
    return [node]


def call_sites(program: Program) -> tuple[dict[Key, list[Site]], set[Key]]:
    """The calls of every function and method, and those that are mentioned without being called."""
    methods: dict[str, list[Key]] = defaultdict(list)
    for (owner, name), _ in functions(program):
        if owner:
            methods[name].append((owner, name))
    sites: dict[Key, list[Site]] = defaultdict(list)
    mentioned: set[Key] = set()
    for name, node in program.definitions.items():
        visitor = _Sites(program, name, methods)
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            visitor.called.add(node.name)
            for member in getattr(node.body, "body", []):
                if isinstance(member, cst.FunctionDef):
                    visitor.called.add(member.name)
        node.visit(visitor)
        for key, found in visitor.sites.items():
            sites[key] += found
        mentioned |= visitor.mentioned
    return sites, mentioned


def passed(site: Site, position: int, name: str) -> "cst.BaseExpression | str | None":
    """The argument for a parameter; None if there is none; "unknown" after a starred argument of unknown length."""
    index = 0
    for argument in site.call.args:
        if argument.star == "**":
            return "unknown"
        if argument.star == "*":
            items = site.tuples.get(code(argument.value))
            if items is None:
                return "unknown"
            if index <= position < index + len(items.elements):
                return items.elements[position - index].value
            index += len(items.elements)
        elif argument.keyword is not None:
            if argument.keyword.value == name:
                return argument.value
        else:
            if index == position:
                return argument.value
            index += 1
    return None


def argument(call: cst.Call, position: int, parameter: cst.Param) -> cst.BaseExpression | None:
    """A parameter's value in a call: the argument or the default; None if it cannot be determined."""
    value = passed(Site(call, {}), position, parameter.name.value)
    value = parameter.default if value is None else value
    return None if isinstance(value, str) else value


def applied(function: cst.FunctionDef, call: cst.Call, owner: Any = None) -> Any:
    """The expression that a call of a function evaluates to; None if it cannot be written as one."""
    expression = returned(function)
    if expression is None:
        return None
    parameters = list(function.params.params)
    values: dict[str, Any] = {}
    if owner is not None:
        values["self"] = owner
        parameters = parameters[1:]
    uses = count(expression)
    for i, parameter in enumerate(parameters):
        value = argument(call, i, parameter)
        if value is None:
            return None
        if uses[parameter.name.value] > 1 and not is_simple(value):
            return None
        values[parameter.name.value] = value
    wrapped = cst.Expr(expression).visit(Substitute(values))
    return wrapped.value  # type: ignore[union-attr]


@functools.lru_cache(maxsize=4096)
def assigned_attributes(node: cst.CSTNode) -> dict[str, list[Any]]:
    """The values that a class or a method assigns to attributes; None for those that are not a single value."""
    found: dict[str, list[Any]] = {}

    class Visitor(cst.CSTVisitor):
        def visit_Assign(self, node: cst.Assign) -> None:
            for target, value in pairs(node):
                self.note(target, value)

        def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
            if node.value is not None:
                self.note(node.target, node.value)

        def visit_AugAssign(self, node: cst.AugAssign) -> None:
            if isinstance(node.target, cst.Attribute):
                found.setdefault(node.target.attr.value, []).append(None)  # whatever object it belongs to

        def note(self, target: cst.BaseExpression, value: Any) -> None:
            if isinstance(target, cst.Attribute) and code(target.value) == "self":
                found.setdefault(target.attr.value, []).append(value)

    node.visit(Visitor())
    return found


def class_constants(member: cst.CSTNode) -> dict[str, Any]:
    """The name and value that a line of a class assigns, if it is an assignment."""
    line = member.body[0] if isinstance(member, cst.SimpleStatementLine) else None
    return {code(line.targets[0].target): line.value} if isinstance(line, cst.Assign) else {}
