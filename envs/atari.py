"""Atari 2600 games, as in Mnih et al. 2015; sticky actions, as in Gymnasium's v5 games, only with env.sticky=0.25.

The preprocessing is that of Nature 518: an action is repeated for 4 frames. An observation is the last 4 such steps,
uint8 `[4, 84, 84]`, each the pixelwise maximum of its last two frames in grey. A game begins with up to 30 frames of
no-ops and with FIRE, if the game has it, and is truncated after 27,000 steps (108,000 frames). The actions are those
that the game uses. Rewards are those of the raw score. EnvPool does all of this, and so does ale-py's own vector
environment. The two differ in the order of FIRE and the no-ops, and in the frames before the first: EnvPool repeats the
first frame, ale-py has zeros.

Sticky actions (Machado et al. 2018, arXiv 1709.06009): in each frame, with probability `env.sticky`, the last action is
repeated in place of the chosen one. By default there are none, as in the NoFrameskip-v4 games of CleanRL and
Stable-Baselines3. With sticky actions, the FIRE that begins a game may fail too, and the agent has to press it.

After a lost life FIRE is pressed as well, in training and in evaluation, as by Stable-Baselines3's wrappers
EpisodicLifeEnv and FireResetEnv, which CleanRL uses: Breakout, for example, releases no ball without it. The wrappers
press NOOP, FIRE and action 2 before the agent sees the new life. Here FIRE replaces the agent's first action in the new
life, so that every step of every game is still one transition.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

IDS = "ALE/<Game>-v5"
FIRE = 1  # action 1, in all games except these
WITHOUT_FIRE = (
    "Asterix", "Backgammon", "CrazyClimber", "Freeway", "Frogger", "JourneyEscape", "Koolaid", "KungFuMaster",
    "LostLuggage", "MsPacman", "Pacman", "Skiing", "Surround", "Tutankham", "VideoCheckers",
)  # fmt: skip

if TYPE_CHECKING:  # generic since Gymnasium 1.4
    Frames = VectorWrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
else:
    Frames = VectorWrapper


def has_fire(env_id: str) -> bool:
    """Whether action 1 of the game is FIRE."""
    return env_id.removeprefix("ALE/").rpartition("-v")[0] not in WITHOUT_FIRE


def from_ale(env_id: str, num_envs: int, threads: int, sticky: float, drawn: bool = False) -> VectorEnv:
    """`num_envs` games that ale-py steps in C++. Raises ImportError, or Gymnasium's error for an unknown id."""
    from ale_py.vector_env import AtariVectorEnv

    make = partial(
        AtariVectorEnv, gymnasium.spec(env_id).kwargs["game"], num_envs, num_threads=threads,
        autoreset_mode=AutoresetMode.SAME_STEP, reward_clipping=False, repeat_action_probability=sticky,
    )  # fmt: skip
    envs = _AnySeed(make())
    if not drawn:
        return envs
    return InColour(envs, _AnySeed(make(grayscale=False, stack_num=1, img_height=210, img_width=160)))


class _AnySeed(Frames):
    """Accepts the same seeds as Gymnasium's other environments: ale-py's have only 31 bits."""

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        seeds: Any = seed
        if seed is not None:
            seeds = np.arange(seed, seed + self.num_envs) if isinstance(seed, int) else np.array(seed)
            seeds %= 2**31
        return super().reset(seed=seeds, options=options)


class InColour(Frames):
    """Games that can be drawn: a second copy of each is played in parallel, observed in colour and at full size."""

    def __init__(self, envs: VectorEnv, twins: VectorEnv) -> None:
        super().__init__(envs)
        self._twins = twins
        self.metadata = envs.metadata | {"render_fps": 15}  # 60 frames a second, 4 per step

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._frames, _ = self._twins.reset(seed=seed, options=options)
        return super().reset(seed=seed, options=options)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self._frames, *_ = self._twins.step(actions)
        return super().step(actions)

    def render(self) -> tuple[np.ndarray, ...]:
        """A uint8 picture `[210, 160, 3]` of each game."""
        return tuple(self._frames[:, 0])


class Lives(Frames):
    """Presses FIRE in the first step of a new life, whatever the action, in games that have FIRE.

    A step's `info` holds `life_lost`, bool `[N]`: a life was lost, and the game continues. The `info` of steps and
    resets holds `zoo/lives` `[N]`: the number of lives left.
    """

    def __init__(self, envs: VectorEnv, fire: bool) -> None:
        super().__init__(envs)
        self._fire = fire

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        self._lives, self._lost = info["lives"], np.zeros(self.num_envs, dtype=bool)
        return obs, info | {"zoo/lives": self._lives}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        pressed = np.where(self._lost, FIRE, actions) if self._fire else actions
        obs, reward, terminated, truncated, info = super().step(pressed)
        # losing the last life ends the game itself, though not always in the same step
        self._lost = (info["lives"] < self._lives) & (info["lives"] > 0) & ~(terminated | truncated)
        self._lives = info["lives"]  # after a game's end, those of the next game
        return obs, reward, terminated, truncated, info | {"life_lost": self._lost, "zoo/lives": self._lives}


class EpisodicLife(Frames):
    """A lost life terminates the episode, though the game continues: no value is bootstrapped from there.

    The next observation is then both the final one and the first one of the next life, and no step is taken between the
    two. A step's `info` holds `zoo/game_over`, bool `[N]`: the game itself has ended.
    """

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(actions)
        game_over, lost = terminated | truncated, info["life_lost"]
        ended = game_over | lost
        if ended.any():
            final_obs = np.full(self.num_envs, None, dtype=object)
            for i in np.flatnonzero(ended):
                final_obs[i] = info["final_obs"][i] if game_over[i] else obs[i].copy()
            info = info | {"final_obs": final_obs, "_final_obs": ended}
        return obs, reward, terminated | lost, truncated, info | {"zoo/game_over": game_over}
