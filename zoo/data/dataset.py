"""The transitions from which an offline run learns, as tensors on its device."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.data.arrays import Arrays
from zoo.data.batch import Batch, gather
from zoo.data.samplers import ROUNDING, SamplerConfig, make_sampler, top_weights
from zoo.errors import UsageError
from zoo.nn import Normalizer
from zoo.nn.heads import CATEGORICAL
from zoo.returns import discounted_sum
from zoo.spec import Spec


class Dataset:
    """Transitions of consecutive episodes as tensors on one device, and their sampler.

    Attributes:
        obs, action, reward, next_obs, terminated: `[N, ...]` tensors as in `Batch`.
        reward_scale: the factor by which the rewards have been multiplied.
        spec: the shapes and bounds of the environment to which the data belongs.
        missing_ends: why the ends of the episodes are unreliable, if they are. Everything that depends on them then
            raises a UsageError with this text: lengths, returns, next actions, and all samplers but the uniform one.

    Args:
        arrays: the transitions.
        report: called with each line that the user should see.
    """

    def __init__(
        self, arrays: Arrays, spec: Spec, device: torch.device, sampler: SamplerConfig | None = None,
        missing_ends: str = "", report: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        self.spec, self.device, self.reward_scale = spec, device, 1.0
        self.obs, self.action, self.reward, self.next_obs, self.terminated, self.truncated = (
            torch.from_numpy(field).to(device) for field in arrays
        )
        episodes = (arrays.episode_starts, arrays.episode_lengths, arrays.episode_returns)
        self.set_episodes(*(torch.from_numpy(column).to(device) for column in episodes))
        self.missing_ends, self._report = missing_ends, report
        self.use(sampler or SamplerConfig())

    @property
    def episodes(self) -> tuple[Tensor, ...]:
        """First transition, length and undiscounted return (of the stored rewards) of each episode: `[E]` each.

        Raises:
            UsageError: the data does not say where its episodes end.
        """
        if self.missing_ends:
            raise UsageError(self.missing_ends)
        return self._episodes

    @property
    def ended(self) -> Tensor:
        """Whether each transition is the last one of its episode, `[N]`."""
        ended = torch.zeros_like(self.terminated)
        ended[self.episode_starts + self.episode_lengths - 1] = True
        return ended

    @property
    def episode_starts(self) -> Tensor:
        """`[E]`, see `episodes`."""
        return self.episodes[0]

    @property
    def episode_lengths(self) -> Tensor:
        """`[E]`, see `episodes`."""
        return self.episodes[1]

    @property
    def episode_returns(self) -> Tensor:
        """`[E]`, see `episodes`."""
        return self.episodes[2]

    def __len__(self) -> int:
        return len(self.reward)

    def use(self, sampler: SamplerConfig) -> None:
        """Switches to another sampler. Raises UsageError if it cannot draw from this dataset."""
        self.sampler_config, self.sampler = sampler, make_sampler(sampler, self)

    def sample(self, batch_size: int) -> Batch:
        """`batch_size` transitions, sampled with replacement by the sampler."""
        return gather(self, self.sampler(batch_size))

    def prepare(self, agent: Any, config: Any) -> None:
        """Normalizes the data and fits the agent to it, as an algorithm's config requests.

        `normalize_reward`: calls `normalize_reward`. `normalize_obs`: uses the mean and standard deviation of the
        observations, which `agent.normalizer` keeps; frames, which are scaled by their network, stay as they are.
        `value_head`: if it is categorical, `agent.head` gets the support of the data's returns.
        """
        if getattr(config, "normalize_reward", False):
            self.normalize_reward()
        if getattr(config, "normalize_obs", False) and not self.spec.is_image:
            self.normalize_obs(agent.normalizer)
        if getattr(config, "value_head", None) in CATEGORICAL:
            self._report(agent.head.fit_support(*self.value_bounds(config.discount)))

    def map_obs(self, function: Callable[[Tensor], Tensor]) -> None:
        """Applies a function of observations `[N, ...]` to all of them once, instead of to every batch."""
        self.obs, self.next_obs = function(self.obs), function(self.next_obs)

    def share(self, other: "Dataset") -> None:
        """Replaces this dataset's tensors by the other's where the two are equal, which frees their memory.

        Nothing may therefore change them in place.
        """
        for field in Arrays._fields:
            own, others = getattr(self, field), getattr(other, field)
            if own.shape == others.shape and torch.equal(own, others):
                setattr(self, field, others)

    def scale_reward(self, factor: float) -> None:
        """Multiplies every reward."""
        self.reward, self.reward_scale = self.reward * factor, self.reward_scale * factor

    def normalize_obs(self, normalizer: Normalizer) -> None:
        """Fits it to the observations, weighted by how often each is sampled, and normalizes them and the next ones."""
        normalizer.fit(self.obs, self.sampler.weights)
        self.map_obs(normalizer)

    def normalize_reward(self) -> None:
        """Multiplies every reward by 1000 / (largest - smallest episode return). Raises UsageError if that is 0."""
        low, high = self.episode_returns.aminmax()
        if high - low <= ROUNDING * self.episode_returns.abs().max():
            raise UsageError(
                "every episode of this dataset has the same return, so its range cannot scale rewards. "
                "Type: algo.normalize_reward=false"
            )
        self.scale_reward(1000 / float(high - low))

    def value_bounds(self, discount: float) -> tuple[float, float]:
        """The smallest and the largest discounted return-to-go over all transitions.

        A truncated episode counts as continuing forever at its mean reward, without bounds if the discount is 1.
        """
        lengths = self.episode_lengths
        last = self.episode_starts + lengths - 1
        goes_on = ~self.terminated[last]
        if discount == 1 and goes_on.any():
            return -math.inf, math.inf
        reward = self.reward.double()
        episode = torch.arange(len(last), device=self.device).repeat_interleave(lengths)
        mean_reward = torch.zeros_like(reward[last]).index_add(0, episode, reward) / lengths
        decay = torch.full_like(reward, discount)
        if discount < 1:
            reward[last] += discount * mean_reward / (1 - discount) * goes_on
        decay[last] = 0
        low, high = discounted_sum(reward, decay).aminmax()
        return float(low), float(high)

    def return_to_go(self) -> Tensor:
        """The undiscounted return-to-go of each transition, including its own reward: `[N]`."""
        total = discounted_sum(self.reward.double(), (~self.ended).double())
        return total.to(self.reward)

    def timesteps(self) -> tuple[Tensor, Tensor]:
        """For each transition, the steps before it in its episode, and the steps left, including itself: `[N]` each."""
        start = self.episode_starts.repeat_interleave(self.episode_lengths)
        length = self.episode_lengths.repeat_interleave(self.episode_lengths)
        before = torch.arange(len(self), device=self.device) - start
        return before, length - before

    def next_action(self) -> tuple[Tensor, Tensor]:
        """The next action in each transition's episode, `[N, A]` or `[N]`, and whether there is one, `[N]`."""
        return self.action.roll(-1, 0), ~self.ended

    def top_episodes(self, fraction: float) -> None:
        """Keeps only the given fraction of the episodes, those with the highest returns (at least one episode)."""
        best = top_weights(self.episode_returns, fraction) > 0
        keep = best.repeat_interleave(self.episode_lengths)
        for name in Arrays._fields:
            setattr(self, name, getattr(self, name)[keep])
        lengths = self.episode_lengths[best]
        self.set_episodes(lengths.cumsum(0) - lengths, lengths, self.episode_returns[best])
        self.use(self.sampler_config)

    def set_episodes(self, starts: Tensor, lengths: Tensor, returns: Tensor) -> None:
        """Sets first transition, length and undiscounted return of each episode: `[E]` each."""
        self._episodes = (starts, lengths, returns)
