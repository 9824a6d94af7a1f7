"""Encoders of observations: convolutions for frames, the identity for vectors; and the networks on top of them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.nn.layers import MLP
from zoo.nn.linear import Linear
from zoo.spec import GRID, Spec


def check_frames(shape: Sequence[int], smallest: int = 36) -> None:
    """Raises UsageError if there is no network for frames `[C, H, W]`.

    Args:
        shape: the shape of a frame.
        smallest: the smallest side, in pixels, that the convolutions for images accept.
    """
    _, *size = shape
    if min(size) < smallest and not (min(size) >= 3 and max(size) <= GRID):
        raise UsageError(
            f"no network is known for frames of {list(shape)}: there are some for pictures [channels, height, width] "
            f"of at least {smallest} pixels a side and for grids of 3 to {GRID} cells a side."
        )


class FrameEncoder(nn.Sequential):
    """Encodes frames `[B, C, H, W]`, uint8 or floats, as features `[B, features]`.

    Images of at least 36 pixels a side: the network of Mnih et al. 2015 (Nature 518), on bytes scaled to [0, 1]; floats
    are assumed to be scaled. Grids of up to 16 cells a side, such as MinAtar's and MiniGrid's: the network of Young and
    Tian 2019 (arXiv 1903.03176), on unscaled numbers.

    Raises:
        UsageError: frames of any other size.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        check_frames(shape)
        channels, *size = shape
        if min(size) > GRID:
            self.features, self.scale = 512, 1 / 255
            self.layout = torch.channels_last  # a third faster on a CPU
            height, width = (((side - 8) // 4 + 1 - 4) // 2 + 1 - 2 for side in size)  # 7 for 84
            layers = [
                nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
                nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), Linear(64 * height * width, self.features), nn.ReLU(),
            ]  # fmt: skip
        else:
            self.features, self.scale = 128, 1.0
            self.layout = torch.contiguous_format
            inside = 16 * (size[0] - 2) * (size[1] - 2)
            layers = [
                nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), Linear(inside, self.features), nn.ReLU(),
            ]  # fmt: skip
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        scaled = x.to(torch.float32, memory_format=self.layout, copy=True)
        if x.dtype == torch.uint8:
            scaled.mul_(self.scale)
        features: Tensor = super().forward(scaled)  # type: ignore[no-untyped-call]
        return features


def network_for(spec: Spec, outputs: int, hidden: Sequence[int]) -> nn.Module:
    """`[B, ...] -> [B, outputs]`: an MLP. For frames, their encoder and one layer, whatever `hidden` is."""
    if len(spec.obs_shape) == 1:
        return MLP(spec.obs_dim, outputs, hidden)
    if not spec.is_image:
        return nn.Sequential(nn.Flatten(), MLP(spec.obs_dim, outputs, hidden))
    frames, features = encoder(spec.obs_shape)
    return nn.Sequential(frames, MLP(features, outputs, []))


def encoder(shape: Sequence[int]) -> tuple[nn.Module, int]:
    """The encoder for observations, and its number of outputs: the identity for vectors."""
    if len(shape) == 3:
        frames = FrameEncoder(shape)
        return frames, frames.features
    return nn.Flatten(), math.prod(shape)
