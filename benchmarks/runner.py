"""Runs of a suite, side by side: processes, started again if they fail, never run twice if they finish.

Each run is a process of its own; on GPUs those that differ in their seeds alone are one. A folder holds one folder a
run, which is all that is known of it: a run that has finished is left alone, one with a checkpoint continues from it,
one that was begun without one is begun anew, and one that another process has locked is waited for. So a runner that
was killed needs only be started again.
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

POLL = 0.2  # seconds between looks at the processes
ANOTHER = "take another folder: --dir FOLDER, for a search sweeper.dir=FOLDER"


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
        self.groups = grouped([job for job in self.jobs if job.state == "waiting"], launcher.gpus)

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
            raise UsageError(f"cannot make the folder {self.folder}: {error.strerror}; {ANOTHER}") from error
        free = list(self.launcher.places)
        running: list[Group] = []
        full = False  # whatever starts processes took no more: one of its own has to end first
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
        """Those of a group that can be started now, as one process: all new ones, all that continue, or a failed one.

        One that failed is tried again by itself: what made it fail may be that it was one of several.
        """
        waiting = [job for job in jobs if job.state == "waiting" and not in_use(job.dir)]
        for job in waiting:
            if status(job.dir) == "finished":
                settle(job)
            elif not job.begun:
                shutil.rmtree(job.dir, ignore_errors=True)  # it had begun, but nothing was learned yet
            elif not record(job.dir):
                refuse(job, "has a checkpoint, but no run.json that can be read")
        waiting = [job for job in waiting if job.state == "waiting"]
        failed = [job for job in waiting if job.attempts]
        return failed[:1] or [job for job in waiting if job.begun == waiting[0].begun]

    def _started(self, jobs: list[Job], device: str | None, others: bool) -> Group | None:
        """Starts jobs as one process, if that is possible; it has failed where no others are running that could end."""
        for job in jobs:
            job.saved = saved(job)
        before = written(jobs)  # it touches its log when it begins
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
        """Whether a process is over; if so, what follows from it for its jobs."""
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
                job.attempts -= 1  # its time was over where it ran; it got on
            fail(job, f"{why}: {last_line(group.log_path)}")
        return True

    def _hangs(self, group: Group) -> bool:
        if (now := written(group.jobs)) != group.written:
            group.written, group.seen = now, time.monotonic()
        return time.monotonic() - group.seen > self.stall


def stop(running: Sequence[Group]) -> None:
    """Asks every process for checkpoints and its end, and waits for it."""
    for group in running:
        group.process.interrupt()
    for group in running:
        wait(group.process)
        for job in group.jobs:
            job.state = "waiting"
            if status(job.dir) == "finished":
                settle(job)


def wait(process: Process) -> None:
    """Waits for the end of a process."""
    while process.poll() is None:
        time.sleep(POLL)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Locks the folder for this runner. Raises UsageError where another one has it."""
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
        signal.signal(signal.SIGTERM, before)


def failures(jobs: list[Job]) -> None:
    """Raises RunError that names the runs that failed, if any did."""
    failed = [job for job in jobs if job.state == "failed"]
    if failed:
        named = "; ".join(f"{job.run.name} {job.error}" for job in failed).rstrip(".")
        if not any(job.attempts for job in failed):  # their folders cannot be used
            raise RunError(f"{len(failed)} of {len(jobs)} runs failed: {named}.")
        raise RunError(
            f"{len(failed)} of {len(jobs)} runs failed, after up to {ATTEMPTS} attempts: {named}. "
            "The same command tries them again."
        )
