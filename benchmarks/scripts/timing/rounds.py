"""Subjects timed in turn, round after round, each in a process of its own.

A machine whose speed drifts slows all of them alike, and none has what another leaves behind: memory, threads, a
library's settings. While one runs, the others wait for their turn at a read.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # of JAX


class Subject(NamedTuple):
    """How a subject is built: a function of a file beside this one, its arguments, and which Python has its imports."""

    file: str
    function: str
    arguments: dict[str, Any] = {}  # noqa: RUF012
    python: str = sys.executable


@dataclass
class Table:
    """Subjects of the same shapes and settings, as far as the note does not say otherwise.

    Attributes:
        title: what is counted, per second.
        count: calls of a subject in a round.
        subjects: those of the zoo have names that begin with `zoo`; the others are what they are compared with.
        worth: what one call counts for.
        note: what the reader must know, such as where the subjects differ.
    """

    title: str
    count: int
    subjects: dict[str, Subject]
    worth: int = 1
    note: str = ""


@dataclass
class Timed:
    """What was measured of a subject: the seconds of each round, and its process's peak memory in MB."""

    seconds: list[float] = field(default_factory=list)
    peak: float | None = None


@dataclass
class Measured:
    """A table with its figures, as it is kept."""

    title: str
    count: int
    worth: int
    note: str
    threads: int
    subjects: dict[str, Timed]
    versions: dict[str, str]
    linear: dict[str, str]


class Left(Exception):
    """A subject cannot be built or fails, and why."""


class Process:
    """A subject's process."""

    def __init__(self, subject: Subject, threads: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        if threads == 1:
            environment["XLA_FLAGS"] = ONE_THREAD
        command = [
            subject.python, str(FOLDER / "worker.py"), str(FOLDER / subject.file), subject.function,
            json.dumps(subject.arguments),
        ]  # fmt: skip
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment
        )

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()

    def run(self, count: int) -> dict[str, Any]:
        """So many updates. Raises Left with the last line that the process wrote, where it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(count, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.process.wait()
            self.errors.seek(0)
            raise Left((self.errors.read().strip().splitlines() or ["it ended without a word"])[-1])
        return json.loads(answer)  # type: ignore[no-any-return]


def measure(table: Table, rounds: int, threads: int) -> Measured:
    """Times every subject that can be built; a peer that cannot is left out, and said so.

    Raises:
        Left: one of the zoo's own fails.
    """
    measured = Measured(table.title, table.count, table.worth, table.note, threads, {}, {}, {})
    with ExitStack() as stack:
        processes: dict[str, Process] = {}
        for name, subject in table.subjects.items():
            process = stack.enter_context(Process(subject, threads))
            try:
                process.run(table.count)  # imports, compiles and warms up
                process.run(table.count)  # and compiles again, where what it compiled was changed by the first
            except Left as reason:
                if name.startswith("zoo"):
                    raise
                print(f"{name} is left out: {reason}", flush=True)
                continue
            processes[name] = process
            measured.subjects[name] = Timed()
        for _ in range(rounds):
            for name, process in processes.items():
                answer = process.run(table.count)
                timed = measured.subjects[name]
                timed.seconds.append(answer["seconds"])
                timed.peak = answer["peak"]
                measured.versions |= answer["versions"]
                measured.linear |= answer["linear"]
    return measured
