"""Updates of every algorithm, and of several agents at once, on batches from random rows on a device."""

import typing
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.agent import Agent
from zoo.benchmarks.scripts.timing.offline import BATCH_SIZE, SPEC, Run, begin, random_arrays, repeat
from zoo.data.ahead import SampledAhead
from zoo.data.batch import Batch
from zoo.data.dataset import Dataset
from zoo.runs.compilation import accelerated
from zoo.runs.cuda_graph import WARM_UPS, Replayed, leaves
from zoo.runs.stacked import Stack, StackedUpdate
from zoo.settings.registry import algorithms
from zoo.spec import Spec
from zoo.streaming import Sample

ROWS = 100_000
STATES = ("value_goal", "actor_goal", "subgoal", "waypoint", "option_end", "option_goal")  # in batches with goals
DISCRETE = Spec(SPEC.obs_shape, num_actions=4)
WITH_GOAL = replace(SPEC, obs_shape=(2 * SPEC.obs_dim,), goal_dim=SPEC.obs_dim)
CONTEXT = 20  # number of steps in a window, for algorithms that learn from windows


def make(algo: str, device: torch.device, **settings: Any) -> Agent:
    """An agent with default settings and Hopper's shapes, or with goals or discrete actions if it needs them."""
    chosen = algorithms()[algo]
    spec = WITH_GOAL if chosen.takes_goals else SPEC if "continuous" in chosen.action_spaces else DISCRETE
    agent: Agent = chosen.agent_class(spec, chosen.module.Config(**settings))
    return agent.to(device)


def source(agent: Agent, device: torch.device, size: int = BATCH_SIZE, rows: int = ROWS) -> Callable[[], Any]:
    """A function that returns a new batch for the agent's `update`, with `size` rows, or a sample for a stream."""
    kind = typing.get_type_hints(agent.update)["batch"]
    spec = agent.spec
    if kind is Batch and spec is SPEC:
        sample = SampledAhead(Dataset(random_arrays(rows), SPEC, device))
        return lambda: sample(size)
    shape = (rows, CONTEXT) if "timestep" in kind._fields else (rows,)
    columns: dict[str, Tensor] = {name: torch.randn(shape, device=device) for name in kind._fields}
    for name in ("obs", "next_obs", *(name for name in kind._fields if name in STATES)):
        columns[name] = torch.randn(*shape, *spec.state_shape, device=device)
    if spec.num_actions is None:
        columns["action"] = 2 * torch.rand(*shape, spec.action_dim, device=device) - 1
    else:
        columns["action"] = torch.randint(spec.num_actions, shape, device=device)
    never = torch.zeros(shape, dtype=torch.bool, device=device)
    columns |= {"terminated": never, "reached": never, "option_reached": never, "follows": ~never, "inside": ~never}
    columns["next_action"] = columns["action"]
    columns["index"] = torch.arange(rows, device=device)
    if "chain" in kind._fields:  # the points of ReinFlow's steps
        config: Any = agent.config
        columns["chain"] = 0.1 * torch.randn(rows, config.flow_steps + 1, spec.action_dim, device=device)
    columns["timestep"] = torch.arange(CONTEXT, device=device).expand(rows, CONTEXT)

    def batch() -> Any:
        index = torch.randint(rows, () if kind is Sample else (size,), device=device)
        return kind(**{name: columns[name][index] for name in kind._fields})

    return batch


def updates(algo: str, compiled: bool | str, device: str, size: int = BATCH_SIZE, precision: str = "highest") -> Run:
    """Batches and updates of an algorithm, as in a run with this `compile` and `matmul_precision`."""
    begin()
    torch.set_float32_matmul_precision(precision)
    where = torch.device(device)
    agent = make(algo, where)
    batch, update = source(agent, where, size), accelerated(agent.update, compiled, where)
    return repeat(lambda: update(batch()))


def seeds(
    algo: str, count: int, device: str, compiled: bool | str = True, size: int = BATCH_SIZE, precision: str = "highest",
    replayed: bool = False,
) -> Run:  # fmt: skip
    """Batches and updates of `count` agents as one program.

    Args:
        replayed: only replay the program's CUDA graph, with the same batch and random numbers each time, to measure the
            time without Python.
    """
    begin()
    torch.set_float32_matmul_precision(precision)
    where = torch.device(device)
    agents = [make(algo, where) for _ in range(count)]
    batch = source(agents[0], where, size)
    compiler = partial(accelerated, how=compiled, device=where)
    program = StackedUpdate(Stack(agents), agents[0].update, ((batch(),), {}), compiler)
    run = repeat(lambda: program([program.noise() for _ in agents], [leaves(batch()) for _ in agents]))
    if replayed:
        assert isinstance(program.run, Replayed)
        run(WARM_UPS + 1)
        (recording,) = program.run.recordings.values()
        assert recording.replay is not None
        return repeat(recording.replay)
    return run
