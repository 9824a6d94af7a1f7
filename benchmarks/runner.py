"""Runs a suite in parallel processes. A run that fails is tried again; a run that has finished is not run again.

Each run is a process of its own; on GPUs, runs that differ only in their seeds share a process. The state of a run is
read from its folder. A run that has finished is left alone. A run with a checkpoint continues from it, and a run
without a checkpoint starts from the beginning. If another process has locked a run, the runner waits for it. So if the
runner is killed, the same command continues the suite.
"""

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from zoo.benchmarks.jobs import (
    ATTEMPTS,
    Group,
    Job,
    command,
    fail,
    grouped,
    last_line,
    record,
    refuse,
    saved,
    settle,
    status,
    written,
)
from zoo.benchmarks.launchers import Launcher, Process, roomiest
from zoo.benchmarks.suite import Planned
from zoo.errors import Interrupted, RunError, UsageError
from zoo.runs.lock import in_use, locked

POLL = 0.2  # seconds between checks of the processes
ANOTHER = "use another folder: --dir FOLDER, or for a search sweeper.dir=FOLDER"


class Runner:
    """Runs a suite until every run has finished or failed.

    Args:
        runs: the planned runs.
        folder: the folder of the runs' folders.
        launcher: starts the processes.
        stall: a run that writes nothing for so many seconds is treated as hung.
        show: called with all jobs whenever one of them may have changed.
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
        self.groups = grouped([job for job in self.jobs if job.state == "waiting"], launcher.gpus)

    def go(self) -> list[Job]:
        """Runs all jobs that have not finished.

        Returns:
            All jobs, each finished or failed.

        Raises:
            Interrupted: SIGINT or SIGTERM was received; every run was asked to stop and has written a checkpoint.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {self.folder}: {error.strerror}; {ANOTHER}") from error
        free = list(self.launcher.places)
        running: list[Group] = []
        full = False  # the launcher could not start a process: wait until one has ended
        with interruptible(), alone(self.folder):
            try:
                while any(job.state in ("waiting", "running") for job in self.jobs):
                    for group in [group for group in running if self._ended(group)]:
                        running.remove(group)
                        free.append(group.device)
                        full = False
                    ready = [jobs for group in self.groups if (jobs := self._ready(group))] if free else []
                    for jobs in sorted(ready, key=lambda jobs: jobs[0].attempts):
                        if not free or full:
                            break
                        if started := self._started(jobs, roomiest(free, self.launcher.places), others=bool(running)):
                            running.append(started)
                            free.remove(started.device)
                        else:
                            full = bool(running)
                    self.show(self.jobs)
                    time.sleep(POLL)
            except KeyboardInterrupt:
                stop(running)
                left = sum(job.state != "finished" for job in self.jobs)
                raise Interrupted(
                    f"interrupted; {left} of {len(self.jobs)} runs are left. The same command continues them."
                ) from None
            finally:
                self.launcher.close()
        return self.jobs

    def _ready(self, jobs: list[Job]) -> list[Job]:
        """The jobs of a group to start now in one process: all new ones, all with a checkpoint, or one that failed.

        A failed job is tried again in its own process, because the other jobs may have made it fail.
        """
        waiting = [job for job in jobs if job.state == "waiting" and not in_use(job.dir)]
        for job in waiting:
            if status(job.dir) == "finished":
                settle(job)
            elif not job.begun:
                shutil.rmtree(job.dir, ignore_errors=True)  # it had begun, but has no checkpoint
            elif not record(job.dir):
                refuse(job, "has a checkpoint, but no readable run.json")
        waiting = [job for job in waiting if job.state == "waiting"]
        failed = [job for job in waiting if job.attempts]
        return failed[:1] or [job for job in waiting if job.begun == waiting[0].begun]

    def _started(self, jobs: list[Job], device: str | None, others: bool) -> Group | None:
        """Starts jobs in one process. If that is not possible, the attempt fails unless others are running."""
        for job in jobs:
            job.saved = saved(job)
        before = written(jobs)  # the process touches its log when it begins
        try:
            process = self.launcher.start(command(jobs), jobs[0].log_path, device)
        except Exception as error:  # a full queue, a lost cluster, no memory for a process
            for job in [] if others else jobs:
                job.attempts += 1
                fail(job, f"could not be started: {error}")
            return None
        for job in jobs:
            job.attempts += 1
            job.state = "running"
        return Group(jobs, device, process, before)

    def _ended(self, group: Group) -> bool:
        """Whether a process has ended. If so, updates the state of its jobs."""
        hung = self._hangs(group)
        if hung:
            group.process.kill()
            wait(group.process)
        code = group.process.poll()
        if code is None:
            return False
        why = f"wrote nothing for {self.stall:.0f} s" if hung else f"ended with {code}"
        for job in group.jobs:
            if status(job.dir) == "finished":
                settle(job)
                continue
            if status(job.dir) == "interrupted" and saved(job) != job.saved:
                job.attempts -= 1  # it reached a time limit but made progress: this is not a failed attempt
            fail(job, f"{why}: {last_line(group.log_path)}")
        return True

    def _hangs(self, group: Group) -> bool:
        if (now := written(group.jobs)) != group.written:
            group.written, group.seen = now, time.monotonic()
        return time.monotonic() - group.seen > self.stall


def stop(running: Sequence[Group]) -> None:
    """Asks every process to write checkpoints and end, and waits for it."""
    for group in running:
        group.process.interrupt()
    for group in running:
        wait(group.process)
        for job in group.jobs:
            job.state = "waiting"
            if status(job.dir) == "finished":
                settle(job)


def wait(process: Process) -> None:
    """Waits until a process has ended."""
    while process.poll() is None:
        time.sleep(POLL)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Locks the folder for this runner. Raises UsageError if another runner has locked it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(folder))
        except UsageError as error:
            raise UsageError(f"{folder} is in use by another zoo bench or search. Wait for it, or {ANOTHER}") from error
        yield


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treats SIGTERM as SIGINT."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: a handler that was not set by Python


def failures(jobs: list[Job]) -> None:
    """Raises RunError with the names of the failed runs, if there are any."""
    failed = [job for job in jobs if job.state == "failed"]
    if failed:
        named = "; ".join(f"{job.run.name} {job.error}" for job in failed).rstrip(".")
        if not any(job.attempts for job in failed):  # their folders cannot be used
            raise RunError(f"{len(failed)} of {len(jobs)} runs failed: {named}.")
        raise RunError(
            f"{len(failed)} of {len(jobs)} runs failed, after up to {ATTEMPTS} attempts: {named}. "
            "The same command tries them again."
        )
