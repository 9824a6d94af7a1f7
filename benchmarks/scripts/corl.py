"""Runs CORL's offline algorithms on one of the zoo's datasets, or compares their updates with the zoo's.

    git clone https://github.com/corl-team/CORL
    python benchmarks/scripts/corl.py iql CORL/algorithms/offline --data hopper-medium.hdf5 --steps 50000 --out corl.csv
    python benchmarks/scripts/corl.py iql CORL/algorithms/finetune --data hopper-medium.hdf5 --steps 20000 \
        --online-steps 20000
    python benchmarks/scripts/corl.py iql CORL/algorithms/offline --data hopper-medium.hdf5 --agree 300 --after 15000

riql is from its authors' repository, which is based on CORL: git clone https://github.com/YangRui2015/RIQL

The first command runs CORL's networks, buffer and update unchanged, with the default settings of its script and the
zoo's evaluation protocol. The second continues in the environment with the loop of CORL's finetune scripts: act, add
the transition to the dataset, and update on a batch of both. The third compares the parts of a run: the data, the
sampling of batches, the distribution of the initial weights, and the losses from the same weights on the same batches
with the same random numbers. Only the code around CORL's classes is replaced: the file is read with h5py, and the
imports that its training scripts need (d4rl, gym, pyrallis, wandb) are stubs. The script writes the columns of a run's
`evaluations.csv` that a learning curve needs.
"""

import argparse
import csv
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import scipy.stats
import torch
from torch import Tensor, nn

from zoo.agent import Agent
from zoo.algos import awac, bc, cql, edac, iql, riql, td3_bc
from zoo.data.batch import Batch
from zoo.data.dataset import Dataset
from zoo.data.load import load_arrays
from zoo.envs import EnvConfig, make
from zoo.nn import Normalizer
from zoo.nn.optim import Adam
from zoo.runs.evaluation import evaluate
from zoo.runs.stepper import EnvStepper
from zoo.settings.compose import compose
from zoo.spec import Spec

EVAL_EPISODES = 10
FIELDS = ("observations", "actions", "rewards", "next_observations", "terminals")

Pairs = Iterator[tuple[Tensor, Tensor]]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    torch.manual_seed(seed)
    yield


