"""Compares two critics' values of the same actions, to see whether the critics know which action is better.

    python benchmarks/scripts/critic_agreement.py RUN_DIR... --dataset NAME

This works for runs with at least two critics and continuous actions (SAC, RLPD and others, including residual runs).
Actions are sampled uniformly at states of a dataset. The script prints means over the states: the mean value; the
standard deviation of the values over the actions; the difference of the first two critics; the critics' correlation
over the actions, which is 1 if they rank the actions in the same way; and the share of the policy's outputs that are
within a tenth of half their range from a bound.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.data.load import load_arrays
from zoo.nn import BoundedPolicy
from zoo.runs.load import load_agent
from zoo.runs.residual import Corrected

STATES, ACTIONS = 1024, 64
COLUMNS = ("mean value", "std over actions", "critics' difference", "correlation", "outputs near a bound")


@torch.no_grad()
def agreement(agent: Any, obs: Tensor) -> list[float]:
    """The numbers in a row of the table, for states `[B, ...]`."""
    seen = obs
    if isinstance(agent, Corrected):
        seen, agent = agent.base.seen(obs), agent.agent
    if hasattr(agent, "normalizer"):
        seen = agent.normalizer(seen)
    bounds = BoundedPolicy(agent.spec.action_low, agent.spec.action_high)
    uniform = 2 * torch.rand(ACTIONS, len(obs), agent.spec.action_dim) - 1
    values = torch.stack([agent.head.value(agent.critic(seen, bounds.from_unit(x)))[:2] for x in uniform])  # [n, 2, B]
    one, other = (values - values.mean(0)).unbind(1)
    correlation = (one * other).mean(0) / (one.square().mean(0) * other.square().mean(0)).sqrt().clamp(min=1e-12)
    spread = values.mean(1).std(0, correction=0)
    apart = (values[:, 0] - values[:, 1]).abs()
    at_bound = bounds.to_unit(agent.actor.mode(seen)).abs() > 0.9
    return [float(x.float().mean()) for x in (values, spread, apart, correlation, at_bound)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--dataset", required=True, help="dataset with the states")
    args = parser.parse_args()
    print("| run | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (1 + len(COLUMNS)))
    for run_dir in args.runs:
        config, agent, _ = load_agent(run_dir)
        torch.manual_seed(0)
        obs = torch.from_numpy(load_arrays(config.env, args.dataset)[0].obs)
        obs = obs[torch.randint(len(obs), (STATES,))]
        print(
            f"| {run_dir.name} | " + " | ".join(f"{number:.2f}" for number in agreement(agent, obs)) + " |", flush=True
        )


if __name__ == "__main__":
    main()
