"""Atari 2600 games, with the preprocessing of Mnih et al. 2015 (Nature 518).

An action is repeated for 4 frames. An observation is the 4 last of these steps, uint8 `[4, 84, 84]`, each the pixelwise
maximum of its two last frames in grey. A game begins with up to 30 frames of doing nothing and with FIRE, where it has
it, and is truncated after 27,000 steps (108,000 frames). The actions are those that the game uses; none is repeated by
chance. Rewards are the raw score's. EnvPool does all of it, and so does ale-py's own vector environment. They differ in
the order of FIRE and doing nothing, and in what the first observations hold of the time before: EnvPool has the first
frame again, ale-py zeros.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

IDS = "ALE/<Game>-v5"

Frames = VectorWrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def from_ale(env_id: str, num_envs: int, threads: int) -> VectorEnv:
    """`num_envs` games that ale-py steps in C++. Raises ImportError, or Gymnasium's error for an id that is not."""
    from ale_py.vector_env import AtariVectorEnv

    game = gymnasium.spec(env_id).kwargs["game"]
    return _AnySeed(
        AtariVectorEnv(
            game, num_envs, num_threads=threads, autoreset_mode=AutoresetMode.SAME_STEP, reward_clipping=False
        )
    )


class _AnySeed(Frames):
    """Takes the seeds that Gymnasium's other environments take: ale-py's are of 31 bits."""

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        seeds: Any = seed
        if seed is not None:
            seeds = np.arange(seed, seed + self.num_envs) if isinstance(seed, int) else np.array(seed)
            seeds %= 2**31
        return super().reset(seed=seeds, options=options)


class EpisodicLife(Frames):
    """A lost life terminates, though the game goes on: to the agent that learns, it is worth nothing from there.

    The next observation is then both the final one and the first of the next life, and no step is taken between the
    two: an agent learns to begin a life as it will have to where whole games are played. A step's `info` holds, bool
    `[N]`, `game_over`: the game itself has ended.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        self._lives = info["lives"]
        return obs, info

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(actions)
        game_over = terminated | truncated
        lost = (info["lives"] < self._lives) & (info["lives"] > 0) & ~game_over  # the last one ends the game itself
        self._lives = info["lives"]  # those of the next game, where one has ended
        ended = game_over | lost
        if ended.any():
            final_obs = np.full(self.num_envs, None, dtype=object)
            for i in np.flatnonzero(ended):
                final_obs[i] = info["final_obs"][i] if game_over[i] else obs[i].copy()
            info = info | {"final_obs": final_obs, "_final_obs": ended}
        return obs, reward, terminated | lost, truncated, info | {"game_over": game_over}
