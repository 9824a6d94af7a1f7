"""`seeds=`: several runs from one command line, each with its own seed."""

import copy
import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from zoo.errors import UsageError
from zoo.settings.compose import compose
from zoo.settings.config import RunConfig
from zoo.settings.overrides import folders, parse
from zoo.settings.registry import Algorithm

MOST = 1_000  # runs side by side, at most


def seed_by_seed(
    arguments: Sequence[str], file: Path | None = None
) -> list[tuple[RunConfig, Algorithm, dict[str, Any]]]:
    """The runs requested by `seeds=8`, `seeds=0-7` or `seeds=0,3,5`, each in the form that `compose` returns.

    `run_dir=DIR` is the parent of their folders; `run_dir=[DIR,...]` names each folder.

    Args:
        file: an algorithm file to run in place of one of the zoo's.

    Raises:
        UsageError: the seeds are invalid, or another setting is for a single run only; or raised by `compose`.
    """
    given = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    text = given["seeds"].strip("[]'\" ")
    if not re.fullmatch(r"\d+|\d+-\d+|\d+( *, *\d+)+", text):
        raise UsageError(f"seeds={text} is not how many seeds, nor which: seeds=8, seeds=0-7 or seeds=0,3,5")
    if "seed" in given:
        raise UsageError(
            f"seeds={text} and seed={given['seed']} are both given. For one run: seed={given['seed']} alone"
        )
    if "resume" in given:
        raise UsageError(f"a run continues with its own seed. Leave out seeds={text}")
    first, dash, last = text.partition("-")
    seeds: Sequence[int] = [int(number) for number in text.split(",")] if "," in text else range(int(first))
    if dash:
        seeds = range(int(first), int(last) + 1)
    if seeds[MOST:]:
        count = seeds.stop - seeds.start if isinstance(seeds, range) else len(seeds)  # len() of a range has a limit
        instead = f" For one run: seed={text}" if text.isdecimal() else ""
        raise UsageError(f"seeds={text} asks for {count:,} runs; at most {MOST:,} go side by side.{instead}")
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds={text} names {'a seed twice' if seeds else 'none'}. Give for example: seeds=0-7")
    rest = [argument for argument in arguments if not argument.startswith(("seeds=", "run_dir="))]
    dirs: list[str | None] = [None] * len(seeds)
    if given.get("run_dir", "null") != "null":
        named = folders(given["run_dir"])
        if not given["run_dir"].startswith("["):
            named = [str(Path(named[0], f"seed{seed}")) for seed in seeds]
        if len(set(named)) < len(seeds) or len(named) > len(seeds):
            raise UsageError(
                f"run_dir={given['run_dir']} must name {len(seeds)} folders, one for each seed, or one that they all "
                "lie in"
            )
        dirs = list(named)
    if choice := next((str(one.input_line) for one in parse(rest) if one.is_sweep_override()), None):
        several = " ".join([*rest, f"seed={','.join(map(str, seeds))}"])
        raise UsageError(f"{choice} asks for several runs, seeds={text} for one. Give: zoo run -m {several}")
    once = None if interpolates(rest) else compose(rest, file)
    return [
        of_seed(*(once or compose([*rest, f"seed={seed}"], file)), seed, run_dir)
        for seed, run_dir in zip(seeds, dirs, strict=True)
    ]


def interpolates(arguments: Iterable[str]) -> bool:
    """Whether a setting refers to another one, as `init_from=iql-${seed}` does."""
    return any("${" in argument for argument in arguments)


def of_seed(
    config: RunConfig, algorithm: Algorithm, settings: dict[str, Any], seed: int, run_dir: str | None
) -> tuple[RunConfig, Algorithm, dict[str, Any]]:
    """A run with another seed and folder."""
    own: dict[str, Any] = {"seed": seed, "run_dir": run_dir}
    try:
        return dataclasses.replace(copy.deepcopy(config), **own), algorithm, copy.deepcopy(settings) | own
    except ValueError as error:
        raise UsageError(f"{error}.") from error
