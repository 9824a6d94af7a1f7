"""A suite is the runs of a benchmark, each with its own combination of settings.

A file in `configs/suite` is a list of grids. A grid gives each key of `zoo run` one value or a list of values, and
stands for all combinations of them. A value that is itself a list is written as a list in that list. Overrides apply to
every run and take precedence over the file. If the suite has runs with the given `algo=`, `env=` or `dataset=`, the
override selects these runs instead.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from zoo.data.catalog import find, parse_mixture
from zoo.data.load import load_arrays
from zoo.envs import EnvConfig, resolve_backend, series
from zoo.errors import UsageError, nearest, quoted
from zoo.runs.device import resolve_device
from zoo.runs.execute import label
from zoo.runs.logging import parse_loggers
from zoo.runs.provenance import code_version
from zoo.settings.compose import compose
from zoo.settings.config import RunConfig
from zoo.settings.overrides import as_overrides, expand
from zoo.settings.registry import Algorithm, folder
from zoo.settings.seeds import interpolates

CHOOSING = ("algo", "env", "dataset")  # settings that select runs of a suite
ELSEWHERE = ("run_dir", "resume", "logger", "threads")  # settings that change results by rounding at most


@dataclass(frozen=True)
class Planned:
    """One run of a suite.

    Attributes:
        name: the name of its folder, unique among the runs of a suite and the versions of a run.
        overrides: the overrides that it is started with.
        settings: all settings, resolved.
        id: a digest of the settings, the code, the dataset's content and the runs that it begins with.
        code: a digest of the code that it was planned with.
        missing: the datasets that were not found.
    """

    name: str
    overrides: tuple[str, ...]
    settings: dict[str, Any]
    id: str
    code: str
    missing: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        return int(self.settings["steps"]) + int(self.settings["online_steps"])


def suites() -> dict[str, Path]:
    """Every file of `configs/suite`, by name."""
    return {path.stem: path for path in sorted((folder("configs") / "suite").glob("*.yaml"))}


def plan(suite: str, overrides: Sequence[str] = ()) -> list[Planned]:
    """The runs of a suite, checked and without duplicates.

    Raises:
        UsageError: there is no such suite, or a run cannot have a setting.
    """
    known = suites()
    path = Path(suite) if suite.endswith(".yaml") else known.get(suite)
    if path is None or not path.is_file():
        raise UsageError(f"the suite {suite} does not exist. {nearest(suite, known)} Or give a file: mine.yaml")
    given = expand(overrides)
    if where := next((one for one in itertools.chain(*given) if one.startswith("run_dir=")), None):
        wanted = quoted(where.partition("=")[2])
        raise UsageError(f"{where}: each run of a suite has its own folder. Name the folder for all: --dir {wanted}")
    if where := next((one for one in itertools.chain(*given) if one.startswith("seeds=")), None):
        raise UsageError(f"{where}: a suite takes seed=0,1,2 instead; on GPUs these seeds share a process")
    listed = [combination for grid in grids(path) for combination in combinations(grid)]
    choices = set().union(*map(_choices, listed))
    planned: dict[str, Planned] = {}
    for combination in listed:
        for chosen in given:
            if not choices & _choices(chosen) <= _choices(combination):
                continue
            keys = {one.partition("=")[0] for one in chosen}
            kept = [one for one in combination if one.partition("=")[0] not in keys]
            run = planned_run((*kept, *chosen), f"suite {suite}")
            planned[run.id] = run
    if not planned:
        raise UsageError(f"the suite {suite} has no runs of {' '.join(overrides)} together.")
    return list(planned.values())


def _choices(overrides: Iterable[str]) -> set[str]:
    """The overrides of `CHOOSING`, without quotes."""
    return {one.replace("'", "") for one in overrides if one.partition("=")[0] in CHOOSING}


def grids(path: Path) -> list[dict[str, Any]]:
    """The grids in a suite's file. Raises UsageError if there are none."""
    try:
        found: Any = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # OmegaConf or YAML cannot parse it
        raise UsageError(f"{path} cannot be read as a suite: {' '.join(str(error).split())}") from error
    if not isinstance(found, list) or not found or not all(isinstance(grid, dict) for grid in found):
        raise UsageError(f"{path} must be a list of grids, such as: - {{algo: iql, env: hopper, seed: [0, 1, 2]}}")
    for key, value in itertools.chain.from_iterable(grid.items() for grid in found):
        if value == []:
            raise UsageError(f"{path}: {key} has no value. Give it one, or several.")
    return found


