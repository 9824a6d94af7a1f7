"""Executes a run: makes or reopens its folder, locks it, trains, and records how it ended."""

import contextlib
import copy
import dataclasses
import hashlib
import itertools
import re
import shutil
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from zoo.data.corruption import CorruptionConfig
from zoo.data.samplers import SamplerConfig
from zoo.envs import in_envpool, resolve_backend, series
from zoo.envs.config import OWN_CLOCK
from zoo.errors import Interrupted, RunError, UsageError, quoted
from zoo.files import replacing, save_json
from zoo.machine import expanded
from zoo.nn import linear
from zoo.runs.dataset import other_content
from zoo.runs.device import enough_memory, peak_memory
from zoo.runs.evaluation import LONGEST
from zoo.runs.load import load_adversary, load_state
from zoo.runs.lock import LOCK, locked
from zoo.runs.provenance import code_version, provenance
from zoo.runs.record import eval_command, finished, read_record, resume_command
from zoo.runs.run import Run
from zoo.runs.terminal import terminal
from zoo.settings.config import RunConfig
from zoo.settings.fit import far_from_unit, without_effect
from zoo.settings.registry import Algorithm

if TYPE_CHECKING:
    from zoo.runs.together import Together

USUAL = (SamplerConfig.name, CorruptionConfig.name, None)  # these values are left out of a run's name
WRITTEN = ("checkpoint.pt", "diverged.pt", "evaluations.csv", "metrics.csv")  # a run with one of these is kept


def execute(
    config: RunConfig, algorithm: Algorithm, settings: dict[str, Any], together: "Together | None" = None
) -> Run:
    """Trains from the start, or from the last checkpoint of `config.resume`, to the end.

    Args:
        settings: the resolved configuration, as it is written to `config.yaml`.
        together: the runs side by side, if this is one of several.

    Raises:
        UsageError: the settings are incompatible, or the folder is taken. Everything that the run created is removed.
        RunError: the run failed on the way. What was written up to the last checkpoint stays.
        Interrupted: SIGINT or SIGTERM came; `resume` continues the run.
    """
    run_dir, made = (Path(config.resume), []) if config.resume else _create(config, algorithm)
    with locked(run_dir):
        state = _last_state(run_dir, config.steps) if config.resume else None
        fresh = state is None
        before = None if fresh else read_record(run_dir)
        record: dict[str, Any] = {}
        run: Run | None = None
        try:
            record = (
                {"status": "running", "id": uuid.uuid4().hex[:16], "config": settings, "folder": str(Path.cwd())}
                | {**provenance(algorithm), "started": _now()}
                if before is None
                else copy.deepcopy(before) | {"status": "running", "resumed": _now()}
            )
            record.pop("error", None)
            with together.only_first_prints() if together else contextlib.nullcontext():
                _settle_backend(config, record)
                _settle_series(config, record)
                adversary = load_adversary(config.corruption, record)
                run = Run(config, algorithm, run_dir, record, state, adversary, together)
            if together:
                record["seeds"] = list(together.seeds)
            if fresh:
                record["spec"] = dataclasses.asdict(run.spec)
                _write_settings(run_dir, settings)
                for line in [*without_effect(config), *far_from_unit(run.spec)]:
                    run.report(line)
                if run.time_limit() is None and not config.env.id.startswith(OWN_CLOCK):
                    run.report(
                        f"no time limit is known of {config.env.name}: the run fails if an episode of an evaluation "
                        f"does not end within {LONGEST:,} steps. For a limit: env.max_episode_steps=N"
                    )
            elif not record["code"].endswith(code := code_version(algorithm)):
                record["code"] += f"+{code}"
                run.report("continues with other code than it began with")
            if config.device != record["config"]["device"]:
                run.report(f"continues with device={config.device}")
            if config.steps != record["config"]["steps"]:
                run.report(
                    f"continues to step {config.steps:,}, not {record['config']['steps']:,}; what falls over a run's "
                    "steps, such as a learning rate, falls over all of these"
                )
                record["config"]["steps"] = config.steps
                _write_settings(run_dir, record["config"])
            run.save_record()
            with enough_memory():
                algorithm.module.train(run, config.algo)
            record["status"] = "finished"
            return run
        except BaseException as error:
            record["status"] = "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"
            if isinstance(error, UsageError | RunError):
                record["error"] = str(error)
            if before and before["status"] == "finished" and (run is None or run.done == before["config"]["steps"]):
                record = before  # a finished run that was to go on, and did not
                _write_settings(run_dir, record["config"])
            if fresh and not any((run_dir / name).exists() for name in WRITTEN):
                _remove(run_dir, made)  # leave nothing half-made behind
            raise
        finally:
            if run is not None and (peak := peak_memory(run.device)) is not None:
                record["gpu_memory"] = peak
            try:
                if (run_dir / LOCK).exists():  # otherwise it was removed
                    record |= {"linear": dict(linear.choices), "ended": _now()}
                    save_json(run_dir / "run.json", record)
            finally:
                if run is not None:
                    run.close()


