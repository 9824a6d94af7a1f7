"""`zoo data make`: makes datasets of D4RL's kinds with the zoo's own agents."""

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.commands.data.names import HEADER, describe_origin, environment, new_folder, new_id, print_table, row
from zoo.commands.parser import Parser
from zoo.data.catalog import D4RL_KINDS, UNREADABLE, made_kinds, scripted_kinds
from zoo.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from zoo.envs import EnvConfig

SIZE = 1_000_000  # transitions in each of D4RL's kinds
SCRIPTED_SIZE = 200_000  # 1,000 episodes of the stitching task
POLICY = "policy"  # the kind that is made with --policy
STEPS_PER_SECOND = 100  # of SAC on Hopper on one core, for the time estimate


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo data make",
        description="Trains the zoo's SAC, or DQN where actions are discrete, and writes D4RL's kinds of dataset by "
        "their definitions. "
        "random: uniform actions. expert: the agent with the best evaluation. medium: the first agent evaluated at a "
        "third of the expert's normalized score. medium-replay: the replay buffer up to that moment. "
        "full-replay: all of it; with --run of any algorithm that has one. medium-expert: half and half. "
        "A command that was stopped continues where it was when it is repeated. Point Mazes have kinds of their own, "
        "which take no training: waypoint, a controller's ways; OGBench's (pointmaze-large) navigate, stitch and "
        "explore, by OGBench's rules. --policy takes the episodes of a policy that Stable-Baselines3 has saved, its "
        "actions sampled as in training.",
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
    parser.add_argument(
        "--run", type=Path, help="a finished run, with keep_agents=true unless for full-replay, instead of training"
    )
    parser.add_argument("--policy", type=Path, metavar="FILE.zip", help="who plays, instead of any kind; needs --name")
    parser.add_argument("--name", help="the dataset's name, of a single kind or mixture")
    parser.add_argument("--out", type=Path, help="write the dataset's folder here rather than into the Minari store")
    parser.add_argument("--force", action="store_true", help="replace datasets of these names")
    args = parser.parse_intermixed_args(arguments)
    overrides = [text for text in args.kinds if "=" in text]
    kinds = [text for text in args.kinds if "=" not in text]
    env, targets, untrained = _check_make(args, kinds, overrides, origin := describe_origin(["make", *arguments]))

    from zoo.commands.data.collect import Collector
    from zoo.commands.data.train import train, trainer
    from zoo.data.arrays import concatenate
    from zoo.data.minari import write_minari
    from zoo.runs.interruption import Interruption

    player = None
    if args.policy:
        from zoo.export import from_sb3

        _, player = from_sb3.load(args.policy, args.env)
    run_dir = args.run
    if untrained:
        algo = trainer(env)
        run_dir = Path("runs") / env.name / f"{algo}-data-seed{args.seed}"
        print(
            f"training {algo} for {args.steps:,} steps in {run_dir}: about "
            f"{math.ceil(args.steps / STEPS_PER_SECOND / 60)} minutes at {STEPS_PER_SECOND} steps/s. "
            f"If it is stopped, the same command continues.",
            flush=True,
        )
        stopped = Interrupted(f"stopped; its state is in {run_dir}. Repeat the command to continue.")
        try:
            train(algo, args.env, args.steps, args.seed, overrides, run_dir)
        except Interrupted as error:
            raise stopped from error
        if Interruption.came:  # during its last evaluation
            raise stopped
    collector = Collector(env, run_dir, args.size, args.seed, player)
    theirs = f"{player.algorithm.upper()} of Stable-Baselines3" if player else "none: controllers and random actions"
    rows = []
    for kind, folder in targets.items():
        print(f"collecting {kind}", flush=True)
        parts = collector.mixture(kind)
        arrays = concatenate([part.arrays for _, part in parts])
        name = args.name or kind
        made = origin | {
            "seed": args.seed,
            "training": collector.training(),
            "parts": [part.record(part_kind) for part_kind, part in parts],
        }
        metadata = {
            "description": f"{env.id}, {kind}: made by `{made['command']}` of rl-zoo {made['version']}.",
            "author": {"rl-zoo"},
            "algorithm_name": collector.algorithm.name.upper() if run_dir else theirs,
            "zoo": made,
        }
        flat = args.out is None  # datasets made for use elsewhere should be small
        write_minari(arrays, folder, new_id(env, name), env.id, metadata, force=args.force, flat=flat)
        rows.append(row(f"{env.name}/{name}", arrays, folder))
        for part_kind, part in parts:
            if part_kind.endswith("-replay"):
                print(f"{part_kind} holds what was collected up to step {part.step:,}, at most about --size.")
    print_table(HEADER, rows)
    return 0


