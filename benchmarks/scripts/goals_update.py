"""Compares updates of goal-conditioned algorithms with OGBench's agents, from the same weights and batch.

    python benchmarks/scripts/goals_update.py --checkout OGBENCH --ota TTGS --python PYTHON_WITH_JAX

OGBENCH is a clone of github seohongpark/ogbench, and TTGS one of github ktolnos/TTGS, which holds the code of OTA's
authors. Their agents are run by another Python with jax, flax, optax, distrax and ml_collections. Everything is in
float64, with small networks. The script prints the relative differences |ours - theirs| / |theirs| of the losses and of
the changes of each network's weights.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.agent import Agent
from zoo.algos import crl, gcbc, gciql, gcivl, hiql, ota, qrl
from zoo.benchmarks.scripts.authors import report
from zoo.data.goals import GoalBatch, OptionBatch, SubgoalBatch
from zoo.spec import Spec

STATE, ACTIONS, ROWS, HIDDEN, LATENT = 7, 3, 64, [32, 32, 32], 16
SPEC = Spec((2 * STATE,), (-1.0,) * ACTIONS, (1.0,) * ACTIONS, goal_dim=STATE)

ACTOR = {"actor.net": "modules_actor"}
# the zoo's networks -> the names of the same networks in OGBench's agent
PLACES: dict[str, dict[str, str]] = {
    "gcbc": ACTOR,
    "gciql": ACTOR | {name: f"modules_{name}/value_net" for name in ("value", "critic", "target_critic")},
    "gcivl": ACTOR | {name: f"modules_{name}/value_net" for name in ("value", "target_value")},
    "crl": ACTOR | {"phi": "modules_critic/phi", "psi": "modules_critic/psi"},
    "qrl": ACTOR | {"distance.encoder": "modules_value/phi", "model": "modules_dynamics"},
    "hiql": {
        "phi": "modules_goal_rep/layers_0", "value": "modules_value/value_net",
        "target_value": "modules_target_value/value_net", "low_actor.net": "modules_low_actor",
        "high_actor": "modules_high_actor",
    },
    "ota": {
        "phi": "modules_goal_rep/layers_0", "value": "modules_low_value/value_net",
        "target_value": "modules_target_low_value/value_net", "high_value": "modules_high_value/value_net",
        "target_high_value": "modules_target_high_value/value_net", "low_actor.net": "modules_low_actor",
        "high_actor": "modules_high_actor",
    },
}  # fmt: skip
NUMBERS = {"qrl": {"distance.share": "modules_value/alpha/value", "log_lambda": "modules_lam/log_value"}}
LOSSES: dict[str, dict[str, str]] = {  # by the zoo's names
    "gcbc": {"actor_loss": "actor/actor_loss"},
    "gciql": {"value_loss": "value/value_loss", "critic_loss": "critic/critic_loss", "actor_loss": "actor/actor_loss"},
    "gcivl": {"value_loss": "value/value_loss", "actor_loss": "actor/actor_loss"},
    "crl": {"critic_loss": "critic/contrastive_loss", "actor_loss": "actor/actor_loss"},
    "qrl": {
        "value_loss": "value/total_loss", "model_loss": "dynamics/dynamics_loss", "actor_loss": "actor/actor_loss",
    },
    "hiql": {"value_loss": "value/value_loss", "low_actor_loss": "low_actor/actor_loss"},
    "ota": {
        "value_loss": "low_value/low_value_loss", "high_value_loss": "high_value/high_value_loss",
        "low_actor_loss": "low_actor/actor_loss",
    },
}  # fmt: skip


def agents() -> dict[str, tuple[Agent, dict[str, Any]]]:
    """The zoo's agents, and the settings of theirs."""
    small: dict[str, Any] = {"hidden": HIDDEN}
    theirs: dict[str, Any] = {"actor_hidden_dims": HIDDEN, "value_hidden_dims": HIDDEN}
    latent: dict[str, Any] = {"latent_dim": LATENT}
    only_actor = {"actor_hidden_dims": HIDDEN}
    return {
        "gcbc": (gcbc.GCBC(SPEC, gcbc.Config(**small)), only_actor),
        "gciql": (gciql.GCIQL(SPEC, gciql.Config(**small)), theirs),
        "gcivl": (gcivl.GCIVL(SPEC, gcivl.Config(**small)), theirs),
        "crl": (crl.CRL(SPEC, crl.Config(**small, **latent)), theirs | latent),
        "qrl": (qrl.QRL(SPEC, qrl.Config(**small, **latent)), theirs | latent),
        "hiql": (hiql.HIQL(SPEC, hiql.Config(**small)), theirs),
        "ota": (ota.OTA(SPEC, ota.Config(**small)), theirs),
    }


