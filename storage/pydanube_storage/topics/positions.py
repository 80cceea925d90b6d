"""Turn positions into offsets, or into append times by the broker's clock."""

from __future__ import annotations

import time

from pydanube_core.errors import InvalidArgument
from pydanube_core.positions import Position, PositionKind

from pydanube_storage.topics.extent import Extent, check_covered, within
from pydanube_storage.topics.located import Located, open_for_reading
from pydanube_storage.topics.query import TopicQuery, offsets_in
from pydanube_storage.topics.reading import Times, open_object


def between(query: TopicQuery, located: Located) -> tuple[list[Extent], Times]:
    """Return the extents between `start` and `end`, and the bounds of the rows' append times.

    Raises:
        InvalidArgument: a position is wrong.
        ObjectMissing: an object of the cold part is missing.
    """
    starts = _Positions(query.start, located, field="start")
    ends = None if query.end is None else _Positions(query.end, located, field="end")
    extents = []
    for each in located.extents:
        low = starts.offset(each)
        high = None if ends is None else ends.offset(each)
        extents.append(within(each, each.start if low is None else low, each.end if high is None else high))
        check_covered(extents[-1], live=located.live)
    return extents, Times(start_ms=starts.time_ms, end_ms=None if ends is None else ends.time_ms)


class _Positions:
    """A parsed `start` or `end`: one position for every partition, or an offset for each named one."""

    def __init__(self, text: str, located: Located, *, field: str) -> None:
        self._offsets = offsets_in(text, field=field)
        self.one = Position(PositionKind.EARLIEST if field == "start" else PositionKind.LATEST)
        if self._offsets is None:
            self.one = Position.parse(text, now_ms=time.time_ns() // 1_000_000, field=field)
            return
        self._several = len({each.shown for each in located.extents}) > 1
        known = {name for each in located.extents for name in self._names(each)}
        for name in self._offsets:
            if name not in known:
                raise InvalidArgument(
                    f"{field}: {located.topic} has no partition {name!r}. It has {', '.join(sorted(known))}",
                    field=field,
                    value=name,
                )

    @property
    def time_ms(self) -> int | None:
        """The time, None if the position is not a time."""
        return self.one.value if self.one.kind is PositionKind.TIME else None

    def offset(self, extent: Extent) -> int | None:
        """Return the offset in a partition, None if that requires a look-up by time."""
        said = (
            next((self._offsets[name] for name in self._names(extent) if name in self._offsets), None)
            if self._offsets
            else None
        )
        if said is None:
            return _offset(self.one, extent)
        return extent.start if said == -2 else extent.end if said == -1 else said

    def _names(self, extent: Extent) -> tuple[str, ...]:
        """Return the accepted names of a partition: with and without namespace, and its number if there is one topic."""
        own = extent.topic, extent.topic.rsplit("/", 1)[-1]
        return own if self._several else (*own, str(extent.partition or 0))


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


def first_offsets(query: TopicQuery, located: Located) -> dict[str, int]:
    """Return the first offset of a stream in each concrete topic."""
    starts = _Positions(query.start, located, field="start")
    found = {}
    for each in located.extents:
        offset = starts.offset(each)
        if offset is None:
            offset = _offset_at_time(query, located, each, starts.one)
        found[each.topic] = max(each.start, min(offset, each.end))
    return found


def _offset_at_time(query: TopicQuery, located: Located, extent: Extent, position: Position) -> int:
    """Return the first offset at or after a time, the end if there is none yet."""
    if query.broker is not None:
        found = query.broker.first_offset(extent.topic, str(position), end=extent.end)
        return extent.end if found is None else found
    assert located.store is not None
    store = open_for_reading(located.store)
    for each in extent.objects:
        found = open_object(store, each).offset_at_time(position.value)
        if found is not None:
            return found
    return extent.end
