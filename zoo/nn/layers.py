"""Networks made of layers: MLPs, and ensembles evaluated as one batched network."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.nn import tracing
from zoo.nn.linear import Linear, is_large, linear

FEW = 2**12  # numbers; for fewer, one call of PyTorch's activation is faster than several operations


def fused(layers: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, dict[str, bool]]]:
    """The consecutive layers of a network, each with the options for its call.

    A linear layer takes over the ReLU that follows it, and knows whether it is the last.
    """
    layers = list(layers)
    linear_layers = (Linear, EnsembleLinear)
    for before, layer, after in zip([None, *layers], layers, [*layers[1:], None], strict=False):
        if not isinstance(layer, linear_layers):
            if not (isinstance(layer, nn.ReLU) and isinstance(before, linear_layers)):
                yield layer, {}
        elif isinstance(after, nn.ReLU):
            yield layer, {"relu": True}
        else:
            yield layer, {"last": True} if after is None else {}


def of_one_kernel(x: Tensor) -> bool:
    """Whether PyTorch's own activation is the fastest for `x`: on a GPU, and for few numbers."""
    return x.is_cuda or (not tracing.active and x.numel() < FEW)


class GELU(nn.Module):
    """GELU in its tanh approximation, which is JAX's default.

    For many numbers, computed as x sigmoid(2 u), which equals x (1 + tanh(u)) / 2: PyTorch's own is slower on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        if of_one_kernel(x):
            return F.gelu(x, approximate="tanh")
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


class Mish(nn.Module):
    """x tanh(softplus(x)) (Misra 2019, arXiv 1908.08681).

    For many numbers it is computed with one exponential: tanh(softplus(x)) is n / (n + 2) for n = e^x (e^x + 2).
    PyTorch's own takes twice as long on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        if of_one_kernel(x):
            return F.mish(x)
        exp = x.clamp(max=20).exp()  # beyond that, n / (n + 2) is 1
        n = exp * (exp + 2)
        return x * (n / (n + 2))


def slope_of_mish(x: Tensor) -> Tensor:
    """The derivative of Mish at `x`."""
    exp = x.clamp(max=20).exp()
    n = exp * (exp + 2)
    return n / (n + 2) + 4 * x * (n - exp) / (n + 2).square()