def _write_settings(run_dir: Path, settings: dict[str, Any]) -> None:
    with replacing(run_dir / "config.yaml") as file:
        file.write(OmegaConf.to_yaml(OmegaConf.create(settings)).encode())


def _settle_backend(config: RunConfig, record: dict[str, Any]) -> None:
    """Resolves `env.backend=auto` for the whole run, also when it is resumed on another machine."""
    env = config.env
    asked = env.backend
    try:
        env.backend = resolve_backend(env)
    except ValueError as error:
        raise UsageError(str(error)) from error
    record["config"]["env"]["backend"] = env.backend
    if asked == "auto" and env.backend == "gymnasium" and in_envpool() and not env.only_in_gymnasium:
        how = "has another" if env.id in in_envpool() else "does not have"
        terminal().print(f"env.backend=gymnasium: EnvPool {how} {env.id}", markup=False)


def _settle_series(config: RunConfig, record: dict[str, Any]) -> None:
    """Records a digest of a series' file. Raises UsageError if the run began with other contents."""
    if not config.env.id.startswith(series.PREFIX):
        return
    with series.path(config.env.id).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    if record.setdefault("series", found) != found:
        raise UsageError(other_content(f"env={config.env.id}"))


def label(config: RunConfig, algorithm: Algorithm) -> str:
    """A run's name without environment and seed: `riql-medium-random-obs-paper`."""
    parts = [algorithm.name]
    if algorithm.takes_data(config):
        parts.append(re.sub(r"[^\w.+%-]+", "_", Path(config.dataset).stem))
    parts += [given for given in (config.sampler.name, config.corruption.name, config.preset) if given not in USUAL]
    return "-".join(map(str, parts))


def parent_of(config: RunConfig) -> Path:
    """The folder in which a run has its own."""
    return expanded(config.run_dir).parent if config.run_dir else Path("runs", config.env.name)


def _create(config: RunConfig, algorithm: Algorithm) -> tuple[Path, list[Path]]:
    """Makes the run's folder. Returns all folders that it created, innermost first."""
    if config.run_dir is None:
        name = f"{label(config, algorithm)}-seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
        run_dir = parent_of(config) / name
    else:
        run_dir = expanded(config.run_dir)
        if (run_dir / "run.json").exists():
            with locked(run_dir):
                pass
            if finished(run_dir):
                raise UsageError(
                    f"run_dir={run_dir} already holds a finished run. "
                    f"Take another folder, or see it: {eval_command(run_dir)}"
                )
            if not (run_dir / "checkpoint.pt").exists():
                raise UsageError(
                    f"run_dir={run_dir} holds a run that stopped before its first checkpoint. Take another folder, "
                    f"or delete it: rm -r {quoted(run_dir)}"
                )
            raise UsageError(f"run_dir={run_dir} holds an unfinished run. Continue it: {resume_command(run_dir)}")
        if run_dir.exists() and (not run_dir.is_dir() or any(path.name != LOCK for path in run_dir.iterdir())):
            raise UsageError(f"run_dir={run_dir} exists and is not an empty folder. Take another one.")
    for attempt in itertools.count(2):
        made = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
        try:
            run_dir.mkdir(parents=True, exist_ok=config.run_dir is not None)
            break
        except FileExistsError as error:
            if Path(error.filename).is_symlink():
                raise RunError(
                    f"cannot make the folder {run_dir}: {error.filename} is a link that leads nowhere."
                ) from error
            # another run of the same name started in the same second
            run_dir = run_dir.with_name(f"{name}-{attempt}")
        except OSError as error:
            raise RunError(f"cannot make the folder {run_dir}: {error.strerror}.") from error
    return run_dir, made


def _remove(run_dir: Path, made: list[Path]) -> None:
    for path in run_dir.iterdir():
        with contextlib.suppress(OSError):  # the lock is open: on NFS it stays until it is closed
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in made:
        with contextlib.suppress(OSError):  # another run may have its folder there by now
            path.rmdir()


def _last_state(run_dir: Path, steps: int) -> dict[str, Any]:
    """The contents of the last checkpoint of a run that is to end at a step.

    Raises:
        UsageError: it has finished, or cannot end there.
    """
    record = read_record(run_dir)
    its = record["config"]
    more = "" if its["online_steps"] else f"{resume_command(run_dir)} steps={2 * its['steps']}, or "
    longer = f"To train further: {more}a new run by init_from=DIR"
    if steps < its["steps"]:
        raise UsageError(f"steps={steps} is less than the {its['steps']} of {run_dir}. {longer}")
    if steps > its["steps"] and its["online_steps"]:
        raise UsageError(f"steps={steps}: {run_dir} continues online after {its['steps']} steps. Leave it out.")
    if record["status"] == "finished" and steps == its["steps"]:
        raise UsageError(f"resume={run_dir}: this run has finished. See it: {eval_command(run_dir)}. {longer}")
    return load_state(run_dir / "checkpoint.pt", ". Start a new run.")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
