"""Replaces calls by what is now a single expression: factories, and methods of stateless objects."""

from typing import Any

import libcst as cst

from zoo.copying.bodies import called_once, put_bodies
from zoo.copying.calls import Key, applied, assigned_attributes, bases, class_constants, functions, related
from zoo.copying.expressions import Put, is_constant, is_simple, pairs, returned, statements
from zoo.copying.holders import holders
from zoo.copying.program import Program
from zoo.copying.source import code

LONGEST = 50  # characters in an expression that replaces a call of another object's method
LONG = 100  # characters in one that replaces a call of an object's own method
NO_OPS = ("begin", "observe", "use")  # methods that are often empty


def inline(program: Program) -> None:
    """Does every kind of this once."""
    once = called_once(program)
    program.transform(
        lambda: _Factories(program, once), [f"{name}(" for owner, name in once if not owner] + list(program.decided)
    )
    stateless, kinds = _kinds(program)
    methods = _Methods(program, stateless, kinds, once)
    program.transform(
        lambda: methods,
        [f".{name}" for name in kinds] + [f".{name}(" for owner, name in once if owner],
    )
    nothing = _Nothing(program)
    program.transform(lambda: nothing, nothing.words)
    put_bodies(program)


# --- Factories --------------------------------------------------------------------------------------------------------


def _unstarred(call: cst.Call) -> cst.Call:
    """`f(*(a, b))` as `f(a, b)`."""
    arguments: list[cst.Arg] = []
    for one in call.args:
        if one.star == "*" and isinstance(one.value, cst.Tuple):
            arguments += [cst.Arg(element.value) for element in one.value.elements]
        else:
            arguments.append(one)
    return call if len(arguments) == len(call.args) else call.with_changes(args=arguments)


class _Factories(Put):
    """Calls of functions that choose among classes, now decided; and of one-expression functions called only once."""

    def __init__(self, program: Program, once: set[Key]) -> None:
        self.program, self.once = program, once

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:
        updated_node = _unstarred(updated_node)
        name = code(updated_node.func)
        function = self.program.definitions.get(name)
        if not isinstance(function, cst.FunctionDef):
            return updated_node
        chooses = name in self.program.decided and isinstance(returned(function), cst.Call | cst.Tuple)
        if not chooses and ("", name) not in self.once:
            return updated_node
        result = applied(function, updated_node)
        return updated_node if result is None else result


# --- Stateless objects ------------------------------------------------------------------------------------------------


def _kinds(program: Program) -> tuple[set[str], dict[str, str]]:
    """The stateless classes, and the class of each attribute that always has the same one."""
    found: dict[str, set[str]] = {}

    class Visitor(cst.CSTVisitor):
        def visit_Assign(self, node: cst.Assign) -> None:
            for target, value in pairs(node):
                if isinstance(target, cst.Attribute):
                    kind = code(value.func) if isinstance(value, cst.Call) else "?"
                    found.setdefault(target.attr.value, set()).add(kind)

        def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
            if isinstance(node.target, cst.Attribute):
                found.setdefault(node.target.attr.value, set()).add("?")

    for node in program.definitions.values():
        node.visit(Visitor())
    kinds = {
        name: kind
        for name, (kind, *others) in ((name, tuple(values)) for name, values in found.items())
        if not others and isinstance(program.definitions.get(kind), cst.ClassDef)
    }
    stateless = set()
    for kind in set(kinds.values()):
        members = [member for ancestor in bases(program, kind) for member in program.definitions[ancestor].body.body]
        if not any(isinstance(member, cst.FunctionDef) and member.name.value == "__init__" for member in members):
            stateless.add(kind)
    return stateless, kinds


def _member(program: Program, kind: str, name: str) -> Any:
    """A method, or the value of a class constant, or of an attribute that the constructor makes constant."""
    for ancestor in bases(program, kind):
        node = program.definitions[ancestor]
        if values := assigned_attributes(node).get(name):  # these hide the class constant
            return values[0] if len(values) == 1 and is_constant(values[0]) else None
        for member in node.body.body:
            if isinstance(member, cst.FunctionDef) and member.name.value == name:
                return member
            if name in class_constants(member):
                return class_constants(member)[name]
    return None


