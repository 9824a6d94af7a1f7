"""Runs of a suite, side by side: each a process of its own, started again if it fails, never run twice if it finishes.

A folder holds one folder a run, which is all that is known of it: a run that has finished is left alone, one with a
checkpoint goes on from it, one that was begun without one is begun anew, and one that another process has locked is
waited for. So a runner that was killed needs only be started again.
"""

import contextlib
import json
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.benchmarks.launchers import Launcher, Process, roomiest
from zoo.benchmarks.reading import read_run
from zoo.benchmarks.suite import Planned
from zoo.errors import Interrupted, RunError, UsageError
from zoo.runs.execute import LOCK, locked
from zoo.settings.compose import as_overrides

ATTEMPTS = 2  # of a run that crashes, hangs or is killed
POLL = 0.2  # seconds between looks at the processes


@dataclass
class Job:
    """A run and how it goes.

    Attributes:
        run: what is to be run.
        dir: its folder.
        state: waiting, running, finished or failed.
        attempts: how often it was started.
        error: why it failed last.
    """

    run: Planned
    dir: Path
    state: str = "waiting"
    attempts: int = 0
    error: str = ""
    device: str | None = None
    process: Process | None = None
    seen: float = math.inf  # when it last wrote anything; it may wait long before it begins
    written: int = field(default=0, repr=False)  # changes with all that it writes
    saved: int = field(default=0, repr=False)  # changes with its checkpoint

    @property
    def log_path(self) -> Path:
        return self.dir.with_name(self.dir.name + ".log")

    @property
    def command(self) -> list[str]:
        """The arguments for Python that start the run, or resume it."""
        zoo = ["-m", "zoo.cli", "run"]
        if (self.dir / "checkpoint.pt").exists():
            return [*zoo, *as_overrides({"resume": self.dir})]
        return [*zoo, *self.run.overrides, *as_overrides({"run_dir": self.dir})]


