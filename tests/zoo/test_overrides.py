"""Parsing of settings on the command line."""

import shlex

import pytest

from zoo.errors import UsageError
from zoo.settings.overrides import as_overrides, parse, typed, value_of


@pytest.mark.parametrize(
    "text", ["plain/name-1.5", "it's", r"a\b c", r"a\\b c", r"a\'b", "a b\\", r"a\\'b c\\", "[a, b]", "a=b", "${x}"]
)
def test_any_text_is_the_same_after_it_was_typed(text):
    (override,) = parse(as_overrides({"run_dir": text}))
    assert value_of(override) == text


@pytest.mark.parametrize(
    "text",
    [
        "dataset=${oc.env:HOME}", "dataset=a/${oc.decode:1}-v0", 'dataset="${${env.name}:HOME}"',
        r"dataset=$\{oc.env\:HOME\}", r"env.kwargs={a:[b,$\{oc.env\:HOME\}]}", r"dataset=a,$\{oc.env\:HOME\}",
    ],
)  # fmt: skip
def test_a_setting_may_name_another_one_and_nothing_else(text):
    parse(["init_from=first-${algo.lr}-${seed}"])
    with pytest.raises(UsageError, match="is the value of another setting"):
        parse([text])


@pytest.mark.parametrize("text", ["seed=1", "algo.hidden=[256,256]", "dataset=hopper-10%.hdf5", "env=ALE/Pong-v5"])
def test_a_plain_setting_is_typed_as_it_is(text):
    assert typed(text) == text


@pytest.mark.parametrize("text", ["a;touch b=1", "init_from=first-${seed}", "run_dir='a b'", "run_dir=a b", "x=*"])
def test_the_shell_gives_a_setting_back_as_it_was(text):
    assert shlex.split(typed(text)) == [text]
    assert typed(text) != text
