"""Runs in MuJoCo Warp: when they read the device, what they record, and that they resume exactly."""

import csv
import json
import signal
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.envs import EnvConfig, resolve_backend, warp
from zoo.envs.warp import WarpEnvs
from zoo.errors import RunError
from zoo.runs.tensor_stepper import TensorStepper

HOPPER = ("env=hopper", "env.backend=warp", "eval_episodes=2", "logger=none", "algo.hidden=[16]")
PPO = ("algo=ppo", *HOPPER, "num_envs=8", "algo.num_steps=16", "algo.minibatches=4", "log_every=128")
OFF_POLICY = (*HOPPER, "num_envs=4", "algo.learning_starts=40", "algo.batch_size=32", "log_every=40")
SAC = ("algo=sac", *OFF_POLICY)


def stepper(num_envs: int, episodes: list[tuple[float, float]], **settings: int) -> TensorStepper:
    pytest.importorskip("mujoco_warp")
    envs = WarpEnvs(EnvConfig("Hopper-v5", **settings), num_envs, torch.device("cpu"))
    return TensorStepper(envs, 0, lambda *one: episodes.append(one[:2]))


class Reads(TorchDispatchMode):
    """Counts operations that wait for a device: those that read a value, or whose result's shape depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.name() in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select")
        return func(*args, **(kwargs or {}))


def test_a_step_reads_nothing_from_the_device():
    envs = stepper(8, [])
    with Reads() as reads:
        ended = sum(envs.step(envs.random_action()).terminated for _ in range(40))
    assert reads.count == 0
    assert (ended > 0).all()
    with Reads() as reads:
        envs.report()
    assert reads.count > 0


def test_returns_and_lengths_are_of_the_episodes_that_have_ended_since_the_last_report():
    episodes: list[tuple[float, float]] = []
    envs = stepper(4, episodes, max_episode_steps=9)
    expected, running = [], torch.zeros(4, 2, dtype=torch.float64)
    for step in range(1, 41):
        _, _, reward, _, terminated, truncated = envs.step(envs.random_action())
        running += torch.stack([reward.double(), torch.ones(4)], 1)
        for i in (terminated | truncated).nonzero().flatten():
            expected.append(running[i].tolist())
            running[i] = 0
        if step % 20 == 0:
            envs.report()
            assert episodes.pop() == pytest.approx(torch.tensor(expected).mean(0).tolist(), rel=1e-5)
            expected.clear()
    envs.report()
    assert not episodes  # none has ended since


def test_what_is_not_finite_ends_the_run():
    envs = stepper(4, [])
    envs.step(torch.full((4, 3), 0.5))
    envs.report()
    envs.step(torch.full((4, 3), torch.nan))
    envs.step(torch.full((4, 3), 0.5))
    with pytest.raises(RunError, match="NaN or infinite"):
        envs.report()


def metrics(run_dir) -> list[list[str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [[value for key, value in row.items() if key not in ("seconds", "steps_per_second")] for row in rows]


@pytest.mark.slow
def test_two_runs_of_one_seed_are_equal_and_another_seeds_is_not(zoo, tmp_path):
    pytest.importorskip("mujoco_warp")
    runs = {}
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        result = zoo("run", *PPO, "steps=512", f"seed={seed}", f"run_dir={tmp_path / name}")
        assert result.code == 0, result.err
        assert "Warp" not in result.out + result.err
        assert json.loads((tmp_path / name / "run.json").read_text())["config"]["env"]["backend"] == "warp"
        runs[name] = metrics(tmp_path / name), (tmp_path / name / "evaluations.csv").read_text()
    assert runs["one"] == runs["two"]
    assert runs["one"] != runs["three"]
    assert len(runs["one"][0]) == 4
    assert zoo("eval", tmp_path / "one", "--episodes", "1").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        (*PPO, "steps=2048", "checkpoint_every=200"),
        (*SAC, "steps=800", "checkpoint_every=100"),
    ],
    ids=["ppo", "sac"],
)
def test_a_killed_run_goes_on_in_the_middle_of_its_episodes(start, zoo, tmp_path, settings):
    pytest.importorskip("mujoco_warp")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert zoo("run", *settings, f"run_dir={whole}").code == 0
    process = start("run", *settings, f"run_dir={killed}")
    process.wait_for(killed / "checkpoint.pt")
    process.kill()
    assert process.wait().code == -signal.SIGKILL, "the run was over before it could be killed"
    result = zoo("run", f"resume={killed}")
    assert result.code == 0, result.err
    assert "new ones begin" not in result.out
    one, other = (torch.load(path / "checkpoint.pt", weights_only=True) for path in (whole, killed))
    for part in ("tracked", "envs", "rng"):
        same(one[part], other[part])
    assert metrics(whole) == metrics(killed)
    assert (whole / "evaluations.csv").read_text() == (killed / "evaluations.csv").read_text()


def same(one, other) -> None:
    """Whether both are equal, with tensors compared bit for bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.slow
def test_td3_trains_there_too(zoo, tmp_path):
    pytest.importorskip("mujoco_warp")
    result = zoo("run", "algo=td3", *OFF_POLICY, "steps=80", f"run_dir={tmp_path / 'run'}")
    assert result.code == 0, result.err
    assert len(metrics(tmp_path / "run")) == 2


@pytest.mark.parametrize("environment", ["pendulum", "Pusher-v5", "pong"])
def test_an_environment_that_warp_does_not_have_is_refused_with_those_it_has(zoo, tmp_path, environment):
    result = zoo("run", "algo=ppo", f"env={environment}", "env.backend=warp")
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert "env.backend=warp does not have" in result.err
    assert "Hopper-v5" in result.err
    assert not list(tmp_path.iterdir())


def test_without_the_extra_it_is_named_and_nothing_is_left(zoo, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    result = zoo("run", *PPO, "steps=128")
    assert result.code == 2
    assert result.err == "zoo: env=Hopper-v5 in MuJoCo Warp needs mujoco_warp. Type: pip install 'rl-zoo[warp]'\n"
    assert not list(tmp_path.iterdir())


def test_auto_is_never_warp():
    assert resolve_backend(EnvConfig("Hopper-v5")) in ("envpool", "gymnasium")
    assert resolve_backend(EnvConfig("Hopper-v5", backend="warp")) == "warp"


def test_kernels_are_kept_in_one_folder_of_the_process_where_the_cache_cannot_be_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(warp, "cache_dir", lambda: tmp_path / "file")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    warp._kernels.cache_clear()
    try:
        folders = {warp._kernels() for _ in range(2)}
        assert folders == {str(path) for path in tmp_path.iterdir() if path.is_dir()}
        assert capsys.readouterr().err.count("cannot be written") == 1
    finally:
        warp._kernels.cache_clear()
