"""`zoo run -m sweeper=optuna ...`: a hyperparameter search with Optuna. Hydra's grammar gives the search space.

    zoo run -m sweeper=optuna sweeper.n_trials=20 algo=sac env=pendulum steps=10000 seed=0,1,2 \\
        'algo.actor_lr=tag(log,interval(1e-4,1e-2))' 'algo.tau=choice(0.005,0.01,0.02)'

Settings are selected by their mean final evaluation over the tuning seeds, `sweeper.seeds`. The best settings are then
evaluated with other seeds, `seed`, because results on the tuning seeds are biased upwards (Eimer, Lindauer, Raileanu
2023, arXiv 2306.01324). The runs of the search are in `DIR/search`, those of the test in `DIR/test`. If you repeat the
command, the search continues: trials whose runs have finished are not run again.
"""

import importlib
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import OmegaConf

from zoo.benchmarks.bench import showing
from zoo.benchmarks.launchers import Local
from zoo.benchmarks.reading import read_run
from zoo.benchmarks.records import LEAST_IS_BEST, Result
from zoo.benchmarks.report import as_csv
from zoo.benchmarks.runner import Runner, failures
from zoo.benchmarks.stats import digits, mean
from zoo.benchmarks.suite import check_data, check_devices, on_cpu, planned_run
from zoo.errors import RunError, UsageError, nearest
from zoo.files import replacing
from zoo.settings.overrides import as_overrides, typed


@dataclass
class Sweeper:
    """The settings of the search itself."""

    n_trials: int = 20  # number of trials, each with other settings
    seeds: list[int] = field(default_factory=lambda: [1000, 1001, 1002])  # tuning seeds, which select the settings
    sampler_seed: int = 0  # seed of Optuna's sampler
    jobs: int | None = None  # runs at a time; null for as many as there are cores
    dir: str | None = None  # folder of the search; null for tune/<algo>-<env>


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    try:
        optuna: Any = importlib.import_module("optuna")
        importlib.import_module("scipy")
    except ImportError as error:
        raise UsageError(f"sweeper=optuna needs {error.name}. Type: pip install 'rl-zoo[tune]'") from error
    sweeper, seeds, fixed, searched = parse(arguments)
    keys = dict(one.split("=", 1) for one in fixed if "=" in one)
    folder = Path(sweeper.dir or f"tune/{keys.get('algo', 'several')}-{keys.get('env', 'several')}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=sweeper.sampler_seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    rows: list[dict[str, Any]] = []
    for number in range(sweeper.n_trials):
        trial = study.ask()
        chosen = {override.get_key_element(): asked(trial, override) for override in searched}
        overrides = [*fixed, *as_overrides(chosen)]
        try:
            values, sign = run(overrides, sweeper.seeds, sweeper.jobs, folder / "search")
        except (RunError, UsageError) as error:  # these settings do not work
            if isinstance(error, UsageError) and not rows:
                raise  # most likely no settings would work
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            print(f"trial {number}: failed. {error}")
            values = []
        else:
            study.tell(trial, sign * statistics.mean(values))
            print(f"trial {number}: {mean_of(values)}   {' '.join(as_overrides(chosen))}", flush=True)
        rows.append({"trial": number, **chosen, "mean": statistics.mean(values) if values else ""})
        with replacing(folder / "trials.csv") as file:
            file.write(as_csv(rows).encode())
    known = [row for row in rows if row["mean"] != ""]
    if not known:
        raise RunError(f"all {len(rows)} trials failed. Their logs are in {folder}/")
    best = max(known, key=lambda row: sign * float(row["mean"]))
    found = as_overrides({key: value for key, value in best.items() if key not in ("trial", "mean")})
    values, _ = run([*fixed, *found], seeds, sweeper.jobs, folder / "test")
    evaluated = f"seeds {','.join(map(str, seeds))} (the test seeds)"
    print(
        f"\nbest, trial {best['trial']}: {mean_of(values)} with {evaluated}; "
        f"{best['mean']:{digits(best['mean'])}} with the tuning seeds"
    )
    print(f"zoo run {' '.join(map(typed, [*fixed, *found]))}")
    print(f"written to {folder}/: every run, and trials.csv")
    return 0


def parse(arguments: Sequence[str]) -> tuple[Sweeper, list[int], list[str], list[Override]]:
    """The sweeper's settings, the test seeds, the fixed overrides and the searched ones.

    Raises:
        UsageError: there is nothing to search, or tuning and test seeds overlap or are given twice.
    """
    (*_, chosen) = [one.partition("=")[2] for one in arguments if one.startswith("sweeper=")]
    if chosen != "optuna":
        raise UsageError(f"sweeper={chosen} does not exist. There is: optuna.")
    own = [one.removeprefix("sweeper.") for one in arguments if one.startswith("sweeper.")]
    own = [re.sub(r"^seeds=(\d+(,\d+)*)$", r"seeds=[\1]", one) for one in own]
    for key in (one.partition("=")[0] for one in own):
        if key not in vars(Sweeper()):
            raise UsageError(f"sweeper.{key} does not exist. {nearest(key, vars(Sweeper()))}")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Sweeper), OmegaConf.from_dotlist(own))
        sweeper: Any = OmegaConf.to_object(merged)
        rest = [one for one in arguments if not one.startswith(("sweeper=", "sweeper."))]
        overrides = OverridesParser.create().parse_overrides(rest)
    except Exception as error:  # OmegaConf or Hydra cannot parse it
        reason = next(line for line in str(error).splitlines() if not line.startswith("Error parsing override"))
        raise UsageError(f"{' '.join(arguments)}: {reason}") from error
    if where := next((one for one in rest if one.startswith("run_dir=")), None):
        raise UsageError(f"{where}: each run of a search has its own folder. Name the search's folder: sweeper.dir=DIR")
    if where := next((one for one in rest if one.startswith("seeds=")), None):
        raise UsageError(
            f"{where}: a search takes seed=0,1,2 for the test seeds and sweeper.seeds=[...] for the tuning seeds"
        )
    searched = [one for one in overrides if one.is_sweep_override() and one.get_key_element() != "seed"]
    if not searched:
        raise UsageError(
            "sweeper=optuna has nothing to search. Give a range, such as 'algo.lr=tag(log,interval(1e-5,1e-3))' or "
            "algo.tau=0.005,0.01"
        )
    for key, number in (("n_trials", sweeper.n_trials), ("jobs", sweeper.jobs)):
        if number is not None and number < 1:
            raise UsageError(f"sweeper.{key}={number} must be at least 1.")
    seeds: list[int] = [0, 1, 2]
    for override in overrides:
        if override.get_key_element() == "seed":
            try:
                values = override.sweep_string_iterator() if override.is_sweep_override() else [override.value()]
                seeds = [int(str(value)) for value in values]
            except (ValueError, HydraException) as error:
                raise UsageError(f"{override.input_line} are not seeds. Give numbers, such as seed=0,1,2") from error
    for key, given in (("seed", seeds), ("sweeper.seeds", sweeper.seeds)):
        if not given or len(set(given)) < len(given):
            raise UsageError(f"{key}={given} must be at least one seed, without duplicates.")
    if both := sorted(set(seeds) & set(sweeper.seeds)):
        raise UsageError(f"seed {both[0]} is both a tuning and a test seed. Change sweeper.seeds or seed.")
    fixed = [str(one.input_line) for one in overrides if one not in searched and one.get_key_element() != "seed"]
    return sweeper, seeds, fixed, searched


