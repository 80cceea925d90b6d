from __future__ import annotations

import base64
import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_admin.engine.page_tokens import begin_of, digest_of, next_token, scope_of
from pydanube_admin.engine.paging import cut, glob
from pydanube_admin.operations.topics import ListTopicsRequest
from pydanube_core.errors import PageInvalid

NAMES = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), unique=True, max_size=40)


def walk(names: list[str], limit: int, *, ordered: bool = False) -> list[str]:
    seen: list[str] = []
    page: str | None = None
    while True:
        request = ListTopicsRequest(limit=limit, page=page)
        part = cut(names, key=lambda name: (name,), operation="topics.list", request=request, ordered=ordered)
        assert part.total == len(names)
        assert len(part.items) <= limit
        seen += part.items
        page = part.next_page
        if page is None:
            return seen


@given(NAMES, st.integers(1, 50))
def test_pages_together_are_the_list_in_order(names: list[str], limit: int) -> None:
    assert walk(names, limit) == sorted(names)
    assert walk(sorted(names), limit, ordered=True) == sorted(names)


def test_of_an_ordered_list_only_the_page_is_looked_at() -> None:
    names, looked_at = [f"{number:05d}" for number in range(10_000)], 0

    def key(name: str) -> tuple[str]:
        nonlocal looked_at
        looked_at += 1
        return (name,)

    page: str | None = None
    for begin in (0, 5):
        request = ListTopicsRequest(limit=5, page=page)
        part = cut(names, key=key, operation="topics.list", request=request, ordered=True)
        assert (part.items, part.total) == (names[begin : begin + 5], 10_000)
        page = part.next_page
    assert looked_at < 40


def test_what_is_created_or_deleted_between_pages_neither_repeats_nor_skips() -> None:
    names = ["a", "c", "e", "g"]
    first = cut(names, key=lambda n: (n,), operation="topics.list", request=ListTopicsRequest(limit=2))
    assert first.items == ["a", "c"]
    names = ["a", "b", "d", "e", "g"]  # c, the last one shown, is gone; b and d are new
    second = cut(
        names,
        key=lambda n: (n,),
        operation="topics.list",
        request=ListTopicsRequest(limit=9, page=first.next_page),
    )
    assert second.items == ["d", "e", "g"]


def token() -> str:
    part = cut(["a", "b"], key=lambda n: (n,), operation="topics.list", request=ListTopicsRequest(limit=1))
    assert part.next_page is not None
    return part.next_page


def refused(page: str, operation: str = "topics.list", **arguments: str) -> None:
    request = ListTopicsRequest(page=page, **arguments)  # type: ignore[arg-type]
    with pytest.raises(PageInvalid) as caught:
        cut(["a", "b"], key=lambda n: (n,), operation=operation, request=request)
    assert caught.value.details["field"] == "page"


def test_a_token_belongs_to_its_list_and_its_arguments() -> None:
    refused(token(), operation="subscriptions.list")
    refused(token(), namespace="other")
    refused(token(), filter="a*")


def test_the_size_of_the_page_may_change() -> None:
    request = ListTopicsRequest(page=token(), limit=1000)
    assert cut(["a", "b"], key=lambda n: (n,), operation="topics.list", request=request).items == ["b"]


@given(st.text(max_size=40))
def test_a_token_nobody_gave_out_is_refused(page: str) -> None:
    refused(page)


FORGED = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=True) | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(FORGED)
def test_a_token_made_by_hand_is_refused_or_a_key_of_this_list(key: Any) -> None:
    """The digest is no secret: whoever reads the source can make one."""
    page = next_token(key, "topics.list", ListTopicsRequest())
    request = ListTopicsRequest(page=page)
    with contextlib.suppress(PageInvalid):
        cut(["a", "b"], key=lambda n: (n,), operation="topics.list", request=request)
        assert isinstance(key, list)
    with contextlib.suppress(PageInvalid):
        begin = begin_of("topics.list", request, numbers=2)
        assert begin is not None
        assert len([part for part in begin if part >= 0]) == 2


@given(st.integers(0, 15), st.sampled_from("ABCabc019-_"))
def test_a_changed_token_is_refused(index: int, character: str) -> None:
    good = token()
    changed = good[:index] + character + good[index + 1 :]
    if changed != good:
        refused(changed)


@pytest.mark.parametrize(
    "key",
    [b"1", b"null", b'{"a": 1}', b"[1]", b"[null]", b'[["a"]]', b'["a", 1]', b"[", b"[" * 2000, b"\xff"],
)
def test_a_key_of_another_shape_under_the_right_digest_is_refused(key: bytes) -> None:
    """The digest is no secret: whoever works one out is answered like anybody else, not with a defect."""
    request = ListTopicsRequest()
    raw = digest_of(key, scope_of("topics.list", request)) + key
    page = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    if key != b'["a", 1]':  # which is behind "a" in the order, and harmless
        refused(page)
    with pytest.raises(PageInvalid):
        begin_of("topics.list", ListTopicsRequest(page=page), numbers=2)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("orders*", "/default/orders-eu", True),
        ("orders", "/default/orders-eu", False),
        ("*eu", "/default/orders-eu", True),
        ("default*", "/default/orders", False),
        ("/default/*", "/default/orders", True),
        ("default/o*", "/default/orders", True),
        ("*/orders", "/default/orders", True),
        ("o?ders", "/default/orders", True),
        ("[op]rders", "/default/orders", True),
        (None, "/default/orders", True),
        ("a.c", "/default/abc", False),
    ],
)
def test_a_glob_goes_over_the_name(pattern: str | None, name: str, matches: bool) -> None:
    assert glob(pattern)(name) is matches


def test_a_pattern_of_many_stars_costs_no_more_than_its_length_times_the_name() -> None:
    """The standard library translates stars to groups that never go back; this holds it to that."""
    began = time.process_time()
    for pattern in ("*a" * 30 + "b", "*?" * 30 + "b", "*[a-b]" * 30 + "c"):
        assert not glob(pattern)("a" * 5_000)
    assert time.process_time() - began < 2
