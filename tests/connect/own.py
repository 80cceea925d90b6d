"""Connectors of these tests: a sink that keeps positions as an exactly-once target does, and a source of numbered lines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import anyio
from pydanube_connect import (
    Batch,
    Guarantee,
    Overtaken,
    Place,
    Record,
    Refused,
    Settings,
    Sink,
    Source,
)


class Table:
    """A target with transactions: rows and positions change together or not at all."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.positions: dict[Place, int] = {}
        self.failures: list[Exception] = []  # raised by the next writes, before they change anything
        self.lost_answers: list[Exception] = []  # raised after the change
        self.opened = self.writes = 0


class NoSettings(Settings):
    pass


class TableSink(Sink[NoSettings]):
    table: ClassVar[Table]

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    async def open(self) -> None:
        self.table.opened += 1

    async def positions(self, places: Collection[Place]) -> Mapping[Place, int]:
        return {place: self.table.positions[place] for place in places if place in self.table.positions}

    async def write(self, batch: Batch) -> None:
        table = self.table
        table.writes += 1
        if table.failures:
            raise table.failures.pop(0)
        if any(table.positions.get(place) != batch.starts.get(place) for place in batch.ends):
            raise Overtaken
        bad = [record for record in batch if record.value == "bad"]
        if bad:
            raise Refused(bad, "it is bad")
        if any(record.value == "unknown" for record in batch):
            raise Refused(None, "one of them")
        table.rows += [record.value for record in batch]
        table.positions.update(batch.ends)
        if table.lost_answers:
            raise table.lost_answers.pop(0)


class LinesSource(Source[NoSettings]):
    """Numbers as lines, in batches of ten; `crash_at` raises once before a batch is read."""

    deterministic = True
    count: ClassVar[int] = 100
    keyed: ClassVar[bool] = True
    shard: ClassVar[str] = ""
    stored_up_to: ClassVar[list[str]] = []
    begun_at: ClassVar[list[int]] = []

    async def start(self, positions: Mapping[str, str]) -> None:
        self.next = int(positions.get(self.shard, "0"))
        self.begun_at.append(self.next)

    async def read(self) -> Batch | None:
        if self.next >= self.count:
            return None
        end = min(self.next + 10, self.count)
        records = [Record(b"%d" % n, f"k{n % 7}" if self.keyed else None) for n in range(self.next, end)]
        self.next = end
        return Batch(records, position=str(end), shard=self.shard)

    async def stored(self, batch: Batch) -> None:
        self.stored_up_to.append(batch.position or "")


class SlowLines(LinesSource):
    """The same, for a worker: it waits where it has no lines."""

    async def read(self) -> Batch | None:
        if (batch := await super().read()) is None:
            await anyio.sleep(0.05)
        return batch
