"""The interface of agents: modules whose state dict is all of their state."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.spec import Spec

Metrics = dict[str, Tensor]


class Agent(nn.Module):
    """What an algorithm file defines: networks and optimizers, each loss a method, `update` and `act`.

    Attributes:
        spec: the shapes and bounds it is built for.
    """

    spec: Spec

    def update(self, batch: Any) -> Metrics:
        """One gradient step of everything. Does not wait for the device: metrics are tensors, read when logged."""
        raise NotImplementedError

    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        """Actions `[B, A]` for observations `[B, ...]`, in the environment's units; deterministic unless `explore`."""
        raise NotImplementedError

    def begin(self, num_envs: int) -> None:
        """Resets the agent's memory for new episodes, one for each of the `num_envs` rows that `act` gets."""

    def observe(self, obs: Tensor, action: Tensor, reward: Tensor) -> None:
        """Receives the outcome of the last actions, rewards `[B]`. Only agents with a memory use it."""


class Predictor(Agent):
    """An agent that predicts returns, and chooses no actions.

    Attributes:
        discount: of the rewards to come.
    """

    discount: float

    def predict(self, obs: Tensor) -> Tensor:
        """Predicted returns `[B]`, discounted, for observations `[B, ...]`."""
        raise NotImplementedError


class Policy:
    """A trained agent with NumPy arrays in and out."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    @torch.no_grad()
    def act(self, obs: np.ndarray, explore: bool = False) -> np.ndarray:
        """Actions for a batch of observations `[B, ...]`, or one action for one observation."""
        device = next(self.agent.parameters()).device
        obs_ = torch.as_tensor(self.agent.spec.checked(obs), device=device)
        single = obs_.ndim == len(self.agent.spec.obs_shape)
        action = self.agent.act(obs_[None] if single else obs_, explore)
        return (action[0] if single else action).cpu().numpy()

    @torch.no_grad()
    def predict(self, obs: np.ndarray) -> np.ndarray:
        """Predictions of a `Predictor` for a batch of observations: `[B]`."""
        assert isinstance(self.agent, Predictor)
        device = next(self.agent.parameters()).device
        return self.agent.predict(torch.as_tensor(self.agent.spec.checked(obs), device=device)).cpu().numpy()

    def begin(self, num_envs: int = 1) -> None:
        """Resets the memory for new episodes. Needed by policies with a memory, such as of the return that is left."""
        self.agent.begin(num_envs)

    def observe(self, obs: np.ndarray, action: np.ndarray, reward: np.ndarray | float) -> None:
        """Receives the outcome of the last actions, of a batch or of one observation."""
        device = next(self.agent.parameters()).device
        obs_ = torch.as_tensor(self.agent.spec.checked(obs), device=device)
        action_, reward_ = torch.as_tensor(action, device=device), torch.as_tensor(reward, device=device)
        if obs_.ndim == len(self.agent.spec.obs_shape):
            obs_, action_ = obs_[None], action_[None]
        self.agent.observe(obs_, action_, reward_.float().reshape(-1))
