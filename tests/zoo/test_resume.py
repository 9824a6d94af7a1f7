"""Runs that are killed, interrupted or damaged, and how they resume."""

import csv
import errno
import fcntl
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest
import torch

import zoo as zoo_package
from zoo.algos import sac
from zoo.data.buffers import RolloutBuffer
from zoo.data.catalog import from_folder
from zoo.nn import linear
from zoo.returns import ReturnsSoFar
from zoo.runs.evaluation import seeds as seeds_of
from zoo.runs.lock import in_use
from zoo.runs.stepper import EnvStepper

# the sampler is one that has prefetched indices when a checkpoint is written
SETTINGS = (
    "algo=iql", "sampler=return", "steps=600", "eval_every=50", "checkpoint_every=20", "log_every=10", "seed=1",
)  # fmt: skip


def status(run_dir: Path) -> str:
    return json.loads((run_dir / "run.json").read_text())["status"]


def flat(value, prefix="") -> dict[str, object]:
    """The leaves of a checkpoint, by their path."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, part in items for key, leaf in flat(part, f"{prefix}/{name}").items()}
    return {prefix: value}


def same(one: Path, other: Path) -> None:
    """Asserts that everything except the times is equal, with tensors compared bit for bit."""
    leaves, others = (flat(torch.load(path / "checkpoint.pt", weights_only=True)) for path in (one, other))
    assert leaves.keys() == others.keys()
    for key, leaf in leaves.items():
        if key != "/seconds":
            first, second = (x.numpy().tobytes() if isinstance(x, torch.Tensor) else x for x in (leaf, others[key]))
            assert first == second, key  # NaN too, which an imagined episode that is broken returns
    names, others = (sorted(path.relative_to(root) for path in root.glob("replay/*/*")) for root in (one, other))
    assert names == others
    for name in names:
        first, second = (torch.load(root / name, weights_only=True) for root in (one, other))
        assert all(torch.equal(value, second[key]) for key, value in first.items())
    assert (one / "evaluations.csv").read_bytes() == (other / "evaluations.csv").read_bytes()
    assert metrics(one) == metrics(other)


def metrics(run_dir: Path) -> list[list[str]]:
    """The regular rows, one every `log_every` steps, without times. An interruption adds another row."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["step"]) % 10 == 0]
    return [[value for key, value in row.items() if key not in ("seconds", "steps_per_second")] for row in rows]


@pytest.fixture(scope="module")
def uninterrupted(train) -> Path:
    return train("uninterrupted", *SETTINGS)


@pytest.fixture
def command(pendulum_file):
    quick = ("eval_episodes=2", "logger=none", "algo.hidden=[16]", "algo.batch_size=32")
    return ("run", "env=pendulum", f"dataset={pendulum_file}", *quick, *SETTINGS)


