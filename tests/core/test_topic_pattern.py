"""Patterns over topics' names."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.errors import InvalidName
from pydanube_core.names import TopicName
from pydanube_core.topic_pattern import TopicPattern

NAMES = st.text("abAB-_1", min_size=1, max_size=8)


@given(NAMES, st.text("abAB-_1*?", min_size=1, max_size=6), st.sampled_from(["default", "other"]))
def test_it_is_a_glob_within_one_namespace(name: str, glob: str, namespace: str) -> None:
    pattern = TopicPattern.parse(f"/{namespace}/{glob}")
    assert str(pattern) == f"/{namespace}/{glob}"
    assert TopicPattern.parse(str(pattern)) == pattern
    assert pattern.matches(TopicName(namespace, name)) == fnmatchcase(name, glob)
    assert not pattern.matches(TopicName(f"{namespace}x", name))


@given(NAMES)
def test_the_name_of_a_topic_is_itself(name: str) -> None:
    pattern = TopicPattern.parse(name)
    assert not pattern.is_glob
    assert pattern.matches(TopicName.parse(name))
    assert not pattern.matches(TopicName.parse(f"{name}x"))


def test_forms_and_refusals() -> None:
    assert str(TopicPattern.parse("orders.*")) == "/default/orders*"
    assert str(TopicPattern.parse("ns/[ab]?")) == "/ns/[ab]?"
    for wrong in ("", "/", "/x", "a/b/c", "a/", "orders.v1", "a b", "n*/x", "x" * 257, 5, None):
        with pytest.raises(InvalidName) as refused:
            TopicPattern.parse(wrong)  # type: ignore[arg-type]
        assert refused.value.details["field"] == "pattern"
