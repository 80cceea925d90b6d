"""Dead letters: their originals are delivered again, once, to the subscription where they failed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from pydanube import Client, connect
from pydanube_admin.operations import dead_letters
from pydanube_admin.operations.dead_letter_records import MAX_RECORD_BYTES, encoded_replays

from tests.admin.real_broker import Administered, administered
from tests.support.messages import take
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LETTERS = {"topic": "orders", "subscription": "billing"}


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        await cluster("topics.create", topic="orders")
        for subscription in ("billing", "search"):
            await cluster(
                "subscriptions.create",
                topic="orders",
                subscription=subscription,
                type="shared",
                start="earliest",
            )
        await cluster.apply(
            "subscriptions.set_failure_policy",
            **LETTERS, poison_policy="dead_letter", max_redelivery_count=0, ack_timeout_ms=60_000,
        )  # fmt: skip
        yield cluster


@pytest.fixture
async def client(cluster: Administered) -> AsyncIterator[Client]:
    async with connect(cluster.broker.broker_url) as client:
        yield client


async def publish(client: Client, count: int) -> None:
    async with client.producer("orders", name="shop") as producer:
        for n in range(count):
            producer.send_nowait(b"%d" % n, key=f"k{n}", attributes={"own": "1", "x-shop": "7"})
        await producer.flush()


async def work(
    client: Client, bad: Sequence[bytes], count: int, *, subscription: str = "billing"
) -> list[bytes]:
    """Take messages: refuse the bad ones, acknowledge the others. Return all payloads."""
    seen: list[bytes] = []
    async with client.consumer("orders", subscription, type="shared") as consumer:
        for _ in range(count):
            (message,) = await take(consumer, 1)
            seen.append(message.payload)
            if message.payload in bad:
                await message.nack(reason="no such account" if message.payload == b"3" else "refused")
            else:
                await message.ack()
        await consumer.flush_acks()
    return seen


async def letters(cluster: Administered, count: int) -> list[dict[str, Any]]:
    async def there() -> bool:
        return len((await cluster("dead_letters.list", **LETTERS))["items"]) == count

    await until(there)
    items: list[dict[str, Any]] = (await cluster("dead_letters.list", **LETTERS))["items"]
    return items


async def lag(cluster: Administered, subscription: str = "billing") -> int:
    (item,) = (await cluster("subscriptions.lag", topic="orders", subscription=subscription))["items"]
    found: int = item["lag_messages"]
    return found


async def test_a_replay_reaches_one_subscription_at_the_original_place(
    cluster: Administered, client: Client
) -> None:
    await publish(client, 10)
    assert len(await work(client, [b"3", b"7"], 10)) == 10
    assert len(await work(client, [], 10, subscription="search")) == 10
    first, second = await letters(cluster, 2)
    assert [(each["original_offset"], each["state"], each["replayed"]) for each in (first, second)] == [
        (3, "waiting", []),
        (7, "waiting", []),
    ]
    listed = await cluster("dead_letters.list", **LETTERS)
    assert [(each["messages"], each["untrusted"]["reason"]) for each in listed["groups"]] == [
        (1, "no such account"),
        (1, "refused"),
    ]
    plan = await cluster("dead_letters.replay", **LETTERS, plan_only=True)
    assert (plan["reversible"], plan["blast_radius"]["subscriptions"], plan["blast_radius"]["messages"]) == (
        True,
        1,
        2,
    )
    assert plan["pinned"]["letters"] == {"/default/orders-dlq-billing": [[0, 2]]}
    done = await cluster("dead_letters.replay", **LETTERS, plan_token=plan["plan_token"])
    assert (done["messages"], done["delivered_to"], done["not_there"], done["left"]) == (2, "billing", {}, 0)
    assert [each["state"] for each in await letters(cluster, 2)] == ["replayed", "replayed"]
    assert (await lag(cluster), await lag(cluster, "search")) == (2, 0)
    assert [each async for each in again(client)] == [(3, b"3", "k3", 2), (7, b"7", "k7", 2)]
    assert await cluster.payloads("orders") == [b"%d" % n for n in range(10)]
    handled = await letters(cluster, 2)
    assert [each["state"] for each in handled] == ["handled", "handled"]
    assert handled[0]["replayed"][0]["principal"] == "ann"
    found = await cluster("diagnose.subscription", **LETTERS)
    assert "cursor_rewound" not in [each["rule"] for each in found["findings"]]


async def again(client: Client) -> AsyncIterator[tuple[int, bytes, str | None, int]]:
    async with client.consumer("orders", "billing", type="shared") as consumer:
        for message in await take(consumer, 2):
            assert dict(message.attributes) == {"own": "1", "x-shop": "7"}
            yield message.offset, message.payload, message.key, message.delivery_count
            await message.ack()
        await consumer.flush_acks()


async def test_a_second_failure_makes_a_second_letter_and_a_second_replay_wants_again(
    cluster: Administered, client: Client
) -> None:
    await publish(client, 4)
    await work(client, [b"3"], 4)
    await letters(cluster, 1)
    await cluster("dead_letters.replay", **LETTERS, offsets="0")
    await work(client, [b"3"], 1)
    old, new = await letters(cluster, 2)
    assert (old["state"], new["state"]) == ("failed_again", "waiting")
    await cluster("dead_letters.replay", **LETTERS)
    await work(client, [], 1)
    refused = await cluster.refused("dead_letters.replay", **LETTERS, offsets="1", by="bob")
    assert (refused.code, refused.details["replayed"][0]["principal"]) == ("CONFLICT", "ann")
    assert refused.next[0]["arguments"]["again"] is True
    left_out = await cluster("dead_letters.replay", **LETTERS)
    assert (left_out["messages"], left_out["replayed_before"]) == (0, 1)
    assert (await cluster("dead_letters.replay", **LETTERS, again=True))["messages"] == 1
    assert await lag(cluster) == 1
    waiting = await cluster("dead_letters.replay", **LETTERS, again=True)
    assert (waiting["messages"], waiting["already_waiting"]) == (0, 1)


async def test_a_plan_that_finds_all_replayed_is_applied_and_does_nothing(
    cluster: Administered, client: Client
) -> None:
    """It was stale at once, and so was the plan that the error proposed."""
    await publish(client, 3)
    await work(client, [b"1"], 3)
    await letters(cluster, 1)
    await cluster.apply("dead_letters.replay", **LETTERS)
    plan = await cluster("dead_letters.replay", **LETTERS, plan_only=True)
    done = await cluster("dead_letters.replay", **LETTERS, plan_token=plan["plan_token"])
    assert (done["messages"], done["replayed_before"]) == (0, 1)
    assert await lag(cluster) == 1


async def test_an_undo_takes_back_what_no_consumer_has_got(cluster: Administered, client: Client) -> None:
    await publish(client, 4)
    await work(client, [b"1", b"3"], 4)
    await letters(cluster, 2)
    done = await cluster("dead_letters.replay", **LETTERS)
    await cluster("changes.undo", call_id=done["call_id"])
    assert await lag(cluster) == 0
    assert [(each["state"], each["replayed"]) for each in await letters(cluster, 2)] == [("waiting", [])] * 2
    assert (await cluster("dead_letters.replay", **LETTERS))["messages"] == 2, "without again"


async def test_an_undo_leaves_those_replayed_that_a_consumer_got(
    cluster: Administered, client: Client
) -> None:
    await publish(client, 4)
    await work(client, [b"1", b"3"], 4)
    await letters(cluster, 2)
    done = await cluster("dead_letters.replay", **LETTERS)
    async with client.consumer("orders", "billing", type="shared", credit_messages=1) as consumer:
        (message,) = await take(consumer, 1)
        await cluster("changes.undo", call_id=done["call_id"])
        both_sent = await lag(cluster) == 2  # the second is on its way to a consumer that takes the first
        await message.ack()
        await consumer.flush_acks()
    first, second = await letters(cluster, 2)
    assert (message.payload, first["state"]) == (b"1", "handled")
    assert second["state"] == ("replayed" if both_sent else "waiting")


async def test_letters_that_are_forged_or_whose_originals_are_gone_deliver_nothing(
    cluster: Administered, client: Client
) -> None:
    await publish(client, 3)
    await work(client, [], 3)
    await cluster("topics.create", topic="orders-dlq-billing")
    for offset in ("1", "99", "x"):
        attributes = {
            "x-original-topic": "/default/orders",
            "x-original-subscription": "billing",
            "x-original-topic-offset": offset,
        }
        await cluster("messages.publish", topic="orders-dlq-billing", payload="pay me", attributes=attributes)
    done = await cluster("dead_letters.replay", **LETTERS)
    assert (done["messages"], done["not_there"]) == (0, {"differs": 2, "recreated": 1})
    assert await lag(cluster) == 0
    await cluster.apply("topics.truncate", topic="orders", before="latest")
    assert (await cluster("dead_letters.replay", **LETTERS))["not_there"] == {
        "differs": 1,
        "recreated": 1,
        "retention": 1,
    }
    copied = await cluster("dead_letters.replay", **LETTERS, to="repaired", until=2)
    assert (copied["messages"], copied["delivered_to"]) == (2, "/default/repaired")
    assert await cluster.payloads("repaired") == [b"pay me"] * 2
    refused = await cluster.refused("dead_letters.replay", **LETTERS, to="/system/audit")
    assert refused.code == "PERMISSION_DENIED"


async def forge(client: Client, payload: bytes, offset: str, count: int = 1) -> None:
    attributes = {
        "x-original-topic": "/default/orders",
        "x-original-subscription": "billing",
        "x-original-topic-offset": offset,
    }
    async with client.producer("orders-dlq-billing", name="forger") as producer:
        for _ in range(count):
            producer.send_nowait(payload, attributes=attributes)
        await producer.flush()


async def test_a_forged_letter_does_not_stand_in_for_a_genuine_one(
    cluster: Administered, client: Client
) -> None:
    await publish(client, 4)
    await work(client, [b"1"], 4)
    await letters(cluster, 1)
    await forge(client, b"pay me", "1")
    assert [each["state"] for each in await letters(cluster, 2)] == ["waiting", "waiting"]
    done = await cluster("dead_letters.replay", **LETTERS)
    assert (done["messages"], done["not_there"]) == (1, {"differs": 1})
    assert await work(client, [], 1) == [b"1"]
    assert [each["state"] for each in await letters(cluster, 2)] == ["handled", "waiting"]


async def test_letters_without_an_original_take_no_room_in_a_call(
    cluster: Administered, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MAX_REPLAYED", 2)
    monkeypatch.setattr(dead_letters, "CHUNK", 3)
    await publish(client, 4)
    await cluster("topics.create", topic="orders-dlq-billing")
    await forge(client, b"pay me", "1", 5)
    await work(client, [b"0", b"2", b"3"], 4)
    await letters(cluster, 8)
    done = await cluster("dead_letters.replay", **LETTERS)
    assert (done["messages"], done["not_there"], done["left"]) == (2, {"differs": 1}, 1)


async def test_copies_are_the_messages_without_what_the_broker_added(
    cluster: Administered, client: Client
) -> None:
    """A copy keeps the schema and the producer's own attributes, also those that begin with x-."""
    own = {"own": "1", "x-shop": "7", "x-original": "mine", "x-replayed": "no"}
    await client.schemas.register("orders", "json_schema", '{"type": "object"}')
    async with client.producer("orders", name="shop", schema="orders") as producer:
        await producer.send(b'{"id": 3}', key="k", attributes=own, delay_ms=1)
    await work(client, [b'{"id": 3}'], 1)
    await letters(cluster, 1)
    copied = await cluster("dead_letters.replay", **LETTERS, to="repaired")
    assert copied["messages"] == 1
    async with client.reader("orders") as reader:
        message = await anext(aiter(reader))
    async with client.reader("repaired") as reader:
        copy = await anext(aiter(reader))
    assert copy.attributes == {**own, "x-replayed-from": "/default/orders-dlq-billing@0"}
    assert (copy.key, copy.payload, await copy.value()) == ("k", b'{"id": 3}', {"id": 3})
    assert (copy.schema, copy.publish_time) == (message.schema, message.publish_time)
    assert copy.schema is not None
    again = await cluster("dead_letters.replay", **LETTERS)
    assert (again["messages"], again["not_there"]) == (1, {})


