"""The player: the agent of a run, or a policy saved by Stable-Baselines3."""

from pathlib import Path

from zoo.agent import Agent
from zoo.errors import UsageError
from zoo.settings.config import RunConfig

HELP = "a run's folder, or a ZIP file of Stable-Baselines3"
STEP_HELP = "the agent that was evaluated at this step, or best, of a run with keep_agents=true (default: the last)"


def open_player(path: Path, env: str | None, file: Path | None, step: str | None = None) -> tuple[RunConfig, Agent]:
    """The settings with which an agent is evaluated, and the agent.

    Args:
        path: a run's folder or a ZIP file.
        env: the environment, which a ZIP file does not name; None for a run, which records it.
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
    if env is not None:
        raise UsageError(f"--env {env} is for ZIP files: {path} is a run's folder, which knows its environment.")
    from zoo.runs.load import load_agent

    config, agent, _ = load_agent(path, file, step)
    return config, agent


def chosen_seed(given: int | None, config: RunConfig) -> int:
    """The seed given by `--seed`, or else the run's. Raises UsageError if environments cannot take it."""
    if given is not None and not 0 <= given < 2**32:
        raise UsageError(f"--seed {given} must lie between 0 and {2**32 - 1}.")
    return config.seed if given is None else given
