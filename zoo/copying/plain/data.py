"""Transitions: from a file in D4RL's layout, or collected in the environments so far."""

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from zoo.copying.plain.envs import Spec
from zoo.data import buffers, dataset
from zoo.data.batch import Batch, Transition, gather
from zoo.data.samplers import SamplerConfig, make_sampler


class ReplayBuffer(buffers.ReplayBuffer):
    """The last `capacity` transitions, sampled uniformly; when full, the oldest are overwritten."""

    def __init__(self, capacity: int, spec: Spec, device: torch.device) -> None:
        self.capacity, self.device, self.added, self.size, self.num_envs = capacity, device, 0, 0, 1
        self.obs, self.next_obs = torch.zeros(2, capacity, *spec.obs_shape, device=device)
        self.action = (
            torch.zeros(capacity, dtype=torch.int64, device=device)
            if spec.num_actions
            else torch.zeros(capacity, spec.action_dim, device=device)
        )
        self.reward = torch.zeros(capacity, device=device)
        self.terminated, self.truncated = torch.zeros(2, capacity, dtype=torch.bool, device=device)

    def add(self, transition: Transition, ended: np.ndarray | None = None) -> None:
        """Stores one transition of each environment."""
        index = (self.added + torch.arange(len(transition.reward), device=self.device)) % self.capacity
        for name, value in transition._asdict().items():
            getattr(self, name)[index] = value
        self.num_envs = len(index)
        self.added, self.size = self.added + len(index), min(self.size + len(index), self.capacity)

    def sample(self, batch_size: int) -> Batch:
        """`batch_size` transitions, sampled uniformly with replacement."""
        return gather(self, torch.randint(self.size, (batch_size,), device=self.device))


class Dataset(dataset.Dataset):
    """Transitions of consecutive episodes as tensors on one device.

    Attributes:
        obs, action, reward, next_obs, terminated: `[N, ...]` tensors as in `Batch`.
        episode_starts: `[E]` the index of the first transition of each episode.
        episode_lengths: `[E]` the number of transitions of each episode.
        episode_returns: `[E]` the sum of the rewards of each episode.
        reward_scale: the factor by which the rewards have been multiplied.
    """

    episode_starts: Tensor
    episode_lengths: Tensor
    episode_returns: Tensor
    spec: Spec  # type: ignore[assignment]

    def __init__(
        self, arrays: Sequence[np.ndarray], spec: Spec, device: torch.device, sampler: SamplerConfig | None = None
    ) -> None:
        self.spec, self.device, self.reward_scale = spec, device, 1.0
        if arrays[0].shape[1:] != ((spec.state_dim,) if spec.goal_dim else spec.obs_shape):
            raise SystemExit("--dataset: its observations have another shape than the environment's")
        if arrays[1].shape[1:] != (() if spec.num_actions else (spec.action_dim,)):
            raise SystemExit("--dataset: its actions have another shape than the environment's")
        self.obs, self.action, self.reward, self.next_obs, self.terminated, self.truncated = (
            torch.from_numpy(array).to(device) for array in arrays
        )
        if spec.num_actions:
            self.action = self.action.long()
        ends = np.flatnonzero(episode_ends(arrays))
        starts = np.append(0, ends[:-1] + 1)
        self.episode_starts = torch.from_numpy(starts).to(device)
        self.episode_lengths = torch.from_numpy(ends + 1 - starts).to(device)
        self.episode_returns = torch.from_numpy(np.add.reduceat(arrays[2].astype(np.float64), starts)).to(device)
        self.use(sampler or SamplerConfig())

    def use(self, sampler: SamplerConfig) -> None:
        """Switches to another sampler. Raises UsageError if it cannot draw from this dataset."""
        if sampler.name != "uniform":
            self.sampler_config = sampler
        self.sampler = make_sampler(sampler, self)

    def set_episodes(self, starts: Tensor, lengths: Tensor, returns: Tensor) -> None:
        """Sets first transition, length and return of each episode: `[E]` each."""
        self.episode_starts, self.episode_lengths, self.episode_returns = starts, lengths, returns

    def _report(self, line: str) -> None:
        print(line, flush=True)


def episode_ends(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Whether an episode ends at each row, `[N]` bool. Raises SystemExit if the data does not say."""
    ended: np.ndarray = arrays[4] | arrays[5]
    if (arrays[3][:-1] != arrays[0][1:])[~ended[:-1]].any():
        raise SystemExit("--dataset: it does not say where its episodes end. Mark these rows in its timeouts")
    return ended


def read_d4rl(path: str, option: str = "--dataset") -> list[np.ndarray]:
    """Observations, actions, rewards, successors, terminals and timeouts of an HDF5 file in D4RL's layout."""
    if not Path(path).is_file():
        raise SystemExit(f"{option} {path or 'FILE'}: give a file that exists, HDF5 in D4RL's layout")
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    try:
        file = h5py.File(path)
    except OSError as error:
        raise SystemExit(f"{option} {path} cannot be read: {error}") from error
    with file:
        if missing := ", ".join(name for name in names if not isinstance(file.get(name), h5py.Dataset)):
            raise SystemExit(f"{option} {path} lacks {missing}, which D4RL's v2 files have")
        arrays = [file[name][()] for name in names]
    fit = len({array.shape[:1] for array in arrays}) == 1 and arrays[0].size and arrays[3].shape == arrays[0].shape
    if not fit or not all(np.isfinite(array.astype(np.float32)).all() for array in arrays):
        raise SystemExit(f"{option} {path}: its fields are empty, of different sizes, or hold NaN or infinite numbers")
    *numbers, terminated, truncated = arrays
    obs, action, reward, next_obs = (x.astype(np.float32) for x in numbers)
    terminated = terminated.astype(bool).reshape(-1)
    truncated = truncated.astype(bool).reshape(-1) & ~terminated
    truncated[-1] = not terminated[-1]
    return [obs, action, reward.reshape(-1), next_obs, terminated, truncated]
