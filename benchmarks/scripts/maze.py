"""Plots Point Maze's episodes in the maze: those of the data, imagined ones, and the returns of the direct path.

    zoo data make pointmaze-stitch
    zoo run algo=mbrcsl env=pointmaze-stitch dataset=waypoint preset=paper run_dir=mbrcsl
    python benchmarks/scripts/maze.py waypoint mbrcsl/rollouts.hdf5 --out maze.png

The script prints how many episodes of each kind reach the goal, and how many of these do not make the detour on the
left.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from zoo.data import waypoints
from zoo.data.arrays import Arrays
from zoo.data.load import load_arrays
from zoo.envs.names import load_package
from zoo.envs.pointmaze import ENV_ID, GOAL, MAP, START
from zoo.files import replacing
from zoo.settings.compose import compose

DRAWN = 60  # maximum number of episodes of each kind to plot


def visits(paths: Sequence[np.ndarray], cell: waypoints.Cell) -> np.ndarray:
    """Whether each episode, given by its positions `[T, 2]`, visits a cell, `[E]`."""
    return np.array([(np.abs(path - waypoints.center(cell)).max(-1) < 0.5).any() for path in paths])


def straight_returns(count: int) -> np.ndarray:
    """The returns of the data's own controller if it goes straight to the goal, `[count]`."""
    load_package(ENV_ID)
    env = gymnasium.make(ENV_ID)
    rng = np.random.default_rng(0)
    return np.array([waypoints.play(env, seed, [GOAL], False, rng)[2].sum() for seed in range(count)])


def draw_maze(axes: Any) -> None:
    for row, kinds in enumerate(MAP):
        for column, kind in enumerate(kinds):
            if kind == "1":
                x, y = waypoints.center((row, column)) - 0.5
                axes.add_patch(Rectangle((x, y), 1, 1, color="0.8"))
    for cell, letter in ((START, "S"), (GOAL, "G")):
        axes.text(*waypoints.center(cell), letter, ha="center", va="center", weight="bold")
    half_width, half_height = len(MAP[0]) / 2 - 0.5, len(MAP) / 2 - 0.5
    axes.set(xlim=(-half_width, half_width), ylim=(-half_height, half_height), aspect="equal", xticks=[], yticks=[])


def main() -> None:
    """Plots and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="name of a dataset, as in dataset=")
    parser.add_argument("rollouts", nargs="?", help="rollouts.hdf5, the imagined episodes that MBRCSL kept")
    parser.add_argument("--out", type=Path, default=Path("maze.png"))
    args = parser.parse_args()
    env = compose(["algo=bc", "env=pointmaze-stitch"])[0].env
    sources: dict[str, Arrays] = {"data": load_arrays(env, args.dataset)[0]}
    if args.rollouts:
        sources["imagined, kept"] = load_arrays(env, args.rollouts)[0]
    straight = straight_returns(100)

    figure = Figure(figsize=(4.5 * (len(sources) + 1), 3), layout="constrained")
    *mazes, histogram = figure.subplots(1, len(sources) + 1)
    for axes, (name, arrays) in zip(mazes, sources.items(), strict=True):
        paths = np.split(arrays.obs[:, :2], arrays.episode_starts[1:])
        at_goal, by_the_left = visits(paths, GOAL), visits(paths, (2, 1))
        print(
            f"{name}: {len(paths):,} episodes, returns {arrays.episode_returns.min():.1f} to "
            f"{arrays.episode_returns.max():.1f}; {at_goal.sum():,} reach the goal, "
            f"{(at_goal & ~by_the_left).sum():,} of them without the detour"
        )
        draw_maze(axes)
        axes.set_title(name)
        for chosen, colour in (
            (~at_goal, "tab:blue"),
            (at_goal & by_the_left, "tab:orange"),
            (at_goal & ~by_the_left, "tab:green"),
        ):
            for i in np.flatnonzero(chosen)[:DRAWN]:
                axes.plot(*paths[i].T, color=colour, alpha=0.25, linewidth=0.7)
        histogram.hist(arrays.episode_returns, bins=40, density=True, alpha=0.6, label=name)
    print(f"straight to the goal, by the data's controller: {straight.mean():.1f} +- {straight.std():.1f}")
    histogram.hist(straight, bins=20, density=True, alpha=0.6, label="straight to the goal")
    histogram.set(xlabel="episode return", yticks=[])
    histogram.legend(fontsize="small")
    with replacing(args.out) as file:
        figure.savefig(file, format=args.out.suffix[1:], dpi=120)


if __name__ == "__main__":
    main()
