"""What every agent is: a module whose state dict is all that a checkpoint must hold of it."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Metrics = dict[str, Tensor]


class Agent(nn.Module):
    """An `nn.Module` that counts its optimizers and learning-rate schedules to its state dict.

    An algorithm's agent adds its losses, `update(batch) -> Metrics`, and `act`.
    """

    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        """Actions `[B, A]` for observations `[B, ...]` in the environment's units: the deterministic ones unless `explore`."""
        raise NotImplementedError

    def get_extra_state(self) -> dict[str, Any]:
        return {
            name: value.state_dict() for name, value in vars(self).items() if isinstance(value, Optimizer | LRScheduler)
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            getattr(self, name).load_state_dict(value)


class Policy:
    """A trained agent seen from outside: NumPy in, NumPy out."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    @torch.no_grad()
    def act(self, obs: np.ndarray, explore: bool = False) -> np.ndarray:
        """Actions for a batch of observations `[B, ...]`, or one action for one observation."""
        device = next(self.agent.parameters()).device
        obs_ = torch.as_tensor(np.asarray(obs), dtype=torch.float32, device=device)
        single = obs_.ndim == len(self.agent.spec.obs_shape)
        action = self.agent.act(obs_[None] if single else obs_, explore)
        return (action[0] if single else action).cpu().numpy()
