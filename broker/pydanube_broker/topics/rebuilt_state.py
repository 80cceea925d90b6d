"""Rebuild the state of a topic whose broker was removed, from the cold tier and that broker's last report. Pure.

The end of the lost journal is unknown, unless the topic is stored: then the chain of that journal has all that was
acknowledged, and the topic continues where the chain ends. Otherwise, so that no offset is assigned twice, the topic
continues `JUMP` above the highest recorded offset. The offsets between have no messages, and count as acknowledged by
every subscription.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydanube_core.facts import JUMP
from pydanube_storage.catalog.records import CatalogHead

from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.ranges import normalise
from pydanube_broker.topics.log_state import LogState


def state_in_the_store(
    topic_id: int, said: LogState | None, head: CatalogHead | None, copied_to: int = 0
) -> tuple[LogState, int]:
    """Return the last reported state of a removed owner's topic, and the offset up to which its messages are there.

    Args:
        said: its owner's last report, None if there is none.
        head: of the topic's objects, None if there are none.
        copied_to: the end of the fragments behind the objects.
    """
    state = replace(said or LogState(topic_id))
    if head is not None:
        state.start_offset = max(state.start_offset, head.start_offset)
        state.tiered_offset = head.tiered_offset
    return state, max(copied_to, state.needed_offset)


def end_of_rebuilt(known_to: int, begin: int, resumed_at: int = 0) -> int:
    """Return the offset at which a removed owner's topic continues.

    Args:
        known_to: the end of its log in the owner's last report.
        begin: the offset up to which its messages are there.
        resumed_at: the offset at which that owner continued, if it had the topic from a removed one.
    """
    return max(known_to, begin, resumed_at) + JUMP


def rebuilt_state(
    said: LogState, *, begin: int, end: int, starts: Mapping[int, int], is_whole: bool = False
) -> LogState:
    """Return the state with which the next owner begins: the same for the same arguments.

    Args:
        said: the report, see `state_in_the_store`.
        begin: the offset up to which its messages are there.
        end: see `end_of_rebuilt`.
        starts: subscription id → its start offset if the report has no cursor of it.
        is_whole: the report has everything that the owner acknowledged.
    """
    cursors = {
        number: said.cursors.get(number) or CursorSnapshot(floor=start) for number, start in starts.items()
    }
    if begin < end:
        cursors = {number: _passed_over(cursor, begin, end) for number, cursor in cursors.items()}
    if is_whole:
        return replace(said, next_offset=end, opened=True, since_lsn=0, cursors=cursors, deltas={})
    # Dead letters may have been lost with the journal, so their copies are not counted: they are made again.
    return replace(said, next_offset=end, opened=True, since_lsn=0, cursors=cursors, copied={}, deltas={})


def rebuilt_mirror(said: LogState, *, end: int, starts: Mapping[int, int]) -> LogState:
    """Return the state with which the next owner of a mirror begins, at the end of the messages that are there.

    Its source assigns the offsets, and missing messages are copied again. So nothing beyond the end counts as
    acknowledged, and the producers' sessions forget their batches there.
    """
    found = rebuilt_state(said, begin=end, end=end, starts=starts)
    found.producers.take_back(end)
    found.append_time_ms = 0  # of a message that may be missing
    found.cursors = {number: cursor.up_to(end) for number, cursor in found.cursors.items()}
    return found


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