@pytest.mark.skipif(not linear.available(), reason="this torch has no oneDNN here")
def test_a_resumed_run_multiplies_with_the_library_it_began_with(zoo, pendulum_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = ("run", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "algo.hidden=[64,64]", *SETTINGS[2:])
    run_dir = tmp_path / "run"
    assert zoo(*command, f"run_dir={run_dir}").code == 0
    assert json.loads((run_dir / "run.json").read_text())["linear"].keys() == {"256x64x64"}

    def rewound(library: str) -> dict[str, object]:
        """The libraries after resuming from a checkpoint that names `library`, whatever the cache file says."""
        state = torch.load(run_dir / "checkpoint.pt", weights_only=True)
        torch.save(state | {"step": 500, "linear": {"256x64x64": library}}, run_dir / "checkpoint.pt")
        record = json.loads((run_dir / "run.json").read_text())
        (run_dir / "run.json").write_text(json.dumps(record | {"status": "interrupted"}))
        assert zoo("run", f"resume={run_dir}").code == 0
        return torch.load(run_dir / "checkpoint.pt", weights_only=True)["linear"]

    for library in ("mkl", "onednn"):
        assert rewound(library) == {"256x64x64": library}


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_as_one_that_was_not(start, command, uninterrupted, tmp_path):
    run_dir, kills, chance = tmp_path / "killed", 0, random.Random(0)
    process = start(*command, f"run_dir={run_dir}")
    while True:
        process.wait_for(run_dir / "checkpoint.pt")
        if kills < 8:
            time.sleep(chance.uniform(0, 0.3))
            process.kill()
        result = process.wait()
        if status(run_dir) == "finished":
            break
        assert result.code == -signal.SIGKILL, result.err
        kills += 1
        process = start("run", f"resume={run_dir}")
    assert kills >= 2, "the run was over before it could be killed"
    assert status(run_dir) == "finished"
    same(run_dir, uninterrupted)
    assert not list(run_dir.glob("*.partial"))


def test_a_run_killed_after_its_last_step_finishes_on_resuming(uninterrupted, zoo, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(uninterrupted, run_dir)
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(record | {"status": "running"}))
    result = zoo("run", f"resume={run_dir}")
    assert result.code == 0, result.err
    assert "after 600 steps" in result.out
    assert status(run_dir) == "finished"
    same(run_dir, uninterrupted)


def test_a_run_that_goes_on_with_other_code_says_so_and_is_no_longer_that_of_the_code_it_began_with(zoo, unfinished):
    record = json.loads((unfinished / "run.json").read_text())
    (unfinished / "run.json").write_text(json.dumps(record | {"code": "0123", "error": "a full disk"}))
    result = zoo("run", f"resume={unfinished}")
    assert result.code == 0, result.err
    assert "continues with other code than it began with" in result.out
    ended = json.loads((unfinished / "run.json").read_text())
    assert ended["code"] == f"0123+{record['code']}"
    assert "error" not in ended


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_saves_itself_and_says_how_to_continue(start, command, uninterrupted, tmp_path, zoo, number):
    run_dir = tmp_path / "run"
    process = start(*command, "checkpoint_every=100_000", f"run_dir={run_dir}")
    process.wait_for(run_dir / "evaluations.csv")
    process.kill(number)
    result = process.wait()
    assert result.code == 130
    assert re.fullmatch(r"zoo: stopping .*\nzoo: interrupted after step \d+; .*zoo run resume=\S+\n", result.err)
    assert status(run_dir) == "interrupted"
    assert 50 <= torch.load(run_dir / "checkpoint.pt", weights_only=True)["step"] < 600

    resumed = zoo(*re.search("zoo (run) (resume=.*)", result.err).groups())
    assert resumed.code == 0, resumed.err
    same(run_dir, uninterrupted)


def test_signals_that_come_at_once_are_one(start, command, tmp_path):
    """`timeout` sends a signal to the process and to its group."""
    process = start(*command, "checkpoint_every=100_000", "steps=1_000_000", "compile=false", f"run_dir={tmp_path}/run")
    process.wait_for(tmp_path / "run" / "evaluations.csv")
    for _ in range(3):
        process.kill(signal.SIGTERM)
    result = process.wait()
    assert result.code == 130
    assert result.err.count("stopping") == 1
    assert (tmp_path / "run" / "checkpoint.pt").exists()


def test_a_run_goes_on_from_python(unfinished, uninterrupted):
    run = zoo_package.resume(unfinished)
    assert run.done == 600
    same(unfinished, uninterrupted)
    with pytest.raises(zoo_package.UsageError, match=r"this run has finished.*init_from=DIR"):
        zoo_package.resume(unfinished)


STAGED = (
    "algo=mbrcsl", "steps=60", "eval_every=20", "checkpoint_every=20", "log_every=10", "seed=1",
    "algo.dynamics_hidden=[8,8,8,8]", "algo.dynamics_epochs=6", "algo.behavior_hidden=[8]", "algo.behavior_epochs=6",
    "algo.diffusion_steps=2", "algo.min_return=-1300", "algo.rollout_batch=8", "algo.rollouts=30",
)  # fmt: skip


@pytest.fixture(scope="module")
def staged(train) -> Path:
    return train("staged", *STAGED)


@pytest.mark.slow
def test_a_run_killed_in_any_of_its_stages_ends_as_one_that_was_not(start, pendulum_file, staged, tmp_path, zoo):
    run_dir = tmp_path / "killed"
    quick = ("eval_episodes=2", "logger=none", "algo.hidden=[16]", "algo.batch_size=32")
    command = ("run", "env=pendulum", f"dataset={pendulum_file}", *quick, *STAGED, f"run_dir={run_dir}")
    for stage in ("dynamics", "behavior", "rollouts", "metrics"):
        process = start(*command)
        process.wait_for(run_dir / f"{stage}.csv")
        process.wait_for(run_dir / "checkpoint.pt")  # which follows the first row of the first stage
        time.sleep(0.05)
        process.kill()
        assert process.wait().code == -signal.SIGKILL, f"the run was over before it could be killed in {stage}"
        command = ("run", f"resume={run_dir}")
    result = zoo(*command)
    assert result.code == 0, result.err
    same(run_dir, staged)
    for stage in ("dynamics", "behavior", "rollouts"):
        assert stage_rows(run_dir, stage) == stage_rows(staged, stage)
    assert (run_dir / "rollouts.hdf5").read_bytes() == (staged / "rollouts.hdf5").read_bytes()


def stage_rows(run_dir: Path, stage: str) -> list[list[str]]:
    with (run_dir / f"{stage}.csv").open(newline="") as file:
        return [[value for key, value in row.items() if key != "seconds"] for row in csv.DictReader(file)]


def test_a_run_interrupted_in_a_stage_says_how_to_continue(start, pendulum_file, staged, tmp_path, zoo):
    run_dir = tmp_path / "run"
    quick = ("eval_episodes=2", "logger=none", "algo.hidden=[16]", "algo.batch_size=32")
    process = start("run", "env=pendulum", f"dataset={pendulum_file}", *quick, *STAGED, f"run_dir={run_dir}")
    process.wait_for(run_dir / "dynamics.csv")
    process.kill(signal.SIGINT)
    result = process.wait()
    assert result.code == 130
    assert re.fullmatch(r"zoo: stopping .*\nzoo: interrupted after pass \d of \w+; .*zoo run resume=\S+\n", result.err)
    assert zoo("eval", run_dir).code == 0  # of a policy that has learned nothing yet
    assert zoo("run", f"resume={run_dir}").code == 0
    same(run_dir, staged)


BUFFER = ("algo=iql", "log_every=10")
ROLLOUTS = ("algo=reinflow", "algo.num_steps=50", "algo.minibatches=5", "log_every=50")  # a row a rollout


@pytest.mark.parametrize(
    ("learns_from", "saved"), [(BUFFER, 100), (BUFFER, 330), (ROLLOUTS, 100), (ROLLOUTS, 330)],
    ids=["buffer, offline", "buffer, online", "rollouts, offline", "rollouts, within one"],
)  # fmt: skip
def test_a_run_that_goes_on_online_ends_alike_if_it_is_killed_in_either_part(
    start, command, tmp_path, zoo, learns_from, saved
):
    run_dir = tmp_path / "run"
    others = ("algo=", "steps=", "checkpoint_every=", "log_every=")
    settings = [setting for setting in command if not setting.startswith(others)]
    settings += [*learns_from, "steps=200", "online_steps=400", f"checkpoint_every={saved}", "env.backend=gymnasium"]
    assert zoo(*settings, f"run_dir={tmp_path / 'whole'}").code == 0
    process = start(*settings, f"run_dir={run_dir}")
    process.wait_for(run_dir / "checkpoint.pt")
    if not process.running():
        print(process.wait())
    while torch.load(run_dir / "checkpoint.pt", weights_only=True)["step"] < saved:
        time.sleep(0.01)
    process.kill()
    assert process.wait().code == -signal.SIGKILL
    result = zoo("run", f"resume={run_dir}")
    assert result.code == 0, result.err
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    assert state["step"] == 600
    assert learns_from == ROLLOUTS or state["tracked"]["online_buffer"]["size"] == 400
    same(run_dir, tmp_path / "whole")


def test_an_online_run_resumes_with_its_buffer_and_counts_on(start, tmp_path, zoo):
    run_dir = tmp_path / "run"
    process = start(
        "run", "algo=sac", "env=pendulum", "steps=1_000", "eval_every=500", "eval_episodes=1", "logger=none",
        "log_every=50", "checkpoint_every=100", "algo.learning_starts=50", "algo.hidden=[8]", "num_envs=2",
        f"run_dir={run_dir}",
    )  # fmt: skip
    process.wait_for(run_dir / "checkpoint.pt")
    process.kill()
    assert process.wait().code == -signal.SIGKILL
    result = zoo("run", f"resume={run_dir}")
    assert result.code == 0, result.err
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    assert state["step"] == 1_000
    assert state["tracked"]["buffer"]["size"] == 1_000
    with (run_dir / "metrics.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(50, 1_001, 50))


ONLINE = {
    "sac": ("env=pendulum", "algo.learning_starts=50", "algo.hidden=[8]", "num_envs=2", "algo.buffer_size=150"),
    "td3": ("env=pendulum", "algo.learning_starts=50", "algo.hidden=[8]", "algo.policy_delay=30"),
    "dqn": ("env=cartpole", "algo.learning_starts=50", "algo.hidden=[8]", "algo.n_step=3", "algo.value_head=hl_gauss"),
    "ppo": ("env=hopper", "algo.hidden=[8]", "num_envs=2", "algo.num_steps=50", "algo.minibatches=4"),
    "stream_ac": ("env=hopper", "algo.hidden=[16]"),
    "stream_sarsa": ("env=cartpole", "algo.hidden=[16]"),
    "stream_td": ("env=series/hopper", "algo.hidden=[16]"),
}


@pytest.mark.parametrize("algo", ONLINE)
def test_an_online_run_killed_where_its_simulator_is_known_ends_as_one_that_was_not(start, tmp_path, zoo, algo):
    common = (
        "run", f"algo={algo}", *ONLINE[algo], "steps=1_000", "eval_every=500", "eval_episodes=2", "logger=none",
        "log_every=10", "checkpoint_every=70", "env.backend=gymnasium",
    )  # fmt: skip
    assert zoo(*common, f"run_dir={tmp_path / 'whole'}").code == 0
    run_dir = tmp_path / "killed"
    process = start(*common, f"run_dir={run_dir}")
    process.wait_for(run_dir / "checkpoint.pt")
    process.kill()
    assert process.wait().code == -signal.SIGKILL, "the run was over before it could be killed"
    result = zoo("run", f"resume={run_dir}")
    assert result.code == 0, result.err
    same(run_dir, tmp_path / "whole")


def test_where_the_simulator_is_not_put_back_nothing_is_learned_across_the_seam(start, tmp_path, zoo, monkeypatch):
    pytest.importorskip("envpool")
    common = ("run", "env=cartpole", "env.backend=envpool", "logger=none", "eval_episodes=1", "algo.hidden=[8]")
    killed = {
        "dqn": ("algo.n_step=3", "algo.learning_starts=50", "steps=3_000", "checkpoint_every=50"),
        "ppo": ("algo.num_steps=2000", "algo.minibatches=4", "steps=8_000", "checkpoint_every=500"),
    }
    for algo, settings in killed.items():
        process = start(*common, f"algo={algo}", *settings, "eval_every=1_000_000", f"run_dir={tmp_path / algo}")
        process.wait_for(tmp_path / algo / "checkpoint.pt")
        process.kill()
        assert process.wait().code == -signal.SIGKILL
    before = torch.load(tmp_path / "dqn" / "checkpoint.pt", weights_only=True)["step"]
    lengths, reset = [], []
    append, begin = list.append, ReturnsSoFar.reset
    monkeypatch.setattr(RolloutBuffer, "append", lambda self, x: (append(self, x), lengths.append(len(self)))[0])
    monkeypatch.setattr(ReturnsSoFar, "reset", lambda self: (begin(self), reset.append(self))[0])
    for algo in killed:
        result = zoo("run", f"resume={tmp_path / algo}")
        assert result.code == 0, result.err
        assert "the simulator cannot be put back" in result.out
    assert lengths[:2] == [1, 2], "PPO's rollout begins anew"
    assert reset, "and so do the returns that its rewards are scaled by"
    ended = torch.zeros(3_000, dtype=torch.bool)
    for first, last in torch.load(tmp_path / "dqn" / "checkpoint.pt", weights_only=True)["tracked"]["buffer"]["files"]:
        part = torch.load(tmp_path / "dqn" / "replay" / "buffer" / f"{first}-{last}.pt", weights_only=True)
        ended[first:last] = part["terminated"] | part["truncated"]
    assert ended[before - 1]


@pytest.mark.parametrize("seed", [0, 3])
def test_a_resumed_online_run_trains_on_episodes_that_it_neither_began_nor_is_evaluated_with(
    zoo, tmp_path, monkeypatch, seed
):
    seeds: list[list[int]] = []

    class Spy(EnvStepper):
        def __init__(self, envs, seed, *rest):
            seeds.append(seed)
            super().__init__(envs, seed, *rest)

    monkeypatch.setattr("zoo.runs.tensor_stepper.EnvStepper", Spy)
    arguments = ("algo=sac", "env=pendulum", "eval_episodes=1", "logger=none", "algo.hidden=[8]", f"seed={seed}")
    run_dir = tmp_path / "run"
    assert zoo("run", *arguments, "algo.learning_starts=99", "steps=100", f"run_dir={run_dir}").code == 0
    record = json.loads((run_dir / "run.json").read_text())
    record["config"]["steps"] += 100
    (run_dir / "run.json").write_text(json.dumps(record | {"status": "running"}))
    result = zoo("run", f"resume={run_dir}")
    assert result.code == 0, result.err
    began, resumed = seeds
    assert not set(began) & set(resumed)
    assert not set(began + resumed) & set(seeds_of("evaluation", seed, count=1))


# --- What cannot be resumed ---


@pytest.fixture
def unfinished(uninterrupted, tmp_path) -> Path:
    """A folder that looks like that of a killed run."""
    run_dir = tmp_path / "unfinished"
    shutil.copytree(uninterrupted, run_dir)
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(record | {"status": "running"}))
    return run_dir


def refused(result, code: int, *words: str) -> None:
    assert result.code == code, result
    assert re.fullmatch(r"zoo: [^\n]+\n", result.err), result.err
    for word in words:
        assert word in result.err


def test_a_finished_run_is_not_resumed(zoo, uninterrupted):
    refused(zoo("run", f"resume={uninterrupted}"), 2, "has finished", f"zoo eval {uninterrupted}")


@pytest.mark.parametrize(
    "settings",
    [
        ("algo=sac", "env=pendulum", "algo.learning_starts=100", "algo.hidden=[8]", "algo.batch_size=8"),
        ("algo=td3_bc", "env=pendulum", "algo.hidden=[8]", "algo.batch_size=8"),
    ],
    ids=["online", "offline"],
)
def test_a_finished_run_goes_on_to_a_later_end_as_if_that_had_been_its_own(zoo, tmp_path, pendulum_file, settings):
    settings += () if "algo=sac" in settings else (f"dataset={pendulum_file}",)
    common = (
        "run", *settings, "eval_every=100", "eval_episodes=2", "logger=none", "log_every=10", "checkpoint_every=150",
        "compile=false", "env.backend=gymnasium",
    )  # fmt: skip
    assert zoo(*common, "steps=300", "run_dir=whole").code == 0
    assert zoo(*common, "steps=150", "run_dir=half").code == 0
    result = zoo("run", "resume=half", "steps=300")
    assert result.code == 0, result.err
    assert "continues to step 300, not 150" in result.out
    rows = (tmp_path / "half" / "evaluations.csv").read_bytes().splitlines(keepends=True)
    (tmp_path / "half" / "evaluations.csv").write_bytes(b"".join(row for row in rows if not row.startswith(b"150,")))
    same(tmp_path / "half", tmp_path / "whole")
    assert json.loads((tmp_path / "half" / "run.json").read_text())["config"]["steps"] == 300
    assert "\nsteps: 300\n" in (tmp_path / "half" / "config.yaml").read_text()
    refused(zoo("run", "resume=half"), 2, "this run has finished", "zoo run resume=half steps=600")
    refused(zoo("run", "resume=half", "steps=299"), 2, "steps=299 is less than the 300 of half")
    for wrong in ("1e6", "_", "1__0"):
        refused(zoo("run", "resume=half", f"steps={wrong}"), 2, f"steps={wrong} is of the wrong type")


def test_a_finished_run_that_cannot_go_on_stays_finished(zoo, tmp_path, pendulum_file):
    shutil.copy(pendulum_file, tmp_path / "data.hdf5")
    quick = ("algo.hidden=[8]", "eval_episodes=1", "logger=none", "compile=false")
    assert zoo("run", "algo=bc", "env=pendulum", "dataset=data.hdf5", "steps=10", "run_dir=run", *quick).code == 0
    (tmp_path / "data.hdf5").rename(tmp_path / "elsewhere.hdf5")
    before = {path: (tmp_path / "run" / path).read_text() for path in ("config.yaml", "evaluations.csv")}
    refused(zoo("run", "resume=run", "steps=20"), 2, "data.hdf5")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["config"]["steps"]) == ("finished", 10)
    assert before == {path: (tmp_path / "run" / path).read_text() for path in before}
    (tmp_path / "elsewhere.hdf5").rename(tmp_path / "data.hdf5")
    assert zoo("run", "resume=run", "steps=20").code == 0


