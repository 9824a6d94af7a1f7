"""Goals for the transitions of a dataset: hindsight relabelling, as OGBench does it.

Every state of the data can be a goal (Andrychowicz et al. 2017, arXiv 1707.01495): the transition's own, a later one in
its episode, or any. The rules are those of OGBench's `GCDataset` and `HGCDataset` (Park et al. 2024, arXiv 2410.20092;
github seohongpark/ogbench, `impls/utils/datasets.py`), with the options of OTA (Ahn et al. 2025, arXiv 2505.12737;
github ota-v/ota-v). There are two differences. An episode's last state can be a later goal of its own states; there it
cannot, because the last two rows of an episode count as its end. And the goal of an upper level can be the transition's
own state, if the policy's shares say so; `HGCDataset` takes the later states' share for both.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.data.dataset import Dataset


class GoalBatch(NamedTuple):
    """Transitions, each with a goal for the value and one for the policy."""

    obs: Tensor  # [B, S]
    action: Tensor  # [B, A]
    next_obs: Tensor  # [B, S]
    value_goal: Tensor  # [B, S]
    reached: Tensor  # [B] bool: the value's goal is `obs`; the reward is then 0 and nothing follows, else it is -1
    actor_goal: Tensor  # [B, S]
    index: Tensor  # type: ignore[assignment]  # [B] position of each transition in the dataset


class SubgoalBatch(NamedTuple):
    """Like `GoalBatch`, with the state a few steps later, for two-level policies."""

    obs: Tensor  # [B, S]
    action: Tensor  # [B, A]
    next_obs: Tensor  # [B, S]
    value_goal: Tensor  # [B, S]
    reached: Tensor  # [B] bool, as in `GoalBatch`
    actor_goal: Tensor  # [B, S] for the upper level
    waypoint: Tensor  # [B, S] the state k steps later, or the upper level's goal or the episode's end if earlier
    subgoal: Tensor  # [B, S] for the lower level: the state k steps later, or the episode's end
    index: Tensor  # type: ignore[assignment]  # [B]


class OptionBatch(NamedTuple):
    """Like `SubgoalBatch`, with the end of an option of n steps, for a value that counts options instead of steps."""

    obs: Tensor  # [B, S]
    action: Tensor  # [B, A]
    next_obs: Tensor  # [B, S]
    value_goal: Tensor  # [B, S]
    reached: Tensor  # [B] bool, as in `GoalBatch`
    actor_goal: Tensor  # [B, S]; this and the next two as in `SubgoalBatch`
    waypoint: Tensor  # [B, S]
    subgoal: Tensor  # [B, S]
    option_end: Tensor  # [B, S] the state n steps later, or a later goal or the episode's end if that comes first
    option_goal: Tensor  # [B, S] the goal of the value that counts options: the option's end, a later state, or any
    option_reached: Tensor  # [B] bool, whether the option ends at its goal
    index: Tensor  # type: ignore[assignment]  # [B]


class Goals:
    """Samples transitions with the dataset's sampler, and goals for them.

    The shares are those of goals that are the transition's own state, a later state in its episode, and any state that
    is not an episode's last. Later goals are drawn geometrically for the value and uniformly for the policy.

    Attributes:
        states: `[N + E, S]` all states of the E episodes, including their last ones.
        row: `[N]` the row of each transition's own state in `states`, and
        final: `[N]` the row of the last state in its episode.

    Args:
        data: the dataset.
        value: the three shares of the value's goals.
        actor: the three shares of the policy's goals.
        discount: a later goal of the value is on average 1 / (1 - discount) steps away, if the episode is long enough.

    Raises:
        UsageError: the data does not say where its episodes end.
    """

    def __init__(self, data: Dataset, value: Sequence[float], actor: Sequence[float], discount: float = 0.99) -> None:
        starts, lengths = data.episode_starts, data.episode_lengths
        number = torch.arange(len(starts), device=data.device)
        self.data, self.discount, self.value, self.actor = data, discount, value, actor
        self.row = torch.arange(len(data), device=data.device) + number.repeat_interleave(lengths)
        last = starts + lengths - 1
        self.final = (last + 1 + number).repeat_interleave(lengths)
        self.states = data.obs.new_empty(len(data) + len(starts), *data.obs.shape[1:])
        self.states[self.row] = data.obs
        self.states[last + 1 + number] = data.next_obs[last]

    def sample(self, batch_size: int) -> GoalBatch:
        """`batch_size` transitions with their goals."""
        index, row, final = self._transitions(batch_size)
        value_goal, _ = self._goals(row, self._geometric(row, final), self.value)
        actor_goal, _ = self._goals(row, self._uniform(row, final), self.actor)
        goal, reached = self.states[value_goal], value_goal == row
        return GoalBatch(*self._steps(index), goal, reached, self.states[actor_goal], index)

    def sample_subgoals(self, batch_size: int, steps: int) -> SubgoalBatch:
        """Like `sample`, with subgoals that many steps ahead."""
        index, row, final = self._transitions(batch_size)
        value_goal, _ = self._goals(row, self._geometric(row, final), self.value)
        goal, reached = self.states[value_goal], value_goal == row
        return SubgoalBatch(*self._steps(index), goal, reached, *self._upper(row, final, steps), index)

    def sample_options(self, batch_size: int, steps: int, option_steps: int) -> OptionBatch:
        """Like `sample`, with subgoals `steps` ahead and options of `option_steps`."""
        index, row, final = self._transitions(batch_size)
        value_goal, _ = self._goals(row, self._geometric(row, final), self.value)
        goal, reached = self.states[value_goal], value_goal == row
        upper, option = self._upper(row, final, steps), self._options(row, final, option_steps)
        return OptionBatch(*self._steps(index), goal, reached, *upper, *option, index)

    def _transitions(self, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of transitions, and the rows of their own states and of their episodes' last ones: `[B]` each."""
        index = self.data.sampler(batch_size)
        return index, self.row[index], self.final[index]

    def _steps(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Observations, actions and successors."""
        return self.data.obs[index], self.data.action[index], self.data.next_obs[index]

    def _upper(self, row: Tensor, final: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """The upper level's goals, the waypoints towards them, and the lower level's subgoals: `[B, S]` each."""
        goal, ahead = self._goals(row, self._uniform(row, final), self.actor)
        subgoal = (row + steps).minimum(final)
        waypoint = torch.where(ahead | (goal == row), subgoal.minimum(goal), subgoal)
        return self.states[goal], self.states[waypoint], self.states[subgoal]

    def _options(self, row: Tensor, final: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """The ends of options and their goals, `[B, S]` each, and whether these are the same: by the value's shares.

        Where the goal is the option's own end, a later state that would have been the goal may still cut it short.
        """
        current, future, _ = self.value
        own = torch.rand(row.shape, device=row.device) < current
        ahead = torch.rand(row.shape, device=row.device) * (1 - current) < future
        later = self._geometric(row, final)
        end = (row + steps).minimum(torch.where(ahead, later, final))
        goal = torch.where(own, end, torch.where(ahead, later, self._anywhere(row)))
        return self.states[end], self.states[goal], end == goal

    def _goals(self, row: Tensor, later: Tensor, shares: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Rows of goals `[B]`, and for which of them a later state in the episode was chosen `[B]`."""
        current, future, _ = shares
        chosen = torch.rand(row.shape, device=row.device)
        ahead = (chosen >= current) & (chosen < current + future)
        return torch.where(chosen < current, row, torch.where(ahead, later, self._anywhere(row))), ahead

    def _anywhere(self, row: Tensor) -> Tensor:
        """Rows of any transitions' states."""
        return self.row[torch.randint(len(self.row), row.shape, device=row.device)]

    def _geometric(self, row: Tensor, final: Tensor) -> Tensor:
        """Rows of later states: k steps ahead with probability (1 - discount) discount^(k - 1), or the last one."""
        ahead = torch.empty(row.shape, device=row.device).geometric_(1 - self.discount)
        return (row + ahead.long()).minimum(final)

    def _uniform(self, row: Tensor, final: Tensor) -> Tensor:
        """Rows of later states, drawn uniformly; the next and the last are half as likely as those between."""
        share = torch.rand(row.shape, device=row.device)
        return row + 1 + (share * (final - row - 1)).round().long()
