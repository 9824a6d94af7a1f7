"""Puts what is one expression by now in the place of its calls: factories, and methods of objects without a state."""

from collections import Counter
from typing import Any

import libcst as cst

from zoo.copying.calls import Key, Site, bases, call_sites, functions, is_constant, passed
from zoo.copying.program import PLAIN_RUN, Program
from zoo.copying.source import code

LONGEST = 50  # characters of an expression in the place of a call of another object's method
NO_OPS = ("begin", "observe")  # methods of an agent that most agents leave empty
OPERATIONS = (cst.BinaryOperation, cst.UnaryOperation, cst.BooleanOperation, cst.Comparison, cst.IfExp, cst.Lambda)


def statements(node: cst.FunctionDef) -> list[Any]:
    """A function's body without its docstring, and without `pass`."""
    body = list(node.body.body)
    if node.get_docstring(clean=False) is not None:
        body = body[1:]
    return [statement for statement in body if code(statement).strip() not in ("pass", "return")]


def returned(node: cst.FunctionDef) -> Any:
    """The expression that a function comes to, if it is a single `return`."""
    body = statements(node)
    if len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine) and isinstance(body[0].body[0], cst.Return):
        return body[0].body[0].value
    return None


class Put(cst.CSTTransformer):
    """Expressions in the place of others, in parentheses where they need some."""

    def fits(self, original: Any, changed: Any) -> Any:
        if not isinstance(original, OPERATIONS) and isinstance(changed, OPERATIONS) and not changed.lpar:
            return changed.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return changed

    def leave_BinaryOperation(self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation) -> Any:  # noqa: N802
        return updated_node.with_changes(
            left=self.fits(original_node.left, updated_node.left), right=self.fits(original_node.right, updated_node.right)
        )

    def leave_UnaryOperation(self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation) -> Any:  # noqa: N802
        return updated_node.with_changes(expression=self.fits(original_node.expression, updated_node.expression))

    def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> Any:  # noqa: N802
        return updated_node.with_changes(left=self.fits(original_node.left, updated_node.left))

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:  # noqa: N802
        value = self.fits(original_node.value, updated_node.value)
        return updated_node.with_changes(value=value, attr=original_node.attr)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> Any:  # noqa: N802
        return updated_node.with_changes(value=self.fits(original_node.value, updated_node.value))

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:  # noqa: N802
        return updated_node.with_changes(keyword=original_node.keyword)


class Substitute(Put):
    """Names by expressions."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:  # noqa: N802
        value: cst.BaseExpression = self.values.get(updated_node.value, updated_node)
        return value

    def leave_FormattedStringExpression(  # noqa: N802
        self, original_node: cst.FormattedStringExpression, updated_node: cst.FormattedStringExpression
    ) -> cst.BaseFormattedStringContent:
        """A text within a text."""
        value = updated_node.expression
        if isinstance(value, cst.SimpleString) and not isinstance(original_node.expression, cst.SimpleString):
            return cst.FormattedStringText(value.raw_value)
        return updated_node


def is_simple(node: Any) -> bool:
    """Whether an expression may be written more than once."""
    return isinstance(node, cst.Name | cst.Attribute) or is_constant(node)


def _count(node: cst.CSTNode) -> Counter[str]:
    names: Counter[str] = Counter()

    class Visitor(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
            names[node.value] += 1

    node.visit(Visitor())
    return names


def _applied(function: cst.FunctionDef, call: cst.Call, owner: Any = None) -> Any:
    """What a call of a function comes to; None if that cannot be said in one expression."""
    expression = returned(function)
    if expression is None:
        return None
    parameters = list(function.params.params)
    values: dict[str, Any] = {}
    if owner is not None:
        values["self"] = owner
        parameters = parameters[1:]
    uses = _count(expression)
    for i, parameter in enumerate(parameters):
        value = passed(Site(call, {}), i, parameter.name.value)
        value = parameter.default if value is None else value
        if value is None or isinstance(value, str):
            return None
        if uses[parameter.name.value] > 1 and not is_simple(value):
            return None
        values[parameter.name.value] = value
    wrapped = cst.Expr(expression).visit(Substitute(values))
    return wrapped.value  # type: ignore[union-attr]


def inline(program: Program) -> None:
    """Every kind of it, once."""
    sites, mentioned = call_sites(program)
    once = {key for key, _ in functions(program) if len(sites.get(key, [])) == 1 and key not in mentioned}
    names = Counter(name for (_, name), _ in functions(program))
    once = {(owner, name) for owner, name in once if names[name] == 1 and (not owner or _is_helper(program, owner))}
    once -= {("", name) for name in ("train", "main")}
    program.transform(lambda: _Factories(program, once), [f"{name}(" for owner, name in once if not owner] + list(program.decided))
    stateless, kinds = _kinds(program)
    program.transform(lambda: _Methods(program, stateless, kinds, once), [f"self.{name}" for name in kinds] + [f".{name}(" for owner, name in once if owner])
    nothing = _Nothing(program)
    program.transform(lambda: nothing, nothing.words)
    _single_calls(program, once)
    for name, node in list(program.definitions.items()):
        if not isinstance(node, cst.SimpleStatementLine) and program.changed("locals", node):
            program.definitions[name] = node.visit(_Locals())
            program.changed("locals", program.definitions[name])


def _is_helper(program: Program, name: str) -> bool:
    """Whether a definition is neither of the algorithm's file nor of what every copy has."""
    return program.modules[name] not in ("the algorithm", PLAIN_RUN) or name == "Dataset"


