"""The jobs of a suite: one per run, with its state, which is read from its folder; and how jobs share a process."""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.benchmarks.launchers import Process
from zoo.benchmarks.reading import read_run
from zoo.benchmarks.suite import Planned
from zoo.errors import quoted
from zoo.settings.overrides import as_overrides

ATTEMPTS = 2  # for a run that crashes, hangs or is killed


@dataclass
class Job:
    """A run and its state.

    Attributes:
        run: the planned run.
        dir: the run's folder.
        state: waiting, running, finished or failed.
        attempts: how often it was started.
        error: why it failed the last time.
    """

    run: Planned
    dir: Path
    state: str = "waiting"
    attempts: int = 0
    error: str = ""
    saved: int = field(default=0, repr=False)  # changes with its checkpoint

    @property
    def log_path(self) -> Path:
        return self.dir.with_name(self.dir.name + ".log")

    @property
    def begun(self) -> bool:
        """Whether it has a checkpoint to continue from."""
        return (self.dir / "checkpoint.pt").exists()

    @property
    def shared(self) -> tuple[str, ...]:
        """The overrides that it is started with, except the seed."""
        return tuple(one for one in self.run.overrides if not one.startswith("seed="))


@dataclass
class Group:
    """Jobs in one process, and its state. The process writes to the log of its first job."""

    jobs: list[Job]
    device: str | None
    process: Process
    written: int  # changes whenever the process writes something
    seen: float = math.inf  # when it last wrote something; it may wait for a long time before it begins

    @property
    def log_path(self) -> Path:
        return self.jobs[0].log_path


def command(jobs: Sequence[Job]) -> list[str]:
    """The arguments for Python that start or resume jobs in one process."""
    zoo = ["-P", "-m", "zoo.cli", "run"]  # -P: no module is taken from the working directory
    dirs = [job.dir for job in jobs] if len(jobs) > 1 else jobs[0].dir
    if jobs[0].begun:
        return [*zoo, *as_overrides({"resume": dirs})]
    if len(jobs) == 1:
        return [*zoo, *jobs[0].run.overrides, *as_overrides({"run_dir": dirs})]
    seeds = ",".join(str(job.run.settings["seed"]) for job in jobs)
    return [*zoo, *jobs[0].shared, f"seeds={seeds}", *as_overrides({"run_dir": dirs})]


def grouped(jobs: Sequence[Job], gpus: int) -> list[list[Job]]:
    """Groups the jobs by process: on GPUs, jobs that differ only in their seeds share one.

    If there are at most half as many groups as GPUs, each group is split into several processes.
    """
    alike: dict[Any, list[Job]] = {}
    for job in jobs:
        alone = not gpus or job.run.settings["device"] == "cpu"
        alike.setdefault(job.run.name if alone else job.shared, []).append(job)
    pieces = max(1, gpus // max(1, len(alike)))
    return [piece for group in alike.values() for i in range(pieces) if (piece := group[i::pieces])]


def record(run_dir: Path) -> dict[str, Any]:
    """The content of a run's `run.json`; empty if the file is missing or cannot be read."""
    try:
        return dict(json.loads((run_dir / "run.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def status(run_dir: Path) -> str | None:
    """The status in a run's `run.json`, if there is one."""
    return record(run_dir).get("status")


def settle(job: Job) -> None:
    """Called when a job's run has finished: it counts if it is complete and was run by the planned code."""
    found = read_run(job.dir)
    if isinstance(found, str):
        refuse(job, f"has finished, but {found}")
    elif found.record.get("code") != job.run.code:
        refuse(job, "was run by other code than was planned")
    else:
        job.state = "finished"


def refuse(job: Job, error: str) -> None:
    """Called when a job's folder can neither be used nor resumed. The folder is not changed."""
    job.state, job.error = "failed", f"{error}: rm -r {quoted(job.dir)}, and start the suite again"


def fail(job: Job, error: str) -> None:
    """Called when an attempt has failed; another attempt may follow."""
    job.error, job.state = error, "waiting" if job.attempts < ATTEMPTS else "failed"


def written(jobs: Sequence[Job]) -> int:
    """A number that changes whenever the process of these jobs writes something."""
    total = 0
    for place in (jobs[0].log_path, *(job.dir for job in jobs)):
        with contextlib.suppress(OSError):  # a file or folder may be replaced in the meantime
            for path in (place, *place.glob("*")):
                total += path.stat().st_mtime_ns + path.stat().st_size
    return total


def saved(job: Job) -> int:
    """A number that changes whenever the job writes a checkpoint."""
    try:
        return (job.dir / "checkpoint.pt").stat().st_mtime_ns
    except OSError:
        return 0


def last_line(path: Path) -> str:
    """The last line of a log, which usually says why the process ended."""
    text = path.read_text(errors="replace") if path.exists() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"
