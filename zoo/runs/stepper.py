"""A vector environment as a training loop sees it: tensors in, transitions out."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from zoo.data.batch import Transition
from zoo.envs import snapshot
from zoo.errors import RunError
from zoo.spec import Spec

NOT_FINITE = (
    "the environment gave an observation or a reward that is NaN or infinite. Nothing was learned from it. Fix the "
    "environment; then begin again, or resume the run from its last checkpoint"
)

OnEpisode = Callable[[float, float, Mapping[str, Any]], None]  # return, length, and `info` of the last step


def is_finite(array: np.ndarray) -> bool:
    """Whether all values are finite; faster for small arrays than `np.isfinite(array).all()`."""
    return bool(np.logical_and.reduce(np.isfinite(array), axis=None))


def last_info(info: dict[str, Any], i: Any) -> dict[str, Any]:
    """What environment `i` reports in `info` with the last step of its episode, except dictionaries."""
    last = info.get("final_info", {})
    return {
        name: column[i]
        for name, column in last.items()
        if isinstance(column, np.ndarray) and name[0] != "_" and (f"_{name}" not in last or last[f"_{name}"][i])
    }


def number_in(info: Mapping[str, Any], name: str) -> float:
    """A number in the `info` of an episode's last step. Raises RunError if it is not there."""
    try:
        return float(info[name])
    except (KeyError, TypeError, ValueError) as error:
        there = ", ".join(info) or "nothing"
        raise RunError(f"info_keywords: {name} is no number in info at an episode's end, which has {there}.") from error


class EnvStepper:
    """Steps `envs`, seeded by a seed or a list of seeds, and keeps their current observations.

    Attributes:
        obs: `[N, ...]` the observations to act on, on `device`: uint8 for frames, else float32.
        spec: the shapes and bounds of one environment.
        num_envs: N.
        ended: `[N]` whether the last step was each episode's last. Known without waiting for the device.
        resumed: whether this continues within the episodes of a run that was stopped.
        on_episode: called with return, length and last `info` of every episode that ends; if losing a life terminates,
            of the whole game, see `zoo.envs.atari`. Returns are of the environment's own rewards.
        reward_scale, reward_shift: a transition's reward is the environment's times the former, plus the latter.
    """

    def __init__(
        self,
        envs: VectorEnv,
        seed: Any,
        device: torch.device,
        on_episode: OnEpisode,
        reward_scale: float = 1.0,
        reward_shift: float = 0.0,
    ) -> None:
        self.envs, self.device, self.on_episode = envs, device, on_episode
        self.reward_scale, self.reward_shift = reward_scale, reward_shift
        self.num_envs: int = envs.num_envs
        self.spec = Spec.of(envs.single_observation_space, envs.single_action_space)
        self.obs = self._observed(envs.reset(seed=seed)[0])
        # seeded apart from the environments, whose random numbers would otherwise recur in the random actions
        envs.action_space.seed((seed if isinstance(seed, int) else seed[0]) + self.num_envs)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, dtype=int)
        self.ended = np.zeros(self.num_envs, dtype=bool)
        self.resumed = False

    def random_action(self) -> Tensor:
        """Uniform actions `[N, A]` or `[N]`."""
        return torch.as_tensor(self.envs.action_space.sample(), device=self.device)

    def step(self, action: Tensor) -> Transition:
        """One step of every environment. `obs` advances: past an episode's end, to the first of the next.

        Raises:
            RunError: the environment returned NaN or infinity.
        """
        actions = action.cpu().numpy().copy()  # a copy: an environment may change its input
        if not is_finite(actions):
            raise RunError(
                "the run diverged: its policy gave an action that is NaN or infinite. A smaller learning rate or "
                "scaled rewards often help."
            )
        next_obs, given, terminated, truncated, info = self.envs.step(actions)
        reward = (self.reward_scale * given + self.reward_shift).astype(np.float32)
        if not is_finite(reward):
            raise RunError(NOT_FINITE)
        self._returns += given
        self._lengths += 1
        obs, self.obs = self.obs, self._observed(next_obs)
        successor = self.obs
        self.ended = terminated | truncated
        if self.ended.any():
            successor = self.obs.clone()
            for i in np.flatnonzero(self.ended):
                successor[i] = self._observed(info["final_obs"][i])
            over = np.flatnonzero(info.get("zoo/game_over", self.ended))
            for i in over:
                self.on_episode(float(self._returns[i]), int(self._lengths[i]), last_info(info, i))
            self._returns[over], self._lengths[over] = 0, 0
        columns = (self._tensor(column) for column in (reward, terminated, truncated))
        return Transition(obs, action, next(columns), successor, *columns)

    def report(self) -> None:
        """Nothing: episodes are counted when they end. `TensorStepper` reads the device here."""

    def state_dict(self) -> dict[str, Any] | None:
        """Where the environments are within their episodes; None if that is unknown for any of them."""
        envs = snapshot.save(self.envs)
        if envs is None:
            return None
        returns, lengths = self._returns.tolist(), self._lengths.tolist()
        return {"envs": envs, "obs": self.obs, "returns": returns, "lengths": lengths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the environments within their episodes."""
        snapshot.restore(self.envs, state["envs"])
        self.obs = state["obs"].to(self.device)
        self._returns, self._lengths = np.array(state["returns"]), np.array(state["lengths"])
        self.resumed = True

    def _observed(self, obs: np.ndarray) -> Tensor:
        array = self.spec.checked(obs)
        if self.spec.obs_dtype == "float32" and not is_finite(array):
            raise RunError(NOT_FINITE)
        return self._tensor(array)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)  # takes a fraction of the time of torch.as_tensor