def same_seed(seed: int) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For updates that both draw the same random numbers in the same order."""
    return seeded(seed), seeded(seed)


@dataclass
class Peer:
    """One of CORL's algorithms, and the zoo's version of it.

    Attributes:
        file: CORL's file.
        build: CORL's module, the spec and the number of steps -> CORL's trainer.
        update: the name of the trainer's method that updates on a batch.
        act: the trainer and normalized observations -> its deterministic actions.
        ours: the spec and the number of steps -> the zoo's agent.
        pairs: the agent and the trainer -> each weight of both, as views with the same shape.
        losses: CORL's log of an update -> each loss under the zoo's name.
        prepare: CORL's module and the data; changes the data as CORL's script does before training.
        arguments: the number of an update -> the arguments of our update after the batch.
        hold: freezes, for a comparison, parameters that CORL trains and ours does not have.
        draws: a seed -> contexts in which CORL's update and ours draw the same random numbers.
        explore: the trainer and normalized observations -> its actions online.
        switch: changes the trainer between the last offline update and the first online one.
        halves: whether half of every online batch is new transitions; if not, batches are from one common buffer.
    """

    file: str
    build: Callable[[Any, Spec, int], Any]
    update: str
    act: Callable[[Any, Tensor], Tensor]
    ours: Callable[[Spec, int], Agent]
    pairs: Callable[[Any, Any], Pairs]
    losses: Callable[[dict[str, float]], dict[str, float]]
    prepare: Callable[[Any, dict[str, np.ndarray]], None] = lambda *_: None
    arguments: Callable[[int], tuple[Any, ...]] = lambda _: ()
    hold: Callable[[Any], None] = lambda _: None
    draws: Callable[[int], tuple[AbstractContextManager[None], AbstractContextManager[None]]] = same_seed
    explore: Callable[[Any, Tensor], Tensor] | None = None
    switch: Callable[[Any], None] = lambda _: None
    halves: bool = False


def adam(network: nn.Module, lr: float = 3e-4) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=lr)


def same(ours: nn.Module, theirs: nn.Module) -> Pairs:
    """The parameters of two networks with the same structure."""
    yield from zip(ours.parameters(), theirs.parameters(), strict=True)


def members(ensemble: nn.Module, networks: list[nn.Module]) -> Pairs:
    """The parameters of an ensemble and of the same number of networks."""
    for member, network in enumerate(networks):
        for parameter, value in zip(ensemble.parameters(), network.parameters(), strict=True):
            yield parameter[member], value if value.ndim == 2 else value[None]


# --- The algorithms ---------------------------------------------------------------------------------------------------


def build_iql(corl: Any, spec: Spec, steps: int) -> Any:
    actor = corl.GaussianPolicy(spec.obs_dim, spec.action_dim, 1.0)
    q, v = corl.TwinQ(spec.obs_dim, spec.action_dim), corl.ValueFunction(spec.obs_dim)
    return corl.ImplicitQLearning(1.0, actor, adam(actor), q, adam(q), v, adam(v), tau=0.005, max_steps=steps)


def iql_pairs(ours: Any, theirs: Any) -> Pairs:
    yield from same(ours.actor.net, theirs.actor.net)
    yield ours.actor.log_std, theirs.actor.log_std
    yield from same(ours.value, theirs.vf.v)
    yield from members(ours.critic, [theirs.qf.q1, theirs.qf.q2])
    yield from members(ours.target_critic, [theirs.q_target.q1, theirs.q_target.q2])


def build_td3_bc(corl: Any, spec: Spec, steps: int) -> Any:
    actor = corl.Actor(spec.obs_dim, spec.action_dim, 1.0)
    q1, q2 = (corl.Critic(spec.obs_dim, spec.action_dim) for _ in range(2))
    return corl.TD3_BC(1.0, actor, adam(actor), q1, adam(q1), q2, adam(q2))


def td3_bc_pairs(ours: td3_bc.TD3BC, theirs: Any) -> Pairs:
    yield from same(ours.actor, theirs.actor)
    yield from members(ours.critic, [theirs.critic_1.net, theirs.critic_2.net])
    yield from same(ours.target_actor, theirs.actor_target)
    yield from members(ours.target_critic, [theirs.critic_1_target.net, theirs.critic_2_target.net])


def build_bc(corl: Any, spec: Spec, steps: int) -> Any:
    actor = corl.Actor(spec.obs_dim, spec.action_dim, 1.0)
    return corl.BC(1.0, actor, adam(actor))


def build_awac(corl: Any, spec: Spec, steps: int) -> Any:
    shape = (spec.obs_dim, spec.action_dim, 256)
    actor, q1, q2 = corl.Actor(*shape), corl.Critic(*shape), corl.Critic(*shape)
    return corl.AdvantageWeightedActorCritic(actor, adam(actor), q1, adam(q1), q2, adam(q2))


def awac_pairs(ours: awac.AWAC, theirs: Any) -> Pairs:
    yield from same(ours.actor.net, theirs._actor._mlp)
    yield ours.actor.log_std, theirs._actor._log_std
    yield from members(ours.critic, [theirs._critic_1._mlp, theirs._critic_2._mlp])
    yield from members(ours.target_critic, [theirs._target_critic_1._mlp, theirs._target_critic_2._mlp])


def build_edac(corl: Any, spec: Spec, steps: int) -> Any:
    actor = corl.Actor(spec.obs_dim, spec.action_dim, 256)
    critic = corl.VectorizedCritic(spec.obs_dim, spec.action_dim, 256, 10)
    return corl.EDAC(actor, adam(actor), critic, adam(critic), alpha_learning_rate=3e-4)


def edac_pairs(ours: edac.EDAC, theirs: Any) -> Pairs:
    *hidden, last = (layer for layer in ours.actor.net if isinstance(layer, nn.Linear))
    for layer, other in zip(hidden, theirs.actor.trunk[::2], strict=True):
        yield from same(layer, other)
    for parameter, mean, log_std in zip(
        last.parameters(), theirs.actor.mu.parameters(), theirs.actor.log_sigma.parameters(), strict=True
    ):
        half = len(parameter) // 2
        yield parameter[:half], mean
        yield parameter[half:], log_std
    yield ours.log_alpha, theirs.log_alpha[0]
    yield from same(ours.critic, theirs.critic.critic)
    yield from same(ours.target_critic, theirs.target_critic.critic)


def robust_data(corl: Any, data: dict[str, np.ndarray]) -> None:
    """Makes the authors' buffer work without marks of corrupted transitions, and their statistics those of the data."""
    states = np.concatenate([data["observations"], data["next_observations"]])
    statistics, marks = corl.compute_mean_std, np.zeros(len(data["rewards"]))
    corl.compute_mean_std = lambda _, eps: statistics(states, eps)
    corl.ReplayBuffer = partial(corl.ReplayBuffer, attack_indexes=marks)


