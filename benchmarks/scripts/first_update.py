"""Compares an algorithm's first update with other code, from the same weights, batch and random numbers.

    python benchmarks/scripts/first_update.py dql --checkout DIFFUSION_POLICIES
    python benchmarks/scripts/first_update.py fql --checkout FQL --python PYTHON_WITH_JAX
    python benchmarks/scripts/first_update.py cal_ql --checkout CORL

The checkouts are clones of github Zhendong-Wang/Diffusion-Policies-for-Offline-RL and github seohongpark/fql, which are
the authors', and of github corl-team/CORL. FQL's code is run by another Python with jax, flax, optax, distrax and
ml_collections. Everything is in float64; dql and fql use small networks. The script prints the relative differences
|ours - theirs| / |theirs| of the losses and of the changes of the weights; for cal_ql, the largest over its layers.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from zoo.algos import cql, dql, fql
from zoo.benchmarks.scripts import corl
from zoo.benchmarks.scripts.authors import largest, report
from zoo.data.batch import Batch
from zoo.data.monte_carlo import MonteCarloBatch
from zoo.spec import Spec

OBS, ACTIONS, ROWS, WIDTH = 11, 3, 64, 256  # Diffusion-QL's code ignores the setting: its layers have 256 units
SPEC = Spec((OBS,), (-1.0,) * ACTIONS, (1.0,) * ACTIONS)

Differences = dict[str, float]


def random_batch() -> Batch:
    obs, next_obs = torch.randn(2, ROWS, OBS)
    action = 2 * torch.rand(ROWS, ACTIONS) - 1
    reward, terminated = torch.randn(ROWS), torch.rand(ROWS) < 0.2
    return Batch(obs, action, reward, next_obs, terminated, torch.arange(ROWS))


@contextlib.contextmanager
def drawing(**queues: list[Any]) -> Iterator[None]:
    """Replaces functions of torch, so that each returns the values in its queue in turn."""
    left = {name: iter(queue) for name, queue in queues.items()}
    with contextlib.ExitStack() as stack:
        for name, queue in left.items():
            stack.enter_context(mock.patch.object(torch, name, side_effect=queue))
        yield
    unused = [name for name, queue in left.items() if next(queue, None) is not None]
    assert not unused, f"not all random numbers of {unused} were drawn"


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float(((ours - theirs).norm() / theirs.norm()).detach())


def moves(before: dict[str, Tensor], ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> Differences:
    """The relative difference of the changes of each network's weights, whose names begin with the network's name."""
    found = {}
    for network in dict.fromkeys(name.partition(".")[0] for name in before):
        names = [name for name in before if name.partition(".")[0] == network]
        ours_, theirs_ = (torch.cat([(to[name] - before[name]).flatten() for name in names]) for to in (ours, theirs))
        found[f"{network}'s weights"] = relative(ours_, theirs_)
    return found


# --- Diffusion-QL -----------------------------------------------------------------------------------------------------


def dql_weights(theirs: Any) -> dict[str, Tensor]:
    """The weights of the authors' agent, by the zoo's names."""
    found = {}
    for network, actor in (("policy", theirs.actor), ("target_policy", theirs.ema_model)):
        for part, layers in (
            ("embedding.net", actor.model.time_mlp),
            ("net", [*actor.model.mid_layer, actor.model.final_layer]),
        ):
            linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
            for i, layer in enumerate(linear):
                found[f"{network}.{part}.{2 * i}.weight"] = layer.weight
                found[f"{network}.{part}.{2 * i}.bias"] = layer.bias
    for network, critic in (("critic", theirs.critic), ("target_critic", theirs.critic_target)):
        for i in range(0, len(critic.q1_model), 2):
            both = critic.q1_model[i], critic.q2_model[i]
            found[f"{network}.{i}.weight"] = torch.stack([layer.weight for layer in both])
            found[f"{network}.{i}.bias"] = torch.stack([layer.bias for layer in both])[:, None]
    return {name: weight.detach().clone() for name, weight in found.items()}


def compare_dql(checkout: Path, backup_actions: int) -> Differences:
    sys.path.insert(0, str(checkout))
    from agents.ql_diffusion import Diffusion_QL  # type: ignore[import-not-found]

    torch.manual_seed(0)
    config = dql.Config(eta=0.7, backup_actions=backup_actions, max_grad_norm=0.5, hidden=[WIDTH] * 3)
    theirs = Diffusion_QL(
        OBS, ACTIONS, 1.0, "cpu", config.discount, config.tau, max_q_backup=backup_actions > 1, eta=config.eta,
        beta_schedule="vp", n_timesteps=config.diffusion_steps, step_start_ema=0, lr=config.actor_lr,
        grad_norm=config.max_grad_norm,
    )  # fmt: skip
    for network in (theirs.actor, theirs.ema_model, theirs.critic, theirs.critic_target):
        network.double()
    for network in (theirs.ema_model, theirs.critic_target):  # otherwise the targets equal the networks
        for parameter in network.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
    before = dql_weights(theirs)
    ours = dql.DQL(SPEC, config).double()
    ours.load_state_dict(before, strict=False)

    batch, steps, n = random_batch(), config.diffusion_steps, backup_actions
    next_noise = torch.randn(steps, n, ROWS, ACTIONS)
    noise = torch.randn(steps, ROWS, ACTIONS)
    cloned, step = torch.randn(ROWS, ACTIONS), torch.randint(steps, (ROWS,))
    with drawing(randn=[next_noise, noise], randn_like=[cloned], randint=[step], rand_like=[torch.tensor(0.9)]):
        metrics = ours.update(batch)
    repeated = next_noise.transpose(1, 2).reshape(steps, ROWS * n, ACTIONS)  # a row's actions are adjacent there
    begins, goes_on = [], []
    for chain in (repeated, noise):  # their code also draws noise for the last step and multiplies it by 0
        begins.append(chain[-1])
        goes_on.append([*chain[:-1].flip(0), chain[0]])
    rows = (batch.obs, batch.action, batch.next_obs, batch.reward[:, None], 1.0 - batch.terminated.double()[:, None])
    replay = mock.Mock(sample=lambda _: rows)
    with (
        drawing(randn=begins, randn_like=[*goes_on[0], cloned, *goes_on[1]], randint=[step]),
        mock.patch("numpy.random.uniform", return_value=0.9),
    ):
        (losses,) = zip(*theirs.train(replay, 1, ROWS).values(), strict=True)
    cloning, value, _, critic = losses
    found = {"critic_loss": critic, "cloning_loss": cloning, "q_loss": value}
    differences = {name: abs(metrics[name].item() - loss) / abs(loss) for name, loss in found.items()}
    return differences | moves(before, dict(ours.named_parameters()), dql_weights(theirs))


# --- FQL --------------------------------------------------------------------------------------------------------------


def flax_names(agent: fql.FQL) -> dict[str, str]:
    """The authors' name of each of the zoo's weights."""
    found = {}
    places = {
        "critic": "modules_critic/value_net", "target_critic": "modules_target_critic/value_net",
        "flow": "modules_actor_bc_flow/mlp", "policy": "modules_actor_onestep_flow/mlp",
    }  # fmt: skip
    for network, place in places.items():
        count = {"Dense": 0, "LayerNorm": 0}
        for name, layer in getattr(agent, network).named_modules():
            parameters = dict(layer.named_parameters(recurse=False))
            if parameters:
                kind = "LayerNorm" if "LayerNorm" in type(layer).__name__ else "Dense"
                weight = "scale" if kind == "LayerNorm" else "kernel"
                found[f"{network}.{name}.weight"] = f"{place}/{kind}_{count[kind]}/{weight}"
                found[f"{network}.{name}.bias"] = f"{place}/{kind}_{count[kind]}/bias"
                count[kind] += 1
    return found


def to_flax(weight: Tensor, name: str) -> np.ndarray:
    array = weight.detach().numpy()
    if name.endswith("kernel"):
        return array.swapaxes(-1, -2)
    return array[:, 0] if "value_net" in name else array  # in the zoo, a member's bias is [1, width]


def from_flax(array: np.ndarray, name: str) -> Tensor:
    if name.endswith("kernel"):
        return torch.from_numpy(array.swapaxes(-1, -2).copy())
    return torch.from_numpy(array[:, None] if "value_net" in name else array)


def compare_fql(checkout: Path, python: str, normalize_q: bool, target_q: str) -> Differences:
    torch.manual_seed(0)
    config = fql.Config(hidden=[64] * 4, normalize_q=normalize_q, target_q=target_q)
    ours = fql.FQL(SPEC, config).double()
    with torch.no_grad():
        for parameter in ours.parameters():  # so that no bias is 0, no scale is 1, and targets differ
            parameter.add_(0.05 * torch.randn_like(parameter))
    before = {name: weight.detach().clone() for name, weight in ours.named_parameters()}
    batch, names = random_batch(), flax_names(ours)
    next_noise, start, noise = torch.randn(3, ROWS, ACTIONS)
    time = torch.rand(ROWS)
    with drawing(randn_like=[next_noise, noise, start], rand_like=[time]):
        metrics = ours.update(batch)
    settings = {
        "actor_hidden_dims": config.hidden, "value_hidden_dims": config.hidden, "normalize_q_loss": normalize_q,
        "q_agg": target_q,
    }  # fmt: skip
    given: dict[str, Any] = {
        "batch/observations": batch.obs, "batch/actions": batch.action, "batch/next_observations": batch.next_obs,
        "batch/rewards": batch.reward, "batch/masks": 1.0 - batch.terminated.double(),
        "normals": torch.stack([next_noise, start, noise, noise]),  # the last one is for a metric
        "uniforms": time[None, :, None], "settings": json.dumps(settings),
    }  # fmt: skip
    weights: dict[str, Any] = {f"weights/{theirs}": to_flax(before[name], theirs) for name, theirs in names.items()}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/given.npz", **given, **weights)
        script = Path(__file__).with_name("fql_in_jax.py")
        subprocess.run([python, script, checkout, f"{folder}/given.npz", f"{folder}/found.npz"], check=True)
        found = dict(np.load(f"{folder}/found.npz"))
    theirs = {name: from_flax(found[flax], flax) for name, flax in names.items()}
    losses = {name: float(found[f"loss/{name}"]) for name in ("critic_loss", "flow_loss", "distance")}
    differences = {name: abs(metrics[name].item() - loss) / abs(loss) for name, loss in losses.items()}
    return differences | moves(before, dict(ours.named_parameters()), theirs)


# --- Cal-QL -----------------------------------------------------------------------------------------------------------


def compare_cal_ql(checkout: Path, lagrange: bool) -> Differences:
    """With `lagrange`, targets also use the maximum over several next actions, as on AntMaze."""
    module = corl.load_corl(checkout / "algorithms" / "finetune" / "cal_ql.py")
    torch.manual_seed(0)
    config = cql.Config(
        calibrated=True, alpha=5.0, lagrange=lagrange, max_target=lagrange, actor_lr=1e-4, orthogonal_init=False
    )
    critics = [module.FullyConnectedQFunction(OBS, ACTIONS, n_hidden_layers=3).double() for _ in range(2)]
    actor = module.TanhGaussianPolicy(OBS, ACTIONS, 1.0).double()
    optimizers = [torch.optim.Adam(critic.parameters(), config.critic_lr) for critic in critics]
    theirs = module.CalQL(
        critics[0], optimizers[0], critics[1], optimizers[1], actor,
        torch.optim.Adam(actor.parameters(), config.actor_lr), -float(ACTIONS), policy_lr=config.actor_lr,
        qf_lr=config.critic_lr, bc_steps=0, cql_alpha=config.alpha, cql_lagrange=lagrange,
        cql_target_action_gap=config.target_gap, cql_max_target_backup=lagrange,
    )  # fmt: skip
    corl.hold_scale(theirs)
    for learned in (theirs.log_alpha, theirs.log_alpha_prime):
        learned.double()
    ours = cql.CQL(SPEC, config).double()

    def pairs() -> list[tuple[Tensor, Tensor]]:
        return [*corl.cql_pairs(ours, theirs), (ours.log_weight, theirs.log_alpha_prime())]

    with torch.no_grad():
        for target in (theirs.target_critic_1, theirs.target_critic_2):  # otherwise the targets equal the critics
            for parameter in target.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        for weight, value in pairs():
            weight.copy_(value)
        before = [weight.clone() for weight, _ in pairs()]

    batch, n = random_batch(), config.num_actions
    returns = torch.randn(ROWS)  # some exceed the values, some do not
    action, next_action = torch.randn(2, ROWS, ACTIONS)
    actions, next_actions = torch.randn(2, ROWS, n, ACTIONS)
    uniform = torch.rand(ROWS, n, ACTIONS)
    backed_up = next_actions if lagrange else next_action
    normal = [action, backed_up, actions, next_actions]
    with corl.drawing(
        {"torch.distributions.normal._standard_normal": normal, "torch.Tensor.uniform_": [2 * uniform - 1]}
    ):
        logged = theirs.train([*rows_of(batch), returns[:, None]])
    with corl.drawing(
        {
            "torch.randn_like": [action] if lagrange else [action, next_action],
            "torch.Tensor.normal_": [torch.stack([actions, next_actions]).transpose(1, 2)],
            "torch.rand_like": [uniform.transpose(0, 1)],
        }
    ):
        metrics = ours.update(MonteCarloBatch(*batch[:5], returns))
    bounded = logged["bound_rate_cql_q1_current_actions"]
    assert 0.1 < bounded < 0.9, f"{bounded:.0%} of the values are bounded, so the comparison covers too little"
    losses = corl.cql_losses(logged)
    differences = {name: abs(metrics[name].item() - loss) / abs(loss) for name, loss in losses.items()}
    moved = [(weight - was, value - was) for (weight, value), was in zip(pairs(), before, strict=True)]
    return differences | {"weights": largest(relative(one, other) for one, other in moved if other.any())}


def rows_of(batch: Batch) -> list[Tensor]:
    """A batch in the format of CORL's buffers."""
    return [batch.obs, batch.action, batch.reward[:, None], batch.next_obs, batch.terminated.double()[:, None]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("algo", choices=["cal_ql", "dql", "fql"])
    parser.add_argument("--checkout", type=Path, required=True, help="a clone of the other code's repository")
    parser.add_argument("--python", default=sys.executable, help="for fql: a Python with JAX and its other imports")
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    if args.algo == "dql":
        compared = {f"backup_actions={n}": compare_dql(args.checkout, n) for n in (1, 10)}
    elif args.algo == "cal_ql":
        compared = {f"lagrange={on}, max_target={on}": compare_cal_ql(args.checkout, on) for on in (False, True)}
    else:
        compared = {
            f"normalize_q={scaled}, target_q={q}": compare_fql(args.checkout, args.python, scaled, q)
            for scaled, q in ((False, "mean"), (True, "min"))
        }
    return report({f"{case}: {name}": x for case, found in compared.items() for name, x in found.items()})


if __name__ == "__main__":
    sys.exit(main())
