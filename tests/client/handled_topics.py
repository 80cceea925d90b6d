"""Topics of a handler under test: publishing to them, and reading their dead letters."""

from __future__ import annotations

from typing import Any, Final

from pydanube import Client, Message

#: a handler's message comes again at once
SOON: Final[dict[str, Any]] = {"backoff_s": (0.001, 0.002)}


async def publish(client: Client, topic: str, *payloads: bytes, key: str | None = None) -> None:
    """Publish one message after another."""
    async with client.producer(topic) as producer:
        for payload in payloads:
            await producer.send(payload, key=key)


async def first_of(client: Client, topic: str) -> Message:
    """Return the first message of a topic."""
    async with client.consumer(topic, "look", create=True) as consumer:
        return await anext(consumer)