def combinations(grid: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    """Every combination of a grid's values, as overrides."""
    values = [value if isinstance(value, list) else [value] for value in grid.values()]
    for combination in itertools.product(*values):
        yield tuple(as_overrides(dict(zip(grid, combination, strict=True))))


def planned_run(overrides: tuple[str, ...], of: str) -> Planned:
    """A run of a suite or search, from its overrides. Raises UsageError if they are not valid."""
    if file := next((one for one in overrides if re.fullmatch(r"algo=.*\.py'?", one)), None):
        raise UsageError(
            f"{of}: {file} is a file; here the zoo's algorithms are taken, by name. "
            f"Put it into algos/ of a checkout, then: algo={Path(file).stem}"
        )
    seeds = [override for override in overrides if re.fullmatch(r"seed=\d{1,9}", override)]
    try:
        varies = interpolates(overrides)
        config, algorithm, settings = composed(tuple(one for one in overrides if varies or one not in seeds))
        backend = resolve_backend(config.env)
        parse_loggers(config.logger)
    except (UsageError, ValueError) as error:
        raise UsageError(f"{of}, {' '.join(overrides)}: {error}") from error
    seed = int(seeds[-1].partition("=")[2]) if seeds else config.seed
    settings = {key: value for key, value in settings.items() if key not in ELSEWHERE} | {"seed": seed}
    settings["env"] = settings["env"] | {"backend": backend}
    content: str | None = None
    missing: tuple[str, ...] = ()
    origins = []
    if algorithm.takes_data(config):
        names = [config.dataset, *filter(None, [getattr(config.algo, "expert", None)])]
        parts = [part.name for name in names for part in parse_mixture(name)]
        missing = tuple(dict.fromkeys(f"{config.env.name}/{part}" for part in parts if find(config.env, part) is None))
        if not missing:
            content, *origins = (fingerprint(config.env.id, config.env.name, name) for name in names)
    elif config.env.id.startswith(series.PREFIX):
        content = file_digest(series.find(config.env.id))
    runs = {"init_from": config.init_from, "base": config.base, "corruption.critic": config.corruption.critic}
    for key, run in runs.items():
        if run is None:
            continue
        checkpoint = Path(run, "checkpoint.pt")
        if not checkpoint.is_file():
            raise UsageError(f"{of}, {' '.join(overrides)}: {key}={run} is not the folder of a run")
        origins.append(file_digest(checkpoint))
    code = code_version(algorithm)
    run_id = digest([settings, code, content, *origins])[:12]
    name = f"{config.env.name}-{label(config, algorithm)}-seed{seed}-{run_id[:8]}"
    return Planned(name, (*overrides, f"env.backend={backend}"), settings, run_id, code, missing)


def digest(known: Any) -> str:
    """A digest of a JSON value."""
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


@cache
def file_digest(file: Path) -> str:
    """A digest of a file's content."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check_devices(runs: Sequence[Planned]) -> None:
    """Raises UsageError if runs ask for a device that this machine does not have, or for a GPU by its number."""
    for device in sorted({run.settings["device"] for run in runs}):
        if device.startswith("cuda:"):  # a process sees only the GPU that it is given
            number = device.removeprefix("cuda:")
            raise UsageError(f"device={device}: GPUs are given to runs by launcher.gpus={number}. Leave device out.")
        if not (device.startswith("cuda") and torch.cuda.device_count()):  # it would allocate memory on the GPU
            resolve_device(device)


def on_cpu(runs: Sequence[Planned]) -> bool:
    """Whether all runs use the CPU, even if there are GPUs."""
    return all(run.settings["device"] == "cpu" for run in runs)


def check_data(runs: Sequence[Planned]) -> None:
    """Raises UsageError if datasets are missing."""
    if lacking := sorted({dataset for run in runs for dataset in run.missing}):
        raise UsageError(
            f"{sum(bool(run.missing) for run in runs)} of {len(runs)} runs lack their dataset: {', '.join(lacking)}. "
            "Make them with zoo data make, import them with zoo data import, or download them with minari download; "
            "or leave those runs out: env=... dataset=..."
        )


@cache
def composed(overrides: tuple[str, ...]) -> tuple[RunConfig, Algorithm, dict[str, Any]]:
    """Cached `compose`, which takes a tenth of a second. A suite's seeds share its result."""
    return compose(overrides)


@cache
def fingerprint(env_id: str, env_name: str, dataset: str) -> str:
    """The fingerprint of a dataset's content."""
    return load_arrays(EnvConfig(env_id, env_name), dataset)[0].fingerprint()
