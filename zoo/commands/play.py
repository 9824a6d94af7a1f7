"""`zoo play`: shows how a trained policy plays, in a window or as a video."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.commands.parser import Parser
from zoo.commands.player import HELP, add_arguments, chosen_seed, explores, open_player, print_episodes
from zoo.errors import UsageError, optional

if TYPE_CHECKING:
    from zoo.agent import Agent
    from zoo.commands.pictures import Sink
    from zoo.settings.config import RunConfig


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo play",
        description="Shows episodes of a trained policy side by side: in a window, or without a screen as a video. "
        "Below each stand its return so far and, where the agent has a critic, the discounted return that the critic "
        "expects from there on. The starts are those of `zoo eval`, if that plays in Gymnasium: EnvPool "
        "cannot draw.",
    )
    parser.add_argument("run_dir", type=Path, help=HELP)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--video", type=Path, metavar="FILE", help="write FILE.mp4 or FILE.gif instead of a window")
    instead.add_argument(
        "--map", type=Path, metavar="FILE.png",
        help="a maze with goals instead: what each place is worth to the agent, its ways, and the subgoals on them",
    )  # fmt: skip
    parser.add_argument("--episodes", type=int, default=4, help="how many (default 4)")
    parser.add_argument("--size", type=int, default=320, help="pixels of the larger side of an episode (default 320)")
    add_arguments(parser)
    parser.add_argument("--force", action="store_true", help="replace a video that is there")
    parser.add_argument("--log", action="store_true", help="send the video to the run's trackers too; a GIF")
    args = parser.parse_args(arguments)
    for option, least in (("episodes", 1), ("size", 64)):
        if getattr(args, option) < least:
            raise UsageError(f"--{option} {getattr(args, option)} must be at least {least}.")
    if args.map:
        if args.log:
            raise UsageError("--log sends a video, and --map draws a picture. Leave out one of them.")
        return _map(args)
    from zoo.commands import pictures
    from zoo.files import check_file

    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if args.log:
        if args.env:
            raise UsageError("--log is for episodes in the run's own environment. Leave out --env.")
        record = _loggable(args.run_dir, args.video)
    if args.video:
        check_file(args.video, args.force)
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame, which draws some of them, then needs no screen
    from zoo.envs import make_with_spec
    from zoo.runs.evaluation import evaluate

    config, agent = open_player(args.run_dir, args.env, args.file, args.step)
    pictures.check_packages(args.video)
    seed = chosen_seed(args.seed, config)
    envs, _ = make_with_spec(config.env, args.episodes, config.threads, drawn=True, trained=agent.spec)
    every, rate = pictures.pace(envs.metadata.get("render_fps") or 30, args.video.suffix if args.video else "")
    with contextlib.suppress(pictures.Closed), _sink(args.video, f"zoo play {args.run_dir}", rate) as sink:
        watch = pictures.Watcher(envs, sink, every, args.size, _unit(agent, config))
        played = evaluate(agent, envs, seed, explores(args, config), watch=watch)
        print_episodes(played)
    if args.video:
        print(f"written: {args.video}, {args.video.stat().st_size / 1e6:.2f} MB")
    if args.log:
        _log(args.run_dir, args.video, record, args.step)
    return 0


def _map(args: argparse.Namespace) -> int:
    """Draws maps of a maze."""
    matplotlib = optional("matplotlib", "--map", "bench")
    from zoo.commands.value_map import draw
    from zoo.files import check_file, replacing_path

    if args.map.suffix != ".png":
        raise UsageError(f"--map {args.map} must end in .png.")
    check_file(args.map, args.force)
    matplotlib.use("Agg")
    config, agent = open_player(args.run_dir, args.env, args.file, args.step)
    with replacing_path(args.map) as partial:
        draw(agent, config, partial, args.episodes, chosen_seed(args.seed, config), explores(args, config))
    print(f"written: {args.map}")
    return 0


def _loggable(run_dir: Path, video: Path | None) -> dict[str, Any]:
    """The record of a finished run. Raises UsageError if it is not one, or has no trackers, or there is no GIF."""
    if video is None or video.suffix != ".gif":
        raise UsageError("--log sends a GIF to the trackers. Add: --video play.gif")
    if not (run_dir / "run.json").is_file():
        raise UsageError(f"--log: {run_dir} is not a run's folder, which names its trackers.")
    from zoo.runs.record import read_record, resume_command

    record = read_record(run_dir)
    if record["status"] != "finished":
        raise UsageError(f"--log: the run in {run_dir} is not finished. Finish it: {resume_command(run_dir)}")
    if record["config"]["logger"] == "none":
        raise UsageError(f"--log: the run in {run_dir} has no trackers: it was started with logger=none.")
    return record


def _log(run_dir: Path, video: Path, record: dict[str, Any], step: str | None) -> None:
    """Adds a video to a finished run's records in the trackers, at the step of the agent that played."""
    from zoo.runs.load import kept_agent
    from zoo.runs.logging import Logger, parse_loggers
    from zoo.runs.record import evaluated

    loggers = record["config"]["logger"]
    last = max(evaluated(run_dir))  # whatever the logs hold beyond it would be dropped
    at = last if step is None else int(kept_agent(run_dir, step).stem)
    logger = Logger(run_dir, parse_loggers(loggers), record, last)
    logger.video(at, video)
    logger.close()
    print(f"logged by {loggers.replace('+', ' and ')} as play, at step {at:,}")


def _unit(agent: "Agent", config: "RunConfig") -> str:
    """A note on a critic that learned from other rewards than the environment's and cannot convert its values back."""
    if getattr(config.algo, "clip_reward", False):
        return " (clipped)"
    critic = getattr(agent, "agent", agent)  # for an agent that corrects another policy
    normalized = getattr(config.algo, "normalize_reward", False) and not hasattr(critic, "reward_unit")
    return " (scaled)" if normalized or (config.reward_scale, config.reward_shift) != (1, 0) else ""


@contextlib.contextmanager
def _sink(video: Path | None, title: str, rate: float) -> Iterator["Sink"]:
    """The window; or a video, which in the end is either complete or absent."""
    from zoo.commands import pictures

    if video is None:
        window = pictures.Window(title, rate)
        try:
            yield window
        finally:
            window.close()
        return
    from zoo.files import replacing_path

    with replacing_path(video) as partial:
        film = pictures.Film(partial, rate)
        yield film
        film.close()
