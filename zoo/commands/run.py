"""`zoo run`: starts one run or several, or continues one."""

import csv
import functools
import gc
import os
import re
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from zoo.errors import INTERRUPTED, Interrupted, UsageError, guarded, quoted
from zoo.machine import expanded

if TYPE_CHECKING:
    from zoo.runs.run import Run
    from zoo.settings.config import RunConfig
    from zoo.settings.registry import Algorithm, Setting


def main(arguments: list[str], file: Path | None = None) -> int:
    if {"-h", "--help"} & set(arguments):
        print(usage([argument for argument in arguments if argument not in ("-h", "--help")], file))
        return 0
    search = any(argument.startswith(("sweeper=", "sweeper.")) for argument in arguments)
    if search and file:
        raise UsageError(
            "a search takes an algorithm by its name. Put the file into algos/ of a checkout, then: "
            f"zoo run -m sweeper=optuna algo={file.stem} env=..."
        )
    multirun = {"-m", "--multirun"} & set(arguments)
    arguments = [argument for argument in arguments if argument not in ("-m", "--multirun")]
    if multirun and any(argument.startswith("sweeper=") for argument in arguments):
        from zoo.benchmarks.tune import main as tune_main

        return tune_main(arguments)
    if search:
        raise UsageError("sweeper= and sweeper.* are for a search. Begin it so: zoo run -m sweeper=optuna")
    from zoo.runs.interruption import Interruption
    from zoo.settings.compose import compose
    from zoo.settings.overrides import expand, typed, varying
    from zoo.settings.seeds import seed_by_seed

    if any(argument.startswith("seeds=") for argument in arguments):
        if multirun:
            raise UsageError("-m is for runs one after another: seed=0,1,2 without seeds=, or leave -m out")
        return _train_together(seed_by_seed(arguments, file))
    if not multirun:
        if any(argument.startswith("resume=") for argument in arguments):
            return _resume(arguments, file)
        return _train(*compose(arguments, file))
    # compose all of them first: a typing error must not surface only at the third run
    runs = expand(arguments)
    composed = [compose(run, file) for run in runs]
    run_dirs = [config.run_dir for config, _, _ in composed if config.run_dir is not None]
    if len(set(run_dirs)) < len(run_dirs):
        raise UsageError(
            f"run_dir={run_dirs[0]} is one folder for several runs. Leave run_dir out: each run then makes its own."
        )
    worst = 0
    for number, (job, own) in enumerate(zip(composed, varying(runs), strict=True), 1):
        print(f"run {number} of {len(composed)}{own and f': {own}'}", flush=True)
        try:
            code = guarded(_train, *job)
        except Exception:  # such as one from a user's environment
            traceback.print_exc()
            code = 1
        if code == INTERRUPTED or Interruption.came:  # the signal may come after the last step
            for left in runs[number:]:
                print(f"zoo: not begun: {job[1].command} {' '.join(map(typed, left))}", file=sys.stderr)
            return INTERRUPTED if runs[number:] else code
        worst = max(worst, code)  # the others may still succeed
    folder = _folder([config for config, _, _ in composed])
    if len(runs) > 1 and folder.is_dir():
        print(f"\nall of them: zoo report {quoted(folder)}")
    return worst


def _folder(configs: "list[RunConfig]") -> Path:
    """The folder that several runs are in."""
    from zoo.runs.execute import parent_of

    return Path(os.path.relpath(os.path.commonpath([parent_of(one).absolute() for one in configs])))


def _train(config: "RunConfig", algorithm: "Algorithm", settings: dict[str, Any]) -> int:
    """Runs one run from its start to its end."""
    from zoo.runs.execute import execute

    _imported()
    return _report(execute(config, algorithm, settings))


def _imported() -> None:
    """Exempts all imported objects, about a million, from repeated garbage collection. Once per process."""
    if not gc.get_freeze_count():
        gc.freeze()


