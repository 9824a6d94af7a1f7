"""Replaces parameters that are always the same by constants."""

from typing import Any

import libcst as cst

from zoo.copying.calls import Key, call_sites, functions, passed
from zoo.copying.expressions import Substitute, assigned, count, is_constant, is_pure
from zoo.copying.program import Program
from zoo.copying.source import code


def constant_parameters(program: Program) -> None:
    """Replaces parameters for which every call passes the same constant, or nothing."""
    sites, mentioned = call_sites(program)
    removed: dict[Key, list[tuple[int, str]]] = {}
    values: dict[Key, dict[str, cst.BaseExpression]] = {}
    for key, function in functions(program):
        owner, name = key
        if key in mentioned or not sites.get(key) or (name.startswith("__") and name != "__init__"):
            continue
        if function.params.star_arg is not cst.MaybeSentinel.DEFAULT and isinstance(
            function.params.star_arg, cst.Param
        ):
            continue
        static = any(code(decorator.decorator) == "staticmethod" for decorator in function.decorators)
        parameters = list(function.params.params)[1 if owner and not static else 0 :]
        written = set(assigned(function))
        for i, parameter in enumerate(parameters):
            what = parameter.name.value
            given: list[Any] = [passed(site, i, what) for site in sites[key]]
            if "unknown" in given:
                break
            all_given = [parameter.default if value is None else value for value in given]
            texts = {code(value) for value in all_given if value is not None}
            one = len(texts) == 1 and None not in all_given
            constant = one and (is_constant(all_given[0]) or program.is_function(all_given[0]))
            as_default = parameter.default is not None and texts == {code(parameter.default)}
            only = len(given) == 1 and any(code(one.keyword or one) == what for one in sites[key][0].call.args)
            switch = constant and (as_default or texts <= {"True", "False", "None"} or only)
            unused = what not in count(function.body) and all(value is None or is_pure(value) for value in given)
            same_function = constant and program.is_function(all_given[0])
            if ((switch or same_function) and what not in written) or (
                unused and (name == "__init__" or _only(program, key))
            ):
                removed.setdefault(key, []).append((i, what))
                if switch or same_function:
                    values.setdefault(key, {})[what] = all_given[0]  # type: ignore[assignment]
    if not removed:
        return
    removed = {key: gone for key, gone in removed.items() if _alike(program, key, removed)}
    calls = {site.call: (key, site) for key in removed for site in sites[key]}
    words = {code(call.func).rpartition(".")[2] + "(" for call in calls}
    program.transform(lambda: _WithoutArguments(calls, removed), words)
    for (owner, name), gone in removed.items():
        names = [what for _, what in gone]
        changed = program.definitions[owner or name].visit(
            _WithoutParameters(owner, name, names, values.get((owner, name), {}))
        )
        program.definitions[owner or name] = changed


def _only(program: Program, key: Key) -> bool:
    return sum(name == key[1] for (_, name), _ in functions(program)) == 1


def _alike(program: Program, key: Key, removed: dict[Key, Any]) -> bool:
    """A method's parameters are removed only from all methods of that name: calls do not show whose method it is."""
    if key[1] == "__init__" or not key[0]:
        return True
    others = [other for other, _ in functions(program) if other[0] and other[1] == key[1]]
    return all(removed.get(other) == removed[key] for other in others)


class _WithoutArguments(cst.CSTTransformer):
    def __init__(self, calls: dict[cst.Call, Any], removed: dict[Key, list[tuple[int, str]]]) -> None:
        self.calls, self.removed = calls, removed

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if original_node not in self.calls:
            return updated_node
        key, site = self.calls[original_node]
        positions = {i for i, _ in self.removed[key]}
        names = {name for _, name in self.removed[key]}
        kept: list[cst.Arg] = []
        index = 0
        for argument in updated_node.args:
            if argument.star == "*":
                index += len(site.tuples[code(argument.value)].elements)
                kept.append(argument)
            elif argument.keyword is not None:
                if argument.keyword.value not in names:
                    kept.append(argument)
            else:
                if index not in positions:
                    kept.append(argument)
                index += 1
        if len(kept) == len(updated_node.args):
            return updated_node
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(args=kept)


class _WithoutParameters(cst.CSTTransformer):
    def __init__(self, owner: str, name: str, gone: list[str], values: dict[str, cst.BaseExpression]) -> None:
        self.owner, self.name, self.gone, self.values = owner, name, gone, values
        self.classes: list[str] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.classes.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> Any:
        self.classes.pop()
        if original_node.name.value == self.owner and self.name == "__init__":
            return without_documentation(updated_node, self.gone)
        return updated_node

    def leave_FunctionDef(self, original_node: Any, updated_node: cst.FunctionDef) -> Any:
        owner = self.classes[-1] if self.classes else ""
        if (owner, updated_node.name.value) != (self.owner, self.name):
            return updated_node
        kept = [parameter for parameter in updated_node.params.params if parameter.name.value not in self.gone]
        kept[-1:] = [kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)] if kept else []
        body = updated_node.body.visit(Substitute(self.values))
        changed = updated_node.with_changes(params=updated_node.params.with_changes(params=kept), body=body)
        return without_documentation(changed, self.gone)


def without_documentation(node: Any, names: list[str]) -> Any:
    """A class or function whose docstring no longer documents certain arguments or attributes."""
    text = node.get_docstring(clean=False)
    if not text:
        return node
    kept: list[str] = []
    lines, skipping, depth = text.split("\n"), False, 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if skipping and line.strip() and indent > depth:
            continue
        skipping = False
        if ":" in line and kept:
            mentioned = [name.strip() for name in line.split(":")[0].split(",")]
            if any(name in names for name in mentioned):
                left = [name for name in mentioned if name not in names]
                if not left:
                    skipping, depth = True, indent
                    continue
                line = f"{' ' * indent}{', '.join(left)}:{line.split(':', 1)[1]}"
        kept.append(line)
    cleaned = "\n".join(kept)
    for header in ("Args", "Attributes"):  # without any entry
        parts = cleaned.split(f"{header}:\n")
        if len(parts) == 2 and (not parts[1].strip() or not parts[1].split("\n")[0].strip()):
            cleaned = parts[0].rstrip() + ("\n\n" + parts[1].lstrip("\n") if parts[1].strip() else "")
    if "\n" in text and cleaned.rstrip() != text.rstrip():
        last = lines[-1] if not lines[-1].strip() else ""
        cleaned = cleaned.rstrip()
        cleaned = f"{cleaned}\n{last}" if "\n" in cleaned and last else cleaned
    return node.with_changes(body=_with_docstring(node.body, cleaned))


def _with_docstring(body: Any, text: str) -> Any:
    _, *rest = body.body
    return body.with_changes(body=[cst.parse_statement(f'"""{text}"""'), *rest])