def test_all_seeds_of_a_finished_run_go_on(zoo, tmp_path, pendulum_file):
    bc = ("run", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "algo.hidden=[8]", "eval_episodes=1")
    assert zoo(*bc, "steps=10", "seeds=2", "run_dir=runs", "logger=none", "compile=false").code == 0
    result = zoo("run", "resume=runs", "steps=20")
    assert result.code == 0, result.err
    for seed in range(2):
        assert (tmp_path / f"runs/seed{seed}/evaluations.csv").read_text().splitlines()[-1].startswith("20,")


def test_a_run_that_went_on_online_takes_no_more_updates(zoo, command, tmp_path):
    settings = [one for one in command if not one.startswith(("algo=", "steps="))]
    assert zoo(*settings, "algo=iql", "steps=20", "online_steps=10", "run_dir=run").code == 0
    refused(zoo("run", "resume=run", "steps=30"), 2, "run continues online after 20 steps")
    assert "steps=" not in zoo("run", "resume=run").err


@pytest.mark.parametrize("made", [True, False])
def test_a_folder_that_is_no_run_is_not_resumed(zoo, tmp_path, made):
    if made:
        (tmp_path / "folder").mkdir()
    refused(zoo("run", "resume=folder"), 2, "folder is not the folder of a run")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"] * made
    assert not list(tmp_path.glob("folder/*"))


