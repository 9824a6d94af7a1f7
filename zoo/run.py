"""One training run: device and seeds, environments or a dataset, the loop's steps with all that happens between them, its folder."""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeVar

import gymnasium
import numpy as np
import torch
from omegaconf import OmegaConf

import zoo
from zoo import checkpoint, datasets
from zoo.agent import Agent, Metrics
from zoo.config import RunConfig
from zoo.datasets import Dataset
from zoo.envs import Spec, make
from zoo.errors import Interrupted, RunError, UsageError
from zoo.evaluation import Episodes, evaluate
from zoo.logging import Logger, ProgressBar, parse_loggers
from zoo.registry import Algorithm
from zoo.rollout import Rollout


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


Tracked = TypeVar("Tracked", bound=Stateful)


class Run:
    """What an algorithm's `train` is given. It asks for `envs()` or `dataset()`, has its agent `track`ed, and loops over `steps()`.

    Attributes:
        config: the run's settings.
        device: where tensors live.
        dir: the run's folder.
        record: what `run.json` holds.
        spec: shapes and bounds of the environment.
        done: steps completed.
        evaluations: the episodes of each evaluation of this process, with its step.
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm,
        run_dir: Path,
        record: dict[str, Any],
        state: dict[str, Any] | None,
    ) -> None:
        self.config, self.algorithm, self.dir, self.record = config, algorithm, run_dir, record
        self.device = resolve_device(config.device)
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self._state = state
        self.done: int = state["step"] if state else 0  # steps completed
        self._seconds: float = state["seconds"] if state else 0.0
        self._tracked: list[Any] = []
        self._agent: Agent | None = None
        self._rollout: Rollout | None = None
        self._metrics: Metrics = {}
        self._episodes: list[tuple[float, int]] = []
        self._interrupted = False
        self.evaluations: list[tuple[int, Episodes]] = []
        try:
            self._eval_envs = make(config.env, config.eval_episodes)
            self.spec = Spec.of(self._eval_envs.single_observation_space, self._eval_envs.single_action_space)
        except ValueError as error:
            raise UsageError(str(error)) from error
        self._check_action_space()
        self._logger = Logger(run_dir, parse_loggers(config.logger), record["config"], self.done, record["id"])

    # --- What an algorithm asks for ------------------------------------------------------------------------------------

    def envs(self) -> Rollout:
        """The training environments, `num_envs` of them; `steps()` counts theirs."""
        # a resumed run cannot put the simulators back where they were: it starts new episodes, from other seeds than the first
        seed = self.config.seed
        if self.done:  # drawn, not counted on from it: that would meet the seeds of the evaluation
            seed = int(np.random.SeedSequence([seed, self.done]).generate_state(1)[0])
        self._rollout = Rollout(
            make(self.config.env, self.config.num_envs),
            seed,
            self.device,
            lambda *episode: self._episodes.append(episode),
        )
        return self._rollout

    def dataset(self) -> Dataset:
        """The dataset of the run, checked against its environment, on the run's device."""
        name, env = self.config.dataset, self.config.env
        arrays, sources = datasets.load(env, name, gymnasium.spec(env.id).max_episode_steps)
        datasets.check_fits(arrays, self.spec, name, env)
        described = {
            "name": name,
            "sources": [{"name": source.name, "kind": source.kind, "path": str(source.path)} for source in sources],
            "transitions": len(arrays.reward),
            "episodes": len(arrays.episode_starts),
            "fingerprint": arrays.fingerprint(),
        }
        if self._state and self.record["dataset"]["fingerprint"] != described["fingerprint"]:
            raise UsageError(
                f"dataset={name} is not the data this run began with: its content has changed. Start a new run."
            )
        self.record["dataset"] = described
        self.save_record()
        return Dataset(arrays, self.spec, self.device)

    def track(self, tracked: Tracked) -> Tracked:
        """Moves an agent to the device, compiles its update if asked to, and counts anything with a state dict to the checkpoint."""
        if isinstance(tracked, Agent):
            self._agent = tracked.to(self.device)
            if self.config.compile:
                tracked.update = compile_update(tracked.update)  # type: ignore[method-assign]
        if self._state:
            try:
                tracked.load_state_dict(self._state["tracked"][len(self._tracked)])
            except (IndexError, KeyError, RuntimeError, ValueError) as error:
                raise RunError(
                    f"{self.dir / 'checkpoint.pt'} does not fit {self.algorithm.path}, which has changed since. "
                    "Start a new run."
                ) from error
        self._tracked.append(tracked)
        return tracked

    def log(self, metrics: Metrics) -> None:
        """Keeps the latest metrics; they are read, and the device waited for, only when a row is due."""
        self._metrics = metrics

    def steps(self) -> Iterator[int]:
        """The number of steps done before each pass of the loop: 0, 1, 2, ... offline; by `num_envs` online.

        Between passes: metrics, evaluation, checkpoints and interruptions, each when it is due.
        """
        config = self.config
        stride = self._rollout.num_envs if self._rollout else 1
        if self._state:
            restore_rng(self._state["rng"], self.device)
        mark, mark_step = time.perf_counter(), self.done
        with (
            self._signals(),
            ProgressBar(config.steps, self.done, "env steps" if self._rollout else "updates") as self._bar,
        ):
            while self.done < config.steps:
                yield self.done
                before, self.done = self.done, self.done + stride
                last = self.done >= config.steps
                interrupted = self._interrupted  # once: a signal that comes during the evaluation is the next pass's
                evaluating = last or self.done // config.eval_every > before // config.eval_every
                saving = last or interrupted or self.done // config.checkpoint_every > before // config.checkpoint_every
                if saving or evaluating or self.done // config.log_every > before // config.log_every:
                    seconds = time.perf_counter() - mark
                    self._seconds += seconds
                    self._log_metrics((self.done - mark_step) / seconds)
                    if evaluating:
                        self._evaluate()
                    if saving:
                        self._checkpoint(self.dir / "checkpoint.pt")
                    mark, mark_step = time.perf_counter(), self.done
                self._bar.update(self.done)
                if interrupted and not last:
                    raise Interrupted(
                        f"interrupted after step {self.done:,}; its checkpoint is written. Continue: "
                        f"{self.algorithm.command} resume={self.dir}"
                    )

    # --- Between passes ------------------------------------------------------------------------------------------------

    def _log_metrics(self, steps_per_second: float) -> None:
        values = {name: float(value) for name, value in self._metrics.items()}
        broken = sorted(name for name, value in values.items() if not math.isfinite(value))
        if broken:
            self._checkpoint(self.dir / "diverged.pt")
            raise RunError(
                f"the run diverged before step {self.done:,}: {', '.join(broken)} not finite. Its state is in {self.dir / 'diverged.pt'}; "
                f"the last good one is checkpoint.pt. A smaller learning rate or scaled rewards often help."
            )
        if self._rollout:
            returns, lengths = np.array(self._episodes or [(math.nan, math.nan)]).mean(0)
            values |= {"episode_return": float(returns), "episode_length": float(lengths)}
            self._episodes.clear()
        self._logger.metrics(self.done, values, self._seconds, steps_per_second)

    def _evaluate(self) -> None:
        assert self._agent is not None
        episodes = evaluate(self._agent, self._eval_envs, self.config.seed)
        self.evaluations.append((self.done, episodes))
        row = summary(episodes, self.config)
        self._logger.evaluation(self.done, row | {"returns": " ".join(f"{value:.6f}" for value in episodes.returns)})
        if self.config.keep_agents:
            (self.dir / "agents").mkdir(exist_ok=True)
            checkpoint.save(self.dir / "agents" / f"{self.done}.pt", self._agent.state_dict())
        score = f"  score {row['score']:.1f}" if row["score"] != "" else ""
        self._bar.print(
            f"step {self.done:>9,}  return {row['return_mean']:8.1f} +- {row['return_std']:.1f}{score}",
            score.strip() or f"return {row['return_mean']:.1f}",
        )

    def _checkpoint(self, path: Path) -> None:
        checkpoint.save(
            path,
            {
                "step": self.done,
                "seconds": self._seconds,
                "tracked": [tracked.state_dict() for tracked in self._tracked],
                "rng": rng_state(self.device),
            },
        )

    def save_record(self) -> None:
        """Writes `run.json` as it stands."""
        checkpoint.save_json(self.dir / "run.json", self.record)

    def close(self) -> None:
        """Closes the loggers and environments."""
        self._logger.close()
        self._eval_envs.close()
        if self._rollout:
            self._rollout.envs.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first SIGINT or SIGTERM asks for a checkpoint and the end; a second one ends the process as usual."""
        before = {}

        def ask(number: int, _frame: Any) -> None:
            self._interrupted = True
            signal.signal(number, before[number])

        with contextlib.suppress(ValueError):  # not the main thread: signals stay with whoever owns it
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, ask)
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)

    def _check_action_space(self) -> None:
        if self.spec.action_space not in self.algorithm.action_spaces:
            from zoo.registry import algorithms

            able = [name for name, other in algorithms().items() if self.spec.action_space in other.action_spaces]
            raise UsageError(
                f"{self.algorithm.name} needs {' or '.join(self.algorithm.action_spaces)} actions; {self.config.env.name} has "
                f"{self._eval_envs.single_action_space}. "
                + (f"Try: {', '.join(able)}." if able else "No algorithm here takes them yet.")
            )


def summary(episodes: Episodes, config: RunConfig) -> dict[str, Any]:
    """The columns of one evaluation; `score` is empty for an environment without reference scores."""
    score = config.env.normalize(episodes.returns.mean())
    return {
        "return_mean": float(episodes.returns.mean()),
        "return_std": float(episodes.returns.std()),
        "score": "" if score is None else float(score),
        "length_mean": float(episodes.lengths.mean()),
    }


# --- A run's life ------------------------------------------------------------------------------------------------------


def execute(config: RunConfig, algorithm: Algorithm, settings: dict[str, Any]) -> Run:
    """Trains from the start to the end, or from the last checkpoint of `config.resume`, and leaves a folder that says what happened.

    Args:
        settings: the resolved configuration, as it is written to `config.yaml`.

    Raises:
        UsageError: the settings do not fit each other, or the folder is taken. A folder made for this run is gone again.
        RunError: a failure on the way. What was written up to the last checkpoint stays.
        Interrupted: SIGINT or SIGTERM; resume continues.
    """
    run_dir, made, state = _reopen(Path(config.resume)) if config.resume else (*_create(config, algorithm), None)
    with _lock(run_dir):
        fresh = state is None
        record = (
            {"status": "running", "id": uuid.uuid4().hex[:16], "config": settings}
            | {**_provenance(algorithm), "started": _now()}
            if fresh
            else json.loads((run_dir / "run.json").read_text()) | {"status": "running", "resumed": _now()}
        )
        run: Run | None = None
        try:
            run = Run(config, algorithm, run_dir, record, state)
            if fresh:
                record["spec"] = dataclasses.asdict(run.spec)
                with checkpoint.replacing(run_dir / "config.yaml") as file:
                    file.write(OmegaConf.to_yaml(OmegaConf.create(settings)).encode())
            run.save_record()
            algorithm.module.train(run, config.algo)
            record["status"] = "finished"
            return run
        except BaseException as error:
            record["status"] = "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"
            if isinstance(error, UsageError | RunError):
                record["error"] = str(error)
            if fresh and (run is None or run.done == 0) and not (run_dir / "checkpoint.pt").exists():
                _remove(run_dir, made)  # nothing was learned yet: leave nothing half-made behind
            raise
        finally:
            if run is not None:
                run.close()
            if (run_dir / LOCK).exists():  # else it was removed
                record["ended"] = _now()
                checkpoint.save_json(run_dir / "run.json", record)


def _create(config: RunConfig, algorithm: Algorithm) -> tuple[Path, list[Path]]:
    """The run's new folder, and all that had to be made for it, innermost first."""
    if config.run_dir is None:
        data = "" if algorithm.setting == "online" else "-" + re.sub(r"[^\w.+%-]+", "_", Path(config.dataset).stem)
        name = f"{algorithm.name}{data}-seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
        run_dir = Path("runs") / config.env.name / name
    else:
        run_dir = Path(config.run_dir).expanduser()
        if (run_dir / "run.json").exists():
            with _lock(run_dir):
                pass
            status = json.loads((run_dir / "run.json").read_text())["status"]
            if status == "finished":
                raise UsageError(
                    f"run_dir={run_dir} already holds a finished run. Take another folder, or see it: zoo eval {run_dir}"
                )
            if not (run_dir / "checkpoint.pt").exists():
                raise UsageError(
                    f"run_dir={run_dir} holds a run that stopped before its first checkpoint. Take another folder, "
                    f"or delete it: rm -r {run_dir}"
                )
            raise UsageError(f"run_dir={run_dir} holds an unfinished run. Continue it: zoo run resume={run_dir}")
        if run_dir.exists() and (not run_dir.is_dir() or any(path.name != LOCK for path in run_dir.iterdir())):
            raise UsageError(f"run_dir={run_dir} exists and is not an empty folder. Take another one.")
    for attempt in itertools.count(2):
        made = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
        try:
            run_dir.mkdir(parents=True, exist_ok=config.run_dir is not None)
            break
        except FileExistsError:  # another run of the same name began in the same second
            run_dir = run_dir.with_name(f"{name}-{attempt}")
        except OSError as error:
            raise RunError(f"cannot make the folder {run_dir}: {error.strerror}.") from error
    return run_dir, made


