"""Whether a run is compiled, what it prints about this, and the cache of compiled code."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._inductor.config  # looks for the compiler now, before a test names a missing one
from torch import Tensor, nn

from zoo.agent import Metrics
from zoo.errors import RunError, UsageError
from zoo.runs import compilation
from zoo.runs.compilation import GRAPH, accelerated, compile_update, compiles, needed_to_compile, reproducible
from zoo.runs.cuda_graph import Replayed
from zoo.runs.interruption import Interruption
from zoo.settings.compose import compose

NO_COMPILER = "no-such-compiler"
SHORT = ("algo=iql", "env=pendulum", "steps=20", "eval_episodes=1", "logger=none", "algo.hidden=[8]")


@pytest.fixture
def compiler():
    """Skips the test if there is no compiler. It is a fixture because the check imports PyTorch's compiler."""
    if missing := needed_to_compile():
        pytest.skip(missing)


def settings(*overrides: str):
    return compose(["algo=iql", "env=pendulum", "device=cpu", *overrides])[0]


# --- The rule ---


@pytest.mark.parametrize(
    ("overrides", "compiled"),
    [
        (["steps=20_000"], True),
        (["steps=19_999"], False),
        (["steps=15_000", "online_steps=5_000"], True),
        (["steps=15_000", "online_steps=4_999"], False),
    ],
    ids=str,
)
def test_long_runs_are_compiled_and_say_so_in_a_line(monkeypatch, capsys, overrides, compiled):
    monkeypatch.setattr(compilation, "needed_to_compile", lambda *_: None)
    assert compiles(settings(*overrides)) == compiled
    said = capsys.readouterr()
    assert said.out.count("\n") == compiled
    assert ("compile=false" in said.out) == compiled
    assert said.err == ""


@pytest.mark.parametrize("given", [True, False])
def test_what_is_asked_for_is_done_without_a_word(monkeypatch, capsys, given):
    monkeypatch.setattr(compilation, "needed_to_compile", lambda *_: None)
    for steps in (10, 1_000_000):
        assert compiles(settings(f"steps={steps}", f"compile={given}")) == given
    assert capsys.readouterr().out == ""


def test_a_resumed_run_keeps_what_it_began_with(monkeypatch, capsys):
    monkeypatch.setattr(compilation, "needed_to_compile", lambda *_: None)
    assert compiles(settings("steps=10"), begun=True)
    assert not compiles(settings("steps=1_000_000"), begun=False)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(compilation, "needed_to_compile", lambda *_: "a C++ compiler")
    assert not compiles(settings("steps=1_000_000"), begun=False)
    with pytest.raises(UsageError, match=r"needs a C\+\+ compiler"):
        compiles(settings("steps=10"), begun=True)


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(compilation, "resolve_device", lambda _: torch.device("cuda"))


@pytest.mark.usefixtures("on_gpu")
def test_on_a_gpu_what_is_not_compiled_is_a_graph(monkeypatch, capsys):
    monkeypatch.setattr(compilation, "needed_to_compile", lambda *_: None)
    assert compiles(settings("steps=10")) == GRAPH
    assert compiles(settings("steps=1_000_000", "compile=graph")) == GRAPH
    assert capsys.readouterr().out == ""
    assert compiles(settings("steps=1_000_000")) is True
    for steps in (10, 1_000_000):
        assert compiles(settings(f"steps={steps}", "compile=false")) is False
        assert compiles(settings(f"steps={steps}"), begun=GRAPH) == GRAPH
    capsys.readouterr()
    monkeypatch.setattr(compilation, "needed_to_compile", lambda *_: "Triton")
    assert compiles(settings("steps=1_000_000")) == GRAPH
    assert "not compiled, which would be faster but needs Triton" in capsys.readouterr().out


