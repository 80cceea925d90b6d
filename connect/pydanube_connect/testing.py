"""Test a connector without a broker.

    async def test_my_target_gets_the_rows() -> None:
        outcome = await deliver("my.toml", [{"id": 1}, {"id": "no number"}])
        assert [record.value for record in outcome.written] == [{"id": 1}]
        assert outcome.refused[0].reason == "id is no number"

`deliver` writes records with the sink of a connector's file. Settings, references, shaping, retries and refusals work
as in production. `collect` reads from a source the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
from pydanube_core.errors import InvalidArgument

from pydanube_connect.connector import Sink, Source
from pydanube_connect.file import Declared, declared, read_file
from pydanube_connect.records import Batch, Place, Record
from pydanube_connect.shaping import shaper
from pydanube_connect.statistics import Statistics
from pydanube_connect.values import json_payload
from pydanube_connect.writing import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRecord:
    """A record that became a dead letter, and the reason."""

    record: Record
    reason: str


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The written and the refused records of `deliver`."""

    written: list[Record] = field(default_factory=list)
    refused: list[RefusedRecord] = field(default_factory=list)
    statistics: Statistics


async def deliver(
    file: str | Path | Mapping[str, Any],
    values: Iterable[Any],
    *,
    keys: Iterable[str | None] | None = None,
    first: int = 0,
) -> Outcome:
    """Write values, or whole records, with a sink.

    Args:
        file: the connector's file, or its content as a dict.
        values: values or records. A record without a place gets one.
        keys: the keys of the values, in the same order.
        first: the offset of the first value.

    Raises:
        ClusterError: the error that would stop the connector.
    """
    made = _declared(file)
    sink = made.make()
    if not isinstance(sink, Sink):
        raise InvalidArgument(
            f"{made.connector} is no sink: use collect()", field="connector", value=made.connector
        )
    statistics = Statistics(
        connector=made.name, kind="sink", type=made.connector, guarantee=str(sink.guarantee)
    )
    outcome = Outcome(statistics=statistics)

    async def dead(refused: Sequence[tuple[Record, str]]) -> None:
        outcome.refused += [RefusedRecord(record=record, reason=reason) for record, reason in refused]

    writer = Writer(made, sink, statistics, dead, anyio.Event())
    records = _records(values, keys, made.topics[0], first)
    end = {Place(made.topics[0], None): first + len(records)}
    shape = shaper(made.shape, path=made.path)
    if shape is not None:
        records, refusals = shape(records)
        for refusal in refusals:
            await writer.refuse([(record, refusal.reason) for record in refusal.records or ()])
    try:
        await writer.write(Batch(records, ends=end))
    finally:
        await writer.close()
    gone = {id(each.record) for each in outcome.refused}
    outcome.written = [record for record in records if id(record) not in gone]
    return outcome


async def collect(
    file: str | Path | Mapping[str, Any], count: int, *, positions: Mapping[str, str] | None = None
) -> list[Record]:
    """Read `count` records with a source, or fewer if it has no more. Acknowledge each batch."""
    made = _declared(file)
    source = made.make()
    if not isinstance(source, Source):
        raise InvalidArgument(
            f"{made.connector} is no source: use deliver()", field="connector", value=made.connector
        )
    shape = shaper(made.shape, path=made.path)
    found: list[Record] = []
    try:
        await source.open()
        await source.start(positions or {})
        while len(found) < count and (batch := await source.read()) is not None:
            found += batch.records if shape is None else shape(batch.records)[0]
            await source.stored(batch)
    finally:
        await source.close()
    return found[:count]


def _declared(file: str | Path | Mapping[str, Any]) -> Declared:
    return declared(dict(file), path="<test>") if isinstance(file, Mapping) else read_file(file)


def _records(
    values: Iterable[Any], keys: Iterable[str | None] | None, topic: str, first: int
) -> list[Record]:
    place, now = Place(topic, None), datetime.now(UTC)
    each_key = iter(keys) if keys is not None else None
    records: list[Record] = []
    for offset, value in enumerate(values, start=first):
        key = next(each_key) if each_key is not None else None
        record = value if isinstance(value, Record) else Record(value, key)
        if record.place is None:
            record.place, record.offset, record.time = place, offset, now
        if not record.payload and record.value is not None:
            record.payload = record.value if isinstance(record.value, bytes) else json_payload(record.value)
        records.append(record)
    return records
