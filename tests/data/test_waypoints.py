"""Point Maze's scripted data: detours, and no episode on the best path."""

import numpy as np
import pytest

from zoo import cli
from zoo.data import waypoints
from zoo.data.arrays import Arrays
from zoo.data.minari import read_minari

pytest.importorskip("gymnasium_robotics")


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    """Twenty episodes, five of each kind."""
    return waypoints.collect("PointMazeStitch-v0", 4_000, seed=0)


def positions(arrays: Arrays) -> np.ndarray:
    """The positions `[episodes, steps, 2]`."""
    return arrays.obs.reshape(-1, 200, 4)[:, :, :2]


def visits(arrays: Arrays, cell: tuple[int, int]) -> np.ndarray:
    """Whether each episode visits a cell, `[episodes]`."""
    return (np.abs(positions(arrays) - waypoints.center(cell)).max(-1) < 0.5).any(1)


def test_half_of_the_episodes_reach_the_goal_and_only_by_the_left(arrays):
    at_goal, by_the_left = visits(arrays, (2, 4)), visits(arrays, (2, 1))
    assert at_goal.sum() == 10
    assert (at_goal == by_the_left).all()
    assert visits(arrays, (2, 2)).all()  # where the routes can be joined


def test_the_best_way_is_worth_more_than_any_episode(arrays):
    import gymnasium

    env = gymnasium.make("PointMazeStitch-v0")
    straight = [waypoints.play(env, seed, [(2, 4)], False, np.random.default_rng(seed))[2].sum() for seed in range(5)]
    assert min(straight) > 1.3 * arrays.episode_returns.max()


def test_episodes_are_whole_and_what_the_environment_did(arrays):
    assert (arrays.episode_lengths == 200).all()
    assert not arrays.terminated.any()
    inside = np.arange(len(arrays.reward)) % 200 < 199
    np.testing.assert_array_equal(arrays.next_obs[inside], arrays.obs[np.flatnonzero(inside) + 1])
    assert (np.abs(arrays.action) <= 1).all()


@pytest.mark.parametrize("env_id", ["PointMazeStitch-v0", "PointMaze_UMaze-v3"])
def test_the_seed_decides(env_id):
    one, again, other = (waypoints.collect(env_id, 800, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one.obs, other.obs)


@pytest.mark.parametrize(
    ("start", "goal", "cells"),
    [
        ((1, 2), (2, 2), [(2, 2)]),
        ((1, 2), (2, 4), [(2, 2), (2, 3), (2, 4)]),
        ((2, 1), (2, 4), [(2, 2), (2, 3), (2, 4)]),
        ((1, 1), (2, 4), [(1, 2), (2, 2), (2, 3), (2, 4)]),  # as short as by (2, 1)
        ((2, 2), (2, 2), [(2, 2)]),
    ],
)
def test_a_path_goes_through_free_cells(start, goal, cells):
    assert waypoints.path(start, goal) == cells


def test_positions_and_cells_are_two_ways_to_say_the_same():
    for row, column in ((1, 1), (1, 2), (2, 4)):
        assert waypoints.cell_of(waypoints.center((row, column)) + np.array([0.49, -0.49])) == (row, column)


def test_make_needs_no_kind_and_no_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    assert cli.main(["data", "make", "pointmaze-stitch", "--size", "800"]) == 0
    assert "pointmaze-stitch/waypoint" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [tmp_path / "store"]
    made = read_minari(tmp_path / "store" / "zoo" / "pointmaze-stitch" / "waypoint-v0" / "data")
    assert all(np.array_equal(a, b) for a, b in zip(made, waypoints.collect("PointMazeStitch-v0", 800, 0), strict=True))


def test_other_environments_have_no_such_kind(capsys):
    assert cli.main(["data", "make", "pendulum", "waypoint"]) == 2
    assert "waypoint is not a kind of dataset" in capsys.readouterr().err


@pytest.fixture(scope="module")
def walks() -> Arrays:
    """Ten episodes in the medium maze."""
    return waypoints.collect("PointMaze_Medium-v3", 6_000, seed=0)


def test_walks_are_whole_episodes_of_the_maze_as_the_environment_has_them(walks):
    import gymnasium

    from zoo.envs.make import make_one

    assert (walks.episode_lengths == 600).all()
    inside = ~walks.truncated
    np.testing.assert_array_equal(walks.next_obs[inside], walks.obs[np.flatnonzero(inside) + 1])
    achieved, desired = walks.next_obs[:, :2], walks.next_obs[:, 2:4]
    np.testing.assert_array_equal(walks.reward, np.linalg.norm(achieved - desired, axis=1) <= 0.45)
    env = make_one("PointMaze_Medium-v3")
    assert walks.obs.shape[1:] == env.observation_space.shape
    assert isinstance(env, gymnasium.wrappers.FlattenObservation)


def test_walks_meet_the_goal_in_some_episodes_and_come_to_most_of_the_maze(walks):
    rewarded = walks.episode_returns > 0
    assert 0 < rewarded.sum() < 10
    from gymnasium_robotics.envs.maze.maps import MEDIUM_MAZE

    free = {(row, column) for row, cells in enumerate(MEDIUM_MAZE) for column, cell in enumerate(cells) if cell == 0}
    rows = ["".join(map(str, row)) for row in MEDIUM_MAZE]
    visited = {waypoints.cell_of(position, rows) for position in walks.obs[:, :2]}
    assert visited <= free
    assert len(visited) > 0.8 * len(free)
