"""A null payload marks its key as deleted. It is not an empty payload, from the producer to the handler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc
import pyarrow as pa
import pytest
from pydanube import Client, InvalidArgument, Message, PayloadInvalid
from pydanube.testing import InMemoryCluster

from tests.broker.official.raw_client import RawClient

pytestmark = pytest.mark.anyio
ORDER = '{"type": "object", "required": ["id"]}'


@dataclass
class Order:
    id: int


async def _received(client: Client, topic: str) -> list[tuple[str | None, bytes, bool]]:
    async with client.reader(topic, stop="head") as reader:
        return sorted([(one.key, one.payload, one.is_null) async for one in reader], key=str)


@pytest.mark.parametrize("partitions", [None, 3])
@pytest.mark.parametrize("tracing", [False, True])
async def test_every_way_to_send_keeps_null_and_empty_apart(
    memory: InMemoryCluster, partitions: int | None, tracing: bool
) -> None:
    async with (
        memory.connect(tracing=tracing) as client,
        client.producer("t", partitions=partitions) as producer,
    ):
        await producer.send(None, key="a")
        await producer.send(b"", key="b")
        await producer.send(None, key="c", attributes={"x": "y"}, timeout_s=20)
        await producer.send_nowait(None, key="d")
        await producer.send_many([None, b"", b"1"], keys=["e", "f", "g"])
        await producer.send_many([Message.new(None, key="h"), Message.new(b"", key="i")])
        await producer.send_many(pa.array([b"2", None, b""]), keys=pa.array(["j", "k", "l"]))
        found = await _received(client, "t")
        assert {key for key, _, null in found if null} == {"a", "c", "d", "e", "h", "k"}
        assert {key: payload for key, payload, null in found if not null} == {
            "b": b"", "f": b"", "g": b"1", "i": b"", "j": b"2", "l": b"",
        }  # fmt: skip
        async with client.reader("t", stop="head") as reader:
            async for batch in reader.batches():
                assert batch.nulls == [message.is_null for message in batch.messages()]
    with memory.connect_sync() as sync, sync.producer("s") as sender:
        sender.send(None, key="a")
        sender.send_many([b"", None], keys=["b", "c"])
        with sync.reader("s", stop="head") as reading:
            assert [(one.key, one.is_null) for one in reading] == [("a", True), ("b", False), ("c", True)]


async def test_a_null_without_a_key_is_refused_and_nothing_is_sent(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, client.producer("t") as producer:
        for call in (
            lambda: producer.send(None),
            lambda: producer.send_many([None]),
            lambda: producer.send_many(pa.array([b"", None])),
        ):
            with pytest.raises(InvalidArgument, match="takes key=") as refused:
                await call()
            assert refused.value.details["field"] == "payload"
        with pytest.raises(InvalidArgument, match="takes key="):
            producer.send_nowait(None)
        with pytest.raises(InvalidArgument, match="takes key="):
            Message.new(None)
        assert memory.payloads("t") == []


@pytest.mark.parametrize("size", [1, 200_000])
async def test_a_null_is_exempt_from_the_schema_and_its_value_is_none(
    memory: InMemoryCluster, size: int
) -> None:
    """Beside a large payload the broker checks off its loop."""
    seen: list[Any] = []
    stop = asyncio.Event()

    async def handler(order: Order | None, message: Message) -> None:
        seen.append((order, message.is_null))
        if len(seen) == 2:
            stop.set()

    async with memory.connect() as client:
        await client.schemas.register("orders", "json_schema", ORDER)
        await client.admin.topics.create("orders")
        await client.admin.topics.configure_schema(
            "orders", schema_subject="orders", validation_policy="enforce", enable_payload_validation=True
        )
        async with client.producer("orders", schema="orders") as producer:
            filler = b'{"id": 1, "x": "' + b"x" * size + b'"}'
            handles = [producer.send_nowait(None, key="k"), producer.send_nowait(filler)]
            await producer.flush()
            for handle in handles:
                await handle
            with pytest.raises(PayloadInvalid):
                await producer.send(b"", key="k")
        async with client.reader("orders", stop="head") as reader:
            values = [await message.value() async for message in reader]
        assert values[0] is None
        assert values[1]["id"] == 1
        await client.run(lambda order, message: handler(order and Order(1), message), "orders", "s",
                         schema=dict, workers=1, stop=stop)  # fmt: skip
    assert seen == [(None, True), (Order(1), False)]


async def test_official_clients_send_and_receive_nulls_by_the_attribute(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, RawClient(memory.url) as official:
        ref = (await client.schemas.register("orders", "json_schema", ORDER)).ref
        await client.admin.topics.create("orders")
        await client.admin.topics.configure_schema(
            "orders", schema_subject="orders", validation_policy="enforce", enable_payload_validation=True
        )
        number = await official.create_producer("/default/orders")
        named: dict[str, Any] = {"schema_id": ref.schema_id, "schema_version": ref.schema_version}
        await official.send("/default/orders", number, b"", attributes={"danube-null": "1"}, **named)
        with pytest.raises(grpc.aio.AioRpcError, match="INVALID"):
            await official.send("/default/orders", number, b"", **named)
        async with client.reader("orders", stop="head") as reader:
            assert [message.is_null async for message in reader] == [True]


async def test_the_annotation_may_have_none_beside_the_class(memory: InMemoryCluster) -> None:
    seen: list[Order | None] = []
    stop = asyncio.Event()

    async def handler(order: Order | None) -> None:
        seen.append(order)
        if len(seen) == 2:
            stop.set()

    async with memory.connect() as client:
        await client.schemas.register("orders", "json_schema", ORDER)
        async with client.producer("orders", schema="orders") as producer:
            await producer.send(Order(7), key="k")
            await producer.send(None, key="k")
        await client.run(handler, "orders", "s", workers=1, stop=stop)
    assert seen == [Order(7), None]


async def test_dead_letters_and_what_an_operator_sees_keep_a_null(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        async with client.producer("t") as producer:
            await producer.send(None, key="k")
            await producer.send(b"", key="k")
        peeked = await client.admin.messages.peek("t")
        assert [item.untrusted["text"] for item in peeked.items] == [None, ""]
        policy: Any = {"max_redelivery_count": 0, "poison_policy": "dead_letter"}
        async with client.consumer("t", "s", failure_policy=policy) as consumer:
            await (await anext(consumer)).terminate("no")
            async with client.consumer("t-dlq-s", "eyes", create=True) as letters:
                assert (await anext(letters)).is_null
