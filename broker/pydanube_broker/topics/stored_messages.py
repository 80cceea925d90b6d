"""Stored messages one by one, for operations and the audit: read a range, and append a few.

Pumps move batches instead. Here a hundred messages are many.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence

from pydanube_core.batch import MAX_COPY_BYTES, encode_batch, read_producer_part
from pydanube_core.facts import MessageFacts

from pydanube_broker.journal import CachedBatch
from pydanube_broker.outcome import outcome_of
from pydanube_broker.subscription.batch_columns import DecodedBatch, view_of
from pydanube_broker.topics.reading import batches_between
from pydanube_broker.topics.topic import Topic, now_ms
from pydanube_broker.worker_threads import WorkerThreads


async def messages_between(
    topic: Topic, *, start: int, end: int, max_messages: int, max_bytes: int, worker_threads: WorkerThreads
) -> list[MessageFacts]:
    """Return committed messages of `[start, end)`, ascending, until a bound is reached, but at least the first."""
    found: list[MessageFacts] = []
    size = 0
    async for batch in _near(topic, start, end, max_messages, worker_threads):
        for message in _messages(topic.name, batch, start, end):
            size += len(message.payload)
            if found and size > max_bytes:
                return found
            found.append(message)
            if len(found) >= max_messages:
                return found
    return found


async def payloads_between(
    topic: Topic, *, start: int, end: int, max_messages: int, max_bytes: int, worker_threads: WorkerThreads
) -> list[tuple[int, bytes]]:
    """As `messages_between`, only (offset, payload): the audit reads thousands."""
    found: list[tuple[int, bytes]] = []
    size = 0
    async for batch in _near(topic, start, end, max_messages, worker_threads):
        view = view_of(batch)
        offsets, payloads = list(view.offsets()), view.payloads()
        for i in range(bisect_left(offsets, start), bisect_left(offsets, end)):
            size += len(payloads[i])
            if found and size > max_bytes:
                return found
            found.append((offsets[i], payloads[i]))
            if len(found) >= max_messages:
                return found
    return found


async def _near(
    topic: Topic, start: int, end: int, max_messages: int, worker_threads: WorkerThreads
) -> AsyncIterator[CachedBatch]:
    """Yield the batches of `[start, end)`, reading `max_messages` offsets at a time.

    A reading up to `end` would read and verify a mebibyte of batches for every few small messages. After a reading
    without messages, the next one reads twice as many offsets.
    """
    fewest = max(1, max_messages)
    start, end, most = max(start, topic.start_offset), min(end, topic.commit), fewest
    while start < end:
        stop, empty = min(end, start + most), True
        async for batch in batches_between(topic, start, stop, worker_threads):
            yield batch
            stop, empty = max(stop, batch.end), False
        start, most = stop, most * 2 if empty else fewest


def _messages(topic: str, batch: CachedBatch, start: int, end: int) -> list[MessageFacts]:
    """The batch's messages of `[start, end)`."""
    columns = DecodedBatch(batch)
    offsets, keys, attributes = list(columns.offsets), columns.keys, columns.attributes
    found = []
    for i in range(bisect_left(offsets, start), bisect_left(offsets, end)):
        number, name = columns.producer(i)
        schema_id, schema_version = columns.schema(i)
        found.append(
            MessageFacts(
                topic=topic,
                offset=offsets[i],
                append_time_ms=batch.append_time_ms,
                publish_time_ms=columns.publish_times_ms[i],
                producer=name or (str(number) if number else ""),
                key=_text(None if keys is None else keys[i]),
                attributes={} if attributes is None else dict(attributes[i]),
                payload=bytes(columns.payloads[i]),
                schema_id=schema_id,
                schema_version=schema_version,
            )
        )
    return found


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "replace")


async def append_durably(
    topic: Topic,
    payloads: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    attributes: Sequence[Mapping[str, str]] | None = None,
    producer: str,
    checked: bool = False,
    system: bool = False,
) -> int:
    """Append messages as one batch. Return the first one's offset once all are on stable storage.

    Args:
        checked: check them against the topic's schema and publish rate, as a producer's.
        system: they are the audit's, see `Topic.append`.
    """
    now = now_ms()
    data = encode_batch(
        payloads,
        publish_times_ms=[now] * len(payloads),
        keys=keys,
        attributes=attributes,
        producers=[(0, producer)],
        max_bytes=MAX_COPY_BYTES,
    )
    part = read_producer_part(data, verify=False)
    if checked and topic.schema is not None and not topic.schema.check_batch(data, part):
        await topic.schema.check_payloads(data, part)
    appended, _ = topic.append(data, part, limited=checked, system=system)
    assert appended.base_offset is not None, "it is no duplicate: it has no producer's id"
    base = appended.base_offset
    await outcome_of(lambda done: topic.when_committed(base + appended.count, done))
    return base