# --- Factories --------------------------------------------------------------------------------------------------------


def _unstarred(call: cst.Call) -> cst.Call:
    """`f(*(a, b))` as `f(a, b)`."""
    arguments: list[cst.Arg] = []
    for argument in call.args:
        if argument.star == "*" and isinstance(argument.value, cst.Tuple):
            arguments += [cst.Arg(element.value) for element in argument.value.elements]
        else:
            arguments.append(argument)
    return call if len(arguments) == len(call.args) else call.with_changes(args=arguments)


class _Factories(Put):
    """Calls of functions that choose among classes, which is decided by now; and of one expression, called once."""

    def __init__(self, program: Program, once: set[Key]) -> None:
        self.program, self.once = program, once

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:  # noqa: N802
        updated_node = _unstarred(updated_node)
        name = code(updated_node.func)
        function = self.program.definitions.get(name)
        if not isinstance(function, cst.FunctionDef):
            return updated_node
        chooses = name in self.program.decided and isinstance(returned(function), cst.Call | cst.Tuple)
        if not chooses and ("", name) not in self.once:
            return updated_node
        result = _applied(function, updated_node)
        return updated_node if result is None else result


# --- Objects without a state ------------------------------------------------------------------------------------------


def _kinds(program: Program) -> tuple[set[str], dict[str, str]]:
    """The classes without a state, and of attributes that are always of one class which."""
    found: dict[str, set[str]] = {}

    class Visitor(cst.CSTVisitor):
        def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
            for target in node.targets:
                targets = target.target.elements if isinstance(target.target, cst.Tuple) else [target]
                values = node.value.elements if isinstance(node.value, cst.Tuple) else [node]
                if len(targets) != len(values):
                    values = [node] * len(targets)
                for one, other in zip(targets, values, strict=True):
                    place = one.value if isinstance(one, cst.BaseElement) else one.target
                    if isinstance(place, cst.Attribute):
                        kind = code(other.value.func) if isinstance(other.value, cst.Call) else "?"
                        found.setdefault(place.attr.value, set()).add(kind)

        def visit_AnnAssign(self, node: cst.AnnAssign) -> None:  # noqa: N802
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
    """A method, or the value of a class's constant, or of an attribute that its constructor makes constant."""
    for ancestor in bases(program, kind):
        for member in program.definitions[ancestor].body.body:
            if isinstance(member, cst.FunctionDef) and member.name.value == name:
                return member
            if isinstance(member, cst.SimpleStatementLine) and isinstance(member.body[0], cst.Assign):
                if code(member.body[0].targets[0].target) == name:
                    return member.body[0].value
            if isinstance(member, cst.FunctionDef) and member.name.value == "__init__":
                for line in member.body.body:
                    if isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.Assign | cst.AnnAssign):
                        statement = line.body[0]
                        target = statement.targets[0].target if isinstance(statement, cst.Assign) else statement.target
                        if code(target) == f"self.{name}" and is_constant(statement.value):
                            return statement.value
    return None


