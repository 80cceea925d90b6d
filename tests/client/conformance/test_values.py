"""Values in and out by a schema, over every transport: a dict, a dataclass, a model, a generated class."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from pydantic import BaseModel
from pydanube import (
    InvalidArgument,
    Message,
    PayloadInvalid,
    SchemaMismatch,
    SchemaNotFound,
    TopicNotFound,
)

pytestmark = pytest.mark.anyio

JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string"},
        "items": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    },
    "required": ["id"],
    "additionalProperties": False,
}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {
            "name": "to",
            "type": ["null", {"type": "record", "name": "Place", "fields": [{"name": "zip", "type": "int"}]}],
            "default": None,
        },
        {
            "name": "at",
            "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
            "default": None,
        },
    ],
}
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


@dataclass
class Item:
    n: int


@dataclass
class Order:
    id: int
    at: datetime = NOON
    items: list[Item] = field(default_factory=list)


@dataclass
class Place:
    zip: int


@dataclass
class Sent:
    id: int
    tags: list[str]
    to: Place | None = None
    at: datetime | None = None


class Model(BaseModel):
    id: int
    items: list[dict[str, int]] = []


async def values(client: Any, topic: str, *into: Any) -> list[Any]:
    async with client.reader(topic, stop="head") as reader:
        messages = [message async for message in reader]
    return [await message.value(kind) for message, kind in zip(messages, into, strict=True)]


async def test_json_takes_and_gives_dicts_dataclasses_and_models(cluster: Any) -> None:
    topic = cluster.topic()
    subject = topic.rpartition("/")[2]
    async with cluster.connect() as client:
        made = await client.schemas.register(subject, "json_schema", json.dumps(JSON))
        async with client.producer(topic, schema=subject) as producer:
            order = Order(1, items=[Item(2), Item(3)])
            await producer.send(order, key="k")
            await producer.send_nowait({"id": 2})
            await producer.send_many([Model(id=3), Message.new({"id": 4}, key="k"), b'{"id":5}'])
            await producer.send({"id": 6}, timeout_s=60)
        got = await values(client, topic, Order, None, Model, None, dict, None)
        assert got == [order, {"id": 2}, Model(id=3), {"id": 4}, {"id": 5}, {"id": 6}]
        async with client.reader(topic, stop="head") as reader:
            async for message in reader:
                assert message.schema == made.ref
                if message.offset == 0:
                    assert json.loads(message.payload)["at"] == "2026-11-22T12:00:00Z"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"id": "one"}, "/id"),
        ({}, "/"),
        ({"id": 1, "items": [{"n": 1}, {"n": "x"}]}, "/items/1/n"),
        ({"id": 1, "typo": 2}, "/"),
        (Order(1, items=[Item("x")]), "/items/0/n"),  # type: ignore[arg-type]
        ([1], "/"),
        ("text", "/"),
        ({"id": float("nan")}, "/"),
        ({"id": object()}, "/"),
    ],
)
async def test_what_does_not_fit_a_json_schema_is_refused_before_it_is_sent(
    memory: Any, value: Any, path: str
) -> None:
    async with memory.connect() as client:
        schema = await client.schemas.register("orders", "json_schema", json.dumps(JSON))
        async with client.producer("orders", schema=schema) as producer:
            for send in (producer.send, producer.send_nowait):
                with pytest.raises(PayloadInvalid) as refused:
                    await send(value)
                assert refused.value.details["path"] == path
                assert refused.value.details["subject"] == "orders"
            with pytest.raises(PayloadInvalid) as refused:
                await producer.send_many([{"id": 1}, {"id": 2}, value])
            assert refused.value.details["acknowledged"] == 2
        assert memory.payloads("orders") == [b'{"id":1}', b'{"id":2}']


async def test_avro_takes_and_gives_dicts_and_dataclasses(cluster: Any) -> None:
    topic = cluster.topic()
    subject = topic.rpartition("/")[2]
    async with cluster.connect() as client:
        await client.schemas.register(subject, "avro", json.dumps(AVRO))
        async with client.producer(topic, schema=(subject, 1)) as producer:
            sent = Sent(1, ["a"], Place(8000), NOON)
            await producer.send(sent)
            await producer.send({"id": 2})
        assert await values(client, topic, Sent, None) == [
            sent,
            {"id": 2, "tags": [], "to": None, "at": None},
        ]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"id": "x"}, "/id"),
        ({"id": 1.5}, "/id"),
        ({"id": 2**70}, "/id"),
        ({"tags": []}, "/id"),
        ({"id": 1, "tags": ["a", 3]}, "/tags/1"),
        ({"id": 1, "to": {"zip": "x"}}, "/to/zip"),
        ({"id": 1, "to": 7}, "/to"),
        ({"id": 1, "typo": 2}, "/typo"),
        ({"id": 1, "to": {"zip": 1, "typo": 2}}, "/to/typo"),
        (Sent(1, [b"x"]), "/tags/0"),  # type: ignore[list-item]
        ([], "/"),
    ],
)
async def test_what_does_not_fit_avro_is_refused(memory: Any, value: Any, path: str) -> None:
    async with memory.connect() as client:
        await client.schemas.register("orders", "avro", json.dumps(AVRO))
        async with client.producer("orders", schema="orders") as producer:
            with pytest.raises(PayloadInvalid) as refused:
                await producer.send(value)
            assert refused.value.details["path"] == path, refused.value.message
        assert memory.payloads("orders") == []


async def test_deep_data_of_a_recursive_schema_are_refused_and_the_process_lives(memory: Any) -> None:
    listed = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    deep: dict[str, Any] = {"next": None}
    for _ in range(100_000):
        deep = {"next": deep}
    async with memory.connect() as client:
        await client.schemas.register("lists", "avro", json.dumps(listed))
        async with client.producer("lists", schema="lists") as producer:
            with pytest.raises(PayloadInvalid, match="deep"):
                await producer.send(deep)
            await producer.send({"next": {"next": None}})
        await client.schemas.register("trees", "json_schema", "{}")
        async with client.producer("trees", schema="trees") as producer:
            with pytest.raises(PayloadInvalid, match="deep"):
                await producer.send(deep)


async def test_protobuf_takes_and_gives_messages_of_the_class(cluster: Any) -> None:
    topic = cluster.topic()
    subject = topic.rpartition("/")[2]
    async with cluster.connect() as client:
        text = 'syntax = "proto3";\nmessage  StringValue { string value = 1; }'
        await client.schemas.register(subject, "protobuf", text)
        async with client.producer(topic, schema=subject) as producer:
            await producer.send(StringValue(value="x"))
            with pytest.raises(PayloadInvalid, match="no message Int64Value"):
                await producer.send(Int64Value(value=1))
            with pytest.raises(InvalidArgument, match="class"):
                await producer.send({"value": "x"})
        assert await values(client, topic, StringValue) == [StringValue(value="x")]


async def test_text_and_bytes(cluster: Any) -> None:
    topic = cluster.topic()
    subject = topic.rpartition("/")[2]
    async with cluster.connect() as client:
        await client.schemas.register(subject, "string", "")
        async with client.producer(topic, schema=subject) as producer:
            await producer.send("Größe")
            for wrong in (5, "\ud800"):
                with pytest.raises(PayloadInvalid):
                    await producer.send(wrong)
        assert await values(client, topic, None) == ["Größe"]
        await client.schemas.register(f"{subject}-n", "number", "")
        async with client.producer(f"{topic}-n", schema=f"{subject}-n") as producer:
            await producer.send(b"12345678")
            with pytest.raises(InvalidArgument, match="give bytes"):
                await producer.send(5)
        async with client.producer(f"{topic}-p") as producer:
            await producer.send(b"x")
            with pytest.raises(InvalidArgument, match="schema="):
                await producer.send({"id": 1})
        assert await values(client, f"{topic}-p", None) == [b"x"]


async def test_each_message_is_read_by_its_own_version(cluster: Any) -> None:
    topic = cluster.topic()
    subject = topic.rpartition("/")[2]
    async with cluster.connect() as client:
        await client.schemas.register(subject, "avro", json.dumps(AVRO))
        async with client.producer(topic, schema=subject) as old:
            wider = {**AVRO, "fields": [*AVRO["fields"], {"name": "n", "type": "int", "default": 0}]}  # type: ignore[misc]
            newer = await client.schemas.register(subject, "avro", json.dumps(wider))
            async with client.producer(topic, schema=newer) as new:
                await old.send({"id": 1})
                await new.send({"id": 2, "n": 3})
                with pytest.raises(PayloadInvalid):
                    await old.send({"id": 1, "n": 3})
        async with client.reader(topic, stop="head") as reader:
            messages = [message async for message in reader]
        assert [message.schema.schema_version for message in messages] == [1, 2]
        assert [(await message.value()).get("n") for message in messages] == [None, 3]
        with pytest.raises(PayloadInvalid) as refused:
            await messages[0].value(Item)
        assert refused.value.details["path"] == "/n"


async def test_a_version_stays_that_of_the_producer_over_a_reconnect(memory: Any) -> None:
    async with memory.connect() as client:
        await client.schemas.register("orders", "avro", json.dumps(AVRO))
        async with client.producer("orders", schema="orders") as producer:
            wider = {**AVRO, "fields": [*AVRO["fields"], {"name": "note", "type": "string", "default": ""}]}
            await client.schemas.register("orders", "avro", json.dumps(wider))
            memory.drop_connections()
            memory.forget_producers()  # a new session, not the old one resumed
            await producer.send({"id": 1})
        (value,) = await values(client, "orders", None)
        assert (value["id"], "note" in value) == (1, False)


async def test_what_the_registry_and_the_topic_refuse(cluster: Any) -> None:
    topic = cluster.topic()
    subject = topic.rpartition("/")[2]
    async with cluster.connect() as client:
        with pytest.raises(SchemaNotFound):
            async with client.producer(topic, schema=subject):
                pass
        with pytest.raises(TopicNotFound):  # and nothing was left behind by the refusal
            async with client.reader(topic, stop="head"):
                pass
        for name in (subject, f"{subject}-2"):
            await client.schemas.register(name, "string", "")
        async with client.producer(topic, schema=subject) as producer:
            await producer.send("x")
        with pytest.raises(SchemaMismatch):
            async with client.producer(topic, schema=f"{subject}-2"):
                pass
        latest = await client.schemas.latest(subject)
        async with client.producer(topic, schema=latest) as producer:
            await producer.send("y")
        assert await client.schemas.get(latest.ref) == latest
