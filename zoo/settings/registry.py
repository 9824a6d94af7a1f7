"""The available algorithms and environments, read from their files without importing them."""

import ast
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zoo.errors import UsageError, nearest, quoted

if TYPE_CHECKING:
    from zoo.settings.config import RunConfig


# families of algorithms, in the order in which they are listed
FAMILIES = (
    "on-policy", "off-policy", "streaming", "offline", "goal-conditioned", "return-conditioned", "model-based",
)  # fmt: skip
SETTINGS = ("online", "offline", "offline to online")


def folder(name: str) -> Path:
    """The folder of the package `zoo.<name>`: beside `zoo/` in a checkout, inside it in an installation."""
    spec = importlib.util.find_spec(f"zoo.{name}")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"the package zoo.{name} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


@dataclass(frozen=True)
class Setting:
    """One field of a config dataclass, as written in the source."""

    name: str
    default: str
    comment: str


def settings(path: Path, class_name: str) -> list[Setting]:
    """The fields of a dataclass with their trailing comments: these are the help texts, kept beside the fields."""
    source = path.read_bytes()  # of which the tree counts columns in bytes
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return [_setting(field, lines) for field in node.body if isinstance(field, ast.AnnAssign)]
    raise UsageError(f"{path} has no class {class_name}.")


def _setting(field: ast.AnnAssign, lines: list[bytes]) -> Setting:
    value = field.value
    assert value is not None
    assert value.end_lineno is not None  # not the end of the field: a bracket may close after the comment
    last = lines[value.end_lineno - 1]
    text = b"\n".join([*lines[value.lineno - 1 : value.end_lineno - 1], last[: value.end_col_offset]])
    default = text[value.col_offset :].decode()
    if "default_factory=lambda: " in default:
        default = default.partition("default_factory=lambda: ")[2].removesuffix(")").strip()
    default = {"field(default_factory=dict)": "{}", "field(default_factory=list)": "[]"}.get(default, default)
    comment = last[value.end_col_offset :].decode().partition("#")[2].strip()
    return Setting(ast.unparse(field.target), default.replace("None", "null"), comment)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm file."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @functools.cached_property
    def _tree(self) -> ast.Module:
        try:
            return ast.parse(self.path.read_text())
        except (SyntaxError, UnicodeError) as error:
            raise UsageError(f"{self.path} is not Python: {error}") from error

    @functools.cached_property
    def _assigned(self) -> dict[str, ast.expr]:
        """What the file assigns to names, annotated (`NAME: type = value`) or not."""
        assigned: dict[str, ast.expr] = {}
        for node in self._tree.body:
            if isinstance(node, ast.Assign):
                assigned[ast.unparse(node.targets[0])] = node.value
            elif isinstance(node, ast.AnnAssign) and node.value:
                assigned[ast.unparse(node.target)] = node.value
        return assigned

    def _constant(self, name: str, of: Collection[str]) -> Any:
        """A value that the file declares: one of these, or a tuple of some. Raises UsageError for any other value."""
        try:
            value = ast.literal_eval(self._assigned[name])
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"{self.path} must assign {name} itself in one line: it is read without importing the file. "
                f"There are {', '.join(of)}."
            ) from error
        if not value or not all(one in of for one in (value if isinstance(value, tuple) else [value])):
            raise UsageError(f"{self.path}: {name} = {value!r} does not exist; there are {', '.join(of)}.")
        return value

    @property
    def command(self) -> str:
        """The command line that runs it."""
        return "zoo run" if self.is_own else f"python {quoted(self.path)}"

    @property
    def is_own(self) -> bool:
        """Whether it is one of the zoo's files, not a user's."""
        return self.path.parent == folder("algos")

    @property
    def title(self) -> str:
        """The first line of the file's docstring."""
        return (ast.get_docstring(self._tree) or self.name).splitlines()[0]

    @property
    def family(self) -> str:
        """One of `FAMILIES`. Raises UsageError if the file declares another."""
        return str(self._constant("FAMILY", FAMILIES))

    @property
    def setting(self) -> str:
        """`online`, `offline` or `offline to online`."""
        return str(self._constant("SETTING", SETTINGS))

    @functools.cached_property
    def data(self) -> str:
        """`none`, `required`, or the setting which makes it learn from a dataset if above 0: `offline_fraction`."""
        return str(self._constant("DATA", ["none", "required", *(one.name for one in settings(self.path, "Config"))]))

    def takes_data(self, config: "RunConfig") -> bool:
        """Whether a run with these settings reads a dataset."""
        if self.data in ("none", "required"):
            return self.data == "required"
        return bool(getattr(config.algo, self.data) > 0)

    @property
    def action_spaces(self) -> tuple[str, ...]:
        """`continuous`, `discrete` or both."""
        declared = self._constant("ACTION_SPACES", ("continuous", "discrete"))
        if isinstance(declared, str):
            raise UsageError(f"{self.path}: ACTION_SPACES is a tuple. Write: ACTION_SPACES = ({declared!r},)")
        return tuple(declared)

    def takes_frames(self, action_space: str) -> bool:
        """Whether it takes frames, and observations of any shape, with these actions; otherwise only vectors."""
        return self._declares("FRAMES") or self._declares("FRAMES", (action_space,))

    @property
    def takes_goals(self) -> bool:
        """Whether it learns to reach goals, from data without rewards; the environment must then provide goals."""
        return self._declares("GOALS")

    def _declares(self, name: str, value: Any = True) -> bool:
        return name in self._assigned and ast.unparse(self._assigned[name]) == str(value)

    @functools.cached_property
    def module(self) -> ModuleType:
        """The imported file: as `zoo.algos.<name>` if it is the zoo's own, else from its path under its own name."""
        if self.is_own:
            return importlib.import_module(f"zoo.algos.{self.name}")
        spec = importlib.util.spec_from_file_location(self.name, self.path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{self.path} is no algorithm file: it is not Python, FILE.py.")
        _ = self._tree  # checks that the file can be parsed
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.name] = module
        beside = str(self.path.absolute().parent)
        if beside not in sys.path:
            sys.path.append(beside)  # of the modules that it imports from there, as `python FILE` finds them
        spec.loader.exec_module(module)
        if not is_dataclass(getattr(module, "Config", None)):
            raise UsageError(f"{self.path} is no algorithm file: it has no dataclass Config.")
        return module

    @property
    def agent_class(self) -> Any:
        """The only agent that the file defines."""
        from zoo.agent import Agent

        agents = [
            value
            for value in vars(self.module).values()
            if inspect.isclass(value) and issubclass(value, Agent) and value.__module__ == self.module.__name__
        ]
        if len(agents) != 1:
            raise UsageError(f"{self.path} defines {len(agents) or 'no'} agents, subclasses of zoo.agent.Agent; not 1.")
        return agents[0]