def names(name: str, agent: Agent) -> dict[str, str]:
    """Their name of each of the zoo's weights."""
    found = dict(NUMBERS.get(name, {}))
    for network, place in PLACES[name].items():
        layers = {number: layer for number, layer in agent.get_submodule(network).named_children() if _learns(layer)}
        count = {"Dense": 0, "LayerNorm": 0}
        for number, layer in layers.items():
            kind = "LayerNorm" if "LayerNorm" in type(layer).__name__ else "Dense"
            path = f"{place}/{kind}_{count[kind]}"
            if "actor" in place:
                path = (
                    f"{place}/mean_net" if number == max(layers, key=int) else f"{place}/actor_net/{kind}_{count[kind]}"
                )
            weight = "scale" if kind == "LayerNorm" else "kernel"
            found[f"{network}.{number}.weight"], found[f"{network}.{number}.bias"] = f"{path}/{weight}", f"{path}/bias"
            count[kind] += 1
    return found


def _learns(layer: nn.Module) -> bool:
    return any(True for _ in layer.parameters())


def to_flax(weight: Tensor, name: str) -> np.ndarray:
    array = weight.detach().numpy()
    if name.endswith("kernel"):
        return array.swapaxes(-1, -2)
    return array[:, 0] if array.ndim == 3 else array  # in the zoo, a member's bias is [1, width]


def random_batch(name: str) -> tuple[GoalBatch | SubgoalBatch | OptionBatch, dict[str, Any]]:
    """A batch for an algorithm, and the same batch in OGBench's format."""
    obs, next_obs, value_goal, actor_goal, waypoint, subgoal = torch.randn(6, ROWS, STATE)
    action, reached, index = 2 * torch.rand(ROWS, ACTIONS) - 1, torch.rand(ROWS) < 0.2, torch.arange(ROWS)
    theirs = {
        "observations": obs, "actions": action, "next_observations": next_obs, "value_goals": value_goal,
        "rewards": reached.double() - 1, "masks": 1 - reached.double(),
    }  # fmt: skip
    ours = GoalBatch(obs, action, next_obs, value_goal, reached, actor_goal, index)
    if name not in ("hiql", "ota"):
        return ours, theirs | {"actor_goals": actor_goal}
    subgoals = {"waypoint": waypoint, "subgoal": subgoal}
    theirs |= {"high_actor_goals": actor_goal, "high_actor_targets": waypoint, "low_actor_goals": subgoal}
    if name == "hiql":
        return SubgoalBatch(**ours._asdict(), **subgoals), theirs
    end, goal = torch.randn(2, ROWS, STATE)
    ends = torch.rand(ROWS) < 0.2
    options = {"option_end": end, "option_goal": goal, "option_reached": ends}
    theirs |= {"high_value_option_observations": end, "high_value_goals": goal}
    theirs |= {"high_value_rewards": ends.double() - 1, "high_value_masks": 1 - ends.double()}
    return OptionBatch(**ours._asdict(), **subgoals, **options), theirs


def compare(name: str, agent: Agent, settings: dict[str, Any], impls: Path, python: str) -> dict[str, float]:
    """The relative differences of the losses and of the changes of each network's weights."""
    with torch.no_grad():
        for parameter in agent.parameters():  # so that no bias is 0, no scale is 1, and targets differ
            parameter.add_(0.05 * torch.randn_like(parameter))
    before = {key: weight.detach().clone() for key, weight in agent.named_parameters()}
    theirs_of = names(name, agent)
    assert set(theirs_of) == set(before)
    batch, given = random_batch(name)
    metrics = agent.update(batch)
    given = {f"batch/{key}": x for key, x in given.items()} | {"settings": json.dumps(settings)}
    given |= {f"weights/{theirs}": to_flax(before[key], theirs) for key, theirs in theirs_of.items()}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/given.npz", **given)
        script = Path(__file__).with_name("goals_in_jax.py")
        files = [f"{folder}/given.npz", f"{folder}/found.npz"]
        subprocess.run([python, script, impls, name, *files], check=True)
        found = dict(np.load(f"{folder}/found.npz"))
    differences = {}
    for loss, key in LOSSES[name].items():
        differences[loss] = abs(metrics[loss].item() - float(found[f"loss/{key}"])) / abs(float(found[f"loss/{key}"]))
    after = dict(agent.named_parameters())
    for network in dict.fromkeys(key.partition(".")[0] for key in before):
        keys = [key for key in before if key.partition(".")[0] == network]
        was, is_ = (np.concatenate([to_flax(x[key], theirs_of[key]).ravel() for key in keys]) for x in (before, after))
        theirs = np.concatenate([found[theirs_of[key]].ravel() for key in keys])
        differences[f"{network}'s weights"] = float(np.linalg.norm(is_ - theirs) / np.linalg.norm(theirs - was))
    return differences


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="a clone of OGBench's repository")
    parser.add_argument("--ota", type=Path, required=True, help="a clone of the repository that holds OTA's")
    parser.add_argument("--python", required=True, help="a Python with JAX and the other imports of OGBench's agents")
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    found: dict[str, float] = {}
    for name, (agent, settings) in agents().items():
        impls = args.ota / "impls/ota-v" if name == "ota" else args.checkout / "impls"
        differences = compare(name, agent.double(), settings, impls, args.python)
        found |= {f"{name}: {what}": difference for what, difference in differences.items()}
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
