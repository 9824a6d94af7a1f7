"""The zoo's source, definition by definition, and what the names in it refer to."""

import ast
import functools
import importlib.util
import symtable
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import libcst as cst

# modules whose definitions replace others of the same name
PLAIN = tuple(f"zoo.copying.plain.{name}" for name in ("nn", "envs", "data", "run"))
OWN = ("Config", "train")  # except for these, which the algorithm has itself
RENAMED = {
    ("zoo.nn.linear", "Linear"): "nn.Linear",
    ("zoo.nn.linear", "linear"): "F.linear",
    ("zoo.agent", "Agent"): "nn.Module",
    ("zoo.runs.tensor_stepper", "Stepper"): "EnvStepper",
    ("zoo.errors", "UsageError"): "SystemExit",
    ("zoo.errors", "RunError"): "SystemExit",
}
"""Definitions that a copy has other names for."""


class Import(NamedTuple):
    """The origin of a name: an attribute of a module, or, if `attribute` is None, the module itself."""

    module: str
    attribute: str | None
    statement: str  # as written in a standalone file


class Definition(NamedTuple):
    """A class, function or constant of a module."""

    module: str
    name: str
    node: cst.BaseStatement


def code(node: cst.CSTNode) -> str:
    """The source of a node."""
    if isinstance(node, cst.Name) and not node.lpar:  # most nodes are names, for which no code generator is needed
        return node.value
    if isinstance(node, cst.Attribute) and not node.lpar:
        return f"{code(node.value)}.{node.attr.value}"
    return cst.Module([]).code_for_node(node)


def constant_of(node: Any) -> cst.BaseExpression | None:
    """The value of a definition that is a constant."""
    value = getattr(node.body[0], "value", None) if isinstance(node, cst.SimpleStatementLine) else None
    return value if isinstance(value, cst.BaseExpression) else None


def is_field(node: Any) -> bool:
    """Whether a class member is a field: `name: type`, with or without a value."""
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.AnnAssign)


@functools.lru_cache(maxsize=4096)
def text_of(node: cst.CSTNode) -> str:
    """The source of a whole definition, cached."""
    return code(node)


class Source:
    """A module: its definitions and imports, including those under `TYPE_CHECKING` and within functions."""

    def __init__(self, name: str, path: Path | None = None) -> None:
        if path is None:
            spec = importlib.util.find_spec(name)
            assert spec is not None, name
            assert spec.origin is not None, name
            path = Path(spec.origin)
        self.name, self.path = name, path
        self.tree = cst.parse_module(path.read_text())
        self.definitions: dict[str, Definition] = {}
        self.imports: dict[str, Import] = {}
        self._read(self.tree.body)
        self.tree.visit(_Imports(self))

    def _read(self, statements: Sequence[cst.BaseStatement]) -> None:
        for statement in statements:
            if isinstance(statement, cst.FunctionDef | cst.ClassDef):
                name = statement.name.value
                self.definitions[name] = Definition(self.name, name, statement)
            elif isinstance(statement, cst.If) and code(statement.test) == "TYPE_CHECKING":
                self._read(list(statement.body.body))  # type: ignore[arg-type]
            elif isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    target = (
                        small.targets[0].target if isinstance(small, cst.Assign) else getattr(small, "target", None)
                    )
                    if isinstance(target, cst.Name):
                        self.definitions[target.value] = Definition(self.name, target.value, statement)
                    elif isinstance(target, cst.Tuple):
                        for element in target.elements:
                            name = code(element.value)
                            self.definitions[name] = Definition(self.name, name, statement)

    def add_import(self, node: cst.Import | cst.ImportFrom) -> None:
        if isinstance(node, cst.ImportFrom):
            module = code(node.module) if node.module else ""
            assert not isinstance(node.names, cst.ImportStar), module
            for alias in node.names:
                name = code(alias.name)
                local = code(alias.asname.name) if alias.asname else name
                suffix = f" as {local}" if alias.asname else ""
                self.imports[local] = Import(module, name, f"from {module} import {name}{suffix}")
        else:
            for alias in node.names:
                name = code(alias.name)
                local = code(alias.asname.name) if alias.asname else name.partition(".")[0]
                suffix = f" as {local}" if alias.asname else ""
                self.imports[local] = Import(name, None, f"import {name}{suffix}")


class _Imports(cst.CSTVisitor):
    def __init__(self, source: Source) -> None:
        self.source = source

    def visit_Import(self, node: cst.Import) -> None:
        self.source.add_import(node)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        self.source.add_import(node)


@functools.cache
def source(module: str) -> Source:
    """A module of the zoo, read only once."""
    return Source(module)


@functools.cache
def is_module(name: str) -> bool:
    """Whether there is a module of this name."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def is_ours(module: str) -> bool:
    """Whether a module is one of the zoo's."""
    return module == "zoo" or module.startswith("zoo.")


@functools.cache
def resolve(within: Source, name: str) -> Definition | Import | None:
    """What a name at a module's top level is: a definition, a module of the zoo, another package's; None: a builtin."""
    if name not in within.definitions and name not in within.imports:
        return None
    if name not in OWN:
        for plain in map(source, PLAIN):
            if name in plain.definitions:
                return plain.definitions[name]
    if name in within.definitions:
        return within.definitions[name]
    imported = within.imports[name]
    if not is_ours(imported.module) or imported.attribute is None:
        return imported
    submodule = f"{imported.module}.{imported.attribute}"
    if is_module(submodule):
        return Import(submodule, None, "")
    return resolve(source(imported.module), imported.attribute)


def global_names(node: cst.CSTNode) -> list[str]:
    """The names that a definition uses from its module, in the order of their first mention."""
    return _global_names(text_of(node))


@functools.cache
def _global_names(text: str) -> list[str]:
    found: set[str] = set()

    def walk(table: symtable.SymbolTable) -> None:
        at_top = table.get_type() == "module"
        found.update(s.get_name() for s in table.get_symbols() if s.is_global() or (at_top and s.is_referenced()))
        for child in table.get_children():
            walk(child)

    walk(symtable.symtable(text, "definition", "exec"))
    mentions: dict[str, tuple[int, int]] = {}
    for node in ast.walk(ast.parse(text)):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(annotation, ast.expr):
                for part in ast.walk(annotation):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        names = [name.id for name in ast.walk(ast.parse(part.value)) if isinstance(name, ast.Name)]
                        found.update(names)
                        mentions |= {name: (part.lineno, part.col_offset) for name in names if name not in mentions}
        if isinstance(node, ast.Name):
            mentions[node.id] = min(mentions.get(node.id, (10**9, 0)), (node.lineno, node.col_offset))
    return sorted(found & set(mentions), key=mentions.__getitem__)
