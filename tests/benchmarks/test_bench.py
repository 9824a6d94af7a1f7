"""The runner of suites: which runs it starts, and that each runs once, even after crashes and interruptions."""

import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from zoo.benchmarks import bench, launchers, runner, suite
from zoo.benchmarks.jobs import Job, command
from zoo.benchmarks.launchers import Local, LocalProcess, execute, launcher, roomiest
from zoo.benchmarks.runner import Runner
from zoo.benchmarks.suite import Planned, plan
from zoo.cli import main
from zoo.errors import RunError, UsageError
from zoo.runs.lock import locked
from zoo.settings import registry

GRIDS = """\
# Two algorithms on a small task
- {algo: [stream_ac, stream_q], env: cartpole, steps: 64, eval_every: 32, eval_episodes: 1, log_every: 16,
   checkpoint_every: 16, logger: none, algo.hidden: [[16]], env.backend: gymnasium, seed: [0, 1]}
"""


@pytest.fixture
def suites(tmp_path, monkeypatch):
    """`suites(text)`: makes `mine` the only suite, in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> None:
        (tmp_path / "mine.yaml").write_text(text)
        for module in (suite, bench):
            monkeypatch.setattr(module, "suites", lambda: {"mine": tmp_path / "mine.yaml"})
        monkeypatch.setattr(bench, "reported", list)

    return write


def test_a_suite_may_be_a_file_of_ones_own(suites, tmp_path):
    suites("- {algo: bc, env: hopper}")
    (tmp_path / "own.yaml").write_text("- {algo: [bc, iql], env: hopper}")
    assert [run.settings["algo"]["name"] for run in plan(str(tmp_path / "own.yaml"))] == ["bc", "iql"]
    with pytest.raises(UsageError, match=r"the suite other\.yaml does not exist"):
        plan("other.yaml")


def test_a_grid_stands_for_all_combinations_and_what_is_given_counts_more(suites):
    suites("- {algo: [bc, iql], env: hopper, algo.hidden: [[8]], seed: [0, 1], steps: 5}\n- {algo: bc, env: hopper}\n")
    runs = plan("mine", ["steps=7", "eval_every=1,2"])
    known = {(r.settings["algo"]["name"], r.settings["seed"], r.settings["eval_every"]) for r in runs}
    assert known == {(algo, seed, every) for algo in ("bc", "iql") for seed in (0, 1) for every in (1, 2)}
    assert len(runs) == 8 + 2  # the last grid's, whose hidden layers are other ones
    assert all(run.steps == 7 for run in runs)
    assert len({run.name for run in runs}) == len({run.id for run in runs}) == 10


def test_a_run_that_is_asked_for_twice_is_run_once(suites):
    suites("- {algo: bc, env: hopper, seed: [0, 1]}\n- {algo: bc, env: hopper, seed: [1, 2], logger: none}\n")
    assert [run.settings["seed"] for run in plan("mine")] == [0, 1, 2]


def test_a_run_is_another_if_its_settings_its_code_or_its_data_are(suites, tmp_path, monkeypatch):
    def write(value: float) -> None:
        with h5py.File(tmp_path / "data.hdf5", "w") as file:
            file["observations"], file["actions"] = np.full((20, 11), value), np.zeros((20, 3))
            file["rewards"], file["terminals"] = np.zeros(20), np.arange(20) == 19
            file["next_observations"] = np.full((20, 11), value)

    def ids(**changes: str) -> str:
        suite.fingerprint.cache_clear()
        suite.code_version.cache_clear()
        keys = {"algo": "bc", "env": "hopper", "dataset": "data.hdf5"} | changes
        suites("- {" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}")
        (run,) = plan("mine")
        return run.id

    write(0.0)
    first = ids()
    assert ids() == first
    assert ids(logger="none", threads="2", run_dir="elsewhere") == first
    assert len({first, ids(seed="1"), ids(steps="10"), ids(**{"algo.hidden": "[[8]]"})}) == 4
    write(1.0)
    assert ids() != first
    write(0.0)
    assert ids() == first
    monkeypatch.setattr(suite, "code_version", lambda algorithm: "another")
    monkeypatch.setattr(suite.code_version, "cache_clear", lambda: None, raising=False)
    assert ids() != first


def test_a_run_on_another_backend_is_another_and_is_started_on_the_one_it_was_planned_for(suites, monkeypatch):
    suites("- {algo: ppo, env: hopper, seed: 0}")
    planned = []
    for backend in ("envpool", "gymnasium"):
        monkeypatch.setattr(suite, "resolve_backend", lambda env, found=backend: found)
        planned += plan("mine")
        assert planned[-1].settings["env"]["backend"] == backend
        assert planned[-1].overrides[-1] == f"env.backend={backend}"
    assert len({run.id for run in planned}) == 2


def test_a_run_on_a_series_is_another_if_the_file_is(suites, tmp_path):
    suites("- {algo: stream_td, env: series/mine, steps: 10}")
    ids = set()
    for value in (1, 1, 2):
        (tmp_path / "mine.csv").write_text(f"a,b\n{value},2\n3,4\n5,6\n")
        suite.file_digest.cache_clear()
        (run,) = plan("mine")
        ids.add(run.id)
    assert len(ids) == 2


@pytest.mark.parametrize("key", ["init_from", "base"])
def test_a_run_that_begins_with_another_is_another_if_that_one_is(suites, tmp_path, key):
    suites("- {algo: sac, env: hopper, " + key + ": first}")
    with pytest.raises(UsageError, match=f"{key}=first is not the folder of a run"):
        plan("mine")
    (tmp_path / "first").mkdir()
    ids = set()
    for content in ("weights", "weights", "others"):
        (tmp_path / "first/checkpoint.pt").write_text(content)
        suite.file_digest.cache_clear()
        (run,) = plan("mine")
        ids.add(run.id)
    assert len(ids) == 2


def test_each_seed_of_a_suite_begins_with_the_run_that_its_setting_names(suites, tmp_path):
    suites("- {algo: sac, env: hopper, init_from: 'first-${seed}', seed: [1, 2]}")
    for seed in (1, 2):
        (tmp_path / f"first-{seed}").mkdir()
        (tmp_path / f"first-{seed}/checkpoint.pt").write_text(f"weights {seed}")
    before = plan("mine")
    assert [run.settings["init_from"] for run in before] == ["first-1", "first-2"]
    (tmp_path / "first-2/checkpoint.pt").write_text("others")
    suite.file_digest.cache_clear()
    assert [one.id == other.id for one, other in zip(before, plan("mine"), strict=True)] == [True, False]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- {algo: bcc, env: hopper}", "suite mine, algo=bcc env=hopper: algo=bcc does not exist. Nearest: bc"),
        ("- {algo: bc, env: hoper}", "env=hoper does not exist. Nearest: hopper"),
        ("- {algo: bc, env: hopper, algo.betta: 1}", "algo.betta does not exist"),
        (
            "- {algo: bc, env: hopper, dataset: [demo, not+10%there]}",
            "1 of 2 runs lack their dataset: hopper/not, hopper/there.",
        ),
        ("algo: bc", "mine.yaml must be a list of grids"),
        ("- 5", "mine.yaml must be a list of grids"),
        ("", "mine.yaml must be a list of grids"),
        ("- [a", "mine.yaml cannot be read as a suite: while parsing a flow sequence"),
        ("- {algo: bc, env: hopper, algo: iql}", "mine.yaml cannot be read as a suite: while constructing a mapping"),
        ("- {algo: bc, env: hopper, seed: []}", "mine.yaml: seed has no value"),
    ],
)
def test_a_suite_that_cannot_be_run_is_refused_before_anything_runs(suites, capsys, text, says):
    suites(text)
    assert main(["bench", "mine"]) in (1, 2)
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert not Path("bench").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("launcher=rayy", "launcher=rayy does not exist. Nearest: ray"),
        ("launcherr=ray", "launcherr does not exist"),
        ("launcher", "launcher"),
        ("--stall=0", "--stall 0 must be above 0"),
        ("run_dir=a b", "run_dir=a b: each run of a suite has its own folder. Name the folder for all: --dir 'a b'"),
        ("logger=wnadb", "logger=wnadb does not exist. There are: tensorboard, wandb, trackio"),
        ("device=cuda", "device=cuda is not on this machine. Try: device=cpu."),
        ("device=gpu", "device=gpu is not on this machine. Try: device=cpu."),
        ("device=cuda:1", "device=cuda:1: GPUs are given to runs by launcher.gpus=1. Leave device out."),
        ("--jobs=0", "--jobs 0 must be at least 1"),
        ("seeds=0-2", "seeds=0-2: a suite takes seed=0,1,2"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_a_dry_run_too(suites, capsys, monkeypatch, given, says):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    suites(GRIDS)
    assert main(["bench", "mine", "--dry-run", given]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1


def test_the_devices_of_other_machines_are_theirs_to_refuse(suites, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    suites(GRIDS)
    assert main(["bench", "mine", "--dry-run", "device=cuda", "launcher=slurm"]) == 0


def test_a_plan_can_be_shown_without_what_a_report_needs(suites, monkeypatch, capsys):
    suites(GRIDS)
    for name in ("scipy", "matplotlib", "plotly"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["bench", "mine", "--dry-run", "launcher=slurm"]) == 0
    assert "4 runs: 4 of unknown speed" in capsys.readouterr().out
    assert main(["bench", "mine"]) == 2
    assert "a report needs scipy. Type: pip install 'rl-zoo[bench]'" in capsys.readouterr().err
    assert not Path("bench").exists()


def test_a_seed_that_is_none_is_refused(suites, capsys):
    suites("- {algo: bc, env: hopper, seed: [0, -1]}")
    assert main(["bench", "mine"]) == 2
    assert "seed=-1 must lie between 0 and" in capsys.readouterr().err


def test_an_unknown_suite_names_the_nearest(capsys):
    assert main(["bench", "smoek"]) == 2
    assert "the suite smoek does not exist. Nearest: smoke" in capsys.readouterr().err


def test_failures_end_with_one_full_stop(suites):
    suites("- {algo: bc, env: hopper}")
    (run,) = plan("mine")
    for error in ("ended with 2: zoo: device=cuda is not on this machine. Try: device=cpu.", "ended with -9"):
        with pytest.raises(RunError, match=r"[^.]\. The same command tries them again\.$"):
            runner.failures([Job(run, Path(run.name), state="failed", attempts=2, error=error)])
    with pytest.raises(
        RunError, match=r"1 of 1 runs failed: hopper-.* start the suite again\.$"
    ):  # it was never started
        runner.failures(
            [Job(run, Path(run.name), state="failed", error="has finished: rm -r x, and start the suite again")]
        )


@pytest.mark.slow
def test_every_suite_of_the_zoo_can_be_planned():
    for name in suite.suites():
        assert plan(name)


def evaluations(folder: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in sorted(folder.glob("*/evaluations.csv"))}


def test_an_algorithm_environment_or_dataset_of_a_suite_chooses_its_runs(suites):
    suites(
        "- {algo: [bc, iql], env: hopper, dataset: [demo, random+5%demo], steps: 5, seed: [0, 1]}\n"
        "- {algo: cql, algo.alpha: 2.0, env: pendulum, dataset: mine, steps: 9, seed: 0}\n"
    )

    def planned(*overrides):
        keys = ("steps", "seed", "dataset")
        return {(r.settings["algo"]["name"], r.settings["env"]["name"], *(r.settings[k] for k in keys))
                for r in plan("mine", overrides)}  # fmt: skip

    assert len(planned()) == 9
    assert planned("algo=cql") == {("cql", "pendulum", 9, 0, "mine")}
    assert planned("env=hopper", "algo=bc", "seed=7", "dataset='random+5%demo'") == {
        ("bc", "hopper", 5, 7, "random+5%demo")
    }
    assert planned("env=hopper", "algo=bc", "dataset=other", "seed=0") == {("bc", "hopper", 5, 0, "other")}
    assert {one[:2] for one in planned("env=walker2d")} == {
        ("bc", "walker2d"),
        ("iql", "walker2d"),
        ("cql", "walker2d"),
    }
    with pytest.raises(UsageError, match="no runs of algo=cql env=hopper together"):
        planned("algo=cql", "env=hopper")


@pytest.mark.slow
def test_what_has_finished_is_never_run_again_and_a_dry_run_runs_nothing(suites, capsys):
    suites(GRIDS)
    assert main(["bench", "mine", "--dry-run"]) == 0
    assert re.search(r"^4 runs, \d+ at a time: 4 of unknown speed$", capsys.readouterr().out, re.MULTILINE)
    assert not Path("bench").exists()
    assert main(["bench", "mine", "seed=0"]) == 0
    out = capsys.readouterr().out
    assert out.count("running") == 2
    assert re.search(r"finished  \S+-seed0-\w+  \(2 of 2 done\)", out)
    assert "| stream_ac, hidden=[16] | 1 | 64 |" in out  # the report
    assert Path("bench/mine/report/report.html").exists()
    runs = {path for path in Path("bench").rglob("*") if path.is_file() and "report" not in path.parts}
    done = {path: path.stat().st_mtime_ns for path in runs}
    assert main(["bench", "mine"]) == 0
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert len(evaluations(Path("bench/mine"))) == 4
    capsys.readouterr()
    assert main(["bench", "mine", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.count("finished") == 4
    assert "nothing is left to do" in out
    assert main(["bench", "mine", "--dry-run", "steps=320000"]) == 0
    assert re.search(r": about .+, plus evaluations$", capsys.readouterr().out, re.MULTILINE)


BROKEN = """\
import os, sys, time
if "algo=stream_ac" in sys.argv and "seed=0" in sys.argv:
    {what}
