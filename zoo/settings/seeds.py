"""`seeds=`: several runs of one command line, each with a seed of its own."""

import re
from collections.abc import Sequence

from zoo.errors import UsageError
from zoo.settings.compose import as_overrides, folders


def seed_by_seed(arguments: Sequence[str]) -> list[list[str]]:
    """The runs that `seeds=8`, `seeds=0-7` or `seeds=0,3,5` asks for: `seed=` in its place, and a folder of each.

    `run_dir=DIR` is where these folders are, `run_dir=[DIR,...]` names each.

    Raises:
        UsageError: these are no seeds, or there is something beside them that is for a single run.
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
        raise UsageError(f"a run goes on with its own seed. Leave out seeds={text}")
    first, dash, last = text.partition("-")
    seeds = list(range(int(first), int(last) + 1)) if dash else [int(number) for number in text.split(",")]
    if "," not in text and not dash:
        seeds = list(range(int(text)))
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds={text} names {'a seed twice' if seeds else 'none'}. Give for example: seeds=0-7")
    rest = [argument for argument in arguments if not argument.startswith(("seeds=", "run_dir="))]
    if "run_dir" not in given:
        return [[*rest, f"seed={seed}"] for seed in seeds]
    dirs = folders(given["run_dir"])
    if not given["run_dir"].startswith("["):
        dirs = [f"{dirs[0].rstrip('/')}/seed{seed}" for seed in seeds]
    if len(set(dirs)) < len(seeds) or len(dirs) > len(seeds):
        raise UsageError(
            f"run_dir={given['run_dir']} must name {len(seeds)} folders, one for each seed, or one that they all lie in"
        )
    return [[*rest, f"seed={seed}", *as_overrides({"run_dir": one})] for seed, one in zip(seeds, dirs, strict=True)]
