"""Names of datasets on the command line, and the output that all commands about datasets share."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.data.catalog import FILE_SUFFIXES, ZOO_NAMESPACE, find, recorded_env, store
from zoo.errors import UsageError

if TYPE_CHECKING:  # `list` only reads metadata, without heavy imports
    from zoo.data.arrays import Arrays
    from zoo.envs import EnvConfig

HEADER = ["dataset", "transitions", "episodes", "mean return", "where"]


def environment(name: str) -> "EnvConfig":
    """An environment of the zoo or of Gymnasium. Raises UsageError, listing the nearest ones, if there is none."""
    from zoo.settings.compose import environment_config

    return environment_config(name)


def locate(name: str, env: str | None) -> tuple["EnvConfig", str]:
    """`hopper/medium`, a full Minari id or a file -> its environment and its name as a value for `dataset=`.

    Raises:
        UsageError: the name does not say which environment it is for, or there is none of that name.
    """
    if env is not None:
        return environment(env), name
    if Path(name).suffix in FILE_SUFFIXES:
        raise UsageError(f"{name} is a file: say which environment it is for, such as --env hopper.")
    first, *others = name.split("+")  # the parts of a mixture: the first one says the environment
    of_env, _, dataset = first.rpartition("/")
    stored = sorted((store() / ZOO_NAMESPACE / of_env).glob("*"))
    versioned = re.search(r"-v\d+$", dataset)
    if versioned and ("/" in of_env or (store() / first / "data").is_dir()):  # a Minari id
        of_env, dataset, stored = of_env.rpartition("/")[2], first, [store() / first]
    elif not of_env:
        raise UsageError(
            f"{name} is not ENV/DATASET, such as hopper/demo. See them: zoo data list. Or give the env: --env ENV"
        )
    dataset = "+".join([dataset, *others])
    try:
        return environment(of_env), dataset
    except UsageError as error:
        # an id missing from `configs/env`, given by its short name, or a Minari id: the data name the environment
        for env_id in filter(None, (recorded_env(folder / "data") for folder in stored)):
            return environment(env_id), dataset
        if versioned:
            unknown = str(error) if of_env else f"{name} does not say which environment it is for."
            raise UsageError(f"{unknown} Give the environment: --env ENV") from error
        raise


def new_id(env: "EnvConfig", name: str) -> str:
    if not re.fullmatch(r"[-\w]+", name, re.ASCII) or re.search(r"-v\d+$", name) or name.lower() == "null":
        raise UsageError(
            f"{name} cannot be a dataset's name: letters (a to z), digits, - and _ only, without a version at its "
            "end, and not null."
        )
    return f"{ZOO_NAMESPACE}/{env.name}/{name}-v0"


def new_folder(env: "EnvConfig", name: str) -> Path:
    """The folder for a new dataset in the store. Raises UsageError if an embedded one would take precedence."""
    folder = store() / new_id(env, name)
    found = find(env, name)
    if found and found.kind == "embedded":
        raise UsageError(f"{env.name}/{name} is a dataset that the package brings. Take another name.")
    return folder


def describe_origin(arguments: list[str]) -> dict[str, Any]:
    """The command and the code that make a dataset."""
    import zoo
    from zoo.runs.provenance import commit

    return {"command": shlex.join(["zoo", "data", *arguments]), "version": zoo.__version__, "commit": commit()}


def row(name: str, arrays: "Arrays", folder: Path) -> list[str]:
    counts = [f"{len(arrays.reward):,}", f"{len(arrays.episode_starts):,}"]
    return [name, *counts, f"{arrays.episode_returns.mean():.1f}", f"{folder}/"]


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Prints columns of text, with numbers aligned to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in [header, *rows]:
        cells = (
            cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())
