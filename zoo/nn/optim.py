"""Adam for update loops: one call from a loss to updated weights, with all of its state in tensors."""

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from zoo.nn import tracing

BETA1, BETA2 = 0.9, 0.999  # as in the paper and in every library

Decay = Callable[[Tensor], Tensor]  # share of the steps taken -> factor on the learning rate


def cosine(done: Tensor) -> Tensor:
    """Half a cosine, from 1 to 0."""
    return 0.5 * (1 + torch.cos(math.pi * done))


def linear(done: Tensor) -> Tensor:
    """A straight line, from 1 to 0."""
    return 1 - done


class Adam(nn.Module):
    """Adam (Kingma & Ba 2015, arXiv 1412.6980): `torch.optim.Adam(fused=True)` to the last bit, with less overhead.

    It is a module, so that its moments move and are saved with the agent that owns it. It takes gradients only of its
    own parameters: a loss may pass through other networks without leaving gradients there. Nothing in `minimize`
    reads a tensor's value, so that a whole update, gradients included, compiles to one graph.

    Args:
        parameters: the parameters to update.
        lr: the learning rate.
        decay_steps: the learning rate changes over that many steps, if given.
        decay: a function from the share of these steps taken to the factor on the learning rate.
        eps: added to the root of the second moment.
        max_norm: gradients with a larger norm, over all parameters, are scaled down to it.
        weight_decay: this times the weights is added to their gradients; with `decoupled`, it is subtracted from the
            weights themselves, times the learning rate (AdamW, Loshchilov & Hutter 2019, arXiv 1711.05101).
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, decay_steps: int | None = None, decay: Decay = cosine,
        eps: float = 1e-8, max_norm: float | None = None, weight_decay: float = 0.0, decoupled: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight_decay, self.decoupled = weight_decay, decoupled
        self.moved: list[Tensor] = list(parameters)  # in a list, they stay parameters of their own module only
        self.lr, self.decay_steps, self.decay, self.eps, self.max_norm = lr, decay_steps, decay, eps, max_norm
        self.step = nn.Buffer(torch.zeros(()))
        for i, parameter in enumerate(self.moved):
            self.register_buffer(f"mean_{i}", torch.zeros_like(parameter))
            self.register_buffer(f"square_{i}", torch.zeros_like(parameter))

    def minimize(self, loss: Tensor) -> None:
        """One step down the gradient of a scalar loss."""
        gradients = list(torch.autograd.grad(loss, self.moved))
        with torch.no_grad():
            if self.max_norm is not None:
                norm = torch.stack(torch._foreach_norm(gradients)).norm()
                gradients = list(torch._foreach_mul(gradients, (self.max_norm / (norm + 1e-6)).clamp(max=1)))
            _, *moments = cast("list[Tensor]", list(self._buffers.values()))  # as registered; get_buffer is far slower
            step, means, squares = self.step, moments[0::2], moments[1::2]
            lr: Any = self.lr  # a float, or a tensor if it decays
            if self.decay_steps is not None:
                lr = self.lr * self.decay((step / self.decay_steps).clamp(max=1))
            step.add_(1)
            # a graph cannot hold the fused kernel; the compiler fuses the formula itself
            if torch.compiler.is_compiling() or tracing.active:
                if self.weight_decay and self.decoupled:
                    torch._foreach_mul_(self.moved, 1 - lr * self.weight_decay)
                elif self.weight_decay:
                    gradients = list(torch._foreach_add(gradients, self.moved, alpha=self.weight_decay))
                # as_strided makes the compiler compute these once, not again for every few weights
                size = (lr / (1 - BETA1**step)).as_strided((), ())
                unbiased = torch.rsqrt(1 - BETA2**step).as_strided((), ())
                torch._foreach_lerp_(means, gradients, 1 - BETA1)
                torch._foreach_mul_(squares, BETA2)
                torch._foreach_addcmul_(squares, gradients, gradients, 1 - BETA2)
                for parameter, mean, square in zip(self.moved, means, squares, strict=True):
                    parameter.sub_(size * mean / (square.sqrt() * unbiased + self.eps))
            else:
                # the kernel assumes that a gradient has the same memory layout as its weights
                gradients = [gradient.contiguous() for gradient in gradients]
                fused = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
                fused(
                    self.moved, gradients, means, squares, [], [step] * len(self.moved), lr=lr, beta1=BETA1,
                    beta2=BETA2, weight_decay=self.weight_decay, eps=self.eps, amsgrad=False, maximize=False,
                )  # fmt: skip
