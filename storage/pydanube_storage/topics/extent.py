"""The extent of a topic for a reader: for each partition, objects with ranges of offsets, and a tail. Pure.

An object's name contains its offsets, and every object holds exactly the committed messages of those offsets: only
committed messages are tiered, and an object is complete before its name is visible. So without a broker that names the
current objects, any set of objects without overlap is the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pydanube_core.errors import ObjectMissing

from pydanube_storage.objects.names import ObjectName

_UNKNOWN_BYTES: Final = 1024.0  # assumed per message while the topic has no object


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdObject:
    """One object, read for the offsets `[start, end)`. Without a catalog, the times and the length and checksum of the
    footer are None.

    `whole`: it has no other offsets. Objects of a listing may overlap their neighbours.
    """

    key: str
    start: int
    end: int
    bytes: int
    min_append_time_ms: int | None = None
    max_append_time_ms: int | None = None
    whole: bool = True
    footer_bytes: int | None = None
    footer_crc: int | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """One concrete topic at one moment: messages `[start, end)`, those below `cold_end` in `objects`."""

    topic: str  # concrete: a partition's own name
    partition: int | None
    start: int
    end: int
    objects: tuple[ColdObject, ...] = ()
    of: str = ""  # the requested topic, which rows contain. Empty if it is the same

    @property
    def shown(self) -> str:
        return self.of or self.topic

    @property
    def cold_end(self) -> int:
        return min(self.end, max((each.end for each in self.objects), default=self.start))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The part of an object that one task reads: row groups `part` of `parts`, clipped to `[start, end)`."""

    object: ColdObject
    topic: str
    shown: str  # in the rows
    partition: int | None
    start: int
    end: int
    part: int = 0
    parts: int = 1


def cover_of(found: Iterable[tuple[str, ObjectName, int]]) -> tuple[ColdObject, ...]:
    """Return objects without overlap from a listing of (key, name, bytes).

    Merged objects are preferred, because their sources are deleted soon.
    """
    named = sorted(found, key=lambda each: each[1].start)
    chosen: list[ColdObject] = []
    at, index = 0, 0
    open_: list[tuple[str, ObjectName, int]] = []
    while True:
        while index < len(named) and named[index][1].start <= at:
            open_.append(named[index])
            index += 1
        open_ = [each for each in open_ if each[1].end > at]
        if not open_:
            if index == len(named):
                return tuple(chosen)
            at = named[index][1].start
            continue
        key, name, size = max(
            open_, key=lambda each: (each[1].generation, each[1].end, each[1].epoch, each[0])
        )
        chosen.append(
            ColdObject(key=key, start=max(at, name.start), end=name.end, bytes=size, whole=at <= name.start)
        )
        at = name.end


def within(extent: Extent, start: int, end: int) -> Extent:
    """Return the part of an extent between two offsets, which may be empty."""
    low = max(extent.start, start)
    high = max(low, min(extent.end, end))
    kept = tuple(each for each in extent.objects if each.end > low and each.start < high)
    return replace(extent, start=low, end=high, objects=kept)


def gap_in(extent: Extent) -> tuple[int, int] | None:
    """Return the first offsets below the end of the objects that no object holds, None without any."""
    at = extent.start
    for each in extent.objects:
        if each.start > at:
            return at, each.start
        at = max(at, each.end)
    return None


def check_covered(extent: Extent, *, live: bool) -> None:
    """Check that the objects hold all messages, or with a live tail all below their end. Raises `ObjectMissing`."""
    gap = gap_in(extent)
    if gap is None and not live and extent.cold_end < extent.end:
        gap = extent.cold_end, extent.end
    if gap is not None:
        raise ObjectMissing(
            f"no object holds offsets {gap[0]} to {gap[1] - 1} of {extent.topic}: run `danube objects verify`, or read "
            "other offsets by start and end",
            topic=extent.topic,
            offset=gap[0],
            end_offset=gap[1],
        )


