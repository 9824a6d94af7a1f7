"""Networks of layers: MLPs, and ensembles evaluated as one batched network."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Sequential):
    """`[B, inputs] -> [B, outputs]` through layers of the given widths, PyTorch's default initialization.

    With `layer_norm` each activation is normalized (Ba et al. 2016, arXiv 1607.06450).
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: Sequence[int] = (256, 256), activation: type[nn.Module] = nn.ReLU,
        layer_norm: bool = False,
    ) -> None:  # fmt: skip
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(inputs, width), activation()]
            if layer_norm:
                layers.append(nn.LayerNorm(width))
            inputs = width
        super().__init__(*layers, nn.Linear(inputs, outputs))


class EnsembleLinear(nn.Module):
    """`members` linear layers in one batched product: `[members, B, inputs]` or `[B, inputs] -> [members, B, outputs]`.

    Each member is initialized as `nn.Linear` is.
    """

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # what nn.Linear's kaiming_uniform_(a=sqrt(5)) comes to
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.shape[-1] == 1:  # the matrix product of a single column is slower, far slower when compiled
            return (x * self.weight.mT).sum(-1, keepdim=True) + self.bias
        return torch.baddbmm(self.bias, x.expand(len(self.weight), *x.shape[-2:]), self.weight)


class EnsembleLayerNorm(nn.Module):
    """Layer normalization of `[members, B, width]`, each member with its own weights."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


class EnsembleMLP(nn.Sequential):
    """`members` independent MLPs as one batched network: `[B, inputs] -> [members, B, outputs]`."""

    def __init__(
        self, members: int, inputs: int, outputs: int, hidden: Sequence[int] = (256, 256), layer_norm: bool = False,
        activation: type[nn.ReLU | nn.SiLU] = nn.ReLU,
    ) -> None:  # fmt: skip
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [EnsembleLinear(members, inputs, width), activation(inplace=True)]
            if layer_norm:
                layers.append(EnsembleLayerNorm(members, width))
            inputs = width
        super().__init__(*layers, EnsembleLinear(members, inputs, outputs))


class EnsembleCritic(EnsembleMLP):
    """`members` critics for a value head: `[B, obs_dim]` and `[B, action_dim] -> [members, B, outputs]`."""

    def __init__(
        self, members: int, obs_dim: int, action_dim: int, hidden: Sequence[int] = (256, 256), outputs: int = 1,
        layer_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(members, obs_dim + action_dim, outputs, hidden, layer_norm)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:  # type: ignore[override]
        """The outputs of each member for each action."""
        return super().forward(torch.cat([obs, action], -1))  # type: ignore[no-any-return, no-untyped-call]

    def of_many(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Several actions of each observation, `[B, obs_dim]` and `[n, B, action_dim] -> [members, n, B, outputs]`.

        What the first layer makes of an observation is computed once.
        """
        first, *rest = self
        assert isinstance(first, EnsembleLinear)
        of_obs, of_action = first.weight[:, : obs.shape[-1]], first.weight[:, obs.shape[-1] :]
        members, (n, count, _) = len(of_obs), actions.shape
        of_each = torch.baddbmm(first.bias, obs.expand(members, -1, -1), of_obs)[:, None]  # [members, 1, B, width]
        x = (of_each + (actions.flatten(0, 1) @ of_action).view(members, n, count, -1)).flatten(1, 2)
        for layer in rest:
            x = layer(x)
        return x.view(members, n, count, -1)


@torch.no_grad()
def polyak_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Moves every parameter of `target` a fraction `tau` of the way to `source`'s."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)
