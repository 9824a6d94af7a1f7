"""The page of speeds shows the measured figures, and the zoo is not slower than code in the usual style.

Speeds are compared within one process, by the fastest round of each, because other work on the machine only makes
rounds slower.
"""

import json
import time
from pathlib import Path

import pytest
import torch

from zoo.benchmarks.scripts.speed import FIGURES, SECTIONS
from zoo.benchmarks.scripts.timing import eager, offline
from zoo.benchmarks.scripts.timing.offline import Run
from zoo.benchmarks.scripts.timing.page import keep, render
from zoo.benchmarks.scripts.timing.rounds import Left, Measured, Subject, Table, Timed, measure

ROUNDS, UPDATES = 15, 20


@pytest.fixture(autouse=True)
def one_thread():
    before, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.set_rng_state(state)


def times_as_fast(subject: Run, other: Run) -> float:
    """The ratio of their fastest rounds, which are timed in turn."""
    fastest = [float("inf")] * 2
    for _ in range(2 + ROUNDS):  # the first two warm up, and may be slow
        for i, run in enumerate((subject, other)):
            begun = time.perf_counter()
            run(UPDATES)
            fastest[i] = min(fastest[i], time.perf_counter() - begun)
    return fastest[1] / fastest[0]


def test_iql_is_no_slower_than_as_it_is_commonly_written():
    assert times_as_fast(offline.updates("iql"), eager.iql()) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["iql", "sac"])
def test_a_compiled_update_is_faster(algo):
    assert times_as_fast(offline.updates(algo, compiled=True), offline.updates(algo)) > 1.1


def measured(**subjects: list[float]) -> Measured:
    timed = {name: Timed(seconds, 100.0) for name, seconds in subjects.items()}
    return Measured("Updates", 10, 2, "A note.", 1, timed, {"torch": "2"}, {"8x8x8": "onednn"})


def test_a_ratio_is_the_median_of_the_rounds_and_a_speed_counts_what_a_call_is_worth(tmp_path):
    table = measured(zoo=[1.0, 2.0, 4.0], peer=[3.0, 2.0, 6.0])  # ratios 3, 1, 1.5
    page = render(keep(tmp_path / "speed.json", "one", "iql", "the command", [table]), ["iql"])
    lines = page.splitlines()
    assert "| Updates/s | median | min | max | x peer | memory, MB |" in lines
    assert "| zoo | 10.0 | 5.0 | 20.0 | 1.50 | 100 |" in lines
    assert "| peer | 6.7 | 3.3 | 10.0 |  | 100 |" in lines
    assert "    the command" in lines
    assert "3 rounds of 10, 1 thread; torch 2. The zoo's linear layers by oneDNN: 8x8x8." in lines


def test_a_section_measured_again_replaces_only_itself_on_the_same_processor(tmp_path):
    file = tmp_path / "speed.json"
    for processor, section in (("one", "sac"), ("one", "iql"), ("other", "iql"), ("one", "iql")):
        kept = keep(file, processor, section, f"command of {section}", [measured(zoo=[1.0])])
    assert kept == json.loads(file.read_text())
    page = render(kept, ["iql", "sac"])
    parts = page.split("\n## ")[1:]
    assert [part.splitlines()[0] for part in parts] == ["one", "other"]
    assert [part.count("| zoo |") for part in parts] == [2, 1]
    assert parts[0].index("command of iql") < parts[0].index("command of sac")


def test_the_page_is_what_the_kept_figures_give():
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    page = Path(__file__).parents[2] / "docs" / "speed.md"
    assert page.read_text() == render(kept, SECTIONS)


def write(folder, name: str, body: str) -> Subject:
    """Writes a file with a function `build`, and returns its subject."""
    (folder / name).write_text(f"import time\ndef build(**given):\n{body}")
    return Subject(str(folder / name), "build")


def test_every_subject_is_timed_in_a_process_of_its_own(tmp_path):
    slow = write(tmp_path, "slow.py", "    print('noise')\n    return lambda count: time.sleep(0.02 * count)\n")
    fast = write(tmp_path, "fast.py", "    return lambda count: time.sleep(0.01 * count)\n")
    large = write(tmp_path, "large.py", "    held = bytearray(200_000_000)\n    return lambda count: len(held)\n")
    table = measure(Table("Sleeps", 10, {"slow": slow, "zoo": fast, "large": large}), rounds=3, threads=1)
    assert all(len(timed.seconds) == 3 for timed in table.subjects.values())
    assert min(table.subjects["slow"].seconds) >= 0.2
    assert min(table.subjects["zoo"].seconds) >= 0.1
    peaks = {name: timed.peak for name, timed in table.subjects.items()}
    if None not in peaks.values():
        assert peaks["large"] > 200 > 2 * max(peaks["slow"], peaks["zoo"])


def test_a_peer_that_is_missing_is_left_out_and_one_of_the_zoos_is_not(tmp_path, capsys):
    missing = write(tmp_path, "missing.py", "    import not_installed\n")
    there = write(tmp_path, "there.py", "    return lambda count: None\n")
    table = measure(Table("Nothing", 1, {"zoo": there, "peer": missing}), rounds=1, threads=1)
    assert list(table.subjects) == ["zoo"]
    assert "peer is left out: ModuleNotFoundError: No module named 'not_installed'" in capsys.readouterr().out
    with pytest.raises(Left, match="not_installed"):
        measure(Table("Nothing", 1, {"zoo": missing}), rounds=1, threads=1)
