"""Answers that show messages have a bound for keys and attributes too: a producer chooses their length."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube import Client, connect
from pydanube_admin.operations.dead_letter_records import MAX_REASON_CHARS, Letter, replays_of
from pydanube_admin.operations.messages import MAX_KEY_BYTES, fenced
from pydanube_admin.operations.offset_ranges import ranges_of_text, within
from pydanube_core.facts import MessageFacts

from tests.admin.real_broker import Administered, cluster
from tests.support.processor import at_most

__all__ = ["cluster"]
pytestmark = pytest.mark.anyio

OF_AN_ITEM = 700  # bytes of an item's own fields
LONG = "k" * 300_000
BILLING = {"topic": "orders", "subscription": "billing"}


@pytest.fixture
async def client(cluster: Administered) -> AsyncIterator[Client]:
    async with connect(cluster.broker.broker_url) as client:
        yield client


def shown(
    *, key: str | None = None, attributes: dict[str, str] | None = None, room: int = 10_000
) -> dict[str, Any]:
    message = SimpleNamespace(key=key, attributes=attributes or {}, payload=b"payload", producer="shop")
    body, cut, used = fenced(cast(MessageFacts, message), room)
    assert used <= room
    assert cut == ("left_out" in body or len(body["text"]) < 7)
    return body


async def test_a_peek_and_a_search_show_no_more_bytes_than_asked_for(
    cluster: Administered, client: Client
) -> None:
    await cluster("topics.create", topic="orders")
    attributes = {"trace": "7", "long": LONG, **{f"name-{n}": "v" * 50 for n in range(1000)}}
    async with client.producer("orders", name="shop") as producer:
        for _ in range(12):
            await producer.send(b"payload", key=LONG, attributes=attributes)
    calls: dict[str, dict[str, Any]] = {
        "messages.peek": {"from": "earliest"}, "messages.search": {"contains": "payload"},
    }  # fmt: skip
    for name, call in calls.items():
        for room in (100, 3_000, 16_384):
            answer = await cluster(name, topic="orders", max_bytes=room, limit=100, **call)
            items = answer["items"]
            assert items
            assert len(json.dumps(items)) <= 1.3 * room + OF_AN_ITEM * len(items)
            assert all(item["truncated"] for item in items)
        first = items[0]["untrusted"]
        assert first["text"] == "payload"
        assert first["key"] == LONG[:MAX_KEY_BYTES]
        assert first["attributes"]["trace"] == "7"
        assert first["left_out"]["key"] == len(LONG) - MAX_KEY_BYTES
        assert first["left_out"]["attributes"] > len(LONG)


def test_a_cut_falls_between_characters_and_a_short_message_is_whole() -> None:
    attributes = {"a": "1", "b": "two"}
    assert shown(key="k", attributes=attributes) == {
        "text": "payload", "key": "k", "attributes": attributes, "producer": "shop",
    }  # fmt: skip
    assert shown(key=None)["key"] is None
    cut = shown(key="ü" * 1000)
    assert cut["key"] == "ü" * (MAX_KEY_BYTES // 2)
    assert cut["left_out"] == {"key": 2000 - MAX_KEY_BYTES}
    for room in range(40):
        body = shown(key="üü", attributes={"ä": "€€", "b": "2"}, room=room)
        assert "üü".startswith(body["key"])
        assert all("€€".startswith(value) or value == "2" for value in body["attributes"].values())


async def test_a_forged_reason_of_a_dead_letter_is_neither_held_nor_shown_whole(
    cluster: Administered, client: Client
) -> None:
    await cluster("topics.create", topic="orders")
    await cluster("subscriptions.create", **BILLING)
    await cluster.apply(
        "subscriptions.set_failure_policy", **BILLING, poison_policy="dead_letter", max_redelivery_count=0
    )
    reason = "no such account " * 100_000
    async with client.producer("orders-dlq-billing", name="forger") as producer:
        for n in range(3):
            told = {
                "x-original-topic": "/default/orders", "x-original-subscription": "billing",
                "x-original-topic-offset": str(n), "x-failure-reason": reason, "x-delivery-attempt": "9" * 10_000,
            }  # fmt: skip
            await producer.send(b"1", attributes=told)
    answer = await cluster("dead_letters.list", **BILLING, reason=reason[:1000])
    assert [item["untrusted"]["reason"] for item in answer["items"]] == [reason[:MAX_REASON_CHARS]] * 3
    assert answer["groups"][0]["untrusted"] == {"reason": reason[:MAX_REASON_CHARS]}
    assert len(json.dumps(answer)) < 16_384 * 1.3


async def test_a_connectors_refused_records_have_one_budget(cluster: Administered, client: Client) -> None:
    definition = 'connector = "my_sinks:Delta"\ntopic = "orders"\n'
    await cluster("topics.create", topic="orders")
    await cluster("connectors.create", connector="delta", definition=definition)
    async with client.producer("orders-dlq-connect-delta", name="forger") as producer:
        for n in range(60):
            await producer.send(b"x" * 200_000, key=f"{n} {LONG}")
    answer = await cluster("connectors.errors", connector="delta", limit=50)
    assert [item["offset"] for item in answer["refused"]] == list(range(10, 60))
    assert len(json.dumps(answer)) < 256 * 1024 * 1.3
    assert answer["refused"][-1]["untrusted"]["text"] == "x" * 8192


async def test_offsets_and_earlier_replays_are_looked_up_and_not_compared_with_every_letter() -> None:
    """1 300 offsets, or 800 replays, were compared with each of 100 000 letters, one by one."""
    text = ",".join(str(3 * n) for n in range(700))[:4096]
    is_wanted = within(ranges_of_text(text))
    with at_most(0.3):
        assert sum(map(is_wanted, range(100_000))) == len(ranges_of_text(text))
    assert [n for n in range(12) if within([(8, 9), (1, 3), (2, 6), (6, 7)])(n)] == [1, 2, 3, 4, 5, 6, 8]
    letters = [cast(Letter, SimpleNamespace(log="dlq", offset=n)) for n in range(100_000)]
    remembered = [
        {
            "call_id": f"c{n}",
            "at_ms": n,
            "principal": "ann",
            "topic": "dlq",
            "topic_id": 1,
            "ranges": [[n, n + 2]],
        }
        for n in range(800)
    ]
    with at_most(0.5):
        found = await replays_of(remembered, {"dlq": 1}, letters)
    assert {n: [each["call_id"] for each in found["dlq", n]] for n in (0, 5, 800)} == {
        0: ["c0"], 5: ["c4", "c5"], 800: ["c799"],
    }  # fmt: skip
    assert len(found) == 801