def _remove(run_dir: Path, made: list[Path]) -> None:
    shutil.rmtree(run_dir)
    if run_dir not in made:
        run_dir.mkdir()  # it was there, empty, before the run
    for path in made[1:]:
        with contextlib.suppress(OSError):  # another run has its folder there by now
            path.rmdir()


def _reopen(run_dir: Path) -> tuple[Path, list[Path], dict[str, Any]]:
    with _lock(run_dir):
        pass
    if json.loads((run_dir / "run.json").read_text())["status"] == "finished":
        raise UsageError(f"resume={run_dir}: this run has finished. See it: zoo eval {run_dir}")
    return run_dir, [], checkpoint.load(run_dir / "checkpoint.pt", "cpu")


LOCK = ".lock"


@contextlib.contextmanager
def _lock(run_dir: Path) -> Iterator[None]:
    """Holds the folder for this process; the kernel lets go of it however the process ends."""
    with (run_dir / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{run_dir} is in use by a run in progress. Wait for it, or take another run_dir."
            ) from None
        yield


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _provenance(algorithm: Algorithm) -> dict[str, Any]:
    """What a reader needs to know to repeat the run elsewhere."""
    packages = ("torch", "gymnasium", "mujoco", "numpy", "minari")
    git = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "algorithm": {
            "name": algorithm.name,
            "file": None if algorithm.is_own else str(algorithm.path),
            "sha256": hashlib.sha256(algorithm.path.read_bytes()).hexdigest(),
        },
        "commit": git.stdout.strip() or None,
        "versions": {"zoo": zoo.__version__, "python": platform.python_version()}
        | {name: metadata.version(name) for name in packages},
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def compile_update(update: Callable[..., Metrics]) -> Callable[..., Metrics]:
    """An agent's update as one compiled graph, its gradients included."""
    torch._dynamo.config.trace_autograd_ops = True
    return torch.compile(update, fullgraph=True)


def resolve_device(name: str) -> torch.device:
    """`auto` -> a GPU where there is one. Raises UsageError where the device does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device={name} is not on this machine. Try: device=cpu.") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={name} is of a kind that the zoo does not use. Try: device=cpu or device=cuda.")
    return device


def rng_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
