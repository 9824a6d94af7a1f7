"""Settings as they are typed."""

import pytest

from zoo.settings.overrides import as_overrides, parse, value_of


@pytest.mark.parametrize(
    "text", ["plain/name-1.5", "it's", r"a\b c", r"a\\b c", r"a\'b", "a b\\", r"a\\'b c\\", "[a, b]", "a=b", "${x}"]
)
def test_any_text_is_the_same_after_it_was_typed(text):
    (override,) = parse(as_overrides({"run_dir": text}))
    assert value_of(override) == text
