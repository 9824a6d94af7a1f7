"""Initializations that are not PyTorch's defaults: each function changes a network in place and returns it."""

import math
from typing import TypeVar

from torch import nn

from zoo.nn.layers import EnsembleLinear

Network = TypeVar("Network", bound=nn.Module)


def orthogonal_(network: nn.Module, last_gain: float = math.sqrt(2)) -> nn.Module:
    """Orthogonal weights with gain sqrt(2), `last_gain` in the last layer, and zero biases, in place."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d | EnsembleLinear)]
    for layer in layers:
        gain = last_gain if layer is layers[-1] else math.sqrt(2)
        for weight in layer.weight if isinstance(layer, EnsembleLinear) else [layer.weight]:
            nn.init.orthogonal_(weight, gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network


def glorot_(network: Network) -> Network:
    """Glorot's uniform weights and zero biases, in place: the default of most code in JAX."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | EnsembleLinear):
            for weight in layer.weight if isinstance(layer, EnsembleLinear) else [layer.weight]:
                nn.init.xavier_uniform_(weight)
            nn.init.zeros_(layer.bias)
    return network


def near_zero_(network: nn.Sequential, gain: float = 0.01) -> nn.Sequential:
    """Glorot's uniform weights times `gain` and zero biases for the last layer, in place: outputs start close to 0."""
    last = network[-1]
    assert isinstance(last, nn.Linear)
    nn.init.xavier_uniform_(last.weight, gain)
    nn.init.zeros_(last.bias)
    return network


def small_last_(network: nn.Sequential, bound: float) -> nn.Sequential:
    """The last layer uniform within +-bound, the biases of the other layers 0.1, in place.

    As in the code of An et al. 2021, arXiv 2110.01548 (EDAC); ReBRAC's has it too.
    """
    layers = [layer for layer in network if isinstance(layer, nn.Linear | EnsembleLinear)]
    for layer in layers[:-1]:
        nn.init.constant_(layer.bias, 0.1)
    nn.init.uniform_(layers[-1].weight, -bound, bound)
    nn.init.uniform_(layers[-1].bias, -bound, bound)
    return network


def fan_out_critic_(critic: nn.Sequential) -> nn.Sequential:
    """Critics as initialized by CORL's EDAC, RIQL and RO2O, in place: `small_last_`, and weights in +-1/sqrt(outputs).

    Their layers mistake a weight's outputs for its inputs, so that the first layer starts four times as small.
    """
    for layer in critic:
        if isinstance(layer, EnsembleLinear):
            bound = layer.weight.shape[1] ** -0.5
            nn.init.uniform_(layer.weight, -bound, bound)
    return small_last_(critic, 3e-3)
