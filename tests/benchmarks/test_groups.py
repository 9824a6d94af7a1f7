"""Runs of a suite that differ only in their seeds share a process."""

import csv
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zoo.benchmarks import launchers, suite
from zoo.benchmarks.jobs import Job, command, grouped
from zoo.benchmarks.launchers import Local, LocalProcess
from zoo.benchmarks.runner import Runner
from zoo.benchmarks.suite import Planned, plan
from zoo.errors import Interrupted
from zoo.settings.overrides import folders

BOTH = """\
# An algorithm whose updates are one program on a CPU, and one whose products are too large for that
- &short {algo: stream_q, env: cartpole, steps: 1500, eval_every: 500, eval_episodes: 2, log_every: 100,
   checkpoint_every: 100, logger: none, env.backend: gymnasium, compile: false, algo.hidden: [[16]], seed: [3, 5]}
- {<<: *short, algo: bc, env: hopper, steps: 60, eval_every: 30, checkpoint_every: 10, algo.hidden: [[256, 256]]}
"""
ONE = "- {algo: stream_q, env: cartpole, steps: 10, logger: none, env.backend: gymnasium, seed: [0, 1]}"


@pytest.fixture
def planned(tmp_path, monkeypatch) -> Callable[..., list[Planned]]:
    """`planned(text, *overrides)`: the runs of a suite."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suite, "suites", lambda: {"mine": tmp_path / "mine.yaml"})

    def runs(text: str, *overrides: str) -> list[Planned]:
        (tmp_path / "mine.yaml").write_text(text)
        return plan("mine", overrides)

    return runs


def seeds(groups: list[list[Job]]) -> list[list[tuple[str, int]]]:
    return [[(job.run.settings["algo"]["name"], job.run.settings["seed"]) for job in group] for group in groups]


def test_on_gpus_runs_that_differ_in_their_seeds_alone_are_a_process_and_no_gpu_is_idle(planned):
    jobs = [Job(run, Path(run.name)) for run in planned(BOTH, "seed=0,1,2,3")]
    q, bc = ([(name, seed) for seed in range(4)] for name in ("stream_q", "bc"))
    assert seeds(grouped(jobs, 0)) == [[one] for one in q + bc]
    assert seeds(grouped(jobs, 1)) == seeds(grouped(jobs, 3)) == [q, bc]
    assert seeds(grouped(jobs, 4)) == [q[::2], q[1::2], bc[::2], bc[1::2]]
    assert seeds(grouped(jobs, 100)) == [[one] for one in q + bc]
    assert grouped([], 4) == []
    others = [Job(run, Path(run.name)) for run in planned(ONE, "seed=0,1", "log_every=10,20")]
    assert [len(group) for group in grouped(others, 1)] == [2, 2]
    on_cpu = [Job(run, Path(run.name)) for run in planned(ONE, "device=cpu")]
    assert [len(group) for group in grouped(on_cpu, 1)] == [1, 1]


class OneGpu:
    """A launcher with one GPU, whose processes do the given things to their folders at once."""

    places, gpus = (None,), 1

    def __init__(self, *ends: Callable[[list[Path]], int]) -> None:
        self.ends, self.started = list(ends), []

    def start(self, command: list[str], log: Path, device: str | None) -> "OneGpu":
        (given,) = (one.partition("=")[2] for one in command if one.startswith(("run_dir=", "resume=")))
        self.started.append(([Path(one).name for one in folders(given)], "resume=" in " ".join(command)))
        self.code = self.ends.pop(0)([Path(one) for one in folders(given)])
        return self

    def poll(self) -> int:
        return self.code

    def close(self) -> None:
        pass


def write(run_dir: Path, run: Planned, status: str) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    known = {"status": status, "config": run.settings, "versions": {"zoo": "0"}, "code": run.code}
    (run_dir / "run.json").write_text(json.dumps(known))
    (run_dir / "evaluations.csv").write_text(f"step,return_mean\n{run.steps},1.0\n")
    (run_dir / "checkpoint.pt").write_text("x")


def leaves(runs: list[Planned], exits: int, *statuses: str | None) -> Callable[[list[Path]], int]:
    """A process that writes the given statuses into its folders, one each; None: without a checkpoint."""

    def end(dirs: list[Path]) -> int:
        for run_dir, status in zip(dirs, statuses, strict=True):
            if status:
                write(run_dir, next(run for run in runs if run.name == run_dir.name), status)
        return exits

    return end


def test_one_that_fails_takes_nothing_from_the_others_and_is_tried_again_alone(planned, tmp_path):
    runs = planned(ONE, "seed=0,1,2")
    names = [run.name for run in runs]
    launcher = OneGpu(leaves(runs, 1, "finished", "failed", "finished"), leaves(runs, 0, "finished"))
    jobs = Runner(runs, tmp_path / "a", launcher).go()
    assert [job.state for job in jobs] == ["finished"] * 3
    assert launcher.started == [(names, False), (names[1:2], True)]


def test_where_the_process_is_lost_each_is_tried_again_alone(planned, tmp_path):
    runs = planned(ONE)
    names = [run.name for run in runs]
    ends = [leaves(runs, -9, "running", None), leaves(runs, -9, "running"), leaves(runs, 0, "finished")]
    launcher = OneGpu(*ends)
    jobs = Runner(runs, tmp_path / "a", launcher).go()
    assert launcher.started == [(names, False), (names[:1], True), (names[1:], False)]
    assert [job.state for job in jobs] == ["failed", "finished"]
    assert jobs[0].error == "ended with -9: it printed nothing"


def test_new_ones_and_those_that_go_on_are_a_process_each_and_what_has_finished_is_in_none(planned, tmp_path):
    runs = planned(ONE, "seed=0,1,2,3,4")
    names = [run.name for run in runs]
    for run, status in zip(runs, ("finished", "interrupted", None, "running"), strict=False):
        if status:
            write(tmp_path / "a" / run.name, run, status)
    launcher = OneGpu(leaves(runs, 0, "finished", "finished"), leaves(runs, 0, "finished", "finished"))
    jobs = Runner(runs, tmp_path / "a", launcher).go()
    assert launcher.started == [([names[1], names[3]], True), ([names[2], names[4]], False)]
    assert [job.state for job in jobs] == ["finished"] * 5


def test_those_whose_time_is_over_go_on_together(planned, tmp_path):
    runs = planned(ONE)
    stops = [leaves(runs, 130, "interrupted", "interrupted")] * 4
    launcher = OneGpu(*stops, leaves(runs, 0, "finished", "finished"))
    jobs = Runner(runs, tmp_path / "a", launcher).go()
    assert [job.state for job in jobs] == ["finished"] * 2
    assert [len(names) for names, _ in launcher.started] == [2] * 5


def test_a_folder_may_be_called_anything(planned, tmp_path):
    runs = planned(ONE)
    jobs = [Job(run, tmp_path / "it's [here], (1)" / run.name) for run in runs]
    (given,) = (one for one in command(jobs) if one.startswith("run_dir="))
    assert folders(given.removeprefix("run_dir=")) == [str(job.dir) for job in jobs]


# --- Processes that train ---------------------------------------------------------------------------------------------


class OnCpu(Local):
    """Takes one process at a time. With `gpus`, it treats this machine as a GPU."""

    def __init__(self, folder: Path, gpus: int) -> None:
        super().__init__(1, folder)
        self.gpus, self.processes = gpus, list[LocalProcess]()

    def start(self, command: list[str], log: Path, device: str | None) -> LocalProcess:
        self.processes.append(LocalProcess(command, log, {}))
        return self.processes[-1]


def evaluations(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "evaluations.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def numbers(run_dir: Path) -> list[float]:
    return [float(value) for row in evaluations(run_dir) for text in row.values() for value in text.split()]


def same(runs: list[Planned], found: Path, expected: Path) -> None:
    """The program rounds differently from a run alone; runs one after another are equal to it bit for bit."""
    for run in runs:
        if run.settings["algo"]["name"] == "bc":
            assert evaluations(found / run.name) == evaluations(expected / run.name)
        else:
            assert numbers(found / run.name) == pytest.approx(numbers(expected / run.name), rel=1e-3)


@pytest.mark.slow
def test_runs_of_one_process_write_what_each_writes_alone_whatever_is_killed_on_the_way(planned, tmp_path):
    runs = planned(BOTH)
    alone = OnCpu(tmp_path, 0)
    assert {job.state for job in Runner(runs, tmp_path / "alone", alone).go()} == {"finished"}
    assert len(alone.processes) == 4

    at_once = OnCpu(tmp_path, 1)
    assert {job.state for job in Runner(runs, tmp_path / "at once", at_once).go()} == {"finished"}
    assert len(at_once.processes) == 2
    same(runs, tmp_path / "at once", tmp_path / "alone")
    for run in runs:
        record = json.loads((tmp_path / "at once" / run.name / "run.json").read_text())
        assert record["seeds"] == [3, 5]
        assert sorted(path.name for path in (tmp_path / "at once" / run.name).iterdir()) == sorted(
            path.name for path in (tmp_path / "alone" / run.name).iterdir()
        )

    stopped, folder = OnCpu(tmp_path, 1), tmp_path / "stopped"

    def once_both_have_a_checkpoint(what: Callable[[], None]) -> Callable[[Any], None]:
        done: list[float] = []

        def show(jobs: list[Job]) -> None:
            if not done and all((folder / run.name / "checkpoint.pt").exists() for run in runs[:2]):
                done.append(time.monotonic())
                what()

        return show

    stop = once_both_have_a_checkpoint(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="4 of 4 runs are left"):
        Runner(runs, folder, stopped, show=stop).go()
    assert len(stopped.processes) == 1
    kill = once_both_have_a_checkpoint(lambda: stopped.processes[-1].kill())
    assert {job.state for job in Runner(runs, folder, stopped, show=kill).go()} == {"finished"}
    resumed = [process.process.args for process in stopped.processes[1:]]
    assert [any(one.startswith("resume=[") for one in args) for args in resumed] == [
        True,
        False,
        False,
        False,
    ]  # those that failed come last
    assert [any(one.startswith("run_dir=[") for one in args) for args in resumed] == [False, True, False, False]
    same(runs, folder, tmp_path / "alone")


def test_a_launcher_knows_its_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Local(None, tmp_path).gpus == 2
    assert Local(1, tmp_path).gpus == Local(None, tmp_path, gpus=1).gpus == 1
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert Local(4, tmp_path).gpus == 0
    for options, expected in (
        (["gpus_per_node=2"], 1),
        (["slurm_gres=gpu:1"], 1),
        (["slurm_partition=short"], 0),
        (["slurm_partition=nogpu"], 0),
    ):
        found = launchers.launcher("slurm", None, tmp_path, ["cluster=debug", *options])
        assert found.gpus == expected
