"""API tokens: made, shown once, and replaced."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from pydanube_core.errors import Unauthenticated
from pydanube_core.security.api_tokens import DICE_BYTES, is_any_token, new_token, renewed, verify
from pydanube_core.security.permissions import Principal
from pydanube_core.security.records import TokenRecord

ANN = Principal("ann")


def made(*, until_ms: int | None) -> tuple[TokenRecord, str]:
    return new_token("t", ANN, secrets.token_bytes(DICE_BYTES), now_ms=1000, until_ms=until_ms)


@pytest.mark.parametrize(("until_ms", "end_ms"), [(None, 2500), (9000, 2500), (2400, 2400)])
def test_a_token_that_is_replaced_ends_with_the_overlap_and_never_later_than_it_would(
    until_ms: int | None, end_ms: int
) -> None:
    record, text = made(until_ms=until_ms)
    former = renewed(record, now_ms=2000, overlap_ms=500)
    assert former == replace(record, until_ms=end_ms)
    tokens = {record.token_id: former}
    assert verify(text, tokens, now_ms=end_ms - 1).principal == ANN
    with pytest.raises(Unauthenticated, match="expired"):
        verify(text, tokens, now_ms=end_ms)


@pytest.mark.parametrize(("until_ms", "end_s"), [(None, None), (2500, 2.5)])
def test_an_open_stream_ends_in_the_same_moment_as_its_token(
    until_ms: int | None, end_s: float | None
) -> None:
    record, text = made(until_ms=until_ms)
    assert verify(text, {record.token_id: record}, now_ms=2000).expires_at_s == end_s


def test_a_token_of_another_secret_is_no_token() -> None:
    record, text = made(until_ms=None)
    other = text[:-1] + ("A" if text[-1] != "A" else "B")
    with pytest.raises(Unauthenticated):
        verify(other, {record.token_id: record}, now_ms=2000)
    with pytest.raises(Unauthenticated):
        verify(text, {}, now_ms=2000)


@pytest.mark.parametrize(
    ("text", "is_token"),
    [
        (f"danube_{'0' * 16}_{'a-_Z' * 10}abc", True),
        ("eyJh.eyJz.c2ln", True),
        ("eyJh.eyJz.", True),
        ("", False),
        ("root:x:0:0", False),
        ("-----BEGIN PRIVATE KEY-----", False),
        ("one.two", False),
        ("one.two.three.four", False),
        ("danube_a\ndanube_b", False),
    ],
)
def test_a_text_that_is_sent_as_a_token_has_the_form_of_exactly_one(text: str, is_token: bool) -> None:
    """The maker of a link names a file, whose text would otherwise be sent to another cluster."""
    assert is_any_token(text) is is_token
