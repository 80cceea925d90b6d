"""Copy a range of one topic into another: `topics.replay`.

A copy keeps payload, key, attributes, publish time, producer and schema, and names the source message in
`x-replayed-from`:
`/namespace/topic@offset`. If the target has a schema policy, copies are checked like any publish. When interrupted,
appended copies stay: the result, or the error's details, have the offset that was reached, and `from` continues.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import anyio
from pydanube_core.batch import read_producer_part
from pydanube_core.errors import ClusterError, Overloaded
from pydanube_core.names import REPLAYED_FROM, TopicName

from pydanube_broker.journal import CachedBatch
from pydanube_broker.long_work import Work
from pydanube_broker.subscription.batch_columns import view_of
from pydanube_broker.subscription.copies import copied
from pydanube_broker.topics.reading import batches_between
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads

_WAITING: Final = 8  # batches of up to 1 MiB that are appended and not committed yet


@dataclass(slots=True)
class Copied:
    """The number of messages that arrived in one concrete topic."""

    topic: str
    messages: int = 0
    first_offset: int | None = None
    last_offset: int | None = None


def copies_of(
    batch: CachedBatch, start: int, end: int, source: str, without: Collection[str] = ()
) -> list[bytes]:
    """Return producer part and body with copies of the messages in `[start, end)`. Pure.

    Args:
        without: names of attributes that copies do not keep.
    """
    offsets = list(view_of(batch).offsets())
    chosen = [i for i, offset in enumerate(offsets) if start <= offset < end]
    added = {i: {REPLAYED_FROM: f"{source}@{offsets[i]}"} for i in chosen}
    return [data for _, data in copied(batch, chosen, added.__getitem__, without)]


async def append_copies(topic: Topic, data: bytes) -> asyncio.Future[int]:
    """Append one batch of copies here. The future returns the first one's offset once they are committed."""
    part = read_producer_part(data, verify=False)
    guard = topic.schema
    if guard is not None and not guard.check_batch(data, part):
        await guard.check_payloads(data, part)
    while True:
        try:
            appended, _ = topic.append(data, part, limited=False)
            break
        except Overloaded:
            room = asyncio.Event()
            topic.when_room(room.set)
            await room.wait()
    assert appended.base_offset is not None
    base, committed = appended.base_offset, asyncio.get_running_loop().create_future()

    def done(error: ClusterError | None) -> None:
        if committed.done():
            return  # the waiter is gone
        if error is None:
            committed.set_result(base)
        else:
            committed.set_exception(error)

    topic.when_committed(base + appended.count, done)
    return committed


@dataclass(slots=True)
class Replay:
    """One copy under way. Single user: the loop.

    `begin`: appends a batch to the concrete topic of that name on any broker, as `append_copies`.
    `without`: names of attributes that copies do not keep.
    """

    source: Topic
    target: TopicName
    worker_threads: WorkerThreads
    begin: Callable[[TopicName, bytes], Awaitable[asyncio.Future[int]]]
    without: Collection[str] = ()
    copied: Copied = field(init=False)
    # Offset of the source below which everything is committed in the target
    next_offset: int = field(init=False, default=0)
    _waiting: deque[tuple[int, int, asyncio.Future[int]]] = field(init=False, default_factory=deque)

    def __post_init__(self) -> None:
        self.copied = Copied(str(self.target))

    async def run(self, start: int, end: int, work: Work) -> None:
        """Copy `[start, end)`, and return when all of it is committed.

        Raises `ClusterError` from reading or appending. Its `details` get `copied_until`, the offset to continue from.
        """
        self.next_offset = start
        try:
            async for batch in batches_between(self.source, start, end, self.worker_threads):
                with self.worker_threads.pending():
                    copies = await anyio.to_thread.run_sync(
                        copies_of, batch, start, end, self.source.name, self.without
                    )
                for data in copies[:-1]:
                    await self.append(data, max(start, batch.base), work)
                for data in copies[-1:]:
                    await self.append(data, min(batch.end, end), work)
            while self._waiting:
                await self._see_committed(work)
            self.next_offset = end
        except ClusterError as error:
            with contextlib.suppress(ClusterError):  # earlier copies are committed, or will be soon
                while self._waiting:
                    await self._see_committed(work)
            error.details["copied_until"] = self.next_offset
            error.details["copied_messages"] = self.copied.messages
            raise
        finally:
            for _, _, waiting in self._waiting:
                if not waiting.cancel() and not waiting.cancelled():
                    waiting.exception()  # seen: the first of them was raised

    async def append(self, data: bytes, until: int, work: Work) -> None:
        """Append one batch of copies. Once it is committed, the source is copied up to `until`."""
        count = read_producer_part(data, verify=False).count
        self._waiting.append((until, count, await self.begin(self.target, data)))
        while len(self._waiting) >= _WAITING:
            await self._see_committed(work)

    async def _see_committed(self, work: Work) -> None:
        until, count, committed = self._waiting.popleft()
        base = await committed
        if self.copied.first_offset is None:
            self.copied.first_offset = base
        self.copied.last_offset = base + count - 1
        self.copied.messages += count
        self.next_offset = until
        work.done += count
