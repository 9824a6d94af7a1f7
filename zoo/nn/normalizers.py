"""Normalization by mean and standard deviation: of a dataset, or of all samples so far."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

ROWS = 65_536  # summed at once
EPSILON = 1e-8  # added to the variance, for constant inputs


class Normalizer(nn.Module):
    """`(x - mean) / std`, initially the identity. Frames, which are bytes, are left unchanged.

    The statistics are buffers, saved with the agent: a loaded agent acts on raw observations.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.mean: Tensor = nn.Buffer(torch.zeros(tuple(shape)))
        self.std: Tensor = nn.Buffer(torch.ones(tuple(shape)))

    def fit(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Computes the statistics of `[N, ...]`; 1e-3 is added to the standard deviation, as in CORL.

        Args:
            weights: `[N]` how much each sample counts; None: all equally.
        """
        self.to(x.device)  # moves to the data's device
        if weights is None:
            mean = x.mean(0, dtype=torch.float64)  # in float32, a large mean would be inexact
            std = (x - mean.to(x)).square().mean(0, dtype=torch.float64).sqrt()
        else:
            share = weights.double() / weights.double().sum()
            # in chunks: all rows in float64 would take much memory
            rows = list(zip(torch.split(share, ROWS), torch.split(x, ROWS), strict=True))
            mean = torch.stack([torch.tensordot(p, part.double(), 1) for p, part in rows]).sum(0)
            std = torch.stack([torch.tensordot(p, (part - mean).square(), 1) for p, part in rows]).sum(0).sqrt()
        self.mean.copy_(mean)
        self.std.copy_(std + 1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return x if x.dtype == torch.uint8 else (x - self.mean) / self.std


class RunningNormalizer(Normalizer):
    """Normalizes by the mean and standard deviation of all samples so far; the output is clipped to +-10."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__(shape)
        self.count: Tensor = nn.Buffer(torch.zeros(()))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Adds samples `[N, ...]` (Chan et al. 1979: merging the moments of two samples)."""
        x = x.double()  # for columns with a large mean
        total = self.count + len(x)
        shift = x.mean(0) - self.mean
        var = (self.std.square() - EPSILON).clamp(min=0)
        squares = var * self.count + x.var(0, correction=0) * len(x)
        squares += shift.square() * self.count * len(x) / total
        self.mean += shift * len(x) / total
        self.std.copy_((squares / total + EPSILON).sqrt())
        self.count.copy_(total)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(-10, 10)