os.execv(sys.executable, [sys.executable, "-m", "zoo.cli", *sys.argv[1:]])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("sys.exit('zoo: no luck')", r"ended with 1: zoo: no luck"),
        ("os.kill(os.getpid(), 9)", r"ended with -9: it printed nothing"),
        ("time.sleep(1000)", r"wrote nothing for 15 s: it printed nothing"),
    ],
)
def test_a_run_that_crashes_or_hangs_is_tried_again_once_and_reported_and_the_others_go_on(
    suites, tmp_path, monkeypatch, capsys, what, says
):
    suites(GRIDS)
    (tmp_path / "broken.py").write_text(BROKEN.format(what=what))
    command = runner.command
    started: list[str] = []

    def broken(jobs: list[Job]) -> list[str]:
        started.extend(job.run.name for job in jobs)
        return [str(tmp_path / "broken.py"), *command(jobs)[3:]]

    monkeypatch.setattr(runner, "command", broken)
    assert main(["bench", "mine", "--stall", "15"]) == 1
    err = capsys.readouterr().err
    assert re.search(rf"1 of 4 runs failed, after up to 2 attempts: cartpole-stream_ac-seed0-\w+ {says}", err), err
    assert len(evaluations(Path("bench/mine"))) == 3
    assert sorted(started.count(name) for name in set(started)) == [1, 1, 1, 2]
    monkeypatch.undo()
    os.chdir(tmp_path)


