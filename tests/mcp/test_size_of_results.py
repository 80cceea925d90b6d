"""Results are cut to size, and their parts hold all of it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydanube_admin.engine.operation import READ_ANY
from pydanube_admin.registry import OPERATIONS
from pydanube_mcp.calls import ClusterCaller
from pydanube_mcp.consent import Confirm
from pydanube_mcp.presenting import Asked, body_of
from pydanube_mcp.profiles import Profile
from pydanube_mcp.sizing import READ_BYTES, fewer, in_parts, size_of


def made(chance: random.Random, depth: int = 0) -> Any:
    """A value of JSON, now and then a long one."""
    kind = chance.randrange(3 if depth > 3 else 6)
    letters = 'abc\\"\n é€𝄞'
    match kind:
        case 0:
            return chance.choice([None, True, -5, 1.5, 10**12])
        case 1:
            return "".join(chance.choices(letters, k=chance.randrange(30)))
        case 2:
            return "".join(chance.choices(letters, k=8)) * chance.choice([1, 1, 100, 2000])
        case 3 | 4:
            return [made(chance, depth + 1) for _ in range(chance.choice([0, 1, 3, 40]))]
        case _:
            return {f"k{n}": made(chance, depth + 1) for n in range(chance.choice([0, 1, 3, 40]))}


def leaves(value: Any) -> list[str]:
    """Everything that is no container, long texts by their characters."""
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return list(value) if isinstance(value, str) else [json.dumps(value)]


@given(seed=st.integers(0, 10**9))
@settings(max_examples=15, deadline=None)
def test_parts_are_small_and_hold_everything(seed: int) -> None:
    chance = random.Random(seed)
    body = {f"field{n}": made(chance) for n in range(chance.randrange(1, 8))}
    assume(size_of(body) < 60_000)
    first = in_parts(body, 1)
    parts = [in_parts(body, number) for number in range(1, first.of + 1)]
    assert all(part.of == first.of and part.number == index + 1 for index, part in enumerate(parts))
    assert all(size_of(part.body) <= READ_BYTES for part in parts)
    shown = [leaf for part in parts for leaf in leaves(part.body)]
    wanted: dict[str, int] = {}
    for leaf in leaves(body):
        wanted[leaf] = wanted.get(leaf, 0) + 1
    for leaf in shown:
        wanted[leaf] = wanted.get(leaf, 0) - 1
    assert max(wanted.values(), default=0) <= 0  # nothing is missing; small fields may stand in several parts


def test_a_long_list_goes_on_in_order() -> None:
    body = {"items": [{"n": n, "text": "x" * 60} for n in range(1000)], "as_of": "now"}
    seen: list[int] = []
    of = in_parts(body, 1).of
    for number in range(1, of + 1):
        part = in_parts(body, number).body
        assert part["as_of"] == "now"
        seen += [item["n"] for item in part["items"]]
    assert seen == list(range(1000))
    assert in_parts(body, of + 5).number == of


def test_a_long_text_is_whole_when_its_pieces_are_put_together() -> None:
    text = "".join(chr(32 + n % 900) for n in range(30_000))
    body = {"subject": "s", "untrusted": {"schema_definition": text}}
    of = in_parts(body, 1).of
    pieces = [in_parts(body, number).body["untrusted"]["schema_definition"] for number in range(1, of + 1)]
    assert "".join(pieces) == text


def test_fewer_items_are_asked_for_where_a_page_is_too_long() -> None:
    items = [{"name": "x" * 300}] * 50
    whole = size_of({"items": items, "next_page": None})
    count = fewer(items, whole, 50)
    assert count is not None
    assert size_of({"items": items[:count], "next_page": "y" * 200}) <= READ_BYTES
    assert fewer([{"name": "x" * 9000}], 9020, 50) is None


@pytest.mark.anyio
async def test_the_top_of_a_list_is_read_once() -> None:
    """A second call with a limit returned the same, since `top` counts more."""
    page = {"items": [{"name": "x" * 300}] * 50, "next_page": None}
    client: Any = SimpleNamespace(call=AsyncMock(return_value=page))
    context: Any = None
    caller = ClusterCaller(client=client, cluster=None, principal=None, confirm=Confirm.AUTO, context=context)
    assert await caller.call(OPERATIONS["topics.list"], {"top": 50}) == page
    assert client.call.await_count == 1
    await caller.call(OPERATIONS["topics.list"], {})
    assert client.call.await_count == 3


def test_items_too_long_for_a_page_together_are_pages_of_one() -> None:
    """The whole page went into 40 parts."""
    items = [{"name": "x" * 5_900}] * 50
    whole = size_of({"items": items, "next_page": None})
    assert fewer(items, whole, 50) == 1
    assert fewer(items[:1], size_of({"items": items[:1], "next_page": None}), 1) is None


@pytest.mark.parametrize("token", ["y" * 100, "y" * 200], ids=["short", "long"])
@pytest.mark.parametrize("operation", ["topics.list", READ_ANY])
def test_a_page_in_parts_goes_on_with_its_last_part(operation: str, token: str) -> None:
    """A model that followed `next_page` from the first part skipped the others."""
    page = {"items": [{"name": f"t{n}", "text": "x" * 700} for n in range(10)], "next_page": token}
    whole = page if operation == "topics.list" else {"operation": "topics.list", "result": page}
    asked = Asked(operation=OPERATIONS[operation], arguments={}, profile=Profile.FULL)
    parts = [body_of(whole, replace(asked, part=number)) for number in (1, 2)]
    pages = [part if operation == "topics.list" else part["result"] for part in parts]
    assert [part["rest"]["of"] for part in parts] == [2, 2]
    assert [each["next_page"] for each in pages] == [None, token]
    assert [item["name"] for each in pages for item in each["items"]] == [f"t{n}" for n in range(10)]
