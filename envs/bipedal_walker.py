"""Gymnasium's BipedalWalker, whose episodes do not depend on those before."""

from typing import Any

import gymnasium


class NewWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each episode begins in a new world of Box2D's, as LunarLander's do.

    Gymnasium keeps the world (its issue 728), which resolves contacts in an order that follows from what was in it
    before: with the same seed and actions the same episode would end in another way.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        walker: Any = self.unwrapped
        walker._destroy()
        walker.world = type(walker.world)()
        return super().reset(seed=seed, options=options)