def record(run_dir: Path) -> dict[str, Any]:
    """The `run.json` of a run; empty where there is none, or none that can be read."""
    try:
        return dict(json.loads((run_dir / "run.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def status(run_dir: Path) -> str | None:
    """The status in a run's `run.json`, if there is one."""
    return record(run_dir).get("status")


class Runner:
    """Brings the runs of a suite to their ends.

    Args:
        runs: what is to be run.
        folder: where their folders are.
        launcher: what starts them.
        stall: seconds after which a run that writes nothing has hung.
        show: is called with all jobs whenever one of them may have changed.
    """

    def __init__(
        self,
        runs: list[Planned],
        folder: Path,
        launcher: Launcher,
        stall: float = 3600.0,
        show: Callable[[list[Job]], None] = lambda jobs: None,
    ) -> None:
        self.jobs = [Job(run, folder / run.name) for run in runs]
        self.folder, self.launcher, self.stall, self.show = folder, launcher, stall, show
        if "${" in str(folder):
            raise UsageError(f"{folder} cannot be the folder of runs: ${{ stands for a value in a setting.")
        for job in self.jobs:
            if status(job.dir) == "finished":
                settle(job)

    def go(self) -> list[Job]:
        """Runs what is left.

        Returns:
            All jobs, each finished or failed.

        Raises:
            Interrupted: SIGINT or SIGTERM came; every run was asked to stop, and has written a checkpoint.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {self.folder}: {error.strerror}. Take another: --dir") from error
        free = list(self.launcher.places)
        with interruptible(), alone(self.folder):
            try:
                while any(job.state in ("waiting", "running") for job in self.jobs):
                    for job in self.jobs:
                        if job.state == "waiting" and free and not in_use(job.dir):
                            if status(job.dir) == "finished":
                                settle(job)
                            elif self._started(job, device := roomiest(free, self.launcher.places)):
                                job.device = device
                                free.remove(device)
                        elif job.state == "running" and self._ended(job):
                            free.append(job.device)
                    self.show(self.jobs)
                    time.sleep(POLL)
            except KeyboardInterrupt:
                self._stop()
                left = sum(job.state != "finished" for job in self.jobs)
                raise Interrupted(
                    f"interrupted; {left} of {len(self.jobs)} runs are left. The same command goes on with them."
                ) from None
            finally:
                self.launcher.close()
        return self.jobs

    def _started(self, job: Job, device: str | None) -> bool:
        """Starts a run, if that is possible."""
        if not (job.dir / "checkpoint.pt").exists():
            shutil.rmtree(job.dir, ignore_errors=True)  # begun, but nothing was learned yet
        elif not record(job.dir):
            refuse(job, "has a checkpoint, but no run.json that can be read")
            return False
        job.written, job.seen, job.saved = written(job), math.inf, saved(job)
        job.attempts += 1
        try:
            job.process = self.launcher.start(job.command, job.log_path, device)
        except Exception as error:  # a full queue, a lost cluster, no memory for a process
            fail(job, f"could not be started: {error}")
            return False
        job.state = "running"
        return True

    def _ended(self, job: Job) -> bool:
        """Whether the job's process is over; if so, what follows from it."""
        assert job.process is not None
        hung = self._hangs(job)
        if hung:
            job.process.kill()
            wait(job.process)
        code = job.process.poll()
        if code is None:
            return False
        if code == 0 and status(job.dir) == "finished":
            settle(job)
            return True
        if status(job.dir) == "interrupted" and saved(job) != job.saved:
            job.attempts -= 1  # its time was over where it ran; it got on
        why = f"wrote nothing for {self.stall:.0f} s" if hung else f"ended with {code}"
        fail(job, f"{why}: {last_line(job.log_path)}")
        return True

    def _hangs(self, job: Job) -> bool:
        if (now := written(job)) != job.written:
            job.written, job.seen = now, time.monotonic()
        return time.monotonic() - job.seen > self.stall

    def _stop(self) -> None:
        """Asks every run for a checkpoint and its end, and waits for it."""
        processes = [(job, job.process) for job in self.jobs if job.state == "running" and job.process]
        for _, process in processes:
            process.interrupt()
        for job, process in processes:
            wait(process)
            job.state = "waiting"
            if status(job.dir) == "finished":
                settle(job)


def settle(job: Job) -> None:
    """Called when a job's run has finished: it counts if it is complete and of the planned code."""
    found = read_run(job.dir)
    if isinstance(found, str):
        refuse(job, f"has finished, but {found}")
    elif found.record.get("code") != job.run.code:
        refuse(job, "was made by other code than when it was planned")
    else:
        job.state = "finished"


def refuse(job: Job, error: str) -> None:
    """Called when a job's folder can neither be used nor resumed; its content is left alone."""
    job.state, job.error = "failed", f"{error}: rm -r {job.dir}, and begin the suite again"


def fail(job: Job, error: str) -> None:
    """Called when an attempt has failed; there may be another one."""
    job.error, job.state = error, "waiting" if job.attempts < ATTEMPTS else "failed"


def written(job: Job) -> int:
    """A number that changes with whatever the job writes."""
    total = 0
    with contextlib.suppress(OSError):  # a file or a folder may be replaced while it is looked at
        for path in (job.log_path, *job.dir.rglob("*")):
            total += path.stat().st_mtime_ns + path.stat().st_size
    return total


def saved(job: Job) -> int:
    """A number that changes with the job's checkpoint."""
    try:
        return (job.dir / "checkpoint.pt").stat().st_mtime_ns
    except OSError:
        return 0


def wait(process: Process) -> None:
    """Waits for the end of a process."""
    while process.poll() is None:
        time.sleep(POLL)


def in_use(run_dir: Path) -> bool:
    """Whether another process runs in a folder."""
    if not (run_dir / LOCK).exists():
        return False
    try:
        with locked(run_dir):
            return False
    except UsageError:
        return True


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Locks the folder for this runner. Raises UsageError where another one has it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(folder))
        except UsageError as error:
            raise UsageError(
                f"{folder} is in use by another zoo bench. Wait for it, or take another folder: --dir"
            ) from error
        yield


def last_line(path: Path) -> str:
    """The line of a log that says best why it ends."""
    text = path.read_text(errors="replace") if path.exists() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treats SIGTERM as SIGINT."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def failures(jobs: list[Job]) -> None:
    """Raises RunError that names the runs that failed, if any did."""
    failed = [job for job in jobs if job.state == "failed"]
    if failed:
        named = "; ".join(f"{job.run.name} {job.error}" for job in failed)
        raise RunError(
            f"{len(failed)} of {len(jobs)} runs failed, after up to {ATTEMPTS} attempts: {named}. "
            "The same command tries them again."
        )
