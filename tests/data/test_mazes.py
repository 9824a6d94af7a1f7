"""Scripted data of OGBench's Point Mazes follow OGBench's rules."""

import numpy as np
import pytest

from zoo import cli
from zoo.data import mazes
from zoo.data.minari import read_minari
from zoo.envs.ogbench import GoalEnv, SingleTaskEnv

pytest.importorskip("ogbench")


@pytest.fixture(scope="module")
def maze():
    world = GoalEnv("pointmaze-large")
    world.reset(seed=0)
    return mazes.Maze(world)


def cells(maze, positions):
    return [maze.env.xy_to_ij(position) for position in positions]


def test_the_controller_goes_where_ogbenchs_oracle_does(maze):
    rng = np.random.default_rng(0)
    for _ in range(300):
        start, goal = (maze.near_center(maze.free[rng.integers(len(maze.free))], rng) for _ in range(2))
        subgoal, _ = maze.env.get_oracle_subgoal(start, goal)
        np.testing.assert_allclose(maze.toward(start, goal), mazes.unit(subgoal - start))


def test_goals_of_navigate_are_ends_crossings_and_corners(maze):
    """Marked by hand in the third row of the large maze and in its first column."""
    assert [cell for cell in maze.corners if cell[0] == 3] == [(3, 1), (3, 4), (3, 6), (3, 8), (3, 10)]
    assert [cell for cell in maze.corners if cell[1] == 1] == [(1, 1), (3, 1), (5, 1), (7, 1)]


def test_navigate_goes_on_to_goals_all_over_the_maze(maze):
    positions, actions = mazes.play(maze, "navigate", 1_000, 0.5, np.random.default_rng(1))
    assert positions.shape == (1_001, 2)
    assert len(set(cells(maze, positions))) > 15
    assert (np.abs(actions) <= 1).all()


def test_stitch_ends_four_cells_from_its_start_and_stays(maze):
    for seed in range(5):
        positions, _ = mazes.play(maze, "stitch", 200, 0.0, np.random.default_rng(seed))
        visited = cells(maze, positions)
        _, distances = maze.env.get_oracle_subgoal(positions[0], positions[-1])
        assert distances[visited[0]] == 4
        assert set(visited[-50:]) == {visited[-1]}


def test_explore_keeps_a_direction_for_ten_steps(maze):
    _, actions = mazes.play(maze, "explore", 100, 0.0, np.random.default_rng(2))
    directions = actions.reshape(10, 10, 2)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=-1), 1, rtol=1e-5)
    assert (directions == directions[:, :1]).all()
    assert len(np.unique(directions[:, 0], axis=0)) == 10


def test_episodes_are_whole_and_what_the_environment_did(maze):
    arrays = mazes.collect("ogbench/pointmaze-teleport", "stitch", 500, seed=3)
    again = mazes.collect("ogbench/pointmaze-teleport", "stitch", 500, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, again, strict=True))
    assert (arrays.episode_lengths == 200).all()
    assert len(arrays.reward) == 600
    assert not arrays.reward.any()
    assert not arrays.terminated.any()
    inside = ~arrays.truncated[:-1]
    np.testing.assert_array_equal(arrays.next_obs[:-1][inside], arrays.obs[1:][inside])
    free = np.linalg.norm(arrays.next_obs - arrays.obs - 0.2 * arrays.action, axis=1) < 1e-5
    assert free.mean() > 0.5  # the other steps touched a wall or were teleported


def test_a_ball_in_a_portal_is_seen_there_before_it_is_elsewhere():
    """So it is in OGBench's environment, in which agents are evaluated."""
    arrays = mazes.collect("ogbench/pointmaze-teleport", "navigate", 10_000, seed=0)
    world = GoalEnv("pointmaze-teleport").env
    portals, radius = np.array(world._teleport_info["teleport_in_xys"]), 1.5 * world._teleport_info["teleport_radius"]
    entered = (np.linalg.norm(arrays.next_obs[:, None] - portals, axis=-1) <= radius).any(1) & ~arrays.truncated
    left = np.linalg.norm(arrays.next_obs - arrays.obs, axis=1) > 1
    assert entered.sum() > 3
    np.testing.assert_array_equal(np.flatnonzero(left), np.flatnonzero(entered) + 1)


def test_make_writes_them_without_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    assert cli.main(["data", "make", "pointmaze-medium", "stitch", "explore", "--size", "400"]) == 0
    assert "pointmaze-medium/stitch" in capsys.readouterr().out
    made = read_minari(tmp_path / "store" / "zoo" / "pointmaze-medium" / "explore-v0" / "data")
    expected = mazes.collect("ogbench/pointmaze-medium", "explore", 400, 0)
    assert all(np.array_equal(a, b) for a, b in zip(made, expected, strict=True))


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("pointmaze-medium", "There are: navigate, stitch, explore"),
        ("ogbench/antmaze-large", "dataset=FILE.npz"),
    ],
)
def test_no_agent_makes_data_of_goals(env, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    assert cli.main(["data", "make", env, "medium"]) == 2
    assert said in capsys.readouterr().err


def test_data_of_a_single_task_are_the_same_with_its_rewards_and_ends():
    """A success is a position within 1 of the goal, as in OGBench's relabelling."""
    plain, task = (
        mazes.collect(f"ogbench/pointmaze-medium{of}", "navigate", 8_000, 3) for of in ("", "-singletask-task2")
    )
    np.testing.assert_array_equal(task.obs, plain.obs)
    np.testing.assert_array_equal(task.action, plain.action)
    world = SingleTaskEnv("pointmaze-medium-singletask-task2")
    world.reset(seed=0)
    reached = np.linalg.norm(task.obs - world.env.cur_goal_xy, axis=1) <= 1.0
    assert 0 < reached.sum() < len(reached) / 10
    np.testing.assert_array_equal(task.reward, np.where(reached, 0, -1))
    np.testing.assert_array_equal(task.terminated, reached)
    np.testing.assert_array_equal(task.truncated, plain.truncated & ~reached)
