"""The interface of agents: modules whose state dict is all of their state."""

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from zoo.errors import UsageError
from zoo.spec import Spec

Metrics = dict[str, Tensor]


def check_optimizers(name: str, tracked: Any) -> None:
    """Raises UsageError if what a run tracks under this name has an optimizer whose state no state dict holds."""
    for path, module in tracked.named_modules(prefix=name) if isinstance(tracked, nn.Module) else ():
        for attribute, value in vars(module).items():
            if any(isinstance(one, torch.optim.Optimizer) for one in tree_leaves(value)):
                raise UsageError(
                    f"{path}.{attribute} is of torch.optim, whose state is in no checkpoint, and seeds= cannot train "
                    "with it. Use zoo.nn.optim.Adam."
                )


class Agent(nn.Module):
    """The class that an algorithm file defines: networks and optimizers, a method for each loss, `update` and `act`.

    Attributes:
        spec: the shapes and bounds it is built for.
        PER_RUN: names of buffers, of the agent or of a module in it, that a run does not take over with `init_from`.
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
        """Resets the agent's memory for new episodes, one for each of the `num_envs` rows that `act` is called with."""

    def observe(self, obs: Tensor, action: Tensor, reward: Tensor) -> None:
        """Receives the outcome of the last actions, rewards `[B]`. Only agents with a memory use it."""

    def memory(self) -> dict[str, Tensor]:
        """The memory of one new episode; empty for agents without memory. `step` takes it with a batch dimension."""
        return {}

    def step(self, obs: Tensor, reward: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Acts like `act` without exploration, with the memory passed in and returned. Does not change the agent.

        Args:
            obs: `[B, ...]`.
            reward: `[B]` rewards of the previous actions, 0 at the first step.
            memory: tensors `[B, ...]`, as they were after the previous step.

        Returns:
            Actions, and the memory after them.
        """
        return self.act(obs), memory

    def critic_values(self, obs: Tensor, action: Tensor) -> Tensor | None:
        """Each critic's value `[members, B]` of actions at normalized observations; None for agents without critics.

        For agents whose `critic` is an ensemble: its outputs are values, or become values by the agent's `head`. Agents
        whose critics are of another kind override this; until they do, it is None for outputs that are no single value.
        Values are in the units of the rewards that the agent learned from.
        """
        critic, head = (getattr(self, name, None) for name in ("critic", "head"))
        if critic is None:
            return None
        out: Tensor = critic(obs, action)
        if not head and out.shape[-1] != 1:
            return None
        return head.value(out) if head else out.squeeze(-1)

    @torch.no_grad()
    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor | None:
        """The discounted return `[B]` that the critics predict for actions at observations `[B, ...]`, or None.

        It is the smallest of `critic_values`.
        """
        normalizer = getattr(self, "normalizer", None)
        values = self.critic_values(normalizer(obs) if normalizer else obs, action)
        return None if values is None else values.amin(0)

    def goal_values(self, obs: Tensor) -> Tensor | None:
        """Values `[B]` of states on the way to goals, each state followed by its goal: `[B, S + G]`; or None."""
        return None

    def subgoals(self, obs: Tensor, states: Tensor) -> Tensor | None:
        """Indices `[B]` of those states `[N, S]` that a policy aims for at observations `[B, S + G]`, or None."""
        return None


class Predictor(Agent):
    """An agent that predicts returns and chooses no actions.

    Attributes:
        discount: the discount factor of those returns.
    """

    discount: float

    def predict(self, obs: Tensor) -> Tensor:
        """Predicted returns `[B]`, discounted, for observations `[B, ...]`."""
        raise NotImplementedError

    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor:
        """The prediction, which does not depend on the action."""
        return self.predict(obs)


class Policy:
    """A trained agent that takes and returns NumPy arrays. Several threads may use it at once.

    A policy with a memory has a single one, for the episodes that `begin` started: it serves one player.
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

        A single discrete action is a NumPy integer.
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
        """The critics' predictions `[B]` of actions at a batch of observations, or of one action at one observation.

        None for agents without critics.
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
        """Resets the memory for new episodes. Needed by policies with a memory, such as that of the return-to-go."""
        with self._lock:
            self.agent.begin(num_envs)

    def observe(self, obs: np.ndarray, action: np.ndarray, reward: np.ndarray | float) -> None:
        """Receives the outcome of the last actions, for a batch or for one observation."""
        obs_, single = self._batch(obs)
        action_, reward_ = self._tensor(action), self._tensor(reward)
        with self._lock:
            self.agent.observe(obs_, action_[None] if single else action_, reward_.float().reshape(-1))

    @property
    def _device(self) -> torch.device:
        return next(self.agent.parameters()).device

    def _tensor(self, x: np.ndarray | float) -> Tensor:
        """Numbers as a tensor on the device; floating-point numbers in single precision."""
        tensor = torch.tensor(np.asarray(x), device=self._device)  # a copy: the caller may change its array later
        return tensor.float() if tensor.is_floating_point() else tensor

    def _batch(self, obs: np.ndarray) -> tuple[Tensor, bool]:
        """Observations on the device as a batch, and whether they were a single one.

        Raises:
            ValueError: they are neither one observation nor a batch of its shape, or hold NaN or infinite numbers.
        """
        array, shape = self.agent.spec.checked(obs), self.agent.spec.obs_shape
        if array.ndim > len(shape) + 1:
            raise ValueError(f"observations must be one of shape {list(shape)} or a batch, not {list(array.shape)}")
        if array.dtype != np.uint8 and not np.isfinite(array).all():
            raise ValueError("observations hold NaN or infinite numbers")
        obs_ = torch.as_tensor(np.require(array, requirements=("C", "W")), device=self._device)
        single = obs_.ndim == len(shape)
        return (obs_[None] if single else obs_), single
