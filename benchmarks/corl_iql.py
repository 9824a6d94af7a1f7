"""Learning curve of CORL's own IQL on a file of the zoo's, under the zoo's evaluation protocol.

    git clone https://github.com/corl-team/CORL
    python benchmarks/corl_iql.py CORL/algorithms/offline/iql.py --data hopper-medium.hdf5 --steps 50000 --out corl.csv

Runs CORL's networks, buffer and update as they stand, with its script's default settings (Gaussian policy, target rate
0.005, rewards as they are, normalized observations). Only what surrounds them is replaced: the file is read with h5py,
and the imports that its training script needs (d4rl, gym, pyrallis, wandb) are stood in for. Writes the columns of a
run's `evaluations.csv` that a curve needs.
"""

import argparse
import csv
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from zoo.agent import Agent
from zoo.compose import compose
from zoo.envs import Spec, make
from zoo.evaluation import evaluate

EVAL_EVERY, EVAL_EPISODES = 10_000, 10
FIELDS = ("observations", "actions", "rewards", "next_observations", "terminals")


def load_corl(path: Path) -> Any:
    """CORL's `iql.py` as a module, without the packages that only its script needs."""
    for name in ("d4rl", "gym", "pyrallis", "wandb"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["gym"].Env = object  # type: ignore[attr-defined]
    sys.modules["pyrallis"].wrap = lambda: lambda function: function  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("corl_iql", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["corl_iql"] = module
    spec.loader.exec_module(module)
    return module


class Policy(Agent):
    """CORL's policy on raw observations."""

    def __init__(self, policy: torch.nn.Module, spec: Spec, mean: np.ndarray, std: np.ndarray) -> None:
        super().__init__()
        self.policy, self.spec = policy, spec
        self.mean, self.std = torch.as_tensor(mean), torch.as_tensor(std)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        action: Tensor = self.policy((obs - self.mean) / self.std).mean
        return action.clamp(-1, 1)


def main() -> None:
    """Trains, evaluating on the way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corl", type=Path, help="CORL's algorithms/offline/iql.py")
    parser.add_argument("--data", type=Path, required=True, help="D4RL-layout HDF5")
    parser.add_argument("--env", default="hopper")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    corl = load_corl(args.corl)
    env = compose(["algo=iql", f"env={args.env}"])[0].env
    envs = make(env, EVAL_EPISODES)
    spec = Spec.of(envs.single_observation_space, envs.single_action_space)
    with h5py.File(args.data) as file:
        data = {name: file[name][()] for name in FIELDS}
    mean, std = corl.compute_mean_std(data["observations"], eps=1e-3)
    for name in ("observations", "next_observations"):
        data[name] = corl.normalize_states(data[name], mean, std)
    buffer = corl.ReplayBuffer(spec.obs_dim, spec.action_dim, len(data["rewards"]), "cpu")
    buffer.load_d4rl_dataset(data)

    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    critic, value = corl.TwinQ(spec.obs_dim, spec.action_dim), corl.ValueFunction(spec.obs_dim)
    actor = corl.GaussianPolicy(spec.obs_dim, spec.action_dim, 1.0)
    optimizers = {
        f"{name}_optimizer": torch.optim.Adam(network.parameters(), lr=3e-4)
        for name, network in (("actor", actor), ("q", critic), ("v", value))
    }
    trainer = corl.ImplicitQLearning(
        1.0, actor, q_network=critic, v_network=value, tau=0.005, max_steps=args.steps, **optimizers
    )
    agent = Policy(actor, spec, mean, std)
    with args.out.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "return_mean", "return_std", "score", "returns"])
        for step in range(1, args.steps + 1):
            trainer.train(buffer.sample(256))
            if step % EVAL_EVERY == 0:
                returns = evaluate(agent, envs, args.seed).returns
                listed = " ".join(f"{one:.6f}" for one in returns)
                rows.writerow([step, returns.mean(), returns.std(), env.normalize(returns.mean()), listed])
                file.flush()
                print(f"step {step:>9,}  return {returns.mean():8.1f} +- {returns.std():.1f}", flush=True)


if __name__ == "__main__":
    main()
