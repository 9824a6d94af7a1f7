"""Logs CQL's values of the data's actions and of the policy's actions during training, to show why the former fall.

    git clone https://github.com/corl-team/CORL
    python benchmarks/scripts/cql_values.py CORL/algorithms/offline --env halfcheetah --data halfcheetah-medium.hdf5
    python benchmarks/scripts/cql_values.py CORL/algorithms/offline --zoo ...  # the zoo's CQL on the same batches

A target y = r + gamma min_i Q_i'(s', a'), a' ~ pi(s'), is above Q(s, a) only if the values of the policy's actions are
not too far below V, the values of the data's actions: `lower_by` must be less than `balance`, which is
(r - (1 - gamma) V) / gamma. All networks have three hidden layers of 256. The script writes a CSV file and prints its
rows.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from zoo.algos import cql
from zoo.benchmarks.scripts.corl import FIELDS, PEERS, Policy, build_cql, cql_losses, load_corl, normalize
from zoo.data.batch import Batch
from zoo.envs import make
from zoo.runs.compilation import compile_update
from zoo.runs.evaluation import evaluate
from zoo.settings.compose import environment_config
from zoo.spec import Spec

ROWS = 4096  # number of transitions over which values are averaged
VALUES = ("data", "policy", "policy_least", "next_policy_least", "next_data", "lower_by", "balance")


class Theirs:
    """CORL's CQL."""

    def __init__(self, corl: Any, spec: Spec, num_actions: int) -> None:
        self.trainer = build_cql(corl, spec, 1, num_actions=num_actions)

    def update(self, batch: list[Tensor]) -> float:
        """One update. Returns the gap."""
        return float(cql_losses(self.trainer.train(batch))["gap"])

    def best(self, obs: Tensor) -> Tensor:
        action: Tensor = self.trainer.actor(obs, deterministic=True)[0]
        return action

    def sample(self, obs: Tensor) -> Tensor:
        action: Tensor = self.trainer.actor(obs)[0]
        return action

    def values(self, obs: Tensor, action: Tensor) -> Tensor:
        return torch.stack([critic(obs, action) for critic in (self.trainer.critic_1, self.trainer.critic_2)])


class Ours:
    """The zoo's CQL, compiled."""

    def __init__(self, spec: Spec, num_actions: int) -> None:
        self.agent = cql.CQL(spec, cql.Config(num_actions=num_actions))
        self.compiled = compile_update(self.agent.update, device=torch.device("cpu"))

    def update(self, batch: list[Tensor]) -> float:
        """One update. Returns the gap."""
        obs, action, reward, next_obs, done = batch
        transitions = Batch(obs, action, reward[:, 0], next_obs, done[:, 0] > 0, torch.arange(len(obs)))
        return float(self.compiled(transitions)["gap"])

    def best(self, obs: Tensor) -> Tensor:
        return self.agent.actor.act(obs)

    def sample(self, obs: Tensor) -> Tensor:
        return self.agent.actor.act(obs, explore=True)

    def values(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.agent.head.value(self.agent.critic(obs, action))


@torch.no_grad()
def row(one: Theirs | Ours, data: dict[str, Tensor], reward: float, discount: float = 0.99) -> list[float]:
    """Mean values of the data's and the policy's actions, mean minima over critics of the latter, and `balance`."""
    obs, next_obs = data["observations"], data["next_observations"]
    value = one.values(obs, data["actions"]).mean()
    policy, least = one.values(obs, one.sample(obs)).mean(), one.values(obs, one.sample(obs)).amin(0).mean()
    next_least = one.values(next_obs, one.sample(next_obs)).amin(0).mean()
    next_data = one.values(next_obs, data["next_actions"]).mean()
    balance = (reward - (1 - discount) * value) / discount
    return [float(x) for x in (value, policy, least, next_least, next_data, next_data - next_least, balance)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corl", type=Path, help="CORL's folder algorithms/offline")
    parser.add_argument("--zoo", action="store_true", help="use the zoo's CQL instead of CORL's")
    parser.add_argument("--env", required=True)
    parser.add_argument("--data", type=Path, required=True, help="D4RL-layout HDF5")
    parser.add_argument("--num-actions", type=int, default=4, help="number of actions from each of three distributions")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("cql-values.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium" if args.zoo else "highest")
    corl, env = load_corl(args.corl / PEERS["cql"].file), environment_config(args.env)
    envs = make(env, 5)
    spec = Spec.of(envs.single_observation_space, envs.single_action_space)
    with h5py.File(args.data) as file:
        data = {name: file[name][()] for name in FIELDS}
    mean, std = normalize(corl, data)
    buffer = corl.ReplayBuffer(spec.obs_dim, spec.action_dim, len(data["rewards"]), device="cpu")
    buffer.load_d4rl_dataset(data)
    chosen = np.random.RandomState(0).randint(len(data["rewards"]) - 1, size=ROWS)
    some = {name: torch.from_numpy(data[name][chosen]) for name in FIELDS}
    some["next_actions"] = torch.from_numpy(data["actions"][chosen + 1])  # wrong only where an episode ends
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    one = Ours(spec, args.num_actions) if args.zoo else Theirs(corl, spec, args.num_actions)
    agent = Policy(one.best, spec, mean, std)
    with args.out.open("w", newline="") as file:
        written = csv.writer(file)
        written.writerow(["step", *VALUES, "gap", "return_mean"])
        for step in range(1, args.steps + 1):
            gap = one.update(buffer.sample(256))
            if step % 1000 == 0:
                returns = evaluate(agent, envs, args.seed).returns.mean() if step % 5000 == 0 else ""
                values = row(one, some, float(data["rewards"].mean()))
                written.writerow([step, *(round(value, 3) for value in values), round(gap, 3), returns])
                file.flush()
                print(step, *(f"{value:.2f}" for value in values), flush=True)


if __name__ == "__main__":
    main()
