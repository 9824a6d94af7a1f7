"""Conditions on an algorithm's settings, against pandas' intervals, and their error messages."""

import dataclasses

import pandas as pd
import pytest

from zoo.checks import above, at_least, between, check, one_of


@dataclasses.dataclass
class Config:
    share: float = 0.5
    scale: float | None = None
    kind: str = "a"
    count: int = 3
    actor_lr: float = 1e-3
    adam_eps: float = 1e-8
    discount: float = 0.9


@pytest.mark.parametrize("inclusive", ["both", "left", "right", "neither"])
def test_between_is_as_in_pandas(inclusive):
    values = [-0.1, 0.0, 0.5, 1.0, 1.1]
    expected = pd.Series(values).between(0, 1, inclusive=inclusive).tolist()
    assert [between(0, 1, inclusive).holds(value) for value in values] == expected


@pytest.mark.parametrize(
    ("values", "conditions", "message"),
    [
        ({"share": 1.5}, {"share": between(0, 1)}, "algo.share=1.5 must lie between 0 and 1"),
        ({"share": 1.0}, {"share": between(0, 1, "left")}, "algo.share=1.0 must be at least 0 and below 1"),
        (
            {"count": 0},
            {"count": at_least(1, "the paper takes 10")},
            "algo.count=0 must be at least 1; the paper takes 10",
        ),
        ({"scale": 0.0}, {"scale": above(0)}, "algo.scale=0.0 must be above 0"),
        ({"kind": "c"}, {"kind": one_of("a", "b")}, "algo.kind=c does not exist; there are a, b"),
        ({"actor_lr": 0.0}, {}, "algo.actor_lr=0.0 must be above 0"),
        ({"adam_eps": 0.0}, {}, "algo.adam_eps=0.0 must be above 0"),
        ({"discount": 1.5}, {}, "algo.discount=1.5 must lie between 0 and 1"),
        ({"share": float("inf")}, {}, "algo.share=inf must be a finite number"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(values, conditions, message):
    with pytest.raises(ValueError, match="algo") as error:
        check(Config(**values), **conditions)
    assert str(error.value) == message


def test_what_can_be_passes_and_none_is_not_checked():
    check(Config(), share=between(0, 1), scale=above(0), kind=one_of("a", "b"), count=at_least(3))


def test_a_given_condition_counts_more_than_the_common_one():
    check(Config(discount=2.0), discount=at_least(1))


def test_a_condition_on_no_setting_is_a_mistake():
    with pytest.raises(TypeError, match="Config has no shar"):
        check(Config(), shar=above(0))
