"""Read a range of a topic for the broker's own purposes: from memory, journal and cold tier alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from pydanube_broker.journal import CachedBatch
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads

READ_BYTES: Final = 1 << 20


async def batches_between(
    topic: Topic, start: int, end: int, worker_threads: WorkerThreads
) -> AsyncIterator[CachedBatch]:
    """Yield committed batches with messages in `[start, end)`, ascending. The first and the last may exceed it.

    Raises:
        As for a consumer: CorruptObject, ObjectMissing, StoreUnavailable, CorruptJournal.
    """
    at = max(start, topic.start_offset)
    while at < end:
        if topic.closed is not None:
            raise topic.closed
        found = await read_once(topic, at, end, READ_BYTES, worker_threads)
        if found is None:
            continue
        if not found:
            return
        for batch in found:
            if batch.end > at:
                yield batch
                at = batch.end
        await asyncio.sleep(0)


async def read_once(
    topic: Topic, start: int, end: int, max_bytes: int, worker_threads: WorkerThreads
) -> Sequence[CachedBatch] | None:
    """Return committed batches from `start` on, about `max_bytes` of them. Empty: there are none below `end`.

    Returns:
        None if the topic has changed since: call again.

    Raises:
        As `batches_between`.
    """
    found = topic.read(start, end, max_bytes)
    if found is not None:
        return found
    filled: asyncio.Future[Sequence[CachedBatch]] = asyncio.get_running_loop().create_future()

    def done(result: Sequence[CachedBatch] | BaseException) -> None:
        if filled.done():
            return
        if isinstance(result, BaseException):
            filled.set_exception(result)
        else:
            filled.set_result(result)

    topic.fill(start, end, max_bytes, worker_threads, done)
    return await filled or None
