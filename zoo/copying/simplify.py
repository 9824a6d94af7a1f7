"""Takes out of a program what is left over once its settings are decided."""

import ast
import functools
import textwrap
from collections import Counter
from typing import Any

import libcst as cst

from zoo.copying.calls import Key, bases, call_sites, functions, is_constant, passed
from zoo.copying.inline import Substitute, inline
from zoo.copying.merge import merge
from zoo.copying.program import Program
from zoo.copying.source import code, global_names

RESUMING = ("state_dict", "load_state_dict", "get_extra_state", "set_extra_state", "rows", "put", "cut", "check_run")
PURE = ("zeros", "ones", "tensor", "len", "float", "log", "exp", "sum")  # functions that only compute


def simplify(program: Program) -> None:
    """Repeats every step until nothing changes any more."""
    while True:
        text = program.source()
        prune(program)
        constant_parameters(program)
        constant_attributes(program)
        inline(program)
        merge(program)
        program.fold()
        prune(program)
        if program.source() == text:
            return


# --- Parameters -------------------------------------------------------------------------------------------------------


def constant_parameters(program: Program) -> None:
    """Parameters for which every call passes the same constant, or nothing, are replaced by it."""
    sites, mentioned = call_sites(program)
    removed: dict[Key, list[tuple[int, str]]] = {}
    values: dict[Key, dict[str, cst.BaseExpression]] = {}
    for key, function in functions(program):
        owner, name = key
        if key in mentioned or not sites.get(key) or (name.startswith("__") and name != "__init__"):
            continue
        if function.params.star_arg is not cst.MaybeSentinel.DEFAULT and isinstance(function.params.star_arg, cst.Param):
            continue
        static = any(code(decorator.decorator) == "staticmethod" for decorator in function.decorators)
        parameters = list(function.params.params)[1 if owner and not static else 0 :]
        written = Counter(_written(function))
        for i, parameter in enumerate(parameters):
            what = parameter.name.value
            given = [passed(site, i, what) for site in sites[key]]
            if "unknown" in given:
                break
            all_given = [parameter.default if value is None else value for value in given]
            texts = {code(value) for value in all_given if value is not None}
            one = len(texts) == 1 and None not in all_given
            constant = one and (is_constant(all_given[0]) or program.is_function(all_given[0]))
            switch = constant and (parameter.default is not None or texts <= {"True", "False", "None"})
            as_default = parameter.default is not None and texts == {code(parameter.default)}
            unused = what not in _read(function) and all(value is None or _is_pure(value) for value in given)
            same_function = constant and program.is_function(all_given[0])
            if ((switch and as_default or same_function) and not written[what]) or (unused and (name == "__init__" or _only(program, key))):
                removed.setdefault(key, []).append((i, what))
                if switch or same_function:
                    values.setdefault(key, {})[what] = all_given[0]  # type: ignore[assignment]
    if not removed:
        return
    removed = {key: gone for key, gone in removed.items() if _alike(program, key, removed, values)}
    calls = {site.call: (key, site) for key in removed for site in sites[key]}
    words = {code(call.func).rpartition(".")[2] + "(" for call in calls}
    program.transform(lambda: _WithoutArguments(calls, removed), words)
    for (owner, name), gone in removed.items():
        names = [what for _, what in gone]
        changed = program.definitions[owner or name].visit(_WithoutParameters(owner, name, names, values.get((owner, name), {})))
        program.definitions[owner or name] = changed


def _only(program: Program, key: Key) -> bool:
    return sum(name == key[1] for (_, name), _ in functions(program)) == 1


def _alike(program: Program, key: Key, removed: dict[Key, Any], values: dict[Key, Any]) -> bool:
    """A method's parameters go only if they go from every method of that name: calls do not say whose it is."""
    if key[1] == "__init__" or not key[0]:
        return True
    others = [other for other, _ in functions(program) if other[0] and other[1] == key[1]]
    return all(removed.get(other) == removed[key] for other in others)


def _written(function: cst.FunctionDef) -> list[str]:
    """The names that a function assigns to."""
    names: list[str] = []

    class Visitor(cst.CSTVisitor):
        def visit_AssignTarget(self, node: cst.AssignTarget) -> None:  # noqa: N802
            names.extend(_targets(node.target))

        def visit_AugAssign(self, node: cst.AugAssign) -> None:  # noqa: N802
            names.extend(_targets(node.target))

        def visit_For(self, node: cst.For) -> None:  # noqa: N802
            names.extend(_targets(node.target))

        def visit_AnnAssign(self, node: cst.AnnAssign) -> None:  # noqa: N802
            names.extend(_targets(node.target))

    function.visit(Visitor())
    return names


def _targets(node: cst.BaseExpression) -> list[str]:
    if isinstance(node, cst.Tuple | cst.List):
        return [name for element in node.elements for name in _targets(element.value)]
    return [node.value] if isinstance(node, cst.Name) else []


