"""Subjects timed in turn within a given time: built side by side, a group at a time.

Compiling takes most of the time, and takes place on the CPU: the subjects of a group, as many as there are cores, build
and warm up at once. Then each is timed alone, while the others wait at a read. What no time is left for is named.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from zoo.benchmarks.launchers import cores
from zoo.benchmarks.scripts.timing.rounds import Left, Measured, Process, Subject, Table, Timed

BUILDING = 0.7  # of the time; what has not been built by then is given up, so that the others are timed
LEAST = 3  # rounds of each group, while its time is not over
MOST = 9


def measure_within(table: Table, seconds: float, say: Callable[[str], None]) -> Measured:
    """Times the subjects of a table, in the order in which they are given.

    Args:
        seconds: after which all processes are ended.
        say: is called with a line for each subject that is left out, and why.
    """
    end = time.monotonic() + seconds
    measured = Measured(table.title, table.count, table.worth, table.note, 1, {}, {}, {})
    names, size = list(table.subjects), cores()
    for start in range(0, len(names), size):
        group = {name: table.subjects[name] for name in names[start : start + size]}
        share = (end - time.monotonic()) * len(group) / len(names[start:])
        if share <= 0:
            for name in group:
                say(f"{table.title}: {name} was not measured: no time was left")
            continue
        for name, timed in _timed(table, group, share, measured, say):
            measured.subjects[name] = timed
    return measured


def _timed(
    table: Table, group: dict[str, Subject], seconds: float, measured: Measured, say: Callable[[str], None]
) -> Iterator[tuple[str, Timed]]:
    """The subjects of a group that were built and timed within the seconds."""
    end = time.monotonic() + seconds
    left: dict[str, str] = {}
    timed: dict[str, Timed] = {}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(Process(subject, 1)) for name, subject in group.items()}

        def warm_up(name: str) -> None:
            try:
                for _ in range(3):  # builds and compiles, compiles again, and records
                    processes[name].run(table.count)
                timed[name] = Timed()
            except Left as reason:
                left[name] = str(reason)

        with (
            ended_after(BUILDING * seconds, lambda: [processes[name] for name in processes if name not in timed]),
            ThreadPoolExecutor(len(processes)) as threads,
        ):
            list(threads.map(warm_up, processes))
        over = {name for name in left if time.monotonic() >= end - (1 - BUILDING) * seconds}
        timed = {name: timed[name] for name in processes if name in timed}  # in their order
        with ended_after(end - time.monotonic(), lambda: list(processes.values())):
            for number in range(MOST):
                begun = time.monotonic()
                for name in list(timed):
                    try:
                        answer = processes[name].run(table.count)
                    except Left as reason:
                        left[name] = str(reason)
                        if time.monotonic() < end or not timed[name].seconds:
                            over |= {name} if time.monotonic() >= end else set()
                            del timed[name]
                        continue
                    timed[name].seconds.append(answer["seconds"])
                    timed[name].peak = answer["peak"]
                    measured.versions |= answer["versions"]
                now = time.monotonic()
                if now >= end or (number + 1 >= LEAST and now + 2 * (now - begun) > end):
                    break
    whole = min((len(one.seconds) for one in timed.values()), default=0)  # the last round may have been cut off
    for name in processes:
        if name in timed:
            yield name, Timed(timed[name].seconds[:whole], timed[name].peak)
        else:
            say(f"{table.title}: {name} was not measured: {'its time was over' if name in over else left[name]}")


@contextmanager
def ended_after(seconds: float, processes: Callable[[], list[Process]]) -> Iterator[None]:
    """Ends the processes that are named then when the time is over."""

    def end() -> None:
        for process in processes():
            process.process.kill()

    timer = threading.Timer(max(seconds, 0), end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
