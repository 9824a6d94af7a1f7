"""Compares ReinFlow's chains, losses and first update with its authors' code, from the same weights and noise.

    python benchmarks/scripts/reinflow_update.py CHECKOUT

`CHECKOUT` is a clone of github ReinFlow/ReinFlow. Everything is in float64, with small networks that take the zoo's
inputs; the authors' networks embed the time. Their rectified flow acts on the times k/(K - 1), but computes densities
on k/K; here it acts on k/K too, like their shortcut flow. The weight of the value loss is 1 instead of their 0.5, which
affects Adam only through its epsilon. The script prints the relative differences |ours - theirs| / |theirs| of the
chains, densities and losses and of the changes of the weights. It also prints how far the mean ratio before the first
update is from 1 on the authors' own times.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from zoo.algos import reinflow
from zoo.benchmarks.scripts.authors import report
from zoo.benchmarks.scripts.first_update import Differences, moves, relative
from zoo.spec import Spec

OBS, ACTIONS, ROWS, STEPS, HIDDEN = 11, 3, 64, 4, [32, 32, 32]
SPEC = Spec((OBS,), (-1.0,) * ACTIONS, (1.0,) * ACTIONS)
UNUSED = ("einops", "model.common.vit", "model.diffusion.modules", "model.common.modules")  # for frames and time


def authors(checkout: Path, config: reinflow.Config) -> Any:
    """Their `PPOFlow`, with networks that take the zoo's inputs."""
    sys.path.insert(0, str(checkout))
    sys.modules |= {name: mock.Mock(SinusoidalPosEmb=nn.Identity) for name in UNUSED}
    from model.common.critic import CriticObs  # type: ignore[import-not-found]
    from model.common.mlp import activation_dict  # type: ignore[import-not-found]
    from model.flow.ft_ppo.ppoflow import PPOFlow  # type: ignore[import-not-found]
    from model.flow.mlp_flow import FlowMLP  # type: ignore[import-not-found]

    activation_dict["GELU"] = nn.GELU("tanh")
    flow = FlowMLP(1, ACTIONS, OBS, time_dim=1, mlp_dims=HIDDEN, activation_type="GELU")
    flow.time_embedding = nn.Identity()
    critic = CriticObs(OBS, HIDDEN, activation_type="Mish")
    theirs = PPOFlow(
        "cpu", flow, critic, None, ACTIONS, 1, -1.0, 1.0, OBS, 1,
        "learn_decay" if config.noise == "learned" else "const", STEPS, STEPS, reinflow.NOISE_BOUND, config.min_std,
        config.min_std, -1.0, 1.0, config.clip, config.clip, 3, None, 1.0, config.max_std, 0, False, False,
        list(reinflow.NOISE_HIDDEN), False, False, "Tanh",
    ).double()  # fmt: skip
    net = theirs.actor_ft.explore_noise_net
    net.logvar_min.data.fill_(2 * math.log(config.min_std))  # float32 in their code
    net.logvar_max.data.fill_(2 * math.log(config.max_std))
    return theirs


def weights(theirs: Any) -> dict[str, Tensor]:
    """The weights of the authors' networks, by the zoo's names."""
    noise = theirs.actor_ft.explore_noise_net.mlp_logvar
    found = {}
    for name, network in (("flow.net", theirs.actor_ft.policy.mlp_mean), ("noise", noise), ("value", theirs.critic.Q1)):
        for i, layer in enumerate(part[0] for part in network.moduleList):
            weight = layer.weight.detach()
            if i == 0 and name == "flow.net":  # there the inputs are x, time, observation
                weight = torch.cat([weight[:, ACTIONS + 1 :], weight[:, : ACTIONS + 1]], 1)
            if i == 0 and name == "noise":  # and time, observation
                weight = torch.cat([weight[:, 1:], weight[:, :1]], 1)
            found[f"{name}.{2 * i}.weight"] = weight.clone()
            found[f"{name}.{2 * i}.bias"] = layer.bias.detach().clone()
    return found


