"""The command line. Nothing heavy is imported before it is known what is asked: `--help` and `list` answer at once."""

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import Interrupted, RunError, UsageError, nearest

if TYPE_CHECKING:
    from zoo.config import RunConfig
    from zoo.registry import Algorithm, Setting
    from zoo.run import Run

USAGE = """\
zoo: deep-RL and offline-RL algorithms, one file each

  zoo run algo=iql env=hopper         train, evaluate, log, checkpoint; zoo run --help shows every key
  zoo run -m algo=iql env=hopper seed=0,1,2
                                      several runs, one after the other
  zoo run -m sweeper=optuna algo=iql env=hopper 'algo.tau=interval(0.001,0.1)'
                                      a search for settings
  zoo run resume=DIR                  continue a run that was interrupted
  zoo eval DIR                        play episodes with a trained policy
  zoo bench SUITE                     the runs of a benchmark, as many at a time as there are cores
  zoo report DIR                      tables, curves and a page of the runs in a folder, beside the published figures
  zoo list                            algorithms, environments, datasets, and what works with what
  zoo data list|show|make|import|verify
                                      offline datasets
  zoo doctor                          what is installed, what the machine offers, what is missing

  zoo COMMAND --help says more about each."""


def run_command(arguments: list[str], file: Path | None = None) -> int:
    if {"-h", "--help"} & set(arguments):
        print(run_help([argument for argument in arguments if argument not in ("-h", "--help")], file))
        return 0
    multirun = {"-m", "--multirun"} & set(arguments)
    arguments = [argument for argument in arguments if argument not in ("-m", "--multirun")]
    if multirun and any(argument.startswith("sweeper=") for argument in arguments):
        from zoo.benchmarks.tune import main as tune_main

        return tune_main(arguments)
    from zoo.compose import compose, expand

    if not multirun:
        if any(argument.startswith("resume=") for argument in arguments):
            return resume_command(arguments, file)
        return train_and_report(*compose(arguments, file))
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
        code = guarded(train_and_report, *job)
        if code == INTERRUPTED:
            return code
        worst = max(worst, code)  # the others may still work
    return worst


def train_and_report(config: "RunConfig", algorithm: "Algorithm", settings: dict[str, Any]) -> int:
    """One run from its start to its end."""
    from zoo.execute import execute

    return report(execute(config, algorithm, settings))


def resume_command(arguments: list[str], file: Path | None) -> int:
    from zoo.api import reopen

    if len(arguments) > 1:
        others = " ".join(argument for argument in arguments if not argument.startswith("resume="))
        raise UsageError(
            f"resume continues a run with the settings it began with; {others} cannot be given. "
            "Leave it out, or start a new run."
        )
    run_dir = Path(arguments[0].removeprefix("resume=").strip("'\"")).expanduser()
    config, algorithm, record = reopen(run_dir, file)
    config.resume = str(run_dir)
    return train_and_report(config, algorithm, record["config"])


def report(run: "Run") -> int:
    """Tells what a finished run reached and where everything lies; exit code 0."""
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


def run_help(arguments: list[str], file: Path | None) -> str:
    """Every key with its default and one line of meaning, read from the dataclasses that define them."""
    from zoo.registry import Algorithm, algorithm, folder, settings

    lines = ["usage: zoo run algo=NAME env=NAME [key=value ...]     -m for several runs: seed=0,1,2", ""]
    lines += _table(
        settings(Path(__file__).with_name("config.py"), "RunConfig"),
        "",
        {"algo": "required", "env": "required", "sampler": "uniform", "corruption": "none"},
    )
    lines += ["", "of the environment:"]
    lines += _table(settings(folder("envs") / "config.py", "EnvConfig"), "env.", {"id": "of the entry"})
    for group, file_name in (("sampler", "samplers.py"), ("corruption", "corruption.py")):
        name, *rows = settings(Path(__file__).parent / "data" / file_name, f"{group.title()}Config")
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


