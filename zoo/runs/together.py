"""Runs that differ in their seeds alone, side by side in one process, their updates one program: `seeds=0-7`.

Each run is what it is alone: its algorithm's `train`, its folder, its random numbers, evaluations and checkpoints. It
is a greenlet, which continues until its next update; when all have come to theirs, these are taken at once, see
`zoo.runs.stacked`.
"""

import contextlib
import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from zoo.agent import Metrics
from zoo.data.dataset import Dataset
from zoo.runs.compilation import GRAPH, accelerated, compile_update
from zoo.runs.cuda_graph import leaves
from zoo.runs.dataset import reading_once
from zoo.runs.device import OwnRandomNumbers
from zoo.runs.interruption import Interruption
from zoo.runs.stacked import Stack, StackedUpdate, largest_product

LARGEST = 2**21  # multiplications of a product: a CPU takes larger ones faster one after another than together
ALONE = object()  # the answer to a request: take the update yourself


class Request:
    """An update that a run waits for.

    Attributes:
        number: of the function, among those that the run joined.
        arguments: that it is called with, positional and named.
        at: the run's step.
        leaves: the tensors and other values in these.
        kind: what a program is made for: the number, shapes and types of the tensors, and all other values.
    """

    def __init__(self, number: int, arguments: tuple[tuple[Any, ...], dict[str, Any]], at: int = 0) -> None:
        self.number, self.arguments, self.at, self.leaves = number, arguments, at, leaves(arguments)
        self.kind = (number, *[(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in self.leaves])


class Together:
    """Runs side by side.

    Args:
        seeds: of the runs.
        device: of all of them.

    Attributes:
        interruption: of all of them.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds, self.device, self.interruption = seeds, device, Interruption()
        self._members: list[greenlet] = []
        self._random: list[OwnRandomNumbers] = []  # of each run
        self._updates: list[list[Callable[..., Metrics]]] = [[] for _ in seeds]  # of each run, in the order of `join`
        self._dataset: Dataset | None = None  # of the first run that has one
        self._compiles: bool | str = False
        self._stack: Stack | None = None
        self._stacked: list[int] = []  # the runs whose agents these are
        self._programs: dict[tuple[Any, ...], StackedUpdate | None] = {}  # of a kind; None: each run takes it alone

    def run(self, trains: Sequence[Callable[[], Any]]) -> list[Any]:
        """Runs all to their ends. Returns what each returned, or the exception that ended it."""
        self._members = [greenlet(train) for train in trains]
        self._random = [OwnRandomNumbers(self.device) for _ in trains]
        answers: dict[int, Any] = dict.fromkeys(range(len(trains)), ())
        results: dict[int, Any] = {}
        requests: dict[int, Request] = {}  # that are not answered
        begin = contextlib.ExitStack()  # in their first turns, in which they open their datasets
        begin.enter_context(reading_once())
        try:
            while answers:
                for i, answer in answers.items():
                    came = self._go_on(i, answer)
                    if self._members[i].dead:
                        results[i] = came
                        if self._stack and i in self._stacked:
                            self._stack.release(self._stacked.index(i))
                    else:
                        requests[i] = came
                begin.close()
                try:
                    answers = {i: (metrics,) for i, metrics in self._answer(requests).items()}
                except Exception as error:  # it ends all of them, the first, which made their common folders, last
                    answers = dict.fromkeys(sorted(requests, reverse=True), error)
                requests = {i: request for i, request in requests.items() if i not in answers}
        finally:
            begin.close()
            for member in self._members:
                with contextlib.suppress(KeyboardInterrupt):  # that is what ended the others
                    member.throw(KeyboardInterrupt)
        return [results[i] for i in range(len(trains))]

    def _go_on(self, i: int, answer: Any) -> Any:
        """Has a run continue to its next request, which is returned, or to its end."""
        try:
            with self._random[i]:
                if isinstance(answer, Exception):
                    return self._members[i].throw(answer)
                return self._members[i].switch(*answer)
        except Exception as error:
            return error

    def join(
        self, update: Callable[..., Metrics], compiles: bool | str, at: Callable[[], int] = lambda: 0
    ) -> Callable[..., Metrics]:
        """An update of the run that calls this, to be taken together with those of the others.

        Args:
            at: gives the run's step.
        """
        updates, hub, self._compiles = self._updates[self.index], getcurrent().parent, compiles
        number = len(updates)
        updates.append(update)
        # no CUDA graph: a stack moves the agent's tensors
        alone = compile_update(update) if compiles and compiles != GRAPH else update

        def joined(*positional: Any, **named: Any) -> Metrics:
            request = Request(number, (positional, named), at())
            if self._programs.get(request.kind, ALONE) is None:
                return alone(*positional, **named)
            answer = hub.switch(request)
            return alone(*positional, **named) if answer is ALONE else answer

        return joined

    def share(self, dataset: Dataset) -> None:
        """Has the runs keep what is the same in their datasets once, as they are prepared: corrupted, normalized."""
        self._dataset = self._dataset or dataset
        dataset.share(self._dataset)

    @property
    def index(self) -> int:
        """Which of the runs asks."""
        return self._members.index(getcurrent())

    @property
    def label(self) -> str:
        """What the lines of the run that asks begin with."""
        return f"seed {self.seeds[self.index]:<{max(len(str(seed)) for seed in self.seeds)}}  "

    def only_first_prints(self) -> contextlib.AbstractContextManager[Any]:
        """Within it the other runs print nothing."""
        return contextlib.nullcontext() if self.index == 0 else contextlib.redirect_stdout(io.StringIO())

    def _answer(self, requests: dict[int, Request]) -> dict[int, Any]:
        """The metrics that each request gets, or `ALONE`. Where they are of several kinds, the runs ahead wait."""
        alive = set(requests)
        if len({request.kind for request in requests.values()}) > 1:
            behind = min(request.at for request in requests.values())
            requests = {i: request for i, request in requests.items() if request.at == behind}
        kinds = {request.kind for request in requests.values()}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is not None and kind not in self._programs and set(requests) == set(self._stacked or alive):
            self._programs[kind] = self._program(requests)
        program = self._programs.get(kind) if kind is not None else None
        if program is None or not alive & set(self._stacked) <= set(requests):  # it changes the agents of all places
            return dict.fromkeys(requests, ALONE)
        noise = {i: self._noise(i, program) for i in requests}
        first = next(iter(requests))  # takes the places of runs that have ended, too
        places = [i if i in requests else first for i in self._stacked]
        metrics = program([noise[i] for i in places], [requests[i].leaves for i in places])
        return {i: metrics[place] for place, i in enumerate(self._stacked) if i in requests}

    def _noise(self, i: int, program: StackedUpdate) -> list[Tensor]:
        """The random numbers of a run's next update."""
        if not program.random:
            return []
        with self._random[i]:
            return program.noise()

    def _program(self, requests: dict[int, Request]) -> StackedUpdate | None:
        """The program of a kind of update; None where it would be no faster."""
        runs = self._stacked or sorted(requests)
        number, arguments = requests[runs[0]].number, requests[runs[0]].arguments
        update = self._updates[runs[0]][number]
        if self.device.type == "cpu" and largest_product(update, arguments) >= LARGEST:
            if None not in self._programs.values():
                print(f"seeds: {len(self.seeds)} agents learn one after another, which is faster on a CPU", flush=True)
            return None
        if self._stack is None:
            agents: list[nn.Module] = [self._updates[i][0].__self__ for i in runs]  # type: ignore[attr-defined]
            self._stack, self._stacked = Stack(agents), runs
        compiler = functools.partial(accelerated, how=self._compiles, device=self.device)
        return StackedUpdate(self._stack, update, arguments, compiler)
