"""Representations of goals, and distances between states."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.nn.initialization import glorot_
from zoo.nn.layers import GELU, MLP


def on_sphere(x: Tensor) -> Tensor:
    """Vectors `[..., D]` scaled to a length of sqrt(D)."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * (math.sqrt(x.shape[-1]) / length)


class Quasimetric(nn.Module):
    """The interval quasimetric embedding of Wang and Isola 2022 (arXiv 2211.15120): d(x, y) >= 0, not symmetric.

    Two latents are compared a group of coordinates at a time: the length of the union of the intervals [x_i, y_i],
    those with x_i < y_i, is a distance that obeys the triangle inequality. Their mean and their maximum are mixed by a
    learned share.
    """

    def __init__(self, state_dim: int, hidden: Sequence[int], latent_dim: int, group: int = 8) -> None:
        super().__init__()
        self.encoder = glorot_(MLP(state_dim, latent_dim, hidden, GELU, layer_norm=True))
        self.share, self.group = nn.Parameter(torch.zeros(())), group

    def forward(self, obs: Tensor, goal: Tensor) -> Tensor:
        """Distances `[B]` from states `[B, S]` to others."""
        return self.between(self.encoder(obs), self.encoder(goal))

    def between(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances `[B]` from latents `[B, D]` to others."""
        x, y = (latent.view(*latent.shape[:-1], -1, self.group) for latent in (x, y))  # [B, groups, group]
        ends, order = torch.cat([x, y], -1).sort(-1)
        # going up the sorted ends, an interval opens at its x_i and closes at its y_i; empty ones count for nothing
        valid = (x < y).to(x)
        opened = torch.cat([valid, -valid], -1).gather(-1, order).cumsum(-1) > 0.5
        union = (ends.diff(dim=-1) * opened[..., :-1]).sum(-1)  # [B, groups]
        share = self.share.sigmoid()
        return share * union.mean(-1) + (1 - share) * union.amax(-1)
