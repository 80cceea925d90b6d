"""A cursor as it is stored: what is acknowledged, and how often the rest has been tried.

A snapshot is the whole; a delta is what changed since the last one. The journal keeps both, and the last record
wins, never the largest: a seek backwards is a delta of a higher generation whose floor is lower.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydanube_core.errors import InvalidArgument

from pydanube_broker.delivery.ranges import Range, normalise, subtract

__all__ = ["Attempts", "CursorDelta", "CursorSnapshot", "apply_delta", "merge_attempts"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Attempts:
    """How often the messages of `[start, end)` came back unacknowledged, and how often because they failed."""

    start: int
    end: int
    deliveries: int
    failures: int

    def __post_init__(self) -> None:
        if not (0 <= self.start < self.end and 0 <= self.failures <= self.deliveries and self.deliveries > 0):
            raise InvalidArgument(f"attempts: {self} is not possible", field="attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorSnapshot:
    """Everything below `floor` and in `acknowledged` is done; nothing else is.

    `acknowledged` is normal (see `ranges`) and lies above `floor`; `attempts` ascends, does not overlap, and lies
    on unacknowledged offsets only. Offsets without a message count as acknowledged where they are known.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorDelta:
    """What changed since the last delta or snapshot of the same subscription.

    In the generation of the base: `acknowledged` are ranges above `floor` newly done, `attempts` are absolute counts
    that replace older ones. In another generation: all there is, the base is void.
    """

    generation: int
    floor: int
    acknowledged: tuple[Range, ...] = ()
    attempts: tuple[Attempts, ...] = ()


def merge_attempts(base: Iterable[Attempts], newer: Iterable[Attempts]) -> list[Attempts]:
    """`base` with every offset of `newer` replaced; ascending, equal neighbours joined."""
    newer = list(newer)
    replaced = normalise((a.start, a.end) for a in newer)
    kept = _without(base, replaced)
    merged: list[Attempts] = []
    for piece in sorted([*kept, *newer]):
        if merged:
            last = merged[-1]
            if (last.end, last.deliveries, last.failures) == (piece.start, piece.deliveries, piece.failures):
                merged[-1] = Attempts(
                    start=last.start, end=piece.end, deliveries=last.deliveries, failures=last.failures
                )
                continue
        merged.append(piece)
    return merged


def apply_delta(snapshot: CursorSnapshot, delta: CursorDelta) -> CursorSnapshot:
    """The snapshot after the delta; the last one wins."""
    acknowledged: list[Range] = []
    attempts: list[Attempts] = []
    if delta.generation == snapshot.generation:
        acknowledged += snapshot.acknowledged
        attempts += snapshot.attempts
    acknowledged = normalise([*acknowledged, *delta.acknowledged])
    floor = delta.floor
    for start, end in acknowledged:
        if start <= floor < end:
            floor = end
    above = tuple((start, end) for start, end in acknowledged if start > floor)
    done = [(0, floor), *above] if floor else list(above)
    return CursorSnapshot(
        generation=delta.generation,
        floor=floor,
        acknowledged=above,
        attempts=tuple(_without(merge_attempts(attempts, delta.attempts), done)),
    )


def _without(attempts: Iterable[Attempts], removed: list[Range]) -> list[Attempts]:
    return [
        Attempts(start=start, end=end, deliveries=a.deliveries, failures=a.failures)
        for a in attempts
        for start, end in subtract([(a.start, a.end)], removed)
    ]
