"""EnvPool's environments, stepped in C++, as a Gymnasium `VectorEnv` that follows the rule of `zoo.envs.make`.

EnvPool deviates from that rule in these ways, each corrected here:

- it resets an environment in the step after the one that ended its episode, and ignores that step's action: here the
  environments whose episode ended are reset at once, so that step never comes;
- its seeds are fixed when a pool is made: here a seeded reset makes a new pool;
- if an episode terminates in the very step that reaches its time limit, it reports only the truncation, and an agent
  would bootstrap from a terminal state: here its clock is off, and the limit, its own or the configured one, is kept
  outside;
- the observations of DeepMind Control and MiniGrid are dictionaries: here they become arrays, as their files describe;
- some images have their channels last: here they come first, by `zoo.envs.images`.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from zoo.envs import dmc, images, minigrid
from zoo.envs.names import in_envpool

_INT32_MAX = 2**31 - 1


class EnvPoolVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """`num_envs` copies of EnvPool's `env_id`, stepped together in C++ with as many threads.

    Observations keep EnvPool's dtype; rewards are float32. Of the entries that Gymnasium puts into a step's `info`,
    there are `final_obs` (object array `[N]`) and `_final_obs` (bool `[N]`); Atari games also have `lives` (`[N]`). In
    these games, each frame ignores its action with probability `sticky` and repeats the previous one.

    Raises:
        ValueError: EnvPool is not installed, or does not have the environment.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        threads: int = 1,
        max_episode_steps: int | None = None,
        sticky: float = 0.0,
    ) -> None:
        try:
            import envpool
        except ImportError as error:
            raise ValueError(f"env={env_id} in EnvPool needs envpool. Type: pip install 'rl-zoo[envpool]'") from error
        if env_id not in in_envpool():
            raise ValueError(f"env={env_id} does not exist in EnvPool. Type: env.backend=gymnasium")
        self._envpool, self._name, self._threads = envpool, in_envpool()[env_id], threads
        self._pool: Any = None  # made by the first reset
        spec = envpool.make_spec(self._name)
        self._time_limit: int = max_episode_steps or spec.config.max_episode_steps
        self._options = {"repeat_action_probability": sticky} if env_id.startswith("ALE/") else {}
        self._is_minigrid = env_id.startswith("MiniGrid-")
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._observed: Callable[[Any], np.ndarray] = lambda obs: obs
        with _bounds_rounded_in_silence():
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = _as_in_gymnasium(spec.gymnasium_action_space)
        if env_id.startswith("dmc/"):
            self.single_observation_space, self._observed = dmc.flat(env_id, self.single_observation_space)
        elif self._is_minigrid:
            self.single_observation_space = minigrid.image_space(self.single_observation_space)
            self._observed = minigrid.image
        else:
            self.single_observation_space, arrange = images.arranged(self.single_observation_space, env_id)
            self._observed = arrange or self._observed
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """First observations `[N, ...]`.

        Environment i is seeded with `seed + i` or `seed[i]`; without a seed its random numbers continue.
        """
        if seed is None and self._pool is None:
            seed = self.np_random.integers(_INT32_MAX, size=self.num_envs).tolist()
        if seed is not None:
            seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
            self._pool = self._envpool.make_gymnasium(
                self._name,
                num_envs=self.num_envs,
                num_threads=self._threads,
                seed=[s % (_INT32_MAX + 1) for s in seeds],  # EnvPool takes no larger ones
                max_episode_steps=_INT32_MAX,  # its clock is off, see above
                **self._options,
            )
        with _bounds_rounded_in_silence():
            obs, at = self._pool.reset()
        return self._observed(obs), _lives(at)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every environment. As in Gymnasium, an episode may terminate and be truncated in one step."""
        raw, reward, terminated, truncated, at = self._pool.step(actions)
        obs, info = self._observed(raw), _lives(at)
        if self._is_minigrid:
            reward = minigrid.reward_within(self._time_limit, reward, at["elapsed_step"])
        truncated = truncated | (at["elapsed_step"] >= self._time_limit)
        ended = terminated | truncated
        if not ended.any():
            return obs, reward, terminated, truncated, info
        ids = np.flatnonzero(ended)
        final_obs = np.full(self.num_envs, None, dtype=object)
        for i in ids:
            final_obs[i] = obs[i].copy()
        first, at = self._pool.reset(ids.astype(np.int32))
        obs[ids] = self._observed(first)
        for name, lives in _lives(at).items():
            info[name][ids] = lives  # of the next game, as in ale-py
        return obs, reward, terminated, truncated, info | {"final_obs": final_obs, "_final_obs": ended}


def _lives(at: dict[str, Any]) -> dict[str, np.ndarray]:
    return {"lives": at["lives"]} if "lives" in at else {}


@contextmanager
def _bounds_rounded_in_silence() -> Iterator[None]:
    """Silences Gymnasium's warning about EnvPool, whose bounds are float64 in float32 spaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered.*")
        yield


def _as_in_gymnasium(action_space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Converts bounds to float32, also where EnvPool has float64 (MuJoCo)."""
    if isinstance(action_space, gymnasium.spaces.Box):
        return gymnasium.spaces.Box(action_space.low.astype(np.float32), action_space.high.astype(np.float32))
    return action_space


class SingleEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One of EnvPool's environments as a Gymnasium environment.

    Raises:
        ValueError: EnvPool is not installed.
    """

    def __init__(self, env_id: str) -> None:
        self._envs = EnvPoolVectorEnv(env_id, 1)
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._envs.reset(seed=seed)[0][0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._envs.step(action[None])
        last = info["final_obs"][0] if "final_obs" in info else obs[0]
        return last, float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}
