"""What the documents show is so: the README's table of algorithms, and an algorithm added by adding one file."""

import inspect
import re
import shutil
import sys
from pathlib import Path

import pytest
import test_contract as contract

import zoo.algos
from zoo.cli import main
from zoo.settings import registry

ROOT = Path(__file__).parents[2]


def test_the_readmes_table_of_algorithms_is_generated(capsys):
    assert main(["list", "--markdown"]) == 0
    table = capsys.readouterr().out
    assert table.count("\n") == len(registry.algorithms()) + 2
    assert table in (ROOT / "README.md").read_text()


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The algorithm of `docs/adding-an-algorithm.md`, as a file beside the zoo's own, which are copied for that."""
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "adding-an-algorithm.md").read_text(), re.DOTALL)
    folder = tmp_path / "algos"
    shutil.copytree(registry.folder("algos"), folder)
    (folder / "crr.py").write_text(source)
    find = registry.folder
    monkeypatch.setattr(registry, "folder", lambda name: folder if name == "algos" else find(name))
    monkeypatch.setattr(zoo.algos, "__path__", [str(folder)])
    yield registry.algorithms()["crr"]
    sys.modules.pop("zoo.algos.crr", None)


def test_the_documented_algorithm_is_short_and_complete(added, capsys, tmp_path, monkeypatch, pendulum_file):
    monkeypatch.chdir(tmp_path)
    assert len(added.path.read_text().splitlines()) < 100
    assert main(["list"]) == 0
    assert re.search(r"^ +crr +offline +continuous +CRR:", capsys.readouterr().out, re.MULTILINE)
    run = ["run", "algo=crr", "env=pendulum", f"dataset={pendulum_file}", "logger=none", "algo.hidden=[16]"]
    assert main([*run, "steps=20", "eval_every=10", "eval_episodes=1", "run_dir=run", "sampler=advantage"]) == 0
    assert main(["eval", "run", "--episodes", "1"]) == 0
    capsys.readouterr()
    assert main([*run, "algo.beta=-1"]) == 2
    assert capsys.readouterr().err == "zoo: algo.beta=-1.0 must be above 0.\n"


HELD_TO = [
    test
    for name, test in vars(contract).items()
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["algorithm"]
]


@pytest.mark.parametrize("test", HELD_TO, ids=lambda test: test.__name__)
def test_the_documented_algorithm_keeps_to_the_pattern(added, test):
    test(added)