async def test_replay_of_a_topic_keeps_what_its_producers_named_like_a_dead_letter(
    cluster: Administered, client: Client
) -> None:
    async with client.producer("orders") as producer:
        await producer.send(b"1", attributes={"x-original-topic": "mine", "x-failure-reason": "mine"})
    await cluster("topics.replay", topic="orders", **{"from": "earliest"}, to="again")
    async with client.reader("again") as reader:
        copy = await anext(aiter(reader))
    assert copy.attributes["x-original-topic"] == copy.attributes["x-failure-reason"] == "mine"


async def test_a_plan_stands_for_its_letters_whatever_fails_meanwhile(
    cluster: Administered, client: Client
) -> None:
    await publish(client, 4)
    await work(client, [b"1"], 4)
    await letters(cluster, 1)
    plan = await cluster("dead_letters.replay", **LETTERS, plan_only=True)
    await publish(client, 4)
    await work(client, [b"2"], 4)
    await letters(cluster, 2)
    done = await cluster("dead_letters.replay", **LETTERS, plan_token=plan["plan_token"])
    assert done["messages"] == 1
    assert [each["state"] for each in await letters(cluster, 2)] == ["replayed", "waiting"]
    stale = await cluster("dead_letters.replay", **LETTERS, offsets="1", plan_only=True)
    by = (await cluster("dead_letters.replay", **LETTERS, offsets="1", by="bob"))["call_id"]
    refused = await cluster.refused(
        "dead_letters.replay", **LETTERS, offsets="1", plan_token=stale["plan_token"]
    )
    assert refused.code in ("PLAN_STALE", "CONFLICT")
    assert by in json.dumps(refused.details)


