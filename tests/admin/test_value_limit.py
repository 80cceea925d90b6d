"""The bound on the values of a message is exact, cheap, and before any parsing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_admin import value_limit
from pydanube_admin.arguments import parse_call
from pydanube_admin.jsonrpc import JsonRpc
from pydanube_admin.remote import OpsClient
from pydanube_admin.value_limit import MAX_VALUES, check_values
from pydanube_core.errors import InvalidArgument

MB_29 = 2_900_000
TEXTS = st.text(st.sampled_from('\\",[{}]:a é'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=30,
)


def values_in(value: Any) -> int:
    """Count the values of containers. An empty one counts as one."""
    if not isinstance(value, dict | list):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return max(1, len(inner)) + sum(map(values_in, inner))


def is_refused(text: bytes) -> bool:
    try:
        check_values(text, "body")
    except InvalidArgument:
        return True
    return False


@given(VALUES, st.booleans())
def test_exactly_the_values_outside_of_strings_count(value: Any, ascii_only: bool) -> None:
    text, count = json.dumps(value, ensure_ascii=ascii_only).encode(), values_in(value)
    with pytest.MonkeyPatch.context() as patched:
        for limit in {max(0, count - 1), count, count + 1}:
            patched.setattr(value_limit, "MAX_VALUES", limit)
            assert is_refused(text) == (count > limit), (text, limit)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (json.dumps([[{"k": n} for n in range(10)]] * 20_000).encode(), True),
        (json.dumps(["a"] * (MB_29 // 5)).encode(), True),
        (json.dumps(dict.fromkeys(map(str, range(200_000)), "")).encode(), True),
        (json.dumps([[1] * 9] * 90_000).encode("utf-16"), True),
        (json.dumps({"payload": "a, [b], {c}, " * (MB_29 // 13)}).encode(), False),
        (json.dumps({"payload": 'say \\ ",", ' * (MB_29 // 16)}).encode(), False),
        (b'[",' * (MB_29 // 3), True),
        (b'"' + b"\\" * MB_29 + b"," * MB_29, False),
    ],
    ids=["nested", "strings", "names", "utf-16", "text", "escapes", "broken", "backslashes"],
)
def test_a_large_text_costs_little_whatever_is_in_it(text: bytes, refused: bool) -> None:
    began = time.thread_time()
    assert is_refused(text) == refused
    assert time.thread_time() - began < 0.2


def test_a_call_of_many_nested_values_is_refused_before_they_are_checked() -> None:
    policies = {"a": [[n] * 10 for n in range(990)]}
    for arguments in ({"topic": "a", "policies": policies}, json.dumps({"topic": "a", "policies": policies})):
        with pytest.raises(InvalidArgument, match="more than 10000 values") as caught:
            parse_call("topics.set_policies", arguments)
        assert (caught.value.details["field"], caught.value.details["limit"]) == ("arguments", MAX_VALUES)


@pytest.mark.anyio
async def test_a_message_of_json_rpc_is_refused_over_any_transport(ops: OpsClient) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "topics.list", "params": {"filter": [[1] * 9] * 9_000}}
    answer = await JsonRpc(ops).handle(json.dumps(call).encode())
    assert answer is not None
    error = json.loads(answer)["error"]
    assert (error["code"], error["data"]["code"]) == (-32600, "INVALID_ARGUMENT")
    assert error["data"]["details"] == {"field": "message", "limit": MAX_VALUES}
