from __future__ import annotations

import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.subscription.routes.key_filters import check_filter_sizes, key_pattern
from pydanube_core.errors import InvalidArgument

TEXTS = st.text(alphabet="ab[", max_size=12)
GLOBS = st.text(alphabet="ab[?*", min_size=1, max_size=10)


@given(globs=st.lists(GLOBS, min_size=1, max_size=3), key=TEXTS)
def test_a_filter_takes_what_its_glob_takes(globs: list[str], key: str) -> None:
    expected = any(fnmatch.fnmatchcase(key, glob.replace("[", "[[]")) for glob in globs)
    assert (key_pattern(globs).fullmatch(key) is not None) is expected


@pytest.mark.parametrize("glob", ["*a" * 6 + "b", "*?" * 6 + "b", "**a*" * 3 + "b", "*a?" * 40 + "b"])
def test_many_stars_cost_no_more_than_the_length_of_key_and_filter(glob: str) -> None:
    pattern = key_pattern([glob])
    began = time.process_time()
    assert pattern.fullmatch("a" * 100) is None
    assert pattern.fullmatch("a" * 20_000) is None
    assert time.process_time() - began < 1


@pytest.mark.parametrize("filters", [["x"] * 101, ["x" * 257], [""]])
def test_filters_beyond_the_limits_are_refused(filters: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="key filter"):
        check_filter_sizes(filters)


def test_filters_at_the_limits_are_taken() -> None:
    check_filter_sizes(["x" * 256] * 100)
