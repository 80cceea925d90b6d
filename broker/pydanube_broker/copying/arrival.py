"""A topic leaves the journal for another broker, or comes into it, as records that a start can interpret at any point.

Leaving is one record, RELEASE. Coming is TOPIC_OPEN in epoch 0, the batches as they are, and ADOPT with all the rest.
ADOPT names the move that it was made for. A start keeps the copy only if the assignment names this broker and that move
(`decide_copies`); until then the state has epoch 0, and no topic is served from it. Batches that stood here before, from
an earlier time of the topic at this broker, count no more: a state says from which address on its batches are its own
(`since_lsn`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part
from pydanube_core.batch.layout import PRODUCER_PART
from pydanube_core.errors import ClusterError, CorruptObject, Overloaded

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, TopicId
from pydanube_broker.copying.piece import Buffer, Piece
from pydanube_broker.journal import Journal, Kind
from pydanube_broker.slices import Slices
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import (
    LogState,
    encode_adopt_body,
    encode_open_body,
    encode_release_body,
)


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


def decide_copies(hub: Hub, me: BrokerId, place: Callable[[TopicId], Assignment | None]) -> None:
    """At the start, give each copy whose move has ended here the epoch of its assignment.

    `place`: a topic's assignment, as read after this broker registered. No transaction of an earlier life can succeed
    from then on, so that a copy which is not decided by now never becomes the topic.
    """
    for topic_id, state in hub.states.items():
        found = place(TopicId(topic_id)) if state.awaiting else None
        if found is not None and found.broker_id == me and found.moved == state.awaiting:
            state.epoch, state.awaiting = found.epoch, 0


def forget_unfinished(hub: Hub) -> None:
    """At the start, forget copies that did not become topics. They are made again if they are needed."""
    for topic_id, state in list(hub.states.items()):
        if state.opened and not state.epoch and topic_id not in hub.topics:
            with contextlib.suppress(ClusterError):  # no room: the next start is as good
                release(hub, topic_id)


def confirm(hub: Hub, topic_id: int, epoch: Epoch) -> None:
    """Note in the journal that a copy has become the topic, in this epoch. Raises what the journal raises."""
    state = hub.states.get(topic_id)
    if state is None or not state.awaiting:
        return
    hub.journal.append(Kind.TOPIC_OPEN, topic_id, [encode_open_body(epoch, state.start_offset)])
    state.epoch, state.awaiting = epoch, 0


class Arrival:
    """The copy of one topic into the journal, piece by piece, in place of what the journal has of it.

    Single user: the loop.
    """

    def __init__(self, hub: Hub, topic_id: int) -> None:
        """Prepare a copy. Raises `JournalReadOnly`, `DiskFull`, `Unavailable`: nothing has changed."""
        release(hub, topic_id)
        self._hub = hub
        self._topic_id = topic_id
        self._state: LogState | None = None
        self._last: Piece | None = None  # the newest piece

    @property
    def next_offset(self) -> int | None:
        """Return the end of what was copied; None before the first piece."""
        return None if self._state is None else self._state.next_offset

    @property
    def is_there(self) -> bool:
        """Return whether the journal still has what was copied."""
        return self._state is None or self._hub.states.get(self._topic_id) is self._state

    @property
    def has_end(self) -> bool:
        """Return whether the last piece was copied."""
        return self._last is not None and self._last.state is not None

    async def take(self, piece: Piece) -> None:
        """Copy the next piece. When cancelled, or after an error of the journal, a part of it may have been copied.

        Raises:
            CorruptObject: it is not the next one; nothing was copied.
            JournalReadOnly, DiskFull, Unavailable: the journal does not take it.
        """
        if self._state is None:
            self._state = self._opened(piece.first_offset)
        state = self._state
        if (piece.topic_id, piece.first_offset) != (self._topic_id, state.next_offset):
            raise _does_not_fit(f"topic {self._topic_id}: a piece from {piece.first_offset} is not the next")
        slices = Slices()
        for batch in piece.batches:
            await slices()
            await _append(self._hub.journal, state, batch)
        state.next_offset = piece.end_offset  # behind a hole, maybe
        self._last = piece

    async def await_move(self, move: int) -> None:
        """Make the copy durable, after its last piece: `move` decides whether it becomes the topic.

        Raises `CorruptObject`, where the last piece is missing, and what the journal raises.
        """
        final = self._end_state()
        final.epoch, final.awaiting = 0, move
        await self._adopt(final)

    async def finish(self, epoch: Epoch, state: LogState | None = None) -> LogState:
        """Make the copy the topic, in the epoch in which it was assigned to this broker. Durable on return.

        Args:
            state: in the place of a last piece.

        Raises as `await_move`.
        """
        if state is not None and self._state is None:
            self._state = self._opened(state.needed_offset)
        final = self._end_state() if state is None else state
        final.epoch = epoch
        await self._adopt(final)
        return final

    def _end_state(self) -> LogState:
        if self._last is None or self._last.state is None:
            raise _does_not_fit(f"topic {self._topic_id}: its last piece is missing")
        return self._last.state

    async def _adopt(self, final: LogState) -> None:
        assert self._state is not None
        final.since_lsn = self._state.since_lsn
        lsn = self._hub.journal.append(Kind.ADOPT, self._topic_id, [encode_adopt_body(final)])
        if self._last is not None:
            final.holdings = {each.subscription_id: each for each in self._last.holdings}
        self._state = self._hub.states[self._topic_id] = final
        await self._hub.journal.until_durable(lsn)

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
        bytes(batch[BROKER_PART_BYTES:]),  # its own: a view would keep the whole piece in the tail cache
        base=base,
        end=end,
        count=count,
        time_ms=part.append_time_ms,
    )
    copying.appended(base, end, count, part.append_time_ms, len(batch))


def _does_not_fit(why: str) -> CorruptObject:
    return CorruptObject(f"a copy of a topic cannot be used: {why}", cause="piece", reason=why)