def test_a_run_without_a_checkpoint_is_not_resumed(zoo, unfinished):
    (unfinished / "checkpoint.pt").unlink()
    refused(zoo("run", f"resume={unfinished}"), 1, "before its first checkpoint")


def test_resuming_takes_no_other_settings(zoo, unfinished):
    refused(zoo("run", f"resume={unfinished}", "seed=9"), 2, "seed=9 cannot be given, device= and steps= alone can")
    refused(zoo("run", "algo=bc", "env=pendulum", "-m", f"resume={unfinished}"), 2, "zoo run resume=DIR")


@pytest.mark.parametrize("keep", [0, 1_000])
def test_a_damaged_checkpoint_is_a_failure_in_one_line(zoo, unfinished, keep):
    path = unfinished / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:keep])
    refused(zoo("run", f"resume={unfinished}"), 1, "checkpoint.pt is not a readable checkpoint")
    assert path.stat().st_size == keep


def test_a_checkpoint_that_has_changed_on_the_disk_is_noticed(zoo, unfinished):
    path = unfinished / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 100] = bytes(byte ^ 0xFF for byte in content[middle : middle + 100])
    path.write_bytes(content)
    for command in (("run", f"resume={unfinished}"), ("eval", unfinished)):
        refused(zoo(*command), 1, "not a readable checkpoint", "checksum")


