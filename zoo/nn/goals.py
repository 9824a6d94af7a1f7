"""Representations of goals, and distances between states."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.nn.initialization import glorot_
from zoo.nn.layers import GELU, MLP


def length_normalize(x: Tensor) -> Tensor:
    """Vectors `[..., D]` scaled to a length of sqrt(D)."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * (math.sqrt(x.shape[-1]) / length.clamp(min=1e-8))


class Quasimetric(nn.Module):
    """The interval quasimetric embedding of Wang and Isola 2022 (arXiv 2211.15120): d(x, y) >= 0, not symmetric.

    Two latents are compared group by group: the total length of the union of the intervals [x_i, y_i] for coordinates
    with x_i < y_i is a distance that satisfies the triangle inequality. The mean and the maximum over groups are mixed
    with a learned weight.
    """

    GROUP = 8  # coordinates per group

    def __init__(self, state_dim: int, hidden: Sequence[int], latent_dim: int) -> None:
        super().__init__()
        self.encoder = glorot_(MLP(state_dim, latent_dim, hidden, GELU, layer_norm=True))
        self.share = nn.Parameter(torch.zeros(()))

    def forward(self, obs: Tensor, goal: Tensor) -> Tensor:
        """Distances `[B]` from states `[B, S]` to goals."""
        return self.between(self.encoder(obs), self.encoder(goal))

    def between(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances `[B]` from latents `[B, D]` to latents."""
        x, y = (latent.view(*latent.shape[:-1], -1, self.GROUP) for latent in (x, y))  # [B, groups, 8]
        with torch.no_grad():
            first, last = self._bounds(x, torch.maximum(x, y))
        union = (last * y - first * x).sum(-1)  # [B, groups]
        share = self.share.sigmoid()
        return share * union.mean(-1) + (1 - share) * union.amax(-1)

    def _bounds(self, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the intervals' starts and ends bound their union, `[B, groups, 8]` of 0 and 1.

        They are those that no other interval covers. Of equal ones, only the first counts. All pairs are compared:
        compiled, this takes a tenth of the time of sorting.
        """
        first = last = (start < end).to(start.dtype)  # empty intervals bound nothing
        index = torch.arange(self.GROUP, dtype=start.dtype, device=start.device)
        for i in range(self.GROUP):
            low, high, later = start[..., i : i + 1], end[..., i : i + 1], index > i
            first = first * ((start >= high) | torch.where(later, start < low, start <= low))
            last = last * ((end <= low) | torch.where(later, end > high, end >= high))
        return first, last
