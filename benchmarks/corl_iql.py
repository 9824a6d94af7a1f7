"""Learning curve of CORL's own IQL on a file of the zoo's, under the zoo's evaluation protocol.

    git clone https://github.com/corl-team/CORL
    python benchmarks/corl_iql.py CORL/algorithms/offline/iql.py --data hopper-medium.hdf5 --steps 50000 --out corl.csv
    python benchmarks/corl_iql.py CORL/algorithms/offline/iql.py --data hopper-medium.hdf5 --agree 300

The first runs CORL's networks, buffer and update as they stand, with its script's default settings (Gaussian policy,
target rate 0.005, rewards as they are, normalized observations); the second compares all that a run is made of: the
data, the distribution of the initial weights, how batches are drawn, and the losses from the same weights on the same
batches. Only what surrounds CORL's classes is replaced: the file is read with h5py, and the imports that its training
script needs (d4rl, gym, pyrallis, wandb) are stood in for. Writes the columns of a run's `evaluations.csv` that a curve
needs.
"""

import argparse
import csv
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.stats
import torch
from torch import Tensor

from zoo import datasets
from zoo.agent import Agent
from zoo.algos.iql import IQL, Config
from zoo.buffers import Batch
from zoo.compose import compose
from zoo.datasets import Dataset
from zoo.envs import Spec, make, time_limit
from zoo.evaluation import evaluate
from zoo.nn import Normalizer

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


def trainer(corl: Any, spec: Spec, steps: int) -> Any:
    """CORL's agent with its script's defaults."""
    networks = {
        "actor": corl.GaussianPolicy(spec.obs_dim, spec.action_dim, 1.0),
        "q": corl.TwinQ(spec.obs_dim, spec.action_dim),
        "v": corl.ValueFunction(spec.obs_dim),
    }
    optimizers = {
        f"{name}_optimizer": torch.optim.Adam(network.parameters(), lr=3e-4) for name, network in networks.items()
    }
    actor, critic, value = networks.values()
    return corl.ImplicitQLearning(
        1.0, actor, q_network=critic, v_network=value, tau=0.005, max_steps=steps, **optimizers
    )


def pairs(ours: IQL, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Each weight of ours and CORL's own, as views of one shape; the target critics' last."""
    for network, other in ((ours.actor.net, theirs.actor.net), (ours.value, theirs.vf.v)):
        yield from zip(network.parameters(), other.parameters(), strict=True)
    for critic, both in ((ours.critic, theirs.qf), (ours.target_critic, theirs.q_target)):
        for member, other in enumerate((both.q1, both.q2)):
            for parameter, value in zip(critic.parameters(), other.parameters(), strict=True):
                yield parameter[member], value.T if value.ndim == 2 else value[None]


def print_data(data: Dataset, buffer: Any) -> None:
    """How far the transitions lie apart, and how evenly ours are drawn."""
    theirs = (buffer._states, buffer._actions, buffer._rewards[:, 0], buffer._next_states, buffer._dones[:, 0])
    ours = (data.obs, data.action, data.reward, data.next_obs, data.terminated.float())
    largest = [f"{(x - y).abs().max():.1e}" for x, y in zip(ours, theirs, strict=True)]
    print(f"{len(data.reward):,} and {buffer._size:,} transitions")
    print("largest difference in obs, action, reward, next_obs, terminated:", *largest)
    drawn = torch.cat([data.sample(256).index for _ in range(4_000)])
    counts = torch.bincount(drawn, minlength=len(data.reward)).float()
    print(f"times drawn, variance over mean (1 if uniform, with replacement): {counts.var() / counts.mean():.3f}")


def print_initial_weights(corl: Any, spec: Spec, agents: int) -> None:
    """The Kolmogorov-Smirnov test of each layer's initial weights, over so many agents of each."""
    samples: list[list[Tensor]] = []  # of each agent, of each layer: some weights of ours and as many of CORL's
    for _ in range(agents):
        both = pairs(IQL(spec, Config()), trainer(corl, spec, 1))
        samples.append([torch.stack([x.flatten()[:50], y.flatten()[:50]]).detach() for x, y in both if x.requires_grad])
    layers = [torch.cat(layer, 1).numpy() for layer in zip(*samples, strict=True)]
    smallest = min(scipy.stats.ks_2samp(ours, theirs).pvalue for ours, theirs in layers)
    print(f"initial weights and biases, {len(layers)} of {agents} agents each: smallest p {smallest:.3f}")


def print_agreement(corl: Any, buffer: Any, spec: Spec, updates: int) -> None:
    """The losses of both, from the same weights, on the same batches."""
    theirs = trainer(corl, spec, updates)
    ours = IQL(spec, Config(), decay_steps=updates)
    with torch.no_grad():
        for parameter, value in pairs(ours, theirs):
            parameter.copy_(value)
    names = {"value_loss": "value_loss", "critic_loss": "q_loss", "actor_loss": "actor_loss"}
    largest = dict.fromkeys(names, 0.0)
    for update in range(1, updates + 1):
        obs, action, reward, next_obs, done = batch = buffer.sample(256)
        losses = theirs.train(batch)
        metrics = ours.update(Batch(obs, action, reward[:, 0], next_obs, done[:, 0] > 0, torch.arange(256)))
        for name, other in names.items():
            largest[name] = max(largest[name], abs(float(metrics[name]) / losses[other] - 1))
        if update in (1, 10, 30, 100, 300, 1_000) or update == updates:
            listed = ", ".join(f"{name} {difference:.1e}" for name, difference in largest.items())
            print(f"largest relative difference in {update:>5} updates: {listed}", flush=True)


def main() -> None:
    """Trains, evaluating on the way, or compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corl", type=Path, help="CORL's algorithms/offline/iql.py")
    parser.add_argument("--data", type=Path, required=True, help="D4RL-layout HDF5")
    parser.add_argument("--env", default="hopper")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("corl.csv"))
    parser.add_argument("--agree", type=int, metavar="UPDATES", help="compare so many updates instead")
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
    if args.agree:
        arrays, _ = datasets.load(env, str(args.data), time_limit(env.id))
        ours = Dataset(arrays, spec, torch.device("cpu"))
        normalizer = Normalizer(spec.obs_shape)
        normalizer.fit(ours.obs)
        ours.map_obs(normalizer)
        print_data(ours, buffer)
        print_initial_weights(corl, spec, agents=100)
        print_agreement(corl, buffer, spec, args.agree)
        return
    theirs = trainer(corl, spec, args.steps)
    agent = Policy(theirs.actor, spec, mean, std)
    with args.out.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "return_mean", "return_std", "score", "returns"])
        for step in range(1, args.steps + 1):
            theirs.train(buffer.sample(256))
            if step % EVAL_EVERY == 0:
                returns = evaluate(agent, envs, args.seed).returns
                listed = " ".join(f"{one:.6f}" for one in returns)
                rows.writerow([step, returns.mean(), returns.std(), env.normalize(returns.mean()), listed])
                file.flush()
                print(f"step {step:>9,}  return {returns.mean():8.1f} +- {returns.std():.1f}", flush=True)


if __name__ == "__main__":
    main()
