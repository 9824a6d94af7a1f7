"""Building blocks of agents: layers, policies, distributions, normalizers, encoders; also `heads` and `optim`."""

from zoo.nn.discrete import CategoricalPolicy, DiscreteCritic, epsilon_soft, of_action
from zoo.nn.distributions import Categorical, Gaussian
from zoo.nn.encoders import FrameEncoder, check_frames, encoder, network_for
from zoo.nn.initialization import fan_out_critic_, glorot_, near_zero_, orthogonal_, small_last_
from zoo.nn.layers import (
    GELU,
    MLP,
    EnsembleCritic,
    EnsembleLayerNorm,
    EnsembleLinear,
    EnsembleMLP,
    Mish,
    polyak_update,
    with_derivative,
)
from zoo.nn.linear import Linear
from zoo.nn.normalizers import Normalizer, RunningNormalizer
from zoo.nn.policies import BoundedPolicy, DeterministicPolicy, GaussianPolicy, TanhGaussian, UnitGaussian, best_of

__all__ = [
    "GELU", "MLP", "BoundedPolicy", "Categorical", "CategoricalPolicy", "DeterministicPolicy", "DiscreteCritic",
    "EnsembleCritic", "EnsembleLayerNorm", "EnsembleLinear", "EnsembleMLP", "FrameEncoder", "Gaussian",
    "GaussianPolicy", "Linear", "Mish", "Normalizer", "RunningNormalizer", "TanhGaussian", "UnitGaussian", "best_of",
    "check_frames", "encoder", "epsilon_soft", "fan_out_critic_", "glorot_", "near_zero_", "network_for", "of_action",
    "orthogonal_", "polyak_update", "small_last_", "with_derivative",
]  # fmt: skip
