"""Times subjects within a time limit. They are built in parallel, one group at a time.

Compilation takes most of the time and runs on the CPU. So the subjects of a group, as many as there are cores, build
and warm up at the same time, even if they are in different tables. Then each is timed alone, while the others wait for
input. The groups follow each other until the time is over; the subjects that are left out are named.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from zoo.benchmarks.scripts.timing.rounds import Left, Measured, Process, Table, Timed
from zoo.machine import cores

BUILDING = 0.85  # share of the remaining time for building; subjects not built by then are given up to time the others
LEAST = 3  # minimum number of rounds for each group within the time limit
MOST = 5


class Place(NamedTuple):
    """A subject's table, the figures of that table, and the subject's name in it."""

    table: Table
    measured: Measured
    name: str

    def __str__(self) -> str:
        return f"{self.table.title}: {self.name}"


def measure_within(tables: Sequence[Table], seconds: float, say: Callable[[str], None]) -> Iterator[Measured]:
    """Times the subjects of tables in their order. At the end, yields the tables that have timed subjects.

    Args:
        tables: the tables.
        seconds: the time limit, after which all processes are killed.
        say: called with a line for each subject that is left out, with the reason.
    """
    end = time.monotonic() + seconds
    measured = [Measured(table.title, table.count, table.worth, table.note, 1, {}, {}, {}) for table in tables]
    places = [Place(table, kept, name) for table, kept in zip(tables, measured, strict=True) for name in table.subjects]
    for start in range(0, len(places), cores()):
        group = places[start : start + cores()]
        left = end - time.monotonic()
        if left <= 0:
            for place in group:
                say(f"{place} was not measured: no time was left")
            continue
        for place, timed, versions in _timed(group, left, say):
            place.measured.subjects[place.name] = timed
            place.measured.versions |= versions
    yield from (one for one in measured if one.subjects)


def _timed(
    group: list[Place], seconds: float, say: Callable[[str], None]
) -> Iterator[tuple[Place, Timed, dict[str, str]]]:
    """The subjects of a group that were built and timed within the time limit, and the versions of their imports."""
    end = time.monotonic() + seconds
    left: dict[int, str] = {}
    timed: dict[int, Timed] = {}
    versions: dict[int, dict[str, str]] = {}
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(place.table.subjects[place.name], 1)) for place in group]

        def warm_up(i: int) -> None:
            try:
                for _ in range(3):  # build and compile, compile again, record the CUDA graph
                    processes[i].run(group[i].table.count)
                timed[i] = Timed()
            except Left as reason:
                left[i] = str(reason)

        def unbuilt() -> list[Process]:
            return [process for i, process in enumerate(processes) if i not in timed]

        with ended_after(BUILDING * seconds, unbuilt), ThreadPoolExecutor(len(group)) as threads:
            list(threads.map(warm_up, range(len(group))))
        over = set(left) if time.monotonic() >= end - (1 - BUILDING) * seconds else set()
        with ended_after(end - time.monotonic(), lambda: processes):
            for number in range(MOST):
                begun = time.monotonic()
                for i in sorted(timed):
                    try:
                        answer = processes[i].run(group[i].table.count)
                    except Left as reason:
                        left[i] = str(reason)
                        if time.monotonic() < end or not timed[i].seconds:
                            over |= {i} if time.monotonic() >= end else set()
                            del timed[i]
                        continue
                    timed[i].seconds.append(answer["seconds"])
                    timed[i].peak, versions[i] = answer["peak"], answer["versions"]
                now = time.monotonic()
                if now >= end or (number + 1 >= LEAST and now + 2 * (now - begun) > end):
                    break
    whole = min((len(one.seconds) for one in timed.values()), default=0)  # the last round may have been cut off
    for i, place in enumerate(group):
        if i in timed:
            yield place, Timed(timed[i].seconds[:whole], timed[i].peak), versions[i]
        else:
            say(f"{place} was not measured: {'the time limit was reached' if i in over else left[i]}")


@contextmanager
def ended_after(seconds: float, processes: Callable[[], Iterable[Process]]) -> Iterator[None]:
    """Kills processes at the end of the time limit. `processes` is called then and says which ones."""

    def end() -> None:
        for process in processes():
            process.process.kill()

    timer = threading.Timer(max(seconds, 0), end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
