"""Errors fit into gRPC's headers, whatever the caller sent."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.rpc.error_metadata import MESSAGE_BYTES, OBJECT_BYTES, as_metadata
from pydanube_core.errors import ClusterError, InvalidArgument


def test_a_short_error_is_untouched() -> None:
    error = InvalidArgument("credit is negative", field="credit", value=-1).suggest(
        "topics.list", tool="list_topics", command="danube topics list", arguments={}, why="look"
    )
    text, body = as_metadata(error)
    assert text == "INVALID_ARGUMENT: credit is negative"
    assert body.decode() == error.to_json()


@pytest.mark.parametrize("filler", ["x", "ü", "🎈", "\n", '"'])
def test_what_the_caller_sent_is_cut_and_the_code_stays(filler: str) -> None:
    error = InvalidArgument(
        f"position {filler * 9000} is none", field="position", value=filler * 9000, more=[filler] * 900
    )
    for _ in range(9):
        error.suggest("x", tool="x", command=filler * 9000, arguments={"a": filler * 9000}, why="")
    text, body = as_metadata(error)
    assert text.startswith("INVALID_ARGUMENT: position ")
    assert len(quote(text)) + len(base64.b64encode(body)) < 7000
    found = ClusterError.from_json(body.decode())
    assert (found.code, found.details["field"]) == ("INVALID_ARGUMENT", "position")


@given(message=st.text(max_size=3000), value=st.text(max_size=3000))
def test_any_text_fits(message: str, value: str) -> None:
    text, body = as_metadata(InvalidArgument(message, field="f", value=value))
    assert len(quote(text, errors="replace")) <= MESSAGE_BYTES
    assert len(body) <= OBJECT_BYTES
    json.loads(body)
