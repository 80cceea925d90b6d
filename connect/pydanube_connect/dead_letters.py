"""Publish dead letters of connectors in the format of the broker.

The runner publishes them itself and waits for the receipt. Only then may the position of an exactly-once sink pass the
refused record. `danube dead-letters list TOPIC connect-NAME` shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from pydanube import Client, Producer
from pydanube_core.batch import timing
from pydanube_core.errors import PayloadInvalid

from pydanube_connect.file import Declared
from pydanube_connect.records import Record

_REASON_BYTES: Final = 1_000


def letters_of(
    declared: Declared, refused: Sequence[tuple[Record, str]], failed: str, correct: str, **details: Any
) -> list[tuple[Record, str]]:
    """Return refused records for the dead letters, with reasons that show no secret.

    Args:
        failed: the predicate of the error, of which the connector's name is the subject.
        correct: the things to correct.
        details: of the error.

    Raises:
        PayloadInvalid: `on_error` is `stop`.
    """
    letters = [(record, declared.references.clean(reason)) for record, reason in refused]
    if declared.delivery.on_error == "stop":
        raise PayloadInvalid(
            f"{declared.name} {failed}: {letters[0][1].rstrip('.')}. Correct {correct}, or set "
            'on_error = "dead_letter" in [delivery].',
            field="payload",
            value=None,
            **details,
        )
    return letters


class DeadLetters:
    """Async context manager with the producers of one connector's dead-letter topics."""

    def __init__(self, client: Client, subscription: str) -> None:
        self._client = client
        self._subscription = subscription
        self._producers: dict[str, Producer] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> DeadLetters:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def publish(self, topic: str, records: Iterable[tuple[Record, str]]) -> None:
        """Publish refused records of a topic, each with its reason. They are durable when this returns.

        Raises:
            ClusterError: at least one record was not stored.
        """
        name = f"{topic}-dlq-{self._subscription}"
        if name not in self._producers:
            self._producers[name] = await self._stack.enter_async_context(self._client.producer(name))
        waiting = [
            self._producers[name].send_nowait(
                record.payload,
                key=record.key,
                attributes=self._attributes(topic, record, reason),
            )
            for record, reason in records
        ]
        for handle in waiting:
            await handle

    def _attributes(self, topic: str, record: Record, reason: str) -> dict[str, str]:
        # A dead letter neither waits nor expires
        found = {name: value for name, value in record.attributes.items() if name not in timing.NAMES}
        found |= {
            "x-original-topic": topic,
            "x-original-subscription": self._subscription,
            "x-poison-policy": "dead_letter",
            "x-delivery-attempt": "1",
            "x-failure-reason": reason.encode()[:_REASON_BYTES].decode(errors="ignore"),
        }
        if record.place is not None:
            found["x-original-topic-offset"] = str(record.offset)
            if record.place.partition is not None:
                found["x-original-topic"] = f"{topic}-part-{record.place.partition}"
        return found
