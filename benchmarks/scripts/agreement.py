"""Compares an algorithm with its authors' code, from the same weights and the same batch, in float64.

    python benchmarks/scripts/agreement.py bcq CHECKOUT                    # github sfujim/BCQ
    python benchmarks/scripts/agreement.py dvl CHECKOUT --python PYTHON    # github hari-sikchi/DVL
    python benchmarks/scripts/agreement.py recoil CHECKOUT --python PYTHON # github chufanchen/ReCOIL, a copy of theirs

CHECKOUT is a clone of the authors' repository, which is run unchanged. PYTHON is an interpreter with jax, flax and
optax. For BCQ, all weights are compared after the first update. For the others, whose code is in JAX and runs in its
own process (agreement_jax.py), each loss and its gradient are compared. The script prints the largest relative
difference of each. The exit code is 1 if one is above 1e-5.
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.algos import bcq, dvl, recoil
from zoo.benchmarks.scripts.authors import report
from zoo.data.batch import Batch, mixed
from zoo.spec import Spec

ROWS, OBS = 256, 11
CONTINUOUS, DISCRETE = Spec((OBS,), (-1.0,) * 3, (1.0,) * 3), Spec((OBS,), num_actions=4)
DIVERGENCES = {  # the authors' name: our name, temperature
    "chi-square": ("chi2", 0.7),
    "total-variation": ("tv", 0.8),
    "reverse-kl": ("reverse_kl", 2.0),
}


def random_batch(spec: Spec, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    obs, next_obs = torch.from_numpy(rng.normal(size=(2, ROWS, OBS)))
    action = rng.uniform(-1, 1, (ROWS, 3)) if spec.num_actions is None else rng.integers(spec.num_actions, size=ROWS)
    reward, terminated = torch.from_numpy(rng.normal(size=ROWS)), torch.from_numpy(rng.random(ROWS) < 0.2)
    return Batch(obs, torch.from_numpy(action), reward, next_obs, terminated, torch.arange(ROWS))


def shaken(agent: Any) -> Any:
    """The agent in float64, with noise added to its weights, so that no network is a copy of another or near zero."""
    agent.double()
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return agent


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to their largest number."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


# --- BCQ --------------------------------------------------------------------------------------------------------------


def compare_bcq(checkout: Path) -> dict[str, float]:
    """The difference of each layer after the first update, which also updates the target network."""
    path = checkout / "discrete_BCQ" / "discrete_BCQ.py"
    module_spec = importlib.util.spec_from_file_location("discrete_BCQ", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    authors = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(authors)
    agent = shaken(bcq.BCQ(DISCRETE, bcq.Config()))
    theirs = authors.discrete_BCQ(
        False, 4, OBS, torch.device("cpu"), optimizer_parameters={"lr": 3e-4}, polyak_target_update=True
    )

    def layers(network: Any) -> list[torch.Tensor]:
        """The parameters of one of their networks, in our order."""
        return [x for name in ("q", "i") for i in (1, 2, 3) for x in getattr(network, f"{name}{i}").parameters()]

    pairs = [(agent.network, theirs.Q.double()), (agent.target_network, theirs.Q_target.double())]
    with torch.no_grad():
        for ours, other in pairs:
            for one, its in zip(ours.parameters(), layers(other), strict=True):
                its.copy_(one)
    batch = random_batch(DISCRETE, 0)

    class Buffer:
        """Returns the batch in the format of their replay buffer."""

        def sample(self) -> tuple[torch.Tensor, ...]:
            columns = (batch.action, batch.reward, (~batch.terminated).double())
            action, reward, going_on = (column[:, None] for column in columns)
            return batch.obs, action, batch.next_obs, reward, going_on

    agent.update(batch)
    agent.update_target()
    theirs.train(Buffer())
    found = {}
    for label, (ours, other) in zip(("network", "target network"), pairs, strict=True):
        for (name, one), its in zip(ours.named_parameters(), layers(other), strict=True):
            found[f"{label} {name}"] = difference(one.detach(), its.detach())
    return found


# --- The dual methods, in JAX -----------------------------------------------------------------------------------------


def weights(agent: dvl.DVL | recoil.ReCOIL) -> dict[str, np.ndarray]:
    """Every layer of the agent by name, with a separate name for each critic."""
    arrays: dict[str, torch.Tensor] = {"log_std": agent.actor.log_std}
    for name, network in (("actor", agent.actor.net), ("value", agent.value)):
        arrays |= {f"{name}_{i}": x for i, x in enumerate(network.parameters())}
    for name, critic in (("critic", agent.critic), ("target", agent.target_critic)):
        for i, x in enumerate(critic.parameters()):
            arrays |= {f"{name}{m + 1}_{i}": x[m].squeeze(0) if i % 2 else x[m] for m in (0, 1)}
    return {name: x.detach().numpy() for name, x in arrays.items()}


def gradients(agent: dvl.DVL | recoil.ReCOIL, losses: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Each loss, and its gradient with respect to its own network, flattened."""
    own = {"value": agent.value, "actor": agent.actor, "critic": agent.critic}
    found = {}
    for name, loss in losses.items():
        found[f"{name}_loss"] = loss.detach().numpy()
        parameters = list(own[name].parameters())
        if name == "actor":  # the log standard deviation last
            parameters = [*agent.actor.net.parameters(), agent.actor.log_std]
        parts = list(torch.autograd.grad(loss, parameters))
        if name == "critic":  # one critic after the other
            parts = [part[m] for m in (0, 1) for part in parts]
        found[f"{name}_gradient"] = torch.cat([part.flatten() for part in parts]).numpy()
    return found


