"""Images in the form that networks take: `[channels, height, width]`, bytes up to 255 or numbers scaled to about 1."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space

from zoo.spec import GRID


def channels_first(env: gymnasium.Env[Any, Any], env_id: str) -> gymnasium.Env[Any, Any]:
    """The environment with its images converted by `arranged`; others are unchanged. Raises ValueError as that does."""
    space, arrange = arranged(env.observation_space, env_id)
    return gymnasium.wrappers.TransformObservation(env, arrange, space) if arrange else env


def arranged(space: Space[Any], env_id: str) -> tuple[Space[Any], Callable[[np.ndarray], np.ndarray] | None]:
    """The space of the converted images, and a function that converts one or a batch of them; None: no need to convert.

    Of three dimensions, the two that are equal are height and width. If none are, the smallest is the channels, if it
    comes first or last. A two-dimensional image of bytes is grey and gets one channel.

    Raises:
        ValueError: it is unclear which dimension holds the channels, or the values are neither bytes nor scaled.
    """
    if not isinstance(space, Box):
        return space, None
    shape = space.shape
    if space.dtype == np.uint8 and len(shape) > 3:
        raise ValueError(
            f"env={env_id} observes {space.dtype} {list(shape)}: an image has 3 dimensions, [channels, height, width]. "
            "Stacked images have their channels one after another"
        )
    if space.dtype == np.uint8 and len(shape) == 2 and min(shape) > GRID:
        return _of(space, _with_channel), _with_channel
    if len(shape) != 3:
        return space, None
    first, last = _channels(shape)
    if first == last:
        raise ValueError(
            f"env={env_id} observes {list(shape)}: which dimension holds the channels is not clear. Observe [channels, "
            "height, width] with fewer channels than height and width"
        )
    if min(sorted(shape)[1:]) > GRID:
        _check_values(space, env_id)
    return (space, None) if first else (_of(space, _moved), _moved)


def _of(space: Box, arrange: Callable[[np.ndarray], np.ndarray]) -> Box:
    return Box(arrange(space.low), arrange(space.high), dtype=space.dtype.type)


def _channels(shape: tuple[int, ...]) -> tuple[bool, bool]:
    """Whether the first and whether the last of three dimensions are the channels; equal if that is ambiguous."""
    a, b, c = shape
    if a == b or b == c:
        return b == c, a == b
    return a < min(b, c), c < min(a, b)


def _check_values(space: Box, env_id: str) -> None:
    """Raises ValueError if the network, which only divides bytes by 255, would see values other than 0 to 1."""
    bounds = np.abs([space.low, space.high])
    most = float(bounds[np.isfinite(bounds)].max(initial=0.0))
    if (most > 1) != (space.dtype == np.uint8):
        raise ValueError(
            f"env={env_id} observes {space.dtype} images with values up to {most:g}. Give uint8 up to 255, or floats "
            "up to 1"
        )


def _moved(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(images, -1, -3))


def _with_channel(images: np.ndarray) -> np.ndarray:
    return images[..., None, :, :]
