"""Measures how often values increase along the shortest paths in a maze: order consistency (Ahn et al. 2025,
arXiv 2505.12737).

    python benchmarks/scripts/order_consistency.py RUN_DIR... [--figure FILE.png]

This works for runs of HIQL, OTA and other algorithms with a value of goals, in one of OGBench's mazes. For every pair
of cells, the shortest path goes along the centers of cells in steps of length `--step`. Two states on it that are k
steps apart, where k is the run's distance to subgoals, are ordered if the later one has the higher value. The script
prints the share of ordered pairs by the remaining distance to the goal, in cells, as a mean over runs that differ only
in their seeds.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from zoo.benchmarks.scripts.value_bounds import settings_that_differ
from zoo.data.mazes import Maze
from zoo.envs.names import load_package
from zoo.envs.ogbench import PREFIX, GoalEnv
from zoo.runs.load import load_agent
from zoo.settings.config import flat

BIN = 4  # cells
SUBGOAL_STEPS = 25  # for agents without subgoals


def way(maze: Maze, start: tuple[int, int], goal: tuple[int, int], step: float) -> np.ndarray:
    """The states `[T, 2]` on a shortest path from the center of a cell to the center of another."""
    cells = [start]
    while cells[-1] != goal:
        cells.append(maze.next_cell(cells[-1], goal))
    corners = np.array([maze.env.ij_to_xy(cell) for cell in cells], float)
    lengths = np.concatenate([[0], np.linalg.norm(np.diff(corners, axis=0), axis=1).cumsum()])
    along = np.arange(0, lengths[-1], step)
    return np.stack([np.interp(along, lengths, corners[:, i]) for i in (0, 1)], -1).astype(np.float32)


def consistency(run_dir: Path, step: float) -> dict[int, float]:
    """The share of ordered pairs by the bin of the distance to the goal."""
    config, agent, _ = load_agent(run_dir)
    load_package(config.env.id)
    world = GoalEnv(config.env.id.removeprefix(PREFIX))
    state, _ = world.reset(seed=0)
    maze, size = Maze(world), agent.spec.state_dim
    apart = getattr(config.algo, "subgoal_steps", SUBGOAL_STEPS)
    cell = float(np.linalg.norm(np.subtract(world.env.ij_to_xy((0, 1)), world.env.ij_to_xy((0, 0)))))
    ordered: dict[int, list[np.ndarray]] = defaultdict(list)
    for goal in maze.free:
        ways = [way(maze, start, goal, step) for start in maze.free if maze.distances(goal)[start] > 0]
        ways = [one for one in ways if len(one) > apart]
        if not ways:
            continue
        target = np.array(state[:size])
        target[:2] = world.env.ij_to_xy(goal)
        places = np.concatenate(ways)
        obs = np.concatenate(
            [np.repeat(state[None, :size], len(places), 0), np.repeat(target[None], len(places), 0)], 1
        )
        obs[:, :2] = places
        values = agent.goal_values(torch.from_numpy(obs))
        assert values is not None, f"{run_dir} has no values of goals"
        for one, value in zip(ways, np.split(values.numpy(), np.cumsum([len(one) for one in ways])[:-1]), strict=True):
            left = (len(one) - np.arange(len(one) - apart)) * step / cell
            rises = value[apart:] > value[:-apart]
            for number in np.unique(left // BIN):
                ordered[int(number)].append(rises[left // BIN == number])
    return {number: float(np.concatenate(found).mean()) for number, found in sorted(ordered.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument(
        "--step", type=float, default=0.2, help="length of a step (default: 0.2, a point's longest along an axis)"
    )
    parser.add_argument("--figure", type=Path, help="PNG file for a plot")
    args = parser.parse_args()
    settings = {run_dir: flat(json.loads((run_dir / "run.json").read_text())["config"]) for run_dir in args.runs}
    of_algorithms: dict[str, list[Path]] = defaultdict(list)
    for run_dir in args.runs:
        of_algorithms[settings[run_dir]["algo.name"]].append(run_dir)
    of_methods: dict[str, list[dict[int, float]]] = defaultdict(list)
    for algo, runs in of_algorithms.items():
        differing = [key for key in settings_that_differ(runs) if key.startswith(("algo.", "dataset", "env."))]
        for run_dir in runs:
            shown = [f"{key}={settings[run_dir][key]}" for key in differing]
            of_methods[", ".join([algo, *shown])].append(consistency(run_dir, args.step))
    bins = sorted({number for found in of_methods.values() for one in found for number in one})
    header = ["", "runs", *(f"{BIN * number} to {BIN * number + BIN} cells" for number in bins)]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    means = {
        name: [float(np.mean([one[number] for one in found if number in one])) for number in bins]
        for name, found in of_methods.items()
    }
    for name, shares in means.items():
        print(f"| {name} | {len(of_methods[name])} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    if args.figure:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(5, 3.2))
        for name, shares in means.items():
            axes.plot([BIN * (number + 0.5) for number in bins], shares, marker="o", label=name)
        axes.set_xlabel("cells to the goal")
        axes.set_ylabel("share of ordered pairs")
        axes.legend()
        figure.tight_layout()
        figure.savefig(args.figure, dpi=120)


if __name__ == "__main__":
    main()
