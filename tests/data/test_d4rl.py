"""Reads files in D4RL's layout, including old ones, and compares with loops over their rows."""

from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.data.arrays import Arrays
from zoo.data.d4rl import read_d4rl

from .conftest import D4RL_NAMES, episodes, same, write_d4rl

LIMIT = 5  # steps after which the imagined environment truncates


def naive(rows: Arrays, next_observations: bool, timeouts: bool, limit: int) -> list[tuple[int, np.ndarray, bool]]:
    """The row, the next row, and whether the episode is known to be truncated there, for each step that D4RL keeps."""
    kept = []
    step, size = 0, len(rows.reward)
    for i in range(size):
        last = i == size - 1
        if rows.terminated[i]:
            final = False
        elif timeouts:
            final = bool(rows.truncated[i]) or last
        elif next_observations:
            final = last or bool((rows.next_obs[i] != rows.obs[i + 1]).any())
        else:
            final = step == limit - 1 or last
        step = 0 if final or rows.terminated[i] else step + 1
        if next_observations:
            kept.append((i, rows.next_obs[i], final))
        elif not final:
            kept.append((i, rows.obs[i] if last or rows.terminated[i] else rows.obs[i + 1], False))
        elif kept and kept[-1][0] == i - 1 and not rows.terminated[i - 1]:
            kept[-1] = (i - 1, kept[-1][1], True)
    return kept


@pytest.mark.parametrize("next_observations", [True, False])
@pytest.mark.parametrize("timeouts", [True, False])
@settings(deadline=None, max_examples=60)
@given(ends=st.lists(st.tuples(st.integers(1, LIMIT), st.booleans()), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_every_variant_of_file_reads_as_d4rl_rule_applied_row_by_row(next_observations, timeouts, ends, seed) -> None:
    ends = [
        (length if terminated or timeouts or next_observations else LIMIT, terminated) for length, terminated in ends
    ]
    rows = episodes([length for length, _ in ends], [terminated for _, terminated in ends], seed)
    without = (() if next_observations else ("next_observations",)) + (() if timeouts else ("timeouts",))
    expected = naive(rows, next_observations, timeouts, LIMIT)
    with TemporaryDirectory() as folder:
        path = write_d4rl(Path(folder) / "old.hdf5", rows, without)
        if not expected:
            with pytest.raises(ValueError, match="no successor is known"):
                read_d4rl(path, LIMIT)
            return
        read = read_d4rl(path, LIMIT)
    index = np.array([i for i, _, _ in expected])
    for name in ("obs", "action", "reward", "terminated"):
        np.testing.assert_array_equal(getattr(read, name), getattr(rows, name)[index])
    np.testing.assert_array_equal(read.next_obs, [successor for _, successor, _ in expected])
    np.testing.assert_array_equal(read.truncated, [final for _, _, final in expected])


def test_last_step_of_a_timed_out_episode_is_left_out_only_where_its_successor_is_unknown(tmp_path) -> None:
    rows = episodes([4, 3], [False, True])
    assert len(read_d4rl(write_d4rl(tmp_path / "new.hdf5", rows), LIMIT).reward) == 7
    old = read_d4rl(write_d4rl(tmp_path / "old.hdf5", rows, ("next_observations",)), LIMIT)
    assert old.episode_lengths.tolist() == [3, 3]
    assert old.truncated.tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("other", ["truncations", "truncateds", "truncated", "timeout"])
def test_timeouts_under_another_name_are_refused_not_guessed(tmp_path, other) -> None:
    path = write_d4rl(tmp_path / "named.hdf5", episodes([4, 3], [False, True]))
    with h5py.File(path, "r+") as file:
        file[other] = file["timeouts"][()]
    assert read_d4rl(path, LIMIT).episode_lengths.tolist() == [4, 3]
    with h5py.File(path, "r+") as file:
        del file["timeouts"]
    with pytest.raises(ValueError, match=f"it has {other} and no timeouts; name them timeouts"):
        read_d4rl(path, LIMIT)


def test_64_bit_and_column_shaped_fields_read_as_the_flat_32_bit_ones_do(tmp_path) -> None:
    rows = episodes([4, 3], [False, True])
    with h5py.File(tmp_path / "wide.hdf5", "w") as file:
        for name, field in zip(D4RL_NAMES, rows, strict=True):
            column = field[:, None] if field.ndim == 1 else field
            file[name] = column.astype(np.float64) if name not in ("terminals", "timeouts") else column.astype(np.uint8)
    assert same(read_d4rl(tmp_path / "wide.hdf5", LIMIT), rows)
