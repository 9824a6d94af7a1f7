"""`zoo data`: the offline datasets at hand, what is in them, and how to get more."""

import argparse
import importlib.util
import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from zoo.data.catalog import (
    D4RL_KINDS,
    FILE_SUFFIXES,
    SCRIPTED_KINDS,
    ZOO_NAMESPACE,
    Source,
    at_hand,
    parse_mixture,
    resolve,
    store,
)
from zoo.errors import Interrupted, RunError, UsageError, nearest

if TYPE_CHECKING:  # `list` reads metadata only: nothing heavy is imported for it
    from zoo.data.arrays import Arrays
    from zoo.envs import EnvConfig
    from zoo.spec import Spec

USAGE = """\
usage: zoo data COMMAND

  zoo data list                       the datasets at hand
  zoo data show hopper/demo           size, returns, lengths; draws their distribution as a PNG
  zoo data make hopper medium         train the zoo's SAC and collect data with it: random, medium, medium-replay,
                                      expert, medium-expert
                                      pointmaze-stitch without a kind: the detours of its paper
  zoo data import FILE hopper/NAME    take a D4RL-layout HDF5 file into the local Minari store
  zoo data verify hopper/demo         is it whole, finite, and of this environment?

  zoo data COMMAND --help says more about each."""

SIZE = 1_000_000  # transitions of each of D4RL's kinds
SCRIPTED_SIZE = 200_000  # 1,000 episodes of Point Maze
STEPS_PER_SECOND = 100  # of SAC on Hopper on one core, for the estimate that `make` gives


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, like every other mistake."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See: {self.prog} --help")


