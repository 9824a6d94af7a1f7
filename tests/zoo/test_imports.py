"""Imports have no cycles, and packages have a fixed order. Imports in functions count; those for types do not."""

import ast
import graphlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"zoo": "zoo", "algos": "zoo.algos", "envs": "zoo.envs", "benchmarks": "zoo.benchmarks"}
# A package imports only from those after it; `docs/architecture.md` draws the same.
ORDER = [
    "zoo.cli", "zoo.benchmarks", "zoo.commands", "zoo.export", "zoo.copying", "zoo.api", "zoo.algos", "zoo.streaming",
    "zoo.models", "zoo.runs", "zoo.settings", "zoo.data", "zoo.nn", "zoo.envs", "zoo.returns", "zoo.checkpoint",
    "zoo.files", "zoo.checks", "zoo.agent", "zoo.spec", "zoo.machine", "zoo.errors", "zoo",
]  # fmt: skip
# Exceptions: `zoo run` passes a search on, an algorithm file runs itself, `zoo.train` and `zoo.load` are in the API.
EXCEPTIONS = {("zoo.commands", "zoo.benchmarks"), ("zoo.algos", "zoo.cli"), ("zoo", "zoo.api")}


def modules() -> dict[str, Path]:
    found = {}
    for folder, name in PACKAGES.items():
        for path in (ROOT / folder).rglob("*.py"):
            if folder == "benchmarks" and path.parent != ROOT / folder:
                continue  # scripts
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([name, *parts]).removesuffix(".__init__")] = path
    return found


def imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        yield from imported(child)


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    found, edges = modules(), defaultdict(set)
    for module, path in found.items():
        for name in imported(ast.parse(path.read_text())):
            target = name if name in found else name.rpartition(".")[0]
            if target in found and target != module:
                edges[module].add(target)
    return edges


def package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_no_module_imports_itself_by_way_of_others(graph):
    usual = {
        module: {target for target in targets if (package(module), package(target)) not in EXCEPTIONS}
        for module, targets in graph.items()
    }
    order = list(graphlib.TopologicalSorter(usual).static_order())  # raises if there is a cycle
    assert order.index("zoo.errors") < order.index("zoo.runs.run") < order.index("zoo.api")


def test_packages_import_in_one_direction(graph):
    wrong = {
        (module, target)
        for module, targets in graph.items()
        for target in targets
        if package(module) != package(target)
        and (package(module), package(target)) not in EXCEPTIONS
        and ORDER.index(package(module)) > ORDER.index(package(target))
    }
    assert wrong == set()


def test_an_algorithm_file_imports_little(graph):
    reached, new = set(), {"zoo.algos.iql"}
    while new:
        reached |= new
        new = {t for module in new for t in graph.get(module, ()) if t != "zoo.cli"} - reached
    assert "zoo.runs.run" not in reached
    assert not any(module.startswith(("zoo.settings", "zoo.envs", "hydra")) for module in reached), sorted(reached)
    assert len(reached) < 25, sorted(reached)
