"""Helpers for plain implementations: a network is a list of parameters, with its own `torch.optim.Adam`."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import h5py
import torch
from torch import Tensor
from torch.distributions import AffineTransform, Normal, TanhTransform

# for learning tests, which run one seed: results must not depend on whether EnvPool or a compiler is installed
GYMNASIUM = {"env.backend": "gymnasium", "compile": False}


def leaves(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Copies of parameters, for another optimizer."""
    return [parameter.detach().clone().requires_grad_() for parameter in parameters]


def member(ensemble: torch.nn.Module, m: int) -> list[Tensor]:
    """Copies of the parameters of one member of an ensemble: each layer's weight `[outputs, inputs]` and bias."""
    return leaves(parameter[m] if i % 2 == 0 else parameter[m, 0] for i, parameter in enumerate(ensemble.parameters()))


@torch.no_grad()
def shake(*networks: torch.nn.Module, by: float = 0.3) -> None:
    """Adds normal noise to every parameter, so that no network is a copy of another."""
    for network in networks:
        for parameter in network.parameters():
            parameter.add_(by * torch.randn_like(parameter))


def forward(parameters: list[Tensor], x: Tensor, activation: Callable[[Tensor], Tensor] = torch.relu) -> Tensor:
    """The output of a network given as weight `[outputs, inputs]`, bias, weight, bias, ..."""
    for i in range(0, len(parameters), 2):
        x = x @ parameters[i].T + parameters[i + 1]
        x = activation(x) if i + 2 < len(parameters) else x
    return x


def squashed(mean: Tensor, log_std: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Actions `[B, A]` of a tanh-Gaussian within bounds, and their log densities `[B]`, by PyTorch's transforms."""
    onto_bounds = AffineTransform((low + high) / 2, (high - low) / 2)
    normal = Normal(mean, log_std.exp())
    before = normal.loc + normal.scale * torch.randn(mean.shape, dtype=mean.dtype)
    unit = torch.tanh(before)
    action: Tensor = onto_bounds(unit)
    log_det = TanhTransform().log_abs_det_jacobian(before, unit) + onto_bounds.log_abs_det_jacobian(unit, action)
    return action, (normal.log_prob(before) - log_det).sum(1)


def step(adam: torch.optim.Adam, loss: Tensor, max_norm: float = math.inf) -> None:
    """One step of PyTorch's optimizer on a loss, with the gradient clipped to a norm."""
    adam.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(adam.param_groups[0]["params"], max_norm)
    adam.step()


@torch.no_grad()
def soft_update(target: list[Tensor], source: list[Tensor], tau: float) -> None:
    """target <- (1 - tau) target + tau source"""
    for old, new in zip(target, source, strict=True):
        old.copy_((1 - tau) * old + tau * new)


def mean_return(file: Path) -> float:
    """The mean return of the episodes of a D4RL-layout file."""
    with h5py.File(file) as columns:
        ended = columns["terminals"][()] | columns["timeouts"][()]
        return float(columns["rewards"][()].sum() / ended.sum())


def assert_close(actual: Iterable[Tensor], expected: Iterable[Tensor], atol: float = 1e-6) -> None:
    """Asserts that all parameters are equal within `atol`."""
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=0, atol=atol)
