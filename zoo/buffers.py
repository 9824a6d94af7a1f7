"""Transitions on the run's device: what a batch is, and the replay buffer of the online algorithms."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.envs import Spec


class Transition(NamedTuple):
    """One step of each of N environments. `next_obs` is the true successor, of an episode's last step too."""

    obs: Tensor  # [N, ...]
    action: Tensor  # [N, A] or [N]
    reward: Tensor  # [N]
    next_obs: Tensor  # [N, ...]
    terminated: Tensor  # [N] bool; stops bootstrapping
    truncated: Tensor  # [N] bool; does not


class Batch(NamedTuple):
    """Transitions drawn for one update, on the run's device."""

    obs: Tensor  # [B, ...]
    action: Tensor  # [B, A] or [B]
    reward: Tensor  # [B]
    next_obs: Tensor  # [B, ...]
    terminated: Tensor  # [B] bool; truncation is not in a batch, because it never stops bootstrapping
    index: Tensor  # type: ignore[assignment]  # [B] where each stands in its buffer (tuple.index is hidden by it)


def gather(source: Any, index: Tensor) -> Batch:
    """The transitions of a buffer or dataset at the given places `[B]`."""
    fields = (source.obs, source.action, source.reward, source.next_obs, source.terminated)
    obs, action, reward, next_obs, terminated = (field.index_select(0, index) for field in fields)
    return Batch(obs, action, reward, next_obs, terminated, index)


class ReplayBuffer:
    """The last `capacity` transitions, sampled uniformly; when full, the oldest are overwritten."""

    def __init__(self, capacity: int, spec: Spec, device: torch.device) -> None:
        self.capacity, self.size, self.position = capacity, 0, 0
        self.obs = torch.zeros(capacity, *spec.obs_shape, device=device)
        self.next_obs = torch.zeros_like(self.obs)
        if spec.num_actions is None:
            self.action = torch.zeros(capacity, spec.action_dim, device=device)
        else:
            self.action = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.reward = torch.zeros(capacity, device=device)
        self.terminated = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(capacity, dtype=torch.bool, device=device)

    def add(self, transition: Transition) -> None:
        """Stores one transition of each of N environments (N at most `capacity`)."""
        count = len(transition.reward)
        first = min(count, self.capacity - self.position)  # the rest wraps around to the start
        for name, value in transition._asdict().items():
            stored = getattr(self, name)
            stored[self.position : self.position + first] = value[:first]
            if first < count:
                stored[: count - first] = value[first:]
        self.position = (self.position + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def sample(self, batch_size: int) -> Batch:
        """`batch_size` transitions drawn uniformly with replacement."""
        return gather(self, torch.randint(self.size, (batch_size,), device=self.reward.device))

    def state_dict(self) -> dict[str, Any]:
        """The filled part, so that a checkpoint is no larger than what was collected."""
        tensors = {name: getattr(self, name)[: self.size] for name in Transition._fields}
        return {"size": self.size, "position": self.position, **tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.size, self.position = state["size"], state["position"]
        for name in Transition._fields:
            getattr(self, name)[: self.size] = state[name]
