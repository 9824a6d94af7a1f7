"""Random batches, and networks in plain NumPy."""

import numpy as np
import pytest
import torch

from zoo.data.batch import Batch
from zoo.spec import Spec


def random_batch(size: int, spec: Spec, seed: int = 0) -> Batch:
    """Gaussian observations and rewards, actions within the bounds, a third of the transitions terminal; float64."""
    rng = np.random.default_rng(seed)
    obs, next_obs = torch.from_numpy(rng.normal(size=(2, size, *spec.obs_shape)))
    if spec.num_actions is None:
        action = torch.from_numpy(rng.uniform(spec.action_low, spec.action_high, (size, spec.action_dim)))
    else:
        action = torch.from_numpy(rng.integers(spec.num_actions, size=size))
    reward, terminated = torch.from_numpy(rng.normal(size=size)), torch.from_numpy(rng.random(size) < 1 / 3)
    return Batch(obs, action, reward, next_obs, terminated, torch.arange(size))


def numpy_network(network: torch.nn.Module, x: np.ndarray) -> np.ndarray:
    """The output `[B, outputs]` of an `MLP`, or `[members, B, outputs]` of an `EnsembleMLP`, member by member."""
    parameters = [parameter.detach().numpy() for parameter in network.parameters()]
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    if layers[0][0].ndim == 3:
        members = range(len(layers[0][0]))
        return np.stack([_forward([(w[m].T, b[m, 0]) for w, b in layers], x) for m in members])
    return _forward([(w.T, b) for w, b in layers], x)


def _forward(layers: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> np.ndarray:
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if i < len(layers) - 1:
            x = np.maximum(x, 0)
    return x


@pytest.fixture(scope="session")
def spec() -> Spec:
    """Three observations, two actions with bounds that are neither symmetric nor of unit width."""
    return Spec((3,), (-0.5, -2.0), (3.0, -1.0))


@pytest.fixture
def make_batch(spec):
    """`make_batch(seed)`: 32 random transitions."""
    return lambda seed=0: random_batch(32, spec, seed)


@pytest.fixture
def network():
    """`network(module, x)`: what a module computes, in NumPy."""
    return numpy_network