def algorithms() -> dict[str, Algorithm]:
    """Every file in `algos/`, by name, in alphabetical order, except files whose names begin with _."""
    return _algorithms(folder("algos"))


@functools.cache
def _algorithms(place: Path) -> dict[str, Algorithm]:
    return {path.stem: Algorithm(path) for path in sorted(place.glob("*.py")) if path.stem[0] != "_"}


def by_family() -> list[Algorithm]:
    """Every algorithm, in the order of `FAMILIES`."""
    return sorted(algorithms().values(), key=lambda algorithm: FAMILIES.index(algorithm.family))


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name. Raises UsageError, listing the nearest ones, if there is none."""
    known = algorithms()
    if name.endswith(".py"):
        raise UsageError(f"algo={name}: a file of your own is run by itself: python {quoted(name)} env=...")
    if name not in known:
        raise UsageError(f"algo={name} does not exist. {nearest(name, known)}")
    return known[name]


def environments() -> dict[str, Path]:
    """Every entry of `configs/env`, by name."""
    return {path.stem: path for path in sorted((folder("configs") / "env").glob("*.yaml"))}


def describe_families() -> Iterator[tuple[str, str]]:
    """For each file of `envs/` about a family of environments, their ids and the first line of its docstring."""
    for path in sorted(folder("envs").glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "IDS":
                yield ast.literal_eval(node.value), (ast.get_docstring(tree) or "").splitlines()[0]


def describe_environments() -> Iterator[tuple[str, str, str]]:
    """Name, Gymnasium id and leading comment of each entry."""
    for name, path in environments().items():
        lines = path.read_text().splitlines()
        comment = lines[0].removeprefix("# ") if lines and lines[0].startswith("#") else ""
        yield name, next((line.removeprefix("id: ") for line in lines if line.startswith("id: ")), ""), comment
