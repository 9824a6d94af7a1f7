"""Distributions over actions, given the outputs of a network in the algorithm's file: `policy.sample(actor(x))`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.nn.policies import HALF_LOG_2PI, BoundedPolicy
from zoo.spec import Spec


class Gaussian(BoundedPolicy):
    """A Gaussian over continuous actions, not squashed: samples may lie outside the bounds; `clip` clips them.

    Args:
        spec: gives the bounds `[A]`.
        state_dependent_std: the standard deviation is the softplus of additional outputs; otherwise it is a learned
            parameter, the same in all states, which starts at 1.

    Attributes:
        outputs: the number of network outputs that it takes.
    """

    def __init__(self, spec: Spec, state_dependent_std: bool = False) -> None:
        super().__init__(spec.action_low, spec.action_high)
        self.outputs = 2 * spec.action_dim if state_dependent_std else spec.action_dim
        self.log_std = None if state_dependent_std else nn.Parameter(torch.zeros(spec.action_dim))

    def forward(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation `[..., A]`, in units of half the range of an action."""
        if self.log_std is not None:
            return out, self.log_std.exp()
        mean, spread = out.chunk(2, -1)
        return mean, F.softplus(spread)

    def sample(self, out: Tensor) -> Tensor:
        """Samples unclipped actions `[..., A]`."""
        mean, std = self.forward(out)
        return self.center + self.scale * (mean + std * torch.randn_like(mean))

    def mode(self, out: Tensor) -> Tensor:
        """The deterministic actions `[..., A]`: the means, clipped."""
        return self.clip(self.center + self.scale * self.forward(out)[0])

    def log_prob(self, out: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log density of unclipped actions `[..., A]`, and entropy, each `[...]`."""
        mean, std = self.forward(out)
        deviation = ((action - self.center) / self.scale - mean) / std
        log_prob = -0.5 * deviation.square() - std.log() - self.scale.log() - HALF_LOG_2PI
        entropy = std.log() + self.scale.log() + HALF_LOG_2PI + 0.5
        return log_prob.sum(-1), entropy.sum(-1).expand(log_prob.shape[:-1])


class Categorical(nn.Module):
    """A distribution over discrete actions, given logits `[..., outputs]`.

    Attributes:
        outputs: the number of network outputs that it takes.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        assert spec.num_actions is not None
        self.outputs = spec.num_actions

    def sample(self, out: Tensor) -> Tensor:
        """Samples actions `[...]` by the Gumbel-max trick."""
        return (out - torch.empty_like(out).exponential_().log()).argmax(-1)

    def mode(self, out: Tensor) -> Tensor:
        """The most probable actions `[...]`."""
        return out.argmax(-1)

    def clip(self, action: Tensor) -> Tensor:
        """Returns the actions unchanged: all lie within the bounds."""
        return action

    def log_prob(self, out: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log probability of actions `[...]`, and entropy, each `[...]`."""
        log_probs = out.log_softmax(-1)
        return log_probs.gather(-1, action[..., None]).squeeze(-1), -(log_probs.exp() * log_probs).sum(-1)
