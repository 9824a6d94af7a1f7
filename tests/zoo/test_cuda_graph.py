"""A recorded and replayed update equals the update bit for bit, on a GPU and, with the stand-in `tape.py`, on a CPU."""

import contextlib
import copy

import pytest
import tape
import torch
from examples import batch_for, make, specs
from torch import Tensor, nn

from zoo.algos import sac, td3
from zoo.errors import RunError
from zoo.runs import cuda_graph
from zoo.runs.compilation import GRAPH, OLDEST, SURE, accelerated, compile_update, needed_to_compile
from zoo.runs.cuda_graph import WARM_UPS, Replayed, leaves
from zoo.runs.stacked import Stack, StackedUpdate
from zoo.settings.registry import algorithms

CPU = torch.device("cpu")
each_algorithm = pytest.mark.parametrize("algorithm", algorithms().values(), ids=list(algorithms()))
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def taped(monkeypatch):
    """Replaces recordings by tapes, on the CPU."""
    monkeypatch.setattr(cuda_graph, "recorded", tape.recorded)
    monkeypatch.setattr(cuda_graph, "warmed_up", tape.warmed_up)


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: x for name, x in module.state_dict().items() if isinstance(x, Tensor)}


@pytest.mark.usefixtures("taped")
@each_algorithm
def test_a_replayed_update_is_the_update(algorithm):
    for spec in specs(algorithm):
        plain = make(algorithm, spec)
        agent = copy.deepcopy(plain)
        replayed = Replayed(agent.update, CPU)
        kept = []
        for seed in range(WARM_UPS + 4):
            batch = batch_for(plain, seed)
            torch.manual_seed(seed)
            expected = plain.update(batch)
            random = torch.rand(1)
            torch.manual_seed(seed)
            kept.append((replayed(batch), {name: value.clone() for name, value in expected.items()}))
            assert torch.equal(torch.rand(1), random)  # the generator has the same state as after the update
        for metrics, expected in kept:  # a later replay changes none of an earlier one's
            assert metrics.keys() == expected.keys()
            for name, value in metrics.items():
                torch.testing.assert_close(value, expected[name], rtol=0, atol=0, equal_nan=True)
        found, wanted = state(agent), state(plain)
        assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


@pytest.mark.usefixtures("taped")
def test_each_kind_of_arguments_has_its_recording():
    calls = []

    def update(x: Tensor, delayed: bool = False) -> dict[str, Tensor]:
        calls.append(len(x))
        return {"x": x * 2 if delayed else x * 3}

    replayed = Replayed(update, CPU)
    for i in range(2 * WARM_UPS):
        assert replayed(torch.full((2,), float(i)))["x"].tolist() == [3 * i, 3 * i]
        assert replayed(torch.full((2,), float(i)), True)["x"].tolist() == [2 * i, 2 * i]
        assert replayed(torch.full((2,), float(i)), delayed=True)["x"].tolist() == [2 * i, 2 * i]
        assert replayed(torch.full((3,), float(i)))["x"].tolist() == [3 * i] * 3
    assert len(calls) == 4 * (WARM_UPS + 1)  # Python runs while it warms up and is recorded, and never again


@pytest.mark.usefixtures("taped")
def test_delayed_updates_of_the_actor_are_recorded_apart():
    (spec,) = specs(algorithms()["td3"])
    plain = make(algorithms()["td3"], spec)
    assert isinstance(plain, td3.TD3)
    agent = copy.deepcopy(plain)
    replayed = Replayed(agent.update, CPU)
    for seed in range(2 * (WARM_UPS + 2)):
        batch = batch_for(plain, seed)
        torch.manual_seed(seed)
        expected = plain.update(batch, seed % 2 == 0)
        torch.manual_seed(seed)
        metrics = replayed(batch, seed % 2 == 0)
        assert {name: value.item() for name, value in metrics.items()} == {
            name: value.item() for name, value in expected.items()
        }
    assert all(torch.equal(x, y) for x, y in zip(agent.parameters(), plain.parameters(), strict=True))


