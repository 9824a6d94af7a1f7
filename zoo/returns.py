"""Discounted sums over a rollout, in a logarithmic number of vectorized steps rather than a loop over time.

`ReturnsSoFar` and `ReturnToGo` keep track of running episodes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import UsageError


def discounted_sum(x: Tensor, decay: Tensor) -> Tensor:
    """`y[t] = x[t] + decay[t] * y[t + 1]`, with 0 after the last: `[T, ...]`, from `x` and `decay` `[T, ...]`.

    Computed by doubling (Hillis and Steele 1986): after k passes `y[t]` holds the terms of 2^k steps.
    """
    y, reach, decay = x.clone(), 1, decay.clone()
    while reach < len(y):
        y[:-reach] += decay[:-reach] * y[reach:]
        decay[:-reach] *= decay[reach:].clone()
        reach *= 2
    return y


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    ended: Tensor,
    discount: float,
    lambda_: float,
) -> Tensor:
    """Generalized advantage estimates (Schulman et al. 2016, arXiv 1506.02438, eq. 16) of a rollout.

    Args:
        reward: `[T, N]`, like all the others.
        value: the value of each step's observation.
        next_value: the value of its successor, which at an episode's end is the true last observation.
        terminated: the successor has value 0.
        ended: the next step belongs to another episode, because this one terminated or was truncated.
    """
    delta = reward + discount * next_value * ~terminated - value
    return discounted_sum(delta, discount * lambda_ * (~ended).to(delta))


def return_so_far(reward: Tensor, ended: Tensor, discount: float, before: Tensor | float) -> Tensor:
    """`R[t] = reward[t] + discount * R[t - 1]`, restarted after an episode's end: `[T, N]`.

    Args:
        reward: `[T, N]`.
        ended: `[T, N]`, whether the next step belongs to another episode.
        before: `[N]`, `discount * R[-1]` of the episodes that continue from the last rollout.
    """
    first = (reward[0] + before)[None]
    decay = torch.cat([torch.zeros_like(first), discount * (~ended[:-1]).to(reward)])
    return discounted_sum(torch.cat([first, reward[1:]]).flip(0), decay.flip(0)).flip(0)


class ReturnsSoFar(nn.Module):
    """The discounted returns so far of the running episodes of N environments, saved with the agent."""

    def __init__(self, discount: float) -> None:
        super().__init__()
        self.discount = discount
        # [N] the discounted returns that running episodes carry into the next step
        self.carried: Tensor = nn.Buffer(torch.zeros(()), persistent=False)

    def update(self, reward: Tensor, ended: Tensor) -> Tensor:
        """The returns so far `[T, N]` of the latest steps, from their rewards and episode ends, both `[T, N]`."""
        returns = return_so_far(reward, ended, self.discount, self.carried)
        self.carried = self.discount * returns[-1] * ~ended[-1]
        return returns

    def reset(self) -> None:
        """Restarts all episodes."""
        self.carried = torch.zeros_like(self.carried)

    def get_extra_state(self) -> dict[str, Any]:
        return {"carried": self.carried}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.carried = torch.as_tensor(state["carried"], device=self.carried.device)


def begin_episodes(agent: nn.Module) -> None:
    """Restarts all episodes whose returns so far an agent keeps."""
    for module in agent.modules():
        if isinstance(module, ReturnsSoFar):
            module.reset()


class ReturnToGo(nn.Module):
    """The return-to-go of each running episode: a target return minus the rewards so far.

    Target and scale are saved with the agent; the running episodes are not.
    """

    PER_RUN = ("target",)
    FAR = 2.0  # spreads of the returns that a target may lie outside them; a spread is at least a tenth of the returns

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Buffer(torch.zeros(()))
        self.scale = nn.Buffer(torch.ones(()))  # the networks' inputs are divided by it
        self._remaining = torch.zeros(0)

    def set_target(
        self, target: float | None, returns: Tensor, scale: float | None = None, of: str = "the episodes of the data"
    ) -> str:
        """Sets the target and the scale; returns a line that states them.

        Args:
            target: the target; None takes the best of the returns.
            returns: `[E]`, the returns of the episodes that the agent learns from.
            scale: the scale; None takes the largest absolute return.
            of: whose returns they are.

        Raises:
            UsageError: the target is far outside the returns that a policy could learn from.
        """
        low, high = float(returns.min()), float(returns.max())
        value = high if target is None else target
        reach = self.FAR * max(high - low, 0.1 * max(abs(low), abs(high)))
        if not low - reach <= value <= high + reach:
            raise UsageError(
                f"algo.target_return={value:g} is far from what {of} return, {low:.4g} to {high:.4g}: no policy can "
                "have learned what it takes. For the best of them: algo.target_return=null."
            )
        self.target.fill_(value)
        self.scale.fill_(scale or max(abs(low), abs(high)) or 1.0)
        return f"target return: {value:.4g}; the episodes learned from return {low:.4g} to {high:.4g}"

    def begin(self, num_envs: int) -> None:
        """Starts `num_envs` episodes."""
        self._remaining = self.target.repeat(num_envs)

    def remaining(self, num_envs: int) -> Tensor:
        """The returns-to-go `[num_envs]`; the whole target if that many episodes have not begun yet."""
        if len(self._remaining) != num_envs:
            self.begin(num_envs)
        return self._remaining

    def subtract(self, reward: Tensor) -> None:
        """Subtracts the rewards `[num_envs]` of the last step."""
        self._remaining = self.remaining(len(reward)) - reward