def _read(node: cst.CSTNode) -> Counter[str]:
    """How often each name is read within a function's body."""
    names: Counter[str] = Counter()

    class Visitor(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
            names[node.value] += 1

        def visit_Attribute(self, node: cst.Attribute) -> bool:  # noqa: N802
            node.value.visit(self)
            return False

        def visit_Arg(self, node: cst.Arg) -> bool:  # noqa: N802
            node.value.visit(self)
            return False

    body = node.body if isinstance(node, cst.FunctionDef) else node
    body.visit(Visitor())
    return names


class _WithoutArguments(cst.CSTTransformer):
    def __init__(self, calls: dict[cst.Call, Any], removed: dict[Key, list[tuple[int, str]]]) -> None:
        self.calls, self.removed = calls, removed

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
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

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802
        self.classes.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:  # noqa: N802
        self.classes.pop()
        if original_node.name.value == self.owner and self.name == "__init__":
            return without_documentation(updated_node, self.gone)
        return updated_node

    def leave_FunctionDef(self, original_node: Any, updated_node: cst.FunctionDef) -> cst.FunctionDef:  # noqa: N802
        owner = self.classes[-1] if self.classes else ""
        if (owner, updated_node.name.value) != (self.owner, self.name):
            return updated_node
        kept = [parameter for parameter in updated_node.params.params if parameter.name.value not in self.gone]
        kept[-1:] = [kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)] if kept else []
        body = updated_node.body.visit(Substitute(self.values))
        changed = updated_node.with_changes(params=updated_node.params.with_changes(params=kept), body=body)
        return without_documentation(changed, self.gone)


def without_documentation(node: Any, names: list[str]) -> Any:
    """A class or function whose docstring does not explain some arguments or attributes any more."""
    text = node.get_docstring(clean=False)
    if not text:
        return node
    lines, kept, skipping, depth = text.split("\n"), [], False, 0
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
    for header in ("Args", "Attributes"):  # with nothing below it
        parts = cleaned.split(f"{header}:\n")
        if len(parts) == 2 and (not parts[1].strip() or not parts[1].split("\n")[0].strip()):
            cleaned = parts[0].rstrip() + ("\n\n" + parts[1].lstrip("\n") if parts[1].strip() else "")
    if "\n" in text and cleaned.rstrip() != text.rstrip():
        last = lines[-1] if not lines[-1].strip() else ""
        cleaned = cleaned.rstrip()
        cleaned = f"{cleaned}\n{last}" if "\n" in cleaned and last else cleaned
    return node.with_changes(body=_with_docstring(node.body, cleaned))


def _with_docstring(body: Any, text: str) -> Any:
    first, *rest = body.body
    return body.with_changes(body=[cst.parse_statement(f'"""{text}"""'), *rest])


# --- Attributes -------------------------------------------------------------------------------------------------------


def constant_attributes(program: Program) -> None:
    """Attributes that are a constant from the constructor on are replaced by it; those that nobody reads go."""
    uses = uses_of(program)
    for name, node in list(program.definitions.items()):
        if isinstance(node, cst.ClassDef):
            constants = {
                attribute: values[0]
                for attribute, values in _assigned(node).items()
                if len(values) == 1
                and (is_constant(values[0]) or program.is_function(values[0]))
                and uses.stored[attribute] == 1
            }
            if not constants:
                continue
            family = [other for other in program.definitions if name in bases(program, other)]
            for member in family:
                program.definitions[member] = program.definitions[member].visit(_Constant(constants))
    uses = uses_of(program)
    unread = [name for name in uses.stored if not uses.loaded[name]]
    program.transform(lambda: _Unread(uses), [f"self.{name}" for name in unread])


class _Uses:
    """How often attributes are read, assigned and called, and which are those of a config or a spec."""

    def __init__(self, *texts: str) -> None:
        self.stored: Counter[str] = Counter()
        self.loaded: Counter[str] = Counter()
        self.called: Counter[str] = Counter()
        self.of_config: set[str] = set()
        for text in texts:
            stored, loaded, called, of_config = _uses(text)
            self.stored.update(stored)
            self.loaded.update(loaded)
            self.called.update(called)
            self.of_config |= of_config


