"""MinAtar: asterix, breakout, freeway, seaquest, spaceinvaders on 10x10 cells (Young and Tian 2019, arXiv 1903.03176).

All six actions are available in every game, with MinAtar's own defaults: with a probability of 0.1 the last action is
repeated, and the games get harder. MinAtar has no time limit: here an episode is truncated after 10,000 steps.
"""

import colorsys
from typing import Any

import gymnasium
import numpy as np

IDS = "minatar/<game>"
CELL = 24  # pixels per side of a cell in a picture
GAMES = {name.replace("_", ""): name for name in ("asterix", "breakout", "freeway", "seaquest", "space_invaders")}


class MinAtar(gymnasium.Env[np.ndarray, np.int64]):
    """Observes `[C, 10, 10]`, uint8: whether an object of each of C kinds is in a cell, 0 or 1.

    A picture has one colour per kind; MinAtar's own needs a window.

    Raises:
        ImportError: MinAtar is not installed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - Gymnasium's own form

    def __init__(self, game: str, render_mode: str | None = None) -> None:
        from minatar import Environment

        self.render_mode = render_mode
        self._game = Environment(game)
        height, width, kinds = self._game.state_shape()
        self.observation_space = gymnasium.spaces.Box(0, 1, (kinds, height, width), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(self._game.num_actions())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(int(self.np_random.integers(2**32)))
        self._game.reset()
        self._game.last_action = 0  # otherwise the first step could repeat an action of the previous episode
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, terminated = self._game.act(action)
        return self._observe(), float(reward), bool(terminated), False, {}

    def render(self) -> np.ndarray:
        """A uint8 picture `[240, 240, 3]`: each cell has the colour of the last kind in it, as MinAtar draws it."""
        seen = self._observe()
        hues = [colorsys.hsv_to_rgb(kind / len(seen), 0.7, 1.0) for kind in range(len(seen))]
        colours = np.array([(0.1, 0.1, 0.1), *hues]) * 255
        last = (seen * np.arange(1, len(seen) + 1)[:, None, None]).max(0)
        picture: np.ndarray = colours.astype(np.uint8)[last].repeat(CELL, 0).repeat(CELL, 1)
        return picture

    def _observe(self) -> np.ndarray:
        return np.ascontiguousarray(self._game.state().transpose(2, 0, 1), np.uint8)


for _name, _game in GAMES.items():
    gymnasium.register(f"minatar/{_name}", "zoo.envs.minatar:MinAtar", kwargs={"game": _game}, max_episode_steps=10_000)
