"""Runs of a suite, side by side: each a process of its own, started again if it fails, never run twice if it finishes.

A folder holds one folder a run, which is all that is known of it: a run that has finished is left alone, one with a
checkpoint goes on from it, what was begun without one is begun anew. So a runner that was killed, and whose runs die
with it, needs only be started again.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from zoo.benchmarks.suite import Planned
from zoo.errors import Interrupted, RunError

ATTEMPTS = 2  # of a run that crashes, hangs or is killed
POLL = 0.2  # seconds between looks at the processes
PR_SET_PDEATHSIG = 1  # of Linux's prctl


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
    process: "subprocess.Popen[bytes] | None" = None
    log: "IO[bytes] | None" = None
    seen: float = 0.0  # when it last wrote anything
    size: int = field(default=0, repr=False)  # of all that it had written then

    @property
    def log_path(self) -> Path:
        return self.dir.with_name(self.dir.name + ".log")

    @property
    def command(self) -> list[str]:
        """Starts the run, or goes on with it."""
        zoo = [sys.executable, "-m", "zoo.cli", "run"]
        if (self.dir / "checkpoint.pt").exists():
            return [*zoo, f"resume={self.dir}"]
        return [*zoo, *self.run.overrides, f"run_dir={self.dir}"]


def status(run_dir: Path) -> str | None:
    """What `run.json` says of a run; None where there is none, or none that can be read."""
    try:
        return str(json.loads((run_dir / "run.json").read_text())["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Runner:
    """Brings the runs of a suite to their ends.

    Args:
        runs: what is to be run.
        folder: where their folders are.
        places: a device for each run that may go on at the same time; None where the run finds one itself.
        stall: seconds after which a run that writes nothing has hung.
        show: is told of all jobs whenever one of them may have changed.
    """

    def __init__(
        self,
        runs: list[Planned],
        folder: Path,
        places: list[str | None],
        stall: float = 3600.0,
        show: Callable[[list[Job]], None] = lambda jobs: None,
    ) -> None:
        self.jobs = [Job(run, folder / run.name) for run in runs]
        self.folder, self.places, self.stall, self.show = folder, places, stall, show
        for job in self.jobs:
            if status(job.dir) == "finished":
                job.state = "finished"

    def go(self) -> list[Job]:
        """Runs what is left.

        Returns:
            All jobs, each finished or failed.

        Raises:
            Interrupted: SIGINT or SIGTERM came; every run has been told, and has written a checkpoint.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        free = list(self.places)
        with interruptible():
            try:
                while any(job.state in ("waiting", "running") for job in self.jobs):
                    for job in self.jobs:
                        if job.state == "waiting" and free:
                            job.device = free.pop(0)
                            self._start(job)
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
        return self.jobs

    def _start(self, job: Job) -> None:
        if not (job.dir / "checkpoint.pt").exists() and job.dir.exists():
            shutil.rmtree(job.dir)  # begun, but nothing was learned yet
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        if job.device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = job.device
        job.log = job.log_path.open("ab")
        job.process = subprocess.Popen(
            job.command, stdin=subprocess.DEVNULL, stdout=job.log, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True, preexec_fn=die_with_the_parent if sys.platform == "linux" else None,
        )  # fmt: skip
        job.state, job.attempts, job.seen = "running", job.attempts + 1, time.monotonic()

    def _ended(self, job: Job) -> bool:
        """Whether the job's process is over; if so, what follows from it."""
        assert job.process is not None
        assert job.log is not None
        hung = self._hangs(job)
        if hung:
            job.process.kill()
            job.process.wait()
        code = job.process.poll()
        if code is None:
            return False
        job.log.close()
        if code == 0 and status(job.dir) == "finished":
            job.state = "finished"
            return True
        why = f"wrote nothing for {self.stall:.0f} s" if hung else f"ended with {code}"
        job.error = f"{why}: {last_line(job.log_path)}"
        job.state = "waiting" if job.attempts < ATTEMPTS else "failed"
        return True

    def _hangs(self, job: Job) -> bool:
        size = job.log_path.stat().st_size
        with contextlib.suppress(OSError):  # a file may be replaced while it is looked at
            size += sum(path.stat().st_mtime_ns for path in job.dir.rglob("*") if path.is_file())
        if size != job.size:
            job.size, job.seen = size, time.monotonic()
        return time.monotonic() - job.seen > self.stall

    def _stop(self) -> None:
        """Asks every run for a checkpoint and its end, and waits for it."""
        running = [job for job in self.jobs if job.state == "running" and job.process]
        for job in running:
            job.process.send_signal(signal.SIGINT)  # type: ignore[union-attr]
        for job in running:
            job.process.wait()  # type: ignore[union-attr]
            job.state = "finished" if status(job.dir) == "finished" else "waiting"


def die_with_the_parent() -> None:
    """Of a process just forked: has it killed when the runner ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def last_line(path: Path) -> str:
    """Of a log, what says best why it ends."""
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM is taken as SIGINT is."""
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
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed, each {ATTEMPTS} times: {named}")
