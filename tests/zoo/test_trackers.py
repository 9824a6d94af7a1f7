"""What a run sends to TensorBoard, W&B and Trackio: its hyperparameters and evaluations, read from their files."""

import csv
import importlib.util
import json
import sqlite3
import struct

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from zoo.errors import UsageError
from zoo.runs.logging import parse_loggers


def evaluations(run_dir):
    with (run_dir / "evaluations.csv").open(newline="") as file:
        return {int(row["step"]): float(row["return_mean"]) for row in csv.DictReader(file)}


def test_tensorboard_has_the_hyperparameters_beside_the_evaluations_that_judge_them(finished):
    events = EventAccumulator(str(finished)).Reload()
    known = {one.step: one.value for one in events.Scalars("eval/return_mean")}
    assert known == pytest.approx(evaluations(finished))
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert hparams["algo.expectile"].number_value == config["algo"]["expectile"]
    assert hparams["algo.normalize_obs"].string_value == "True"
    assert hparams["env.id"].string_value == "Pendulum-v1"
    assert hparams["algo.hidden"].string_value == "[16]"
    content = events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    metrics = HParamsPluginData.FromString(content).experiment.metric_infos
    assert "eval/return_mean" in {metric.name.tag for metric in metrics}


def test_a_video_of_a_finished_run_is_added_to_its_tracker(zoo, trained, tmp_path):
    run_dir = trained("ppo", "cartpole", "algo.hidden=[16]", "algo.num_steps=11", "algo.minibatches=3", "num_envs=3",
                      "steps=64", "eval_every=64", "logger=tensorboard")  # fmt: skip
    video = tmp_path / "play.gif"
    before = (run_dir / "evaluations.csv").read_bytes()
    result = zoo("play", run_dir, "--video", video, "--episodes", "1", "--size", "64", "--log")
    assert result.code == 0, result.err
    events = EventAccumulator(str(run_dir)).Reload()
    (image,) = events.Images("play")
    assert (image.step, image.encoded_image_string) == (66, video.read_bytes())  # two rollouts: more than `steps`
    assert [one.step for one in events.Scalars("eval/return_mean")] == [66]
    assert (run_dir / "evaluations.csv").read_bytes() == before


def test_a_video_is_logged_at_the_step_of_the_agent_that_plays(zoo, trained, tmp_path):
    run_dir = trained("ppo", "cartpole", "algo.hidden=[16]", "algo.num_steps=32", "algo.minibatches=2",
                      "steps=96", "eval_every=32", "keep_agents=true", "logger=tensorboard")  # fmt: skip
    options = ("--video", tmp_path / "play.gif", "--episodes", "1", "--size", "64", "--log")
    result = zoo("play", run_dir, "--step", "32", *options)
    assert result.code == 0, result.err
    events = EventAccumulator(str(run_dir)).Reload()
    assert [one.step for one in events.Images("play")] == [32]
    assert [one.step for one in events.Scalars("eval/return_mean")] == [32, 64, 96]
    result = zoo("play", run_dir, "--env", "cartpole", *options, "--force")
    assert (result.code, "Leave out --env" in result.err) == (2, True)


def test_what_cannot_be_logged_is_refused_in_one_line(zoo, trained, tmp_path):
    run_dir = trained("ppo", "cartpole", "algo.hidden=[16]", "algo.num_steps=32", "algo.minibatches=2",
                      "steps=64", "eval_every=64", "logger=none")  # fmt: skip
    for arguments, message in (
        ((run_dir, "--log", "--video", tmp_path / "a.mp4"), "Add: --video play.gif"),
        ((tmp_path, "--log", "--video", tmp_path / "a.gif"), "is not a run's folder"),
        ((run_dir, "--log", "--video", tmp_path / "a.gif"), "started with logger=none"),
    ):
        result = zoo("play", *arguments)
        assert result.code != 0
        assert message in result.err
        assert result.err.count("\n") == 1
    assert not list(tmp_path.glob("a.*"))


def offline_records(path):
    """The records of an offline W&B run: a header of 7 bytes, then LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if (left := 2**15 - at % 2**15) < 7:  # the rest of a block
            at += left
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(record)
            record = b""


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="W&B is not installed")
@pytest.mark.slow
def test_wandb_offline_has_settings_and_evaluations(start, tmp_path, pendulum_file):
    run_dir = tmp_path / "run"
    result = start(
        "run", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "steps=20", "eval_every=10", "eval_episodes=1",
        "logger=wandb", f"run_dir={run_dir}", "algo.hidden=[8]", environment={"WANDB_MODE": "offline"},
    ).wait()  # fmt: skip
    assert result.code == 0, result.err
    config, logged = {}, {}
    for record in offline_records(*run_dir.glob("wandb/offline-run-*/*.wandb")):
        if record.HasField("run"):
            config = {one.key: json.loads(one.value_json) for one in record.run.config.update}
        if record.HasField("history"):
            row = {one.key or ".".join(one.nested_key): one.value_json for one in record.history.item}
            if "eval/return_mean" in row:
                logged[int(row["step"])] = float(row["eval/return_mean"])
    assert config["algo"]["hidden"] == [8]
    assert config["env"]["id"] == "Pendulum-v1"
    assert logged == pytest.approx(evaluations(run_dir))


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="trackio is not installed")
@pytest.mark.slow
def test_trackio_keeps_settings_and_evaluations_on_this_machine(start, tmp_path, pendulum_file):
    result = start(
        "run", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "steps=20", "eval_every=10", "eval_episodes=1",
        "logger=trackio", f"run_dir={tmp_path / 'run'}", "algo.hidden=[8]", environment={"TRACKIO_DIR": str(tmp_path)},
    ).wait()  # fmt: skip
    assert result.code == 0, result.err
    with sqlite3.connect(tmp_path / "zoo.db") as database:
        value = """json_extract(metrics, '$."eval/return_mean"')"""
        logged = database.execute(f"select step, {value} from metrics where {value} is not null").fetchall()
        ((env,),) = database.execute("select json_extract(config, '$.\"env.id\"') from configs").fetchall()
    assert dict(logged) == pytest.approx(evaluations(tmp_path / "run"))
    assert env == "Pendulum-v1"


def test_a_logger_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="There are: tensorboard, wandb, trackio, several"):
        parse_loggers("tensorboard+mlflow")