def build_riql(corl: Any, spec: Spec, steps: int) -> Any:
    actor = corl.DeterministicPolicy(spec.obs_dim, spec.action_dim, 1.0)
    q, v = corl.VectorizedQ(spec.obs_dim, spec.action_dim), corl.ValueFunction(spec.obs_dim)
    learner = corl.ImplicitQLearning(1.0, actor, adam(actor), q, adam(q), v, adam(v), max_steps=steps)
    learner.unmarked = lambda batch: learner.train([*batch, torch.zeros(len(batch[0]))])
    return learner


def riql_pairs(ours: riql.RIQL, theirs: Any) -> Pairs:
    yield from same(ours.actor, theirs.actor)
    yield from same(ours.value, theirs.vf.v)
    yield from same(ours.critic, theirs.qf.critic)
    yield from same(ours.target_critic, theirs.q_target.critic)


def build_cql(corl: Any, spec: Spec, steps: int, kind: str = "ContinuousCQL", num_actions: int = 10) -> Any:
    """As in the offline script. The last layers of the finetune scripts' critics are initialized with gain sqrt(2)."""
    q1, q2 = (corl.FullyConnectedQFunction(spec.obs_dim, spec.action_dim, True, 3) for _ in range(2))
    actor = corl.TanhGaussianPolicy(spec.obs_dim, spec.action_dim, 1.0)
    return getattr(corl, kind)(
        q1, adam(q1), q2, adam(q2), actor, adam(actor, 3e-5), -float(spec.action_dim), policy_lr=3e-5, cql_alpha=10.0,
        bc_steps=0, cql_n_actions=num_actions,
    )  # fmt: skip


def cql_pairs(ours: cql.CQL, theirs: Any) -> Pairs:
    *rest, (bias, other) = same(ours.actor.net, theirs.actor.base_network)
    half = len(bias) // 2
    yield from rest
    yield bias[:half], other[:half]
    yield bias[half:], other[half:] + theirs.actor.log_std_offset()
    yield ours.log_alpha, theirs.log_alpha()
    yield from members(ours.critic, [theirs.critic_1.network, theirs.critic_2.network])
    yield from members(ours.target_critic, [theirs.target_critic_1.network, theirs.target_critic_2.network])


def hold_scale(theirs: Any) -> None:
    """Freezes the scale and offset of the log standard deviations, which CORL also trains."""
    theirs.actor.log_std_multiplier.requires_grad_(False)
    theirs.actor.log_std_offset.requires_grad_(False)