def _check_make(
    args: argparse.Namespace, kinds: list[str], overrides: list[str], origin: dict[str, Any]
) -> tuple["EnvConfig", dict[str, Path], bool]:
    """Checks the request before an hour of training: the environment, a folder for each kind, whether to train."""
    env = environment(args.env)
    if args.policy:
        others = [*kinds, *overrides, *(["--run"] if args.run else [])]
        if others:
            raise UsageError(f"--policy {args.policy} alone makes the dataset: leave out {' '.join(others)}.")
        if not args.name:
            raise UsageError(f"--policy {args.policy} needs a name for the dataset, such as --name mine.")
        kinds = [POLICY]
    kinds = kinds or list(scripted_kinds(env.id))
    if args.size is None:
        args.size = SCRIPTED_SIZE if kinds == ["waypoint"] else SIZE
    for option in ("size", "steps"):
        if getattr(args, option) < 1:
            raise UsageError(f"--{option} {getattr(args, option)} must be at least 1.")
    if not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed} must lie between 0 and {2**32 - 1}.")
    if not kinds:
        known = ", ".join(made_kinds(env.id))
        there_are = f"There are: {known}." if known else "Of this task none is made."
        raise UsageError(f"no kind of dataset is given. {there_are}")
    if (args.name or args.out) and len(kinds) > 1:
        raise UsageError(f"--{'name' if args.name else 'out'} is for one dataset; {' '.join(kinds)} are {len(kinds)}.")
    if overrides and args.run:
        raise UsageError(f"{' '.join(overrides)} cannot be set: --run {args.run} was trained already.")
    from zoo.commands.data.collect import check_kinds
    from zoo.commands.data.train import BACKEND, check_run
    from zoo.data.minari import check_replaceable
    from zoo.envs import spec_of

    trained = [check_kinds(kind, env) for kind in kinds] if not args.policy else []
    if overrides and not any(trained):
        raise UsageError(f"{' '.join(overrides)} cannot be set: {' '.join(kinds)} needs no training.")
    for kind in [] if args.policy else kinds:
        if kind not in made_kinds(env.id) and not args.name:
            raise UsageError(f"{kind} is a mixture: give it a name, such as --name mixed.")
    if args.run:
        check_run(args.run, env, agents=set(kinds) != {"full-replay"})
    for kind in kinds:
        new_id(env, args.name or kind)
    targets = {kind: args.out or new_folder(env, args.name or kind) for kind in kinds}
    there = [] if args.force else [kind for kind, folder in targets.items() if _made_by(origin, folder)]
    if len(there) < len(targets):  # the command was stopped after making these
        for kind in there:
            print(f"{kind} is there: {targets.pop(kind)}")
    spec_of(dataclasses.replace(env, backend=BACKEND))
    for folder in targets.values():
        check_replaceable(folder, args.force)
    return env, targets, any(trained) and not args.run


def _made_by(origin: dict[str, Any], folder: Path) -> bool:
    """Whether there is a dataset that the same command with the same code has written."""
    try:
        made = json.loads((folder / "data" / "metadata.json").read_text())["zoo"]
        return all(made[key] == value for key, value in origin.items())
    except UNREADABLE:
        return False
