"""`benchmarks/gpu.py`: what it does without a GPU, and what it would measure with one."""

import importlib
import inspect
import json

import pytest
import tape
import torch

from zoo.benchmarks import gpu as script
from zoo.benchmarks.scripts.timing import budget, gpu
from zoo.benchmarks.scripts.timing.budget import measure_within
from zoo.benchmarks.scripts.timing.rounds import Subject, Table
from zoo.runs import cuda_graph
from zoo.runs.cuda_graph import WARM_UPS, Replayed
from zoo.settings.registry import algorithms

TIMING = "zoo.benchmarks.scripts.timing"


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """Restores the environment variables, which the script sets, and the generator, which building a subject seeds."""
    for name in ("TORCHINDUCTOR_COMPILE_THREADS", "PYTHONUNBUFFERED"):
        monkeypatch.setenv(name, "1")
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_tests_are_run_on_the_cpu_and_what_is_not_measured_is_named(tmp_path, capsys):
    out = tmp_path / "new" / "gpu.json"
    assert script.main(["--minutes", "1", "--out", str(out)]) == 0
    kept = json.loads(out.read_text())
    assert kept["tests"]["passed"] > 0
    assert kept["tests"]["failed"] == []
    assert not any(kept["figures"].values())
    lines = {part: [f"{part}: not measured: there is no GPU"] for part in script.PARTS}
    assert kept["not measured"] == lines
    said = capsys.readouterr().out
    assert f"tests on cpu: {kept['tests']['passed']} passed, 0 failed" in said
    assert {line for (line,) in lines.values()} <= set(said.splitlines())


FAILED = {"passed": 1, "failed": ["a::b"], "said": "E   no", "over": "too late"}


def test_a_failed_test_is_named_and_is_the_exit_code(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(script, "tests", lambda *_: dict(FAILED))
    monkeypatch.setattr(script, "missing", lambda: dict.fromkeys(script.PARTS, "there is no GPU"))
    assert script.main(["--minutes", "1", "--out", str(tmp_path / "gpu.json")]) == 1
    said = capsys.readouterr().out
    assert "failed: a::b\nnot all tests were run: too late\nE   no\n" in said


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tests/zoo/test_gpu.py::test_x[iql] PASSED        [  4%]", ("tests/zoo/test_gpu.py::test_x[iql]", "PASSED")),
        ("[gw0] [ 33%] FAILED tests/zoo/test_gpu.py::test_x[a b] ", ("tests/zoo/test_gpu.py::test_x[a b]", "FAILED")),
        ("FAILED tests/zoo/test_gpu.py::test_x - AssertionError: no", ("tests/zoo/test_gpu.py::test_x", "FAILED")),
    ],
)  # fmt: skip
def test_pytests_lines_are_read(line, expected):
    assert script.outcome(line) == expected


@pytest.mark.parametrize("part", script.PARTS)
def test_every_subject_can_be_built(part, monkeypatch):
    monkeypatch.setattr(script, "needed_to_compile", lambda *_: None)
    tables = list(script.PARTS[part][0]())
    assert tables
    for table in tables:
        for subject in table.subjects.values():
            module = importlib.import_module(f"{TIMING}.{subject.file.removesuffix('.py')}")
            function = getattr(module, subject.function)
            inspect.signature(function).bind(**subject.arguments)  # raises TypeError where an argument is unknown


def test_every_algorithm_is_measured():
    for part in ("graph", "compiled", "eager"):
        (table,) = script.PARTS[part][0]()
        assert sorted(table.subjects) == sorted(f"zoo, {name}" for name in algorithms())


@pytest.mark.parametrize("algo", algorithms())
def test_every_algorithm_learns_from_batches_of_random_rows(algo):
    agent = gpu.make(algo, torch.device("cpu"))
    batch = gpu.source(agent, torch.device("cpu"), size=4, rows=50)
    torch.manual_seed(0)  # otherwise the two may be the same row
    first, second = batch(), batch()
    assert not all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    before = [parameter.clone() for parameter in agent.parameters()]
    agent.update(first)  # where a learning rate warms up, the first step is 0
    metrics = agent.update(second)
    assert all(bool(value.isfinite().all()) for value in metrics.values())
    assert not all(torch.equal(x, y) for x, y in zip(before, agent.parameters(), strict=True))


def test_several_agents_are_updated_at_once():
    gpu.seeds("ppo", 2, "cpu", compiled=False, size=4)(1)


