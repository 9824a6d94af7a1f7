"""A vector environment seen from a training loop: tensors in, transitions out."""

from collections.abc import Callable

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from zoo.buffers import Transition
from zoo.envs import Spec


class Rollout:
    """Steps `envs` and keeps their current observations.

    Attributes:
        obs: `[N, ...]` the observations to act on, float32 on `device`.
        spec: shapes and bounds of one environment.
        num_envs: N.
    """

    def __init__(
        self, envs: VectorEnv, seed: int, device: torch.device, on_episode: Callable[[float, int], None]
    ) -> None:
        self.envs, self.device, self.on_episode = envs, device, on_episode
        self.num_envs: int = envs.num_envs
        self.spec = Spec.of(envs.single_observation_space, envs.single_action_space)
        self.obs = self._tensor(envs.reset(seed=seed)[0])
        envs.action_space.seed(seed)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, dtype=int)

    def random_action(self) -> Tensor:
        """Uniform actions `[N, A]` or `[N]`."""
        return torch.as_tensor(self.envs.action_space.sample(), device=self.device)

    def step(self, action: Tensor) -> Transition:
        """One step of every environment. `obs` moves on: past an episode's end, to the first of the next."""
        next_obs, reward, terminated, truncated, info = self.envs.step(action.cpu().numpy())
        self._returns += reward
        self._lengths += 1
        obs, self.obs = self.obs, self._tensor(next_obs)
        successor = self.obs
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            successor = self.obs.clone()
            for i in ended:
                successor[i] = self._tensor(info["final_obs"][i])
                self.on_episode(float(self._returns[i]), int(self._lengths[i]))
            self._returns[ended], self._lengths[ended] = 0, 0
        flags = (torch.as_tensor(flag, device=self.device) for flag in (terminated, truncated))
        return Transition(obs, action, self._tensor(reward), successor, *flags)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, device=self.device).float()
