"""Updates of the offline algorithms and SAC, and samplers, on random transitions with Hopper's shapes."""

import importlib
import itertools
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.data.arrays import Arrays
from zoo.data.dataset import Dataset
from zoo.data.samplers import SamplerConfig
from zoo.models.dynamics import EnsembleDynamics
from zoo.runs.compilation import compile_update
from zoo.runs.device import keep_memory
from zoo.spec import Spec

OBS_DIM, ACTION_DIM, BATCH_SIZE = 11, 3, 256  # Hopper
TRANSITIONS, EPISODE = 200_000, 1_000
CPU = torch.device("cpu")
SPEC = Spec((OBS_DIM,), (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM)
AGENTS = {
    "iql": "IQL", "td3_bc": "TD3BC", "cql": "CQL", "rebrac": "ReBRAC", "edac": "EDAC", "sac": "SAC", "dql": "DQL",
    "fql": "FQL", "ofql": "OFQL", "dsac_t": "DSACT",
}  # fmt: skip
DELAYED = ("td3_bc", "rebrac", "dsac_t")  # their actor is updated at every second update

Run = Callable[[int], None]  # runs the given number of updates


def repeat(step: Callable[[], object]) -> Run:
    """A function to time that repeats one step."""

    def run(count: int) -> None:
        for _ in range(count):
            step()

    return run


def begin() -> None:
    """The setup of the zoo's runs."""
    keep_memory()
    torch.set_flush_denormal(True)
    torch.manual_seed(0)


def fill(arrays: Arrays) -> Arrays:
    """Fills arrays with random numbers, in episodes of equal length. The speed does not depend on the numbers."""
    rng, size = np.random.default_rng(0), len(arrays.reward)
    for start in range(0, size, 100_000):
        piece = slice(start, min(start + 100_000, size))
        rows = piece.stop - start
        arrays.obs[piece] = rng.standard_normal((rows, OBS_DIM), dtype=np.float32)
        arrays.next_obs[piece] = rng.standard_normal((rows, OBS_DIM), dtype=np.float32)
        arrays.action[piece] = rng.uniform(-1, 1, (rows, ACTION_DIM))
        arrays.reward[piece] = rng.standard_normal(rows, dtype=np.float32)
    arrays.terminated[:] = False
    arrays.truncated[:] = np.arange(1, size + 1) % EPISODE == 0
    arrays.truncated[-1] = True
    return arrays


def shapes(size: int) -> list[tuple[tuple[int, ...], type]]:
    """The shape and type of each field."""
    obs, row = (size, OBS_DIM), (size,)
    return [(obs, np.float32), ((size, ACTION_DIM), np.float32), (row, np.float32), (obs, np.float32)] + [
        (row, np.bool_)
    ] * 2


def random_arrays(size: int = TRANSITIONS) -> Arrays:
    """Random arrays in memory."""
    return fill(Arrays(*(np.empty(shape, kind) for shape, kind in shapes(size))))


def mapped_arrays(size: int, folder: Path) -> Arrays:
    """Random arrays in memory-mapped files, which are written in pieces to save memory."""
    paths = [folder / name for name in Arrays._fields]
    for start in range(0, size, TRANSITIONS):
        for path, field in zip(paths, random_arrays(min(TRANSITIONS, size - start)), strict=True):
            with path.open("ab") as file:
                field.tofile(file)
    return Arrays(
        *(np.memmap(path, kind, "c", 0, shape) for path, (shape, kind) in zip(paths, shapes(size), strict=True))
    )


def make(algo: str, hidden: int | None, depth: int) -> tuple[Any, Any]:
    """An algorithm's module, and an agent."""
    module: Any = importlib.import_module(f"zoo.algos.{algo}")
    config = module.Config() if hidden is None else module.Config(hidden=[hidden] * depth)
    return module, getattr(module, AGENTS[algo])(SPEC, config)


def acting(algo: str, hidden: int | None = None, depth: int = 2) -> Run:
    """Actions for one observation at a time, as in an evaluation of one episode."""
    begin()
    agent, obs = make(algo, hidden, depth)[1], torch.randn(1, OBS_DIM)
    return repeat(lambda: agent.act(obs))


def updates(
    algo: str,
    compiled: bool = False,
    batch_size: int = BATCH_SIZE,
    hidden: int | None = None,
    depth: int = 2,
    transitions: int = TRANSITIONS,
    mapped: bool = False,
    precision: str = "highest",
) -> Run:
    """An algorithm's loop: sample a batch and update.

    Args:
        hidden: the width of the hidden layers; None for the algorithm's default.
        depth: the number of hidden layers, if their width is given.
        mapped: whether the transitions are in memory-mapped files.
        precision: a value of `matmul_precision`.
    """
    begin()
    torch.set_float32_matmul_precision(precision)
    module, agent = make(algo, hidden, depth)
    if mapped:
        with tempfile.TemporaryDirectory() as folder:  # deleted files remain while they are mapped
            data = Dataset(mapped_arrays(transitions, Path(folder)), SPEC, CPU)
    else:
        data = Dataset(random_arrays(transitions), SPEC, CPU)
    update = compile_update(agent.update) if compiled else agent.update
    if algo == "rebrac":
        next_action, follows = data.next_action()

    def batch() -> Any:
        sampled = data.sample(batch_size)
        if algo == "rebrac":
            return module.SarsaBatch(*sampled[:5], next_action[sampled.index], follows[sampled.index])
        return sampled

    delayed = itertools.cycle((True, False))
    if algo in DELAYED:
        return repeat(lambda: update(batch(), next(delayed)))
    return repeat(lambda: update(batch()))


def batches(sampler: str) -> Run:
    """Samples batches from 1,000,000 transitions."""
    data = Dataset(random_arrays(1_000_000), SPEC, CPU, SamplerConfig(sampler))
    return repeat(partial(data.sample, BATCH_SIZE))


def indices(sampler: str) -> Run:
    """Samples only the indices of such batches."""
    data = Dataset(random_arrays(1_000_000), SPEC, CPU, SamplerConfig(sampler))
    return repeat(partial(data.sampler, BATCH_SIZE))


def dynamics(compiled: bool = False) -> Run:
    """Updates of the ensemble of 7 models with 4 layers of 200, on batches of whole epochs."""
    begin()
    model = EnsembleDynamics(OBS_DIM, ACTION_DIM, [200] * 4)
    model.prepare(Dataset(random_arrays(), SPEC, CPU), seed=0)
    update = compile_update(model.update) if compiled else model.update

    def run(count: int) -> None:
        for start in range(0, count * BATCH_SIZE, BATCH_SIZE):
            batch = model.bootstrap[:, start : start + BATCH_SIZE]
            update(model.x[batch], model.target[batch])

    return run
