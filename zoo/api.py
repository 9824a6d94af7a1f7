"""`zoo.train`, `zoo.resume` and `zoo.load`: the command line's main jobs from Python."""

from pathlib import Path
from typing import Any

from zoo.agent import Policy
from zoo.errors import Interrupted, RunError, UsageError
from zoo.runs.device import preserved, resolve_device
from zoo.runs.execute import execute
from zoo.runs.load import load_agent, reopen
from zoo.runs.run import Run
from zoo.settings.compose import compose
from zoo.settings.config import RunConfig
from zoo.settings.overrides import as_overrides
from zoo.settings.registry import Algorithm

__all__ = ["Interrupted", "RunError", "UsageError", "load", "resume", "train"]


def train(algo: str, **settings: Any) -> Run:
    """Trains one agent: `zoo.train("iql", env="hopper", steps=50_000, algo_config={"beta": 1.0})`.

    Args:
        algo: an algorithm's name.
        settings: the keys of `zoo run --help` but `seeds` and `resume`, which are the command line's; the algorithm's
            own as a dict under `algo_config`.

    Returns:
        The finished run: its folder is `.dir`, its evaluations are `.evaluations`; `zoo.load(run.dir)` is the policy.

    Raises:
        UsageError: unknown or unfitting settings.
        RunError: the run failed.
        Interrupted: SIGINT or SIGTERM came; `zoo.resume` continues.
    """
    algo_config = settings.pop("algo_config", {})
    if not isinstance(algo_config, dict):
        raise UsageError(f'algo_config={algo_config!r} must be a dictionary, such as {{"beta": 1.0}}')
    config, algorithm, resolved = compose(as_overrides({"algo": algo, **settings}) + as_overrides(algo_config, "algo."))
    return _executed(config, algorithm, resolved)


def resume(run_dir: str | Path, file: str | Path | None = None) -> Run:
    """Continues a run that was interrupted, from its last checkpoint to its end.

    Args:
        run_dir: the run's folder.
        file: the algorithm file, if it is not one of the zoo's; none is ever run because a folder names it.

    Raises:
        UsageError: not a run's folder, or a run that has finished.
        RunError: the checkpoint is missing or damaged, or the run failed.
        Interrupted: SIGINT or SIGTERM came.
    """
    folder = Path(run_dir).expanduser()
    config, algorithm, record = reopen(folder, None if file is None else Path(file).expanduser())
    config.resume = str(folder)
    return _executed(config, algorithm, record["config"])


def _executed(config: RunConfig, algorithm: Algorithm, settings: dict[str, Any]) -> Run:
    """Executes a run, and leaves PyTorch's settings in this process as they were."""
    with preserved():
        run = execute(config, algorithm, settings)
    run.dir = run.dir.absolute()
    return run


def load(
    run_dir: str | Path, file: str | Path | None = None, device: str = "cpu", step: int | str | None = None
) -> Policy:
    """The trained policy of a run: `zoo.load(run_dir).act(obs)` gives the deterministic action for raw observations.

    One observation or a batch of them; several threads may call it at once.

    Args:
        run_dir: the run's folder.
        file: the algorithm file, if it is not one of the zoo's; none is ever run because a folder names it.
        device: where it computes: cpu, cuda, cuda:1, or auto, a GPU where there is one.
        step: the agent that was evaluated at this step, or `best`, of a run with `keep_agents=true`; None: the last.

    Raises:
        UsageError: not a run's folder, or no such device, or no such agent.
        RunError: the checkpoint is missing or damaged.
    """
    with preserved():
        own = None if file is None else Path(file).expanduser()
        _, agent, _ = load_agent(Path(run_dir).expanduser(), own, step)
    return Policy(agent.to(resolve_device(device)))