def eval_command(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="zoo eval",
        description="Plays episodes with a trained policy: one in each environment, from fixed seeds, as the run's own "
        "evaluations did.",
    )
    parser.add_argument("run_dir", type=Path, help="a run's folder")
    parser.add_argument("--episodes", type=int, help="how many (default: the run's eval_episodes)")
    parser.add_argument(
        "--seed", type=int, help="seed of the environments (default: the run's, as in its own evaluations)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--deterministic", action="store_true", help="take the best actions, whatever the run did")
    how.add_argument("--explore", action="store_true", help="act by chance, as in training, whatever the run did")
    parser.add_argument("--file", type=Path, help="the algorithm file, if it is not one of the zoo's")
    args = parser.parse_args(arguments)
    if args.episodes is not None and args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} must be at least 1.")
    from zoo.api import load_agent
    from zoo.envs import make
    from zoo.evaluation import evaluate
    from zoo.run import judged, summary

    config, agent, _ = load_agent(args.run_dir, args.file)
    try:
        envs = make(config.env, args.episodes or config.eval_episodes, config.threads)
    except ValueError as error:
        raise UsageError(str(error)) from error
    explore = args.explore or not (args.deterministic or config.eval_deterministic)
    episodes = evaluate(agent, envs, config.seed if args.seed is None else args.seed, explore)
    for index, (episode_return, length) in enumerate(zip(episodes.returns, episodes.lengths, strict=True)):
        print(f"episode {index:>3}  return {episode_return:10.2f}  steps {length:>5}")
    row = summary(episodes, config)
    print(f"mean         return {row['return_mean']:10.2f} +- {row['return_std']:.2f}{judged(row)}")
    return 0


def list_command(arguments: list[str]) -> int:
    argparse.ArgumentParser(prog="zoo list", description="Algorithms, environments and datasets.").parse_args(arguments)
    from zoo.data.catalog import available
    from zoo.registry import algorithms, describe_environments, describe_families

    print("algorithms (algo=)")
    for name, algorithm in algorithms().items():
        print(f"  {name:<18} {algorithm.setting:<17} {'/'.join(algorithm.action_spaces):<19} {algorithm.title}")
    print("\nenvironments (env=), and any other Gymnasium id")
    for name, gymnasium_id, comment in describe_environments():
        print(f"  {name:<18} {gymnasium_id:<20} {comment}")
    for ids, title in describe_families():
        print(f"  {ids:<39} {title}")
    print("\ndatasets (dataset=), for offline algorithms; zoo data --help says how to make or import more")
    for name in available():
        print(f"  {name}")
    return 0


def data_command(arguments: list[str]) -> int:
    from zoo.data_cli import main as data_main

    return data_main(arguments)


def bench_command(arguments: list[str]) -> int:
    from zoo.benchmarks.bench import main as bench_main

    return bench_main(arguments)


def report_command(arguments: list[str]) -> int:
    from zoo.benchmarks.report import main as report_main

    return report_main(arguments)


def doctor_command(arguments: list[str]) -> int:
    argparse.ArgumentParser(
        prog="zoo doctor", description="What is installed, what the machine offers, what is missing."
    ).parse_args(arguments)
    from zoo.doctor import main as doctor_main

    return doctor_main()


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": run_command,
    "eval": eval_command,
    "list": list_command,
    "data": data_command,
    "bench": bench_command,
    "report": report_command,
    "doctor": doctor_command,
}


INTERRUPTED = 130  # the shell's 128 + SIGINT


def guarded(command: Callable[..., int], *arguments: Any) -> int:
    """Runs a command; turns its errors into one line and an exit code: 2 for the user's mistake, 1 for a failure."""
    try:
        return command(*arguments)
    except UsageError as error:
        complain(error)
        return 2
    except RunError as error:
        complain(error)
        return 1
    except Interrupted as error:
        complain(error)
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has gone
        return 0


def complain(error: Exception) -> None:
    """An error as one line."""
    print(f"zoo: {' '.join(str(error).split())}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from zoo import __version__

        print(__version__)
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"zoo: {name} is not a command. {nearest(name, COMMANDS)}", file=sys.stderr)
        return 2
    return guarded(COMMANDS[name], rest)


def run_file(path: str) -> None:
    """What an algorithm file does when it is run itself: `zoo run` with this file as the algorithm."""
    sys.exit(guarded(run_command, sys.argv[1:], Path(path).resolve()))


if __name__ == "__main__":
    sys.exit(main())
