import ast
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import zoo
from zoo import machine
from zoo.cli import main
from zoo.runs import provenance
from zoo.settings.registry import Algorithm, algorithm

FILES = {
    "zoo/__init__.py": '"""A zoo."""\n',
    "zoo/nn.py": "from zoo.maths import square\n\n\ndef loss(x):\n    return square(x) + 1\n",
    "zoo/maths.py": 'def square(x):\n    """x^2"""\n    return x * x\n\n\ndef cube(x):\n    return x * x * x\n',
    "zoo/doctor.py": "BEDS = 4\n",
    "zoo/cli.py": "from zoo import doctor\n",
    "envs/__init__.py": "from zoo.envs.make import make\n",
    "envs/make.py": "def make():\n    return 0\n",
    "algos/bc.py": (
        "import torch\nfrom zoo.envs import make\nfrom zoo.nn import loss\n\n\n"
        "def update(x):\n    return loss(x) + make()\n"
        '\n\nif __name__ == "__main__":\n    from zoo.cli import run_file\n\n    run_file(__file__)\n'
    ),
}


@pytest.fixture
def version(tmp_path, monkeypatch):
    """The code version of a small zoo with some files changed; None removes a file."""

    def write(envs: str = "envs", **changed: str | None) -> str:
        files = FILES | {name.replace("__", "/") + ".py": text for name, text in changed.items()}
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            if text is not None:
                path = place / name.replace("envs/", f"{envs}/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        monkeypatch.setattr(zoo, "__file__", str(place / "zoo/__init__.py"))
        monkeypatch.setattr(provenance, "folder", lambda name: place / (envs if name == "envs" else name))
        return provenance.code_version.__wrapped__(Algorithm(place / "algos/bc.py"))

    return write


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_is_that_of_the_code_alone(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x"]
    installed = tmp_path / ".venv" / "provenance.py"
    installed.parent.mkdir()
    installed.touch()
    (tmp_path / "own.py").touch()
    for command in (["init", "-q"], ["add", "own.py"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "own.py"))
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert provenance.commit() == head
    monkeypatch.setattr(provenance, "__file__", str(installed))  # inside a repository, but not tracked by it
    assert provenance.commit() is None
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "own.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit() is None


def test_the_same_code_has_one_version_as_a_checkout_and_installed(version):
    assert version() == version(envs="zoo/envs")


@pytest.mark.parametrize(
    "changed",
    [
        {"zoo__maths": "# a comment\n" + FILES["zoo/maths.py"]},
        {"zoo__maths": FILES["zoo/maths.py"].replace("x^2", "The square.")},
        {"zoo__maths": FILES["zoo/maths.py"].replace("return x * x\n", "return (x  *  x)\n")},
        {"zoo__doctor": "BEDS = 5\n"},
        {"zoo__doctor": None, "zoo__physician": "BEDS = 4\n"},
        {"zoo__cli": "from zoo.doctor import BEDS\n"},
        {
            "zoo__maths": None, "zoo__numbers": FILES["zoo/maths.py"],
            "zoo__nn": FILES["zoo/nn.py"].replace("maths", "numbers"),
        },
    ],
)  # fmt: skip
def test_a_version_stays_where_nothing_has_changed_that_an_algorithm_runs(version, changed):
    assert version(**changed) == version()


@pytest.mark.parametrize(
    "changed",
    [
        {"zoo__maths": FILES["zoo/maths.py"].replace("return x * x\n", "return x + x\n")},
        {"zoo__nn": FILES["zoo/nn.py"].replace("import square", "import cube as square")},
        {"envs__make": FILES["envs/make.py"].replace("0", "1")},
        {"algos__bc": FILES["algos/bc.py"].replace("loss(x) +", "loss(x) -")},
        {"algos__bc": FILES["algos/bc.py"].replace("import torch", "import torch.nn as torch")},
        {
            "algos__bc": FILES["algos/bc.py"].replace("import torch\n", "import torch\nimport own\n"),
            "algos__own": "A = 1\n",
        },
    ],
)
def test_a_version_changes_with_the_code_that_an_algorithm_runs(version, changed):
    assert version(**changed) != version()


def test_what_lies_beside_a_file_of_ones_own_counts(version):
    own = {"algos__bc": "import own\n\nprint(own.A)\n"}
    assert version(**own, algos__own="A = 1\n") != version(**own, algos__own="A = 2\n")


def test_an_algorithm_runs_neither_the_command_line_nor_the_doctor_nor_another_algorithm():
    found, new = set[Path](), {algorithm("iql").path}
    while new:
        found |= new
        new = {path for file in new for path in provenance._code(file)[1]} - found
    names = {path.name for path in found}
    assert {"iql.py", "layers.py", "run.py", "evaluation.py", "make.py"} <= names
    assert names.isdisjoint({"cli.py", "doctor.py", "sac.py", "report.py"})


def test_an_arm_processor_has_a_name(monkeypatch):
    text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    monkeypatch.setattr(Path, "read_text", lambda path: text)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    for said in ("", "aarch64"):
        monkeypatch.setattr("platform.processor", lambda said=said: said)
        assert machine.processor.__wrapped__() == "aarch64 0x41 0xd40"


@pytest.mark.parametrize(("limit", "count"), [("150000 100000", 2), ("max 100000", 8), ("50000 100000", 1)])
def test_a_containers_share_of_the_cpu_counts(monkeypatch, limit, count):
    monkeypatch.setattr(Path, "read_text", lambda path: f"{limit}\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert machine.cores() == count


# --- The GPUs ---


@pytest.fixture
def asked_anew():
    """Clears the cached information about the machine before and after a test."""
    provenance.provenance.cache_clear()
    yield
    provenance.provenance.cache_clear()


@pytest.fixture
def two_gpus(monkeypatch, asked_anew):
    """Two GPUs of the same type, as PyTorch and nvidia-smi would report them."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda i: "NVIDIA H100")
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr(
        machine, "nvidia_smi", lambda *fields: [["580.65"]] * 2 if fields == ("driver_version",) else []
    )


@pytest.mark.usefixtures("two_gpus")
def test_a_record_names_gpus_driver_and_cuda(capsys):
    hardware = provenance.provenance(algorithm("bc"))["hardware"]
    assert [hardware[name] for name in ("gpu", "driver", "cuda")] == ["2 x NVIDIA H100", "580.65", "13.0"]
    main(["doctor"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  gpu ")]
    assert line == "  gpu          2 x NVIDIA H100; driver 580.65; cuda 13.0"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_a_record_has_none(asked_anew):
    hardware = provenance.provenance(algorithm("bc"))["hardware"]
    assert hardware["gpu"] is None
    assert {"driver", "cuda"}.isdisjoint(hardware)


def test_nvidia_smi_is_read_a_gpu_a_row(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "$1 $2" > "$0.asked"\nprintf "0, 81000\\n1, 500\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert machine.nvidia_smi("index", "memory.free") == [["0", "81000"], ["1", "500"]]
    asked = (tmp_path / "nvidia-smi.asked").read_text()
    assert asked == "--query-gpu=index,memory.free --format=csv,noheader,nounits\n"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert machine.nvidia_smi("index") == []


def test_a_digest_does_not_depend_on_pythons_version():
    """Empty fields, and whether `ast.dump` writes them, do depend on it."""
    assert provenance._dump(ast.parse("def f(x, *, y=None): return {**x}")) == (
        "Module(body=[FunctionDef(name='f', args=arguments(args=[arg(arg='x')], kwonlyargs=[arg(arg='y')], "
        "kw_defaults=[Constant()]), body=[Return(value=Dict(keys=[None], values=[Name(id='x', ctx=Load())]))])])"
    )
