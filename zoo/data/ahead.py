"""Sampling for a GPU, on which one operation alone takes as long as a whole batch: many batches are sampled at once."""

import operator

from torch import Tensor

from zoo.data.batch import Batch, gather
from zoo.data.dataset import Dataset
from zoo.data.samplers import BATCHES

MOST = 64 * 2**20  # bytes gathered at once


class SampledAhead:
    """Takes the place of a dataset's `sample`.

    The sampler's `prefetched`, which checkpoints hold, are the indices of the next batches. The transitions of all
    these batches are gathered at once, and each batch is a slice of them.
    """

    def __init__(self, data: Dataset) -> None:
        self._data = data
        self._of: list[Tensor] = []  # the remaining indices, and the data that the batches were gathered from
        self._batches: list[Batch] = []  # freed as soon as the next are gathered; the garbage collector skips them
        self._size = self._next = 0  # size of each batch, and which comes next

    def __call__(self, batch_size: int) -> Batch:
        """`batch_size` transitions, sampled with replacement by the sampler."""
        data, sampler = self._data, self._data.sampler
        if not batch_size:
            return gather(data, sampler.prefetched[:0])
        if sampler.prefetched.numel() < batch_size:
            sampler.prefetched = sampler.draw(BATCHES * batch_size)
        of = [sampler.prefetched, data.obs, data.action, data.reward, data.next_obs, data.terminated]
        self._next += 1
        if self._next >= len(self._batches) or self._size != batch_size or not all(map(operator.is_, of, self._of)):
            self._batches, self._size, self._next = self._gathered(sampler.prefetched, batch_size), batch_size, 0
        sampler.prefetched = of[0] = sampler.prefetched[batch_size:]
        self._of = of
        return self._batches[self._next]

    def _gathered(self, index: Tensor, batch_size: int) -> list[Batch]:
        """The batches at these indices, or the first of them."""
        data = self._data
        row = sum(field[0].nbytes for field in (data.obs, data.action, data.reward, data.next_obs, data.terminated))
        count = min(BATCHES, index.numel() // batch_size, max(1, MOST // (row * batch_size)))
        batches = gather(data, index[: count * batch_size])
        fields = (field.view(count, batch_size, *field.shape[1:]).unbind() for field in batches)
        return [Batch(*fields) for fields in zip(*fields, strict=True)]
