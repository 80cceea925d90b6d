"""A round that follows a topic without an end: the pieces as they are committed, and the topic's marks.

It includes messages that only the object store has, because a mirror in another cluster does not see that store. One
timer of its stream looks at all topics that are followed (`Source`), so that a quiet topic costs a comparison a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from pydanube_core.batch import BROKER_PART_BYTES, read_producer_part
from pydanube_core.errors import Diverged

from pydanube_broker.copying.credit import CHUNK_BYTES
from pydanube_broker.copying.messages import Marks, Round, SessionMark
from pydanube_broker.copying.piece import Piece
from pydanube_broker.journal import CachedBatch
from pydanube_broker.subscription.batch_columns import messages_between, rest_of
from pydanube_broker.subscription.cursor import CursorSnapshot, encode_snapshot
from pydanube_broker.topics.reading import READ_BYTES, read_once
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads


class Follower:
    """One topic that a round follows, a listener of its log. `more`: set when the round has something to send."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.more = asyncio.Event()
        self._marked: tuple[int, int] | None = None
        self._cursors: dict[str, CursorSnapshot] = {}
        self._sessions: dict[int, SessionMark] = {}
        self._session_changes = -1
        self._is_due = True
        self._fenced = False

    def grew(self) -> None:
        """Wake the round, because the commit offset rose or the topic was closed."""
        self.more.set()

    def look(self) -> None:
        """Wake the round if the marks have changed since it sent them."""
        if self._has_changed():
            self._is_due = True
            self.more.set()

    def _has_changed(self) -> bool:
        topic = self.topic
        return (
            self._marked != (topic.start_offset, topic.commit)
            or self._session_changes != topic.state.producers.changes
            or len(self._cursors) != len(topic.subscriptions)
            or any(self._cursors.get(name) is not pump.cursor for name, pump in topic.subscriptions.items())
        )

    def needs_marks_before(self, piece: Piece) -> bool:
        """Return whether a piece has messages of a session that the mirror does not have.

        Without its token, the session's producer could not go on at the mirror after a fail-over.
        """
        for batch in piece.batches:
            number = read_producer_part(memoryview(batch)[BROKER_PART_BYTES:], verify=False).producer_id
            known, session = self._sessions.get(number), self.topic.state.producers.find(number)
            if (
                session is not None
                and session.token
                and (known is None or (known.epoch, known.token) != (session.epoch, session.token))
            ):
                return True
        return False

    @property
    def is_due(self) -> bool:
        """Return whether marks are to be sent now: the timer saw a change, or the topic was fenced."""
        return self._is_due or self._is_fenced != self._fenced

    @property
    def _is_fenced(self) -> bool:
        return self.topic.failed_over_to is not None

    def marks(self, number: int) -> Iterator[Marks]:
        """Yield the changes since the last marks, in parts of about `CHUNK_BYTES`. The first one has the sessions."""
        topic = self.topic
        was_fenced = self._fenced
        self._is_due, self._fenced = False, self._is_fenced
        self._marked = topic.start_offset, topic.commit
        self._session_changes = topic.state.producers.changes
        cursors = {name: pump.cursor for name, pump in topic.subscriptions.items()}
        changed = {name: each for name, each in cursors.items() if self._cursors.get(name) is not each}
        self._cursors = cursors
        sessions = {
            each.producer_id: SessionMark(each.producer_id, each.epoch, each.token, each.name)
            for each in topic.state.producers.sessions()
            if each.token
        }
        opened = [each for key, each in sessions.items() if self._sessions.get(key) != each]
        self._sessions = sessions
        part = Marks(
            topic_id=topic.topic_id,
            number=number,
            start=topic.start_offset,
            end=topic.commit,
            time_ms=topic.state.append_time_ms,
            cursors={},
            sessions=opened,
            fenced=was_fenced,
        )
        fenced, encoded, size = self._fenced, dict[str, bytes](), 0
        for name, cursor in changed.items():
            if size >= CHUNK_BYTES:
                yield replace(part, cursors=encoded)
                part, encoded, size = replace(part, sessions=()), {}, 0
            encoded[name] = encode_snapshot(cursor)
            size += len(name) + len(encoded[name])
        yield replace(part, cursors=encoded, fenced=fenced)


async def check_continues(topic: Topic, request: Round, worker_threads: WorkerThreads) -> int:
    """Return the offset from which a mirror's round goes on. Raises `Diverged`: its messages are not this topic's."""
    first = request.first or 0
    if first > topic.commit:
        raise Diverged(
            f"{topic.name} ends at offset {topic.commit}, and its mirror at {first}: the source was restored to an older "
            "state. The mirror keeps its messages. Fail over to it, or delete it and copy again",
            topic=topic.name,
            next_offset=topic.commit,
        )
    if first <= topic.start_offset or not request.previous_time_ms:
        return first
    if first == topic.commit == topic.state.next_offset and topic.state.append_time_ms:
        found_ms: int | None = topic.state.append_time_ms  # a quiet topic is not read
    else:
        found_ms = await append_time_at(topic, first - 1, worker_threads)
    if found_ms is not None and found_ms != request.previous_time_ms:
        raise Diverged(
            f"{topic.name} has another message at offset {first - 1} than its mirror: the source was restored to an "
            "older state and written since. The mirror keeps its messages. Fail over to it, or delete it and copy again",
            topic=topic.name,
            offset=first - 1,
        )
    return first


async def append_time_at(topic: Topic, offset: int, worker_threads: WorkerThreads) -> int | None:
    """Return the append time of the message at an offset. None: it was deleted.

    Batches in objects are cut differently, but their messages keep their append times.
    """
    found = None
    while found is None:
        if offset < topic.start_offset:
            return None
        found = await read_once(topic, offset, offset + 1, 1, worker_threads)
    for each in found:
        if each.base <= offset < each.end and len(messages_between(each, offset, offset + 1, 1)[0]):
            return each.append_time_ms
    return None


async def next_piece(topic: Topic, at: int, worker_threads: WorkerThreads) -> Piece | None:
    """Return the next committed messages from an offset on, about 1 MiB. None: the topic has changed, try again.

    Messages below the topic's start are left out, so that the piece begins later.

    Raises as `read_once`.
    """
    at, end = max(at, topic.start_offset), topic.commit
    found = await read_once(topic, at, end, READ_BYTES, worker_threads) if at < end else ()
    if found is None:
        return None
    batches = [_stored(each) if each.base >= at else rest_of(_stored(each), at) for each in found]
    return Piece(
        topic_id=topic.topic_id,
        epoch=topic.assigned_epoch,
        first_offset=at,
        end_offset=found[-1].end if found else max(at, end),
        batches=tuple(each for each in batches if each),
    )


def _stored(batch: CachedBatch) -> bytes:
    return b"".join(batch.buffers)
