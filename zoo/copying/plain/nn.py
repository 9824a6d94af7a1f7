"""Networks and Adam by PyTorch's own layers and optimizer."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from zoo.nn.optim import Decay, cosine


class MLP(nn.Sequential):
    """`[B, inputs] -> [B, outputs]` through layers of the given widths."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (256, 256),
        activation: type[nn.Module] = nn.ReLU,
        layer_norm: bool = False,
    ) -> None:
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(inputs, width), activation()]
            if layer_norm:
                layers.append(nn.LayerNorm(width))
            inputs = width
        super().__init__(*layers, nn.Linear(inputs, outputs))


class EnsembleLinear(nn.Module):
    """`members` linear layers: `[members, B, inputs]` or `[B, inputs] -> [members, B, outputs]`."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # as nn.Linear has it
        self.weight = nn.Parameter(torch.empty(members, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.shape[1] == 1:  # the matrix product of a single column is slower
            return (x * self.weight).sum(-1, keepdim=True) + self.bias
        return torch.baddbmm(self.bias, x.expand(len(self.weight), *x.shape[-2:]), self.weight.mT)


class EnsembleMLP(nn.Sequential):
    """`members` independent MLPs: `[B, inputs]` or `[members, B, inputs] -> [members, B, outputs]`."""

    def __init__(
        self,
        members: int,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (256, 256),
        layer_norm: bool = False,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [EnsembleLinear(members, inputs, width), activation()]
            if layer_norm:
                layers.append(EnsembleLayerNorm(members, width))
            inputs = width
        super().__init__(*layers, EnsembleLinear(members, inputs, outputs))


class EnsembleLayerNorm(nn.Module):
    """Layer normalization of `[members, B, width]`, each member with its own weights."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


class EnsembleCritic(EnsembleMLP):
    """`members` critics: `[B, obs_dim]` and `[B, action_dim] -> [members, B, outputs]`."""

    def __init__(
        self,
        members: int,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        outputs: int = 1,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(members, obs_dim + action_dim, outputs, hidden, layer_norm)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:  # type: ignore[override]
        x = torch.cat([obs, action], -1)
        for layer in self:
            x = layer(x)
        return x

    def of_many(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Several actions of each observation, `[B, obs_dim]` and `[n, B, action_dim] -> [members, n, B, outputs]`.

        What the first layer makes of an observation is computed once.
        """
        first, activation, *rest = self
        assert isinstance(first, EnsembleLinear)
        of_obs, of_action = torch.split(first.weight.mT, [obs.shape[-1], actions.shape[-1]], dim=1)
        members, (n, count, _) = len(of_obs), actions.shape
        of_each = torch.baddbmm(first.bias, obs.expand(members, -1, -1), of_obs)[:, None]  # [members, 1, B, width]
        x = activation(of_each + (actions.flatten(0, 1) @ of_action).view(members, n, count, -1)).flatten(1, 2)
        for layer in rest:
            x = layer(x)
        out: Tensor = x.view(members, n, count, -1)
        return out


class Adam(torch.optim.Adam):
    """PyTorch's Adam with a step in one call, which moves its own parameters alone.

    Args:
        decay_steps: steps over which the learning rate changes by `decay`, if given.
        max_norm: gradients of a larger norm are scaled down to it.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        decay_steps: int | None = None,
        decay: Decay = cosine,
        eps: float = 1e-8,
        max_norm: float | None = None,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        super().__init__(
            parameters, lr, eps=eps, weight_decay=weight_decay, decoupled_weight_decay=decoupled, fused=True
        )
        self.lr, self.decay_steps, self.decay, self.max_norm = lr, decay_steps, decay, max_norm
        self.done = 0

    def minimize(self, loss: Tensor) -> None:
        """One step down the gradient of a scalar loss."""
        (group,) = self.param_groups
        parameters = group["params"]
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient.contiguous()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.max_norm)
        if self.decay_steps is not None:
            group["lr"] = float(self.lr * self.decay(torch.tensor(min(self.done / self.decay_steps, 1.0))))
        self.done += 1
        self.step()
