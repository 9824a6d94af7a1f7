"""Compares an algorithm's first update with its authors' PyTorch code, from the same weights, batch and noise.

    python benchmarks/scripts/online_update.py h2o CHECKOUT     # github t6-thu/H2O
    python benchmarks/scripts/online_update.py ro2o CHECKOUT    # github BattleWen/RO2O
    python benchmarks/scripts/online_update.py dsac_t CHECKOUT  # github Jingliang-Duan/DSAC-v2

CHECKOUT is a clone of the authors' repository. It is run unchanged, except that DSAC-T's GELU is the tanh approximation
as here, and that the 1e-6 in the densities of DSAC-T and RO2O is left out. Everything is in float64. Random numbers are
replaced by the same fixed numbers in both, with equal numbers for all rows of a batch. The script prints the largest
relative difference of each layer after the update. The exit code is 1 if one is above 1e-5.
"""

import argparse
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from zoo.algos import dsac_t, h2o, ro2o
from zoo.benchmarks.scripts.agreement import difference, random_batch, shaken
from zoo.benchmarks.scripts.authors import largest, report
from zoo.data.batch import mixed
from zoo.spec import Spec

ROWS, OBS, ACTIONS = 256, 11, 3
SPEC = Spec((OBS,), (-1.0,) * ACTIONS, (1.0,) * ACTIONS)


def noise(*shape: Any, **_: Any) -> Tensor:
    """Replaces standard normal noise by the same numbers in every row."""
    size = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    size = size.shape if isinstance(size, Tensor) else size
    return torch.linspace(-0.7, 0.9, size[-1]).expand(*size).clone()


def uniform(*shape: Any, **_: Any) -> Tensor:
    """Replaces uniform noise by evenly spaced numbers."""
    size = shape[0].shape if isinstance(shape[0], Tensor) else shape
    return torch.linspace(0.05, 0.95, size.numel() if isinstance(size, torch.Size) else int(np.prod(size))).view(*size)


@contextmanager
def without_chance() -> Iterator[None]:
    """Replaces all random noise by `noise` and `uniform`."""
    with (
        mock.patch("torch.randn", noise),
        mock.patch("torch.randn_like", noise),
        mock.patch("torch.rand", uniform),
        mock.patch("torch.rand_like", uniform),
        mock.patch("torch.distributions.normal._standard_normal", lambda shape, dtype, device: noise(shape)),
    ):
        yield


@contextmanager
def importable(folder: Path, **absent: dict[str, Any]) -> Iterator[None]:
    """Makes the authors' modules importable. Modules that they import but do not use are replaced by stubs."""
    stubs = {name: ModuleType(name) for name in absent}
    for name, content in absent.items():
        vars(stubs[name]).update(content)
    with mock.patch.object(sys, "path", [str(folder), *sys.path]), mock.patch.dict(sys.modules, stubs):
        yield


class Settings(dict[str, Any]):
    """Settings as attributes, like ml_collections' ConfigDict."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__

    def copy_and_resolve_references(self) -> "Settings":
        return self


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


@torch.no_grad()
def put(theirs: nn.Module, ours: list[Tensor], member: int | None = None) -> None:
    """Copies our weights and biases, or those of an ensemble's member, into their linear layers."""
    parameters = [x for layer in linear_layers(theirs) for x in (layer.weight, layer.bias)]
    for its, one in zip(parameters, ours, strict=True):
        its.copy_(one if member is None else one[member].reshape(its.shape))


def compare(theirs: nn.Module, ours: list[Tensor], member: int | None = None) -> float:
    """The largest difference over the layers."""
    parameters = [x for layer in linear_layers(theirs) for x in (layer.weight, layer.bias)]
    return largest(
        difference((one if member is None else one[member].reshape(its.shape)).detach(), its.detach())
        for its, one in zip(parameters, ours, strict=True)
    )