def _train_together(jobs: "list[tuple[RunConfig, Algorithm, dict[str, Any]]]") -> int:
    """Runs several seeds side by side in this process."""
    from zoo.runs.device import resolve_device
    from zoo.runs.execute import execute
    from zoo.runs.together import Together
    from zoo.settings.overrides import as_overrides

    _imported()
    seeds = [config.seed for config, _, _ in jobs]
    together = Together(seeds, resolve_device(jobs[0][0].device))
    ended = together.run([functools.partial(execute, *job, together) for job in jobs])
    finished = {seed: run for seed, run in zip(seeds, ended, strict=True) if not isinstance(run, Exception)}
    rows = [_last_evaluation(run) for run in finished.values()]
    for (seed, run), row in zip(finished.items(), rows, strict=True):
        print(f"seed {seed}: return {float(row['return_mean']):.1f}{_score(row)}; written to {run.dir}/")
    if len(rows) > 1:
        returns = [float(row["return_mean"]) for row in rows]
        print(f"{len(rows)} seeds: return {mean(returns):.1f} +- {stdev(returns):.1f} (standard deviation over seeds)")
    failures = {str(error): error for error in ended if isinstance(error, Exception)}  # what stops all is said once
    stopped = [error.run_dir for error in failures.values() if isinstance(error, Interrupted) and error.run_dir]
    if 1 < len(stopped) == len(failures):
        within = stopped[0].parent
        all_of_it = {run_dir.parent for run_dir in stopped} == {within} and stopped[0].name.startswith("seed")
        (continued,) = as_overrides({"resume": within if all_of_it else stopped})
        raise Interrupted(
            f"interrupted; the checkpoints of {len(stopped)} seeds are written. "
            f"Continue: {jobs[0][1].command} {quoted(continued)}"
        )
    return max([guarded(_fail, error) for error in failures.values()], default=0)


def _fail(error: Exception) -> int:
    raise error


def _resume(arguments: list[str], file: Path | None) -> int:
    from zoo.runs.load import reopen
    from zoo.runs.record import eval_command, read_record
    from zoo.settings.overrides import folders

    device, steps = (
        next((one.partition("=")[2] for one in arguments if one.startswith(key)), None) for key in ("device=", "steps=")
    )
    if steps is not None and not re.fullmatch(r"\d+(_\d+)*", steps):
        raise UsageError(f"steps={steps} is of the wrong type: steps takes a whole number.")
    arguments = [argument for argument in arguments if not argument.startswith(("device=", "steps="))]
    if len(arguments) > 1:
        others = " ".join(argument for argument in arguments if not argument.startswith("resume="))
        if not others:
            raise UsageError("resume is given twice. Several seeds of one run: resume=[DIR,DIR]")
        raise UsageError(
            f"resume continues a run with the settings it began with; {others} cannot be given, device= and steps= "
            "alone can. Leave it out, or start a new run from where it ended: init_from=DIR"
        )
    given = [expanded(one) for one in folders(arguments[0].removeprefix("resume="))]
    if len(given) == 1 and not (given[0] / "run.json").exists():
        of_seeds = {path.parent: read_record(path.parent) for path in sorted(given[0].glob("seed*/run.json"))}
        unfinished = [
            run_dir
            for run_dir, record in of_seeds.items()
            if record["status"] != "finished" or int(steps or 0) > record["config"]["steps"]
        ]
        rest = _not_begun(of_seeds.values())
        if of_seeds and not unfinished:
            next_step = rest or f"See one: {eval_command(next(iter(of_seeds)))}"
            raise UsageError(f"{arguments[0]}: all of its runs have finished. {next_step}")
        if rest:
            print(f"{given[0]}: not all of its runs had begun. {rest}")
        given = unfinished or given
    jobs, shared = [], []
    for run_dir in given:
        config, algorithm, record = reopen(run_dir, file)
        config.resume, config.device, config.steps = str(run_dir), device or config.device, int(steps or config.steps)
        jobs.append((config, algorithm, record["config"]))
        shared.append(record["config"] | {"seed": None, "run_dir": None})
    if any(settings != shared[0] for settings in shared):
        raise UsageError(f"{arguments[0]}: these runs differ in more than their seeds. Continue each by itself")
    return _train_together(jobs) if len(jobs) > 1 else _train(*jobs[0])


def _not_begun(records: Collection[dict[str, Any]]) -> str:
    """How to start those seeds of a command that had not begun when it was stopped; empty if there are none."""
    asked = {seed for record in records for seed in record.get("seeds", ())}
    left = sorted(asked - {record["config"]["seed"] for record in records})
    if not left:
        return ""
    seeds = ",".join(map(str, left)) if len(left) > 1 else f"{left[0]}-{left[0]}"  # a number alone is a count of seeds
    return f"The command that they began with begins the rest: seeds={seeds}"


