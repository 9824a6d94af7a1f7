"""Tests of all goal-conditioned algorithms: their requirements, and what they learn in a maze."""

import csv
from pathlib import Path

import gymnasium
import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from examples import batch_for, make, specs

from zoo import cli
from zoo.commands import value_map
from zoo.data import mazes
from zoo.data.goals import GoalBatch, SubgoalBatch
from zoo.settings.registry import algorithms

pytest.importorskip("ogbench")
ALGORITHMS = [file for file in algorithms().values() if file.takes_goals]
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=[file.name for file in ALGORITHMS])
BOOTSTRAPPING = [file for file in ALGORITHMS if file.name in ("gciql", "gcivl", "hiql", "ota")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file in OGBench's layout: ten episodes of `navigate`, whose last states have no next state."""
    arrays = mazes.collect("ogbench/pointmaze-medium", "navigate", 10_000, seed=0)
    path = tmp_path_factory.mktemp("goals") / "navigate.npz"
    obs = arrays.obs.reshape(10, 1_000, 2)
    states = np.concatenate([obs, arrays.next_obs.reshape(10, 1_000, 2)[:, -1:]], 1)
    action = np.concatenate([arrays.action.reshape(10, 1_000, 2), np.zeros((10, 1, 2), np.float32)], 1)
    terminals = np.zeros((10, 1_001), bool)
    terminals[:, -1] = True
    columns = {"observations": states, "actions": action, "terminals": terminals}
    np.savez(path, **{name: column.reshape(10 * 1_001, *column.shape[2:]) for name, column in columns.items()})
    return path


@each_algorithm
def test_runs_from_a_file_of_ogbenchs_and_says_which_goals_it_reached(algorithm, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["algo.hidden=[16,16]", "algo.batch_size=32", "compile=false", "logger=none", "run_dir=run"]
    arguments = [f"algo={algorithm.name}", "env=pointmaze-medium", f"dataset={data}", "steps=20", "eval_episodes=5"]
    assert cli.main(["run", *arguments, *small, "env.max_episode_steps=20"]) == 0
    with (tmp_path / "run" / "evaluations.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    by_task = [float(row[f"success_task{number}"]) for number in range(1, 6)]
    assert float(row["success"]) == pytest.approx(np.mean(by_task))
    assert float(row["success"]) == pytest.approx(float(row["return_mean"]))
    assert cli.main(["play", "run", "--map", "map.png", "--log"]) == 2
    code = cli.main(["play", "run", "--map", "map.png", "--episodes", "2"])
    if algorithm.name == "gcbc":
        assert code == 2
        assert "--map: GCBC has no values of goals" in capsys.readouterr().err
        assert not (tmp_path / "map.png").exists()
    else:
        assert code == 0
        picture = imageio.imread(tmp_path / "map.png")[..., :3]
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20  # values that differ


def test_a_map_shows_every_place_that_is_no_wall_once():
    env = gymnasium.make("ogbench/antmaze-large").unwrapped.env
    maze = value_map.Maze(env)
    states = maze.states(np.arange(29, dtype=np.float32))
    cells = [env.xy_to_ij(xy) for xy in states[:, :2].numpy()]
    assert all(env.maze_map[i][j] == 0 for i, j in cells)
    assert len(cells) == (np.asarray(env.maze_map) == 0).sum() * value_map.PLACES**2
    assert set(cells) == {(i, j) for i, j in np.argwhere(np.asarray(env.maze_map) == 0)}
    np.testing.assert_array_equal(states[7, 2:], np.arange(2, 29))
    shown = np.full(maze.open.shape, np.nan)
    shown[maze.open] = states[:, 0]
    left, right, _, _ = maze.extent
    first = shown.reshape(maze.shape)[maze.shape[0] // 2]  # a row of the picture: x grows from left to right
    expected = left + (np.arange(len(first)) + 0.5) * (right - left) / len(first)
    np.testing.assert_allclose(first[~np.isnan(first)], expected[~np.isnan(first)], rtol=1e-5)


@pytest.mark.parametrize("name", ["hiql", "ota"])
def test_the_subgoal_is_the_state_whose_representation_is_nearest_to_what_is_named(name):
    algorithm = algorithms()[name]
    agent, obs, states = make(algorithm, specs(algorithm)[0]), torch.randn(4, 6), torch.randn(9, 3)
    for one, found in zip(obs, agent.subgoals(obs, states), strict=True):
        named = agent.high_actor(one)
        named = named / named.norm()
        there = [agent.phi(torch.cat([one[:3], state])) for state in states]
        distances = [(named - x / x.norm()).norm().item() for x in there]
        assert found == int(np.argmin(distances))


def test_only_a_maze_has_a_map(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["algo.hidden=[8]", "steps=2", "eval_every=2", "eval_episodes=1", "logger=none", "run_dir=run"]
    assert cli.main(["run", "algo=iql", "env=hopper", "dataset=demo", *small]) == 0
    assert cli.main(["play", "run", "--map", "map.png"]) == 2
    assert "--map: Hopper-v5 is no maze of OGBench's. Leave --map out." in capsys.readouterr().err
    assert cli.main(["play", "run", "--map", "map.jpg"]) == 2
    assert "--map map.jpg must end in .png." in capsys.readouterr().err


@each_algorithm
def test_needs_goals(algorithm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", f"algo={algorithm.name}", "env=hopper", "logger=none", "run_dir=run"]) == 2
    assert "learns to reach goals, and this environment gives none. Try: env=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("algo", "instead"),
    [("iql", ""), ("bc", ""), ("h2o", ""), ("rlpd", "algo.offline_fraction=0"), ("sac", "algo.offline_fraction=0")],
)
def test_of_data_with_goals_others_name_the_algorithms_that_reach_them(
    data, tmp_path, monkeypatch, capsys, algo, instead
):
    monkeypatch.chdir(tmp_path)
    share = ["algo.offline_fraction=0.5"] if algo == "sac" else []
    assert cli.main(["run", f"algo={algo}", "env=pointmaze-medium", f"dataset={data}", "run_dir=run", *share]) == 2
    message = capsys.readouterr().err
    assert f"{algo} does not learn to reach goals; the data of this environment has states to reach" in message
    assert all(file.name in message for file in ALGORITHMS)
    assert instead in message
    assert not Path("run").exists()


def test_states_of_another_size_than_the_goals_are_refused(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "algo=gcbc", "env=ogbench/antmaze-medium", f"dataset={data}", "run_dir=run"]) == 2
    assert "has observations (2,) and actions (2,); antmaze-medium" in capsys.readouterr().err


def test_episodes_of_data_may_be_longer_than_those_of_the_task(tmp_path, monkeypatch):
    """For the giant maze, OGBench's data have episodes of 2,000 steps, and its evaluations of 1,000."""
    monkeypatch.chdir(tmp_path)
    states, action = np.random.default_rng(0).normal(size=(2, 2_001, 2)).astype(np.float32)
    np.savez("long.npz", observations=states, actions=action.clip(-1, 1), terminals=np.arange(2_001) == 2_000)
    small = ["steps=2", "algo.hidden=[8]", "env.max_episode_steps=20", "eval_episodes=1", "logger=none", "run_dir=run"]
    assert cli.main(["run", "algo=gcbc", "env=pointmaze-giant", "dataset=long.npz", *small]) == 0


def test_shares_of_goals_must_sum_to_one(capsys):
    assert cli.main(["run", "algo=gcbc", "env=pointmaze-medium", "algo.actor_goals=[0.5,0.2,0.2]"]) == 2
    assert "algo.actor_goals=[0.5, 0.2, 0.2] must be three shares that sum to 1" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", BOOTSTRAPPING, ids=[file.name for file in BOOTSTRAPPING])
def test_nothing_follows_a_goal_that_is_reached(algorithm):
    """A target includes the next state's value, except if the state is the goal."""
    (spec,) = specs(algorithm)

    def learned(reached: bool, shift: float) -> torch.Tensor:
        torch.manual_seed(0)
        agent = make(algorithm, spec)
        batch: GoalBatch | SubgoalBatch = batch_for(agent, 0)
        later = {name: getattr(batch, name) + shift for name in ("next_obs", "option_end") if hasattr(batch, name)}
        flags = [name for name in ("reached", "option_reached") if hasattr(batch, name)]
        batch = batch._replace(**later, **{name: torch.full_like(batch.reached, reached) for name in flags})
        agent.update(batch)
        values = (name for name, _ in agent.named_parameters() if "value" in name or name.startswith("critic"))
        return torch.cat([agent.get_parameter(name).flatten() for name in values])

    assert torch.equal(learned(True, 0.0), learned(True, 1.0))
    assert not torch.equal(learned(False, 0.0), learned(False, 1.0))