class _Methods(Put):
    """Calls and constants of attributes of a known class."""

    def __init__(self, program: Program, stateless: set[str], kinds: dict[str, str], once: set[Key]) -> None:
        self.program, self.stateless, self.kinds, self.once = program, stateless, kinds, once
        self.targets: set[Any] = set()

    def kind(self, node: Any) -> str | None:
        """The class of what `node` is an attribute of: of `x.head.loss` that of `head`."""
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Attribute):
            return self.kinds.get(node.value.attr.value)
        return None

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:  # noqa: N802
        self.targets.add(node.target)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:  # noqa: N802
        updated_node = _unstarred(updated_node)
        if not isinstance(updated_node.func, cst.Attribute):
            return updated_node
        kind, name, receiver = self.kind(updated_node.func), updated_node.func.attr.value, code(updated_node.func.value)
        owner = next((owner for owner, other in self.once if owner and other == name), None)
        if owner is not None and receiver.startswith("self"):
            method = _member(self.program, owner, name)
            if method.decorators or name.startswith("__"):
                return updated_node
        elif kind in self.stateless:
            method = _member(self.program, kind or "", name)
        else:
            return updated_node
        if not isinstance(method, cst.FunctionDef):
            return updated_node
        result = _applied(method, updated_node, updated_node.func.value)
        if result is None or (kind not in self.stateless and receiver != "self" and len(code(result)) > LONGEST):
            return updated_node
        return result

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:  # noqa: N802
        kind = self.kind(updated_node)
        if kind is not None and original_node not in self.targets:
            value = _member(self.program, kind, updated_node.attr.value)
            if value is not None and is_constant(value):
                return value
        return super().leave_Attribute(original_node, updated_node)

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> Any:  # noqa: N802
        """A call of an empty method."""
        call = updated_node.value
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
            kind = self.kind(call.func)
            method = _member(self.program, kind, call.func.attr.value) if kind in self.stateless else None
            if isinstance(method, cst.FunctionDef) and not statements(method):
                return cst.RemoveFromParent()
        return updated_node


class _Nothing(cst.CSTTransformer):
    """Takes out calls of empty functions, and `**{}`."""

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

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> Any:  # noqa: N802
        call = updated_node.value
        if isinstance(call, cst.Call):
            if isinstance(call.func, cst.Name) and call.func.value in self.empty:
                return cst.RemoveFromParent()
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in self.idle:
                return cst.RemoveFromParent()
        return updated_node

    def leave_Dict(self, original_node: cst.Dict, updated_node: cst.Dict) -> cst.Dict:  # noqa: N802
        kept = [
            element
            for element in updated_node.elements
            if not (isinstance(element, cst.StarredDictElement) and code(element.value).strip("() ") == "{}")
        ]
        return updated_node.with_changes(elements=kept)

    def leave_AugAssign(self, original_node: cst.AugAssign, updated_node: cst.AugAssign) -> Any:  # noqa: N802
        """`metrics |= {}`."""
        if isinstance(updated_node.operator, cst.BitOrAssign) and code(updated_node.value) == "{}":
            return cst.RemoveFromParent()
        return updated_node


# --- Methods of one call ----------------------------------------------------------------------------------------------


def _single_calls(program: Program, once: set[Key]) -> None:
    """`x.method(...)` as a statement, the only call of a short method that returns nothing: its body instead."""
    for (owner, name), function in list(functions(program)):
        body = statements(function)
        text = "".join(map(code, body))
        if owner and (owner, name) in once and len(body) <= 2 and not any(word in text for word in ("return", "yield", "super()")):
            program.transform(lambda name=name, function=function: _Body(name, function), [f".{name}("])  # type: ignore[misc]


