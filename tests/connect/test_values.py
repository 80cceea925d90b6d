"""Payloads that are parsed in one call have the values of payloads that are parsed one by one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydanube_connect.values import json_value, json_values
from pydanube_core.errors import PayloadInvalid

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
).map(lambda value: json.dumps(value).encode())
#: what closes or opens the array that the payloads are joined to
PIECES = st.sampled_from(
    [b"", b" ", b"1", b"1,2", b"[1", b"2]", b"],[", b'"a', b'b"', b'{"a":1', b'"b":2}', b",", b"\\"]
)


def one_by_one(payloads: list[bytes]) -> list[Any] | None:
    try:
        return [json_value(payload) for payload in payloads]
    except PayloadInvalid:
        return None


@given(payloads=st.lists(JSON | PIECES, min_size=1, max_size=6))
def test_parsing_together_is_parsing_one_by_one(payloads: list[bytes]) -> None:
    assert json_values(payloads) == one_by_one(payloads)