@pytest.mark.parametrize("missing", ["status", "code", "spec", "algorithm", "config"])
def test_a_record_without_what_a_run_needs_is_no_runs(zoo, command, unfinished, missing):
    record = json.loads((unfinished / "run.json").read_text())
    del record[missing]
    (unfinished / "run.json").write_text(json.dumps(record))
    for arguments in (("run", f"resume={unfinished}"), ("eval", unfinished), (*command, f"run_dir={unfinished}")):
        refused(zoo(*arguments), 2, "no readable run.json")


ODD_RECORDS = {  # a place in run.json, and what stands there instead
    "folder": 5, "config.dataset": ["a"], "config.corruption": "x", "config.corruption.critic": 7, "config.env.id": 5,
    "spec": [], "spec.more": 1,
}  # fmt: skip


@pytest.mark.parametrize("place", ODD_RECORDS)
def test_a_record_with_values_of_other_types_is_no_runs(zoo, unfinished, place):
    record = inner = json.loads((unfinished / "run.json").read_text())
    *groups, name = place.split(".")
    for group in groups:
        inner = inner[group]
    inner[name] = ODD_RECORDS[place]
    (unfinished / "run.json").write_text(json.dumps(record))
    refused(zoo("eval", unfinished), 2, "no readable run.json")


