"""The run from which datasets are made: SAC or, if actions are discrete, DQN; trained, continued or checked."""

import shutil
from pathlib import Path
from typing import Any

from zoo.envs import EnvConfig, spec_of
from zoo.errors import RunError, UsageError
from zoo.runs.execute import execute
from zoo.runs.load import reopen
from zoo.runs.record import resume_command
from zoo.settings.compose import compose
from zoo.settings.config import flat

BACKEND = "gymnasium"  # the data are the same whether EnvPool is installed or not


def trainer(env: EnvConfig) -> str:
    """The algorithm whose agents collect the data."""
    return "sac" if spec_of(env).num_actions is None else "dqn"


def train(algo: str, env: str, steps: int, seed: int, overrides: list[str], run_dir: Path) -> None:
    """Trains in `run_dir`, keeping the agents and the whole replay buffer; an identical finished run there is reused.

    Raises:
        UsageError: the folder holds a run with other settings, or the settings are incompatible.
        RunError: training failed.
    """
    arguments = [
        f"algo={algo}", f"env={env}", f"env.backend={BACKEND}", f"steps={steps}", f"seed={seed}",
        f"eval_every={max(1_000, steps // 100)}", f"algo.buffer_size={steps}", *overrides, "keep_agents=true",
        f"run_dir='{run_dir}'",
    ]  # fmt: skip
    config, algorithm, settings = compose(arguments)
    if config.num_envs != 1:
        raise UsageError(
            f"num_envs={config.num_envs}: medium-replay needs the transitions of one environment in order."
        )
    if (run_dir / "run.json").exists():
        record = _check_same(run_dir, settings)
        if record["status"] == "finished":
            return
        config.resume = str(run_dir)
        try:
            execute(config, algorithm, record["config"])
            return
        except RunError:
            if (run_dir / "checkpoint.pt").exists():
                raise
        shutil.rmtree(run_dir)  # it was killed before its first checkpoint: nothing can be continued
        config.resume = None
    execute(config, algorithm, settings)


def _check_same(run_dir: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The record of the run in the folder. Raises UsageError if the same command would not have made it."""
    _, _, record = reopen(run_dir)
    free = ("run_dir", "resume", "device", "logger", "log_every", "checkpoint_every")
    asked, there = (flat({k: v for k, v in s.items() if k not in free}) for s in (settings, record["config"]))
    for key, value in asked.items():
        if there.get(key) != value:
            raise UsageError(
                f"{run_dir} holds a run with {key}={there.get(key)}, not {value}. "
                f"Take it as it is with --run {run_dir}, or move it away."
            )
    return record


def check_run(run_dir: Path, env: EnvConfig, agents: bool) -> None:
    """Raises UsageError unless datasets can be made of a run's agents, or else of its replay buffer alone."""
    config, algorithm, record = reopen(run_dir)
    if config.env.id != env.id or (agents and algorithm.name != trainer(env)):
        raise UsageError(
            f"{run_dir} is a run of {algorithm.name} on {config.env.id}, not of {trainer(env)} on {env.id}."
        )
    if record["status"] != "finished":
        raise UsageError(f"{run_dir} has not finished. Continue it: {resume_command(run_dir)}")
    if agents and not config.keep_agents:
        raise UsageError(f"{run_dir} did not keep its agents. Train with keep_agents=true.")
    if config.num_envs != 1:
        raise UsageError(f"{run_dir} was trained in {config.num_envs} environments. Train with num_envs=1.")
    replay = algorithm.setting == "online" and (run_dir / "replay" / "buffer").is_dir()
    if config.base or not (agents or replay):
        raise UsageError(f"{run_dir} has no replay buffer of its environment's steps. Take one of sac, td3 or dqn.")