async def test_what_one_call_does_not_reach_is_told(
    cluster: Administered, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(client, 6)
    await work(client, [b"%d" % n for n in range(6)], 6)
    await letters(cluster, 6)
    monkeypatch.setattr(dead_letters, "MAX_REPLAYED", 4)
    plan = await cluster("dead_letters.replay", **LETTERS, plan_only=True)
    (said,) = [each["after"] for each in plan["diff"]]
    assert (said["messages"], said["left"]) == (4, 2)
    monkeypatch.setattr(dead_letters, "MAX_LOOKED_AT", 3)
    assert (await cluster("dead_letters.list", **LETTERS))["left"] == 3
    some = await cluster("dead_letters.replay", **LETTERS, offsets="0-1")
    assert (some["messages"], some["left"]) == (2, 3)
    beyond = await cluster("dead_letters.replay", **LETTERS, offsets="5")
    assert (beyond["messages"], beyond["left"]) == (1, 0)


def test_a_record_of_replays_keeps_within_its_bound_and_loses_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An undo splits ranges: the longer record was refused after the messages had been withdrawn."""
    notes = [{"call_id": f"c{n}", "ranges": [[2 * at, 2 * at + 1] for at in range(1000)]} for n in range(50)]
    record = encoded_replays(notes)
    assert len(record) <= MAX_RECORD_BYTES + 100
    kept = json.loads(record)["replays"]
    assert 0 < len(kept) < 50
    assert kept == notes[-len(kept) :]


async def test_a_note_of_a_concurrent_replay_stays(
    cluster: Administered, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(client, 4)
    await work(client, [b"1", b"3"], 4)
    await letters(cluster, 2)
    port = cluster.broker.port
    write = type(port).write_state
    note = {
        "call_id": "other",
        "at_ms": 1,
        "principal": "bob",
        "topic": "/default/x",
        "topic_id": 1,
        "ranges": [[7, 8]],
    }
    written: list[str] = []

    async def after_another(self: Any, changes: Any, *, expected: Any = None) -> int:
        (key, *_) = changes
        if key.startswith(dead_letters.PREFIX):
            written.append(key)
            if len(written) % 2:  # first another call writes, then this one, which then tries again
                found = await port.read_state(key)
                others = [] if found is None else json.loads(found.value)["replays"]
                called = {**note, "call_id": f"other{len(written)}"}
                await write(self, {key: encoded_replays([*others, called])})
        return await write(self, changes, expected=expected)

    monkeypatch.setattr(type(port), "write_state", after_another)
    done = await cluster("dead_letters.replay", **LETTERS)
    assert len(written) == 2
    await cluster("changes.undo", call_id=done["call_id"])
    assert len(written) == 4
    found = await port.read_state(written[0])
    assert found is not None
    assert [each["call_id"] for each in json.loads(found.value)["replays"]] == ["other1", "other3"]
    assert [each["state"] for each in await letters(cluster, 2)] == ["waiting"] * 2
