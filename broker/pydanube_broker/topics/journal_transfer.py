"""A topic leaves the journal for another broker, or comes into it, as records that a start can interpret at any point.

Leaving is one record, RELEASE. Coming is TOPIC_OPEN in epoch 0, the batches as they are, and ADOPT with all the rest: until
that is durable a start finds a state of epoch 0, which nobody serves, and forgets it. Batches that stood here before, from an earlier
time of the topic at this broker, count no more: a state says from which address on its batches are its own (`since_lsn`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part
from pydanube_core.batch.layout import PRODUCER_PART
from pydanube_core.errors import ClusterError, CorruptObject, Overloaded

from pydanube_broker.cluster.ids import Epoch
from pydanube_broker.cluster.move_record import HandOverPart
from pydanube_broker.journal import Journal, Kind
from pydanube_broker.slices import Slices
from pydanube_broker.topics.fragment import Buffer, Section
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import LogState, encode_open_body, encode_release_body, encode_state


def release(hub: Hub, topic_id: int) -> int:
    """Forget what the journal has of a topic; return the LSN at which that is durable, the present one if it has nothing.

    Raises `JournalReadOnly`, `DiskFull`, `Unavailable`: nothing is forgotten.
    """
    state = hub.states.get(topic_id)
    if state is None or not state.opened:
        return hub.journal.durable_lsn
    body = encode_release_body(state.epoch, state.next_offset)
    lsn = hub.journal.append(Kind.RELEASE, topic_id, [body])
    hub.forget(topic_id)
    return lsn


def forget_unfinished(hub: Hub) -> None:
    """At the start, forget unfinished copies. They are made again if they are needed."""
    for topic_id, state in list(hub.states.items()):
        if state.opened and not state.epoch and topic_id not in hub.topics:
            with contextlib.suppress(ClusterError):  # no room: the next start is as good
                release(hub, topic_id)


class Arrival:
    """The copy of one topic into the journal, part by part, in place of what the journal has of it.

    Until `finish` has returned the journal holds a state of epoch 0, which a start forgets. Single user: the loop.
    """

    def __init__(self, hub: Hub, topic_id: int) -> None:
        """Prepare a copy. Raises `JournalReadOnly`, `DiskFull`, `Unavailable`: nothing has changed."""
        release(hub, topic_id)
        self.parts: tuple[HandOverPart, ...] = ()  # those that were copied whole
        self._hub = hub
        self._topic_id = topic_id
        self._state: LogState | None = None
        self._last: Section | None = None

    def continues(self, parts: Sequence[HandOverPart]) -> bool:
        """Return whether what was copied is the beginning of these parts, without a partly copied one."""
        if (
            self.parts != tuple(parts[: len(self.parts)])
            or self._hub.states.get(self._topic_id) is not self._state
        ):
            return False
        return self._state is None or (
            bool(self.parts) and self._state.next_offset == self.parts[-1].end_offset
        )

    async def take(self, part: HandOverPart, section: Section) -> None:
        """Copy the next part. When cancelled, or after an error of the journal, a piece of it may have been copied.

        Raises:
            CorruptObject: it is not the next one; nothing was copied.
            JournalReadOnly, DiskFull, Unavailable: the journal does not take it.
        """
        if self._state is None:
            self._state = self._opened(section.first_offset)
        state = self._state
        if (section.topic_id, section.first_offset) != (self._topic_id, state.next_offset) or self._has_last:
            raise _does_not_fit(f"topic {self._topic_id}: a part from {section.first_offset} is not the next")
        slices = Slices()
        for batch in section.batches:
            await slices()
            await _append(self._hub.journal, state, batch)
        state.next_offset = section.end_offset  # behind a hole, maybe
        self._last = section
        self.parts += (part,)

    @property
    def _has_last(self) -> bool:
        return self._last is not None and self._last.state is not None

    async def finish(self, epoch: Epoch) -> LogState:
        """Finish after all parts: this broker owns the topic in this epoch. Durable on return.

        Raises `CorruptObject`, where the last part is missing, and what the journal raises.
        """
        if self._last is None or self._last.state is None:
            raise _does_not_fit(f"topic {self._topic_id}: its last part is missing")
        assert self._state is not None
        journal, final = self._hub.journal, self._last.state
        final.epoch, final.since_lsn = epoch, self._state.since_lsn
        lsn = journal.append(Kind.ADOPT, self._topic_id, [encode_state(final)])
        final.holdings = {each.subscription_id: each for each in self._last.holdings}
        self._state = self._hub.states[self._topic_id] = final
        await journal.until_durable(lsn)
        return final

    def drop(self) -> None:
        """Forget what was copied. Raises as `release`; then the next start forgets it."""
        if self._state is not None and self._hub.states.get(self._topic_id) is self._state:
            release(self._hub, self._topic_id)

    def _opened(self, first_offset: int) -> LogState:
        """Begin the copy. From here on the state belongs to the hub: a head may be written in the middle."""
        hub, topic_id = self._hub, self._topic_id
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
