"""Updates of several agents with different seeds: one after another, and as one program."""

import importlib
import itertools
from typing import Any

from zoo.benchmarks.scripts.timing.offline import CPU, SPEC, Run, begin, random_arrays, repeat
from zoo.data.dataset import Dataset
from zoo.runs.compilation import compile_update
from zoo.runs.cuda_graph import leaves
from zoo.runs.stacked import Stack, StackedUpdate
from zoo.streaming import Sample

AGENTS = {"iql": "IQL", "sac": "SAC", "stream_ac": "StreamAC"}


def agents(algo: str, count: int, together: bool, compiled: bool = False, hidden: int | None = None) -> Run:
    """An update of each of `count` agents, with Hopper's shapes.

    Args:
        together: whether they are updated as one program.
        hidden: the width of two hidden layers; None for the algorithm's default.
    """
    begin()
    module: Any = importlib.import_module(f"zoo.algos.{algo}")
    config = module.Config() if hidden is None else module.Config(hidden=[hidden, hidden])
    several = [getattr(module, AGENTS[algo])(SPEC, config) for _ in range(count)]
    data = Dataset(random_arrays(), SPEC, CPU)
    rows = itertools.cycle(range(len(data)))

    def batch() -> Any:
        if algo != "stream_ac":
            return data.sample(config.batch_size)
        i = next(rows)
        return Sample(data.reward[i], data.next_obs[i], data.terminated[i])

    if not together:
        updates = [compile_update(agent.update) if compiled else agent.update for agent in several]
        return repeat(lambda: [update(batch()) for update in updates])
    stack = Stack(several)
    program = StackedUpdate(stack, several[0].update, ((batch(),), {}), compile_update if compiled else None)
    return repeat(lambda: program([program.noise() for _ in several], [leaves(batch()) for _ in several]))