def asked(trial: Any, override: Override) -> Any:
    """Optuna's proposal for one key. Raises UsageError if the key cannot be searched."""
    try:
        return suggest(trial, override)
    except ValueError as error:
        raise UsageError(f"{override.input_line} cannot be searched: {error}") from error


def suggest(trial: Any, override: Override) -> Any:
    """Optuna's proposal for one key: `interval(a,b)` with the tags log and int, `range(a,b)` or `choice(a,b)`."""
    key: str = override.get_key_element()
    sweep: Any = override.value()
    if isinstance(sweep, IntervalSweep):
        low, high = sweep.start, sweep.end
        assert low is not None
        assert high is not None
        if "int" in sweep.tags or (isinstance(low, int) and isinstance(high, int)):  # int(interval(a,b))
            return trial.suggest_int(key, int(low), int(high), log="log" in sweep.tags)
        return trial.suggest_float(key, float(low), float(high), log="log" in sweep.tags)
    if isinstance(sweep, RangeSweep):
        return trial.suggest_categorical(key, list(sweep.range()))
    if isinstance(sweep, ChoiceSweep):
        choices = [getattr(one, "text", one) for one in sweep.list]
        return choices[trial.suggest_categorical(key, range(len(choices)))]  # Optuna warns about choices that are lists
    raise UsageError(f"{override.input_line} cannot be searched. Give interval(a,b), range(a,b) or choice(a,b).")


def run(overrides: list[str], seeds: Sequence[int], jobs: int | None, folder: Path) -> tuple[list[float], int]:
    """The final evaluations of runs with these settings, one per seed; and 1 to maximize, -1 to minimize.

    Raises:
        RunError: a run failed or has no final evaluation.
    """
    runs = [planned_run((*overrides, f"seed={seed}"), "the search") for seed in seeds]
    check_devices(runs)
    check_data(runs)
    with showing() as show:
        here = Local(jobs, folder, per_gpu=0) if on_cpu(runs) else Local(jobs, folder)
        finished = Runner(runs, folder, here, show=show).go()
    failures(finished)
    results = [found for job in finished if isinstance(found := read_run(job.dir), Result)]
    values = [result.figure("final") for result in results]
    if not values or not np.isfinite(values).all():
        raise RunError(f"the last evaluations are not all known: {values}")
    return values, -1 if results[0].measure in LEAST_IS_BEST else 1


def mean_of(values: Sequence[float]) -> str:
    """The mean, with an interval if there are enough runs."""
    return str(mean(np.array(values)))
