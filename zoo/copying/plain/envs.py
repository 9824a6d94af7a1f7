"""Environments: made, described, and stepped."""

import math
import sys
from functools import partial
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from zoo.data.batch import Transition


class Spec(NamedTuple):
    """Shapes and bounds of an environment: of continuous actions, or of discrete ones."""

    obs_shape: tuple[int, ...]
    obs_dim: int
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    action_dim: int = 0
    num_actions: int = 0

    @classmethod
    def of(cls, envs: VectorEnv) -> "Spec":
        shape, space = envs.single_observation_space.shape or (), envs.single_action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return cls(obs_shape=shape, obs_dim=math.prod(shape), num_actions=int(space.n))
        if isinstance(space, gymnasium.spaces.Box):
            low, high = tuple(space.low.tolist()), tuple(space.high.tolist())
            return cls(obs_shape=shape, obs_dim=math.prod(shape), action_low=low, action_high=high, action_dim=len(low))
        sys.exit(f"--env: the actions of this environment are {space}, which this algorithm cannot take")


def make_envs(env: str, count: int) -> SyncVectorEnv:
    return SyncVectorEnv([partial(gymnasium.make, env)] * count, autoreset_mode=AutoresetMode.SAME_STEP)


class EnvStepper:
    """Steps environments: tensors in, transitions out.

    Attributes:
        obs: `[N, ...]` the observations to act on.
        ended: `[N]` whether the last step was each episode's last.
    """

    def __init__(self, envs: SyncVectorEnv, seed: list[int | None], device: torch.device) -> None:
        self.envs, self.device, self.num_envs = envs, device, envs.num_envs
        self.spec = Spec.of(envs)
        self.obs = self.tensor(envs.reset(seed=seed)[0].astype(np.float32))
        envs.action_space.seed(seed[0])
        self.ended = np.zeros(self.num_envs, dtype=bool)

    def tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def random_action(self) -> Tensor:
        """Uniform actions `[N, A]` or `[N]`."""
        return self.tensor(self.envs.action_space.sample())

    def step(self, action: Tensor) -> Transition:
        """One step of every environment. `obs` moves on: past an episode's end, to the first of the next."""
        next_obs, reward, terminated, truncated, info = self.envs.step(action.cpu().numpy())
        obs, self.obs = self.obs, self.tensor(next_obs.astype(np.float32))
        successor = self.obs
        self.ended = terminated | truncated
        if self.ended.any():
            successor = self.obs.clone()
            for i in np.flatnonzero(self.ended):
                successor[i] = self.tensor(info["final_obs"][i].astype(np.float32))
        columns = (self.tensor(column) for column in (reward.astype(np.float32), terminated, truncated))
        return Transition(obs, action, next(columns), successor, *columns)
