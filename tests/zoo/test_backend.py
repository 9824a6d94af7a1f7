"""The backend of a run's environments: chosen when the run begins, and recorded."""

import json
import sys

import gymnasium
import pytest
import yaml
from gymnasium.envs.registration import EnvSpec

SHORT = ("steps=40", "eval_every=20", "eval_episodes=2", "logger=none", "run_dir=run")
SAC = ("algo=sac", *SHORT, "algo.hidden=[8]", "algo.learning_starts=20", "algo.batch_size=4")


def recorded(folder):
    """The backend in both of a run's files."""
    in_yaml = yaml.safe_load((folder / "config.yaml").read_text())["env"]["backend"]
    assert json.loads((folder / "run.json").read_text())["config"]["env"]["backend"] == in_yaml
    return in_yaml


def test_a_run_records_the_backend_that_auto_was(zoo, tmp_path, monkeypatch):
    pytest.importorskip("envpool")
    result = zoo("run", *SAC, "env=pendulum")
    assert result.code == 0, result.err
    assert recorded(tmp_path / "run") == "envpool"
    assert "EnvPool" not in result.out
    # on another machine, it does not silently use another simulator
    monkeypatch.setitem(sys.modules, "envpool", None)
    result = zoo("eval", "run")
    assert result.code == 2
    assert "pip install 'rl-zoo[envpool]'" in result.err


@pytest.mark.parametrize("asked", ["auto", "gymnasium"])
def test_an_environment_that_envpool_lacks_falls_back_and_says_so_once(zoo, tmp_path, monkeypatch, asked):
    pytest.importorskip("envpool")
    mine = EnvSpec("Mine-v0", "gymnasium.envs.classic_control.pendulum:PendulumEnv", max_episode_steps=20)
    monkeypatch.setitem(gymnasium.registry, "Mine-v0", mine)
    result = zoo("run", *SAC, "env=Mine-v0", f"env.backend={asked}")
    assert result.code == 0, result.err
    assert recorded(tmp_path / "run") == "gymnasium"
    assert result.out.count("EnvPool does not have Mine-v0") == (asked == "auto")


def test_without_envpool_nothing_is_said_of_it(zoo, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    result = zoo("run", *SAC, "env=pendulum")
    assert result.code == 0, result.err
    assert recorded(tmp_path / "run") == "gymnasium"
    assert "EnvPool" not in result.out
    assert zoo("eval", "run", "--episodes", "1").code == 0


REFUSED = {
    "name of D4RL": ("env=hopper-medium-v2", "The dataset is a setting of its own: env=hopper dataset=FILE"),
    "id of a package that is not imported": ("env=mine:Robot-v0", "One of your own needs its module: ZOO_IMPORT="),
    "task of DeepMind Control": ("env=dmc/cheetah-rnu", "env=dmc/cheetah-rnu does not exist. Nearest: dmc/cheetah-run"),
    "game of MinAtar": ("env=minatar/breakot", "env=minatar/breakot does not exist. Nearest: minatar/breakout"),
    "Atari game": ("env=ALE/Pnog-v5", "env=ALE/Pnog-v5 does not exist. Nearest: ALE/Pong-v5"),
    "world of MiniGrid": ("env=MiniGrid-Emty-5x5-v0", "Nearest: MiniGrid-Empty-5x5-v0"),
}


@pytest.mark.parametrize(("environment", "words"), REFUSED.values(), ids=list(REFUSED))
def test_a_name_mistyped_is_refused_in_one_line_with_the_nearest(zoo, tmp_path, environment, words):
    pytest.importorskip("envpool")
    result = zoo("run", "algo=sac", environment)
    assert result.code == 2
    assert result.err.startswith("zoo: ")
    assert result.err.count("\n") == 1
    assert words in result.err
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_refused_with_its_extra_before_anything_is_made(zoo, tmp_path, monkeypatch):
    for name in ("envpool", "ale_py", "minatar", "minigrid"):
        monkeypatch.setitem(sys.modules, name, None)
    for environment, extra in (("pong", "atari"), ("ALE/Pong-v5", "atari"), ("minatar/breakout", "minatar")):
        result = zoo("run", "algo=sac", f"env={environment}")
        assert result.code == 2
        assert result.err.count("\n") == 1
        assert f"pip install 'rl-zoo[{extra}]'" in result.err
    assert not list(tmp_path.iterdir())


def test_list_names_the_families(zoo):
    out = zoo("list").out
    for ids in ("ALE/<Game>-v5", "dmc/<domain>-<task>", "minatar/<game>", "MiniGrid-<World>-v0"):
        assert f"\n  {ids} " in out
