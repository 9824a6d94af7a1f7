"""The program that becomes a copy: all definitions that an algorithm reaches, collected in one place."""

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import libcst as cst

from zoo.copying.fold import SOME, fold
from zoo.copying.source import (
    OWN,
    PLAIN,
    RENAMED,
    Definition,
    Import,
    Source,
    code,
    constant_of,
    global_names,
    is_field,
    is_ours,
    resolve,
    source,
    text_of,
)

PLAIN_RUN = "zoo.copying.plain.run"


class Program:
    """Definitions by name, and the imports that they need.

    Args:
        file: the algorithm's file.
        agent: the name of the algorithm's agent class.
        known: the source of an expression -> its value, as determined by the chosen settings.

    Attributes:
        definitions: by name, without the parts that the known expressions rule out.
        modules: the module of each definition.
        imports: from other packages: a name -> its import statement.
        decided: the definitions in which the known expressions determined something.
    """

    def __init__(self, file: Path, agent: str, known: Mapping[str, Any]) -> None:
        self.agent, self.known = agent, dict(known)
        self.definitions: dict[str, Any] = {}
        self.modules: dict[str, str] = {}
        self.imports: dict[str, str] = {}
        self.decided: set[str] = set()
        self._settled: set[tuple[str, str]] = set()
        self._own = Source("the algorithm", file)
        self._pending: list[tuple[Source, str]] = [
            (self._own, agent),
            (self._own, "train"),
            (source(PLAIN_RUN), "main"),
        ]
        while self._pending:
            self._collect(*self._pending.pop(0))

    def _collect(self, within: Source, name: str) -> None:
        if within.name == PLAIN_RUN and name in OWN:
            within = self._own
        found = resolve(within, name)
        if isinstance(found, Import):
            self.imports[name] = found.statement
        elif found and (found.module, found.name) not in RENAMED:
            self._add(found, self._own if found.module == self._own.name else source(found.module))

    def _add(self, found: Definition, within: Source) -> None:
        before = self.modules.setdefault(found.name, found.module)
        assert before == found.module, f"{found.name} is in {before} and in {found.module}"
        if found.name in self.definitions:
            return
        names = _Names(within, self.agent)
        node: Any = found.node.visit(names)
        if found.name == "Config":
            node = joined(node, source(PLAIN_RUN).definitions["Config"].node)
        if (
            within.name in PLAIN
            and isinstance(node, cst.ClassDef)
            and any(code(base.value) == found.name for base in node.bases)
        ):
            node = self._completed(node, names.moved[found.name])
        node = node.visit(_Runs())
        before_folding = code(node)
        self.definitions[found.name] = node = fold(node, self.known, lambda name: self._constant(within, name))
        if code(node) != before_folding:
            self.decided.add(found.name)
        self._pending += [(names.moved.get(name, within), name) for name in global_names(node)]

    def _completed(self, node: cst.ClassDef, within: Source) -> cst.ClassDef:
        """A class that replaces the zoo's of the same name and inherits from it, completed with what it inherits."""
        names = _Names(within, self.agent)
        theirs: Any = within.definitions[node.name.value].node.visit(names)
        theirs = fold(theirs, self.known, lambda name: self._constant(within, name))
        members: list[Any] = list(node.body.body)
        own = {member.name.value for member in members if isinstance(member, cst.FunctionDef)}
        own |= {code(member.body[0].target) for member in members if is_field(member)}
        inherited = [
            member
            for member in theirs.body.body
            if isinstance(member, cst.FunctionDef) and member.name.value not in own
        ]
        self._pending += [(names.moved.get(name, within), name) for name in global_names(theirs)]
        kept = [member for member in members if not is_field(member)]
        return node.with_changes(
            body=node.body.with_changes(body=[*kept, *inherited]),
            bases=theirs.bases,
            lpar=theirs.lpar,
            rpar=theirs.rpar,
        )

    def _constant(self, within: Source, name: str) -> cst.BaseExpression | None:
        """The value of one of the zoo's constants."""
        found = resolve(within, name)
        return constant_of(found.node) if isinstance(found, Definition) else None

    def is_function(self, node: Any) -> bool:
        """Whether an expression is the name of one of the program's functions."""
        return isinstance(node, cst.Name) and isinstance(self.definitions.get(node.value), cst.FunctionDef)

    def constant(self, name: str) -> cst.BaseExpression | None:
        """The value of one of the program's constants."""
        return constant_of(self.definitions.get(name))

    def text(self, name: str) -> str:
        """The source of a definition."""
        return text_of(self.definitions[name])

    def transform(self, transformer: Callable[[], cst.CSTTransformer], mentioning: Iterable[str] = ("",)) -> None:
        """Visits every definition that mentions one of certain words, each with a new transformer."""
        mentioning = list(mentioning)
        for name, node in list(self.definitions.items()):
            if any(word in self.text(name) for word in mentioning):
                self.definitions[name] = node.visit(transformer())

    def fold(self) -> None:
        """Evaluates again whatever is determined by now."""
        made = {
            name
            for text in map(self.text, self.definitions)
            for name in re.findall(r"\b(\w+)\(", text.replace("class ", "class"))
        }
        classes = {name for name, node in self.definitions.items() if isinstance(node, cst.ClassDef)}
        inherited = {code(base.value) for name in classes for base in self.definitions[name].bases}
        self.known["never made"] = classes - made - inherited
        words = ("isinstance(", "if ", " and ", " or ", "not ", "[", "==")
        for name, node in list(self.definitions.items()):
            if any(word in self.text(name) for word in words) and self.changed(
                f"fold {sorted(self.known['never made'])}", node
            ):
                known = self.known | (self._certain(node) if isinstance(node, cst.ClassDef) else {})
                self.definitions[name] = fold(node, known, self.constant)

    def _certain(self, node: cst.ClassDef) -> dict[str, Any]:
        """The attributes of a class that are always an object and therefore not None."""
        found: dict[str, set[bool]] = {}
        for part in ast.walk(ast.parse(text_of(node))):
            if isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None:
                for target in part.targets if isinstance(part, ast.Assign) else [part.target]:
                    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                        is_object = (
                            isinstance(part.value, ast.Call)
                            and ast.unparse(part.value.func).rpartition(".")[2][:1].isupper()
                        )
                        found.setdefault(f"{target.value.id}.{target.attr}", set()).add(is_object)
        return {name: SOME for name, kinds in found.items() if kinds == {True} and name.startswith("self.")}

    def changed(self, step: str, node: Any) -> bool:
        """Whether a definition has changed since this was last asked for the same step."""
        asked = (step, text_of(node))
        new = asked not in self._settled
        self._settled.add(asked)
        return new

    def source(self) -> str:
        """The source of all definitions: the program in its present state."""
        return "\n".join(map(text_of, self.definitions.values()))


