"""The information that a reader needs to repeat a run or a dataset elsewhere."""

import ast
import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import zoo
from zoo.machine import gpus, processor
from zoo.settings.registry import Algorithm, folder

PACKAGES = ("torch", "gymnasium", "mujoco", "numpy", "minari")


def commit() -> str | None:
    """The commit of the checkout that this code runs from; None without a checkout or without git."""
    here = Path(__file__)
    git = ["git", "-C", str(here.parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True, check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip()


@cache
def code_version(algorithm: Algorithm) -> str:
    """Digest of the code of an algorithm's file and of everything that it imports from the zoo or from its own folder.

    Comments, docstrings, and the names and locations of files do not count.
    """
    found, new = set[Path](), {algorithm.path}
    while new:
        found |= new
        new = {path for file in new for path in _code(file)[1]} - found
    return hashlib.sha256("".join(sorted(_code(path)[0] for path in found)).encode()).hexdigest()


@cache
def _code(path: Path) -> tuple[str, frozenset[Path]]:
    """Digest of a file's code, and the files that it imports directly."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not _is_main(node)]
    names, imported = set[str](), set[Path]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        files = {file for module in modules if (file := _file(module, path.parent))}
        imported |= files
        place = "" if files or not isinstance(node, ast.ImportFrom) else f"{node.module}."
        names |= {f"{place}{alias.name} as {alias.asname}" for alias in node.names}
    code = [*sorted(names), _dump(_Bare().visit(tree))]
    return hashlib.sha256("\n".join(code).encode()).hexdigest(), frozenset(imported)


def _dump(node: Any) -> str:
    """Like `ast.dump`, but without empty fields, because Python versions differ in which of them they have."""
    if isinstance(node, ast.AST):
        fields = (
            f"{name}={_dump(value)}" for name, value in ast.iter_fields(node) if value is not None and value != []
        )
        return f"{type(node).__name__}({', '.join(fields)})"
    return f"[{', '.join(map(_dump, node))}]" if isinstance(node, list) else repr(node)


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


class _Bare(ast.NodeTransformer):
    """Removes imports and docstrings."""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return None
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return self.generic_visit(node)


def _file(module: str, beside: Path) -> Path | None:
    """The file of a module of the zoo, or of a module beside the file that imports it; None for any other."""
    package, *rest = module.split(".")
    if package == "zoo":
        packages = ("algos", "benchmarks", "envs")
        root = folder(rest.pop(0)) if rest and rest[0] in packages else Path(zoo.__file__).parent
    else:
        root, rest = beside, [package, *rest]
    place = root.joinpath(*rest)
    return next((file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()), None)


@cache
def provenance(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm file, code, versions, commit and hardware, as `run.json` holds them. Must not be modified."""
    return {
        "algorithm": {
            "name": algorithm.name,
            "file": None if algorithm.is_own else str(algorithm.path),
            "sha256": hashlib.sha256(algorithm.path.read_bytes()).hexdigest(),
        },
        "code": code_version(algorithm),
        "commit": commit(),
        "versions": {"zoo": zoo.__version__, "python": platform.python_version()}
        | {name: metadata.version(name) for name in PACKAGES},
        "hardware": {
            "machine": platform.machine(),
            "processor": processor(),
            "cpus": os.cpu_count(),
            "gpu": None,
        }
        | gpus(),
    }
