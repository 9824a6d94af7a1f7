"""Goals for transitions: which states are goals, with which probability, and whether they are reached."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from zoo.data.arrays import Arrays
from zoo.data.dataset import Dataset
from zoo.data.goals import Goals
from zoo.data.samplers import SamplerConfig
from zoo.errors import UsageError
from zoo.spec import Spec

LENGTHS = (6, 3, 1, 9)  # numbers of transitions; an episode has one more state
FIRST = np.cumsum([0, *(length + 1 for length in LENGTHS)])  # the number of each episode's first state
SPEC = Spec((2,), (-1.0,), (1.0,), goal_dim=1)


def numbered(sampler: SamplerConfig | None = None, missing_ends: str = "") -> Dataset:
    """Episodes whose states are numbered consecutively. Later episodes have higher returns."""
    obs = np.concatenate([first + np.arange(length) for first, length in zip(FIRST[:-1], LENGTHS, strict=True)])
    reward = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    ends = np.isin(obs + 1, FIRST[1:] - 1)
    states = [x.astype(np.float32)[:, None] for x in (obs, obs / 100, obs + 1)]
    arrays = Arrays(states[0], states[1], reward.astype(np.float32), states[2], np.zeros_like(ends), ends)
    return Dataset(arrays, SPEC, torch.device("cpu"), sampler, missing_ends)


def last_state(state: int) -> int:
    """The last state of a state's episode."""
    return int(FIRST[np.searchsorted(FIRST, state, side="right")]) - 1


def starts() -> list[int]:
    """The states in which transitions start."""
    return [state for state in range(FIRST[-1]) if state != last_state(state)]


def geometric(state: int, discount: float) -> dict[int, float]:
    """Later states of an episode: OGBench's np.random.geometric(1 - discount), cut off at the last state."""
    found, last = {}, last_state(state)
    for steps in range(1, last - state):
        found[state + steps] = (1 - discount) * discount ** (steps - 1)
    return found | {last: 1 - sum(found.values())}


def uniform(state: int) -> dict[int, float]:
    """The same by np.round(first * x + last * (1 - x)), x uniform: the length of the x that are rounded to each."""
    first, last = state + 1, last_state(state)
    if first == last:
        return {last: 1.0}
    overlaps = {goal: min(goal + 0.5, last) - max(goal - 0.5, first) for goal in range(first, last + 1)}
    return {goal: overlap / (last - first) for goal, overlap in overlaps.items()}


def expected(later: dict[int, dict[int, float]], shares: tuple[float, float, float]) -> np.ndarray:
    """The probability of each pair of state and goal, `[states, states]`."""
    table = np.zeros((FIRST[-1], FIRST[-1]))
    for state in starts():
        table[state, state] += shares[0]
        for goal, probability in later[state].items():
            table[state, goal] += shares[1] * probability
        for goal in starts():
            table[state, goal] += shares[2] / len(starts())
    return table / len(starts())


def follow(state: torch.Tensor, goal: torch.Tensor, probabilities: np.ndarray) -> bool:
    """Whether pairs of state and goal are sampled with the given probabilities, by a chi-squared test."""
    found = np.zeros_like(probabilities)
    np.add.at(found, (state.long().numpy()[:, 0], goal.long().numpy()[:, 0]), 1)
    possible = probabilities > 0
    return not found[~possible].any() and chisquare(found[possible], probabilities[possible] * len(state)).pvalue > 1e-4


@pytest.mark.parametrize("shares", [(0.2, 0.5, 0.3), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)])
def test_goals_are_as_probable_as_ogbenchs_rules_have_them(shares):
    torch.manual_seed(0)
    batch = Goals(numbered(), shares, shares, discount=0.8).sample(100_000)
    by_value = expected({state: geometric(state, 0.8) for state in starts()}, shares)
    by_policy = expected({state: uniform(state) for state in starts()}, shares)
    assert follow(batch.obs, batch.value_goal, by_value)
    assert follow(batch.obs, batch.actor_goal, by_policy)
    assert not follow(batch.obs, batch.actor_goal, by_value) or shares[1] == 0


