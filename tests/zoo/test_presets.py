"""Presets: settings of the papers, chosen by the task, beneath what the command line says."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from zoo.api import reopen
from zoo.compose import compose
from zoo.errors import UsageError
from zoo.presets import preset, short
from zoo.registry import algorithms, folder

FILES = sorted((folder("configs") / "presets").glob("*/*.yaml"))


def settings(*arguments: str):
    return compose(["preset=paper", *arguments])[0]


def test_riql_takes_what_its_table_says_for_the_corruption():
    config = settings("algo=riql", "env=hopper", "corruption=random-obs")
    assert (config.algo.sigma, config.algo.quantile, config.algo.num_critics) == (0.1, 0.25, 3)
    config = settings("algo=riql", "env=halfcheetah", "corruption=random-action")
    assert (config.algo.sigma, config.algo.quantile, config.algo.num_critics) == (0.5, 0.25, 3)


def test_a_later_entry_that_is_for_fewer_tasks_counts_more():
    assert settings("algo=iql", "env=hopper", "dataset=expert").algo.policy == "gaussian"
    assert settings("algo=iql", "env=hopper", "dataset=medium").algo.policy == "deterministic"


@pytest.mark.parametrize(
    "name", ["medium", "mujoco/hopper/medium-v0", "data/hopper-medium-v2.hdf5", "hopper_medium.hdf5"]
)
def test_a_dataset_is_known_by_any_of_its_names(name):
    assert short(name) == "medium"


def test_the_files_of_d4rl_are_known_by_their_names():
    assert short("hopper_medium_replay-v2.hdf5") == "medium-replay"
    assert short("D4RL/walker2d/medium-expert-v2") == "medium-expert"
    assert short("halfcheetah_full_replay-v2.h5") == "full-replay"


def test_a_run_with_a_preset_is_evaluated_and_resumed_with_what_it_set(zoo, tmp_path):
    quick = ("eval_episodes=1", "logger=none", "algo.hidden=[8]", "algo.batch_size=8")
    run = ("run", "algo=riql", "env=hopper", "corruption=random-obs", "preset=paper", "steps=4", "run_dir=run", *quick)
    assert zoo(*run).code == 0
    result = zoo("eval", "run", "--episodes", "1")
    assert result.code == 0, result.err
    assert reopen(tmp_path / "run")[0].algo.sigma == 0.1


def test_the_command_line_counts_more():
    config = settings("algo=iql", "env=hopper", "dataset=medium", "algo.tau=0.5", "steps=7")
    assert (config.algo.tau, config.steps, config.algo.policy) == (0.5, 7, "deterministic")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["preset=papr", "algo=iql", "env=hopper"], "preset=papr does not exist. Nearest: paper"),
        (["preset=paper", "algo=iql", "env=pendulum"], "preset=paper has nothing for iql on this task"),
    ],
)
def test_what_no_preset_has_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        compose(arguments)


def test_an_algorithm_without_any_is_told_which_have_some():
    with pytest.raises(UsageError, match="preset=paper has nothing for mine, only for awac, bc"):
        preset("paper", "mine", {})


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_entry_names_its_source_and_sets_what_there_is(path: Path):
    assert path.stem in algorithms()
    for entry in OmegaConf.to_container(OmegaConf.load(path)):
        assert entry["source"]
        assert set(entry) <= {"env", "dataset", "corruption", "source", "set"}
        given = [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in entry["set"].items()
        ]
        compose([f"algo={path.stem}", "env=pendulum" if path.stem != "dqn" else "env=cartpole", *given])