class Elsewhere:
    """A launcher whose processes do the given things at once, one after another."""

    places = (None,)
    gpus = 0

    def __init__(self, *ends: Callable[[Path], int]) -> None:
        self.ends, self.started = list(ends), 0

    def start(self, command: list[str], log: Path, device: str | None) -> "Elsewhere":
        self.started += 1
        self.code = self.ends.pop(0)(log.with_suffix(""))
        return self

    def poll(self) -> int:
        return self.code

    def close(self) -> None:
        pass


def ends(status: str, exits: int, run: Planned, **record: str) -> Callable[[Path], int]:
    def end(run_dir: Path) -> int:
        run_dir.mkdir(parents=True, exist_ok=True)
        known = {"status": status, "config": run.settings, "versions": {"zoo": "0"}, "code": run.code}
        (run_dir / "run.json").write_text(json.dumps(known | record))
        (run_dir / "evaluations.csv").write_text(f"step,return_mean\n{run.steps},1.0\n")
        (run_dir / "checkpoint.pt").write_text("x")
        return exits

    return end


def raises(run_dir: Path) -> int:
    raise RuntimeError("the queue is full")


def dies(run_dir: Path) -> int:
    return -9


def test_a_run_whose_time_is_over_goes_on_as_long_as_it_gets_on(suites, tmp_path):
    suites(GRIDS)
    (run, *_) = plan("mine")
    stops = [ends("interrupted", 130, run)] * 5
    (job,) = Runner([run], tmp_path / "a", launcher := Elsewhere(*stops, ends("finished", 0, run))).go()
    assert (job.state, launcher.started) == ("finished", 6)


