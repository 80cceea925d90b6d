"""What is left of a topic whose broker was removed: the cold tier, and what that broker said of the topic last. Pure.

Nobody knows how far the lost journal went. So that no offset means two messages, the topic goes on `JUMP` above the last
one that is known; what lies between has no messages, and counts as acknowledged by every subscription.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.ranges import normalise
from pydanube_broker.topics.log_state import LogState

JUMP: Final = 1 << 32  # more than a broker appends to one topic between two looks at the metadata


def left_behind(said: LogState, *, begin: int, starts: Mapping[int, int]) -> LogState:
    """Return the state with which the next owner begins.

    Args:
        said: what its broker said of it last, with `start_offset` and `tiered_offset` as they are now.
        begin: up to where its messages are there.
        starts: subscription id → where that begins if `said` has no cursor of it.
    """
    end = max(said.next_offset, begin) + JUMP
    cursors = {
        number: _passed_over(said.cursors.get(number) or CursorSnapshot(floor=start), begin, end)
        for number, start in starts.items()
    }
    # Of dead letters nobody knows which were behind what is there: whoever is not sure of one copies it again.
    return replace(said, next_offset=end, opened=True, since_lsn=0, cursors=cursors, copied={}, deltas={})


def _passed_over(cursor: CursorSnapshot, begin: int, end: int) -> CursorSnapshot:
    """The cursor with everything in [begin, end) acknowledged."""
    if cursor.floor >= begin:
        return replace(cursor, floor=end, acknowledged=(), attempts=())
    kept = [(low, min(high, begin)) for low, high in cursor.acknowledged if low < begin]
    return replace(
        cursor,
        acknowledged=tuple(normalise([*kept, (begin, end)])),
        attempts=tuple(each for each in cursor.attempts if each.end <= begin),
    )