class _Methods(Put):
    """Replaces calls and constants of attributes whose class is known."""

    def __init__(self, program: Program, stateless: set[str], kinds: dict[str, str], once: set[Key]) -> None:
        self.program, self.stateless, self.kinds, self.once = program, stateless, kinds, once
        self.holders = holders(program, kinds)
        self.targets: set[Any] = set()
        self.inside = ""

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.inside = node.name.value

    def kind(self, node: Any) -> str | None:
        """The class of the object whose attribute `node` is: for `x.head.loss`, that of `head`."""
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Attribute):
            return self.kinds.get(node.value.attr.value)
        return None

    def is_a(self, name: str, owner: str) -> bool:
        """Whether an expression is an object of a class: `self`, an attribute, or a local name in `train`."""
        if name == "self":
            return related(self.program, owner, self.inside)
        if name.startswith("self."):
            return related(self.program, owner, self.kinds.get(name.rpartition(".")[2], owner))
        usual = (name, owner) in (("run", "Run"), ("envs", "EnvStepper"))
        return usual or f"\n    {name} = {owner}(" in self.program.text("train")

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self.targets.add(node.target)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:
        updated_node = _unstarred(updated_node)
        if not isinstance(updated_node.func, cst.Attribute):
            return updated_node
        if is_simple(updated_node.func.value) and updated_node.func.attr.value in self.holders:
            return applied(self.holders[updated_node.func.attr.value], updated_node, updated_node.func.value)
        kind, name, receiver = self.kind(updated_node.func), updated_node.func.attr.value, code(updated_node.func.value)
        owner = next((owner for owner, other in self.once if owner and other == name), None)
        if owner is not None and self.is_a(receiver, owner):
            method = _member(self.program, owner, name)
            if method.decorators or name.startswith("__"):
                return updated_node
        elif kind in self.stateless:
            method = _member(self.program, kind or "", name)
        else:
            return updated_node
        if not isinstance(method, cst.FunctionDef):
            return updated_node
        result = applied(method, updated_node, updated_node.func.value)
        of_another = kind not in self.stateless and receiver.startswith("self.")
        if result is None or len(code(result)) > (LONGEST if of_another else LONG):
            return updated_node
        return result

    def leave_FormattedStringExpression(
        self, original_node: cst.FormattedStringExpression, updated_node: cst.FormattedStringExpression
    ) -> cst.FormattedStringExpression:
        """Within a string, only replaces what fits on its line."""
        return original_node if {"\n", '"'} & set(code(updated_node)) else updated_node

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:
        kind = self.kind(updated_node)
        if kind is not None and original_node not in self.targets:
            value = _member(self.program, kind, updated_node.attr.value)
            if value is not None and is_constant(value):
                return value
        return super().leave_Attribute(original_node, updated_node)

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> Any:
        """A call of an empty method."""
        call = updated_node.value
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
            kind = self.kind(call.func)
            method = _member(self.program, kind, call.func.attr.value) if kind in self.stateless else None
            if isinstance(method, cst.FunctionDef) and not statements(method):
                return cst.RemoveFromParent()
        return updated_node


class _Nothing(cst.CSTTransformer):
    """Removes calls of empty functions, and `**{}`."""

    def __init__(self, program: Program) -> None:
        self.empty = set()
        filled = set()
        for (owner, name), function in functions(program):
            if not owner and not statements(function):
                self.empty.add(name)
            elif owner and statements(function):
                filled.add(name)
        self.idle = set(NO_OPS) - filled
        self.words = ["**", "|= {}", *(f"{name}(" for name in self.empty), *(f".{name}(" for name in self.idle)]

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> Any:
        call = updated_node.value
        if isinstance(call, cst.Call):
            if isinstance(call.func, cst.Name) and call.func.value in self.empty:
                return cst.RemoveFromParent()
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in self.idle:
                return cst.RemoveFromParent()
        return updated_node

    def leave_Dict(self, original_node: cst.Dict, updated_node: cst.Dict) -> cst.Dict:
        kept = [
            element
            for element in updated_node.elements
            if not (isinstance(element, cst.StarredDictElement) and code(element.value).strip("() ") == "{}")
        ]
        return updated_node.with_changes(elements=kept)

    def leave_AugAssign(self, original_node: cst.AugAssign, updated_node: cst.AugAssign) -> Any:
        """`metrics |= {}`."""
        if isinstance(updated_node.operator, cst.BitOrAssign) and code(updated_node.value) == "{}":
            return cst.RemoveFromParent()
        return updated_node
