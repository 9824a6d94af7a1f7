"""Changes the dynamics of MuJoCo tasks: `env.gravity`, `env.friction`, `env.action_noise`.

The model is changed after an environment has been made from it, so files stay unchanged. The tasks of Gymnasium,
gymnasium-robotics and OGBench keep their model through all resets.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from zoo.envs.config import EnvConfig, not_mujoco


def changed(env: gymnasium.Env[Any, Any], config: EnvConfig, training: bool) -> gymnasium.Env[Any, Any]:
    """The environment with the configured dynamics, for training or evaluation; unchanged if none are configured.

    Raises:
        ValueError: other dynamics are configured, but the environment is not simulated by MuJoCo, or has no gravity.
    """
    if not config.changes:
        return env
    model: Any = getattr(env.unwrapped, "model", None)
    if not hasattr(model, "geom_friction") or not isinstance(env.action_space, Box):
        raise ValueError(not_mujoco(config))
    if config.gravity != 1 and not model.opt.gravity.any():
        raise ValueError(f"env.gravity={config.gravity}: {config.id} has no gravity. Leave it out")
    if config.changed_in not in ("both", "training" if training else "evaluation"):
        return env
    model.opt.gravity[:] *= config.gravity
    model.geom_friction[:] *= config.friction
    model.pair_friction[:] *= config.friction  # of contacts that the task defines by themselves
    return ActionNoise(env, config.action_noise) if config.action_noise else env


class ActionNoise(gymnasium.ActionWrapper[Any, Any, Any]):
    """Adds Gaussian noise to actions, in units of half their range, within their bounds; seeded by the environment."""

    def __init__(self, env: gymnasium.Env[Any, Any], std: float) -> None:
        super().__init__(env)
        assert isinstance(env.action_space, Box)
        self.low, self.high = env.action_space.low, env.action_space.high
        self.std = std * (self.high - self.low) / 2

    def action(self, action: Any) -> Any:
        noise = self.unwrapped.np_random.standard_normal(self.low.shape)
        return np.clip(action + self.std * noise, self.low, self.high).astype(self.low.dtype)
