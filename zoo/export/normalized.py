"""Normalized observations in a policy of Stable-Baselines3; its ZIP file holds this class, see `zoo.export.to_sb3`."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor


class NormalizedFeatures(BaseFeaturesExtractor):
    """`clamp((obs - mean) / std, -clip, clip)` of observations `[B, D]`; all three are saved with the policy."""

    def __init__(
        self, observation_space: "gymnasium.Space[Any]", mean: Sequence[float], std: Sequence[float], clip: float
    ) -> None:
        super().__init__(observation_space, len(mean))
        self.mean = torch.nn.Buffer(torch.tensor(mean))
        self.std = torch.nn.Buffer(torch.tensor(std))
        self.clip = torch.nn.Buffer(torch.tensor(clip))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return ((obs.flatten(1) - self.mean) / self.std).clamp(-self.clip, self.clip)