def reached_by(extent: Extent, start: int, end: int, share: float) -> int:
    """Return the offset below which about `share` of the bytes of `[start, end)` lie, at least one message after `start`.

    An object's bytes are spread evenly over its offsets. A message outside objects counts as their mean.
    """
    budget = share * stored_bytes(extent, start, end)
    for low, high, each_bytes in _stretches(extent, start, end):
        if budget < (high - low) * each_bytes:
            return max(low + int(budget / each_bytes), min(start + 1, end))
        budget -= (high - low) * each_bytes
    return end


def stored_bytes(extent: Extent, start: int, end: int) -> float:
    """Return the bytes of `[start, end)`, estimated as in `reached_by`."""
    return sum((high - low) * each_bytes for low, high, each_bytes in _stretches(extent, start, end))


def _stretches(extent: Extent, start: int, end: int) -> list[tuple[int, int, float]]:
    """Return (low, high, bytes per message), ascending, between two offsets."""
    known = [(each.start, each.end, each.bytes / (each.end - each.start)) for each in extent.objects]
    messages = sum(high - low for low, high, _ in known)
    mean = sum(each.bytes for each in extent.objects) / messages if messages else _UNKNOWN_BYTES
    cold_end = max(extent.start, extent.cold_end)
    found = [(max(low, start), min(high, end), size) for low, high, size in known]
    found.append((max(cold_end, start), end, mean))
    return [(low, high, max(size, 1.0)) for low, high, size in found if low < high]


def slices_of(extents: Sequence[Extent], *, split_bytes: int) -> list[tuple[Slice, ...]]:
    """Return the tasks of the cold part: large objects in parts of about `split_bytes`, small ones together."""
    tasks: list[tuple[Slice, ...]] = []
    gathered: list[Slice] = []
    size = 0
    for extent in extents:
        for each in extent.objects:
            start, end = max(each.start, extent.start), min(each.end, extent.end)
            if start >= end:
                continue
            parts = -(-each.bytes // split_bytes)
            made = [
                Slice(
                    object=each,
                    topic=extent.topic,
                    shown=extent.shown,
                    partition=extent.partition,
                    start=start,
                    end=end,
                    part=part,
                    parts=parts,
                )
                for part in range(parts)
            ]
            if parts > 1:
                tasks += [(one,) for one in made]
                continue
            if gathered and size + each.bytes > split_bytes:
                tasks.append(tuple(gathered))
                gathered, size = [], 0
            gathered += made
            size += each.bytes
    if gathered:
        tasks.append(tuple(gathered))
    return tasks


def pinned_slices(extent: Extent, target_bytes: int) -> Iterator[tuple[tuple[Slice, ...], int]]:
    """Yield the cold part of an extent in tasks of about `target_bytes`, each with its stored bytes, ascending.

    Large objects are cut by offset, so that a task stays the same if its object is merged into another one.
    """
    gathered: list[Slice] = []
    size = 0
    for each in extent.objects:
        start, end = max(each.start, extent.start), min(each.end, extent.end)
        if start >= end:
            continue
        stored = each.bytes * (end - start) // (each.end - each.start)
        parts = min(-(-stored // target_bytes) or 1, end - start)
        edges = [start + (end - start) * part // parts for part in range(parts + 1)]
        for low, high in pairwise(edges):
            if gathered and size + stored // parts > target_bytes:
                yield tuple(gathered), size
                gathered, size = [], 0
            gathered.append(
                Slice(
                    object=each,
                    topic=extent.topic,
                    shown=extent.shown,
                    partition=extent.partition,
                    start=low,
                    end=high,
                )
            )
            size += stored // parts
    if gathered:
        yield tuple(gathered), size


def tails_of(extents: Sequence[Extent], *, messages: int) -> list[Extent]:
    """Return the tasks of the live tail: at most `messages` offsets each."""
    tails = []
    for extent in extents:
        at = max(extent.start, extent.cold_end)
        while at < extent.end:
            end = min(extent.end, at + messages)
            tails.append(replace(extent, start=at, end=end, objects=()))
            at = end
    return tails
