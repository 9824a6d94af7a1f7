"""Times subjects in turn, round after round, each in its own process.

So if the machine's speed changes, all subjects are affected equally. No subject is affected by what another leaves
behind, such as memory, threads or a library's settings. While one runs, the others wait for input.
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
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # flags for JAX


class Subject(NamedTuple):
    """How to build a subject: a function in a file of this folder, its arguments, and the Python to run it with."""

    file: str
    function: str
    arguments: dict[str, Any] = {}  # noqa: RUF012
    python: str = sys.executable


@dataclass
class Table:
    """Subjects with the same shapes and settings, unless the note says otherwise.

    Attributes:
        title: what is counted per second.
        count: the number of calls of a subject in a round.
        subjects: the subjects by name. The zoo's names begin with `zoo`; the others are compared with them.
        worth: how many units one call counts for.
        note: a note for the reader, such as how the subjects differ.
    """

    title: str
    count: int
    subjects: dict[str, Subject]
    worth: int = 1
    note: str = ""


@dataclass
class Timed:
    """The measurements of a subject: the seconds of each round, and its process's peak memory in MB."""

    seconds: list[float] = field(default_factory=list)
    peak: float | None = None


@dataclass
class Measured:
    """A table with its figures, as it is saved."""

    title: str
    count: int
    worth: int
    note: str
    threads: int
    subjects: dict[str, Timed]
    versions: dict[str, str]
    linear: dict[str, str]


class Left(Exception):
    """A subject could not be built or failed. The message says why."""


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
        if threads == 1 and hasattr(os, "sched_setaffinity"):  # XLA takes a second core whatever its flags say
            os.sched_setaffinity(self.process.pid, {max(os.sched_getaffinity(0))})

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()

    def run(self, count: int) -> dict[str, Any]:
        """Runs `count` updates. If the process has ended, raises Left with the last line that it wrote."""
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
            raise Left((self.errors.read().strip().splitlines() or ["it ended without output"])[-1])
        return json.loads(answer)  # type: ignore[no-any-return]


def measure(table: Table, rounds: int, threads: int) -> Measured:
    """Times every subject that can be built. A peer that cannot be built is left out with a message.

    Raises:
        Left: one of the zoo's subjects failed.
    """
    measured = Measured(table.title, table.count, table.worth, table.note, threads, {}, {}, {})
    with ExitStack() as stack:
        processes: dict[str, Process] = {}
        for name, subject in table.subjects.items():
            process = stack.enter_context(Process(subject, threads))
            try:
                process.run(table.count)  # imports, compiles and warms up
                process.run(table.count)  # may compile again, because of what the first call changed
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
