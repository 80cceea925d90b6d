"""A source's cursor as far as its mirror has copied. Pure."""

from __future__ import annotations

from dataclasses import replace

from pydanube_broker.subscription.cursor import CursorSnapshot


def up_to(cursor: CursorSnapshot, end: int) -> CursorSnapshot:
    """Return a cursor without acknowledgements from offset `end` on, so that nothing is passed over that is not here."""
    if cursor.floor >= end:
        return replace(cursor, floor=end, acknowledged=(), attempts=())
    return replace(
        cursor,
        acknowledged=tuple((start, min(last, end)) for start, last in cursor.acknowledged if start < end),
        attempts=tuple(each for each in cursor.attempts if each.end <= end),
    )


def reaches(cursor: CursorSnapshot, end: int) -> bool:
    """Return whether a cursor has acknowledgements beyond an offset."""
    return cursor.floor > end or any(last > end for _, last in cursor.acknowledged)
