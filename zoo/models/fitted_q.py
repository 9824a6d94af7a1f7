"""Fitted Q evaluation: estimates the return of a policy from a dataset, without playing.

Le, Voloshin, Yue 2019 (arXiv 1903.08738), as a continuing regression on the targets of a slowly moving copy. The
interval comes from several critics, each fitted to episodes sampled with replacement (Hao et al. 2021, arXiv
2102.03607).

    L = E[(r + gamma (1 - terminated) Q'(s', pi(s')) - Q(s, a))^2],  the value is the mean of Q(s_0, pi(s_0))
"""

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Agent
from zoo.data.dataset import Dataset
from zoo.errors import UsageError
from zoo.nn import EnsembleCritic, Normalizer, polyak_update
from zoo.nn.optim import Adam

HIDDEN = (256, 256)
BATCH_SIZE = 256
TAU = 0.05  # with 0.005, a policy of Hopper whose value is 220 is estimated at 27 after 5,000 updates
ACTING = 4096  # number of observations on which the policy acts at a time


class Estimate(NamedTuple):
    """Discounted returns from the starts of episodes: the mean of all critics, and their 95 % interval."""

    value: float
    low: float
    high: float


class FittedQ(nn.Module):
    """Critics of a fixed policy, each fitted to a bootstrap sample of the episodes, as many as there are.

    Args:
        agent: acts deterministically, and on each observation on its own; on `data.device`.
        data: transitions of episodes whose ends are marked, with the environment's own rewards and observations.
        discount: the discount factor gamma, below 1.
        members: number of critics, from which the interval follows: at least 2.

    Raises:
        UsageError: the agent has a memory or goals, observations are frames, or a discount of 1 bounds no values.
    """

    def __init__(self, agent: Agent, data: Dataset, discount: float, members: int = 10) -> None:
        super().__init__()
        self.check(agent, data, discount)
        self.spec, self.data, self.discount = data.spec, data, discount
        self.normalizer = Normalizer(data.spec.obs_shape)
        self.normalizer.fit(data.obs)
        self.next_action = self.encoded(_actions(agent, data.next_obs))
        starts, lengths, _ = data.episodes
        self.first_obs = self.normalizer(data.obs[starts])
        self.first_action = self.encoded(_actions(agent, data.obs[starts]))
        low, high = (float(bound) / (1 - discount) for bound in data.reward.aminmax())
        self.scale = max(abs(low), abs(high)) or 1.0  # critics learn values within [-1, 1]
        self.bounds = (min(low, 0.0) / self.scale, max(high, 0.0) / self.scale)
        self.critic = EnsembleCritic(members, data.spec.obs_dim, self.next_action.shape[-1], HIDDEN).to(data.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.optimizer = Adam(self.critic.parameters(), 3e-4)
        self.episodes = torch.randint(len(starts), (members, len(starts)), device=data.device)
        self.ends = lengths[self.episodes].cumsum(1)  # [members, E] for each critic's episodes, one after another

    @staticmethod
    def check(agent: Agent, data: Dataset, discount: float) -> None:
        """Raises the class's UsageError."""
        if agent.memory():
            raise UsageError("fitted Q evaluation needs a policy of single observations; this one has a memory.")
        if data.spec.goal_dim:
            raise UsageError("fitted Q evaluation needs rewards, and goals have none.")
        if data.spec.is_image:
            raise UsageError("fitted Q evaluation needs observations that are vectors; these are frames.")
        if not discount < 1:
            raise UsageError("fitted Q evaluation needs a discount below 1; algo.discount=1 bounds no value.")

    def encoded(self, action: Tensor) -> Tensor:
        """Actions `[B, A]` as input to a critic; discrete ones `[B]` are one-hot encoded."""
        if self.spec.num_actions is None:
            return action
        return F.one_hot(action, self.spec.num_actions).float()

    def sample(self) -> Tensor:
        """Indices `[members, B]` of transitions from each critic's own episodes."""
        members, count = len(self.ends), self.ends[:, -1:]
        step = (torch.rand(members, BATCH_SIZE, dtype=torch.float64, device=count.device) * count).long()
        place = torch.searchsorted(self.ends, step, right=True)
        episode = self.episodes.gather(1, place)
        into = step - (self.ends.gather(1, place) - self.data.episode_lengths[episode])
        return self.data.episode_starts[episode] + into

    def update(self) -> Tensor:
        """Takes one gradient step; returns the loss."""
        data, index = self.data, self.sample()
        with torch.no_grad():
            next_q = self.target_critic(self.normalizer(data.next_obs[index]), self.next_action[index]).squeeze(-1)
            target = data.reward[index] / self.scale + self.discount * ~data.terminated[index] * next_q
            target = target.clamp(*self.bounds)
        q = self.critic(self.normalizer(data.obs[index]), self.encoded(data.action[index])).squeeze(-1)
        loss: Tensor = (q - target).square().mean(-1).sum()
        self.optimizer.minimize(loss)
        polyak_update(self.target_critic, self.critic, TAU)
        return loss.detach()

    @torch.no_grad()
    def estimate(self) -> Estimate:
        """The policy's value according to the current critics."""
        q = self.critic(self.first_obs, self.first_action).squeeze(-1)  # [members, E]
        values = self.scale * q.gather(1, self.episodes).mean(1).double()
        low, high = values.mean() - 1.96 * values.std(), values.mean() + 1.96 * values.std()
        return Estimate(float(values.mean()), float(low), float(high))


@torch.no_grad()
def _actions(agent: Agent, obs: Tensor) -> Tensor:
    return torch.cat([agent.act(part) for part in torch.split(obs, ACTING)])