def test_the_cuda_graph_of_several_agents_is_replayed_alone(monkeypatch):
    """Uses a stand-in for the CUDA graph."""
    monkeypatch.setattr(cuda_graph, "recorded", tape.recorded)
    monkeypatch.setattr(cuda_graph, "warmed_up", tape.warmed_up)
    monkeypatch.setattr(gpu, "accelerated", lambda update, how, device: Replayed(update, device))
    calls, update = [], gpu.StackedUpdate.__call__
    monkeypatch.setattr(gpu.StackedUpdate, "__call__", lambda *given: calls.append(given) or update(*given))
    run = gpu.seeds("sac", 2, "cpu", size=4, replayed=True)
    assert len(calls) == WARM_UPS + 1
    run(3)
    assert len(calls) == WARM_UPS + 1


def test_only_the_parts_that_are_named_are_measured_and_the_others_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(script, "tests", lambda *_: pytest.fail("they were not asked for"))
    monkeypatch.setattr(script, "missing", lambda: dict.fromkeys(script.PARTS, "there is no GPU"))
    out = tmp_path / "gpu.json"
    for part in ("seeds", "warp"):
        assert script.main([part, "--minutes", "1", "--out", str(out)]) == 0
    kept = json.loads(out.read_text())
    assert kept["not measured"] == {part: [f"{part}: not measured: there is no GPU"] for part in ("seeds", "warp")}
    assert "tests on" not in capsys.readouterr().out


def test_the_table_sets_the_ways_of_an_algorithm_side_by_side(tmp_path, capsys):
    eager = {"count": 50, "subjects": {"zoo, iql": {"seconds": [0.5, 0.25, 0.1], "peak": 1.0}}}
    graph = {"count": 200, "subjects": {f"zoo, {name}": {"seconds": [0.1], "peak": 1.0} for name in ("sac", "iql")}}
    out = tmp_path / "gpu.json"
    seeds = {"title": "All", "count": 200, "worth": 1, "subjects": {"iql of 8 seeds": {"seconds": [0.5, 0.4, 0.1]}}}
    warp = {"title": "Steps", "count": 10, "worth": 4096, "subjects": {"zoo": {"seconds": [0.1]}}}
    figures = {"eager": [eager], "graph": [graph], "compiled": [], "seeds": [seeds], "warp": [warp]}
    out.write_text(json.dumps({"figures": figures}))
    assert script.main(["--table", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| updates/s | eager | graph |", "|---|--:|--:|", "| iql | 200 | 2,000 |", "| sac |  | 2,000 |", "",
        "| measured | | per second |", "|---|---|--:|", "| All | iql of 8 seeds | 4,000 |", "| Steps | zoo | 409,600 |",
    ]  # fmt: skip


TINY = {"compiled": False, "device": "cpu", "size": 4}


@pytest.mark.slow
def test_what_can_be_measured_is_and_the_rest_is_named(monkeypatch):
    monkeypatch.setattr(budget, "cores", lambda: 2)
    monkeypatch.setattr(budget, "MOST", 4)
    subjects = {
        f"zoo, {name}": Subject("gpu.py", "updates", {"algo": name, **TINY}) for name in ("bc", "nothing", "iql")
    }
    lines: list[str] = []
    tables = [Table("Updates", 2, subjects), Table("Others", 1, {"zoo": subjects["zoo, bc"]})]
    measured, other = measure_within(tables, 300, lines.append)
    assert list(measured.subjects) == ["zoo, bc", "zoo, iql"]
    assert list(other.subjects) == ["zoo"]
    assert [len(timed.seconds) for timed in measured.subjects.values()] == [4, 4]
    assert all(timed.peak > 0 for timed in measured.subjects.values())
    assert measured.versions["torch"] == torch.__version__
    assert lines == ["Updates: zoo, nothing was not measured: KeyError: 'nothing'"]


def test_what_no_time_is_left_for_is_named():
    subjects = {"zoo, bc": Subject("gpu.py", "updates", {"algo": "bc", **TINY})}
    lines: list[str] = []
    assert list(measure_within([Table("Updates", 2, subjects)], 0.5, lines.append)) == []
    assert lines == ["Updates: zoo, bc was not measured: the time limit was reached"]
    lines.clear()
    assert list(measure_within([Table("Updates", 2, subjects)], -1, lines.append)) == []
    assert lines == ["Updates: zoo, bc was not measured: no time was left"]
