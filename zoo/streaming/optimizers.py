"""Optimizers that update weights along a trace of past gradients."""

from typing import Any

import torch
from torch import Tensor, nn

from zoo.checks import at_least, between, check, one_of
from zoo.nn import optim
from zoo.streaming.network import StreamNetwork


class TraceOptimizer(nn.Module):
    """Updates the weights of one network along the trace z of past gradients, `z <- decay z + gradient`.

    Args:
        network: the network whose weights are updated.
        lr: the step size.
        decay: the trace's decay, gamma lambda.
        kappa: the constant in ObGD's bound.
    """

    def __init__(self, network: StreamNetwork, lr: float, decay: float, kappa: float = 1.0) -> None:
        super().__init__()
        self.moved: list[nn.Parameter] = [network.weights]  # in a list, they stay parameters of their network only
        self.lr, self.decay, self.kappa = lr, decay, kappa
        self.trace = nn.Buffer(torch.zeros_like(network.weights))

    def reset(self) -> None:
        """Clears the trace when an episode ends."""
        self.trace.zero_()

    def step(self, output: Tensor, delta: Tensor) -> Tensor:
        """Updates the weights: `output` grows if the error `delta` is positive. Returns the step size `[]`."""
        (gradient,) = torch.autograd.grad(output, self.moved)
        with torch.no_grad():
            self.trace.mul_(self.decay).add_(gradient)
            return self.move(self.moved[0], delta)

    def move(self, weights: Tensor, delta: Tensor) -> Tensor:
        """One step of the weights, in place."""
        raise NotImplementedError


class SGD(TraceOptimizer):
    """`w <- w + lr delta z`, as in classic TD(lambda) (Sutton 1988)."""

    def move(self, weights: Tensor, delta: Tensor) -> Tensor:
        weights.addcmul_(self.trace, self.lr * delta)
        return torch.full_like(delta, self.lr)


class TraceAdam(TraceOptimizer):
    """The zoo's Adam, ascending along delta z."""

    def __init__(self, network: StreamNetwork, lr: float, decay: float, kappa: float = 1.0) -> None:
        super().__init__(network, lr, decay, kappa)
        self.adam = optim.Adam(self.moved, lr)
        self.count = nn.Buffer(torch.zeros(()))

    def move(self, weights: Tensor, delta: Tensor) -> Tensor:
        with torch.enable_grad():
            self.adam.minimize(-torch.dot(delta * self.trace, weights))
        self.count.add_(1)
        return self.lr / (1 - optim.BETA1**self.count)


class ObGD(TraceOptimizer):
    """Overshooting-bounded gradient descent: the step size is `lr`, reduced where the step could overshoot.

    w <- w + lr / max(M, 1) delta z,  M = lr kappa max(|delta|, 1) ||z||_1
    """

    def move(self, weights: Tensor, delta: Tensor) -> Tensor:
        return self.bounded(weights, delta, self.trace)

    def bounded(self, weights: Tensor, delta: Tensor, direction: Tensor) -> Tensor:
        """One step along a direction, in place."""
        bound = self.lr * self.kappa * delta.abs().clamp(min=1) * direction.abs().sum()
        size = self.lr / bound.clamp(min=1)
        weights.addcmul_(direction, size * delta)
        return size


class AdaptiveObGD(ObGD):
    """ObGD along z divided by the running root mean square of delta z, weight by weight."""

    BETA = 0.999
    EPS = 1e-8

    def __init__(self, network: StreamNetwork, lr: float, decay: float, kappa: float = 1.0) -> None:
        super().__init__(network, lr, decay, kappa)
        self.count = nn.Buffer(torch.zeros(()))
        self.square = nn.Buffer(torch.zeros_like(network.weights))

    def move(self, weights: Tensor, delta: Tensor) -> Tensor:
        self.count.add_(1)
        self.square.lerp_((delta * self.trace).square(), 1 - self.BETA)
        mean_square = self.square / (1 - self.BETA**self.count)
        return self.bounded(weights, delta, self.trace / (mean_square + self.EPS).sqrt())


OPTIMIZERS: dict[str, type[TraceOptimizer]] = {
    "obgd": ObGD,
    "adaptive_obgd": AdaptiveObGD,
    "sgd": SGD,
    "adam": TraceAdam,
}


def optimizer(config: Any, network: StreamNetwork, kappa: float) -> TraceOptimizer:
    """The optimizer that an algorithm's `Config` names."""
    return OPTIMIZERS[config.optimizer](network, config.lr, config.discount * config.trace_lambda, kappa)


def check_stream(config: Any, *kappas: str) -> None:
    """Checks every streaming algorithm's `Config`. Raises ValueError."""
    kappa = at_least(1, "below 1 a step could overshoot; the paper takes 2 for values, 3 for policies")
    check(
        config,
        optimizer=one_of(*OPTIMIZERS),
        trace_lambda=between(0, 1),
        sparsity=between(0, 1),
        **dict.fromkeys(kappas, kappa),
    )
