"""Sampling for a GPU, on which each operation takes as long as all of a batch: many batches are sampled at once."""

import operator

from torch import Tensor

from zoo.data.batch import Batch, gather
from zoo.data.dataset import Dataset
from zoo.data.samplers import BATCHES, Uniform

MOST = 64 * 2**20  # bytes that are gathered at once


class SampledAhead:
    """In the place of a dataset's `sample`.

    The sampler's indices of the next batches are slices of one tensor, of which a checkpoint holds the rest. Their
    transitions are gathered when the first slice comes, and a batch is a slice of those.
    """

    def __init__(self, data: Dataset) -> None:
        self._data = data
        self._of: list[Tensor] = []  # the indices, and what their transitions were gathered from
        self._batches: list[Batch] = []

    def __call__(self, batch_size: int) -> Batch:
        """`batch_size` transitions, sampled with replacement by the sampler."""
        data, index = self._data, self._indices(batch_size)
        whole, offset = index._base, index.storage_offset()
        if not batch_size or whole is None or whole.numel() % batch_size or offset % batch_size:
            return gather(data, index)
        of = [whole, data.obs, data.action, data.reward, data.next_obs, data.terminated]
        if len(self._batches) * batch_size != whole.numel() or not all(map(operator.is_, of, self._of)):
            if whole.numel() * sum(field[0].nbytes for field in of) > MOST:
                return gather(data, index)
            fields = (field.view(-1, batch_size, *field.shape[1:]).unbind() for field in gather(data, whole))
            self._of, self._batches = of, [Batch(*batch) for batch in zip(*fields, strict=True)]
        return self._batches[offset // batch_size]

    def _indices(self, batch_size: int) -> Tensor:
        sampler = self._data.sampler
        if not isinstance(sampler, Uniform):
            return sampler(batch_size)  # draws many at a time itself
        if sampler.prefetched.numel() < batch_size:
            sampler.prefetched = sampler(BATCHES * batch_size)
        index, sampler.prefetched = sampler.prefetched[:batch_size], sampler.prefetched[batch_size:]
        return index