@pytest.mark.parametrize(
    ("end", "says"), [(raises, "could not be started: the queue is full"), (dies, "ended with -9")]
)
def test_a_place_that_is_lost_fails_its_runs_and_not_the_runner(suites, tmp_path, end, says):
    suites(GRIDS)
    one, two, *_ = plan("mine")
    launcher = Elsewhere(end, ends("finished", 0, two), end)
    jobs = Runner([one, two], tmp_path / "a", launcher).go()
    assert [job.state for job in jobs] == ["failed", "finished"]
    assert says in jobs[0].error


def test_a_full_queue_is_waited_for_while_own_runs_are_in_it(suites, tmp_path, monkeypatch):
    suites(GRIDS)
    runs = plan("mine")[:4]

    class Queue:
        """Takes two processes at a time. Each ends after it has been polled a few times."""

        places = (None,) * 4
        gpus = 0
        inside = refused = 0

        def start(self, command, log, device):
            if self.inside == 2:
                Queue.refused += 1
                raise RuntimeError("the queue is full")
            self.inside += 1
            run = next(run for run in runs if run.name == log.with_suffix("").name)
            return Process(self, ends("finished", 0, run), log.with_suffix(""))

        def close(self):
            pass

    class Process:
        def __init__(self, queue, end, folder):
            self.queue, self.end, self.folder, self.looks = queue, end, folder, 0

        def poll(self):
            self.looks += 1
            if self.looks < 4:
                return None
            self.queue.inside -= 1
            return self.end(self.folder)

    monkeypatch.setattr(runner, "POLL", 0.01)
    jobs = Runner(runs, tmp_path / "a", Queue()).go()
    assert [job.state for job in jobs] == ["finished"] * 4
    assert 0 < Queue.refused < 4  # not at every poll


