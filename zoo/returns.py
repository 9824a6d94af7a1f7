"""Discounted sums over a rollout, in a logarithmic number of vectorized steps rather than a loop over time."""

import torch
from torch import Tensor


def discounted_sum(x: Tensor, decay: Tensor) -> Tensor:
    """`y[t] = x[t] + decay[t] * y[t + 1]`, with nothing after the last: `[T, ...]`, from `x` and `decay` `[T, ...]`.

    By doubling (Hillis and Steele 1986): after k passes `y[t]` holds the terms of 2^k steps.
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
        reward: `[T, N]`, as all of them.
        value: of each step's observation.
        next_value: of its successor, an episode's true last observation included.
        terminated: the successor is worth nothing.
        ended: the next step belongs to another episode: terminated or truncated.
    """
    delta = reward + discount * next_value * ~terminated - value
    return discounted_sum(delta, discount * lambda_ * (~ended).to(delta))


def return_so_far(reward: Tensor, ended: Tensor, discount: float, before: Tensor | float) -> Tensor:
    """`R[t] = reward[t] + discount * R[t - 1]`, anew after an episode's end: `[T, N]`.

    Args:
        reward: `[T, N]`.
        ended: `[T, N]` the next step belongs to another episode.
        before: `[N]` `discount * R[-1]` of the episodes that go on from the last rollout.
    """
    first = (reward[0] + before)[None]
    decay = torch.cat([torch.zeros_like(first), discount * (~ended[:-1]).to(reward)])
    return discounted_sum(torch.cat([first, reward[1:]]).flip(0), decay.flip(0)).flip(0)
