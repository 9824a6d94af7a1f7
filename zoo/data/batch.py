"""Transitions on the run's device: one step of the environments, or a batch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Transition(NamedTuple):
    """One step of each of N environments. `next_obs` is the true successor, also at an episode's last step."""

    obs: Tensor  # [N, ...]
    action: Tensor  # [N, A] or [N]
    reward: Tensor  # [N]
    next_obs: Tensor  # [N, ...]
    terminated: Tensor  # [N] bool; stops bootstrapping
    truncated: Tensor  # [N] bool; does not stop it


class Batch(NamedTuple):
    """Transitions sampled for one update, on the run's device."""

    obs: Tensor  # [B, ...]
    action: Tensor  # [B, A] or [B]
    reward: Tensor  # [B]
    next_obs: Tensor  # [B, ...]
    terminated: Tensor  # [B] bool; truncation is not in a batch, because it never stops bootstrapping
    index: Tensor  # type: ignore[assignment]  # [B] position of each in its buffer (hides tuple.index)


class NStepBatch(NamedTuple):
    """Up to n steps of an episode each; `reward + discount * V(next_obs)` is the n-step return."""

    obs: Tensor  # [B, ...]
    action: Tensor  # [B, A] or [B], the first of the steps
    reward: Tensor  # [B] the discounted sum over the k <= n available steps
    next_obs: Tensor  # [B, ...] after these steps
    discount: Tensor  # [B] discount^k, or 0 if the episode terminated
    index: Tensor  # type: ignore[assignment]  # [B] position of each in its buffer


def gather(source: Any, index: Tensor) -> Batch:
    """The transitions of a buffer or dataset at the given indices `[B]`."""
    fields = (source.obs, source.action, source.reward, source.next_obs, source.terminated)
    obs, action, reward, next_obs, terminated = (field.index_select(0, index) for field in fields)
    return Batch(obs, action, reward, next_obs, terminated, index)


def mixed(one: Batch, other: Batch) -> Batch:
    """Concatenates two batches."""
    return Batch(*(torch.cat(fields) for fields in zip(one, other, strict=True)))


def either(first: Tensor, one: Batch, other: Batch) -> Batch:
    """Picks transitions from two batches of equal size: from `one` where `first` `[B]` is set, else from `other`."""
    pairs = zip(one, other, strict=True)
    return Batch(*(torch.where(first.view(-1, *[1] * (x.ndim - 1)), x, y) for x, y in pairs))
