"""Networks for streams: all weights in one vector, most of them zero at the start."""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.nn import check_frames
from zoo.spec import GRID


class StreamNetwork(nn.Module):
    """`[..., *shape] -> [..., outputs]`: layers with LayerNorm before LeakyReLU, with all weights in one vector.

    For each output of a layer, a share `sparsity` of its weights starts at 0, the others uniform in +-1/sqrt(inputs),
    and its bias at 0. LayerNorm, without parameters of its own, is over all outputs of a layer. Frames pass through the
    convolutions of the authors' code before the hidden layers: images through Atari's, grids through MinAtar's.

    Raises:
        UsageError: there are no convolutions for the frames, or two successive layers would start with zeros only: then
            no gradient ever reaches a weight.
    """

    def __init__(
        self, shape: Sequence[int], outputs: int, hidden: Sequence[int], sparsity: float = 0.9, layer_norm: bool = True
    ) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.strides: list[int] = []
        self.shapes: list[tuple[int, ...]] = []  # the layers' weights, starting with the convolutions
        if len(shape) == 3:
            channels, *size = shape
            check_frames(shape, smallest=53)
            atari = [(32, 8, 5), (64, 4, 3), (64, 3, 2)]
            for width, kernel, stride in atari if min(size) > GRID else [(16, 3, 1)]:
                self.shapes.append((width, channels, kernel, kernel))
                self.strides.append(stride)
                channels, size = width, [(side - kernel) // stride + 1 for side in size]
            shape = (channels, *size)
        widths = [math.prod(shape), *hidden, outputs]
        self.shapes += [(outputs, inputs) for inputs, outputs in itertools.pairwise(widths)]
        connected = [zeros(layer, sparsity) < math.prod(layer[1:]) for layer in self.shapes]
        if not all(one or other for one, other in itertools.pairwise(connected)):
            raise UsageError(
                f"algo.hidden={list(hidden)}: with algo.sparsity={sparsity} two layers in a row would begin with zeros "
                "alone, and never learn. Give wider ones, such as algo.hidden=[32,32], or a lower algo.sparsity."
            )
        parts: list[Tensor] = []
        for layer in self.shapes:
            parts += [sparse(layer, sparsity).flatten(), torch.zeros(layer[0])]
        self.sizes = [len(part) for part in parts]
        self.weights = nn.Parameter(torch.cat(parts))

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(self.weights, self.sizes)
        for i, (layer, weight, bias) in enumerate(zip(self.shapes, parts[::2], parts[1::2], strict=True)):
            if len(layer) == 4:
                x = F.conv2d(x, weight.view(layer), bias, self.strides[i])
            else:
                x = x.flatten(-3) if i and i == len(self.strides) else x
                x = (weight.view(layer) * x.unsqueeze(-2)).sum(-1) + bias  # unlike a library's product, this fuses
            if i < len(self.shapes) - 1:
                x = F.layer_norm(x, x.shape[1 - len(layer) :]) if self.layer_norm else x
                x = F.leaky_relu(x)
        return x


def zeros(shape: tuple[int, ...], sparsity: float) -> int:
    """The number of weights into each output that start at 0."""
    return math.ceil(sparsity * math.prod(shape[1:]))


def sparse(shape: tuple[int, ...], sparsity: float) -> Tensor:
    """Weights `[outputs, ...]`: for each output a share `sparsity`, rounded up, is 0; the others are LeCun uniform."""
    inputs = math.prod(shape[1:])
    weight = torch.empty(shape[0], inputs).uniform_(-1, 1) / math.sqrt(inputs)
    places = torch.rand_like(weight).argsort(1)[:, : zeros(shape, sparsity)]
    return weight.scatter_(1, places, 0.0).view(shape)
