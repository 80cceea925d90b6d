"""Write batches with a sink, with positions, refusals and retries. The caller supplies the messages.

A batch passes four states: as it was read → without the records that the target already has → without refused records,
which are dead letters by then → written. A failed attempt leaves the batch in its state. The sink is then closed and
opened again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Any, Final, Protocol

import anyio
from pydanube_core.batch.timing import DELAY_MS
from pydanube_core.errors import ClusterError

from pydanube_connect.connector import Guarantee, Sink
from pydanube_connect.dead_letters import letters_of
from pydanube_connect.file import Declared
from pydanube_connect.records import Batch, Delivered, Place, Record, Refused
from pydanube_connect.retrying import Attempts
from pydanube_connect.statistics import State, Statistics

#: maximum `Overtaken` errors of one batch that are retried without a wait
_MOST_OVERTAKEN: Final = 10


class Overtaken(Exception):
    """The target's positions differ from `batch.starts`, because another process wrote. The batch was not written."""


class RefusedRecords(Protocol):
    """Function that stores refused records durably."""

    def __call__(self, refused: Sequence[tuple[Record, str]], /) -> Awaitable[None]: ...


class Writer:
    """Writes the batches of one sink in sequence."""

    def __init__(
        self,
        declared: Declared,
        sink: Sink[Any],
        statistics: Statistics,
        dead_letters: RefusedRecords,
        stop: anyio.Event,
    ) -> None:
        self._declared = declared
        self._sink = sink
        self._statistics = statistics
        self._dead_letters = dead_letters
        self._exact = sink.guarantee is Guarantee.EXACTLY_ONCE
        self._known: dict[Place, int] = {}  # positions in the target, by place
        self._asked: set[Place] = set()
        self._written: list[Record] = []  # records in the written halves of a batch, in this attempt
        self._attempts = Attempts(declared, statistics, stop)
        self._open = False
        self._turn = anyio.Lock()  # held by the task that uses the sink

    async def open(self) -> None:
        """Open the sink, with retries."""
        while not self._open:
            try:
                with anyio.fail_after(self._declared.delivery.attempt_timeout):
                    await self._reopen()
            except Exception as failure:
                await self.close()
                await self._attempts.again(failure)
        self._statistics.state = State.RUNNING

    async def close(self) -> None:
        """Close the sink. `open` can open it again."""
        self._open = False
        with anyio.CancelScope(shield=True), anyio.move_on_after(10):
            await self._sink.close()

    async def position(self, place: Place) -> int | None:
        """Return the next offset that the target holds for a place, with retries. None if it holds no position."""
        while self._exact:
            async with self._turn:
                try:
                    with anyio.fail_after(self._declared.delivery.attempt_timeout):
                        await self._reopen()
                        return (await self._positions([place])).get(place)
                except Exception as failure:
                    await self._again(failure)
        return None

    async def _positions(self, places: Sequence[Place]) -> dict[Place, int]:
        """Return the target's positions by place. Look up each place once, and again after a failure."""
        if self._exact and (new := [place for place in places if place not in self._asked]):
            await self._look_up(new)
        return {place: self._known[place] for place in places if place in self._known}

    async def write(self, batch: Batch) -> None:
        """Write a batch. When this returns, the target or a dead-letter topic holds each record.

        Raises:
            ClusterError: a record was refused and `on_error` is `stop`, or no further retry is possible.
            Stopping: the connector was stopped before the batch was written.
        """
        async with self._turn:
            await self._write_all(batch.records, batch)

    async def _write_all(self, left: Sequence[Record], batch: Batch) -> None:
        if self._exact:
            left = await self._delayed(left)
        overtaken = 0
        while True:
            try:
                with anyio.fail_after(self._declared.delivery.attempt_timeout):
                    await self._reopen()
                    left = self._new(left, await self._positions(list(batch.ends)))
                    await self._write(left, batch)
            except Refused as refused:
                self._count(refused.written)
                left = await self._refuse(self._unwritten(left), refused)
            except Overtaken as error:
                overtaken += 1
                self._asked.difference_update(batch.ends)
                if overtaken > _MOST_OVERTAKEN:
                    await self._again(error)
            except Exception as failure:
                written = getattr(failure, "written", ())
                self._count(written)
                left = _without(self._unwritten(left), written)
                self._asked.clear()  # the attempt may have succeeded although its answer was lost
                await self._again(failure)
            else:
                self._attempts.succeeded()
                self._known.update(batch.ends)
                self._statistics.wrote(len(self._unwritten(left)))
                return

    def _count(self, written: Sequence[Record]) -> None:
        """Count the records that an attempt wrote before it failed. The next attempt omits them."""
        if written:
            self._statistics.wrote_some(len(written))

    async def _again(self, failure: Exception) -> None:
        await self.close()
        await self._attempts.again(failure)

    async def _reopen(self) -> None:
        if not self._open:
            await self._sink.open()
            self._open = True

    async def _look_up(self, places: Sequence[Place]) -> None:
        found = await self._sink.positions(places)
        for place in places:
            self._known.pop(place, None)
            if place in found:
                self._known[place] = found[place]
        self._asked.update(places)

    def _new(self, records: Sequence[Record], known: dict[Place, int]) -> Sequence[Record]:
        """Return the records that the target does not have yet."""
        if isinstance(records, Delivered) and all(
            known.get(place, 0) <= first for place, first in records.firsts.items()
        ):
            return records
        left = [
            record
            for record in records
            if record.place is None or record.offset >= known.get(record.place, 0)
        ]
        self._statistics.repeated += len(records) - len(left)
        return left

    async def _write(self, records: Sequence[Record], batch: Batch) -> None:
        starts = {place: self._known[place] for place in batch.ends if place in self._known}
        ends = {place: end for place, end in batch.ends.items() if end > starts.get(place, -1)}
        if not records and not (self._exact and ends):
            return
        begun = time.monotonic()
        try:
            try:
                await self._sink.write(Batch(records, starts=starts, ends=ends))
            finally:
                self._statistics.waited(time.monotonic() - begun)
        except Refused as refused:
            if refused.records is not None or len(records) == 1:
                raise Refused(
                    refused.records or records, refused.reason, written=refused.written
                ) from refused
            await self._halve(records, batch)

    async def _halve(self, records: Sequence[Record], batch: Batch) -> None:
        """Write a batch in two halves to find the refused record."""
        middle = len(records) // 2
        first = records[:middle]
        ends = {record.place: record.offset + 1 for record in first if record.place is not None}
        await self._write(first, Batch(first, ends=ends))
        self._known.update(ends)
        self._statistics.wrote(len(first))
        self._written += first
        await self._write(records[middle:], batch)

    def _unwritten(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records that no half of the last attempt has written."""
        written, self._written = self._written, []
        return _without(records, written)

    async def _delayed(self, records: Sequence[Record]) -> Sequence[Record]:
        """Refuse delayed messages.

        They arrive out of the order of offsets, so a position does not show whether the target has them.
        """
        if isinstance(records, Delivered) and not records.delayed:
            return records
        delayed = [record for record in records if DELAY_MS in record.attributes]
        if not delayed:
            return records
        return await self._refuse(
            records,
            Refused(
                delayed,
                "an exactly-once sink needs the order of offsets, which a message with delay_ms does not have",
            ),
        )

    async def refuse(self, records: Sequence[tuple[Record, str]]) -> None:
        """Publish refused records as dead letters.

        Raises:
            PayloadInvalid: `on_error` is `stop`.
        """
        first, _ = records[0]
        where = (
            f"{first.place} offset {first.offset}" if first.place is not None else first.topic or "a record"
        )
        letters = letters_of(
            self._declared, records, f"refused {where}", "the producer or the target", offset=first.offset
        )
        await self._dead_letters(letters)
        self._statistics.letters(len(letters), letters[0][1])

    async def _refuse(self, records: Sequence[Record], refused: Refused) -> Sequence[Record]:
        assert refused.records is not None
        while True:
            try:
                await self.refuse([(record, refused.reason) for record in refused.records])
                return _without(records, [*refused.records, *refused.written])
            except ClusterError as failure:
                await self._attempts.again(failure)


def _without(records: Sequence[Record], gone: Sequence[Record]) -> Sequence[Record]:
    if not gone:
        return records
    ids = set(map(id, gone))
    return [record for record in records if id(record) not in ids]
