"""Environments: made, described, and stepped."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from zoo.data.batch import Transition


class Spec(NamedTuple):
    """The shapes and bounds of an environment, with continuous or discrete actions."""

    obs_shape: tuple[int, ...]
    obs_dim: int
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    action_dim: int = 0
    num_actions: int = 0

    @property
    def goal_dim(self) -> int:
        """The number of goal entries, the last ones of an observation: half of them, because it is a state."""
        return self.obs_dim // 2

    @property
    def state_dim(self) -> int:
        """The number of entries of an observation without its goal."""
        return self.obs_dim - self.goal_dim

    @classmethod
    def of(cls, envs: VectorEnv) -> "Spec":
        shape, space = envs.single_observation_space.shape or (), envs.single_action_space
        if len(shape) == 1 and isinstance(space, gymnasium.spaces.Discrete) and space.start == 0:
            return cls(obs_shape=shape, obs_dim=math.prod(shape), num_actions=int(space.n))
        if len(shape) == 1 and isinstance(space, gymnasium.spaces.Box) and space.is_bounded() and len(space.shape) == 1:
            low, high = tuple(space.low.tolist()), tuple(space.high.tolist())
            return cls(obs_shape=shape, obs_dim=math.prod(shape), action_low=low, action_high=high, action_dim=len(low))
        raise SystemExit(f"--env: has {envs.single_observation_space}, {space}, which this algorithm cannot take")


def make_envs(env: str, count: int) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make(env)] * count, autoreset_mode=AutoresetMode.SAME_STEP)


class EnvStepper:
    """Steps environments: tensors in, transitions out. `obs` `[N, ...]` are the observations to act on."""

    def __init__(self, envs: SyncVectorEnv, seed: Sequence[int], device: torch.device) -> None:
        self.envs, self.device, self.num_envs, self.spec = envs, device, envs.num_envs, Spec.of(envs)
        self.obs = torch.as_tensor(envs.reset(seed=[*seed])[0], dtype=torch.float32, device=device)
        envs.action_space.seed(seed[0] + self.num_envs)  # seeded apart from the environments
        self.ended = np.zeros(self.num_envs, dtype=bool)  # whether the last step was each episode's last

    def random_action(self) -> Tensor:
        """Uniform actions `[N, A]` or `[N]`."""
        return torch.as_tensor(self.envs.action_space.sample(), device=self.device)

    def step(self, action: Tensor) -> Transition:
        """One step of every environment. `obs` advances: past an episode's end, to the first of the next."""
        next_obs, reward, terminated, truncated, info = self.envs.step(action.cpu().numpy())
        obs, self.obs = self.obs, torch.as_tensor(next_obs, dtype=torch.float32, device=self.device)
        successor, ended = self.obs.clone(), terminated | truncated
        self.ended = ended
        for i in np.flatnonzero(ended):
            successor[i] = torch.from_numpy(info["final_obs"][i])
        columns = (torch.from_numpy(x).to(self.device) for x in (reward.astype(np.float32), terminated, truncated))
        return Transition(obs, action, next(columns), successor, *columns)