def test_a_run_of_other_code_than_was_planned_does_not_count(suites, tmp_path, capsys):
    suites(GRIDS)
    (run, *_) = plan("mine", ["seed=0", "algo=stream_ac"])
    for _ in range(2):  # it is there the second time
        (job,) = Runner([run], tmp_path / "a", Elsewhere(ends("finished", 0, run, code="edited meanwhile"))).go()
        assert job.state == "failed"
        assert f"run by other code than was planned: rm -r {job.dir}" in job.error


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / "evaluations.csv").unlink(), "has finished, but it is half-written (FileNotFoundError"),
        (lambda d: (d / "run.json").unlink(), "has a checkpoint, but no readable run.json"),
        (
            lambda d: (d / "run.json").write_text('{"status": "fin'),
            "has a checkpoint, but no readable run.json",
        ),
    ],
)
def test_a_damaged_folder_is_left_alone_and_what_to_do_is_said(suites, tmp_path, damage, says):
    suites(GRIDS)
    one, two, *_ = plan("mine")
    Runner([one, two], tmp_path / "a", Elsewhere(ends("finished", 0, one), ends("finished", 0, two))).go()
    damage(tmp_path / "a" / one.name)
    jobs = Runner([one, two], tmp_path / "a", Elsewhere()).go()
    assert [job.state for job in jobs] == ["failed", "finished"]
    assert says in jobs[0].error
    assert f"rm -r {jobs[0].dir}, and start the suite again" in jobs[0].error
    assert (jobs[0].dir / "checkpoint.pt").exists()


def test_of_a_run_that_goes_on_only_what_is_left_is_estimated(suites, tmp_path, capsys):
    suites(GRIDS)
    (run, *_) = plan("mine", ["seed=0", "algo=stream_ac", "steps=1000000"])
    ends("interrupted", 130, run)(folder := tmp_path / "a" / run.name)
    (folder / "metrics.csv").write_text("step,steps_per_second\n900000,100.0\n")
    asked = ["bench", "mine", "--dry-run", "seed=0", "algo=stream_ac", "steps=1000000", "--dir", str(tmp_path / "a")]
    assert main([*asked, "--jobs", "1"]) == 0
    assert "1 runs, 1 at a time: about 17 min, plus evaluations" in capsys.readouterr().out


def test_a_suite_takes_no_less_than_its_longest_run(suites, tmp_path, capsys):
    suites(GRIDS)
    (run, *_) = plan("mine", ["seed=0", "algo=stream_ac", "steps=1000000"])
    ends("finished", 0, run)(folder := tmp_path / "a" / run.name)
    (folder / "metrics.csv").write_text("step,steps_per_second\n900000,1000.0\n")
    asked = ["bench", "mine", "--dry-run", "seed=1,2", "algo=stream_ac", "steps=1000000", "--dir", str(tmp_path / "a")]
    for jobs, says in (("1", "33 min"), ("2", "17 min"), ("16", "17 min")):
        assert main([*asked, "--jobs", jobs]) == 0
        assert f"2 runs, {jobs} at a time: about {says}, plus evaluations" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a,b (1)", "café=x", "it's [here]"])
def test_a_folder_may_be_called_anything(suites, tmp_path, name):
    suites(GRIDS)
    assert main(["bench", "mine", "seed=0", "algo=stream_ac", "--dir", str(tmp_path / name)]) == 0
    assert len(evaluations(tmp_path / name)) == 1


def test_a_folder_that_cannot_be_is_refused(suites, tmp_path, capsys):
    suites(GRIDS)
    (tmp_path / "file").write_text("")
    for name, says in (("file", "cannot make the folder"), ("${x}", "cannot be the folder of runs")):
        assert main(["bench", "mine", "--dir", str(tmp_path / name)]) == 2
        assert says in capsys.readouterr().err


