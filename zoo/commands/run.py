"""`zoo run`: one run, several, or one that is continued."""

import csv
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import INTERRUPTED, UsageError, guarded

if TYPE_CHECKING:
    from zoo.runs.run import Run
    from zoo.settings.config import RunConfig
    from zoo.settings.registry import Algorithm, Setting


def main(arguments: list[str], file: Path | None = None) -> int:
    if {"-h", "--help"} & set(arguments):
        print(usage([argument for argument in arguments if argument not in ("-h", "--help")], file))
        return 0
    multirun = {"-m", "--multirun"} & set(arguments)
    arguments = [argument for argument in arguments if argument not in ("-m", "--multirun")]
    if multirun and any(argument.startswith("sweeper=") for argument in arguments):
        from zoo.benchmarks.tune import main as tune_main

        return tune_main(arguments)
    from zoo.settings.compose import compose, expand

    if not multirun:
        if any(argument.startswith("resume=") for argument in arguments):
            return _resume(arguments, file)
        return _train(*compose(arguments, file))
    # all of them first: a typing error must not end the third run
    composed = [compose(job, file) for job in expand(arguments)]
    run_dirs = [config.run_dir for config, _, _ in composed if config.run_dir is not None]
    if len(set(run_dirs)) < len(run_dirs):
        raise UsageError(
            f"run_dir={run_dirs[0]} is one folder for several runs. Leave run_dir out: each run then makes its own."
        )
    worst = 0
    for number, job in enumerate(composed, 1):
        print(f"run {number} of {len(composed)}", flush=True)
        code = guarded(_train, *job)
        if code == INTERRUPTED:
            return code
        worst = max(worst, code)  # the others may still work
    return worst


def _train(config: "RunConfig", algorithm: "Algorithm", settings: dict[str, Any]) -> int:
    """One run from its start to its end."""
    from zoo.runs.execute import execute

    if not gc.get_freeze_count():
        gc.freeze()  # a million objects of what was imported, which would be searched for garbage again and again
    return _report(execute(config, algorithm, settings))


def _resume(arguments: list[str], file: Path | None) -> int:
    from zoo.runs.load import reopen

    if len(arguments) > 1:
        others = " ".join(argument for argument in arguments if not argument.startswith("resume="))
        raise UsageError(
            f"resume continues a run with the settings it began with; {others} cannot be given. "
            "Leave it out, or start a new run."
        )
    run_dir = Path(arguments[0].removeprefix("resume=").strip("'\"")).expanduser()
    config, algorithm, record = reopen(run_dir, file)
    config.resume = str(run_dir)
    return _train(config, algorithm, record["config"])


def _report(run: "Run") -> int:
    """Prints what a finished run reached and where everything lies; exit code 0."""
    with (run.dir / "evaluations.csv").open(newline="") as file:
        # not run.evaluations: a run that was killed after its last step evaluates nothing when it is resumed
        *_, row = csv.DictReader(file)
    score = f", normalized score {float(row['score']):.1f}" if row["score"] else ""
    print(
        f"\n{run.algorithm.name} on {run.config.env.name}: return {float(row['return_mean']):.1f} "
        f"+- {float(row['return_std']):.1f} over {len(row['returns'].split())} episodes{score}, "
        f"after {int(row['step']):,} steps"
    )
    print(f"written to {run.dir}/")
    written = {f"{stage}.csv": "losses of that stage, pass by pass" for stage in run.record.get("stages", {})} | {
        "evaluations.csv": "every evaluation, episode by episode",
        "metrics.csv": "losses and speed",
        "config.yaml": "the settings",
        "run.json": "versions, hardware, dataset, times",
        "checkpoint.pt": f"the agent: zoo eval {run.dir}",
        "replay/": "its replay buffer",
    }
    for name, content in written.items():
        if (run.dir / name).exists():
            print(f"  {name:<16} {content}")
    return 0


def usage(arguments: list[str], file: Path | None) -> str:
    """Every key with its default and one line of meaning, read from the dataclasses that define them."""
    from zoo.settings.registry import Algorithm, algorithm, folder, settings

    zoo = Path(__file__).parents[1]
    lines = ["usage: zoo run algo=NAME env=NAME [key=value ...]     -m for several runs: seed=0,1,2", ""]
    lines += _table(
        settings(zoo / "settings" / "config.py", "RunConfig"),
        "",
        {"algo": "required", "env": "required", "sampler": "uniform", "corruption": "none"},
    )
    lines += ["", "of the environment:"]
    lines += _table(settings(folder("envs") / "config.py", "EnvConfig"), "env.", {"id": "from env="})
    for group, file_name in (("sampler", "samplers.py"), ("corruption", "corruption.py")):
        name, *rows = settings(zoo / "data" / file_name, f"{group.title()}Config")
        lines += ["", f"of the {group}, {name.comment}:", *_table(rows, f"{group}.", {})]
    chosen = Algorithm(file) if file else None
    for argument in arguments:
        if argument.startswith("algo="):
            chosen = algorithm(argument.removeprefix("algo="))
    if chosen:
        lines += ["", f"{chosen.title}", *_table(settings(chosen.path, "Config"), "algo.", {})]
    else:
        lines += ["", "An algorithm's own keys: zoo run algo=NAME --help"]
    return "\n".join(lines)


def _table(rows: "list[Setting]", prefix: str, defaults: dict[str, str]) -> list[str]:
    return [
        f"  {prefix + row.name:<22} {defaults.get(row.name, row.default.strip(chr(34))):<14} {row.comment}"
        for row in rows
    ]