def test_a_record_of_somebody_else_does_not_read_the_environment(zoo, unfinished, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "s3cr3t")
    record = json.loads((unfinished / "run.json").read_text())
    record["config"]["dataset"] = "${oc.env:SECRET_KEY}"
    (unfinished / "run.json").write_text(json.dumps(record))
    refused(zoo("run", f"resume={unfinished}"), 2, "is the value of another setting, such as ${seed}, nothing else")
    assert "s3cr3t" not in (unfinished / "run.json").read_text()


ODD_CHECKPOINTS = {
    "a list": lambda state: [1],
    "nothing tracked": lambda state: {"format": state["format"]},
    "no agent": lambda state: state | {"tracked": {}},
    "no random numbers": lambda state: {key: value for key, value in state.items() if key != "rng"},
    "a step that is no number": lambda state: state | {"step": "x"},
    "a list of what is tracked": lambda state: state | {"tracked": []},
    "a format that is no number": lambda state: state | {"format": "x"},
    "an agent that is a number": lambda state: state | {"tracked": state["tracked"] | {"agent": 5}},
    "an agent with numbers for names": lambda state: state | {"tracked": state["tracked"] | {"agent": {1: 2}}},
}


@pytest.mark.parametrize("kind", ODD_CHECKPOINTS)
def test_a_checkpoint_of_another_structure_is_refused_in_one_line(zoo, unfinished, kind):
    path = unfinished / "checkpoint.pt"
    torch.save(ODD_CHECKPOINTS[kind](torch.load(path, weights_only=True)), path)
    refused(zoo("eval", unfinished), 1, "checkpoint.pt")
    refused(zoo("run", f"resume={unfinished}"), 1, "checkpoint.pt")


def test_other_files_in_the_folder_stay_as_they_are(zoo, unfinished, tmp_path):
    (unfinished / "notes.csv").write_text("day,what\n1,began\n")
    (tmp_path / "elsewhere.txt").write_text("a\nb\n")
    (unfinished / "link.csv").symlink_to(tmp_path / "elsewhere.txt")
    assert zoo("run", f"resume={unfinished}").code == 0
    assert (unfinished / "notes.csv").read_text() == "day,what\n1,began\n"
    assert (tmp_path / "elsewhere.txt").read_text() == "a\nb\n"