def cql_losses(logged: dict[str, float]) -> dict[str, float]:
    return {
        "critic_loss": logged["qf1_loss"] + logged["qf2_loss"],
        "gap": (logged["cql_qf1_diff"] + logged["cql_qf2_diff"]) / 2,
        "actor_loss": logged["policy_loss"],
    }


def cql_draws(seed: int) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """CORL draws actions as `[B, n, A]`, one kind after the other; ours draws `[n, B, A]` in another order."""
    generator = torch.Generator().manual_seed(seed)
    action, next_action = torch.randn(2, 256, 3, generator=generator)
    actions, next_actions = torch.randn(2, 256, 10, 3, generator=generator)
    uniform = torch.rand(256, 10, 3, generator=generator)
    normal = [action, next_action, actions, next_actions]
    theirs = drawing(
        {"torch.distributions.normal._standard_normal": normal, "torch.Tensor.uniform_": [2 * uniform - 1]}
    )
    both = torch.stack([actions, next_actions]).transpose(1, 2)
    ours = drawing(
        {
            "torch.randn_like": [action, next_action],
            "torch.Tensor.normal_": [both],
            "torch.rand_like": [uniform.transpose(0, 1)],
        }
    )
    return theirs, ours


@contextmanager
def drawing(numbers: dict[str, list[Tensor]]) -> Iterator[None]:
    """Replaces the named functions, so that each returns its given numbers in turn."""
    with ExitStack() as patches:
        for name, values in numbers.items():
            patches.enter_context(mock.patch(name, side_effect=values))
        yield


def add_returns(corl: Any, data: dict[str, np.ndarray]) -> None:
    limit = types.SimpleNamespace(_max_episode_steps=1000)
    data["mc_returns"] = np.array(corl.get_return_to_go(data, limit, corl.TrainConfig()))


def iql_losses(logged: dict[str, float]) -> dict[str, float]:
    return {"critic_loss": logged["q_loss"]} | {name: logged[name] for name in ("value_loss", "actor_loss")}


def as_logged(logged: dict[str, float]) -> dict[str, float]:
    return {name: logged[name] for name in ("critic_loss", "actor_loss") if name in logged}


def keep_best(corl: Any, data: dict[str, np.ndarray]) -> None:
    corl.keep_best_trajectories(data, 0.1, 1.0)


PEERS = {
    "iql": Peer(
        "iql.py", build_iql, "train", lambda t, obs: t.actor(obs).mean,
        lambda spec, steps: iql.IQL(spec, iql.Config(), steps), iql_pairs,
        iql_losses, explore=lambda t, obs: t.actor(obs).sample(),
    ),
    "riql": Peer(
        "RIQL.py", build_riql, "unmarked", lambda t, obs: t.actor(obs),
        lambda spec, steps: riql.RIQL(spec, riql.Config(), steps), riql_pairs, iql_losses, robust_data,
    ),
    "td3_bc": Peer(
        "td3_bc.py", build_td3_bc, "train", lambda t, obs: t.actor(obs),
        lambda spec, _: td3_bc.TD3BC(spec, td3_bc.Config()), td3_bc_pairs,
        as_logged, arguments=lambda step: (step % 2 == 0,),
    ),
    "bc": Peer(
        "any_percent_bc.py", build_bc, "train", lambda t, obs: t.actor(obs), lambda spec, _: bc.BC(spec, bc.Config()),
        lambda ours, theirs: same(ours.actor, theirs.actor), as_logged, keep_best,
    ),
    "awac": Peer(
        "awac.py", build_awac, "update", lambda t, obs: t._actor._get_policy(obs).mean,
        lambda spec, _: awac.AWAC(spec, awac.Config()), awac_pairs,
        as_logged, explore=lambda t, obs: t._actor(obs)[0],
    ),
    "edac": Peer(
        "edac.py", build_edac, "update", lambda t, obs: t.actor(obs, deterministic=True)[0],
        lambda spec, _: edac.EDAC(spec, edac.Config()), edac_pairs,
        as_logged,
    ),
    "cql": Peer(
        "cql.py", build_cql, "train", lambda t, obs: t.actor(obs, deterministic=True)[0],
        lambda spec, _: cql.CQL(spec, cql.Config()), cql_pairs, cql_losses, draws=cql_draws,
        hold=hold_scale, explore=lambda t, obs: t.actor(obs)[0],
    ),
}  # fmt: skip
PEERS["cal_ql"] = replace(
    PEERS["cql"], file="cal_ql.py", build=partial(build_cql, kind="CalQL"), prepare=add_returns,
    switch=lambda t: t.switch_calibration(), halves=True,
)  # fmt: skip