def compare_jax(
    name: str, checkout: Path, python: str, inputs: dict[str, Any], ours: dict[str, Any]
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "given.npz", Path(folder) / "answer.npz"
        np.savez(given, **inputs)
        script = Path(__file__).with_name("agreement_jax.py")
        subprocess.run([python, script, name, checkout, given, answer], check=True)
        theirs = np.load(answer)
        return {key: difference(ours[key], theirs[key]) for key in ours}


def compare_dvl(checkout: Path, python: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for theirs, (f, temperature) in DIVERGENCES.items():
        torch.manual_seed(0)
        agent = shaken(dvl.DVL(CONTINUOUS, dvl.Config(f=f, temperature=temperature, value_layer_norm=False)))
        batch = random_batch(CONTINUOUS, 0)
        batch = batch._replace(reward=30 * batch.reward)  # errors in both parts of the Huber loss
        losses = {
            "value": agent.value_loss(batch),
            "actor": agent.actor_loss(batch)[0],
            "critic": agent.critic_loss(batch)[0],
        }
        inputs = weights(agent) | {field: x.numpy() for field, x in batch._asdict().items()}
        inputs |= {"f": theirs, "temperature": temperature}
        one = compare_jax("dvl", checkout, python, inputs, gradients(agent, losses))
        found |= {f"{theirs} {key}": value for key, value in one.items()}
    return found


def compare_recoil(checkout: Path, python: str) -> dict[str, float]:
    torch.manual_seed(0)
    agent = shaken(recoil.ReCOIL(CONTINUOUS, recoil.Config()))
    batch = mixed(random_batch(CONTINUOUS, 0), random_batch(CONTINUOUS, 1))
    with torch.no_grad():
        target_q = agent.target_critic(batch.obs, batch.action).squeeze(-1).amin(0)
    losses = {
        "value": agent.value_loss(batch, target_q),
        "actor": agent.actor_loss(batch, target_q)[0],
        "critic": agent.critic_loss(batch)[0],
    }
    inputs = weights(agent) | {field: x.numpy() for field, x in batch._asdict().items()}
    inputs |= {"f": "", "temperature": agent.config.temperature}
    return compare_jax("recoil", checkout, python, inputs, gradients(agent, losses))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("algo", choices=["bcq", "dvl", "recoil"])
    parser.add_argument("checkout", type=Path, help="a clone of the authors' repository")
    parser.add_argument("--python", help="for dvl and recoil: an interpreter with jax, flax and optax")
    args = parser.parse_args()
    if args.algo != "bcq" and not args.python:
        parser.error(f"{args.algo} needs --python, an interpreter with jax, flax and optax")
    torch.manual_seed(0)
    if args.algo == "bcq":
        found = compare_bcq(args.checkout)
    else:
        found = (compare_dvl if args.algo == "dvl" else compare_recoil)(args.checkout, args.python)
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
