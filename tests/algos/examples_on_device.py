"""Transitions, datasets and models on the device that has no values."""

import numpy as np
import torch
from strict_device import DEVICE, moved, with_tensors_on_device

from zoo.data.arrays import Arrays
from zoo.data.batch import Transition
from zoo.data.dataset import Dataset
from zoo.data.samplers import SamplerConfig
from zoo.models.dynamics import EnsembleDynamics
from zoo.spec import Spec

CPU = torch.device("cpu")
CONTINUOUS = Spec((3,), (-1.0, -1.0), (1.0, 1.0))
DISCRETE = Spec((3,), num_actions=4)
FRAMES = Spec((4, 6, 5), num_actions=3, obs_dtype="uint8")


def transition(spec: Spec, device: torch.device = DEVICE) -> Transition:
    """A step of two environments."""
    num_envs = 2
    obs = torch.zeros(num_envs, *spec.obs_shape, dtype=getattr(torch, spec.obs_dtype))
    action = torch.zeros(num_envs, 2) if spec.num_actions is None else torch.zeros(num_envs, dtype=torch.int64)
    flags = torch.zeros(num_envs, dtype=torch.bool)
    return Transition(*(x.to(device) for x in (obs, action, torch.zeros(num_envs), obs, flags, flags)))


def dataset(sampler: str = "uniform") -> Dataset:
    """Twelve episodes of 5 steps; the dataset, with its sampler, is made before it is moved."""
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, 60, 3)).astype(np.float32)
    action, reward = rng.uniform(-1, 1, (60, 2)).astype(np.float32), rng.normal(size=60).astype(np.float32)
    terminated = np.arange(60) % 5 == 4
    data = Dataset(
        Arrays(obs, action, reward, next_obs, terminated, np.zeros(60, bool)), CONTINUOUS, CPU, SamplerConfig(sampler)
    )
    with_tensors_on_device(data.sampler)
    return with_tensors_on_device(data)


def dynamics() -> EnsembleDynamics:
    """A model that is ready for an epoch."""
    arrays = (np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in [(60, 3), (60, 2), 60])
    obs, action, reward = arrays
    flags = np.zeros(60, bool)
    model = EnsembleDynamics(3, 2, [8, 8, 8, 8], members=3, elites=2, batch_size=8)
    model.prepare(Dataset(Arrays(obs, action, reward, obs, flags, flags), CONTINUOUS, CPU), seed=0)
    return with_tensors_on_device(moved(model))
