"""Rebuild the state of a topic whose broker was removed, from the cold tier and that broker's last report. Pure.

Nobody knows how far the lost journal went. So that no offset means two messages, the topic goes on `JUMP` above the last
one that is known; what lies between has no messages, and counts as acknowledged by every subscription.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pydanube_storage.catalog.records import CatalogHead

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.ranges import normalise
from pydanube_broker.topics.fragment import Section
from pydanube_broker.topics.log_state import LogState

JUMP: Final = 1 << 32  # more than a broker appends to one topic between two looks at the metadata


def last_section(
    now: Assignment, said: LogState | None, head: CatalogHead | None, starts: Mapping[int, int]
) -> Section:
    """Return the last section of a hand-over, in the place of a removed owner.

    Args:
        now: the assignment that is taken away.
        said: what its owner said of the topic last, None if it never did.
        head: of the topic's objects, None if there are none.
        starts: subscription id → where that begins if `said` has no cursor of it.
    """
    state = replace(said or LogState(now.topic_id))
    if head is not None:
        state.start_offset = max(state.start_offset, head.start_offset)
        state.tiered_offset = head.tiered_offset
    parts = now.offered
    first = parts[-1].end_offset if parts else state.needed_offset
    left = rebuilt_state(
        state,
        begin=max(first, state.needed_offset),  # objects may have come after the parts
        resumed_at=0 if head is None else head.resumes_at,
        starts=starts,
    )
    return Section(
        topic_id=now.topic_id,
        epoch=now.epoch,
        first_offset=first,
        end_offset=left.next_offset,
        batches=(),
        state=left,
    )


def rebuilt_state(said: LogState, *, begin: int, starts: Mapping[int, int], resumed_at: int = 0) -> LogState:
    """Return the state with which the next owner begins.

    Args:
        said: what its broker said of it last, with `start_offset` and `tiered_offset` as they are now.
        begin: up to where its messages are there.
        resumed_at: from where on that broker gave out offsets, if it was itself given the topic of a removed one.
        starts: subscription id → where that begins if `said` has no cursor of it.
    """
    end = max(said.next_offset, begin, resumed_at) + JUMP
    cursors = {
        number: _passed_over(said.cursors.get(number) or CursorSnapshot(floor=start), begin, end)
        for number, start in starts.items()
    }
    # Of dead letters nobody knows which were behind what is there: whoever is not sure of one copies it again.
    return replace(said, next_offset=end, opened=True, since_lsn=0, cursors=cursors, copied={}, deltas={})


def _passed_over(cursor: CursorSnapshot, begin: int, end: int) -> CursorSnapshot:
    """Return the cursor with everything in [begin, end) acknowledged."""
    if cursor.floor >= begin:
        return replace(cursor, floor=end, acknowledged=(), attempts=())
    kept = [(low, min(high, begin)) for low, high in cursor.acknowledged if low < begin]
    return replace(
        cursor,
        acknowledged=tuple(normalise([*kept, (begin, end)])),
        attempts=tuple(each for each in cursor.attempts if each.end <= begin),
    )
