"""Scripts that check values: their bounds, their order along shortest paths, and the agreement of critics."""

import csv
import sys

import h5py
import numpy as np
import pytest
import torch

import zoo
from zoo.benchmarks.scripts import critic_agreement, order_consistency, value_bounds

DISCOUNT = 0.9
SMALL = {"steps": 20, "eval_every": 20, "log_every": 10, "eval_episodes": 1, "logger": "none", "compile": False}


def run_of_dvl(run_dir, file, seed, **settings):
    zoo.train(
        "dvl", env="pendulum", dataset=file, seed=seed, run_dir=run_dir, **SMALL,
        algo_config={"hidden": [8], "batch_size": 8, "discount": DISCOUNT, "normalize_reward": False, **settings},
    )  # fmt: skip
    return run_dir


def set_values(run_dir, value):
    rows = list(csv.DictReader((run_dir / "metrics.csv").open(newline="")))
    with (run_dir / "metrics.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(row | {"q": value} for row in rows)


def test_values_that_leave_ten_times_the_largest_return_are_counted(pendulum_file, tmp_path, monkeypatch, capsys):
    with h5py.File(pendulum_file) as file:
        rewards, ends = file["rewards"][()], file["terminals"][()] | file["timeouts"][()]
    returns = []
    for part in np.split(rewards, np.flatnonzero(ends) + 1):
        if len(part):
            total = part.mean() / (1 - DISCOUNT)  # truncated, it continues like that
            for reward in part[::-1]:
                total = reward + DISCOUNT * total
                returns.append(total)
    largest = np.abs(returns).max()
    runs = [run_of_dvl(tmp_path / f"{f}-{seed}", pendulum_file, seed, f=f) for f in ("tv", "chi2") for seed in (0, 1)]
    assert value_bounds.bound(runs[0]) == pytest.approx(largest, rel=1e-5)
    for run_dir, times in zip(runs, (11, -20, 9, 2), strict=True):
        set_values(run_dir, times * largest)
    monkeypatch.setattr(sys, "argv", ["value_bounds.py", *map(str, runs)])
    value_bounds.main()
    tv, chi2 = (line for line in capsys.readouterr().out.splitlines() if "tv" in line or "chi2" in line)
    assert "2 of 2" in tv
    assert "20" in tv
    assert "0 of 2" in chi2


class Knowing:
    """An agent whose value of a place is given by the number of cells left to the goal."""

    class spec:  # noqa: N801
        state_dim = 2

    def __init__(self, maze, sign):
        self.maze, self.sign = maze, sign

    def goal_values(self, obs):
        cell = self.maze.env.xy_to_ij
        left = [self.maze.distances(cell(one[2:].numpy()))[cell(one[:2].numpy())] for one in obs]
        return -self.sign * torch.tensor(left)


@pytest.mark.parametrize(("sign", "share"), [(1, 1.0), (-1, 0.0)])
def test_values_by_distance_rise_along_every_way_and_others_along_none(monkeypatch, tmp_path, sign, share):
    pytest.importorskip("ogbench")
    from types import SimpleNamespace

    from zoo.data.mazes import Maze
    from zoo.envs.ogbench import GoalEnv

    world = GoalEnv("pointmaze-medium")
    world.reset(seed=0)
    config = SimpleNamespace(env=SimpleNamespace(id="ogbench/pointmaze-medium"), algo=SimpleNamespace(subgoal_steps=25))
    monkeypatch.setattr(order_consistency, "load_agent", lambda run_dir: (config, Knowing(Maze(world), sign), {}))
    found = order_consistency.consistency(tmp_path, step=0.2)
    assert set(found.values()) == {share}
    assert list(found) == [0, 1, 2]  # no path is longer than twelve cells


class TwoCritics:
    """Critics that value an action by its first number. The second critic's value is twice the first, times a sign."""

    class spec:  # noqa: N801
        action_low, action_high, action_dim = (-2.0, 0.0), (2.0, 4.0), 2

    class head:  # noqa: N801
        value = staticmethod(lambda out: out.squeeze(-1))

    def __init__(self, sign):
        self.sign, self.actor = sign, self

    def critic(self, obs, action):
        q = action[:, :1] + obs[:, :1]
        return torch.stack([q, 2 * self.sign * q])

    def mode(self, obs):
        return torch.tensor([1.9, 2.0]).expand(len(obs), 2)  # 0.95 and 0 of half the range from the middle


@pytest.mark.parametrize("sign", [1, -1])
def test_critics_agree_where_they_order_actions_alike(sign):
    torch.manual_seed(0)
    mean, spread, apart, correlation, at_bound = critic_agreement.agreement(TwoCritics(sign), torch.zeros(512, 3))
    assert mean == pytest.approx(0, abs=0.02)
    assert correlation == pytest.approx(sign, abs=1e-5)
    deviation = 2 / np.sqrt(3)  # of a uniform number from -2 to 2
    assert spread == pytest.approx((3 if sign > 0 else 1) / 2 * deviation, rel=0.02)
    assert apart == pytest.approx(1 if sign > 0 else 3, rel=0.02)  # times the mean of |a|, 1
    assert at_bound == 0.5
