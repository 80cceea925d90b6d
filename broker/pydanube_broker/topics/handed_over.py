"""A topic leaves the journal for another broker, or comes into it: as records that a start understands at any point.

Leaving is one record, RELEASE. Coming is TOPIC_OPEN in epoch 0, the batches as they are, and ADOPT with all the rest: until
that is durable a start finds a state of epoch 0, which nobody serves. Batches that stood here before, from an earlier
time of the topic at this broker, count no more: a state says from which address on its batches are its own (`since_lsn`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part
from pydanube_core.batch.layout import PRODUCER_PART
from pydanube_core.errors import CorruptObject, Overloaded

from pydanube_broker.cluster.ids import Epoch
from pydanube_broker.journal import Journal, Kind
from pydanube_broker.subscription.holdings import Holdings
from pydanube_broker.topics.fragment import Buffer, Section
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import LogState, encode_open_body, encode_release_body, encode_state


def release(hub: Hub, topic_id: int) -> int:
    """Forget what the journal has of a topic; returns the LSN at which that is durable, now where it has nothing.

    Raises `JournalReadOnly`, `DiskFull`, `Unavailable`: nothing is forgotten.
    """
    state = hub.states.get(topic_id)
    if state is None or not state.opened:
        return hub.journal.durable_lsn
    body = encode_release_body(state.epoch, state.next_offset)
    lsn = hub.journal.append(Kind.RELEASE, topic_id, [body])
    hub.forget(topic_id)
    return lsn


async def copy_in(hub: Hub, topic_id: int, epoch: Epoch, sections: AsyncIterator[Section]) -> LogState:
    """Copy a hand-over into the journal, in place of whatever that has of the topic; durable when it returns.

    Cancelled, or after an error, the journal holds a part of it, as a state of epoch 0: a later copy takes its place.

    Args:
        epoch: in which this broker owns the topic.
        sections: all of the hand-over, in order; only the last has a state.

    Raises:
        CorruptObject: the sections do not follow each other, or the last one is missing.
        JournalReadOnly, DiskFull, Unavailable: the journal does not take it.
    """
    journal = hub.journal
    release(hub, topic_id)
    copying: LogState | None = None
    final: LogState | None = None
    holdings: tuple[Holdings, ...] = ()
    async for section in sections:
        if copying is None:
            copying = _opened(hub, topic_id, section.first_offset)
        if section.topic_id != topic_id or section.first_offset != copying.next_offset or final is not None:
            raise _does_not_fit(f"topic {topic_id}: a part from {section.first_offset} is not the next")
        for batch in section.batches:
            await _append(journal, copying, batch)
        copying.next_offset = section.end_offset  # behind a hole, maybe
        final, holdings = section.state, section.holdings
    if copying is None or final is None:
        raise _does_not_fit(f"topic {topic_id}: its last part is missing")
    final.epoch, final.since_lsn = epoch, copying.since_lsn
    lsn = journal.append(Kind.ADOPT, topic_id, [encode_state(final)])
    final.holdings = {each.subscription_id: each for each in holdings}
    hub.states[topic_id] = final
    await journal.until_durable(lsn)
    return final


def _opened(hub: Hub, topic_id: int, first_offset: int) -> LogState:
    """Begin a copy. The state is the hub's from here on: a head may be written in the middle."""
    hub.journal.drop_topic(topic_id)  # a start has indexed what was released before it, too
    lsn = hub.journal.append(Kind.TOPIC_OPEN, topic_id, [encode_open_body(0, first_offset)])
    state = LogState(
        topic_id, start_offset=first_offset, next_offset=first_offset, opened=True, since_lsn=lsn
    )
    hub.states[topic_id] = state
    return state


async def _append(journal: Journal, copying: LogState, batch: Buffer) -> None:
    part = read_broker_part(bytes(batch[:BROKER_PART_BYTES]))
    base, end, count = (
        part.base_offset,
        part.last_offset + 1,
        PRODUCER_PART.unpack_from(batch, BROKER_PART_BYTES)[4],
    )
    while True:
        try:
            journal.check_room(len(batch) - BROKER_PART_BYTES)
            break
        except Overloaded:  # the next segment is being made
            room = asyncio.Event()
            journal.when_room(room.set)
            await room.wait()
    journal.append_batch(
        copying.topic_id,
        bytes(batch[:BROKER_PART_BYTES]),
        bytes(batch[BROKER_PART_BYTES:]),  # its own: a view would keep the whole section in the tail cache
        base=base,
        end=end,
        count=count,
        time_ms=part.append_time_ms,
    )
    copying.appended(base, end, count, part.append_time_ms, len(batch))


def _does_not_fit(why: str) -> CorruptObject:
    return CorruptObject(f"a hand-over cannot be used: {why}", cause="fragment", reason=why)
