"""Gymnasium's BipedalWalker, with episodes that do not depend on earlier ones."""

from typing import Any

import gymnasium


class NewWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Starts each episode in a new Box2D world, as LunarLander does.

    Gymnasium keeps the world (its issue 728), which resolves contacts in an order that depends on its earlier contents:
    with the same seed and actions, the same episode would end differently.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        walker: Any = self.unwrapped
        walker._destroy()
        walker.world = type(walker.world)()
        return super().reset(seed=seed, options=options)
