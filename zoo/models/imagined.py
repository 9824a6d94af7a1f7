"""Episodes imagined in a dynamics model, and the selection of those to learn from."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.agent import Metrics
from zoo.data.arrays import Arrays, concatenate
from zoo.data.d4rl import write_d4rl
from zoo.errors import RunError


class Imagined(NamedTuple):
    """`B` episodes of at most `H` steps, imagined in parallel."""

    obs: Tensor  # [B, H, obs_dim]
    action: Tensor  # [B, H, A]
    reward: Tensor  # [B, H]
    next_obs: Tensor  # [B, H, obs_dim]
    terminated: Tensor  # [B, H] bool
    running: Tensor  # [B, H] bool, whether the episode had not ended before the step

    def returns(self, low: float = -math.inf, high: float = math.inf) -> Tensor:
        """The undiscounted returns, `[B]`; NaN if anything imagined is not finite, or a reward is out of bounds."""
        sane = self.reward.isfinite() & (self.reward >= low) & (self.reward <= high)
        for part in (self.obs, self.action, self.next_obs):
            sane = sane & part.isfinite().all(-1)
        reward = torch.where(self.running, torch.where(sane, self.reward, torch.nan), 0.0)
        return reward.double().sum(1)

    def arrays(self) -> Arrays:
        """The episodes, concatenated, without padding."""
        ended = torch.zeros_like(self.running)
        ended[torch.arange(len(ended), device=ended.device), self.running.sum(1) - 1] = True
        fields = (self.obs, self.action, self.reward, self.next_obs, self.terminated, ended & ~self.terminated)
        return Arrays(*(field[self.running].cpu().numpy() for field in fields))


class Kept:
    """The imagined episodes whose returns exceed a threshold, and the returns of all episodes.

    An episode is broken, and not kept, if a number is not finite, or if a reward lies outside the range of the data's
    rewards by more than the width of that range or the largest absolute reward: there a model diverges.

    Args:
        threshold: the return that an episode must exceed.
        rewards: the smallest and the largest reward of the data.
    """

    def __init__(self, threshold: float, rewards: tuple[float, float]) -> None:
        low, high = rewards
        spread = max(high - low, abs(low), abs(high)) or 1.0
        self.threshold, self.bounds = threshold, (low - spread, high + spread)
        self.parts: list[Arrays] = []
        self.returns: list[Tensor] = []

    def __len__(self) -> int:
        """The number of episodes kept."""
        return sum(len(part.episode_starts) for part in self.parts)

    def add(self, imagined: Imagined) -> Metrics:
        """Adds the episodes whose returns exceed the threshold."""
        returns = imagined.returns(*self.bounds)
        good = returns > self.threshold
        if good.any():
            self.parts.append(Imagined(*(field[good] for field in imagined)).arrays())
        self.returns.append(returns.cpu())
        finite = returns[returns.isfinite()]
        return {
            "kept": good.sum(),
            "kept_in_all": torch.tensor(len(self)),
            "broken": (~returns.isfinite()).sum(),
            "return_mean": finite.mean() if len(finite) else torch.zeros(()),
            "return_max": finite.max() if len(finite) else torch.zeros(()),
        }

    def arrays(self) -> Arrays:
        """All kept episodes. Raises RunError if there are none."""
        if not self.parts:
            returns = torch.cat(self.returns)
            if 2 * returns.isnan().sum() > len(returns):
                raise RunError(
                    f"the dynamics model diverges in what it imagines: all return {self._distribution()}. It may need "
                    "more data, more algo.dynamics_epochs or a smaller algo.dynamics_lr."
                )
            raise RunError(
                f"none of {len(returns):,} imagined episodes returns more than {self.threshold:.4g}: they return "
                f"{self._distribution()}. In a new run, keep lesser ones, with algo.min_return below the best of "
                "these, or imagine others: fewer algo.behavior_epochs, more algo.rollout_rounds."
            )
        return concatenate(self.parts)

    def summary(self) -> str:
        """A line that says what was kept."""
        return (
            f"imagined {sum(map(len, self.returns)):,} episodes, kept {len(self):,} that return more than "
            f"{self.threshold:.4g}; all return {self._distribution()}"
        )

    def _distribution(self) -> str:
        returns = torch.cat(self.returns).numpy()
        finite = returns[np.isfinite(returns)]
        broken = (
            f"{len(returns) - len(finite):,} nothing that the data's rewards could"
            if len(finite) < len(returns)
            else ""
        )
        if len(finite) == 0:
            return broken
        low, median, high, best = np.percentile(finite, [1, 50, 99, 100])
        shares = f"{low:.4g} (1 %), {median:.4g} (median), {high:.4g} (99 %), {best:.4g} at most"
        return ", ".join(filter(None, [shares, broken]))

    def write(self, path: Path, description: str) -> None:
        """Writes the kept episodes to a D4RL-layout HDF5 file."""
        write_d4rl(self.arrays(), path, {"description": description})

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        kept = concatenate(self.parts)._asdict() if self.parts else {}
        return {
            "kept": {name: torch.from_numpy(field) for name, field in kept.items()},
            "returns": torch.cat(self.returns) if self.returns else torch.zeros(0, dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts = [Arrays(**{name: field.numpy() for name, field in state["kept"].items()})] if state["kept"] else []
        self.returns = [state["returns"]] if len(state["returns"]) else []