@functools.cache
def _uses(text: str) -> tuple[Counter[str], Counter[str], Counter[str], set[str]]:
    stored: Counter[str] = Counter()
    loaded: Counter[str] = Counter()
    called: Counter[str] = Counter()
    of_config = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            (loaded if isinstance(node.ctx, ast.Load) else stored)[node.attr] += 1
            owner = node.value
            if (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")) in ("config", "spec"):
                of_config.add(node.attr)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            loaded[node.target.attr] += 1
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and node.value is None:
            stored[node.target.attr] -= 1  # a declaration
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called[node.func.attr] += 1
    return stored, loaded, called, of_config


def uses_of(program: Program) -> _Uses:
    """Of a whole program."""
    return _Uses(*map(program.text, program.definitions))


def _assigned(node: cst.ClassDef) -> dict[str, list[Any]]:
    """The values that a class assigns to its attributes."""
    found: dict[str, list[Any]] = {}

    class Visitor(cst.CSTVisitor):
        def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
            for target, value in _pairs(node):
                if isinstance(target, cst.Attribute) and code(target.value) == "self":
                    found.setdefault(target.attr.value, []).append(value)

        def visit_AugAssign(self, node: cst.AugAssign) -> None:  # noqa: N802
            if isinstance(node.target, cst.Attribute):
                found.setdefault(node.target.attr.value, []).extend([None, None])

    node.visit(Visitor())
    return found


def _pairs(node: cst.Assign) -> list[tuple[cst.BaseExpression, Any]]:
    """Targets and their values; None for a value that is a part of another."""
    target, value = node.targets[0].target, node.value
    if isinstance(target, cst.Tuple):
        if isinstance(value, cst.Tuple) and len(value.elements) == len(target.elements):
            elements = zip(target.elements, value.elements, strict=True)
            return [(one.value, other.value) for one, other in elements]
        return [(element.value, None) for element in target.elements]
    return [(target, value)]


class _Constant(cst.CSTTransformer):
    def __init__(self, constants: dict[str, cst.BaseExpression]) -> None:
        self.constants = constants
        self._targets: set[cst.CSTNode] = set()

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:  # noqa: N802
        target = node.target
        self._targets.update([element.value for element in target.elements] if isinstance(target, cst.Tuple) else [target])

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:  # noqa: N802
        if original_node not in self._targets and code(updated_node.value) == "self":
            return self.constants.get(updated_node.attr.value, updated_node)
        return updated_node


class _Unread(cst.CSTTransformer):
    """Takes out assignments to attributes that nobody reads, where the value is a name or a constant."""

    def __init__(self, uses: _Uses) -> None:
        self.uses = uses

    def goes(self, target: cst.BaseExpression, value: Any) -> bool:
        if not isinstance(target, cst.Attribute) or self.uses.loaded[target.attr.value]:
            return False
        return value is not None and _is_pure(value)

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: cst.SimpleStatementLine) -> Any:  # noqa: N802
        (statement, *more) = updated_node.body
        if isinstance(statement, cst.AnnAssign) and statement.value and self.goes(statement.target, statement.value):
            return cst.RemoveFromParent()
        if more or not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            return updated_node
        pairs = _pairs(statement)
        kept = [(target, value) for target, value in pairs if not self.goes(target, value)]
        if len(kept) == len(pairs):
            return updated_node
        if not kept:
            return cst.RemoveFromParent()
        target, value = (", ".join(code(part) for part in column) for column in zip(*kept, strict=True))
        changed = cst.parse_statement(f"{target} = {value}")
        assert isinstance(changed, cst.SimpleStatementLine)
        return updated_node.with_changes(body=changed.body)


def _is_pure(node: Any) -> bool:
    """Whether an expression can go without anything else changing."""
    if isinstance(node, cst.Name | cst.Integer | cst.Float | cst.SimpleString):
        return True
    if isinstance(node, cst.Attribute):
        return _is_pure(node.value)
    if isinstance(node, cst.Tuple | cst.List):
        return all(_is_pure(element.value) for element in node.elements)
    if isinstance(node, cst.Call):
        function = node.func.attr.value if isinstance(node.func, cst.Attribute) else code(node.func)
        plain = function in PURE or function[:1].isupper()
        owner = not isinstance(node.func, cst.Attribute) or _is_pure(node.func.value)
        return plain and owner and all(_is_pure(argument.value) for argument in node.args)
    if isinstance(node, cst.BinaryOperation):
        return _is_pure(node.left) and _is_pure(node.right)
    return isinstance(node, cst.UnaryOperation) and _is_pure(node.expression)


# --- What is not reached ----------------------------------------------------------------------------------------------


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


def _members(program: Program, uses: _Uses) -> None:
    """Takes out methods that nobody calls, and settings that nobody reads."""
    for name, node in list(program.definitions.items()):
        if isinstance(node, cst.ClassDef):
            kept = [member for member in node.body.body if _is_needed(name, member, uses)]
            if len(kept) < len(node.body.body):
                program.definitions[name] = node.with_changes(body=node.body.with_changes(body=kept))


def _is_needed(owner: str, member: Any, uses: _Uses) -> bool:
    if isinstance(member, cst.FunctionDef):
        name = member.name.value
        if name in RESUMING:
            return False
        if (name.startswith("__") and name.endswith("__")) or name == "forward":
            return True
        own = _Uses(textwrap.dedent(code(member)))
        # where another class has an attribute of that name, only calls count
        kind = "called" if uses.stored[name] > 0 and not member.decorators else "loaded"
        return bool(getattr(uses, kind)[name] - getattr(own, kind)[name] > 0)
    field = member.body[0] if isinstance(member, cst.SimpleStatementLine) else None
    if owner in ("Config", "Spec") and isinstance(field, cst.AnnAssign) and field.value:
        return code(field.target) in uses.of_config
    if isinstance(field, cst.AnnAssign) and field.value and code(field.target).startswith("_"):
        return code(field.target) in uses.loaded or code(field.target) in uses.stored
    return True