# --- Training and comparing -------------------------------------------------------------------------------------------


def load_corl(path: Path) -> Any:
    """One of CORL's files as a module, without the packages that only its script needs."""
    stubs: dict[str, Any] = {
        name: types.ModuleType(name) for name in ("d4rl", "gym", "pyrallis", "wandb", "attack", "RIQL_config")
    }
    stubs["gym"].Env = object
    stubs["pyrallis"].wrap = lambda: lambda function: function
    stubs["attack"].attack_dataset = stubs["RIQL_config"].get_config = None
    spec = importlib.util.spec_from_file_location(f"corl_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    hidden = {name: sys.modules[name] for name in stubs if name in sys.modules}
    sys.modules.update(stubs)
    spec.loader.exec_module(module)
    for name in stubs:
        del sys.modules[name]
    sys.modules.update(hidden)
    return module


class Policy(Agent):
    """CORL's policy on raw observations."""

    def __init__(self, act: Callable[[Tensor], Tensor], spec: Spec, mean: np.ndarray, std: np.ndarray) -> None:
        super().__init__()
        self.play, self.spec = act, spec
        self.mean, self.std = nn.Parameter(torch.as_tensor(mean)), nn.Parameter(torch.as_tensor(std))

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.play((obs - self.mean) / self.std).clamp(-1, 1)


@torch.no_grad()
def collector(
    peer: Peer, theirs: Any, buffer: Any, env: EnvConfig, mean: np.ndarray, std: np.ndarray, seed: int
) -> Iterator[None]:
    """Acts and stores one transition at each iteration, like the loops of CORL's finetune scripts."""
    assert peer.explore is not None
    envs = EnvStepper(make(env, 1), seed, torch.device("cpu"), lambda *_: None)
    while True:
        obs = (envs.obs.numpy() - mean) / std
        _, action, reward, next_obs, terminated, _ = envs.step(peer.explore(theirs, torch.from_numpy(obs)).clamp(-1, 1))
        next_obs = (next_obs.numpy() - mean) / std
        buffer.add_transition(obs[0], action[0].numpy(), float(reward), next_obs[0], bool(terminated))
        yield


def normalize(corl: Any, data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Normalizes the observations in `data` as CORL's scripts do. Returns their mean and standard deviation."""
    mean, std = corl.compute_mean_std(data["observations"], eps=1e-3)
    for name in ("observations", "next_observations"):
        data[name] = corl.normalize_states(data[name], mean, std)
    return mean, std


def print_data(data: Dataset, buffer: Any) -> None:
    """Prints the largest difference of the transitions, sorted by their actions, and how evenly ours are sampled."""
    size = len(data.reward)
    theirs = [buffer._states, buffer._actions, buffer._rewards[:, 0], buffer._next_states, buffer._dones[:, 0]]
    ours = [data.obs, data.action, data.reward, data.next_obs, data.terminated.float()]
    theirs, ours = ([field[np.lexsort(fields[1].T.numpy())] for field in fields] for fields in (theirs, ours))
    largest = [f"{(x - y).abs().max():.1e}" for x, y in zip(ours, theirs, strict=True)]
    print(f"{size:,} and {buffer._size:,} transitions")
    print("largest difference in obs, action, reward, next_obs, terminated:", *largest)
    sampled = torch.cat([data.sample(256).index for _ in range(4_000)])
    counts = torch.bincount(sampled, minlength=size).float()
    print(f"times sampled, variance over mean (1 if uniform, with replacement): {counts.var() / counts.mean():.3f}")


def print_initial_weights(peer: Peer, corl: Any, spec: Spec, agents: int) -> None:
    """Prints the Kolmogorov-Smirnov test of each layer's initial weights, over `agents` agents of each library."""
    samples: list[list[Tensor]] = []  # for each agent and layer, some weights of ours and the same number of CORL's
    for _ in range(agents):
        both = peer.pairs(peer.ours(spec, 1), peer.build(corl, spec, 1))
        samples.append([torch.stack([x.flatten()[:50], y.flatten()[:50]]).detach() for x, y in both if x.requires_grad])
    layers = [torch.cat(layer, 1).numpy() for layer in zip(*samples, strict=True)]
    smallest = min(scipy.stats.ks_2samp(ours, theirs).pvalue for ours, theirs in layers)
    print(f"initial weights and biases, {len(layers)} of {agents} agents each: smallest p {smallest:.3f}")


@torch.no_grad()
def adopt(peer: Peer, ours: Agent, theirs: Any) -> None:
    """Copies CORL's weights and the state of its optimizers to our agent.

    Each kind of state is first written into CORL's weights, so that it is copied like a weight.
    """
    optimizers = [one for one in vars(theirs).values() if isinstance(one, torch.optim.Optimizer)]
    states = {
        weight: one.state[weight] for one in optimizers for group in one.param_groups for weight in group["params"]
    }
    weights = {weight: weight.clone() for weight in states}

    def copy() -> None:
        for parameter, value in peer.pairs(ours, theirs):
            parameter.copy_(value)

    for theirs_name, ours_name in {"step": "step", "exp_avg": "mean_{}", "exp_avg_sq": "square_{}"}.items():
        for weight, state in states.items():
            weight.copy_(state[theirs_name]) if state else weight.zero_()
        copy()
        for adam in (module for module in ours.modules() if isinstance(module, Adam)):
            for i, parameter in enumerate(adam.moved):
                kept = adam.get_buffer(ours_name.format(i))
                kept.copy_(parameter.flatten()[0] if kept.ndim == 0 else parameter)
    for weight, value in weights.items():
        weight.copy_(value)
    copy()


def print_agreement(peer: Peer, corl: Any, buffer: Any, spec: Spec, updates: int, after: int) -> None:
    """Compares the losses of both on the same batches and random numbers, after CORL has made `after` updates."""
    theirs, ours = peer.build(corl, spec, after + updates), peer.ours(spec, after + updates)
    peer.hold(theirs)
    for _ in range(after):
        getattr(theirs, peer.update)(buffer.sample(256))
    adopt(peer, ours, theirs)
    largest: dict[str, float] = {}
    for update in range(1, updates + 1):
        obs, action, reward, next_obs, done = batch = buffer.sample(256)
        their_draws, our_draws = peer.draws(update)
        with their_draws:
            losses = peer.losses(getattr(theirs, peer.update)(batch))
        transitions = Batch(obs, action, reward[:, 0], next_obs, done[:, 0] > 0, torch.arange(256))
        with our_draws:
            metrics = ours.update(transitions, *peer.arguments(update))
        for name, loss in losses.items():
            largest[name] = float(np.maximum(largest.get(name, 0.0), abs(float(metrics[name]) / loss - 1)))  # or NaN
        if update in (1, 10, 30, 100, 300, 1_000) or update == updates:
            listed = ", ".join(f"{name} {difference:.1e}" for name, difference in largest.items())
            print(f"largest relative difference in updates {after + 1:,} to {after + update:,}: {listed}", flush=True)


def main() -> None:
    """Trains with evaluations, or compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algo", choices=PEERS, help="bc is 10 %% BC")
    parser.add_argument("corl", type=Path, help="CORL's folder algorithms/offline; for riql, the authors' folder")
    parser.add_argument("--data", type=Path, required=True, help="D4RL-layout HDF5")
    parser.add_argument("--rows", type=int, help="learn from only the first ROWS transitions of the file")
    parser.add_argument("--env", default="hopper")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--online-steps", type=int, default=0, help="environment steps afterwards, one update each")
    parser.add_argument("--eval-every", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("corl.csv"))
    parser.add_argument("--agree", type=int, metavar="UPDATES", help="compare this number of updates instead")
    parser.add_argument("--after", type=int, default=0, metavar="UPDATES", help="train CORL for so many first")
    args = parser.parse_args()
    if args.rows and args.agree:
        parser.error("--agree uses the whole file: leave out --rows")
    torch.set_num_threads(1)
    peer = PEERS[args.algo]
    if args.agree and args.algo == "cal_ql":
        parser.error("--agree: for cal_ql, use python benchmarks/scripts/first_update.py cal_ql --checkout CORL")
    if args.online_steps and peer.explore is None:
        parser.error(f"--online-steps: {args.algo} does not continue online here")
    corl = load_corl(args.corl / peer.file)
    env = compose(["algo=bc", f"env={args.env}"])[0].env
    envs = make(env, EVAL_EPISODES)
    spec = Spec.of(envs.single_observation_space, envs.single_action_space)
    with h5py.File(args.data) as file:
        data = {name: file[name][: args.rows] for name in FIELDS}
    peer.prepare(corl, data)
    mean, std = np.zeros(spec.obs_dim, np.float32), np.ones(spec.obs_dim, np.float32)
    if normalizing := hasattr(corl, "compute_mean_std"):  # all but edac
        mean, std = normalize(corl, data)
    size = len(data["rewards"]) + args.online_steps
    buffer = corl.ReplayBuffer(spec.obs_dim, spec.action_dim, size, device="cpu")
    buffer.load_d4rl_dataset(data)

    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    if args.agree:
        arrays, _ = load_arrays(env, str(args.data))
        ours = Dataset(arrays, spec, torch.device("cpu"))
        if args.algo == "bc":
            ours.top_episodes(0.1)
        if normalizing:
            normalizer = Normalizer(spec.obs_shape)
            normalizer.fit(torch.cat([ours.obs, ours.next_obs]) if args.algo == "riql" else ours.obs)
            ours.map_obs(normalizer)
        print_data(ours, buffer)
        print_initial_weights(peer, corl, spec, agents=100)
        print_agreement(peer, corl, buffer, spec, args.agree, args.after)
        return
    theirs = peer.build(corl, spec, args.steps)
    agent = Policy(lambda obs: peer.act(theirs, obs), spec, mean, std)
    own = corl.ReplayBuffer(spec.obs_dim, spec.action_dim, args.online_steps, device="cpu") if peer.halves else buffer
    collect = collector(peer, theirs, own, env, mean, std, args.seed)
    with args.out.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "return_mean", "return_std", "score", "returns"])
        for step in range(1, args.steps + args.online_steps + 1):
            if step == args.steps + 1:
                peer.switch(theirs)
            if online := step > args.steps:
                next(collect)
            batch = buffer.sample(128 if online and peer.halves else 256)
            if online and peer.halves:
                batch = [torch.cat(pair) for pair in zip(batch, own.sample(128), strict=True)]
            getattr(theirs, peer.update)(batch)
            if step % args.eval_every == 0:
                returns = evaluate(agent, envs, args.seed).returns
                listed = " ".join(f"{one:.6f}" for one in returns)
                rows.writerow([step, returns.mean(), returns.std(), env.normalize(returns.mean()), listed])
                file.flush()
                print(f"step {step:>9,}  return {returns.mean():8.1f} +- {returns.std():.1f}", flush=True)


if __name__ == "__main__":
    main()
