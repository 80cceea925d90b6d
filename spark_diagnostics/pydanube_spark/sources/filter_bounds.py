"""Bounds of offsets, append times and partitions that contain every row that passes a query's filters.

Spark still evaluates the filters. The bounds only avoid reading objects and row groups without matching rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from pydanube_storage.topics.extent import Extent, within
from pydanube_storage.topics.reading import Times
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_MAX: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBounds:
    """Offsets `[start, end)`, append times `[start_ms, end_ms)`, partitions. None means all."""

    start: int = 0
    end: int = _MAX
    times: Times = field(default_factory=Times)
    partitions: frozenset[int] | None = None

    def of(self, extents: Iterable[Extent]) -> list[Extent]:
        """Return the parts of the extents within the bounds."""
        found = []
        for each in extents:
            if self.partitions is not None and each.partition not in self.partitions:
                continue
            part = within(each, self.start, self.end)
            cold_end = part.cold_end
            kept = tuple(
                one
                for one in part.objects
                if self.times.may_hold(one.min_append_time_ms, one.max_append_time_ms)
            )
            if cold_end >= part.end:
                found.append(replace(part, objects=kept))
            else:  # the tail begins at the end of all objects, not at the end of the kept ones
                found.append(replace(part, end=cold_end, objects=kept))
                found.append(replace(part, start=cold_end, objects=()))
        return found


def wanted_by(filters: Iterable[Filter]) -> FilterBounds:
    """Return the bounds for the conjunction of filters."""
    wanted = FilterBounds()
    for each in filters:
        match each:
            case EqualTo(attribute=("offset",), value=int(value)):
                wanted = _offsets(wanted, value, value + 1)
            case GreaterThan(attribute=("offset",), value=int(value)):
                wanted = _offsets(wanted, value + 1, _MAX)
            case GreaterThanOrEqual(attribute=("offset",), value=int(value)):
                wanted = _offsets(wanted, value, _MAX)
            case LessThan(attribute=("offset",), value=int(value)):
                wanted = _offsets(wanted, 0, value)
            case LessThanOrEqual(attribute=("offset",), value=int(value)):
                wanted = _offsets(wanted, 0, value + 1)
            case GreaterThan(attribute=("append_time",)) | GreaterThanOrEqual(attribute=("append_time",)):
                wanted = _times(wanted, start_ms=_ms(each.value))
            case LessThan(attribute=("append_time",)) | LessThanOrEqual(attribute=("append_time",)):
                end_ms = _ms(each.value)  # a filter may be finer than a millisecond
                wanted = _times(wanted, end_ms=None if end_ms is None else end_ms + 1)
            case EqualTo(attribute=("partition",), value=int(value)):
                wanted = _partitions(wanted, {value})
            case In(attribute=("partition",), value=values):
                wanted = _partitions(wanted, set(values))
            case _:
                pass
    return wanted


def _offsets(wanted: FilterBounds, start: int, end: int) -> FilterBounds:
    return replace(wanted, start=max(wanted.start, start), end=min(wanted.end, end))


def narrowed(wanted: FilterBounds, times: Times) -> FilterBounds:
    """Return the bounds narrowed to times."""
    return _times(wanted, start_ms=times.start_ms, end_ms=times.end_ms)


def _times(wanted: FilterBounds, *, start_ms: int | None = None, end_ms: int | None = None) -> FilterBounds:
    times = wanted.times
    if start_ms is not None:
        times = replace(times, start_ms=start_ms if times.start_ms is None else max(times.start_ms, start_ms))
    if end_ms is not None:
        times = replace(times, end_ms=end_ms if times.end_ms is None else min(times.end_ms, end_ms))
    return replace(wanted, times=times)


def _partitions(wanted: FilterBounds, numbers: set[int]) -> FilterBounds:
    known = frozenset(numbers)
    return replace(wanted, partitions=known if wanted.partitions is None else wanted.partitions & known)


def _ms(value: Any) -> int | None:
    """Return the whole milliseconds of a time, None without a time zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return int(value.timestamp() * 1000 // 1)
