"""Networks and Adam from PyTorch's own layers and optimizer."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.nn.layers import EnsembleLayerNorm, EnsembleLinear, slope_of_mish
from zoo.nn.optim import Decay, cosine


class GELU(nn.GELU):
    """GELU in its tanh approximation, which is JAX's default."""

    def __init__(self) -> None:
        super().__init__("tanh")


class Mish(nn.Mish):
    """x tanh(softplus(x)) (Misra 2019, arXiv 1908.08681)."""


def center_and_scale(low: Sequence[float], high: Sequence[float]) -> tuple[list[float], list[float]]:
    bounds = list(zip(low, high, strict=True))  # the middle of each and half of its range:
    return [(a + b) / 2 for a, b in bounds], [(b - a) / 2 for a, b in bounds]


class MLP(nn.Sequential):
    """`[B, inputs] -> [B, outputs]` through layers of the given widths."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (256, 256),
        activation: type[nn.Module] = nn.ReLU,
        layer_norm: bool = False,
        norm_first: bool = False,
    ) -> None:
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(inputs, width), activation()]
            if layer_norm:
                if norm_first:
                    layers.insert(-1, nn.LayerNorm(width))
                else:
                    layers.append(nn.LayerNorm(width))
            inputs = width
        super().__init__(*layers, nn.Linear(inputs, outputs))


def with_derivative(net: MLP, x: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """The output of an MLP with Mish for `x` `[B, inputs]`, and its derivative along `[B, inputs]`.

    Gradients flow back only through the output.
    """
    for layer in net:
        with torch.no_grad():
            along = F.linear(along, layer.weight) if isinstance(layer, nn.Linear) else along * slope_of_mish(x)
        x = layer(x)
    return x, along


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
        norm_first: bool = False,
    ) -> None:
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [EnsembleLinear(members, inputs, width), activation()]
            if layer_norm:
                if norm_first:
                    layers.insert(-1, EnsembleLayerNorm(members, width))
                else:
                    layers.append(EnsembleLayerNorm(members, width))
            inputs = width
        super().__init__(*layers, EnsembleLinear(members, inputs, outputs))

    def of_pairs(self, x: Tensor, y: Tensor, times: int) -> Tensor:
        """`forward` for `x` `[B, ...]`, repeated n `times`, next to `y` `[n B, ...]`: `[members, n B, outputs]`."""
        out: Tensor = super().forward(torch.cat([x.repeat(times, 1), y], -1))  # type: ignore[no-untyped-call]
        return out


class Adam(torch.optim.Adam):
    """PyTorch's Adam with one call per step, which updates only its own parameters.

    Args:
        decay_steps: steps over which the learning rate changes, if given.
        max_norm: gradients with a larger norm are scaled down to it.
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
        self.updates = 0

    def minimize(self, loss: Tensor) -> None:
        """One step down the gradient of a scalar loss."""
        self.zero_grad()
        loss.backward(inputs=self.param_groups[0]["params"])  # type: ignore[no-untyped-call]
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.param_groups[0]["params"], self.max_norm)
        if self.decay_steps is not None:
            done = torch.tensor(min(self.updates / self.decay_steps, 1.0))
            self.param_groups[0]["lr"] = float(self.lr * self.decay(done))
            self.updates += 1
        self.step()
