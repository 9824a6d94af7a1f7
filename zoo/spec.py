"""The shapes and bounds that an agent is built for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gymnasium

GRID = 16  # largest side, in cells, of a grid; its numbers are not pixels, so it does not count as an image


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of one observation; the bounds of a continuous action `[A]` or the number of discrete ones.

    If a goal is given, an observation holds the entries of the state, which are what datasets hold, then the goal's.
    """

    obs_shape: tuple[int, ...]
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    num_actions: int | None = None  # None: continuous
    obs_dtype: str = "float32"  # or uint8: frames
    goal_dim: int = 0  # number of goal entries, the last ones of an observation; 0: no goal

    @classmethod
    def of(cls, observation_space: "gymnasium.Space[Any]", action_space: "gymnasium.Space[Any]") -> "Spec":
        """The spec of one environment's spaces. Raises ValueError unless they are Box -> Box or Box -> Discrete."""
        import gymnasium

        if not isinstance(observation_space, gymnasium.spaces.Box):
            raise ValueError(f"observations must be a Box, not {observation_space}")
        shape = tuple(observation_space.shape)
        dtype = "uint8" if observation_space.dtype == np.uint8 and len(shape) == 3 else "float32"
        goal_dim = getattr(observation_space, "goal_dim", 0)  # set by the spaces of zoo.envs.ogbench
        if isinstance(action_space, gymnasium.spaces.Discrete):
            if action_space.start != 0:
                raise ValueError(f"actions must count from 0, not {action_space}")
            return cls(shape, num_actions=int(action_space.n), obs_dtype=dtype, goal_dim=goal_dim)
        if isinstance(action_space, gymnasium.spaces.Box) and len(action_space.shape) == 1:
            with np.errstate(over="ignore"):
                bounds = np.stack([action_space.low, action_space.high]).astype(np.float32)
                bounded = np.isfinite(bounds[1] - bounds[0]).all()  # False if either bound is infinite
            if not bounded:
                raise ValueError(f"continuous actions must be bounded, not {action_space}")
            if not np.issubdtype(action_space.dtype, np.floating):
                raise ValueError(f"actions must be real numbers or Discrete, not {action_space}")
            if (bounds[0] >= bounds[1]).any():
                raise ValueError(f"every action must have a lower bound below the upper one, not {action_space}")
            low, high = (tuple(map(float, bound)) for bound in (action_space.low, action_space.high))
            return cls(shape, low, high, obs_dtype=dtype, goal_dim=goal_dim)
        raise ValueError(f"actions must be a flat Box or Discrete, not {action_space}")

    def checked(self, obs: Any) -> np.ndarray:
        """Observations `[..., *obs_shape]` as arrays of `obs_dtype`.

        Raises:
            ValueError: the shape differs, or frames are not uint8: scaled ones would all become 0.
        """
        if isinstance(obs, dict):
            raise ValueError(
                "observations must be arrays, not dictionaries: take those of zoo.make_envs(run_dir), or flatten them "
                "as gymnasium.wrappers.FlattenObservation does, ordered by name"
            )
        obs = np.asarray(obs)
        shape = obs.shape[max(obs.ndim - len(self.obs_shape), 0) :]
        if shape != self.obs_shape or (self.obs_dtype == "uint8" and obs.dtype != np.uint8):
            frames = self.obs_dtype == "uint8"  # other observations may be of any type
            wanted = f"{self.obs_dtype} {list(self.obs_shape)}" if frames else f"of the shape {list(self.obs_shape)}"
            found = f"{obs.dtype} {list(obs.shape)}" if frames else f"{list(obs.shape)}"
            raise ValueError(f"observations must be {wanted}, not {found}")
        array: np.ndarray = obs.astype(self.obs_dtype, copy=False)
        return array

    @property
    def action_space(self) -> str:
        """Either `continuous` or `discrete`."""
        return "continuous" if self.num_actions is None else "discrete"

    @property
    def is_image(self) -> bool:
        """Whether an observation is an image `[channels, height, width]`."""
        return len(self.obs_shape) == 3

    @property
    def obs_dim(self) -> int:
        return int(np.prod(self.obs_shape))

    @property
    def state_dim(self) -> int:
        """The number of entries of an observation without its goal."""
        return self.obs_dim - self.goal_dim

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of an observation without its goal."""
        return (self.state_dim,) if self.goal_dim else self.obs_shape

    @property
    def action_dim(self) -> int:
        return len(self.action_low)