def test_damaged_rows_of_a_log_are_dropped(zoo, unfinished, uninterrupted):
    for name in ("metrics.csv", "evaluations.csv"):
        with (unfinished / name).open("ab") as file:
            file.write(b"x,y,z\n\xff\xfe\n100" + b",1" * 100 + b"\n")
    assert zoo("run", f"resume={unfinished}").code == 0
    same(unfinished, uninterrupted)


def test_a_checkpoint_that_holds_code_is_not_run(zoo, unfinished, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    torch.save({"step": 3, "tracked": [Bomb()]}, unfinished / "checkpoint.pt")
    refused(zoo("run", f"resume={unfinished}"), 1, "checkpoint.pt is not a readable checkpoint")
    refused(zoo("eval", unfinished), 1, "checkpoint.pt is not a readable checkpoint")
    assert not (tmp_path / "exploded").exists()


def test_a_dataset_that_has_changed_is_noticed(zoo, unfinished, tmp_path, pendulum_file):
    changed = tmp_path / "changed.hdf5"
    shutil.copy(pendulum_file, changed)
    with h5py.File(changed, "r+") as file:
        file["rewards"][7] += 1
    record = json.loads((unfinished / "run.json").read_text())
    record["config"]["dataset"] = str(changed)
    (unfinished / "run.json").write_text(json.dumps(record))
    refused(zoo("run", f"resume={unfinished}"), 2, "has changed")
    assert (unfinished / "checkpoint.pt").exists()


def test_what_a_run_names_is_found_from_another_folder(zoo, tmp_path, pendulum_file, monkeypatch):
    shutil.copy(pendulum_file, tmp_path / "data.hdf5")
    shutil.copy(pendulum_file, tmp_path / "more.hdf5")
    assert from_folder("50%data.hdf5+more.hdf5+demo", tmp_path) == (
        f"50%{tmp_path}/data.hdf5+{tmp_path}/more.hdf5+demo"
    )
    quick = ("env=pendulum", "eval_episodes=1", "logger=none", "algo.hidden=[8]")
    offline = ("run", *quick, "dataset=50%data.hdf5+more.hdf5", "algo.batch_size=8", "checkpoint_every=2")
    assert zoo(*offline, "algo=edac", "steps=2", "run_dir=critic").code == 0
    attacked = ("corruption=adversarial-obs", "corruption.critic=critic")
    assert zoo(*offline, "algo=bc", "steps=2", "run_dir=before").code == 0
    assert zoo(*offline, "algo=bc", *attacked, "steps=4", "run_dir=run").code == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(record | {"status": "interrupted"}))
    online = ("run", "algo=sac", *quick, "steps=20", "algo.learning_starts=10", "algo.batch_size=8")
    assert zoo(*online, "base=before", "run_dir=corrected").code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = zoo("run", "resume=../run")
    assert resumed.code == 0, resumed.err
    played = zoo("eval", "../corrected")
    assert played.code == 0, played.err


# --- Folders that are taken ---


def test_a_folder_in_use_is_neither_taken_nor_resumed(start, zoo, command, tmp_path):
    run_dir = tmp_path / "run"
    process = start(*command, "steps=1_000_000", "compile=false", f"run_dir={run_dir}")
    process.wait_for(run_dir / "checkpoint.pt")
    refused(zoo(*command, f"run_dir={run_dir}"), 2, "in use")
    refused(zoo("run", f"resume={run_dir}"), 2, "in use")
    assert process.running()


def test_the_first_checkpoint_of_a_run_in_progress_is_waited_for(start, zoo, command, tmp_path):
    run_dir = tmp_path / "run"
    process = start(*command, "steps=1_000_000", "checkpoint_every=1_000_000", "compile=false", f"run_dir={run_dir}")
    process.wait_for(run_dir / "evaluations.csv")
    refused(zoo("eval", run_dir), 1, "in progress", "Wait")
    assert process.running()


def test_a_folder_with_a_run_is_not_taken(zoo, command, uninterrupted, unfinished):
    before = (unfinished / "checkpoint.pt").read_bytes()
    refused(zoo(*command, f"run_dir={uninterrupted}"), 2, "finished run", f"zoo eval {uninterrupted}")
    refused(zoo(*command, f"run_dir={unfinished}"), 2, "unfinished run", f"zoo run resume={unfinished}")
    assert (unfinished / "checkpoint.pt").read_bytes() == before
    (unfinished / "checkpoint.pt").unlink()
    refused(zoo(*command, f"run_dir={unfinished}"), 2, "before its first checkpoint", f"rm -r {unfinished}")


def test_what_is_to_be_typed_is_quoted_for_the_shell(zoo, command, unfinished, tmp_path):
    run_dir = unfinished.rename(tmp_path / "my runs")
    result = zoo(*command, f"run_dir={run_dir}")
    refused(result, 2, "Continue it: zoo run")
    typed = shlex.split(result.err.partition("Continue it: zoo ")[2])
    assert typed == ["run", f"resume={run_dir}"]
    assert zoo(*typed).code == 0