@pytest.mark.usefixtures("taped")
def test_the_update_of_several_agents_is_recorded_too():
    (spec,) = specs(algorithms()["sac"])
    agents = [make(algorithms()["sac"], spec) for _ in range(3)]
    plain = copy.deepcopy(agents)
    assert isinstance(agents[0], sac.SAC)
    example = ((batch_for(agents[0], 0),), {})
    taken, expected = (
        StackedUpdate(Stack(several), several[0].update, example, compiler)
        for several, compiler in ((agents, lambda program: Replayed(program, CPU)), (plain, None))
    )
    for seed in range(WARM_UPS + 3):
        batches = [leaves(batch_for(agent, 10 * seed + i)) for i, agent in enumerate(agents)]
        torch.manual_seed(seed)
        noise = [taken.noise() for _ in agents]
        for found, wanted in zip(taken(noise, batches), expected(noise, batches), strict=True):
            assert {name: x.item() for name, x in found.items()} == {name: x.item() for name, x in wanted.items()}
    for one, other in zip(agents, plain, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(state(one).values(), state(other).values(), strict=True))


def test_on_a_cpu_nothing_is_recorded():
    assert not isinstance(compile_update(dict, "eager", CPU), Replayed)
    assert not isinstance(compile_update(dict, "eager"), Replayed)
    assert isinstance(compile_update(dict, "eager", torch.device("cuda")), Replayed)


def test_what_cannot_be_recorded_is_a_failure_in_a_line(monkeypatch):
    """With stand-ins that fail at their end like CUDA's, with the first error as its context."""

    class Graph:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("operation failed due to a previous error during capture")

    def update() -> dict[str, Tensor]:
        raise failure

    monkeypatch.setattr(cuda_graph, "side_stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Graph)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    failure: Exception = RuntimeError("operation not permitted when stream is capturing.\nMore.")
    line = r"^the update could not be recorded as a CUDA graph: operation not permitted .* Without: compile=false$"
    with pytest.raises(RunError, match=line):
        cuda_graph.recorded(update, CPU)
    failure = torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(torch.OutOfMemoryError):
        cuda_graph.recorded(update, CPU)


# --- On a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@each_algorithm
def test_on_a_gpu_a_replayed_update_is_the_one_that_was_recorded(algorithm, compiled):
    """Also from the middle on, as in a resumed run: from the agent's state and the generator's state."""
    device = torch.device("cuda")
    oldest = SURE if algorithm.name == "edac" else OLDEST  # it asks for gradients within the update
    if compiled and (missing := needed_to_compile("cuda", oldest)):
        pytest.skip(missing)
    for spec in specs(algorithm):
        plain = make(algorithm, spec).to(device)
        agents = [plain, copy.deepcopy(plain), copy.deepcopy(plain)]
        batches = [batch_for(plain, seed) for seed in range(2 * WARM_UPS + 4)]
        batches = [torch.utils._pytree.tree_map(lambda x: x.to(device), batch) for batch in batches]
        update = compile_update(plain.update) if compiled else plain.update
        replayed = [accelerated(agent.update, compiled or GRAPH, device) for agent in agents[1:]]
        torch.manual_seed(0)
        for batch in batches:
            expected = {name: value.clone() for name, value in update(batch).items()}
        torch.manual_seed(0)
        for i, batch in enumerate(batches):
            if i == WARM_UPS + 2:
                agents[2].load_state_dict(agents[1].state_dict())
                generator = torch.cuda.get_rng_state()
            metrics = replayed[0](batch)
        torch.cuda.set_rng_state(generator)
        for batch in batches[WARM_UPS + 2 :]:
            resumed = replayed[1](batch)
        for name, value in expected.items():
            torch.testing.assert_close(metrics[name], value, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(resumed[name], value, rtol=0, atol=0, equal_nan=True)
        wanted = state(agents[0])
        for agent in agents[1:]:
            found = state(agent)
            assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
