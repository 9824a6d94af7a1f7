"""Environments of other packages, and wrappers around Gymnasium's: what they return may be anything."""

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import NormalizeObservation, NormalizeReward


class Plain(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copies observations, makes a reward one number, and keeps of `info` the numbers, as floats.

    An environment may return its own array, which its reset changes: an episode's last observation would become the
    next's first. And a vector environment gives a value in `info` the type and shape that its first copy reports.
    """

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return np.copy(obs), numbers(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return np.copy(obs), np.asarray(reward).item(), terminated, truncated, numbers(info)


def check_wrappers(env: gymnasium.Env[Any, Any]) -> None:
    """Raises ValueError if a wrapper keeps running statistics: each copy has its own, and evaluations would differ."""
    for layer in layers(env):
        if isinstance(layer, NormalizeObservation | NormalizeReward):
            kind = "obs" if isinstance(layer, NormalizeObservation) else "reward"
            raise ValueError(
                f"env={env.spec.id if env.spec else env} has Gymnasium's wrapper {type(layer).__name__}, whose "
                f"statistics evaluations do not share. Leave it out, and take algo.normalize_{kind}=true, as PPO has it"
            )


def is_foreign(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether the environment or one of its wrappers is neither Gymnasium's nor the zoo's."""
    return any(not type(layer).__module__.startswith(("gymnasium.", "zoo.")) for layer in layers(env))


def layers(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    """The wrappers around an environment, from the outermost, and the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def numbers(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers and truth values in `info`, arrays of one included, as floats."""
    found = {}
    for name, value in info.items():
        if isinstance(value, bool | int | float | np.generic | np.ndarray):
            array = np.asarray(value)
            if array.size == 1 and array.dtype.kind in "biuf":
                found[name] = float(array.item())
    return found
