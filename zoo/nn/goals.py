"""Representations of goals, and distances between states."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
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

    def __init__(self, state_dim: int, hidden: Sequence[int], latent_dim: int, group: int = 8) -> None:
        super().__init__()
        self.encoder = glorot_(MLP(state_dim, latent_dim, hidden, GELU, layer_norm=True))
        self.share, self.group = nn.Parameter(torch.zeros(())), group

    def forward(self, obs: Tensor, goal: Tensor) -> Tensor:
        """Distances `[B]` from states `[B, S]` to goals."""
        return self.between(self.encoder(obs), self.encoder(goal))

    def between(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances `[B]` from latents `[B, D]` to latents."""
        x, y = (latent.view(*latent.shape[:-1], -1, self.group) for latent in (x, y))  # [B, groups, group]
        start, order = x.sort(-1)
        end = torch.maximum(x, y).gather(-1, order)  # empty intervals have no length
        # taking the intervals in the order of their starts, each adds what extends beyond all earlier ones
        reached = torch.cat([start[..., :1], end.cummax(-1).values[..., :-1]], -1)
        union = F.relu(end - torch.maximum(start, reached)).sum(-1)  # [B, groups]
        share = self.share.sigmoid()
        return share * union.mean(-1) + (1 - share) * union.amax(-1)
