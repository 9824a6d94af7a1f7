"""Puts the body of a function in place of its only call, if that is a statement or ends another function."""

import textwrap
from collections import Counter
from typing import Any

import libcst as cst

from zoo.copying.calls import Key, argument, call_sites, functions
from zoo.copying.expressions import Substitute, assigned, count, is_simple, statements
from zoo.copying.program import Program
from zoo.copying.source import code

OF_RUNS = ("zoo.copying.plain.run", "zoo.copying.plain.envs")  # classes in these modules stay as they are written
SHORT = ("track", "log", "dataset")  # except for these methods
LONGEST = 5  # statements in a body that may end another one


def called_once(program: Program) -> set[Key]:
    """Functions reached by a single call, and such methods of helpers, not of the algorithm or of a run."""
    sites, mentioned = call_sites(program)
    names = Counter(name for (_, name), _ in functions(program))
    return {
        (owner, name)
        for (owner, name), _ in functions(program)
        if len(sites.get((owner, name), [])) == 1
        and (owner, name) not in mentioned
        and names[name] == 1
        and (owner or name not in ("train", "main"))
        and (not owner or program.modules[owner] not in ("the algorithm", *OF_RUNS) or name in SHORT)
    }


def put_bodies(program: Program) -> None:
    """Does this once for every such call."""
    once = called_once(program)
    for key, function in list(functions(program)):
        owner, name = key
        body = statements(function)
        text = "".join(map(code, body))
        if key not in once or any(word in text for word in ("yield", "super()")) or function.decorators:
            continue
        if owner and len(body) <= 2 and "return" not in text:
            program.transform(lambda key=key, function=function: _Statement(key, function), [f".{name}("])  # type: ignore[misc]
        elif (owner or program.modules[name] != "the algorithm") and _ends_once(body):
            call = f"self.{name}" if owner else name
            program.transform(lambda call=call, function=function: _Whole(call, function), [f" {call}("])  # type: ignore[misc]


def _ends_once(body: list[Any]) -> bool:
    """Whether a body consists of a few plain statements, of which the last one is its only return."""
    plain = all(isinstance(line, cst.SimpleStatementLine) for line in body)
    returns = [isinstance(line.body[0], cst.Return) for line in body] if plain else []
    return plain and 1 < len(body) <= LONGEST and returns.count(True) == 1 and returns[-1]


class _Statement(cst.CSTTransformer):
    """For `x.method(...)` as a statement: the body of a short method that returns nothing."""

    def __init__(self, key: Key, function: cst.FunctionDef) -> None:
        (self.owner, self.name), self.function = key, function

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: cst.SimpleStatementLine) -> Any:
        call = getattr(updated_node.body[0], "value", None)
        if not isinstance(updated_node.body[0], cst.Expr) or not isinstance(call, cst.Call):
            return updated_node
        if (
            not isinstance(call.func, cst.Attribute)
            or call.func.attr.value != self.name
            or not is_simple(call.func.value)
            or (self.owner == "Run") != (code(call.func.value) == "run")
        ):
            return updated_node
        values: dict[str, Any] = {"self": call.func.value}
        uses = count(self.function.body)
        for i, parameter in enumerate(self.function.params.params[1:]):
            value = argument(call, i, parameter)
            if value is None or not (is_simple(value) or uses[parameter.name.value] == 1):
                return updated_node
            values[parameter.name.value] = value
        return cst.FlattenSentinel([line.visit(Substitute(values)) for line in statements(self.function)])


class _Whole(cst.CSTTransformer):
    """For `return function(...)` or `name = function(...)`: the function's body, after the arguments that it needs."""

    def __init__(self, call: str, function: cst.FunctionDef) -> None:
        self.call, self.function = call, function
        self.names: list[set[str]] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.names.append({*count(node.body), *(parameter.name.value for parameter in node.params.params)})

    def leave_FunctionDef(self, original_node: Any, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self.names.pop()
        return updated_node

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: cst.SimpleStatementLine) -> Any:
        statement = updated_node.body[0]
        call = statement.value if isinstance(statement, cst.Return | cst.Assign) else None
        if not isinstance(call, cst.Call) or code(call.func) != self.call:
            return updated_node
        parameters = [one for one in self.function.params.params if one.name.value != "self"]
        own = set(assigned(self.function))
        before: list[Any] = []
        values: dict[str, Any] = {}
        for i, parameter in enumerate(parameters):
            name, value = parameter.name.value, argument(call, i, parameter)
            if value is None or name in own:
                return updated_node
            if is_simple(value):
                values[name] = value
            else:
                own.add(name)
                before.append(cst.parse_statement(f"{name} = {code(value)}"))
        if own & self.names[-1]:
            return updated_node
        *body, last = (line.visit(Substitute(values)) for line in statements(self.function))
        last = last.with_changes(body=[statement.with_changes(value=last.body[0].value)])
        lines = [*before, *body, last]
        if isinstance(statement, cst.Assign):
            lines[0] = lines[0].with_changes(leading_lines=self.explained())
        return cst.FlattenSentinel(lines)

    def explained(self) -> list[cst.EmptyLine]:
        """The first line of the function's docstring, as a comment."""
        text = (self.function.get_docstring() or "").partition("\n")[0]
        return [cst.EmptyLine(comment=cst.Comment(f"# {line}")) for line in textwrap.wrap(text, 100)]