def chain_of(theirs: Any, obs: Tensor, draws: list[Tensor], own_times: bool) -> tuple[Tensor, Tensor]:
    """The authors' chain and its density, from standard normal `draws`, on their own times or on k/K."""
    left, linspace = iter(draws[1:]), torch.linspace
    first = draws[0].clone()[:, None], torch.distributions.Normal(0.0, 1.0).log_prob(draws[0]).sum(-1)
    with (
        mock.patch.object(theirs, "sample_first_point", return_value=first),
        mock.patch("torch.distributions.Normal.sample", lambda normal: normal.loc + normal.scale * next(left)[:, None]),
        mock.patch("torch.linspace", linspace if own_times else lambda low, high, n: linspace(low, high - 1 / n, n)),
    ):
        _, chain, log_prob = theirs.get_actions({"state": obs[:, None]}, False, True, True, True)
    return chain, log_prob


def compare(checkout: Path, noise: str) -> tuple[Differences, float]:
    torch.manual_seed(0)
    config = reinflow.Config(noise=noise, hidden=HIDDEN, value_hidden=HIDDEN, flow_steps=STEPS)
    theirs = authors(checkout, config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim:  # the noise's bounds are parameters too
                parameter.add_(0.05 * torch.randn_like(parameter))
    before = weights(theirs)
    ours = reinflow.ReinFlow(SPEC, config).double()
    ours.load_state_dict(before, strict=False)
    ours.max_std.fill_(config.max_std)

    obs, draws = torch.randn(ROWS, OBS), [torch.randn(ROWS, ACTIONS) for _ in range(STEPS + 1)]
    chain, log_prob = chain_of(theirs, obs, draws, own_times=False)
    with (
        mock.patch("torch.randn", return_value=draws[0]),
        mock.patch("torch.randn_like", side_effect=draws[1:]),
    ):
        own = ours.sample(obs)
    mixed, acted = chain_of(theirs, obs, draws, own_times=True)
    judged, _ = theirs.get_logprobs({"state": obs[:, None]}, mixed, False, True, True, True, False, False, True)
    ratio = float((judged.clamp(-1, 1) - acted.clamp(-1, 1)).exp().mean().detach())
    found = {"chain": relative(own, chain.squeeze(2))}
    found["density"] = relative(ours.log_prob(obs, own)[0], log_prob.clamp(-1, 1))

    old = log_prob + 0.02 * torch.randn(ROWS)  # an earlier policy, so that some ratios are clipped
    advantage, returns = torch.randn(2, ROWS)
    metrics = ours.update(reinflow.Minibatch(obs, own, old.clamp(-1, 1), advantage, returns))
    actor = torch.optim.AdamW(theirs.actor_ft.parameters(), lr=config.actor_lr, weight_decay=0)
    critic = torch.optim.AdamW(theirs.critic.parameters(), lr=config.value_lr, weight_decay=0)
    policy_loss, entropy_loss, value_loss, _, clipped, kl, *_ = theirs.loss(
        {"state": obs[:, None]}, chain, returns, returns, advantage, old, normalize_denoising_horizon=True,
        normalize_act_space_dimension=True, verbose=False,
    )  # fmt: skip
    assert 0.1 < clipped < 0.9, f"{clipped:.0%} of the ratios are clipped, so the comparison covers too little"
    (policy_loss + config.entropy_coef * entropy_loss + value_loss).backward()
    actor.step()
    critic.step()
    losses = {"policy_loss": policy_loss, "entropy": -entropy_loss, "value_loss": value_loss}
    losses = {name: loss.item() for name, loss in losses.items()} | {"approx_kl": kl}
    found |= {name: abs(float(metrics[name]) / loss - 1) for name, loss in losses.items()}
    learned = {name: weight for name, weight in before.items() if noise == "learned" or not name.startswith("noise")}
    found |= moves(learned, dict(ours.named_parameters()), weights(theirs))
    return found, ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a clone of the authors' repository")
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    found: dict[str, float] = {}
    for noise in ("learned", "fixed"):
        differences, ratio = compare(args.checkout, noise)
        found |= {f"{noise} noise: {name}": difference for name, difference in differences.items()}
        print(f"{noise} noise: on the authors' own times, the ratio before the first update is 1 {ratio - 1:+.1e}")
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