class _Body(cst.CSTTransformer):
    def __init__(self, name: str, function: cst.FunctionDef) -> None:
        self.name, self.function = name, function

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: cst.SimpleStatementLine) -> Any:  # noqa: N802
        call = getattr(updated_node.body[0], "value", None)
        if not isinstance(updated_node.body[0], cst.Expr) or not isinstance(call, cst.Call):
            return updated_node
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != self.name or not is_simple(call.func.value):
            return updated_node
        values: dict[str, Any] = {"self": call.func.value}
        for i, parameter in enumerate(self.function.params.params[1:]):
            value = passed(Site(call, {}), i, parameter.name.value)
            value = parameter.default if value is None else value
            if value is None or isinstance(value, str) or not is_simple(value):
                return updated_node
            values[parameter.name.value] = value
        return cst.FlattenSentinel([line.visit(Substitute(values)) for line in statements(self.function)])


# --- Local names ------------------------------------------------------------------------------------------------------


class _Locals(cst.CSTTransformer):
    """Local names of one constant or class are replaced by it; those that nobody reads go."""

    def leave_FunctionDef(self, original_node: Any, updated_node: cst.FunctionDef) -> cst.FunctionDef:  # noqa: N802
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
            elif isinstance(target, cst.Attribute | cst.Subscript | cst.StarredElement):
                store(target.value, None) if isinstance(target, cst.StarredElement) else None

        class Visitor(cst.CSTVisitor):
            def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
                store(node.targets[0].target, node.value if len(node.targets) == 1 else None)

            def visit_AnnAssign(self, node: cst.AnnAssign) -> None:  # noqa: N802
                if node.value is not None:
                    store(node.target, node.value)

            def visit_AugAssign(self, node: cst.AugAssign) -> None:  # noqa: N802
                stored[code(node.target)] += 2

            def visit_For(self, node: cst.For) -> None:  # noqa: N802
                store(node.target, None)

            def visit_CompFor(self, node: cst.CompFor) -> None:  # noqa: N802
                store(node.target, None)

            def visit_Param(self, node: cst.Param) -> None:  # noqa: N802
                stored[node.name.value] += 1

            def visit_NamedExpr(self, node: cst.NamedExpr) -> None:  # noqa: N802
                stored[code(node.target)] += 2

            def visit_Arg(self, node: cst.Arg) -> None:  # noqa: N802
                if node.star == "*":
                    starred[code(node.value)] += 1

        updated_node.visit(Visitor())
        read = _count(updated_node.body)
        constant = {
            name: value
            for name, value in values.items()
            if stored[name] == 1
            and value is not None
            and (_is_class(value) or is_constant(value) or (read[name] == 2 and isinstance(value, cst.Attribute) and code(value).startswith("config.")) if not isinstance(value, cst.Tuple) else starred[name] == 1 == read[name] - 1)
        }
        unread = {
            name
            for name, value in values.items()
            if stored[name] == 1 and read[name] == 1 and value is not None and not _count(value)["self"] and _harmless(value)
        }
        body = updated_node.body.visit(_WithoutAssignments({*constant, *unread}))
        return updated_node.with_changes(body=body.visit(Substitute(constant)))


def _is_class(node: Any) -> bool:
    return isinstance(node, cst.Name) and node.value[:1].isupper() and not node.value.isupper()


def _harmless(node: Any) -> bool:
    """Whether nothing else changes where an expression goes."""
    return not any(isinstance(child, cst.Call) for child in [node, *node.children]) or code(node).startswith("(torch.tensor(")


class _WithoutAssignments(cst.CSTTransformer):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: cst.SimpleStatementLine) -> Any:  # noqa: N802
        statement = updated_node.body[0]
        target = statement.targets[0].target if isinstance(statement, cst.Assign) else getattr(statement, "target", None)
        if isinstance(statement, cst.Assign | cst.AnnAssign) and isinstance(target, cst.Name) and target.value in self.names:
            return cst.RemoveFromParent()
        return updated_node