class MLP(nn.Sequential):
    """`[B, inputs] -> [B, outputs]` through layers of the given widths, with PyTorch's default initialization.

    With `layer_norm` there is a LayerNorm (Ba et al. 2016, arXiv 1607.06450) after each activation, or before it with
    `norm_first`.
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: Sequence[int] = (256, 256), activation: type[nn.Module] = nn.ReLU,
        layer_norm: bool = False, norm_first: bool = False,
    ) -> None:  # fmt: skip
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [Linear(inputs, width), activation()]
            if layer_norm and norm_first:
                layers.insert(-1, nn.LayerNorm(width))
            elif layer_norm:
                layers.append(nn.LayerNorm(width))
            inputs = width
        super().__init__(*layers, Linear(inputs, outputs))
        self._fused = list(fused(self))  # only once: a policy is called for one observation at a time

    def forward(self, x: Tensor) -> Tensor:
        for layer, options in self._fused:
            x = layer(x, **options)
        return x


def with_derivative(net: MLP, x: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """The output of an MLP with Mish for `x` `[B, inputs]`, and its derivative along `[B, inputs]`.

    Gradients flow back only through the output. `torch.func.jvp` would record the derivative as well, and supports
    only PyTorch's own kernels.
    """
    for layer, options in net._fused:
        with torch.no_grad():
            if isinstance(layer, nn.Linear):
                along = linear(along, layer.weight, None, **options)
            else:
                along = along * slope_of_mish(x)
        x = layer(x, **options)
    return x, along


class EnsembleLinear(nn.Module):
    """`members` layers like `nn.Linear`: `[members, B, inputs]` or `[B, inputs] -> [members, B, outputs]`."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # equals nn.Linear's kaiming_uniform_(a=sqrt(5))
        self.weight = nn.Parameter(torch.empty(members, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.shape[1] == 1:  # a matrix product with a single column is slower, far slower when compiled
            return (x * self.weight).sum(-1, keepdim=True) + self.bias
        return torch.baddbmm(self.bias, x.expand(len(self.weight), *x.shape[-2:]), self.weight.mT)

    def each(self, members: Sequence[Tensor], relu: bool = False, last: bool = False) -> list[Tensor]:
        """Applies each member's layer to its own `[B, inputs]`, as separate products."""
        parameters = zip(members, self.weight.unbind(), self.bias.squeeze(1).unbind(), strict=True)
        return [linear(x, weight, bias, relu, last) for x, weight, bias in parameters]


class EnsembleLayerNorm(nn.Module):
    """Layer normalization of `[members, B, width]`, each member with its own weights."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weight + self.bias

    def each(self, members: Sequence[Tensor]) -> list[Tensor]:
        """Applies each member's layer to its own `[B, width]`."""
        parameters = zip(members, self.weight.squeeze(1), self.bias.squeeze(1), strict=True)
        return [F.layer_norm(x, x.shape[-1:], weight, bias) for x, weight, bias in parameters]


class EnsembleMLP(nn.Sequential):
    """`members` independent MLPs: `[B, inputs]` or `[members, B, inputs] -> [members, B, outputs]`.

    They are one batched network; on a CPU, if products are large, members are computed one after the other, because a
    batch is slower. `layer_norm` and `norm_first` as in `MLP`.
    """

    def __init__(
        self, members: int, inputs: int, outputs: int, hidden: Sequence[int] = (256, 256), layer_norm: bool = False,
        activation: type[nn.Module] = nn.ReLU, norm_first: bool = False,
    ) -> None:  # fmt: skip
        in_place = {} if activation in (GELU, Mish) else {"inplace": True}
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [EnsembleLinear(members, inputs, width), activation(**in_place)]
            if layer_norm:
                layers.insert(-1 if norm_first else len(layers), EnsembleLayerNorm(members, width))
            inputs = width
        super().__init__(*layers, EnsembleLinear(members, inputs, outputs))
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        if self.one_by_one(x):
            return self.each(self, list(x.unbind()) if x.dim() == 3 else [x] * self.members)
        for layer in self:
            x = layer(x)
        return x

    def of_pairs(self, x: Tensor, y: Tensor, times: int) -> Tensor:
        """`forward` for `x` `[B, ...]`, repeated n `times`, next to `y` `[n B, ...]`: `[members, n B, outputs]`.

        The first layer's product with `x` is computed only once.
        """
        first, *rest = self
        assert isinstance(first, EnsembleLinear)
        of_x, of_y = torch.split(first.weight, [x.shape[-1], y.shape[-1]], 2)
        if self.one_by_one(y):
            each = zip(of_x.unbind(), of_y.unbind(), first.bias.squeeze(1).unbind(), strict=True)
            return self.each(rest, [linear(x, a, bias).repeat(times, 1) + linear(y, b, None) for a, b, bias in each])
        x, y = x.expand(self.members, -1, -1), y.expand(self.members, -1, -1)
        out = torch.baddbmm(torch.baddbmm(first.bias, x, of_x.mT).repeat(1, times, 1), y, of_y.mT)
        for layer in rest:
            out = layer(out)
        return out

    def one_by_one(self, x: Tensor) -> bool:
        """Whether each member's layers are separate products, for inputs such as `x` `[..., B, inputs]`."""
        layers = (layer for layer in self if isinstance(layer, EnsembleLinear))
        return any(is_large(x.shape[-2], layer.weight, x) for layer in layers)

    @staticmethod
    def each(layers: Iterable[nn.Module], members: list[Tensor]) -> Tensor:
        """Applies consecutive layers to each member's own `[B, inputs]`: `[members, B, outputs]`."""
        for layer, options in fused(layers):
            if isinstance(layer, EnsembleLinear):
                members = layer.each(members, **options)
            elif isinstance(layer, EnsembleLayerNorm):
                members = layer.each(members)
            else:
                members = [layer(one) for one in members]
        return torch.stack(members)


class EnsembleCritic(EnsembleMLP):
    """`members` critics with a value head: `[B, obs_dim]` and `[B, action_dim] -> [members, B, outputs]`."""

    def __init__(
        self, members: int, obs_dim: int, action_dim: int, hidden: Sequence[int] = (256, 256), outputs: int = 1,
        layer_norm: bool = False, activation: type[nn.Module] = nn.ReLU, norm_first: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(members, obs_dim + action_dim, outputs, hidden, layer_norm, activation, norm_first)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat([obs, action], -1))

    def of_many(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Several actions per observation: `[B, obs_dim]` and `[n, B, action_dim] -> [members, n, B, outputs]`."""
        out = self.of_pairs(obs, actions.flatten(0, 1), len(actions))
        return out.view(len(out), *actions.shape[:2], -1)


@torch.no_grad()
def polyak_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Moves every parameter of `target` a fraction `tau` of the way to `source`'s."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)
