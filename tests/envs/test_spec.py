"""Specs of environments, and which environments fit an agent."""

import dataclasses
import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from zoo.spec import Spec

FRAMES = Spec((4, 84, 84), num_actions=6, obs_dtype="uint8")


@pytest.mark.parametrize(
    ("dtype", "expected"), [(np.uint8, "uint8"), (np.float32, "float32"), (np.float64, "float32"), (bool, "float32")]
)
def test_only_bytes_stay_bytes(dtype, expected):
    space = Box(0, 1, (1, 3, 3), dtype)
    assert Spec.of(space, Discrete(2)) == Spec((1, 3, 3), num_actions=2, obs_dtype=expected)
    assert Spec.of(Box(0, 1, (3,), dtype), Discrete(2)).obs_dtype == "float32"  # no frames
    assert Spec.of(space, Box(-1, 1, (2,), np.float32)).obs_dtype == expected
    assert Spec.of(space, Discrete(2)).checked(space.sample()).dtype == expected


def test_actions_that_do_not_count_from_0_are_refused():
    with pytest.raises(ValueError, match="actions must count from 0"):
        Spec.of(Box(0, 1, (3,)), Discrete(3, start=1))


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        (Box(-np.inf, np.inf, (2,)), "continuous actions must be bounded"),
        (Box(-2e38, 2e38, (2,)), "continuous actions must be bounded"),
        (Box(-1.7e308, 1.7e308, (2,), np.float64), "continuous actions must be bounded"),
        (Box(np.float32([-1, 0]), np.float32([1, 0])), "every action must have a lower bound below the upper one"),
        (Box(0, 5, (1,), np.int32), "actions must be real numbers or Discrete"),
        (Box(-1, 1, (2, 2)), "actions must be a flat Box or Discrete"),
    ],
)
def test_actions_that_cannot_be_learned_are_refused(actions, says):
    with pytest.raises(ValueError, match=says):
        Spec.of(Box(0, 1, (3,)), actions)


def test_a_spec_is_what_it_was_after_json():
    record = json.loads(json.dumps(dataclasses.asdict(FRAMES)))
    assert Spec(**record | {"obs_shape": tuple(record["obs_shape"]), "action_low": (), "action_high": ()}) == FRAMES
    del record["obs_dtype"]  # as in older records
    assert Spec(**record).obs_dtype == "float32"


@pytest.mark.parametrize("shape", [(4, 84, 84), (5, 4, 84, 84), (2, 3, 4, 84, 84)])
def test_observations_may_come_one_by_one_or_in_batches(shape):
    assert FRAMES.checked(np.zeros(shape, np.uint8)).shape == shape


@pytest.mark.parametrize(
    ("obs", "seen"),
    [
        (np.zeros((84, 84), np.uint8), "uint8 [84, 84]"),
        (np.zeros((84, 84, 4), np.uint8), "uint8 [84, 84, 4]"),
        (np.zeros((4, 84, 84), np.float32), "float32 [4, 84, 84]"),
        (np.zeros((4, 84, 84), int), "int64 [4, 84, 84]"),
        (3.0, "float64 []"),
    ],
)
def test_frames_of_another_shape_or_dtype_are_refused_with_both(obs, seen):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is looked at
        FRAMES.checked(obs)
    assert str(error.value) == f"observations must be uint8 [4, 84, 84], not {seen}"


def test_a_vector_may_be_of_any_numbers_but_not_of_another_length():
    spec = Spec((3,), num_actions=2)
    assert spec.checked([1, 2, 3]).dtype == np.float32
    with pytest.raises(ValueError, match="must be arrays, not dictionaries: take those of zoo"):
        spec.checked({"joints": np.zeros(3)})
    with pytest.raises(ValueError, match=r"must be of the shape \[3\], not \[5, 4\]"):
        spec.checked(np.zeros((5, 4)))
