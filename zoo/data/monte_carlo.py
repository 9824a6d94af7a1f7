"""Monte-Carlo returns: the discounted return after each transition, for a dataset and for a run's own episodes."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.data.batch import Batch
from zoo.data.buffers import ReplayBuffer
from zoo.returns import discounted_sum

if TYPE_CHECKING:
    from zoo.data.dataset import Dataset


class MonteCarloBatch(NamedTuple):
    """Transitions, and their discounted returns-to-go."""

    obs: Tensor  # [B, obs_dim]
    action: Tensor  # [B, A]
    reward: Tensor  # [B]
    next_obs: Tensor  # [B, obs_dim]
    terminated: Tensor  # [B] bool
    return_to_go: Tensor  # [B] including its own reward; -inf if the episode has not ended yet


class MonteCarloReturns:
    """The returns-to-go of a dataset's transitions and, after them, of a run's own transitions.

    Args:
        data: the dataset.
        discount: the discount factor.

    Raises:
        UsageError: the data does not say where its episodes end.
    """

    def __init__(self, data: "Dataset", discount: float) -> None:
        self.discount = discount
        self.of_data = returns_to_go(data.reward, data.terminated, data.ended, discount)
        self.all = self.of_data
        self.began: np.ndarray | None = None  # [num_envs] a step at or before the start of each one's running episode

    def take_in(self, buffer: ReplayBuffer, just_ended: np.ndarray | None = None) -> None:
        """Adds those episodes in the buffer that have ended. The buffer must hold whole steps and have dropped none.

        Args:
            buffer: the run's buffer.
            just_ended: `[num_envs]` bool, whose episodes ended at the latest step: earlier episodes are not read again.
        """
        if len(self.all) == len(self.of_data):
            self.all = torch.cat([self.of_data, torch.full_like(buffer.reward, -torch.inf)])
        if not buffer.size:
            return
        if self.began is None:
            self.began = np.zeros(buffer.num_envs, dtype=int)
        steps = buffer.size // buffer.num_envs
        read = slice(int(self.began.min()) * buffer.num_envs, buffer.size)
        if just_ended is not None:
            self.began[just_ended] = steps
        shape = (-1, buffer.num_envs)  # steps of all environments, one after another
        columns = (buffer.reward[read], buffer.terminated[read], buffer.terminated[read] | buffer.truncated[read])
        reward, terminated, ended = (column.view(shape).T.contiguous() for column in columns)  # [num_envs, T]
        known = ended.flip(1).cummax(1).values.flip(1)
        last = torch.zeros_like(ended)
        last[:, -1] = True  # the next environment's episodes are separate
        total = returns_to_go(reward.flatten(), terminated.flatten(), (ended | last).flatten(), self.discount)
        own = torch.where(known, total.view_as(reward), -torch.inf)
        found = self.all[len(self.of_data) :][read]
        # known values stay: in an episode read from the middle, all rewards may look the same
        found.copy_(torch.where(found.isinf(), own.T.flatten(), found))

    def add_to(self, batch: Batch) -> MonteCarloBatch:
        """A batch whose indices run through the dataset, then through the buffer."""
        return_to_go = self.all.index_select(0, batch.index)
        return MonteCarloBatch(batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated, return_to_go)


def returns_to_go(reward: Tensor, terminated: Tensor, ended: Tensor, discount: float) -> Tensor:
    """The discounted sum of each transition's reward and of those after it in its episode: `[N]`.

    In a truncated episode the sum stops at the cut, as in Nakamoto et al. 2023 (Cal-QL, arXiv 2303.05479). But an
    episode whose rewards are all the same counts as continuing at that reward forever: as there, in a sparse task whose
    goal was never reached.

    Args:
        reward: `[N]`, like all the others, for consecutive episodes.
        terminated: whether the episode terminated there.
        ended: whether the next transition belongs to another episode.
    """
    total = discounted_sum(reward.double(), discount * (~ended).double()).to(reward)
    if discount == 1:
        return total
    episode = ended.long().cumsum(0) - ended.long()  # the episode of each transition
    least, most, finished = (
        torch.zeros_like(x).scatter_reduce(0, episode, x, kind, include_self=False)[episode]
        for x, kind in ((reward, "amin"), (reward, "amax"), (terminated.to(reward), "amax"))
    )
    return torch.where((least == most) & (finished == 0), reward / (1 - discount), total)
