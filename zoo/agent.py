"""The interface of agents: modules whose state dict is all of their state."""

import threading
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
        PER_RUN: of it, or of a module in it: buffers that a run which begins with another one does not take over.
    """

    spec: Spec
    PER_RUN: tuple[str, ...] = ()

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

    def memory(self) -> dict[str, Tensor]:
        """What the memory of one new episode holds; empty without a memory. `step` takes it with a batch dimension."""
        return {}

    def step(self, obs: Tensor, reward: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """What `act` does without exploring, with a memory that is handed in and out. Changes nothing in the agent.

        Args:
            obs: `[B, ...]`.
            reward: `[B]` of the actions before, 0 at first.
            memory: `[B, ...]` each, as it was after the step before.

        Returns:
            Actions, and the memory after them.
        """
        return self.act(obs), memory

    def critic_values(self, obs: Tensor, action: Tensor) -> Tensor | None:
        """What each critic expects `[members, B]` of actions at observations that are normalized; None without any.

        Of an agent with `critic`, an ensemble; in the units of the rewards that it learned from.
        """
        critic, head = (getattr(self, name, None) for name in ("critic", "head"))
        if critic is None:
            return None
        out: Tensor = critic(obs, action)
        return head.value(out) if head else out.squeeze(-1)

    @torch.no_grad()
    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor | None:
        """The discounted return `[B]` that the critics expect of actions at observations `[B, ...]`; None without any.

        The smallest of `critic_values`.
        """
        normalizer = getattr(self, "normalizer", None)
        values = self.critic_values(normalizer(obs) if normalizer else obs, action)
        return None if values is None else values.amin(0)

    def goal_values(self, obs: Tensor) -> Tensor | None:
        """What states are worth `[B]` on the way to a goal, each behind its state: `[B, S + G]`; None without any."""
        return None

    def subgoals(self, obs: Tensor, states: Tensor) -> Tensor | None:
        """Which of the states `[N, S]` a policy is sent to at observations `[B, S + G]`: `[B]`; None without any."""
        return None


class Predictor(Agent):
    """An agent that predicts returns, and chooses no actions.

    Attributes:
        discount: of the rewards to come.
    """

    discount: float

    def predict(self, obs: Tensor) -> Tensor:
        """Predicted returns `[B]`, discounted, for observations `[B, ...]`."""
        raise NotImplementedError

    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor:
        """What it predicts, whatever the action."""
        return self.predict(obs)


class Policy:
    """A trained agent with NumPy arrays in and out, which several threads may use at once.

    A policy with a memory has one, of the episodes that `begin` began: it is for one player.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type["Policy"], tuple[Agent]]:
        """Copies and pickles have a lock of their own."""
        return Policy, (self.agent,)

    @torch.no_grad()
    def act(self, obs: np.ndarray, explore: bool = False) -> np.ndarray:
        """Actions for a batch of observations `[B, ...]`, or one action for one observation.

        One of discrete actions is a NumPy integer.
        """
        obs_, single = self._batch(obs)
        with self._lock:
            actions: np.ndarray = self.agent.act(obs_, explore).cpu().numpy()
            return actions[0] if single else actions

    @torch.no_grad()
    def predict(self, obs: np.ndarray) -> np.ndarray:
        """Predictions of a `Predictor` for a batch of observations: `[B]`."""
        if not isinstance(self.agent, Predictor):
            raise TypeError(f"{type(self.agent).__name__} acts and predicts nothing: use act")
        with self._lock:
            return self.agent.predict(self._batch(obs)[0]).cpu().numpy()

    def expected_return(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray | None:
        """What the critics expect of actions at a batch of observations, `[B]`, or of one at one observation.

        None where there are no critics.
        """
        obs_, single = self._batch(obs)
        action_ = self._tensor(action)
        with self._lock:
            value = self.agent.expected_return(obs_, action_[None] if single else action_)
            if value is None:
                return None
            values: np.ndarray = value.cpu().numpy()
            return values[0] if single else values

    def begin(self, num_envs: int = 1) -> None:
        """Resets the memory for new episodes. Needed by policies with a memory, such as of the return that is left."""
        with self._lock:
            self.agent.begin(num_envs)

    def observe(self, obs: np.ndarray, action: np.ndarray, reward: np.ndarray | float) -> None:
        """Receives the outcome of the last actions, of a batch or of one observation."""
        obs_, single = self._batch(obs)
        action_, reward_ = self._tensor(action), self._tensor(reward)
        with self._lock:
            self.agent.observe(obs_, action_[None] if single else action_, reward_.float().reshape(-1))

    @property
    def _device(self) -> torch.device:
        return next(self.agent.parameters()).device

    def _tensor(self, x: np.ndarray | float) -> Tensor:
        """Numbers on the device, those with a fraction in single precision."""
        tensor = torch.tensor(np.asarray(x), device=self._device)  # a copy: the caller may change what it gave
        return tensor.float() if tensor.is_floating_point() else tensor

    def _batch(self, obs: np.ndarray) -> tuple[Tensor, bool]:
        """Observations on the device as a batch, and whether they were a single one.

        Raises:
            ValueError: they are not one or a batch of the environment's shape, or hold NaN or infinite numbers.
        """
        array, shape = self.agent.spec.checked(obs), self.agent.spec.obs_shape
        if array.ndim > len(shape) + 1:
            raise ValueError(f"observations must be one of shape {list(shape)} or a batch, not {list(array.shape)}")
        if array.dtype != np.uint8 and not np.isfinite(array).all():
            raise ValueError("observations hold NaN or infinite numbers")
        obs_ = torch.as_tensor(np.require(array, requirements=("C", "W")), device=self._device)
        single = obs_.ndim == len(shape)
        return (obs_[None] if single else obs_), single
