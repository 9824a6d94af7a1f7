"""The player: the agent of a run, or a policy saved by Stable-Baselines3."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.agent import Agent
from zoo.commands.parser import Parser
from zoo.errors import UsageError
from zoo.settings.config import RunConfig

if TYPE_CHECKING:
    from zoo.runs.evaluation import Episodes

HELP = "a run's folder, or a ZIP file of Stable-Baselines3"
STEP_HELP = "the agent evaluated at this step, or best, of a run with keep_agents=true (default: the last)"


def add_arguments(parser: Parser) -> None:
    """Adds the options of commands that play episodes."""
    parser.add_argument(
        "--seed", type=int, help="seed of the environments (default: the run's, as in its own evaluations)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--deterministic", action="store_true", help="take the best actions, whatever the run did")
    how.add_argument("--explore", action="store_true", help="sample actions, as in training, whatever the run did")
    parser.add_argument("--step", help=STEP_HELP)
    parser.add_argument("--env", help="of a ZIP file; or another one than the run's, with the same spaces")
    parser.add_argument("--file", type=Path, help="the algorithm file, if it is not one of the zoo's")


def open_player(path: Path, env: str | None, file: Path | None, step: str | None = None) -> tuple[RunConfig, Agent]:
    """The settings with which an agent is evaluated, and the agent.

    Args:
        path: a run's folder or a ZIP file.
        env: the environment, which a ZIP file does not name; None: the one that a run was evaluated in.
        file: the algorithm file of a run, if it is not one of the zoo's.
        step: the training step of the agent, or `best`, if it is not the run's last.

    Raises:
        UsageError: there is no run or file, or an argument is missing or superfluous.
        RunError: the run or file is damaged.
    """
    if path.suffix == ".zip":
        if step is not None:
            raise UsageError(f"--step {step} is for a run's folder: {path} holds one policy.")
        if env is None:
            raise UsageError(f"{path} does not say which environment it plays. Add: --env ENV")
        from zoo.export import from_sb3

        return from_sb3.load(path, env)
    from zoo.runs.load import load_agent
    from zoo.settings.compose import environment_config

    config, agent, _ = load_agent(path, file, step)
    if env is not None:
        config.env = environment_config(env)
    return config, agent


def chosen_seed(given: int | None, config: RunConfig) -> int:
    """The seed given by `--seed`, or else the run's. Raises UsageError if environments cannot take it."""
    if given is not None and not 0 <= given < 2**32:
        raise UsageError(f"--seed {given} must lie between 0 and {2**32 - 1}.")
    return config.seed if given is None else given


def explores(args: Namespace, config: RunConfig) -> bool:
    """Whether actions are sampled: as the options say, or else as in the run's own evaluations."""
    return bool(args.explore or not (args.deterministic or config.eval_deterministic))


def print_episodes(episodes: "Episodes") -> None:
    """Prints a line for each episode."""
    for index, (episode_return, length) in enumerate(zip(episodes.returns, episodes.lengths, strict=True)):
        print(f"episode {index:>3}  return {episode_return:10.2f}  steps {length:>5}")
