"""Bookkeeping of episodes in flat arrays, against loops over them."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.commands.data.collect import thin
from zoo.data import arrays as arrays_module
from zoo.data.arrays import Arrays, breaks, concatenate, cut_at_breaks, without_successor
from zoo.data.catalog import parse_mixture
from zoo.data.dataset import Dataset
from zoo.data.load import taken
from zoo.errors import UsageError
from zoo.spec import Spec

from .conftest import episodes, frames, same

many = st.lists(st.tuples(st.integers(1, 7), st.booleans()), min_size=1, max_size=12)


def made(ends: list[tuple[int, bool]], seed: int = 0) -> Arrays:
    return episodes([length for length, _ in ends], [terminated for _, terminated in ends], seed)


@given(ends=many)
@settings(deadline=None)
def test_starts_lengths_and_returns_are_those_of_the_episodes(ends) -> None:
    arrays = made(ends)
    lengths = [length for length, _ in ends]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    assert arrays.episode_lengths.tolist() == lengths
    assert arrays.episode_starts.tolist() == starts
    naive = [sum(map(float, arrays.reward[s : s + n])) for s, n in zip(starts, lengths, strict=True)]
    np.testing.assert_allclose(arrays.episode_returns, naive, rtol=1e-12, atol=1e-12)


@given(ends=many, discount=st.sampled_from([0.0, 0.5, 0.99]))
@settings(deadline=None)
def test_values_are_bounded_by_the_returns_of_episodes_of_which_the_truncated_go_on_at_their_mean(ends, discount):
    arrays = made(ends)
    data = Dataset(arrays, Spec((3,), (-2.0,), (2.0,)), torch.device("cpu"))
    values, stop = [], 0
    for length, terminated in ends:
        start, stop = stop, stop + length
        reward = arrays.reward[start:stop].astype(float)
        following = 0.0 if terminated else reward.mean() / (1 - discount)
        for value in reversed(reward):
            values.append(following := value + discount * following)
    np.testing.assert_allclose(data.value_bounds(discount), (min(values), max(values)), rtol=1e-12, atol=1e-12)
    if not all(terminated for _, terminated in ends):  # otherwise see tests/zoo/test_heads.py
        assert data.value_bounds(1.0) == (-math.inf, math.inf)


@given(ends=many, percent=st.integers(1, 100))
@settings(deadline=None)
def test_head_is_the_fewest_whole_episodes_that_hold_the_share(ends, percent) -> None:
    arrays = made(ends)
    total = sum(length for length, _ in ends)
    held, count = 0, 0
    while 100 * held < percent * total:  # in whole numbers: 7 % of 100 is 7
        held += ends[count][0]
        count += 1
    (portion,) = parse_mixture(f"{percent}%x")
    head = taken(arrays, portion)
    assert head.episode_lengths.tolist() == [length for length, _ in ends[:count]]
    assert same(head, Arrays(*(field[:held] for field in arrays)))


@given(ends=many, size=st.integers(1, 90))
@settings(deadline=None)
def test_thinned_data_is_whole_episodes_in_order_of_about_that_size(ends, size) -> None:
    arrays = made(ends)
    thinned = thin(arrays, size)
    kept = {field.tobytes() for field in arrays.obs}
    assert all(row.tobytes() in kept for row in thinned.obs)
    lengths = arrays.episode_lengths.tolist()
    position = 0
    for length in thinned.episode_lengths.tolist():  # the episodes are in increasing order
        position = lengths.index(length, position) + 1
    total = len(arrays.reward)
    if total <= size:
        assert same(thinned, arrays)
    else:
        assert size - max(lengths) <= len(thinned.reward) <= size + max(lengths)


@given(first=many, second=many)
@settings(deadline=None)
def test_concatenation_keeps_the_episodes_apart(first, second) -> None:
    both = concatenate([made(first, 1), made(second, 2)])
    assert both.episode_lengths.tolist() == [length for length, _ in first + second]


@given(ends=many, forgotten=st.integers(0, 11))
@settings(deadline=None)
def test_an_end_that_was_not_flagged_is_found_where_the_successor_is_not_the_next_row(ends, forgotten) -> None:
    arrays = made(ends)
    end = int(np.cumsum(arrays.episode_lengths)[min(forgotten, len(ends) - 1)]) - 1
    truncated = arrays.truncated.copy()
    truncated[end] = False
    found, added = cut_at_breaks(arrays._replace(truncated=truncated))
    assert same(found, arrays)
    assert added == int(arrays.truncated[end])


@pytest.mark.parametrize("name", ["random+", "0%expert", "101%expert", "random+%expert", "+", "", "0ep:expert"])
def test_a_part_that_is_no_name_or_no_share_is_refused(name) -> None:
    with pytest.raises(UsageError, match="a part of a mixture is"):
        parse_mixture(name)


def test_a_mixture_is_read_part_by_part() -> None:
    assert parse_mixture("random+10%expert+2.5%zoo/hopper/x-v0+30ep:expert") == [
        (1.0, "random", None),
        (0.1, "expert", None),
        (0.025, "zoo/hopper/x-v0", None),
        (1.0, "expert", 30),
    ]


@pytest.mark.parametrize("amount", ["", "10%", "2.5%", "30ep:"])
def test_a_portion_is_written_as_it_is_read(amount) -> None:
    (portion,) = parse_mixture(f"{amount}expert")
    assert portion.amount + portion.name == f"{amount}expert"


@given(ends=many, count=st.integers(1, 12))
@settings(deadline=None)
def test_the_first_episodes_are_whole_or_refused(ends, count) -> None:
    arrays, (portion,) = made(ends), parse_mixture(f"{count}ep:x")
    if count > len(ends):
        with pytest.raises(UsageError, match=f"{count}ep:x asks for more episodes than there are: {len(ends)}"):
            taken(arrays, portion)
        return
    size = sum(length for length, _ in ends[:count])
    assert same(taken(arrays, portion), Arrays(*(field[:size] for field in arrays)))


def test_successors_are_compared_with_the_next_rows_however_many_there_are(monkeypatch) -> None:
    monkeypatch.setattr(arrays_module, "ROWS", 3)
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 4, 7, 10):
        for dtype in (np.float32, np.uint8):
            obs = rng.integers(0, 3, (size, 2, 2)).astype(dtype)
            next_obs = np.concatenate([obs[1:], obs[:1]])
            if dtype == np.float32 and size > 4:
                obs[4, 0, 0] = next_obs[3, 0, 0] = np.nan
            broken = rng.random(size) < 0.4
            next_obs[broken] += 1
            assert breaks(obs, next_obs).tolist() == [*broken[:-1].tolist(), True]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_lacks_its_successor_is_found_without_a_comparison_of_all_rows(terminal) -> None:
    rows = frames([40] * 20, [terminal, False] * 10)
    rows.next_obs[:80] = rows.obs[:80]  # also of steps that are not terminal
    expected = [bool(t and (a == b).all()) for t, a, b in zip(rows.terminated, rows.next_obs, rows.obs, strict=True)]
    assert sum(expected) == terminal
    tracemalloc.start()
    found = without_successor(rows)
    assert tracemalloc.get_traced_memory()[1] < rows.obs.nbytes / 4
    tracemalloc.stop()
    assert found.tolist() == expected
    assert without_successor(Arrays(*map(torch.from_numpy, rows))).tolist() == expected