def joined(config: cst.ClassDef, run: cst.BaseStatement) -> cst.ClassDef:
    """An algorithm's `Config`, without its checks, followed by the settings of a run."""
    assert isinstance(run, cst.ClassDef)
    fields = [line for line in config.body.body if isinstance(line, cst.SimpleStatementLine)]
    of_run = [line for line in run.body.body if isinstance(line, cst.SimpleStatementLine)][1:]  # without the docstring
    of_run[0] = of_run[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return config.with_changes(body=config.body.with_changes(body=[*fields, *of_run]))


class _Names(cst.CSTTransformer):
    """Renames names as in the copy: `optim.Adam` is `Adam`; removes imports within functions.

    Attributes:
        moved: names that must be looked up in another module than this one.
    """

    def __init__(self, within: Source, agent: str) -> None:
        self.within, self.agent = within, agent
        self.moved: dict[str, Source] = {}

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: cst.SimpleStatementLine) -> Any:
        if isinstance(updated_node.body[0], cst.Import | cst.ImportFrom):
            return cst.RemoveFromParent()
        return updated_node

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if isinstance(original_node.value, cst.Name):
            found = resolve(self.within, original_node.value.value)
            if isinstance(found, Import) and is_ours(found.module) and found.attribute is None:
                self.moved[original_node.attr.value] = source(found.module)
                return original_node.attr
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        found = resolve(self.within, updated_node.value)
        if isinstance(found, Definition) and (found.module, found.name) in RENAMED:
            of_run = found.name == "Agent" and self.within.name == PLAIN_RUN
            return cst.parse_expression(self.agent if of_run else RENAMED[found.module, found.name])
        return updated_node

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.BaseExpression:
        """A quoted annotation."""
        found = resolve(self.within, str(updated_node.evaluated_value))
        if isinstance(found, Definition) and (found.module, found.name) in RENAMED:
            return cst.parse_expression(RENAMED[found.module, found.name])
        return updated_node

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        return updated_node.with_changes(name=original_node.name)


class _Runs(cst.CSTTransformer):
    """Removes what runs of the zoo do and copies do not: checkpoints, compiling, settings of an environment."""

    def __init__(self) -> None:
        self.with_config: list[bool] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.with_config.append(any(parameter.name.value == "config" for parameter in node.params.params))

    def leave_FunctionDef(self, original_node: Any, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self.with_config.pop()
        return updated_node

    def leave_Attribute(self, original_node: Any, updated_node: cst.Attribute) -> cst.BaseExpression:
        text = code(updated_node)
        if text in ("run.config.env.id", "run.config.env.name", "config.env.id", "config.env.name"):
            return updated_node.value
        if text == "run.config" and any(self.with_config):
            return cst.Name("config")
        return updated_node

    def leave_Call(self, original_node: Any, updated_node: cst.Call) -> Any:
        if code(updated_node.func) == "run.track":
            agent = [
                cst.Arg(argument.value)
                for argument in updated_node.args
                if code(argument.keyword or argument) == "agent"
            ]
            return updated_node.with_changes(args=agent)
        if code(updated_node) == "getattr(torch, spec.obs_dtype)":
            return cst.parse_expression("torch.float32")
        return updated_node

    def leave_If(self, original_node: Any, updated_node: cst.If) -> Any:
        """Removes resets on `not envs.resumed`: what they reset is empty as it is."""
        lines = [code(line.body[0]) for line in updated_node.body.body if isinstance(line, cst.SimpleStatementLine)]
        begins = all(line.endswith((".clear()", ".reset()")) for line in lines)
        if code(updated_node.test) == "not envs.resumed" and begins:
            return cst.RemoveFromParent()
        return updated_node

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: cst.SimpleStatementLine) -> Any:
        text = code(updated_node).strip()
        if text == "run.track()":
            return cst.RemoveFromParent()
        if compiled := re.fullmatch(r"(\S+) = run\.compiled\((.*)\).*", text):  # without compiling
            name, update = compiled.groups()
            return cst.RemoveFromParent() if name == update else cst.parse_statement(f"{name} = {update}")
        if " = run.record[" in text:  # a setting whose value is only found in the run, and its record
            return cst.parse_statement(f"{text.partition(' = ')[0]} = {text.rpartition(' = ')[2]}")
        return updated_node
