"""Read a range of a topic to its end, for the broker's own purposes: journal and cold tier alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from pydanube_broker.give_way import GiveWay
from pydanube_broker.journal import CachedBatch
from pydanube_broker.topics.topic import Topic

__all__ = ["batches_between"]

READ_BYTES: Final = 1 << 20


async def batches_between(
    topic: Topic, start: int, end: int, give_way: GiveWay
) -> AsyncIterator[CachedBatch]:
    """Committed batches with messages in `[start, end)`, ascending; the first and the last may reach beyond it.

    Raises:
        What a consumer would get: CorruptObject, ObjectMissing, StoreUnavailable, CorruptJournal.
    """
    at = max(start, topic.start_offset)
    while at < end:
        if topic.closed is not None:
            raise topic.closed
        found: Sequence[CachedBatch] | None = topic.read(at, end, READ_BYTES)
        if found is None:
            found = await _filled(topic, at, end, give_way)
            if not found:
                continue
        if not found:
            return
        for batch in found:
            if batch.end > at:
                yield batch
                at = batch.end
        await asyncio.sleep(0)


async def _filled(topic: Topic, start: int, end: int, give_way: GiveWay) -> Sequence[CachedBatch]:
    """What the disk or the cold tier gives; nothing: read again."""
    read: asyncio.Future[Sequence[CachedBatch]] = asyncio.get_running_loop().create_future()

    def done(result: Any) -> None:
        if read.done():
            return
        if isinstance(result, BaseException):
            read.set_exception(result)
        else:
            read.set_result(result)

    topic.fill(start, end, READ_BYTES, give_way, done)
    return await read
