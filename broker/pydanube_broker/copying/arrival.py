"""Journal records that move a topic out of this broker or into it. A crash between any two of them is recoverable.

A RELEASE record moves a topic out. These records move it in: TOPIC_OPEN with epoch 0, the batches unchanged, and ADOPT
with the rest of the state. ADOPT carries the id of its move. A start keeps the copy only if the assignment names this
broker and this move (`decide_copies`). Until then the state has epoch 0, and the broker does not serve the topic.
Batches from an earlier stay of the topic at this broker are ignored: `since_lsn` is the address of the first batch that
belongs to a state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part
from pydanube_core.batch.layout import PRODUCER_PART
from pydanube_core.errors import ClusterError, Overloaded

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, TopicId
from pydanube_broker.copying.piece import Buffer, Piece, corrupt_copy
from pydanube_broker.journal import Journal, RecordKind
from pydanube_broker.slices import Slices
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import (
    LogState,
    encode_adopt_body,
    encode_open_body,
    encode_release_body,
)


def release(hub: Hub, topic_id: int) -> int:
    """Release a topic from the journal. Return the LSN at which the release is durable.

    If the journal does not have the topic, return its durable LSN.

    Raises `JournalReadOnly`, `DiskFull`, `Unavailable`: the topic is still there.
    """
    state = hub.states.get(topic_id)
    if state is None or not state.opened:
        return hub.journal.durable_lsn
    body = encode_release_body(state.epoch, state.next_offset)
    lsn = hub.journal.append(RecordKind.RELEASE, topic_id, [body])
    hub.forget(topic_id)
    return lsn


def decide_copies(hub: Hub, me: BrokerId, place: Callable[[TopicId], Assignment | None]) -> None:
    """At the start, set the epoch of each copy whose move has ended at this broker.

    `place` returns a topic's assignment, read after this broker registered. From then on no transaction of an earlier
    process of this broker can succeed. So a copy whose move has not ended by now never becomes the topic.
    """
    for topic_id, state in hub.states.items():
        found = place(TopicId(topic_id)) if state.awaiting else None
        if found is not None and found.broker_id == me and found.moved == state.awaiting:
            state.epoch, state.awaiting = found.epoch, 0


def forget_unfinished(hub: Hub) -> None:
    """At the start, release copies that did not become topics. A move that needs one copies it again."""
    for topic_id, state in list(hub.states.items()):
        if state.opened and not state.epoch and topic_id not in hub.topics:
            with contextlib.suppress(ClusterError):  # if the disk is full, the next start releases it
                release(hub, topic_id)


def confirm(hub: Hub, topic_id: int, epoch: Epoch) -> None:
    """Record in the journal that a copy has become the topic in this epoch. Raises the errors of the journal."""
    state = hub.states.get(topic_id)
    if state is None or not state.awaiting:
        return
    hub.journal.append(RecordKind.TOPIC_OPEN, topic_id, [encode_open_body(epoch, state.start_offset)])
    state.epoch, state.awaiting = epoch, 0


class Arrival:
    """The copy of one topic into the journal, piece by piece. It replaces the journal's present state of the topic.

    Single user: the loop.
    """

    def __init__(self, hub: Hub, topic_id: int) -> None:
        """Prepare a copy. Raises `JournalReadOnly`, `DiskFull`, `Unavailable`: nothing has changed."""
        release(hub, topic_id)
        self._hub = hub
        self._topic_id = topic_id
        self._state: LogState | None = None
        self._last: Piece | None = None  # the newest piece, without its batches

    @property
    def next_offset(self) -> int | None:
        """Return the offset behind the newest piece, or None before the first piece."""
        return None if self._state is None else self._state.next_offset

    @property
    def is_there(self) -> bool:
        """Return whether the journal still has the copy. True before the first piece."""
        return self._state is None or self._hub.states.get(self._topic_id) is self._state

    @property
    def has_end(self) -> bool:
        """Return whether the last piece was copied."""
        return self._last is not None and self._last.state is not None

    async def take(self, piece: Piece) -> None:
        """Append the next piece. After a cancellation or an error of the journal, a part of it may have been appended.

        Raises:
            CorruptObject: the piece is not the next one. Nothing was appended.
            JournalReadOnly, DiskFull, Unavailable: the journal refused a batch.
        """
        if self._state is None:
            self._state = self._opened(piece.first_offset)
        state = self._state
        if (piece.topic_id, piece.first_offset) != (self._topic_id, state.next_offset):
            raise corrupt_copy(f"topic {self._topic_id}: a piece from {piece.first_offset} is not the next")
        slices = Slices()
        for batch in piece.batches:
            await slices()
            await _append(self._hub.journal, state, batch)
        state.next_offset = piece.end_offset  # the piece may end with a hole
        # Its messages are in the journal. An heir keeps hundreds of copies while the store is away.
        self._last = replace(piece, batches=())

    async def await_move(self, move: int) -> None:
        """Make the copy durable after its last piece. The copy becomes the topic if `move` succeeds.

        Raises `CorruptObject` if the last piece is missing, and the errors of the journal.
        """
        final = self._end_state()
        final.epoch, final.awaiting = 0, move
        await self._adopt(final)

    async def finish(self, epoch: Epoch, state: LogState | None = None) -> LogState:
        """Make the copy the topic, in the epoch of its assignment to this broker. Durable on return.

        Args:
            state: the state at the end, if there is no last piece.

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
            raise corrupt_copy(f"topic {self._topic_id}: its last piece is missing")
        return self._last.state

    async def _adopt(self, final: LogState) -> None:
        assert self._state is not None
        final.since_lsn = self._state.since_lsn
        lsn = self._hub.journal.append(RecordKind.ADOPT, self._topic_id, [encode_adopt_body(final)])
        if self._last is not None:
            final.handovers = {each.subscription_id: each for each in self._last.handovers}
        self._state = self._hub.states[self._topic_id] = final
        await self._hub.journal.until_durable(lsn)

    def drop(self) -> None:
        """Release the copy. Raises as `release`. After an error, the next start releases it."""
        if self._state is not None and self._hub.states.get(self._topic_id) is self._state:
            release(self._hub, self._topic_id)

    def _opened(self, first_offset: int) -> LogState:
        """Begin the copy. From here on the hub owns the state, so a head written during the copy contains it."""
        hub, topic_id = self._hub, self._topic_id
        hub.journal.drop_topic(topic_id)  # the index made at the start has released batches, too
        lsn = hub.journal.append(RecordKind.TOPIC_OPEN, topic_id, [encode_open_body(0, first_offset)])
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
        except Overloaded:  # wait until the next segment exists
            room = asyncio.Event()
            journal.when_room(room.set)
            await room.wait()
    journal.append_batch(
        copying.topic_id,
        bytes(batch[:BROKER_PART_BYTES]),
        bytes(batch[BROKER_PART_BYTES:]),  # a copy: a view would keep the whole piece in the tail cache
        base=base,
        end=end,
        count=count,
        time_ms=part.append_time_ms,
    )
    copying.appended(base, end, count, part.append_time_ms, len(batch))