def main(arguments: list[str]) -> int:
    """Runs one of the commands; returns its exit code.

    Raises:
        UsageError: the user's mistake.
        RunError: a failure.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        raise UsageError(f"data {name} is not a command. {nearest(name, COMMANDS)}")
    return COMMANDS[name](rest)


# --- list -------------------------------------------------------------------------------------------------------------


def list_command(arguments: list[str]) -> int:
    Parser(prog="zoo data list", description="The datasets at hand.").parse_args(arguments)
    rows = []
    for source in at_hand():
        size = sum(path.stat().st_size for path in source.path.rglob("*") if path.is_file())
        try:
            metadata = json.loads((source.path / "metadata.json").read_text())
            counts = [f"{int(metadata[key]):,}" for key in ("total_steps", "total_episodes")]
        except (OSError, ValueError, KeyError, TypeError):
            counts = ["unreadable", ""]
        rows.append([source.name, *counts, f"{size / 1e6:.1f} MB", str(source.path.parent)])
    if rows:
        _print_table(["dataset", "transitions", "episodes", "size", "where"], rows)
    else:
        print(f"none yet, in the package or in {store()}. zoo data --help says how to make or import one.")
    return 0


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    """Columns of text; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in [header, *rows]:
        cells = (
            cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


# --- What a name means ------------------------------------------------------------------------------------------------


def environment(name: str) -> "EnvConfig":
    """An environment of the zoo or of Gymnasium. Raises UsageError with the nearest ones."""
    from zoo.compose import compose

    return compose(["algo=bc", f"env={name}"])[0].env


def locate(name: str, env: str | None) -> tuple["EnvConfig", str]:
    """`hopper/medium`, a full Minari id or a file -> its environment and its name as `dataset=` takes it."""
    if env is not None:
        return environment(env), name.removeprefix(f"{env}/")
    if Path(name).suffix in FILE_SUFFIXES:
        raise UsageError(f"{name} is a file: say which environment it is for, such as --env hopper.")
    parts = name.split("/")
    if len(parts) == 2:
        return environment(parts[0]), parts[1]
    if len(parts) > 2 and re.search(r"-v\d+$", name):
        return environment(parts[-2]), name
    raise UsageError(f"{name} is not ENV/DATASET, such as hopper/demo. See them: zoo data list")


def _spec(env: "EnvConfig") -> "Spec":
    from zoo.envs import make
    from zoo.spec import Spec

    try:
        envs = make(env, 1)
    except ValueError as error:
        raise UsageError(str(error)) from error
    envs.close()
    return Spec.of(envs.single_observation_space, envs.single_action_space)


def _step_limit(env: "EnvConfig") -> int | None:
    from zoo.envs import time_limit

    return time_limit(env.id)


# --- show -------------------------------------------------------------------------------------------------------------


def show_command(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo data show", description="Size, returns and lengths of a dataset, and a PNG of their distribution."
    )
    parser.add_argument("name", help="ENV/DATASET, a mixture such as hopper/random+10%%expert, a Minari id, or a file")
    parser.add_argument("--env", help="the environment, where the name does not say it")
    parser.add_argument("--png", type=Path, help="where to draw (default: ENV-DATASET.png in this folder)")
    args = parser.parse_args(arguments)
    env, name = locate(args.name, args.env)
    from zoo.data.arrays import check_fits
    from zoo.data.load import load_arrays

    arrays, sources = load_arrays(env, name, _step_limit(env))
    check_fits(arrays, _spec(env), name, env)
    returns, lengths = arrays.episode_returns, arrays.episode_lengths
    for source in sources:
        print(f"source       {source.kind}  {source.path}")
    print(f"transitions  {len(arrays.reward):,}")
    print(f"episodes     {len(lengths):,}")
    for label, values in (("returns", returns), ("lengths", lengths)):
        quartiles = f"min {values.min():.1f}  median {_median(values):.1f}  max {values.max():.1f}"
        print(f"{label:<11}  mean {values.mean():.1f}  std {values.std():.1f}  {quartiles}")
    ends = arrays.terminated[arrays.episode_starts + lengths - 1]
    print(f"ends         {ends.mean():.1%} terminated, {1 - ends.mean():.1%} truncated")
    score = env.normalize(returns.mean())
    if score is not None:
        print(f"score        {score:.1f} normalized, of the mean return")
    for source in sources:
        for key, value in _provenance(source).items():
            print(f"{source.name}: {key}: {value}")
    png = args.png or Path(re.sub(r"[^\w.+-]+", "-", f"{env.name}-{Path(name).name}").removesuffix(".hdf5") + ".png")
    if importlib.util.find_spec("matplotlib") is None:
        print("not drawn: that needs pip install 'rl-zoo[plot]'")
        return 0
    _draw(returns, lengths, f"{env.name} / {name}", png)
    print(f"drawn to {png}")
    return 0


def _median(values: Any) -> float:
    import numpy as np

    return float(np.median(values))


def _provenance(source: Source) -> dict[str, Any]:
    """What is recorded of how a dataset came to be."""
    if source.kind == "hdf5":
        import h5py

        with h5py.File(source.path, "r") as file:
            return dict(file.attrs)
    from zoo.data.load import readable

    with readable(source):
        metadata: dict[str, Any] = json.loads((source.path / "metadata.json").read_text())
    shown = ("description", "algorithm_name", "author", "fingerprint")
    return {key: metadata[key] for key in shown if key in metadata} | dict(metadata.get("zoo", {}))


def _draw(returns: Any, lengths: Any, title: str, png: Path) -> None:
    from matplotlib.figure import Figure

    from zoo.checkpoint import replacing

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    figure.suptitle(title)
    for axes, values, label in zip(
        figure.subplots(1, 2), (returns, lengths), ("return", "length (steps)"), strict=True
    ):
        axes.hist(values, bins=50)
        axes.set(xlabel=f"episode {label}", ylabel="episodes")
    with replacing(png) as file:
        figure.savefig(file, format="png")


# --- import -----------------------------------------------------------------------------------------------------------


def import_command(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo data import",
        description="Takes a D4RL-layout HDF5 file into the local Minari store; "
        "old files without next_observations or timeouts too.",
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("name", metavar="ENV/NAME", help="what it will be called: dataset=NAME with env=ENV")
    parser.add_argument("--force", action="store_true", help="replace the dataset of that name")
    args = parser.parse_args(arguments)
    env, name = locate(args.name, None)
    minari_id = _new_id(env, name)
    if not args.file.is_file():
        raise UsageError(f"{args.file} is not a file.")
    from zoo.data.arrays import check_fits, cut_at_breaks
    from zoo.data.load import read
    from zoo.data.minari import check_free, write_minari

    check_free(store() / minari_id, args.force)
    arrays = read(Source(str(args.file), "hdf5", args.file), _step_limit(env))
    check_fits(arrays, _spec(env), str(args.file), env)
    arrays, added = cut_at_breaks(arrays)
    if added:
        print(f"{added} episodes end where the file does not say so: their successor is not the next row.")
    metadata = {
        "description": f"Imported from the D4RL-layout file {args.file.name}.",
        "zoo": _origin(["import", *arguments]),
    }
    write_minari(arrays, store() / minari_id, minari_id, env.id, metadata, force=args.force, flat=True)
    _print_table(HEADER, [_row(f"{env.name}/{name}", arrays, store() / minari_id)])
    print(f"use it: zoo run algo=iql env={env.name} dataset={name}")
    return 0


HEADER = ["dataset", "transitions", "episodes", "mean return", "where"]


def _row(name: str, arrays: "Arrays", folder: Path) -> list[str]:
    counts = [f"{len(arrays.reward):,}", f"{len(arrays.episode_starts):,}"]
    return [name, *counts, f"{arrays.episode_returns.mean():.1f}", f"{folder}/"]


def _new_id(env: "EnvConfig", name: str) -> str:
    if not re.fullmatch(r"[-\w]+", name) or re.search(r"-v\d+$", name):
        raise UsageError(
            f"{name} cannot be a dataset's name: letters, digits, - and _ only, without a version at its end."
        )
    return f"{ZOO_NAMESPACE}/{env.name}/{name}-v0"


def _origin(arguments: list[str]) -> dict[str, Any]:
    """The command and the code that made a dataset."""
    import zoo
    from zoo.provenance import commit

    return {"command": shlex.join(["zoo", "data", *arguments]), "version": zoo.__version__, "commit": commit()}


# --- make -------------------------------------------------------------------------------------------------------------


def make_command(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo data make",
        description="Trains the zoo's SAC and writes D4RL's kinds of dataset by their definitions. "
        "random: uniform actions. expert: the agent with the best evaluation. medium: the first agent evaluated at a "
        "third of the expert's normalized score. medium-replay: the replay buffer up to that moment. "
        "medium-expert: half and half. "
        "A command that was stopped goes on where it was when it is repeated. pointmaze-stitch has a kind of its own, "
        "waypoint, which takes no training: a controller's detours.",
    )
    parser.add_argument("env")
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND",
        help=f"{', '.join(D4RL_KINDS)}, or the environment's own, or with --name a mixture such as "
        "medium-replay+30%%medium; then settings of the training run, key=value",
    )  # fmt: skip
    parser.add_argument(
        "--size", type=int, help=f"transitions of each kind, at least (default {SIZE:,}; {SCRIPTED_SIZE:,} of waypoint)"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="training steps of the expert (default 1,000,000)")
    parser.add_argument("--seed", type=int, default=0, help="decides everything (default 0)")
    parser.add_argument("--run", type=Path, help="a finished run of sac with keep_agents=true, instead of training")
    parser.add_argument("--name", help="the dataset's name, of a single kind or mixture")
    parser.add_argument("--out", type=Path, help="write the dataset's folder here rather than into the Minari store")
    parser.add_argument("--force", action="store_true", help="replace datasets of these names")
    args = parser.parse_intermixed_args(arguments)
    overrides = [text for text in args.kinds if "=" in text]
    kinds = [text for text in args.kinds if "=" not in text]
    env, targets = _check_make(args, kinds, overrides)

    from zoo.collect import Collector, check_kinds, train_sac
    from zoo.data.arrays import concatenate
    from zoo.data.minari import write_minari

    run_dir = args.run
    if run_dir is None and any(check_kinds(kind, env) for kind in kinds):
        run_dir = Path("runs") / env.name / f"sac-data-seed{args.seed}"
        print(
            f"training sac for {args.steps:,} steps in {run_dir}: about "
            f"{math.ceil(args.steps / STEPS_PER_SECOND / 60)} minutes at {STEPS_PER_SECOND} steps/s. "
            f"If it is stopped, the same command goes on.",
            flush=True,
        )
        try:
            train_sac(args.env, args.steps, args.seed, overrides, run_dir)
        except Interrupted as error:
            raise Interrupted(f"stopped; its state is in {run_dir}. Repeat the command to go on.") from error
    collector = Collector(env, run_dir, args.size, args.seed)
    rows = []
    for kind, folder in targets.items():
        print(f"collecting {kind}", flush=True)
        parts = collector.mixture(kind)
        arrays = concatenate([part.arrays for _, part in parts])
        name = args.name or kind
        origin = _origin(["make", *arguments]) | {
            "seed": args.seed,
            "training": collector.training(),
            "parts": [part.record(part_kind) for part_kind, part in parts],
        }
        metadata = {
            "description": f"{env.id}, {kind}: made by `{origin['command']}` of rl-zoo {origin['version']}.",
            "author": {"rl-zoo"},
            "algorithm_name": "SAC" if run_dir else "none: controllers and random actions",
            "zoo": origin,
        }
        flat = args.out is None  # what is made for elsewhere is to be small
        write_minari(arrays, folder, _new_id(env, name), env.id, metadata, force=args.force, flat=flat)
        rows.append(_row(f"{env.name}/{name}", arrays, folder))
        if any(part_kind == "medium-replay" for part_kind, _ in parts):
            print(
                f"medium-replay holds what was collected up to step {collector.medium_step():,}, at most about --size."
            )
    _print_table(HEADER, rows)
    return 0


def _check_make(
    args: argparse.Namespace, kinds: list[str], overrides: list[str]
) -> tuple["EnvConfig", dict[str, Path]]:
    """All that can be wrong with the request, before an hour is spent on it."""
    env = environment(args.env)
    scripted = SCRIPTED_KINDS.get(env.id, ())
    kinds = kinds or list(scripted)
    if args.size is None:
        args.size = SCRIPTED_SIZE if set(kinds) <= set(scripted) else SIZE
    for option in ("size", "steps"):
        if getattr(args, option) < 1:
            raise UsageError(f"--{option} {getattr(args, option)} must be at least 1.")
    if not kinds:
        raise UsageError(f"no kind of dataset is given. There are: {', '.join(D4RL_KINDS)}.")
    if (args.name or args.out) and len(kinds) > 1:
        raise UsageError(f"--{'name' if args.name else 'out'} is for one dataset; {' '.join(kinds)} are {len(kinds)}.")
    if overrides and args.run:
        raise UsageError(f"{' '.join(overrides)} cannot be set: --run {args.run} was trained already.")
    from zoo.collect import check_kinds, open_run
    from zoo.data.minari import check_free

    for kind in kinds:
        check_kinds(kind, env)
        if kind not in D4RL_KINDS + scripted and not args.name:
            raise UsageError(f"{kind} is a mixture: give it a name, such as --name mixed.")
    if _spec(env).num_actions is not None:
        raise UsageError(f"SAC needs continuous actions; {env.name} has {_spec(env).num_actions} discrete ones.")
    if args.run:
        open_run(args.run, env)
    targets = {kind: args.out or store() / _new_id(env, args.name or kind) for kind in kinds}
    for folder in targets.values():
        check_free(folder, args.force)
    return env, targets


# --- verify -----------------------------------------------------------------------------------------------------------


def verify_command(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo data verify", description="Is a dataset whole, finite, and of its environment? Reads all of it."
    )
    parser.add_argument("name", help="ENV/DATASET, a mixture, a Minari id, or a file")
    parser.add_argument("--env", help="the environment, where the name does not say it")
    args = parser.parse_args(arguments)
    env, name = locate(args.name, args.env)
    for part in dict.fromkeys(part for _, part in parse_mixture(name)):
        source = resolve(env, part)
        print(f"{source.name}  ({source.kind}, {source.path})")
        for checked in _verify(source, env):
            print(f"  {checked}")
        print("  OK")
    return 0


def _verify(source: Source, env: "EnvConfig") -> list[str]:
    """What was checked and found right. Raises RunError at the first thing that is wrong."""
    import numpy as np

    from zoo.data.arrays import check_fits, cut_at_breaks, out_of_bounds
    from zoo.data.load import read, readable
    from zoo.data.minari import read_episodes

    arrays, spec = read(source, _step_limit(env)), _spec(env)
    check_fits(arrays, spec, source.name, env)
    lengths = arrays.episode_lengths
    done = [f"{len(arrays.reward):,} transitions in {len(lengths):,} episodes, finite, with the shapes of {env.id}"]

    def check(ok: bool, wrong: str, right: str) -> None:
        if not ok:
            raise RunError(f"dataset {source.name}: {wrong}.")
        done.append(right)

    if source.kind != "hdf5":
        with readable(source):
            metadata = json.loads((source.path / "metadata.json").read_text())
            episodes = read_episodes(source.path)
        same = all(np.array_equal(a, b) for a, b in zip(episodes, arrays, strict=True))
        check(same, "its flat copy differs from its episodes", "read alike by every way")
        total, found = int(metadata["total_episodes"]), len(lengths)
        check(total == found, f"{total} episodes by its metadata, {found} by its ends", "metadata and contents agree")
        if "fingerprint" in metadata:
            found_print = arrays.fingerprint()
            wrong = f"its fingerprint is {found_print}, not {metadata['fingerprint']} as when it was made"
            check(found_print == metadata["fingerprint"], wrong, f"fingerprint {found_print}, as when it was made")
    outside = out_of_bounds(arrays.action, spec)
    check(not outside.any(), f"{int(outside.sum()):,} actions outside the bounds of {env.id}", "actions within bounds")
    _, breaks = cut_at_breaks(arrays)
    check(breaks == 0, f"{breaks:,} steps whose successor is not the next one", "each step's successor is the next one")
    limit = _step_limit(env) or int(lengths.max())
    long = f"an episode of {lengths.max():,} steps; {env.id} ends after {limit:,}"
    check(int(lengths.max()) <= limit, long, f"lengths from {lengths.min():,} to {lengths.max():,} steps")
    return done


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "list": list_command,
    "show": show_command,
    "make": make_command,
    "import": import_command,
    "verify": verify_command,
}
