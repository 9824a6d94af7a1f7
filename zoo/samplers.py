"""How the transitions of a dataset are drawn. A sampler is made from a dataset and gives places `[B]` in it."""

import torch
from torch import Tensor


class Uniform:
    """Every transition with the same probability, with replacement, drawn on the dataset's device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, self.device = size, device

    def __call__(self, batch_size: int) -> Tensor:
        return torch.randint(self.size, (batch_size,), device=self.device)