@pytest.mark.usefixtures("compiler")
def test_a_torch_that_cannot_compile_all_updates_compiles_where_it_must(monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.12.1+cu130"))
    assert compiles(settings("steps=1_000_000")) is False
    assert "needs a newer torch than 2.12.1" in capsys.readouterr().out
    assert compiles(settings("steps=10", "compile=true")) is True
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.10.0"))
    with pytest.raises(UsageError, match=r"needs a newer torch than 2\.10\.0"):
        compiles(settings("steps=10", "compile=true"))


def test_a_graph_is_for_a_gpu(zoo, pendulum_file):
    result = zoo("run", *SHORT, f"dataset={pendulum_file}", "run_dir=run", "compile=graph", "device=cpu")
    assert result.code == 2
    assert result.err == "zoo: compile=graph is for a GPU, and this run is on the CPU. Try: compile=true\n"
    assert not Path("run").exists()
    assert compiles(settings(), begun=GRAPH) == GRAPH  # for a run that began on a GPU
    assert accelerated(dict, GRAPH, torch.device("cpu")) is dict
    assert isinstance(accelerated(dict, GRAPH, torch.device("cuda")), Replayed)


def test_the_help_says_the_rule(zoo):
    (line,) = [line for line in zoo("run", "--help").out.splitlines() if line.startswith("  compile ")]
    assert "auto" in line
    assert f"{compilation.COMPILED_FROM:,} steps or more" in line


# --- What is missing ---


def test_without_a_compiler_a_run_is_not_compiled_and_says_what_to_install(monkeypatch, zoo, pendulum_file):
    monkeypatch.setenv("CXX", NO_COMPILER)
    monkeypatch.setattr(compilation, "COMPILED_FROM", 20)
    result = zoo("run", *SHORT, f"dataset={pendulum_file}", "run_dir=run")
    assert result.code == 0, result.err
    (line,) = [line for line in result.out.splitlines() if "compile" in line]
    assert "not compiled" in line
    assert "no-such-compiler is not here" in line
    assert "apt install g++" in line
    assert json.loads(Path("run/run.json").read_text())["compiled"] is False


def test_what_must_be_compiled_and_cannot_is_refused_in_a_line(monkeypatch, zoo, pendulum_file):
    monkeypatch.setenv("CXX", NO_COMPILER)
    result = zoo("run", *SHORT, f"dataset={pendulum_file}", "run_dir=run", "compile=true")
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert "compile=True" in result.err
    assert "no-such-compiler is not here" in result.err
    assert not Path("run").exists()


def test_a_compiled_runs_agent_plays_where_nothing_can_be_compiled(monkeypatch, zoo, finished, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(record | {"compiled": True}))
    monkeypatch.setenv("CXX", NO_COMPILER)
    result = zoo("eval", run_dir, "--episodes", 1)
    assert result.code == 0, result.err


def test_pythons_headers_are_needed_too(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(compilation.sysconfig, "get_path", lambda _: str(tmp_path))
    assert "python3-dev" in str(needed_to_compile())
    (tmp_path / "Python.h").touch()
    assert needed_to_compile() is None


def test_running_eagerly_never_imports_the_compiler():
    code = (
        "import sys, zoo.runs.execute, zoo.algos.iql, zoo.algos.stream_ac; "
        "assert 'torch' in sys.modules; assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- What is kept ---

# compiles a small function with the cache folder given by the environment, and prints what it computes
PROGRAM = """
import torch
from zoo.runs.compilation import compile_update

weight = torch.ones(4, 4, requires_grad=True)

def update():
    (gradient,) = torch.autograd.grad((weight.tanh() * weight).sum(), weight)
    return {"sum": gradient.sum()}

print(compile_update(update)()["sum"].item())
"""


def computed(cache: Path) -> tuple[float, str]:
    """The program's output and error messages; `cache` is `XDG_CACHE_HOME`."""
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False,
        env=environment | {"XDG_CACHE_HOME": str(cache)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return float(done.stdout), done.stderr


EXPECTED = 16 * (torch.tensor(1.0).tanh() + 1 - torch.tensor(1.0).tanh() ** 2).item()


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_compiled_code_is_kept_and_compiled_anew_where_it_is_damaged(tmp_path):
    value, complaint = computed(tmp_path)
    assert value == pytest.approx(EXPECTED)
    assert complaint == ""
    libraries = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.main.so")}
    assert libraries
    assert computed(tmp_path) == (value, "")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.main.so")} == libraries  # it was not made again
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
    again, complaint = computed(tmp_path)
    assert again == value
    assert complaint.count("\n") == 1
    assert "compiled anew" in complaint
    assert computed(tmp_path) == (value, "")


def test_a_compiler_that_a_signal_has_ended_is_begun_again_and_what_is_kept_stays(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Interruption, "came", True)
    monkeypatch.setattr(compilation, "kept_compiled", lambda: tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "kept").touch()
    calls = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        calls.append(graph)
        if len(calls) == 1:
            raise ValueError("killed")
        return graph

    def update() -> Metrics:
        return {"sum": torch.ones(3).sum()}

    assert compile_update(update, backend)()["sum"] == 3
    assert (tmp_path / "kept").exists()
    assert capsys.readouterr().err == ""


# compares what is compiled with what is not, in a function whose loops depend on the width of the CPU's registers
WIDE = """
import torch
from zoo.runs.compilation import compile_update

weight = torch.linspace(0, 1, 16 * 40).reshape(16, 40).requires_grad_()

def update():
    (gradient,) = torch.autograd.grad((weight.tanh() * weight).sum(1).square().sum(), weight)
    return {"sum": gradient.sum()}

torch.testing.assert_close(compile_update(update)()["sum"], update()["sum"])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_processors_that_share_a_folder_do_not_share_compiled_code(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    for capability in ({}, {"ATEN_CPU_CAPABILITY": "avx2"}):  # a CPU without AVX-512
        cache = environment | {"XDG_CACHE_HOME": str(tmp_path)} | capability
        subprocess.run([sys.executable, "-c", WIDE], check=True, env=cache)


def test_each_kind_of_processor_has_a_folder_of_its_own_for_compiled_code(monkeypatch):
    folders = set()
    for processor, capability in [("A 1", "AVX2"), ("A 1", "AVX512"), ("A 2", "AVX2")]:
        monkeypatch.setattr(compilation, "processor", lambda processor=processor: processor)
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda capability=capability: capability)
        folders.add(compilation.kept_compiled())
    assert len(folders) == 3


@pytest.mark.usefixtures("compiler")
def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "rl-zoo").write_text("a file where the folder should be")
    value, complaint = computed(tmp_path)
    assert value == pytest.approx(EXPECTED)
    assert complaint.count("\n") == 1
    assert "cannot be written" in complaint


def test_a_compiled_update_takes_what_the_update_does():
    def update(x: torch.Tensor, *, delayed: bool) -> Metrics:
        return {"x": x * 2 if delayed else x * 3}

    compiled = compile_update(update, backend="eager")
    assert [compiled(torch.tensor(1.0), delayed=delayed)["x"].item() for delayed in (True, False)] == [2, 3]


def test_what_cannot_be_compiled_is_a_failure_in_a_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Interruption, "came", False)  # after any other test
    monkeypatch.setattr(compilation, "kept_compiled", lambda: tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> None:
        raise ValueError("the compiler is broken")

    def update() -> Metrics:
        return {"sum": torch.ones(3).sum()}

    with pytest.raises(RunError, match=r"the compiler is broken.* compile=false"):
        compile_update(update, backend)()
    assert capsys.readouterr().err.count("\n") == 1


def test_an_update_that_cannot_be_compiled_is_named_in_a_line_with_its_place():
    def update(x: Tensor) -> Metrics:
        if x.sum() > 0:
            x = 2 * x
        return {"x": x}

    with pytest.raises(
        RunError, match=r"branching at .*test_compile.py, line \d+: `if x.sum\(\) > 0:`. Without: compile="
    ):
        compile_update(update, backend="eager")(torch.ones(3))


def test_an_argument_with_too_many_values_is_refused_in_a_line():
    compiled = compile_update(lambda x, step: {"x": x * step}, backend="eager")
    updates = (compiled(torch.ones(3), step) for step in range(20))
    with pytest.raises(UsageError, match="Pass numbers as tensors"):
        list(updates)


class Counting(nn.Module):
    """An update that counts its calls in an attribute, if it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.inner.updates, self.rate, self.unknown, self.name = 0, 0.1, math.nan, "counting"
        self.total = nn.Buffer(torch.zeros(()))

    def update(self, counts: bool = False) -> Metrics:
        if counts:
            self.inner.updates += 1
        self.inner.train()
        self.total.add_(self.rate)
        return {"total": self.total.clone()}


@pytest.mark.parametrize(
    "accelerate",
    [
        lambda update: compile_update(update, backend="eager"),
        lambda update: accelerated(update, GRAPH, torch.device("cuda"))._update,
    ],
    ids=["compiled", "recorded"],
)
def test_an_update_that_changes_a_python_attribute_is_refused_when_it_does(accelerate):
    agent = Counting()
    agent.inner.eval()
    update = accelerate(agent.update)
    assert [update()["total"].item() for _ in range(2)] == pytest.approx([0.1, 0.2])
    with pytest.raises(UsageError, match=r"changes Counting.inner.updates, .* nn.Buffer, changed in place, or pass"):
        update(counts=True)


def test_the_constants_are_looked_at_only_where_the_update_is_compiled(monkeypatch):
    looked = []
    monkeypatch.setattr(compilation, "constants_of", lambda update: looked.append(update) or {})
    update = compile_update(Counting().update, backend="eager")
    for _ in range(5):
        update()
    assert len(looked) == 2  # before the first call and after it


# --- What is compiled ---


class Scaled:
    """An update that depends on a constant, a tensor and an argument."""

    def __init__(self, factor: float) -> None:
        self.factor, self.weight = factor, torch.ones(3)

    def update(self, x: torch.Tensor, negative: bool = False) -> Metrics:
        y = self.factor * self.weight * x
        return {"y": -y if negative else y}


@pytest.mark.usefixtures("compiler")
def test_a_compiled_update_draws_what_the_update_draws():
    def update(x: Tensor) -> dict[str, Tensor]:
        return {"normal": torch.randn_like(x), "uniform": torch.rand(3), "kept": torch.empty_like(x).bernoulli_(0.5)}

    drawn = []
    for one in (update, compile_update(update)):
        torch.manual_seed(3)
        drawn.append([one(torch.zeros(20)) for _ in range(2)])
    for expected, found in zip(*drawn, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.usefixtures("compiler")
def test_on_a_gpu_what_is_added_to_one_place_is_added_in_a_fixed_order():
    """The gradient of an embedding: the order in the compiler's own kernel would depend on its threads."""
    embedding, rows = nn.Embedding(5, 3), torch.randint(5, (40,))

    def update(index: Tensor) -> dict[str, Tensor]:
        loss = embedding(index).square().sum()
        return {"gradient": torch.autograd.grad(loss, embedding.weight)[0]}

    from torch._inductor.utils import run_and_get_code  # imports the compiler

    torch._dynamo.config.trace_autograd_ops = True
    for backend, fixed in (("inductor", False), (reproducible, True)):
        compiled = torch.compile(update, backend=backend, fullgraph=True, options={"cpp.vec_isa_ok": True})
        found, (code,) = run_and_get_code(compiled, rows)
        torch.testing.assert_close(found, update(rows))
        assert ("aten.index_put_" in code) == fixed
        torch.compiler.reset()
    assert not torch.are_deterministic_algorithms_enabled()


def test_each_agent_has_compiled_code_of_its_own():
    first, second = (compile_update(Scaled(factor).update, backend="eager") for factor in (2.0, 3.0))
    x = torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(first(x)["y"], 2 * x)
        assert torch.equal(second(x)["y"], 3 * x)


def test_compiled_code_follows_its_arguments_and_the_agents_tensors():
    agent = Scaled(2.0)
    update, x = compile_update(agent.update, backend="eager"), torch.arange(3.0)
    assert torch.equal(update(x)["y"], 2 * x)
    assert torch.equal(update(x, True)["y"], -2 * x)
    assert torch.equal(update(x, negative=True)["y"], -2 * x)
    assert torch.equal(update(x.repeat(2, 1))["y"], 2 * x.repeat(2, 1))
    agent.weight.fill_(5)
    assert torch.equal(update(x)["y"], 10 * x)
    agent.weight = torch.full((3,), 7.0)
    assert torch.equal(update(x)["y"], 14 * x)
