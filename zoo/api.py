"""`zoo.train` and `zoo.load`: the command line's main jobs from Python."""

import json
from pathlib import Path
from typing import Any

from zoo import checkpoint
from zoo.agent import Agent, Policy
from zoo.compose import as_overrides, compose
from zoo.config import RunConfig
from zoo.errors import RunError, UsageError
from zoo.execute import execute
from zoo.registry import Algorithm
from zoo.run import Run
from zoo.spec import Spec


def train(algo: str, **settings: Any) -> Run:
    """Trains one agent: `zoo.train("iql", env="hopper", steps=50_000, algo_config={"beta": 1.0})`.

    Args:
        algo: an algorithm's name.
        settings: the keys of `zoo run --help`; the algorithm's own as a dict under `algo_config`.

    Returns:
        The finished run: its folder is `.dir`, its evaluations are `.evaluations`; `zoo.load(run.dir)` is the policy.

    Raises:
        UsageError: unknown or unfitting settings.
        RunError: the run failed.
    """
    algo_config = settings.pop("algo_config", {})
    config, algorithm, resolved = compose(as_overrides({"algo": algo, **settings}) + as_overrides(algo_config, "algo."))
    return execute(config, algorithm, resolved)


def load(run_dir: str | Path, file: Path | None = None) -> Policy:
    """The trained policy of a run: `zoo.load(run_dir).act(obs)` gives the deterministic action for raw observations.

    Args:
        run_dir: the run's folder.
        file: the algorithm file, if it is not one of the zoo's; none is ever run because a folder names it.

    Raises:
        UsageError: not a run's folder.
        RunError: the checkpoint is missing or damaged.
    """
    return Policy(load_agent(Path(run_dir), file)[1])


def load_agent(run_dir: Path, file: Path | None = None) -> tuple[RunConfig, Agent, dict[str, Any]]:
    """The settings of a run, its agent as last saved, and its record; arguments and errors as those of `load`."""
    config, algorithm, record = reopen(run_dir, file)
    path = run_dir / "checkpoint.pt"
    tracked = checkpoint.load(path)["tracked"]
    if not isinstance(tracked, dict):
        raise RunError(f"{path} was written by an older version of the zoo, which can read it; this one cannot.")
    return config, build_agent(config, algorithm, record, tracked["agent"], path), record


def build_agent(
    config: RunConfig, algorithm: Algorithm, record: dict[str, Any], state: dict[str, Any], path: Path
) -> Agent:
    """The agent of a run with a state that was read from `path`. Raises RunError where the two do not fit."""
    agent: Agent = algorithm.agent_class(spec_of(record), config.algo)
    try:
        agent.load_state_dict(state)
    except (KeyError, RuntimeError, ValueError) as error:
        raise RunError(f"{path} does not fit {algorithm.path}, which has changed since it was written.") from error
    return agent


def spec_of(record: dict[str, Any]) -> Spec:
    """The shapes and bounds that a run's record holds."""
    shapes: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in record["spec"].items()}
    return Spec(**shapes)


def reopen(run_dir: Path, file: Path | None = None) -> tuple[RunConfig, Algorithm, dict[str, Any]]:
    """The settings, algorithm and record of an existing run. Raises UsageError where the folder holds none."""
    try:
        record = json.loads((run_dir / "run.json").read_text())
        if record.get("peer"):
            raise UsageError(f"{run_dir} holds results of {record['peer']} only: there is no agent to go on with.")
        settings = record["config"] | {"preset": None}  # what a preset set is among them
        made_by = record["algorithm"]["file"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{run_dir} is not the folder of a run: it has no readable run.json.") from error
    if file is None and made_by is not None:
        raise UsageError(
            f"{run_dir} was made by {made_by}, which is not one of the zoo's files. Name it: "
            f"zoo eval {run_dir} --file {made_by}, or python {made_by} resume={run_dir}"
        )
    if file is not None and not file.is_file():
        raise UsageError(f"{file} is not a file. Give the algorithm file that the run was made by.")
    algo = dict(settings.pop("algo"))
    env = dict(settings.pop("env"))
    name = algo.pop("name")
    arguments = as_overrides({"algo": name, "env": env.pop("id"), **settings})
    config, algorithm, _ = compose([*arguments, *as_overrides(algo, "algo."), *as_overrides(env, "env.")], file)
    return config, algorithm, record
