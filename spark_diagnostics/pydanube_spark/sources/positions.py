"""From positions to what is read: offsets, or append times, which go by the broker's clock."""

from __future__ import annotations

import time

from pydanube_core.positions import Position, PositionKind

from pydanube_spark.sources.cluster import Located
from pydanube_spark.sources.extent import Extent, within
from pydanube_spark.sources.options import TopicOptions
from pydanube_spark.sources.reading import Times


def between(options: TopicOptions, located: Located) -> tuple[list[Extent], Times]:
    """What lies from `start` to `end`: the extents, and the times that rows must have."""
    now_ms = time.time_ns() // 1_000_000
    start = Position.parse(options.start, now_ms=now_ms, field="start")
    end = None if options.end is None else Position.parse(options.end, now_ms=now_ms, field="end")
    extents = []
    for each in located.extents:
        low = _offset(start, each)
        high = None if end is None else _offset(end, each)
        extents.append(within(each, each.start if low is None else low, each.end if high is None else high))
    return extents, Times(
        start_ms=start.value if start.kind is PositionKind.TIME else None,
        end_ms=end.value if end is not None and end.kind is PositionKind.TIME else None,
    )


def _offset(position: Position, extent: Extent) -> int | None:
    match position.kind:
        case PositionKind.EARLIEST:
            return extent.start
        case PositionKind.LATEST:
            return extent.end
        case PositionKind.OFFSET:
            return position.value
        case PositionKind.TIME:
            return None


def first_offsets(options: TopicOptions, located: Located) -> dict[str, int]:
    """Where a stream begins in each concrete topic."""
    now_ms = time.time_ns() // 1_000_000
    start = Position.parse(options.start, now_ms=now_ms, field="start")
    found = {}
    for each in located.extents:
        offset = _offset(start, each)
        if offset is None:
            offset = _offset_at_time(options, located, each, start)
        found[each.topic] = max(each.start, min(offset, each.end))
    return found


def _offset_at_time(options: TopicOptions, located: Located, extent: Extent, position: Position) -> int:
    """The first message at or after a time; the end where there is none yet."""
    if located.live:
        from pydanube.sync import connect

        with (
            connect(options.broker_url) as client,
            client.reader(extent.topic, start=str(position), stop=f"offset:{extent.end}") as reader,
        ):
            for message in reader:
                return message.offset
        return extent.end
    from pydanube_storage.parquet.read import ObjectReader

    from pydanube_spark.sources.cluster import open_for_reading

    assert located.store is not None
    store = open_for_reading(located.store)
    for each in extent.objects:
        found = ObjectReader(store, each.key).offset_at_time(position.value)
        if found is not None:
            return found
    return extent.end
