"""`zoo.train`, `zoo.resume`, `zoo.evaluate` and `zoo.load`: the command line's main jobs from Python."""

import contextlib
import threading
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from zoo.agent import Policy
from zoo.envs import make_with_spec
from zoo.errors import Interrupted, RunError, UsageError
from zoo.machine import expanded
from zoo.runs import evaluation
from zoo.runs.device import preserved, resolve_device
from zoo.runs.execute import execute
from zoo.runs.load import load_agent, reopen
from zoo.runs.record import spec_of
from zoo.runs.run import Run
from zoo.settings.compose import compose, environment_config
from zoo.settings.config import RunConfig
from zoo.settings.overrides import as_overrides
from zoo.settings.registry import Algorithm

__all__ = ["Interrupted", "RunError", "UsageError", "evaluate", "load", "make_envs", "resume", "train"]

_running = threading.Lock()


def train(algo: str | None = None, *, file: str | Path | None = None, **settings: Any) -> Run:
    """Trains one agent: `zoo.train("iql", env="hopper", steps=50_000, algo_config={"beta": 1.0})`.

    Args:
        algo: an algorithm's name; None with `file`.
        file: an algorithm file that is not one of the zoo's.
        settings: the keys of `zoo run --help`, except `seeds` and `resume`, which only the command line has; the
            algorithm's own settings are a dict, `algo_config`.

    Returns:
        The finished run: its folder is `.dir`, its evaluations are `.evaluations`; `zoo.load(run.dir)` is the policy.

    Raises:
        UsageError: unknown or incompatible settings, or another run is active in a thread of this process.
        RunError: the run failed.
        Interrupted: SIGINT or SIGTERM came; `zoo.resume` continues.
    """
    algo_config = settings.pop("algo_config", {})
    if not isinstance(algo_config, dict):
        raise UsageError(f'algo_config={algo_config!r} must be a dictionary, such as {{"beta": 1.0}}')
    named = {} if algo is None else {"algo": algo}
    config, algorithm, resolved = compose(
        as_overrides(named | settings) + as_overrides(algo_config, "algo."), _path(file)
    )
    return _executed(config, algorithm, resolved)


def resume(
    run_dir: str | Path, file: str | Path | None = None, device: str | None = None, steps: int | None = None
) -> Run:
    """Continues a run that was interrupted from its last checkpoint to its end, or a finished one to a later end.

    Args:
        run_dir: the run's folder.
        file: the algorithm file, if it is not one of the zoo's; a file is never executed because a folder names it.
        device: where to continue; None: where the run began.
        steps: the step at which it ends, later than it was to end; None: the end that it began with. What falls over a
            run's steps, such as a learning rate, then falls over these.

    Raises:
        UsageError: not a run's folder, the run has finished, it cannot be longer, or another run is active in a thread
            of this process.
        RunError: the checkpoint is missing or damaged, or the run failed.
        Interrupted: SIGINT or SIGTERM came.
    """
    folder = expanded(run_dir)
    config, algorithm, record = reopen(folder, _path(file))
    config.resume, config.device = str(folder), device or config.device
    config.steps = config.steps if steps is None else int(steps)
    return _executed(config, algorithm, record["config"])


def _executed(config: RunConfig, algorithm: Algorithm, settings: dict[str, Any]) -> Run:
    """Executes a run, and leaves PyTorch's settings in this process as they were."""
    if not _running.acquire(blocking=False):
        raise UsageError("another thread of this process trains, and they would share random numbers. Take processes.")
    try:
        with preserved():
            run = execute(config, algorithm, settings)
    finally:
        _running.release()
    run.dir = run.dir.absolute()
    return run


def _path(file: str | Path | None) -> Path | None:
    return None if file is None else expanded(file)


def make_envs(run_dir: str | Path, num_envs: int = 1, file: str | Path | None = None) -> VectorEnv:
    """The environments that a run is evaluated in, with observations as its policy takes them.

    They are Gymnasium's own, except for observations that agents cannot take: whole numbers become one-hot vectors,
    dictionaries and tuples are flattened, and images have their channels first. The step that ends an episode returns
    the first observation of the next one.

    Args:
        run_dir: the run's folder.
        num_envs: the number of environments.
        file: the algorithm file, if it is not one of the zoo's.

    Raises:
        UsageError: the folder is not a run's, or its environment cannot be made or has changed.
    """
    if num_envs < 1:
        raise UsageError(f"num_envs={num_envs} must be at least 1")
    config, _, record = reopen(expanded(run_dir), _path(file))
    return make_with_spec(config.env, num_envs, config.threads, trained=spec_of(record))[0]


def evaluate(
    run_dir: str | Path,
    episodes: int | None = None,
    file: str | Path | None = None,
    step: int | str | None = None,
    seed: int | None = None,
    env: str | None = None,
    deterministic: bool | None = None,
) -> evaluation.Episodes:
    """Plays episodes with a trained policy, as `zoo eval` does: `zoo.evaluate(run_dir, episodes=100).returns.mean()`.

    Args:
        run_dir: the run's folder.
        episodes: how many, one in each of as many environments; None: the run's `eval_episodes`.
        file: the algorithm file, if it is not one of the zoo's; a file is never executed because a folder names it.
        step: the agent evaluated at this step, or `best`, for a run with `keep_agents=true`; None: the last agent.
        seed: of the environments; None: the run's, as in its own evaluations.
        env: another environment than the run's, with the same spaces; None: the one that the run was evaluated in.
        deterministic: take the best actions, or sample them; None: as in the run's own evaluations.

    Returns:
        Undiscounted `returns` `[E]`, `lengths` `[E]` and, where the environment reports them, `successes` `[E]`.

    Raises:
        UsageError: the folder is not a run's, there is no such agent, or its environment cannot be made.
        RunError: the checkpoint is missing or damaged, or the environment returned NaN or infinity.
    """
    if episodes is not None and episodes < 1:
        raise UsageError(f"episodes={episodes} must be at least 1")
    if seed is not None and seed < 0:
        raise UsageError(f"seed={seed} must be at least 0")
    with preserved():
        config, agent, _ = load_agent(expanded(run_dir), _path(file), step)
        if env is not None:
            config.env = environment_config(env)
        envs, _ = make_with_spec(config.env, episodes or config.eval_episodes, config.threads, trained=agent.spec)
        with contextlib.closing(envs):
            chosen = config.seed if seed is None else seed
            explore = not (config.eval_deterministic if deterministic is None else deterministic)
            return evaluation.evaluate(agent, envs, chosen, explore, config.info_keywords)


def load(
    run_dir: str | Path, file: str | Path | None = None, device: str = "cpu", step: int | str | None = None
) -> Policy:
    """The trained policy of a run: `zoo.load(run_dir).act(obs)` gives the deterministic action for raw observations.

    It takes one observation or a batch, as `make_envs` returns them; several threads may call it at once.

    Args:
        run_dir: the run's folder.
        file: the algorithm file, if it is not one of the zoo's; a file is never executed because a folder names it.
        device: where it computes: cpu, cuda, cuda:1, or auto, a GPU where there is one.
        step: the agent evaluated at this step, or `best`, for a run with `keep_agents=true`; None: the last agent.

    Raises:
        UsageError: the folder is not a run's, or there is no such device or agent.
        RunError: the checkpoint is missing or damaged.
    """
    with preserved():
        _, agent, _ = load_agent(expanded(run_dir), _path(file), step)
    return Policy(agent.to(resolve_device(device)))
