"""The files of a run, and loading the trained policy from them."""

import csv
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import zoo as package
from zoo import checkpoint
from zoo.agent import Agent, Policy
from zoo.commands import run as commands_run
from zoo.envs import EnvConfig, make
from zoo.errors import Interrupted, RunError, UsageError
from zoo.runs.device import enough_memory, restore_rng
from zoo.runs.evaluation import seeds
from zoo.runs.interruption import Interruption
from zoo.runs.logging import CsvLog, Latest, Logger
from zoo.runs.record import evaluated
from zoo.runs.stepper import EnvStepper
from zoo.settings.fit import far_from_unit
from zoo.settings.registry import folder
from zoo.spec import Spec


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- The folder ---


def test_run_json_says_what_is_needed_to_repeat_the_run(finished, pendulum_file):
    record = json.loads((finished / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["config"]["algo"]["expectile"] == 0.7
    assert record["config"]["algo"]["normalize_obs"] is True
    assert record["config"]["env"]["id"] == "Pendulum-v1"
    assert record["config"]["seed"] == 3
    assert record["versions"]["torch"] == torch.__version__
    assert {"zoo", "python", "gymnasium", "mujoco", "numpy", "minari"} <= set(record["versions"])
    assert record["commit"] is None or re.fullmatch("[0-9a-f]{40}", record["commit"])
    assert re.fullmatch("[0-9a-f]{64}", record["code"])
    assert record["hardware"]["cpus"] == os.cpu_count()
    if platform.machine() == "x86_64" and shutil.which("lscpu"):
        reported = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
        fields = "Model name", "CPU family", "Model"
        name, family, model = (re.search(rf"^{field}: +(.+)$", reported, re.MULTILINE)[1] for field in fields)
        assert record["hardware"]["processor"] == f"{name} (cpu family {family}, model {model})"
    assert record["started"] <= record["ended"]
    assert record["dataset"]["transitions"] == 2_000
    assert record["dataset"]["episodes"] == 10
    assert record["dataset"]["sources"][0]["path"] == str(pendulum_file)
    assert re.fullmatch("[0-9a-f]{16,}", record["dataset"]["fingerprint"])


def test_config_yaml_holds_every_resolved_setting(finished):
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config == json.loads((finished / "run.json").read_text())["config"]


def test_metrics_csv_has_a_row_whenever_one_is_due(finished):
    metrics = rows(finished / "metrics.csv")
    assert [int(row["step"]) for row in metrics] == [50, 100, 150, 200, 250, 300]
    assert {"seconds", "steps_per_second", "value_loss", "critic_loss", "actor_loss"} <= set(metrics[0])
    assert all(np.isfinite(float(value)) for row in metrics for value in row.values())


def test_evaluations_csv_holds_the_return_of_every_episode_and_the_score_of_their_mean(finished):
    evaluations = rows(finished / "evaluations.csv")
    assert [int(row["step"]) for row in evaluations] == [100, 200, 300]
    for row in evaluations:
        returns = [float(value) for value in row["returns"].split()]
        assert len(returns) == 2
        assert float(row["return_mean"]) == pytest.approx(np.mean(returns))
        assert float(row["return_std"]) == pytest.approx(np.std(returns), abs=1e-5)
        assert float(row["score"]) == pytest.approx(100 * (np.mean(returns) + 1207.6) / (-156.995 + 1207.6))
        assert float(row["length_mean"]) == 200


def test_tensorboard_reads_the_same_numbers(finished):
    events = EventAccumulator(str(finished))
    events.Reload()
    means = [(event.step, event.value) for event in events.Scalars("eval/return_mean")]
    expected = [(int(row["step"]), float(row["return_mean"])) for row in rows(finished / "evaluations.csv")]
    np.testing.assert_allclose(means, expected, rtol=1e-6)
    losses = [event.value for event in events.Scalars("train/critic_loss")]
    np.testing.assert_allclose(losses, [float(row["critic_loss"]) for row in rows(finished / "metrics.csv")], rtol=1e-6)


def test_checkpoint_is_read_without_pickle_and_nothing_half_written_is_left(finished):
    state = torch.load(finished / "checkpoint.pt", weights_only=True)
    assert state["step"] == 300
    assert not list(finished.glob("*.partial"))


def test_keeps_the_agent_of_every_evaluation_if_asked_to(finished):
    kept = {path.name for path in (finished / "agents").iterdir()}
    assert kept == {"100.pt", "200.pt", "300.pt"}
    last = torch.load(finished / "agents" / "300.pt", weights_only=True)
    tracked = torch.load(finished / "checkpoint.pt", weights_only=True)["tracked"]["agent"]
    assert all(torch.equal(last[key], tracked[key]) for key in last if isinstance(last[key], torch.Tensor))


@pytest.mark.slow
@pytest.mark.parametrize("logger", ["wandb", "tensorboard+wandb"])
def test_wandb_offline_writes_its_run_into_the_runs_folder(start, tmp_path, pendulum_file, logger):
    run_dir = tmp_path / "random+10%expert"  # as a mixture's run is named, which W&B takes for no id
    result = start(
        "run", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "steps=20", "eval_episodes=1", f"logger={logger}",
        f"run_dir={run_dir}", "algo.hidden=[8]", environment={"WANDB_MODE": "offline"},
    ).wait()  # fmt: skip
    assert result.code == 0, result.err
    assert len(list(run_dir.glob("wandb/offline-run-*/*.wandb"))) == 1
    assert bool(list(run_dir.glob("events.out.tfevents.*"))) == ("tensorboard" in logger)


RECORD = {"config": {}, "id": "x"}


def reopened(folder: Path, step: int, stages: dict[str, int]) -> Logger:
    """A logger of a later second, as a resumed run's is: TensorBoard orders files by the second in their names."""
    time.sleep(1 - time.time() % 1 + 0.01)
    return Logger(folder, ["tensorboard"], RECORD, step, stages)


def test_what_is_logged_to_wandb_has_axes_of_its_own_so_that_a_later_stage_is_not_dropped(tmp_path, monkeypatch):
    rows: list[dict[str, float]] = []
    axes: dict[str, str] = {}

    class Fake:
        init = staticmethod(lambda **settings: Fake)
        log = staticmethod(rows.append)
        define_metric = staticmethod(lambda name, step_metric: axes.update({name: step_metric}))

    monkeypatch.setitem(sys.modules, "wandb", Fake)
    logger = Logger(tmp_path, ["wandb"], RECORD, 0)
    for stage in ("dynamics", "behavior"):
        for done in (1, 2):
            logger.stage(stage, done, {"loss": 0.5}, 1.0)
    logger.metrics(1, {"loss": 0.25}, 1.0, 1.0)
    logger.evaluation(1, {"return_mean": 3.0})
    reported = [{key: value for key, value in row.items() if "second" not in key} for row in rows]
    assert reported == [
        {"dynamics/pass": 1, "dynamics/loss": 0.5}, {"dynamics/pass": 2, "dynamics/loss": 0.5},
        {"behavior/pass": 1, "behavior/loss": 0.5}, {"behavior/pass": 2, "behavior/loss": 0.5},
        {"step": 1, "train/loss": 0.25}, {"step": 1, "eval/return_mean": 3.0},
    ]  # fmt: skip
    assert axes == {"train/*": "step", "eval/*": "step", "dynamics/*": "dynamics/pass", "behavior/*": "behavior/pass"}


def test_tensorboard_shows_what_was_done_before_the_checkpoint_and_not_what_was_lost(tmp_path):
    logger = Logger(tmp_path, ["tensorboard"], RECORD, 0)
    for step in (10, 20, 30):
        logger.metrics(step, {"loss": step}, 1.0, 1.0)
    logger.close()
    resumed = reopened(tmp_path, 20, {})
    resumed.metrics(40, {"loss": 40}, 1.0, 1.0)
    resumed.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [10, 20, 40]


def test_tensorboard_shows_earlier_stages_after_a_resumption(tmp_path):
    logger = Logger(tmp_path, ["tensorboard"], RECORD, 0)
    for done in range(1, 11):
        logger.stage("dynamics", done, {"loss": 1 / done}, 1.0)
    logger.close()
    reopened(tmp_path, 2, {"dynamics": 10}).close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("dynamics/loss")][-10:] == [
        (done, pytest.approx(1 / done)) for done in range(1, 11)
    ]


def test_tensorboard_shows_no_pass_of_a_stage_twice(tmp_path):
    """The run was killed after its third pass was logged, before its checkpoint."""
    logger = Logger(tmp_path, ["tensorboard"], RECORD, 0)
    for done in (1, 2, 3):
        logger.stage("dynamics", done, {"loss": done}, 1.0)
    logger.close()
    resumed = reopened(tmp_path, 0, {"dynamics": 2})
    for done in (3, 4):
        resumed.stage("dynamics", done, {"loss": 10 * done}, 1.0)
    resumed.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    shown = {event.step: event.value for event in events.Scalars("dynamics/loss")}
    assert shown == {1: 1, 2: 2, 3: 30, 4: 40}
    assert len(events.Scalars("dynamics/loss")[-4:]) == 4
    assert [event.step for event in events.Scalars("dynamics/loss")] == [1, 2, 3, 4]


def test_trackers_are_sent_nothing_twice_and_know_a_run_in_the_working_directory_by_its_name(tmp_path, monkeypatch):
    rows: list[int] = []
    names: list[str] = []

    class Fake:
        init = staticmethod(lambda **settings: names.append(settings["name"]) or Fake)
        log = staticmethod(lambda row: rows.append(row.get("step") or -row["dynamics/pass"]))
        define_metric = staticmethod(lambda name, step_metric: None)

    monkeypatch.setitem(sys.modules, "wandb", Fake)
    monkeypatch.chdir(tmp_path)
    logger = Logger(tmp_path, ["wandb"], RECORD, 0)
    for done in (1, 2):
        logger.stage("dynamics", done, {"loss": 1.0}, 1.0)
    for step in (50, 100, 150, 200):
        logger.metrics(step, {"loss": 1.0}, 1.0, 1.0)
    logger.evaluation(100, {"return_mean": 3.0})
    assert rows == [-1, -2, 50, 100, 150, 200, 100]
    rows.clear()
    resumed = Logger(Path(), ["wandb"], RECORD, 100, stages={"dynamics": 2})
    for step in (150, 200, 250):
        resumed.metrics(step, {"loss": 2.0}, 1.0, 1.0)
    resumed.evaluation(200, {"return_mean": 4.0})
    assert rows == [250, 200]
    assert names == [tmp_path.name] * 2


def test_wandb_that_cannot_start_fails_in_one_line_and_leaves_nothing(start, tmp_path, pendulum_file):
    result = start(
        "run", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "logger=wandb", f"run_dir={tmp_path / 'run'}",
        environment={"WANDB_MODE": "online", "WANDB_API_KEY": "", "HOME": str(tmp_path), "NETRC": str(tmp_path / "no")},
    ).wait()  # fmt: skip
    assert result.code == 1
    assert re.fullmatch(r"zoo: logger=wandb cannot start[^\n]+WANDB_MODE=offline[^\n]*\n", result.err), result.err
    assert not (tmp_path / "run").exists()


# --- The policy ---


def test_loaded_policy_acts_on_raw_observations_as_the_evaluation_did(finished):
    policy = package.load(finished)
    recorded = rows(finished / "evaluations.csv")[-1]["returns"].split()
    env = gymnasium.make("Pendulum-v1")
    for seed, expected in zip(seeds("evaluation", 3, count=len(recorded)), recorded, strict=True):
        obs, _ = env.reset(seed=seed)
        episode_return, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            episode_return, ended = episode_return + float(reward), terminated or truncated
        assert episode_return == pytest.approx(float(expected), abs=0.05)


def test_policy_gives_one_action_for_one_observation_and_a_batch_for_a_batch(finished):
    policy = package.load(str(finished))
    obs = np.random.default_rng(0).normal(size=(5, 3))
    batch = policy.act(obs)
    assert batch.shape == (5, 1)
    assert policy.act(obs[2]).shape == (1,)
    np.testing.assert_allclose(policy.act(obs[2]), batch[2], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(policy.act(obs), batch)
    assert not np.array_equal(policy.act(obs, explore=True), policy.act(obs, explore=True))


def test_policy_takes_numpys_usual_numbers_and_batches_of_one_dimension(finished):
    policy = package.load(finished)
    obs = np.zeros((4, 3))
    assert policy.expected_return(obs, np.zeros((4, 1))).shape == (4,)
    with pytest.raises(ValueError, match=re.escape("must be one of shape [3] or a batch, not [2, 4, 3]")):
        policy.act(np.zeros((2, 4, 3)))
    with pytest.raises(TypeError, match="acts and predicts nothing: use act"):
        policy.predict(obs)


def test_an_agent_is_only_ever_given_batches():
    class Echo(Agent):
        spec = Spec((2, 2), num_actions=3)

        def __init__(self):
            super().__init__()
            self.parameter = torch.nn.Parameter(torch.zeros(()))

        def act(self, obs, explore=False):
            assert obs.ndim == 3
            return obs.sum((1, 2)).long()

    policy = Policy(Echo())
    assert policy.act(np.ones((2, 2))) == 4
    assert policy.act(np.ones((5, 2, 2))).tolist() == [4] * 5


def test_normalization_is_part_of_the_loaded_policy(finished, pendulum_file):
    import h5py

    with h5py.File(pendulum_file) as file:
        obs = file["observations"][()]
    normalizer = package.load(finished).agent.normalizer
    np.testing.assert_allclose(normalizer.mean, obs.mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(normalizer.std, obs.std(0) + 1e-3, rtol=1e-3)


def test_eval_prints_the_mean_return_of_the_runs_last_evaluation(finished, zoo):
    result = zoo("eval", finished, "--episodes", "2")
    assert result.code == 0, result.err
    mean = re.search(r"mean\s+return\s+(-?[\d.]+)", result.out)
    assert mean is not None
    assert float(mean[1]) == pytest.approx(float(rows(finished / "evaluations.csv")[-1]["return_mean"]), abs=0.01)


def test_eval_with_another_seed_plays_other_episodes(finished, zoo):
    assert zoo("eval", finished, "--episodes", "2", "--seed", "99").out != zoo("eval", finished, "--episodes", "2").out


# --- From Python ---


def test_train_from_python_takes_every_setting(tmp_path, pendulum_file):
    run = package.train(
        "bc", env="pendulum", dataset=pendulum_file, steps=30, eval_episodes=2, logger="none", seed=5,
        run_dir=tmp_path / "a folder, with a comma", algo_config={"hidden": [8, 8], "lr": 1e-2, "normalize_obs": False},
    )  # fmt: skip
    assert run.config.algo.hidden == [8, 8]
    assert run.config.algo.lr == 1e-2
    assert run.config.seed == 5
    step, episodes = run.evaluations[-1]
    assert step == 30
    assert episodes.returns.shape == (2,)
    assert not (run.dir / "agents").exists()
    policy = package.load(run.dir)
    assert [layer.out_features for layer in policy.agent.actor.net if hasattr(layer, "out_features")] == [8, 8, 1]


def test_train_from_python_leaves_pytorch_as_it_was(tmp_path, pendulum_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads, precision, dtype = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_default_dtype()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("high")
    torch.set_default_dtype(torch.float64)
    torch.set_flush_denormal(False)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    try:
        run = package.train(
            "bc", env="pendulum", dataset=pendulum_file, steps=5, eval_episodes=1, logger="none", run_dir="here",
            threads=1, algo_config={"hidden": [8]},
        )  # fmt: skip
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.get_default_dtype() == torch.float64
        assert (torch.tensor([1e-40], dtype=torch.float32) * 1).item() > 0
        assert torch.equal(torch.rand(3), expected)
        assert package.load(run.dir).agent.actor.net[0].weight.dtype == torch.float32
        monkeypatch.chdir("/")
        assert run.evaluations[-1][0] == 5
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.set_default_dtype(dtype)
        torch.set_flush_denormal(True)


def test_train_from_python_raises_what_the_command_would_say(tmp_path, pendulum_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="evry"):
        package.train("bc", env="pendulum", dataset=pendulum_file, evry=3)
    with pytest.raises(UsageError, match=r"algo\.lr"):
        package.train("bc", env="pendulum", dataset=pendulum_file, algo_config={"rl": 1.0})
    with pytest.raises(UsageError, match="algo_config=3 must be a dictionary"):
        package.train("bc", env="pendulum", dataset=pendulum_file, algo_config=3)
    with pytest.raises(UsageError, match="resume"):
        package.train("bc", env="pendulum", resume=tmp_path)
    with pytest.raises(UsageError, match="env is the name of an environment, not of type TimeLimit: "):
        package.train("bc", env=gymnasium.make("MountainCarContinuous-v0"))
    with pytest.raises(UsageError, match=r"algo\.lr cannot be of type object: settings are names, numbers"):
        package.train("bc", env="pendulum", algo_config={"lr": object()})
    assert not list(tmp_path.iterdir())


def test_settings_may_be_numpys_numbers(tmp_path, pendulum_file):
    own = {"hidden": np.array([8, 4]), "lr": np.float32(0.5), "batch_size": torch.tensor(8)}
    run = package.train(
        "bc", env="pendulum", dataset=pendulum_file, steps=np.int64(2), eval_episodes=1, logger="none",
        run_dir=tmp_path / "run", algo_config=own,
    )  # fmt: skip
    assert (run.config.steps, run.config.algo.hidden, run.config.algo.lr) == (2, [8, 4], 0.5)


def test_load_refuses_what_is_not_a_run(tmp_path):
    with pytest.raises(UsageError, match="not the folder of a run"):
        package.load(tmp_path)


@pytest.mark.parametrize("record", ["[]", "{}", '{"config": 3}', '{"config": {}}', '{"peer": "SB3", "config": {}}'])
def test_load_refuses_a_record_that_is_no_runs(tmp_path, record):
    (tmp_path / "run.json").write_text(record)
    with pytest.raises(UsageError, match=r"is not the folder of a run|holds results of SB3 only"):
        package.load(tmp_path)


def test_a_checkpoint_made_without_a_gpu_goes_on_with_one():
    restore_rng({"cpu": torch.get_rng_state()}, torch.device("cuda"))


# as PyTorch says it
FULL = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 3.50 GiB is "
    "free. Process 1 has 75.64 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch."
)


@pytest.mark.parametrize("together", [False, True])
def test_a_full_gpu_is_a_failure_in_a_line_that_says_what_to_lower(zoo, pendulum_file, monkeypatch, together):
    def update(self, batch):
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr("zoo.algos.bc.BC.update", update)
    settings = ["algo=bc", "env=pendulum", f"dataset={pendulum_file}", "steps=20", "eval_episodes=1", "logger=none"]
    result = zoo("run", *settings, *(["seeds=2"] if together else []), "run_dir=run")
    assert result.code == 1
    assert result.err == (
        "zoo: the GPU is full: 20.00 GiB was asked for, 3.50 GiB of 79.15 GiB is free. Lower what takes memory "
        "(algo.batch_size, algo.hidden, algo.buffer_size, num_envs, seeds), or give device=cpu\n"
    )


def test_a_buffer_larger_than_the_memory_is_a_failure_in_a_line_too(zoo):
    result = zoo("run", "algo=sac", "env=pendulum", "algo.buffer_size=10_000_000_000_000", "logger=none", "run_dir=run")
    assert result.code == 1
    assert "the memory is full: 111,758.7 GiB were asked for. Lower what takes memory (algo.batch_size" in result.err
    assert result.err.count("\n") == 1
    assert not Path("run").exists()


def test_a_gpu_without_room_for_a_context_is_full_and_other_errors_stay_what_they_are():
    with pytest.raises(RunError, match=r"the GPU is full: more was asked for\. Lower"), enough_memory():
        raise RuntimeError("CUDA error: out of memory")
    with pytest.raises(RuntimeError, match="shapes"), enough_memory():
        raise RuntimeError("shapes")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_on_a_gpu_records_the_most_memory_that_it_had(zoo, pendulum_file):
    settings = ["algo=bc", "env=pendulum", f"dataset={pendulum_file}", "steps=20", "eval_episodes=1", "logger=none"]
    assert zoo("run", *settings, "device=cuda", "run_dir=run").code == 0
    assert json.loads(Path("run/run.json").read_text())["gpu_memory"] > 0


def test_a_policy_that_gives_no_number_is_said_to_have_diverged():
    envs = EnvStepper(make(EnvConfig("Pendulum-v1", backend="gymnasium"), 1), 0, torch.device("cpu"), lambda *_: None)
    with pytest.raises(RunError, match="the run diverged: its policy gave an action that is NaN or infinite"):
        envs.step(torch.tensor([[torch.nan]]))


def test_load_of_a_run_without_its_checkpoint_says_so(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "checkpoint.pt").unlink()
    with pytest.raises(RunError, match=r"checkpoint\.pt does not exist"):
        package.load(tmp_path / "run")


def test_any_gymnasium_id_works_even_one_with_a_namespace(zoo, tmp_path):
    gymnasium.register("nowhere/Swing-v3", "gymnasium.envs.classic_control:PendulumEnv", max_episode_steps=20)
    try:
        run = package.train(
            "sac", env="nowhere/Swing-v3", steps=60, eval_episodes=1, logger="none", run_dir=tmp_path / "run",
            algo_config={"learning_starts": 30, "hidden": [8]},
        )  # fmt: skip
        assert package.load(run.dir).act(np.zeros(3)).shape == (1,)
        assert rows(run.dir / "evaluations.csv")[-1]["score"] == ""  # no reference scores
    finally:
        del gymnasium.registry["nowhere/Swing-v3"]
    result = zoo("eval", tmp_path / "run")
    assert result.code == 2
    assert "env=nowhere/Swing-v3, in which it was trained, is not registered. Import the module that does" in result.err


# --- Several runs ---


def test_multirun_makes_one_folder_a_combination(zoo, tmp_path, pendulum_file):
    result = zoo(
        "run", "-m", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "steps=10", "eval_episodes=1",
        "logger=none", "seed=0,1", "algo.lr=0.1,0.01", "algo.hidden=[8]",
    )  # fmt: skip
    assert result.code == 0, result.err
    made = [json.loads(path.read_text())["config"] for path in tmp_path.glob("runs/pendulum/*/run.json")]
    assert {(c["seed"], c["algo"]["lr"]) for c in made} == {(0, 0.1), (0, 0.01), (1, 0.1), (1, 0.01)}


def test_an_interrupted_multirun_names_the_runs_that_were_not_begun(zoo, tmp_path, pendulum_file, monkeypatch):
    def interrupt(*_):
        raise Interrupted("interrupted; zoo run resume=x")

    monkeypatch.setattr(commands_run, "_train", interrupt)
    result = zoo("run", "-m", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "seed=0,1,2")
    assert result.code == 130
    begun, *others = result.err.splitlines()
    assert "resume=x" in begun
    command = f"zoo: not begun: zoo run algo=bc env=pendulum dataset={pendulum_file}"
    assert others == [f"{command} seed=1", f"{command} seed=2"]


def test_a_multirun_ends_too_where_a_run_was_interrupted_in_its_last_evaluation(
    zoo, tmp_path, pendulum_file, monkeypatch
):
    begun = []

    def finish(*_):
        begun.append(Interruption())
        Interruption.came = len(begun) == 2
        return 0

    monkeypatch.setattr(commands_run, "_train", finish)
    result = zoo("run", "-m", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "seed=0,1,2,3")
    assert result.code == 130
    assert len(begun) == 2
    assert [line[-6:] for line in result.err.splitlines()] == ["seed=2", "seed=3"]
    Interruption()


def test_multirun_finds_a_typing_error_in_the_last_run_before_the_first_begins(zoo, tmp_path, pendulum_file):
    result = zoo("run", "-m", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "steps=10,0")
    assert result.code == 2
    assert "steps=0" in result.err
    assert not list(tmp_path.iterdir())


def test_a_runs_folder_tells_its_sampler_and_corruption(zoo, tmp_path, pendulum_file):
    run = ("run", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "steps=2", "eval_episodes=1", "logger=none")
    assert zoo(*run).code == 0
    assert zoo(*run, "sampler=top", "corruption=random-obs").code == 0
    stem = pendulum_file.stem
    names = sorted(path.name.partition("-seed0-")[0] for path in tmp_path.glob("runs/pendulum/*"))
    assert names == [f"bc-{stem}", f"bc-{stem}-top-random-obs"]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        ((-1.0, -0.4), (1.0, 0.4), None),
        ((-1.0, 0.0), (1.0, 400.0), "actions range from -1 to 400: "),
        ((-1e-3,), (1e-3,), "actions range from -0.001 to 0.001: "),
        ((), (), None),  # discrete
    ],
)
def test_actions_that_critics_hardly_learn_from_are_named(low, high, said):
    lines = far_from_unit(Spec((3,), low, high, num_actions=None if low else 2))
    assert [line.startswith(said) and "RescaleAction" in line for line in lines] == ([True] if said else [])


def test_settings_without_effect_are_named(zoo, tmp_path, pendulum_file):
    bc = ("run", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "steps=2", "eval_episodes=1", "logger=none")
    for arguments, notes in (
        (["sampler=top", "sampler.alpha=0.5"], ["sampler.alpha=0.5 does nothing with sampler=top"]),
        (["sampler=return", "sampler.fraction=0.5"], ["sampler.fraction=0.5 does nothing with sampler=return"]),
        (["sampler=top", "sampler.fraction=0.5"], []),
        (
            ["corruption=random-obs", "corruption.critic=x"],
            ["corruption.critic=x does nothing with corruption=random-obs"],
        ),
        (["corruption=none", "corruption.rate=0.5"], ["corruption.rate=0.5 does nothing with corruption=none"]),
        (["env.changed_in=evaluation"], ["env.changed_in=evaluation does nothing with the environment as it is"]),
    ):
        result = zoo(*bc, *arguments, f"run_dir={len(list(tmp_path.iterdir()))}")
        assert result.code == 0, result.err
        assert [line for line in result.out.splitlines() if "does nothing" in line] == notes


def test_an_environment_without_a_time_limit_is_named(zoo):
    gymnasium.register("Falling-v0", "gymnasium.envs.classic_control:CartPoleEnv")
    dqn = ("run", "algo=dqn", "env=Falling-v0", "steps=20", "algo.learning_starts=10", "eval_episodes=1", "logger=none")
    for limit, named in (([], True), (["env.max_episode_steps=5"], False)):
        result = zoo(*dqn, *limit, f"run_dir={named}")
        assert result.code == 0, result.err
        assert ("no time limit is known of falling" in result.out) is named


def test_multirun_into_one_folder_is_refused_at_once(zoo, tmp_path, pendulum_file):
    result = zoo("run", "-m", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "run_dir=one", "seed=0,1")
    assert result.code == 2
    assert "Leave run_dir out" in result.err
    assert not list(tmp_path.iterdir())


# --- An algorithm file that a user copied ---


@pytest.fixture(scope="module")
def edited_run(tmp_path_factory, pendulum_file) -> tuple[Path, Path]:
    """A run of an edited copy of IQL, started as a script from another folder; and the copy."""
    base = tmp_path_factory.mktemp("elsewhere")
    source = (folder("algos") / "iql.py").read_text()
    edited = source.replace("run.log(", 'run.log({"edited": torch.tensor(42.0)} | ')
    edited = edited.replace("class Config:\n", "class Config:\n    patience: int = 7  # steps\n")
    assert edited.count("patience") == edited.count('"edited"') == 1
    (base / "mine.py").write_text(edited)
    arguments = ["algo.patience=8", "env=pendulum", f"dataset={pendulum_file}", "steps=20", "eval_episodes=2"]
    done = subprocess.run(
        [sys.executable, "mine.py", *arguments, "logger=none", "run_dir=run", "algo.hidden=[8]"],
        cwd=base, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"zoo eval run --file {base / 'mine.py'}" in done.stdout
    return base / "run", base / "mine.py"


def test_an_edited_copy_runs_as_a_script_and_the_edit_takes_effect(edited_run):
    run_dir, _ = edited_run
    assert {row["edited"] for row in rows(run_dir / "metrics.csv")} == {"42.0"}
    assert json.loads((run_dir / "run.json").read_text())["config"]["algo"]["patience"] == 8


def test_eval_of_a_copys_run_needs_the_file_and_says_so(edited_run, zoo):
    run_dir, file = edited_run
    refused = zoo("eval", run_dir)
    assert refused.code == 2
    assert f"--file {file}" in refused.err
    assert "Continue it" not in refused.err, "it has finished"
    result = zoo("eval", run_dir, "--episodes", "2", "--file", file)
    assert result.code == 0, result.err
    mean = float(rows(run_dir / "evaluations.csv")[-1]["return_mean"])
    assert f"{mean:.2f}" in result.out
    assert package.load(run_dir, file).act(np.zeros(3)).shape == (1,)


def test_a_copy_begins_with_what_it_has_trained_and_commands_name_it(edited_run, pendulum_file):
    run_dir, file = edited_run

    def run(*arguments: str, file: Path = file) -> tuple[int, str]:
        command = [sys.executable, file, "env=pendulum", f"dataset={pendulum_file}", "steps=5", "eval_episodes=1"]
        command += ["logger=none", "algo.hidden=[8]", *arguments]
        done = subprocess.run(command, cwd=run_dir.parent, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    code, said = run("run_dir=next", "init_from=run")
    assert code == 0, said
    assert "init_from=run: begins with" in said
    elsewhere = run_dir.parent / "elsewhere" / file.name
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(file.read_bytes())
    assert run("run_dir=moved", "init_from=run", file=elsewhere)[0] == 0
    elsewhere.write_text(file.read_text() + "\nCHANGED = True\n")
    assert "which is neither this file nor one of the zoo's" in run("run_dir=not", "init_from=run", file=elsewhere)[1]
    assert f"see it: zoo eval run --file {file}" in run("run_dir=run")[1]
    resumed = subprocess.run(
        [sys.executable, file, "resume=run"], cwd=run_dir.parent, capture_output=True, text=True, check=False
    )
    assert f"See it: zoo eval run --file {file}" in resumed.stderr


def test_a_file_runs_no_other_algorithm(edited_run):
    done = subprocess.run(
        [sys.executable, edited_run[1], "algo=sac", "env=pendulum"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "zoo: algo=sac: the algorithm is mine.py. Leave algo out.\n"


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda source: "class Config: pass", "has no dataclass Config"),
        (lambda source: f"{source}\n\nclass Other(IQL): pass\n", "defines 2 agents"),
    ],
)
def test_eval_with_a_file_of_no_algorithm(edited_run, zoo, tmp_path, edit, why):
    run_dir, file = edited_run
    (tmp_path / "other.py").write_text(edit(file.read_text()))
    result = zoo("eval", run_dir, "--file", tmp_path / "other.py")
    assert result.code == 2
    assert why in result.err
    assert len(result.err.splitlines()) == 1


def test_eval_with_a_file_that_is_not_there(edited_run, zoo):
    result = zoo("eval", edited_run[0], "--file", "nowhere.py")
    assert result.code == 2
    assert "nowhere.py is not a file" in result.err


def test_eval_with_a_file_whose_networks_have_changed(edited_run, zoo, tmp_path):
    run_dir, file = edited_run
    source = file.read_text()
    assert "EnsembleCritic(2," in source
    (tmp_path / "mine.py").write_text(source.replace("EnsembleCritic(2,", "EnsembleCritic(3,"))
    result = zoo("eval", run_dir, "--file", tmp_path / "mine.py")
    assert result.code == 1
    assert "does not fit" in result.err
    assert len(result.err.splitlines()) == 1


# --- The same command twice ---


def test_two_offline_runs_of_one_command_give_identical_evaluations_in_any_process(
    train, start, tmp_path, pendulum_file
):
    once = train("once", "algo=iql", "steps=120", "eval_every=40", "seed=11")
    command = (
        "run", "env=pendulum", f"dataset={pendulum_file}", "eval_episodes=2", "logger=none", "algo.hidden=[16]",
        "algo.batch_size=32", "algo=iql", "steps=120", "eval_every=40",
    )  # fmt: skip
    again = subprocess.run(
        [sys.executable, "-m", "zoo.cli", *command, "seed=11", f"run_dir={tmp_path / 'again'}"],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "evaluations.csv").read_bytes() == (once / "evaluations.csv").read_bytes()
    assert start(*command, "seed=12", f"run_dir={tmp_path / 'other'}").wait().code == 0
    assert (tmp_path / "other" / "evaluations.csv").read_bytes() != (once / "evaluations.csv").read_bytes()


@pytest.mark.parametrize("num_envs", [1, 3])
def test_two_online_runs_of_one_command_give_identical_evaluations(zoo, tmp_path, num_envs):
    for name in ("once", "again"):
        result = zoo(
            "run", "algo=sac", "env=pendulum", "steps=450", "eval_every=150", "eval_episodes=2", "logger=none",
            "seed=4", f"num_envs={num_envs}", "algo.learning_starts=210", "algo.hidden=[16]",
            f"run_dir={name}", "log_every=150",
        )  # fmt: skip
        assert result.code == 0, result.err
    once, again = ((tmp_path / name / "evaluations.csv").read_bytes() for name in ("once", "again"))
    assert once == again
    assert len({row["returns"] for row in rows(tmp_path / "once" / "evaluations.csv")}) > 1  # it did learn something


def test_losses_that_begin_after_the_first_rows_get_their_columns(zoo, tmp_path):
    zoo(
        "run", "algo=sac", "env=pendulum", "steps=300", "eval_episodes=1", "logger=none", "log_every=100",
        "run_dir=run", "algo.learning_starts=150", "algo.hidden=[8]",
    )  # fmt: skip
    metrics = rows(tmp_path / "run" / "metrics.csv")
    assert [bool(row["critic_loss"]) for row in metrics] == [False, True, True]
    assert [row["episode_length"] for row in metrics] == ["nan", "200.0", "nan"]  # the one episode ended at step 200


def test_evaluations_of_many_episodes_are_read_again(tmp_path):
    """Their returns are one cell, which is longer than the default limit of Python's csv module."""
    path = tmp_path / "evaluations.csv"
    CsvLog(path, 0).write({"step": 1, "return_mean": 2.0, "returns": "1.000000 " * 20_000})
    CsvLog(path, 1).write({"step": 2, "return_mean": 3.0, "returns": "1.000000"})
    assert evaluated(tmp_path) == {1: 2.0, 2: 3.0}


def test_a_run_that_fails_before_it_has_numbers_to_show_leaves_no_folder(tmp_path, monkeypatch):
    """The same command then works once the user has fixed their code."""
    step = EnvStepper.step

    def broken(envs, action):
        if envs.count == 10:
            raise ZeroDivisionError
        envs.count += 1
        return step(envs, action)

    monkeypatch.setattr(EnvStepper, "count", 0, raising=False)
    monkeypatch.setattr(EnvStepper, "step", broken)
    settings = {
        "env": "pendulum", "steps": 30, "eval_every": 20, "eval_episodes": 1, "logger": "none", "compile": False,
    }  # fmt: skip
    config = {"hidden": [8], "batch_size": 4, "learning_starts": 5}
    with pytest.raises(ZeroDivisionError):
        package.train("sac", run_dir=tmp_path / "run", algo_config=config, **settings)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(EnvStepper, "step", step)
    assert package.train("sac", run_dir=tmp_path / "run", algo_config=config, **settings).done == 30


def test_rows_are_on_the_disk_before_the_checkpoint_after_them_is_written(tmp_path, monkeypatch, pendulum_file):
    synced, at_checkpoints, fsync, save = {}, [], os.fsync, checkpoint.save

    def spy(descriptor):
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size
        fsync(descriptor)

    def saving(path, state):
        logs = [path.with_name(name).stat() for name in ("metrics.csv", "evaluations.csv")]
        at_checkpoints.append([synced[log.st_ino] == log.st_size for log in logs])
        save(path, state)

    monkeypatch.setattr(os, "fsync", spy)
    monkeypatch.setattr(checkpoint, "save", saving)
    package.train(
        "bc", env="pendulum", dataset=str(pendulum_file), steps=40, log_every=5, eval_every=10, checkpoint_every=20,
        eval_episodes=1, logger="none", compile=False, run_dir=tmp_path / "run", algo_config={"hidden": [8]},
    )  # fmt: skip
    assert at_checkpoints == [[True, True]] * 2


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"step": 3.0}, "a metric has the name step"),
        ({"loss": torch.ones(2)}, r"loss has the shape \(2,\).*one number"),
    ],
)
def test_metrics_are_numbers_with_names_of_their_own(metrics, words):
    latest = Latest({})
    latest.add({"q": torch.tensor(1.0)})
    assert latest.read() == {"q": 1.0}
    latest.add(metrics)
    with pytest.raises(UsageError, match=words):
        latest.read()


def test_the_reference_lists_every_method_of_a_run_that_algorithms_use():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    (members,) = re.findall(r"^::: zoo.runs.run.Run\n(?:    .*\n)*?      members: \[(.*)\]$", page, re.MULTILINE)
    used = {name for file in folder("algos").glob("*.py") for name in re.findall(r"\brun\.(\w+)\(", file.read_text())}
    assert {"dataset", "demonstrations", "compiled", "stage"} <= used <= set(members.split(", "))
