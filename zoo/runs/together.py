"""Runs that differ only in their seeds, side by side in one process, with their updates in one program: `seeds=0-7`.

Each run is what it would be alone: its algorithm's `train`, folder, random numbers, evaluations and checkpoints. It
is a greenlet that continues until its next update; when all runs have reached theirs, the updates are taken together,
see `zoo.runs.stacked`.
"""

import contextlib
import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.data.dataset import Dataset
from zoo.errors import UsageError
from zoo.runs.compilation import GRAPH, accelerated, compile_update
from zoo.runs.cuda_graph import leaves
from zoo.runs.dataset import reading_once
from zoo.runs.device import OwnRandomNumbers
from zoo.runs.interruption import Interruption
from zoo.runs.stacked import Stack, StackedUpdate, largest_product

LARGEST = 2**21  # multiplications of a product: on a CPU larger ones are faster one after another than together
ALONE = object()  # the answer to a request that tells the run to take the update itself


class Request:
    """An update that a run is waiting for.

    Attributes:
        number: the index of the update function, among those that the run joined.
        arguments: its arguments, positional and named.
        at: the run's step.
        leaves: the tensors and other values in the arguments.
        kind: what a program is specific to: the number, shapes and types of the tensors, and all other values.
    """

    def __init__(self, number: int, arguments: tuple[tuple[Any, ...], dict[str, Any]], at: int = 0) -> None:
        self.number, self.arguments, self.at, self.leaves = number, arguments, at, leaves(arguments)
        self.kind = (number, *[(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in self.leaves])


class Together:
    """Runs side by side.

    Args:
        seeds: the runs' seeds.
        device: the device of all runs.

    Attributes:
        interruption: shared by all runs.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds, self.device, self.interruption = seeds, device, Interruption()
        self._members: list[greenlet] = []
        self._random: list[OwnRandomNumbers] = []  # one for each run
        self._updates: list[list[Callable[..., Metrics]]] = [[] for _ in seeds]  # for each run, in the order of `join`
        self._dataset: Dataset | None = None  # that of the first run that has one
        self._compiles: bool | str = False
        self._stack: Stack | None = None
        self._stacked: list[int] = []  # the runs whose agents are in the stack
        self._programs: dict[tuple[Any, ...], StackedUpdate | None] = {}  # by kind; None: each run updates alone

    def run(self, trains: Sequence[Callable[[], Any]]) -> list[Any]:
        """Runs all of them to their ends. Returns what each returned, or the exception that ended it."""
        self._members = [greenlet(train) for train in trains]
        self._random = [OwnRandomNumbers(self.device) for _ in trains]
        answers: dict[int, Any] = dict.fromkeys(range(len(trains)), ())
        results: dict[int, Any] = {}
        requests: dict[int, Request] = {}  # not answered yet
        begin = contextlib.ExitStack()  # open during the first turns, in which runs open their datasets
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
                except Exception as error:  # it ends all runs; the first, which made their common folders, ends last
                    answers = dict.fromkeys(sorted(requests, reverse=True), error)
                requests = {i: request for i, request in requests.items() if i not in answers}
        finally:
            begin.close()
            for member in self._members:
                with contextlib.suppress(KeyboardInterrupt):  # this exception is what ended the others
                    member.throw(KeyboardInterrupt)
        return [results[i] for i in range(len(trains))]

    def _go_on(self, i: int, answer: Any) -> Any:
        """Lets a run continue to its next request, which is returned, or to its end."""
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
        """Registers an update of the calling run, to be taken together with those of the other runs.

        Args:
            at: gives the run's step.

        Raises:
            UsageError: the update is of no module of the agent, whose update is the first to be registered.
        """
        updates, hub, self._compiles = self._updates[self.index], getcurrent().parent, compiles
        number, owner = len(updates), getattr(update, "__self__", None)
        agent = updates[0].__self__ if updates else owner  # type: ignore[attr-defined]
        if not isinstance(agent, Agent) or all(owner is not module for module in agent.modules()):
            name = getattr(update, "__qualname__", update)
            raise UsageError(
                f"seeds=: {name} must be a method of the tracked agent or of a module in it. Make its module an "
                "attribute of the agent, or run the seeds one after another: -m seed=0,1"
            )
        updates.append(update)
        # not as a CUDA graph: stacking moves the agent's tensors
        alone = compile_update(update) if compiles and compiles != GRAPH else update

        def joined(*positional: Any, **named: Any) -> Metrics:
            request = Request(number, (positional, named), at())
            if self._programs.get(request.kind, ALONE) is None:
                return alone(*positional, **named)
            answer = hub.switch(request)
            return alone(*positional, **named) if answer is ALONE else answer

        return joined

    def share(self, dataset: Dataset) -> None:
        """Makes the runs store what is equal in their datasets only once, as prepared: corrupted, normalized."""
        self._dataset = self._dataset or dataset
        dataset.share(self._dataset)

    @property
    def index(self) -> int:
        """The index of the calling run."""
        return self._members.index(getcurrent())

    @property
    def label(self) -> str:
        """The prefix of the lines that the calling run prints."""
        return f"seed {self.seeds[self.index]:<{max(len(str(seed)) for seed in self.seeds)}}  "

    def only_first_prints(self) -> contextlib.AbstractContextManager[Any]:
        """Inside this context, only the first run prints."""
        return contextlib.nullcontext() if self.index == 0 else contextlib.redirect_stdout(io.StringIO())

    def _answer(self, requests: dict[int, Request]) -> dict[int, Any]:
        """The metrics for each request, or `ALONE`. If requests are of several kinds, the runs that are ahead wait."""
        alive = set(requests)
        if len({request.kind for request in requests.values()}) > 1:
            behind = min(request.at for request in requests.values())
            requests = {i: request for i, request in requests.items() if request.at == behind}
        kinds = {request.kind for request in requests.values()}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is not None and kind not in self._programs and set(requests) == set(self._stacked or alive):
            self._programs[kind] = self._program(requests)
        program = self._programs.get(kind) if kind is not None else None
        if program is None or not alive & set(self._stacked) <= set(requests):  # the program changes all stacked agents
            return dict.fromkeys(requests, ALONE)
        noise = {i: self._noise(i, program) for i in requests}
        first = next(iter(requests))  # it also fills the places of runs that have ended
        places = [i if i in requests else first for i in self._stacked]
        metrics = program([noise[i] for i in places], [requests[i].leaves for i in places])
        return {i: metrics[place] for place, i in enumerate(self._stacked) if i in requests}

    def _noise(self, i: int, program: StackedUpdate) -> list[Tensor]:
        """The random numbers for a run's next update."""
        if not program.random:
            return []
        with self._random[i]:
            return program.noise()

    def _program(self, requests: dict[int, Request]) -> StackedUpdate | None:
        """The program for a kind of update; None if it would be no faster."""
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
