"""Messages in and out of a topic, for tests of something else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydanube import Message


def numbers(count: int) -> list[bytes]:
    """Return payloads that say their place."""
    return [b"%d" % i for i in range(count)]


async def fill(client: Any, topic: str, payloads: Iterable[bytes], **options: Any) -> None:
    """Publish by a producer of its own, over partitions message by message; `options` are the producer's."""
    options = {"routing": "round-robin"} | options
    async with client.producer(topic, **options) as producer:
        await producer.send_many(payloads)


async def take(consumer: Any, count: int) -> list[Message]:
    """Receive that many messages without acknowledging them."""
    found: list[Message] = []
    while len(found) < count:
        found += await consumer.receive(max_messages=count - len(found), max_wait_s=60)
    return found