def compare_h2o(checkout: Path) -> dict[str, float]:
    folder = checkout / "SimpleSAC"
    nothing: dict[str, dict[str, Any]] = {
        "imp": {},
        "turtle": {"pd": None},
        "certifi": {"where": None},
        "pandas": {},
        "distutils": {},
    }
    nothing |= {"distutils.command": {}, "distutils.command.config": {"config": None}}
    nothing |= {"ml_collections": {"ConfigDict": Settings}, "utils_h2o": {"prefix_metrics": lambda found, _: found}}
    with importable(checkout / "Network", **nothing), importable(folder):
        from model import FullyConnectedQFunction, TanhGaussianPolicy  # type: ignore[import-not-found]
        from sim2real_sac import Sim2realSAC  # type: ignore[import-not-found]
        from Weight_net import ConcatDiscriminator  # type: ignore[import-not-found]
    agent = shaken(h2o.H2O(SPEC, h2o.Config(input_noise=0)))
    with torch.no_grad():
        agent.obs_std.copy_(torch.linspace(0.5, 2, OBS))
    real, simulated = random_batch(SPEC, 0), random_batch(SPEC, 1)
    real, simulated = (type(x)(*(column[: ROWS // 2] for column in x)) for x in (real, simulated))

    class Buffer:
        """Returns the batch in the format of their replay buffer, for the discriminators and the critics."""

        def sample(self, _: int, scope: str, type: str | None = None) -> dict[str, Tensor]:
            batch = real if scope == "real" else simulated
            found = {"observations": batch.obs, "actions": batch.action, "next_observations": batch.next_obs}
            if type is None:
                found |= {"rewards": batch.reward[:, None], "dones": batch.terminated.double()[:, None]}
            return {name: column.clone() for name, column in found.items()}

        def get_mean_std(self) -> tuple[Tensor, Tensor]:
            return torch.zeros(1, OBS), agent.obs_std[None]

    policy = TanhGaussianPolicy(OBS, ACTIONS).double()
    critics = [FullyConnectedQFunction(OBS, ACTIONS).double() for _ in range(4)]
    discriminators = [
        ConcatDiscriminator(inputs, 256, device="cpu").double() for inputs in (OBS + ACTIONS, 2 * OBS + ACTIONS)
    ]
    settings = {"device": "cpu", "noise_std_discriminator": 0.0, "target_entropy": -float(ACTIONS)}
    theirs = Sim2realSAC(Settings(settings), policy, *critics, *discriminators, Buffer())
    theirs.log_alpha.double()
    with torch.no_grad():
        theirs.log_alpha.constant.copy_(agent.log_alpha)
    of_policy = list(agent.actor.net.parameters())
    shift = torch.cat([torch.zeros(ACTIONS), torch.ones(ACTIONS)])  # their log standard deviation is lower by 1
    put(policy, [*of_policy[:-1], of_policy[-1].detach() + shift])
    pairs: list[tuple[str, Any, list[Tensor], int | None]]
    pairs = [(f"critic {i + 1}", critics[i], list(agent.critic.parameters()), i) for i in (0, 1)]
    pairs += [(f"target critic {i + 1}", critics[i + 2], list(agent.target_critic.parameters()), i) for i in (0, 1)]
    pairs += [("discriminator of s, a", discriminators[0], list(agent.of_action.parameters()), None)]
    pairs += [("discriminator of s, a, s'", discriminators[1], list(agent.of_step.parameters()), None)]
    for _, network, ours, member in pairs:
        put(network, ours, member)
    with without_chance():
        metrics = agent.update(mixed(real, simulated))
        expected = theirs.train(ROWS // 2, ROWS // 2)
    found = {name: compare(network, ours, member) for name, network, ours, member in pairs}
    found["policy"] = compare(policy, [*of_policy[:-1], of_policy[-1].detach() + shift])
    found["log temperature"] = difference(agent.log_alpha.detach(), theirs.log_alpha.constant.detach())
    found["policy loss"] = difference(metrics["actor_loss"], expected["policy_loss"])
    sizes = {key: expected[key] for key in expected if key.startswith("cql_min")}
    whole = expected["qf1_loss"] + expected["qf2_loss"] + sum(sizes.values())
    found["critic loss"] = difference(metrics["critic_loss"], whole)
    return found


def compare_ro2o(checkout: Path) -> dict[str, float]:
    unused: dict[str, dict[str, Any]] = {"d4rl": {}, "gym": {"Env": None}, "wandb": {}}
    unused |= {"pyrallis": {"wrap": lambda: lambda function: function}}
    with importable(checkout / "algorithms" / "offline", **unused):
        import ro2o_mujoco as authors  # type: ignore[import-not-found]
    config = ro2o.Config()
    agent = shaken(ro2o.RO2O(SPEC, config))
    batch = random_batch(SPEC, 0)
    actor, critic = authors.Actor(OBS, ACTIONS, 256), authors.VectorizedCritic(OBS, ACTIONS, 256, config.num_critics)
    theirs = authors.RO2O(
        actor, torch.optim.Adam(actor.parameters(), lr=3e-4), critic, torch.optim.Adam(critic.parameters(), lr=3e-4),
        alpha_learning_rate=3e-4, q_ood_uncertainty_reg=config.uncertainty, device="cpu",
        q_ood_uncertainty_decay=config.uncertainty_decay,
    )  # fmt: skip
    theirs.log_alpha = agent.log_alpha.detach().clone().view(1).requires_grad_()
    theirs.alpha_optimizer = torch.optim.Adam([theirs.log_alpha], lr=3e-4)
    *trunk, last_weight, last_bias = agent.actor.net.parameters()
    put(actor.trunk, trunk)
    for i, head in enumerate((actor.mu, actor.log_sigma)):  # these are the two halves of our last layer
        put(head, [x.chunk(2)[i] for x in (last_weight, last_bias)])

    def in_their_layout(ensemble: nn.Module) -> list[Tensor]:
        return [x.mT if name.endswith("weight") else x for name, x in ensemble.named_parameters()]

    networks = [("critic", critic, agent.critic), ("target critic", theirs.target_critic, agent.target_critic)]
    with torch.no_grad():
        for _, network, ours in networks:
            for its, one in zip(network.parameters(), in_their_layout(ours), strict=True):
                its.copy_(one)
    with without_chance():
        metrics = agent.update(batch)
        columns = batch.obs, batch.action, batch.reward[:, None], batch.next_obs, batch.terminated.double()[:, None]
        with mock.patch("torch.log", lambda x: x.sub(1e-6).log()):  # they add 1e-6 to 1 - tanh^2; ours is exact
            expected = theirs.update(list(columns))
    found = {name: 0.0 for name, *_ in networks}
    for name, network, ours in networks:
        for its, one in zip(network.parameters(), in_their_layout(ours), strict=True):
            found[name] = largest([found[name], difference(one.detach(), its.detach())])
    found["actor"] = compare(actor.trunk, trunk)
    for i, head in enumerate((actor.mu, actor.log_sigma)):
        apart = compare(head, [x.chunk(2)[i] for x in (last_weight, last_bias)])
        found["actor"] = largest([found["actor"], apart])
    found["log temperature"] = difference(agent.log_alpha.detach(), theirs.log_alpha.detach())
    for name, its in (("critic_loss", "critic_loss"), ("actor_loss", "actor_loss"), ("ood_loss", "ood_loss")):
        weight = config.ood_weight if name == "ood_loss" else 1
        found[name] = difference(weight * metrics[name], expected[its])
    return found


def authors_of_dsac_t(checkout: Path, config: dsac_t.Config) -> tuple[Any, ModuleType]:
    """The authors' agent, and the module of their policy's distribution."""
    tags = {"tb_tags": {name: name for name in ("loss_actor", "loss_critic", "alg_time")}}
    create: dict[str, Any] = {"create_apprfunc": lambda kind, **given: kind(**given)}
    replaced = {"utils.tensorboard_setup": tags, "utils.initialization": create}
    with importable(checkout, **replaced), importable(checkout / "utils"):
        import dsac_v2 as authors  # type: ignore[import-not-found]
        from networks.mlp import ActionValueDistri, StochaPolicy  # type: ignore[import-not-found]
        from utils import act_distribution_cls as distributions  # type: ignore[import-not-found]
    given: dict[str, Any] = {
        "obs_dim": OBS, "act_dim": ACTIONS, "hidden_sizes": config.hidden, "hidden_activation": "gelu",
        "output_activation": "linear", "std_type": "mlp_shared", "min_log_std": -20, "max_log_std": 0.5,
        "action_distribution_cls": distributions.TanhGaussDistribution,
        "act_low_lim": np.array(SPEC.action_low, np.float32), "act_high_lim": np.array(SPEC.action_high, np.float32),
    }  # fmt: skip
    kinds = {"value": ActionValueDistri, "policy": StochaPolicy}
    with mock.patch.object(authors, "get_apprfunc_dict", lambda name, *_, **__: {"kind": kinds[name]} | given):
        theirs = authors.DSAC_V2(
            cnn_shared=False, value_func_type="MLP", policy_func_type="MLP", value_learning_rate=config.critic_lr,
            policy_learning_rate=config.actor_lr, alpha_learning_rate=config.alpha_lr, gamma=config.discount,
            tau=config.tau, action_dim=ACTIONS, auto_alpha=True, delay_update=config.policy_delay,
        )  # fmt: skip
    return theirs, distributions


def compare_dsac_t(checkout: Path) -> dict[str, float]:
    """Compares the critics' update, and the policy's loss and gradient before it, as in the authors' code."""
    config = dsac_t.Config(half_square=True)
    agent = shaken(dsac_t.DSACT(SPEC, config))
    batch = random_batch(SPEC, 0)
    with mock.patch("torch.nn.GELU", functools.partial(nn.GELU, approximate="tanh")):
        theirs, distributions = authors_of_dsac_t(checkout, config)
    networks = theirs.networks.double()
    with torch.no_grad():
        networks.log_alpha.copy_(agent.log_alpha)
    pairs: list[tuple[str, Any, list[Tensor], int | None]]
    pairs = [(f"critic {i + 1}", (networks.q1, networks.q2)[i], list(agent.critic.parameters()), i) for i in (0, 1)]
    of_target, targets = list(agent.target_critic.parameters()), (networks.q1_target, networks.q2_target)
    for network, ours, member in (
        *((network, ours, member) for _, network, ours, member in pairs),
        *((target, of_target, i) for i, target in enumerate(targets)),
        (networks.policy, list(agent.actor.net.parameters()), None),
        (networks.policy_target, list(agent.target_actor.parameters()), None),
    ):
        put(network, ours, member)
    columns = {"obs": batch.obs, "act": batch.action, "rew": 30 * batch.reward, "obs2": batch.next_obs}
    columns["done"] = batch.terminated.double()
    with (
        without_chance(),
        mock.patch("torch.normal", lambda mean, std: noise(mean)),
        mock.patch.object(distributions, "EPS", 0.0),  # they add it to 1 - tanh^2; ours is exact
    ):
        expected = theirs.local_update(columns, iteration=1)  # the policy is not updated in this iteration
        actor_loss, _ = agent.actor_loss(batch)
        gradient = torch.autograd.grad(actor_loss, list(agent.actor.net.parameters()))
        metrics = agent.update(batch._replace(reward=columns["rew"]), delayed=False)
    found = {name: compare(network, ours, member) for name, network, ours, member in pairs}
    found["critic loss"] = difference(metrics["critic_loss"], expected["loss_critic"])
    found["usual spread"] = difference(agent.usual_std[:, 0], [theirs.mean_std1, theirs.mean_std2])
    found["policy loss"] = difference(actor_loss.detach(), expected["loss_actor"])
    of_policy = [x.grad for layer in linear_layers(networks.policy) for x in (layer.weight, layer.bias)]
    found["policy gradient"] = largest(map(difference, gradient, of_policy))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("algo", choices=["h2o", "ro2o", "dsac_t"])
    parser.add_argument("checkout", type=Path, help="a clone of the authors' repository")
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    found = {"h2o": compare_h2o, "ro2o": compare_ro2o, "dsac_t": compare_dsac_t}[args.algo](args.checkout)
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