def test_runs_on_the_cpu_are_a_process_a_core_beside_gpus_too(suites, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("zoo.benchmarks.launchers.cores", lambda: 3)
    suites(GRIDS)
    for device, places in (("cpu", 3), ("cuda", 8)):
        assert main(["bench", "mine", "--dry-run", f"device={device}"]) == 0
        assert f"4 runs, {places} at a time" in capsys.readouterr().out


def test_speeds_are_those_of_the_report_in_the_docs():
    reported = Path(__file__).parents[2] / "docs" / "results" / "report" / "speeds.csv"
    assert (registry.folder("benchmarks") / "speeds.csv").read_bytes() == reported.read_bytes()


def test_gpus_are_those_that_are_given(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-7")
    assert Local(3, tmp_path).places == ["2", "GPU-7", "2"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert Local(None, tmp_path).places == ["0", "1"] * 4
    assert Local(None, tmp_path, gpus=1, per_gpu=2).places == ["1", "1"]
    assert launcher("local", None, tmp_path, ["gpus=0,1", "per_gpu=1"]).places == ["0", "1"]
    assert launcher("local", 3, tmp_path, ["gpus=[1]"]).places == ["1"] * 3
    assert Local(3, tmp_path, per_gpu=0).places == [None] * 3
    assert Local(3, tmp_path, per_gpu=0).gpus == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["gpus=0,7"], "there is no GPU 7 here. GPUs: 0, 1"),
        (["per_gpu=-1"], "per_gpu must be a whole number of at least 0"),
        (["per_gpu=x"], "per_gpu=x: per_gpu must be a whole number of at least 0.$"),
    ],
)
def test_gpus_that_are_not_there_are_refused(monkeypatch, tmp_path, options, says):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UsageError, match=says):
        launcher("local", None, tmp_path, options)


def test_a_run_starts_on_the_gpu_with_the_most_memory_left(monkeypatch):
    """Also if the newest processes have not allocated their memory yet, and if other processes use a GPU."""
    rows = [["0", "GPU-a", "80000", "80000"], ["1", "GPU-b", "50000", "80000"], ["2", "GPU-c", "1000", "80000"]]
    monkeypatch.setattr(launchers, "nvidia_smi", lambda *fields: rows)
    free = list(places := ["0", "1", "2"] * 4)
    taken = []
    for _ in range(5):
        taken.append(roomiest(free, places))
        free.remove(taken[-1])
    assert taken == ["0", "0", "1", "1", "0"]  # with 80, 60, 50, 50 and 40 GB left
    assert roomiest(["GPU-b", "GPU-c"], ["GPU-b", "GPU-c"]) == "GPU-b"


def test_without_nvidia_smi_runs_are_spread_evenly(monkeypatch):
    monkeypatch.setattr(launchers, "nvidia_smi", lambda *fields: [])
    assert roomiest(["0", "1", "1"], ["0", "1"] * 2) == "1"
    assert roomiest([None, None], [None, None]) is None


def test_the_runner_starts_runs_where_the_memory_is(suites, tmp_path, monkeypatch):
    suites(GRIDS)
    one, two = plan("mine", ["seed=0"])[:2]
    started = []

    class TwoGpus(Elsewhere):
        places = ("0", "1")

        def start(self, command, log, device):
            started.append(device)
            return super().start(command, log, device)

    monkeypatch.setattr(launchers, "nvidia_smi", lambda *fields: [["0", "a", "1", "9"], ["1", "b", "9", "9"]])
    Runner([one, two], tmp_path / "a", TwoGpus(ends("finished", 0, one), ends("finished", 0, two))).go()
    assert started == ["1", "0"]


def test_a_half_written_folder_is_begun_anew(suites):
    suites(GRIDS)
    (run, *_) = plan("mine", ["seed=0", "algo=stream_q"])
    folder = Path("bench/mine") / run.name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"status": "runn')
    (folder / "metrics.csv").write_text("step")
    assert main(["bench", "mine", "seed=0", "algo=stream_q"]) == 0
    assert list(evaluations(Path("bench/mine"))) == [run.name]


