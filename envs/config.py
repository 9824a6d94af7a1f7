"""What is known of an environment before it is made, and the shapes and bounds that an agent is built for."""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

OWN_CLOCK = ("ALE/", "dmc/", "MiniGrid-")  # these end their episodes themselves


@dataclass
class EnvConfig:
    """An entry of `configs/env`, or any id that Gymnasium or a family of `zoo list` has."""

    id: str = "???"  # Gymnasium id
    name: str = ""  # short name, of its datasets and run folders; from the id where empty
    backend: str = "auto"  # envpool or gymnasium; auto takes EnvPool where it is installed and has the environment
    max_episode_steps: int | None = None  # steps after which an episode is truncated, without scores; null: as it is
    sticky: float = 0.0  # Atari: probability that a frame repeats the last action; Gymnasium's v5 games have 0.25
    random_score: float | None = None  # mean return of uniformly random actions; normalized score 0
    expert_score: float | None = None  # mean return of the reference expert; normalized score 100
    score_source: str | None = None  # where the two reference scores come from

    def __post_init__(self) -> None:
        if self.id != "???":
            self.name = self.name or self.id.removeprefix("ALE/").rsplit("-v", 1)[0].replace("/", "-").lower()
        if not 0 <= self.sticky <= 1:
            raise ValueError(f"env.sticky={self.sticky} must lie between 0 and 1")
        if self.sticky and not self.is_atari:
            raise ValueError(
                f"env.sticky={self.sticky}: {self.id} has no sticky actions, only Atari games have. Leave it out"
            )
        if self.random_score is not None and self.random_score == self.expert_score:
            raise ValueError(f"env.expert_score={self.expert_score} must differ from env.random_score")
        if self.max_episode_steps is not None:
            if self.max_episode_steps < 1:
                raise ValueError(f"env.max_episode_steps={self.max_episode_steps} must be at least 1")
            if self.id.startswith(OWN_CLOCK):
                raise ValueError(
                    f"env.max_episode_steps={self.max_episode_steps}: {self.id} keeps a time of its own. Leave it out"
                )
            self.random_score = self.expert_score = None  # which are of the environment's own episodes

    @property
    def is_atari(self) -> bool:
        """Whether it is one of `zoo.envs.atari`."""
        return self.id.startswith("ALE/")

    def normalize(self, returns: Any) -> Any:
        """Normalized score `100 (R - random) / (expert - random)`, or None without references.

        Fu et al. 2020, arXiv 2004.07219, section 4.
        """
        if self.random_score is None or self.expert_score is None:
            return None
        return 100 * (returns - self.random_score) / (self.expert_score - self.random_score)


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of one observation; the bounds of a continuous action `[A]` or the number of discrete ones."""

    obs_shape: tuple[int, ...]
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    num_actions: int | None = None  # None: continuous
    obs_dtype: str = "float32"  # or uint8: frames

    @classmethod
    def of(cls, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> "Spec":
        """The spec of one environment's spaces. Raises ValueError unless they are Box -> Box or Box -> Discrete."""
        if not isinstance(observation_space, gymnasium.spaces.Box):
            raise ValueError(f"observations must be a Box, not {observation_space}")
        shape = tuple(observation_space.shape)
        dtype = "uint8" if observation_space.dtype == np.uint8 and len(shape) == 3 else "float32"
        if isinstance(action_space, gymnasium.spaces.Discrete):
            if action_space.start != 0:
                raise ValueError(f"actions must count from 0, not {action_space}")
            return cls(shape, num_actions=int(action_space.n), obs_dtype=dtype)
        if isinstance(action_space, gymnasium.spaces.Box) and len(action_space.shape) == 1:
            if not (np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all()):
                raise ValueError(f"continuous actions must be bounded, not {action_space}")
            low, high = (tuple(map(float, bound)) for bound in (action_space.low, action_space.high))
            return cls(shape, low, high, obs_dtype=dtype)
        raise ValueError(f"actions must be a flat Box or Discrete, not {action_space}")

    def checked(self, obs: Any) -> np.ndarray:
        """Observations `[..., *obs_shape]` as arrays of `obs_dtype`.

        Raises:
            ValueError: they have another shape, or another dtype where frames are: scaled ones would all become 0.
        """
        obs = np.asarray(obs)
        shape = obs.shape[max(obs.ndim - len(self.obs_shape), 0) :]
        if shape != self.obs_shape or (self.obs_dtype == "uint8" and obs.dtype != np.uint8):
            raise ValueError(
                f"observations must be {self.obs_dtype} {list(self.obs_shape)}, not {obs.dtype} {list(obs.shape)}"
            )
        array: np.ndarray = obs.astype(self.obs_dtype, copy=False)
        return array

    @property
    def action_space(self) -> str:
        """`continuous` or `discrete`."""
        return "continuous" if self.num_actions is None else "discrete"

    @property
    def obs_dim(self) -> int:
        return int(np.prod(self.obs_shape))

    @property
    def action_dim(self) -> int:
        return len(self.action_low)