def test_a_link_that_leads_nowhere_is_named(zoo, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").symlink_to(tmp_path / "not-mounted")
    for given in ((), ("run_dir=runs",), ("run_dir=runs/one",)):
        refused(zoo(*command, *given), 1, "runs is a link that leads nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_file_system_without_locks_is_no_hindrance(zoo, command, tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    result = zoo(*command, f"run_dir={tmp_path / 'run'}")
    assert result.code == 0, result.err
    assert "cannot be locked (Function not implemented): see to it that no other process trains there" in result.err
    assert not in_use(tmp_path / "run")


def test_a_folder_with_other_files_is_not_taken(zoo, command, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    refused(zoo(*command, f"run_dir={tmp_path}"), 2, "not an empty folder")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_agent_is_loaded_without_the_replay_buffer(zoo, tmp_path):
    run_dir = tmp_path / "run"
    settings = ("algo=sac", "env=pendulum", "steps=200", "algo.learning_starts=50", "algo.hidden=[8]", "logger=none")
    assert zoo("run", *settings, "eval_episodes=1", f"run_dir={run_dir}").code == 0
    assert torch.load(run_dir / "checkpoint.pt", weights_only=True)["tracked"]["buffer"].keys() == {
        "added", "size", "num_envs", "files"
    }  # fmt: skip
    shutil.rmtree(run_dir / "replay")
    assert zoo("eval", run_dir).code == 0


def test_what_a_checkpoint_holds_is_found_by_its_name_not_by_its_place(zoo, start, tmp_path):
    source = (Path(sac.__file__)).read_text()
    tracked = "run.track(agent=agent, buffer=buffer)"
    assert tracked in source
    file, run_dir = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(source.replace(tracked, "run.track(buffer=buffer)\n    run.track(agent=agent)"))
    settings = ("env=pendulum", "steps=200", "algo.learning_starts=50", "algo.hidden=[8]", "logger=none")
    settings += ("eval_episodes=1", f"run_dir={run_dir}")
    result = subprocess.run([sys.executable, file, *settings], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert zoo("eval", run_dir, "--file", file).code == 0


@pytest.mark.parametrize(
    "older",
    [lambda state: {"tracked": list(state["tracked"].values())}, lambda state: {"drawn": state["prefetched"]}],
    ids=["by position", "other names"],
)
def test_a_checkpoint_of_an_older_version_is_refused_in_one_line(zoo, unfinished, older):
    path = unfinished / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    del state["format"]
    torch.save(state | older(state), path)
    refused(zoo("run", f"resume={unfinished}"), 1, "was written by an older version of the zoo. Start")
    refused(zoo("eval", unfinished), 1, "was written by an older version of the zoo, which can read it;")


# --- What goes wrong on the way ---


def test_a_full_disk_fails_in_one_line_and_keeps_the_checkpoint_before(start, command, tmp_path):
    run_dir = tmp_path / "run"
    settings = ("steps=1_000_000", "compile=false", "algo.hidden=[64]", "log_every=1_000")
    process = start(*command, *settings, f"run_dir={run_dir}")
    process.wait_for(run_dir / "checkpoint.pt")
    checkpoint_size = (run_dir / "checkpoint.pt").stat().st_size
    limit = 20_000  # bytes a file: room for the CSV files, not for a checkpoint
    assert checkpoint_size > limit
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    refused(process.wait(), 1, "cannot write", "checkpoint.pt")
    assert torch.load(run_dir / "checkpoint.pt", weights_only=True)["step"] % 20 == 0
    assert not list(run_dir.glob("*.partial"))
    assert status(run_dir) == "failed"


def test_a_diverging_run_fails_in_one_line_and_leaves_its_state(zoo, command, tmp_path):
    result = zoo(*command, "algo.critic_lr=1e30", "run_dir=run")
    refused(result, 1, "diverged", "loss", "diverged.pt")
    assert torch.load(tmp_path / "run" / "diverged.pt", weights_only=True)["step"] == 10
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "failed"
    assert "diverged" in record["error"]


def test_rewards_too_large_to_square_are_a_divergence_too(zoo, command, tmp_path, pendulum_file):
    huge = tmp_path / "huge.hdf5"
    shutil.copy(pendulum_file, huge)
    with h5py.File(huge, "r+") as file:
        file["rewards"][...] = 1e30
    result = zoo(*command, f"dataset={huge}", "algo.normalize_reward=false", "sampler=uniform", "run_dir=run")
    refused(result, 1, "diverged", "critic_loss")