def test_a_run_takes_no_modules_from_the_working_directory_but_those_of_the_user(suites, tmp_path):
    suites(GRIDS)
    (tmp_path / "zoo.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "mine.py").write_text("print('mine')")
    start = command([Job(plan("mine", [])[0], tmp_path / "run")])
    start = [sys.executable, *start[: start.index("run") + 1], "--help"]
    done = subprocess.run(start, env=os.environ | {"ZOO_IMPORT": "mine"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mine\n")


@pytest.mark.parametrize("scancel", [False, True])
def test_a_worker_whose_time_is_over_or_that_is_cancelled_asks_its_run_for_a_checkpoint(tmp_path, scancel):
    code = (
        "import signal, sys, time; signal.signal(signal.SIGINT, lambda *_: sys.exit(130))\n"
        "open('begun', 'w').close(); time.sleep(60)"
    )

    def over(*_):
        if not (tmp_path / "begun").exists():
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        elif scancel:
            signal.raise_signal(signal.SIGTERM)
        else:
            raise SystemExit  # as a queue's library does in a signal handler

    before = signal.signal(signal.SIGALRM, over)
    passed_over = signal.signal(signal.SIGTERM, lambda *_: None)  # as by submitit
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert execute(["-c", code], tmp_path / "log", tmp_path, {}) == 130
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.signal(signal.SIGTERM, passed_over)


def test_a_run_that_has_hardly_begun_is_interrupted_by_a_runner_in_the_background(tmp_path):
    code = "import time; open('begun', 'w').close(); time.sleep(60)"  # before it listens to signals
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does with `zoo bench SUITE &`
    try:
        child = LocalProcess(["-c", code], tmp_path / "log", {}, tmp_path)
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        child.interrupt()
        assert child.process.wait(timeout=30) != 0
    finally:
        signal.signal(signal.SIGINT, before)
        child.kill()


@pytest.mark.slow
def test_a_closed_output_ends_nothing(suites, tmp_path):
    suites(GRIDS)
    process = start(tmp_path / "runs", "seed=0", stdout=subprocess.PIPE)
    process.stdout.close()
    assert process.wait() == 0
    assert len(evaluations(tmp_path / "runs")) == 2
    assert (tmp_path / "runs" / "report" / "report.html").exists()


def start(folder: Path, *arguments: str, stdout: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    code = (
        "import sys; from pathlib import Path; from zoo.benchmarks import bench, suite; from zoo.cli import main\n"
        "suite.suites = bench.suites = lambda: {'mine': Path('mine.yaml')}\n"
        f"sys.exit(main(['bench', 'mine', '--jobs', '2', '--dir', {str(folder)!r}, *{arguments!r}]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # in the background a shell has it ignored
    )  # fmt: skip


def alive(folder: Path) -> list[int]:
    """The processes of runs in a folder that are still running."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder) in path.read_text() and "-m\0zoo.cli\0run" in path.read_text():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_ctrl_c_ends_every_run_with_a_checkpoint_and_the_same_command_goes_on(suites, tmp_path):
    longer = GRIDS.replace("steps: 64", "steps: 1500").replace("eval_every: 32", "eval_every: 1500")
    suites(longer.replace("checkpoint_every: 16", "checkpoint_every: 100"))
    process, folder = start(tmp_path / "runs"), tmp_path / "runs"
    while len(list(folder.glob("*/checkpoint.pt"))) < 2:
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert b"runs are left. The same command continues them." in err
    assert not alive(folder)
    assert start(folder).wait() == 0
    assert len(evaluations(folder)) == 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="runs die with their runner on Linux only")
def test_killed_twenty_times_at_random_the_table_is_that_of_an_undisturbed_runner(suites, tmp_path):
    suites(GRIDS.replace("steps: 64", "steps: 1500").replace("eval_every: 32", "eval_every: 500"))
    whole = tmp_path / "whole"
    assert start(whole).wait() == 0
    chance, kills, rounds = random.Random(0), 0, 0
    while kills < 20:
        rounds += 1
        folder = tmp_path / f"killed-{rounds}"
        process = start(folder)
        while process.poll() is None and kills < 20:
            time.sleep(chance.uniform(0.5, 4.0))
            workers = alive(folder)
            if workers and chance.random() < 0.3:
                os.kill(chance.choice(workers), signal.SIGKILL)
                kills += 1
            elif process.poll() is None:
                process.kill()
                process.wait()
                assert not wait_for_none(folder)
                process = start(folder)
                kills += 1
        while process.wait() != 0:  # a run that was killed twice is one that failed, and waits for the next command
            process = start(folder)
        assert evaluations(folder) == evaluations(whole)


def wait_for_none(folder: Path) -> list[int]:
    for _ in range(100):
        if not alive(folder):
            return []
        time.sleep(0.05)
    return alive(folder)


def test_a_second_runner_in_the_same_folder_is_refused_and_a_run_that_goes_on_elsewhere_is_waited_for(
    suites, tmp_path, capsys
):
    suites(GRIDS)
    folder = tmp_path / "runs"
    folder.mkdir()
    (run, *_) = plan("mine", ["seed=0", "algo=stream_ac"])
    with locked(folder):
        assert main(["bench", "mine", "--dir", str(folder)]) == 2
    assert "is in use by another zoo bench or search" in capsys.readouterr().err
    own = [sys.executable, "-m", "zoo.cli", "run", *run.overrides, f"run_dir={folder / run.name}"]
    elsewhere = subprocess.Popen(own, stdout=subprocess.DEVNULL)
    while not (folder / run.name / ".lock").exists():
        time.sleep(0.01)
    assert main(["bench", "mine", "--dir", str(folder), "seed=0", "algo=stream_ac"]) == 0
    assert elsewhere.wait() == 0
    assert not list(folder.glob("*.log"))


@pytest.mark.slow
def test_ray_takes_gpus_but_for_runs_on_the_cpu(tmp_path):
    for per_gpu, expected in ((4, (1, 4)), (0, (0, 2))):
        found = launcher("ray", None, tmp_path, ["num_cpus=2", "num_gpus=1"], per_gpu=per_gpu)
        assert (found.gpus, len(found.places)) == expected
        found.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("launcher=ray", "launcher.num_cpus=2"), ("launcher=slurm", "launcher.cluster=local")]
)
def test_runs_on_workers_give_the_same_table_even_if_one_is_killed(suites, tmp_path, arguments):
    suites(GRIDS.replace("steps: 64", "steps: 1500").replace("eval_every: 32", "eval_every: 500"))
    whole, folder = tmp_path / "whole", tmp_path / "workers"
    assert start(whole).wait() == 0
    process = start(folder, *arguments)
    while not list(folder.glob("*/checkpoint.pt")):
        time.sleep(0.05)
        assert process.poll() is None, process.stderr.read()
    (victim, *_) = alive(folder)
    worker = int(Path(f"/proc/{victim}/stat").read_text().split()[3])  # what runs it: a worker of Ray's or submitit's
    assert worker != process.pid
    os.kill(worker, signal.SIGKILL)
    assert process.wait() == 0, process.stderr.read()
    assert evaluations(folder) == evaluations(whole)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("launcher=rayy", "launcher=rayy does not exist. Nearest: ray"),
        ("launcher=slurm", "launcher=slurm : "),
        ("launcher.colour=red", "launcher.colour does not exist for launcher=local."),
        ("launcher.jobs=2", "launcher.jobs does not exist for launcher=local."),
        ("launcher.colour=[red", "launcher=local colour=[red: "),
    ],
)
def test_a_launcher_that_cannot_be_had_is_refused(suites, tmp_path, given, says):
    suites(GRIDS)
    _, err = (process := start(tmp_path / "runs", given)).communicate()
    assert process.returncode == 2
    assert says in err.decode()
    assert not list(tmp_path.glob("runs/*/"))


@pytest.mark.slow
def test_as_many_run_at_a_time_as_there_are_places(suites, tmp_path):
    suites(GRIDS)
    seen: list[int] = []
    jobs = Runner(
        plan("mine"),
        tmp_path / "runs",
        Local(2, tmp_path),
        show=lambda jobs: seen.append(sum(j.state == "running" for j in jobs)),
    ).go()
    assert {job.state for job in jobs} == {"finished"}
    assert max(seen) == 2


def test_durations_are_printed_in_words():
    assert [bench.duration(x) for x in (3.2, 59, 61, 3600, 90061)] == [
        "3 s",
        "59 s",
        "1 min",
        "1 h 0 min",
        "25 h 1 min",
    ]


def test_the_speed_of_an_algorithm_is_the_median_of_what_was_measured_on_the_environment_or_on_any(
    tmp_path, monkeypatch
):
    for algo, env, values in (("iql", "hopper", (10, 30)), ("iql", "walker", (20, 60)), ("bc", "hopper", ())):
        folder = tmp_path / "bench" / "suite" / f"{algo}-{env}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"config": {"algo": {"name": algo}, "env": {"name": env}}}))
        with (folder / "metrics.csv").open("w") as file:
            rows = csv.writer(file)
            rows.writerow(["step", "steps_per_second"])
            rows.writerows([i, value] for i, value in enumerate(values))
    for name, record, row in (("empty", "{}", "10"), ("cut", '{"config": {}}', "1x")):
        (tmp_path / "bench" / "suite" / name).mkdir()
        (tmp_path / "bench" / "suite" / name / "run.json").write_text(record)
        (tmp_path / "bench" / "suite" / name / "metrics.csv").write_text(f"step,steps_per_second\n1,{row}\n")
    models = tmp_path / "bench" / "suite" / "mopo-hopper"  # 4,000 seconds, then 500 steps a second
    models.mkdir()
    record = {"config": {"algo": {"name": "mopo"}, "env": {"name": "hopper"}}, "stages": {"model": {"seconds": 4000.0}}}
    (models / "run.json").write_text(json.dumps(record))
    (models / "metrics.csv").write_text("step,seconds,steps_per_second\n1000,4002,500\n2000,4004,500\n")
    expected = {("mopo", "hopper"): 2000 / 4004, ("mopo",): 2000 / 4004}
    expected |= {("iql", "hopper"): 20, ("iql", "walker"): 40, ("iql",): 25, ("cql", "hopper"): 5, ("cql",): 5}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "reported", lambda: [("iql", "hopper", [7.0]), ("cql", "hopper", [5.0])])
    assert bench.speeds(Path("bench/other")) == bench.speeds(Path("elsewhere/mine")) == expected
    monkeypatch.chdir(tmp_path / "bench" / "suite")
    assert bench.speeds(Path()) == expected
