"""`send_many` with keys, attributes and a partition beside the payloads."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydanube import InvalidArgument, Message, MessageTooLarge
from pydanube.testing import InMemoryCluster

pytestmark = pytest.mark.anyio
COUNT = 3_000
ATTRIBUTES: list[Mapping[str, str] | None] = [
    {"n": str(n), "name": "é" * (n % 9)} if n % 3 else None for n in range(COUNT)
]


@pytest.mark.parametrize("partitions", [None, 3])
async def test_keys_and_attributes_stay_with_their_payloads(
    memory: InMemoryCluster, partitions: int | None
) -> None:
    async with memory.connect() as client:
        async with client.producer("t", partitions=partitions, batch_bytes=20_000) as producer:
            summary = await producer.send_many(
                (b"%d" % n for n in range(COUNT)),
                keys=(f"k{n}" if n % 2 else None for n in range(COUNT)),
                attributes=ATTRIBUTES,
            )
            await producer.send(b"last", attributes={"n": "last"})
        assert summary.count == COUNT
        found = {}
        async with client.reader("t", stop="head") as reader:
            async for message in reader:
                found[message.payload] = (message.key, dict(message.attributes))
        assert found.pop(b"last") == (None, {"n": "last"})
        assert found == {
            b"%d" % n: (f"k{n}" if n % 2 else None, dict(ATTRIBUTES[n] or {})) for n in range(COUNT)
        }


async def test_a_partition_may_be_chosen_for_all(memory: InMemoryCluster) -> None:
    async with (
        memory.connect() as client,
        client.producer("t", partitions=3, routing="explicit") as producer,
    ):
        summary = await producer.send_many(
            [b"%d" % n for n in range(COUNT)], attributes=ATTRIBUTES, partition=2
        )
        assert [each.partition for each in summary.ranges] == [2]
        assert producer.max_message_bytes > 0
        with pytest.raises(InvalidArgument, match="partition 3"):
            await producer.send_many([b"x"], partition=3)
        with pytest.raises(InvalidArgument, match="routing is explicit"):
            await producer.send_many([b"x"])


async def test_bad_columns_are_refused(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, client.producer("t") as producer:
        with pytest.raises(InvalidArgument, match="fewer attributes than messages"):
            await producer.send_many([b"a", b"b"], attributes=[{}])
        with pytest.raises(InvalidArgument, match="attributes are text by text"):
            await producer.send_many([b"a"], attributes=[{"a": 1}])  # type: ignore[dict-item]
        with pytest.raises(InvalidArgument, match="brings its key and attributes"):
            await producer.send_many([Message.new(b"a")], attributes=[{"a": "b"}])
        with pytest.raises(MessageTooLarge):
            await producer.send_many([b"a"], attributes=[{"a": "x" * 5_000_000}])
