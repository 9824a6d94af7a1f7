"""Discrete actions: a policy and critics with the interface of continuous ones; values of actions, and exploration."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.nn.distributions import Categorical
from zoo.nn.encoders import encoder, network_for
from zoo.nn.layers import EnsembleMLP
from zoo.spec import Spec


class CategoricalPolicy(nn.Module):
    """A policy over discrete actions `[B]`, with probabilities that depend on the observations `[B, ...]`."""

    def __init__(self, spec: Spec, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        self.actions = Categorical(spec)
        self.net = network_for(spec, self.actions.outputs, hidden)

    def mode(self, obs: Tensor) -> Tensor:
        """The most probable actions `[B]`."""
        return self.actions.mode(self.net(obs))

    def sample(self, obs: Tensor) -> Tensor:
        """Samples actions `[B]`."""
        return self.actions.sample(self.net(obs))

    def cloning_loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """The negative log probability `[B]` of actions `[B]`."""
        return -self.actions.log_prob(self.net(obs), action)[0]


class DiscreteCritic(nn.Module):
    """`members` critics of discrete actions with `EnsembleCritic`'s interface; for frames they share an encoder."""

    def __init__(self, members: int, spec: Spec, hidden: Sequence[int] = (256, 256), outputs: int = 1) -> None:
        super().__init__()
        assert spec.num_actions is not None
        self.shape = (spec.num_actions, outputs)
        self.encoder, features = encoder(spec.obs_shape)
        self.net = EnsembleMLP(members, features, spec.num_actions * outputs, [] if spec.is_image else hidden)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """The outputs of each member for actions `[B]`: `[members, B, outputs]`."""
        out: Tensor = self.net(self.encoder(obs)).unflatten(-1, self.shape)  # [members, B, num_actions, outputs]
        index = action[:, None, None].expand(len(out), -1, 1, out.shape[-1])
        return out.gather(2, index).squeeze(2)


def of_action(out: Tensor, action: Tensor) -> Tensor:
    """From outputs for every action `[B, num_actions, outputs]`, selects those for one `[B]`: `[B, outputs]`."""
    return out.gather(1, action[:, None, None].expand(-1, 1, out.shape[-1])).squeeze(1)


def epsilon_soft(action: Tensor, num_actions: int, epsilon: Tensor | float) -> Tensor:
    """An epsilon-soft policy: actions of any shape, each with probability `epsilon` replaced by a random one."""
    random = torch.randint(num_actions, action.shape, device=action.device)
    return torch.where(torch.rand(action.shape, device=action.device) < epsilon, random, action)
