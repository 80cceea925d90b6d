"""A cursor as it is stored: the acknowledged offsets, and how often the others were delivered.

A snapshot is the whole cursor. A delta is the change since the previous record. The journal keeps both, and
the last record wins, not the largest: a seek backwards is a delta of a higher generation whose floor is
lower.

As bytes, for journal records, heads and metadata, little-endian: a 6-byte header of magic `C`, kind (`S`
snapshot, `D` delta), format version, a zero byte, then `u16` zero. Then `u64` generation, `u64` floor, `u32`
number of ranges, `u32` number of attempts, the ranges as pairs of `u64`, the attempts as `u64` start, `u64`
end, `u32` deliveries, `u32` failures. There is no checksum, because records of the journal and of heads have
their own. A delta of an in-order consumer is 30 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Final, NamedTuple, Self

from pydanube_core.errors import CorruptJournal, FormatTooNew, InvalidArgument

from pydanube_broker.subscription.ranges import Range, normalise, subtract


class _Counts(NamedTuple):
    start: int
    end: int
    deliveries: int
    failures: int


class Attempts(_Counts):
    """How often messages of `[start, end)` came back unacknowledged, and how many of those times as failed.

    A tuple, because a cursor may have one for every second message: `Attempts._make` makes tens of thousands
    in some milliseconds, from numbers that need no check.
    """

    __slots__ = ()

    def __new__(cls, *, start: int, end: int, deliveries: int, failures: int) -> Self:
        if not (0 <= start < end and 0 <= failures <= deliveries and deliveries > 0):
            counts = _Counts(start, end, deliveries, failures)
            raise InvalidArgument(f"attempts: {counts} is not possible", field="attempts")
        return super().__new__(cls, start, end, deliveries, failures)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:  # for `copy`
        return (), self._asdict()


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorSnapshot:
    """Everything below `floor` and in `acknowledged` is done, and nothing else.

    `acknowledged` is normal (see `ranges`) and lies above `floor`. `attempts` ascends, does not overlap, and
    covers only unacknowledged offsets. Offsets that are found to hold no message count as acknowledged.
    """

    generation: int = 0
    floor: int
    acknowledged: tuple[Range, ...] = ()
    attempts: tuple[Attempts, ...] = ()

    def __post_init__(self) -> None:
        if self.generation < 0 or self.floor < 0:
            raise InvalidArgument(
                "cursor: generation and floor are not negative", field="floor", value=self.floor
            )
        last = self.floor
        for start, end in self.acknowledged:
            if not last < start < end:
                raise InvalidArgument(
                    f"cursor: acknowledged range [{start}, {end}) is empty, out of order or not above {last}",
                    field="acknowledged",
                    value=[start, end],
                )
            last = end
        last = self.floor
        for attempts in self.attempts:
            if attempts.start < last:
                raise InvalidArgument("cursor: attempts overlap or are out of order", field="attempts")
            last = attempts.end

    def acknowledged_from(self, offset: int) -> int:
        """Return how many messages at or above an offset are acknowledged out of order."""
        return sum(end - max(start, offset) for start, end in self.acknowledged if end > offset)

    def up_to(self, end: int) -> CursorSnapshot:
        """Return the cursor without acknowledgements from an offset on, so that no message is passed over that is not there."""
        if self.floor >= end:
            return replace(self, floor=end, acknowledged=(), attempts=())
        return replace(
            self,
            acknowledged=tuple((start, min(last, end)) for start, last in self.acknowledged if start < end),
            attempts=tuple(each for each in self.attempts if each.end <= end),
        )

    def reaches(self, end: int) -> bool:
        """Return whether the cursor has acknowledgements from an offset on."""
        return self.floor > end or any(last > end for _, last in self.acknowledged)


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorDelta:
    """Changes since the last delta or snapshot of the same subscription.

    In the generation of the base, `acknowledged` are newly done ranges above `floor`, and `attempts` are
    absolute counts that replace older ones. In another generation the delta is the whole state, and the base
    is void.
    """

    generation: int
    floor: int
    acknowledged: tuple[Range, ...] = ()
    attempts: tuple[Attempts, ...] = ()


def merge_attempts(base: Iterable[Attempts], newer: Iterable[Attempts]) -> list[Attempts]:
    """Return `base` with the offsets of `newer` replaced, ascending, with equal neighbours joined."""
    return _without(_newest((tuple(base), tuple(newer))), ())


def apply_deltas(snapshot: CursorSnapshot, deltas: Sequence[CursorDelta]) -> CursorSnapshot:
    """Apply deltas in order to a snapshot. O(n log n) of everything they hold.

    A start replays thousands of deltas over a snapshot of thousands of ranges. One by one, each would cost
    all of it.
    """
    if not deltas:
        return snapshot
    last = deltas[-1]
    first = len(deltas)
    while first and deltas[first - 1].generation == last.generation:
        first -= 1
    layers: list[CursorSnapshot | CursorDelta] = [*deltas[first:]]
    if not first and snapshot.generation == last.generation:
        layers.insert(0, snapshot)
    acknowledged = normalise(pair for layer in layers for pair in layer.acknowledged)
    floor = last.floor
    for start, end in acknowledged:
        if start <= floor < end:
            floor = end
    above = tuple((start, end) for start, end in acknowledged if start > floor)
    return CursorSnapshot(
        generation=last.generation,
        floor=floor,
        acknowledged=above,
        attempts=tuple(
            _without(_newest([layer.attempts for layer in layers]), ((0, floor), *above) if floor else above)
        ),
    )


def _newest(layers: Sequence[Sequence[Attempts]]) -> list[Attempts]:
    """Return for each offset the attempts of the last layer that has it, ascending, cut at layers' edges.

    The layers are laid down newest first, each stretch between two edges once. `free` skips stretches that
    are taken.
    """
    edges = sorted({edge for layer in layers for a in layer for edge in (a.start, a.end)})
    place = {edge: i for i, edge in enumerate(edges)}
    taken: list[Attempts | None] = [None] * len(edges)
    free = list(range(len(edges)))  # a stretch, or where to search for the next free one

    def next_free(i: int) -> int:
        while free[i] != i:
            free[i] = i = free[free[i]]
        return i

    for layer in reversed(layers):
        for a in layer:
            stop = place[a.end]
            i = next_free(place[a.start])
            while i < stop:
                taken[i], free[i] = a, i + 1
                i = next_free(i + 1)
    return [
        Attempts(start=start, end=end, deliveries=a.deliveries, failures=a.failures)
        for a, (start, end) in zip(taken, pairwise(edges), strict=False)
        if a is not None
    ]


def _without(attempts: Iterable[Attempts], removed: Sequence[Range]) -> list[Attempts]:
    """Return `attempts` without offsets of `removed`. Both ascend. Joins equal neighbours. O(n + m)."""
    joined: list[Attempts] = []
    for a in attempts:
        before = joined[-1] if joined else None
        if before and (before.end, before.deliveries, before.failures) == (a.start, a.deliveries, a.failures):
            joined[-1] = Attempts(start=before.start, end=a.end, deliveries=a.deliveries, failures=a.failures)
        else:
            joined.append(a)
    left: list[Attempts] = []
    at = 0
    for a in joined:
        while at < len(removed) and removed[at][1] <= a.start:
            at += 1
        stop = at
        while stop < len(removed) and removed[stop][0] < a.end:
            stop += 1
        left += [
            Attempts(start=start, end=end, deliveries=a.deliveries, failures=a.failures)
            for start, end in subtract([(a.start, a.end)], removed[at:stop])
        ]
    return left


VERSION: Final = 1
_HEAD: Final = struct.Struct("<ccBxHQQII")
_ATTEMPTS: Final = struct.Struct("<QQII")
_MAGIC: Final = b"C"
_SNAPSHOT: Final = b"S"
_DELTA: Final = b"D"

assert _HEAD.size == 30, "the header is part of the format"


def encode_snapshot(snapshot: CursorSnapshot) -> bytes:
    return _encode(_SNAPSHOT, snapshot)


def encode_delta(delta: CursorDelta) -> bytes:
    return _encode(_DELTA, delta)


def decode_snapshot(data: bytes | memoryview) -> CursorSnapshot:
    """
    Raises:
        FormatTooNew: written by a newer version.
        CorruptJournal: the bytes are not a snapshot.
    """
    generation, floor, acknowledged, attempts = _decode(_SNAPSHOT, data)
    try:
        return CursorSnapshot(
            generation=generation, floor=floor, acknowledged=acknowledged, attempts=attempts
        )
    except InvalidArgument as error:
        raise CorruptJournal(f"cursor snapshot: {error.message}") from error


def decode_delta(data: bytes | memoryview) -> CursorDelta:
    """Like `decode_snapshot`, for a delta."""
    generation, floor, acknowledged, attempts = _decode(_DELTA, data)
    return CursorDelta(generation=generation, floor=floor, acknowledged=acknowledged, attempts=attempts)


def _encode(kind: bytes, cursor: CursorSnapshot | CursorDelta) -> bytes:
    ranges: Sequence[Range] = cursor.acknowledged
    flat = list(chain.from_iterable(ranges))
    head = _HEAD.pack(
        _MAGIC, kind, VERSION, 0, cursor.generation, cursor.floor, len(ranges), len(cursor.attempts)
    )
    body = struct.pack(f"<{len(flat)}Q", *flat)
    counts = b"".join(_ATTEMPTS.pack(a.start, a.end, a.deliveries, a.failures) for a in cursor.attempts)
    return head + body + counts


def _decode(
    kind: bytes, data: bytes | memoryview
) -> tuple[int, int, tuple[Range, ...], tuple[Attempts, ...]]:
    if len(data) < _HEAD.size:
        raise CorruptJournal(f"cursor record: {len(data)} bytes are less than its header")
    magic, found, version, _, generation, floor, n_ranges, n_attempts = _HEAD.unpack_from(data)
    if magic != _MAGIC or found != kind:
        raise CorruptJournal(f"cursor record: starts with {bytes(data[:2])!r}, expected {_MAGIC + kind!r}")
    if version > VERSION:
        raise FormatTooNew(
            f"cursor record: version {version}, this program reads up to {VERSION}", value=version
        )
    at = _HEAD.size + 16 * n_ranges
    if len(data) != at + _ATTEMPTS.size * n_attempts:
        raise CorruptJournal(f"cursor record: {len(data)} bytes do not hold the items that its header counts")
    flat = struct.unpack_from(f"<{2 * n_ranges}Q", data, _HEAD.size)
    ranges = tuple(zip(flat[::2], flat[1::2], strict=True))
    try:
        attempts = tuple(
            Attempts(start=start, end=end, deliveries=deliveries, failures=failures)
            for start, end, deliveries, failures in _ATTEMPTS.iter_unpack(data[at:])
        )
    except InvalidArgument as error:
        raise CorruptJournal(f"cursor record: {error.message}") from error
    return generation, floor, ranges, attempts