def test_a_batch_holds_whole_transitions_and_says_where_the_goal_is_the_state():
    batch = Goals(numbered(), (0.2, 0.5, 0.3), (0.0, 1.0, 0.0)).sample(1_000)
    assert torch.equal(batch.next_obs, batch.obs + 1)
    torch.testing.assert_close(batch.action, batch.obs / 100)
    assert torch.equal(batch.reached, (batch.obs == batch.value_goal)[:, 0])
    by_value = expected({state: geometric(state, 0.99) for state in starts()}, (0.2, 0.5, 0.3))
    share = by_value.trace()  # including random goals that equal the state
    assert share > 0.21
    assert abs(float(batch.reached.float().mean()) - share) < 4 * (share * (1 - share) / 1_000) ** 0.5


def test_subgoals_lie_a_few_steps_ahead_but_not_beyond_the_goal_or_the_episode():
    for shares in ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)):
        batch = Goals(numbered(), (0.2, 0.5, 0.3), shares).sample_subgoals(2_000, steps=3)
        columns = (batch.obs, batch.actor_goal, batch.waypoint, batch.subgoal)
        for state, goal, waypoint, subgoal in zip(*(x[:, 0].long().tolist() for x in columns), strict=True):
            assert subgoal == min(state + 3, last_state(state))
            assert waypoint == (min(state + 3, goal) if shares[1] or goal == state else subgoal)


@pytest.mark.parametrize("shares", [(0.2, 0.5, 0.3), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)])
def test_options_and_their_goals_are_as_probable_as_the_authors_rules_have_them(shares):
    """Each pair of end and goal, whatever the state and V's goal, by a loop over OTA's `sample_high_goals`."""
    torch.manual_seed(0)
    batch = Goals(numbered(), shares, (0.0, 1.0, 0.0), discount=0.8).sample_options(100_000, steps=3, option_steps=4)
    table = np.zeros((FIRST[-1], FIRST[-1]))
    current, future, _ = shares
    ahead = future / (1 - current) if future else 0.0
    for state in starts():
        timeout = min(state + 4, last_state(state))
        for later, probability in geometric(state, 0.8).items():
            end = min(state + 4, later)
            table[end, end] += current * ahead * probability
            table[end, later] += (1 - current) * ahead * probability
        table[timeout, timeout] += current * (1 - ahead)
        for goal in starts():
            table[timeout, goal] += (1 - current) * (1 - ahead) / len(starts())
    table /= len(starts())
    assert follow(batch.option_end, batch.option_goal, table)
    assert torch.equal(batch.option_reached, (batch.option_end == batch.option_goal)[:, 0])
    assert (batch.option_end > batch.obs).all()
    assert (batch.option_end <= batch.obs + 4).all()
    both = (batch.reached & batch.option_reached).float().mean()
    apart = batch.reached.float().mean() * batch.option_reached.float().mean()
    assert both == pytest.approx(float(apart), abs=0.02)  # the goals of the two values are drawn apart


def test_a_value_that_counts_options_falls_by_one_for_each_that_is_needed():
    batch = Goals(numbered(), (0.0, 1.0, 0.0), (0.0, 1.0, 0.0)).sample_options(2_000, steps=3, option_steps=4)
    columns = (batch.obs, batch.option_end, batch.option_goal, batch.option_reached[:, None])
    pairs = {tuple(x) for x in torch.cat(columns, 1).long().tolist()}
    value = {(state, goal): 0.0 for state in range(FIRST[-1]) for goal in range(FIRST[-1])}
    for _ in range(10):
        value |= {(state, goal): 0.0 if reached else -1 + value[end, goal] for state, end, goal, reached in pairs}
    for state, _, goal, _ in pairs:
        assert value[state, goal] == 1 - np.ceil((goal - state) / 4)


def test_a_sampler_chooses_the_transitions_and_not_their_goals():
    batch = Goals(numbered(SamplerConfig("top", fraction=0.25)), (0.0, 0.0, 1.0), (0.0, 1.0, 0.0)).sample(2_000)
    assert batch.obs.min() == FIRST[3]
    assert set(batch.value_goal[:, 0].long().tolist()) == set(starts())


def test_goals_need_the_ends_of_episodes():
    with pytest.raises(UsageError, match="no ends here"):
        Goals(numbered(missing_ends="no ends here"), (0.0, 1.0, 0.0), (0.0, 1.0, 0.0))