def _report(run: "Run") -> int:
    """Prints what a finished run reached and where its files are; returns exit code 0."""
    from zoo.runs.record import eval_command

    row = _last_evaluation(run)
    print(
        f"\n{run.algorithm.name} on {run.config.env.name}: return {float(row['return_mean']):.1f} "
        f"+- {float(row['return_std']):.1f} over {len(row['returns'].split())} episodes{_score(row)}, "
        f"after {int(row['step']):,} steps"
    )
    print(f"written to {run.dir}/")
    written = {f"{stage}.csv": "losses of that stage, pass by pass" for stage in run.record.get("stages", {})} | {
        "evaluations.csv": "every evaluation, episode by episode",
        "metrics.csv": "losses and speed",
        "config.yaml": "the settings",
        "run.json": "versions, hardware, dataset, times",
        "checkpoint.pt": f"the agent: {eval_command(run.dir)}",
        "replay/": "its replay buffer",
    }
    for name, content in written.items():
        if (run.dir / name).exists():
            print(f"  {name:<16} {content}")
    return 0


def _last_evaluation(run: "Run") -> dict[str, str]:
    """The last row of the file: a run that was killed after its last step evaluates nothing when it is resumed."""
    with (run.dir / "evaluations.csv").open(newline="") as file:
        *_, row = csv.DictReader(file)
    return row


def _score(row: dict[str, str]) -> str:
    return f", normalized score {float(row['score']):.1f}" if row["score"] else ""


def usage(arguments: list[str], file: Path | None) -> str:
    """Every key with its default and a line of explanation, read from the dataclasses that define them.

    With a preset, an algorithm and an environment, the preset's values are in place of the defaults.
    """
    from zoo.settings.registry import Algorithm, algorithm, folder, settings

    zoo, values = Path(__file__).parents[1], _of_preset(arguments, file)
    command = f"python {quoted(sys.argv[0])}" if file else "zoo run algo=NAME"
    lines = [f"usage: {command} env=NAME [key=value ...]     -m for several runs: seed=0,1,2", ""]
    lines += _table(
        [row for row in settings(zoo / "settings" / "config.py", "RunConfig") if not file or row.name != "algo"],
        "",
        {"algo": "required", "env": "required", "sampler": "uniform", "corruption": "none"} | values,
    )
    lines += [f"  {'seeds':<22} {'':<14} in place of seed: 8, 0-7 or 0,3,5; as many runs, side by side"]
    lines += [f"  {'':<22} {'':<14} each in run_dir/seedN, or in a folder of its own: run_dir=[a,b]"]
    lines += ["", "of the environment:"]
    lines += _table(settings(folder("envs") / "config.py", "EnvConfig"), "env.", {"env.id": "from env="} | values)
    for group, file_name in (("sampler", "samplers.py"), ("corruption", "corruption.py")):
        name, *rows = settings(zoo / "data" / file_name, f"{group.title()}Config")
        lines += ["", f"of the {group}, {name.comment}:", *_table(rows, f"{group}.", values)]
    chosen = Algorithm(file) if file else None
    for argument in arguments:
        if argument.startswith("algo=") and not file:
            chosen = algorithm(argument.removeprefix("algo="))
    if not file:
        sweeper = settings(folder("benchmarks") / "tune.py", "Sweeper")
        lines += ["", "of a search, -m sweeper=optuna:", *_table(sweeper, "sweeper.", {"sweeper.dir": "null"})]
    if chosen:
        lines += ["", f"{chosen.title}", *_table(settings(chosen.path, "Config"), "algo.", values)]
    else:
        lines += ["", "An algorithm's own keys: zoo run algo=NAME --help"]
    return "\n".join(lines)


def _of_preset(arguments: list[str], file: Path | None) -> dict[str, str]:
    """The values of the preset that the arguments name; empty if they name none, or not the task."""
    if not any(argument.startswith("preset=") for argument in arguments):
        return {}
    from zoo.settings.compose import of_preset
    from zoo.settings.overrides import parse, value_of

    given = {override.get_key_element(): override for override in parse(arguments)}
    algo = file.stem if file else value_of(given["algo"]) if "algo" in given else ""
    if not algo or "env" not in given:
        return {}
    settings = of_preset(given, algo, value_of(given["env"]))
    return {key: value_of(override) for key, override in settings.items()} | {"preset": value_of(given["preset"])}


def _table(rows: "list[Setting]", prefix: str, values: dict[str, str]) -> list[str]:
    """A line for each setting, with its value from `values`, by its whole key, or its default."""
    keys = {prefix + row.name: row for row in rows}
    return [f"  {key:<22} {values.get(key, row.default.strip(chr(34))):<14} {row.comment}" for key, row in keys.items()]
