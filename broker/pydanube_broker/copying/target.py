"""The target of copies: requests rounds from owners and passes the pieces to a sink. All topics of an owner share a stream.

A round fails if it receives nothing for `STALL_S`. If a stream is lost, its rounds fail, and the next round opens
another stream. The data that wait for a slow sink are bounded by the credit of its topic and do not block other topics.

The sink of a move is `Arrival`, which writes to the journal. The sink of a mirror is its topic (`links.pull`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, Protocol, TypeAlias

from pydanube_core.errors import ClusterError, CorruptObject, Overloaded, Unavailable

from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.copying.credit import CHUNK_BYTES, STREAM_BYTES, TOPIC_BYTES, ReceiverCredit
from pydanube_broker.copying.messages import (
    MOST_CURSORS,
    Answer,
    Assembly,
    Chunk,
    End,
    Failure,
    Grant,
    Leave,
    Marks,
    Request,
    Round,
    Start,
)
from pydanube_broker.copying.piece import Piece

STALL_S: Final = 20.0
_IDLE_S: Final = 30.0  # a stream without rounds is closed after this time
#: maximum of a round's chunks that wait: its credit, and the chunk that exceeds it
_MOST_CHUNK_BYTES: Final = TOPIC_BYTES + CHUNK_BYTES
# Maximum of its waiting answers that take no credit, and of cursors. An answer counts at least `_ANSWER_BYTES`.
_MOST_OTHER_BYTES: Final = 64 << 20
_ANSWER_BYTES: Final = 1024
_MARK_BYTES: Final = 200  # of a cursor or a session, beside its texts

Sink = Callable[[Piece], Awaitable[None]]
#: called with the bytes that a round is about to bring. It may raise `ClusterError` to refuse them
Begun = Callable[[int], None]
#: called with the state of a topic that a round follows
Marked = Callable[[Marks], None]
#: a broker of this cluster, or the address of one of another cluster
Owner: TypeAlias = BrokerId | str


class Wire(Protocol):
    """A stream to one owner. Requests sent before it is connected are queued until then."""

    def send(self, request: Request) -> None: ...

    def close(self) -> None: ...


class Answers(Protocol):
    """The receiver of a stream's answers."""

    def answered(self, answer: Answer) -> None: ...

    def lost(self, error: ClusterError) -> None:
        """The stream has ended or could not be opened. Called at most once, as the last call."""


#: opens a stream to a broker without waiting. A later failure is reported by `lost`
OpenWire = Callable[[Any, Answers], Wire]


@dataclass(frozen=True, slots=True)
class Copied:
    """Result of a round: the bytes received, and the offset up to which the owner had committed."""

    size: int
    end: int


class Copies:
    """Copies topics from their owners. Single user: the loop. `copied_bytes` is the total received."""

    def __init__(self, open_wire: OpenWire) -> None:
        self.copied_bytes = 0
        self._open_wire = open_wire
        self._streams: dict[Owner, _Stream] = {}
        self._numbers = count(1)

    async def round(
        self,
        owner: Owner,
        topic_id: int,
        revision: int,
        first: int | None,
        sink: Sink,
        *,
        last: bool = False,
        begun: Begun = lambda size: None,
        marked: Marked | None = None,
        previous_time_ms: int = 0,
        topic: str = "",
    ) -> Copied:
        """Copy a topic from its owner, from offset `first` on (see `messages.Round`). A topic has one round at a time.

        After a cancellation or an error, the sink may have some of the pieces.

        Args:
            marked: given if the round is to follow the topic. It then ends only with an error.
            previous_time_ms, topic: see `messages.Round`.

        Raises:
            Unavailable: the owner cannot be reached, or sent nothing for `STALL_S`.
            CorruptObject: a piece is damaged. Errors of the owner, of the sink and of `begun`.
        """
        stream = self._stream(owner)
        number = next(self._numbers)
        mine = stream.open(topic_id, number)
        assembly, credit, size = Assembly(), ReceiverCredit(TOPIC_BYTES), 0
        try:
            stream.send(
                Round(
                    topic_id=topic_id,
                    number=number,
                    revision=revision,
                    first=first,
                    last=last,
                    credit=TOPIC_BYTES,
                    follow=marked is not None,
                    previous_time_ms=previous_time_ms,
                    topic=topic,
                )
            )
            while True:
                # A topic that is followed may be quiet. The connection's PINGs find out whether its owner is there.
                answer = await mine.next(STALL_S if marked is None else None)
                match answer:
                    case Start(_, _, expected):
                        begun(expected)
                    case Marks():
                        if marked is not None:
                            marked(answer)
                    case Chunk(_, _, data):
                        self.copied_bytes += len(data)
                        size += len(data)
                        stream.taken(len(data))
                        piece = assembly.add(answer)
                        if piece is not None:
                            await sink(piece)
                        if grant := credit.taken(len(data)):
                            stream.send(Grant(topic_id, grant))
                    case End(_, _, end):
                        if not assembly.is_whole:
                            raise CorruptObject(
                                f"a copy of topic {topic_id} cannot be used: its last piece is cut off",
                                cause="piece",
                            )
                        return Copied(size, end)
                    case Failure(_, _, error):
                        raise error
        finally:
            stream.close_round(topic_id, mine)
            self._close_when_idle(owner, stream)

    def _stream(self, owner: Owner) -> _Stream:
        stream = self._streams.get(owner)
        if stream is None or stream.error is not None:
            stream = self._streams[owner] = _Stream(owner)
            stream.wire = self._open_wire(owner, stream)
        return stream

    def _close_when_idle(self, owner: Owner, stream: _Stream) -> None:
        def close() -> None:
            if not stream.rounds and self._streams.get(owner) is stream and stream.used == used:
                del self._streams[owner]
                stream.close()

        used = stream.used
        if not stream.rounds and stream.error is None:
            asyncio.get_running_loop().call_later(_IDLE_S, close)

    def close(self) -> None:
        """Close the streams. Their rounds fail."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.close()


class _Round:
    """Queue of a round's answers.

    Credit bounds the chunks. Marks take none, and those that follow each other are joined. Their cursors wait apart, the
    newest one of each subscription, and the next marks that are taken have them: a cursor may come before the messages
    that it acknowledges (`CursorSnapshot.up_to`), and a session not. A source that ignores its credit, or sends countless
    other answers, could fill the memory while the sink waits: its round fails.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.chunk_bytes = 0  # that wait
        self._answers: deque[Answer] = deque()
        self._other_bytes = 0
        self._cursors: dict[str, bytes] = {}
        self._cursor_bytes = 0
        self._more = asyncio.Event()

    def add(self, answer: Answer) -> int:
        """Queue an answer. Returns the bytes of chunks that were dropped: the round has failed."""
        last = self._answers[-1] if self._answers else None
        if isinstance(last, Failure):
            return len(answer.data) if isinstance(answer, Chunk) else 0
        if isinstance(answer, Marks):
            self._hold(answer.cursors)
            answer = replace(answer, cursors={})
            if isinstance(last, Marks):
                answer = answer.after(last)
                self._count(self._answers.pop(), -1)
        self._answers.append(answer)
        self._count(answer, 1)
        dropped = 0
        if (error := self._excess(answer.topic_id)) is not None:
            dropped = self.chunk_bytes
            failure = Failure(answer.topic_id, self.number, error)
            self._answers = deque([failure])
            self.chunk_bytes, self._other_bytes = 0, _other_bytes(failure)
            self._cursors, self._cursor_bytes = {}, 0
        self._more.set()
        return dropped

    def _hold(self, cursors: Mapping[str, bytes]) -> None:
        """Keep cursors until marks are taken. If a source names more than a topic has, its oldest ones are left out."""
        for name, cursor in cursors.items():
            self._drop(name)
            self._cursors[name] = cursor
            self._cursor_bytes += _MARK_BYTES + len(name) + len(cursor)
            if len(self._cursors) > MOST_CURSORS:
                self._drop(next(iter(self._cursors)))

    def _drop(self, name: str) -> None:
        cursor = self._cursors.pop(name, None)
        if cursor is not None:
            self._cursor_bytes -= _MARK_BYTES + len(name) + len(cursor)

    def _excess(self, topic_id: int) -> ClusterError | None:
        """Return why the round has to end, if more waits than it may hold."""
        if self.chunk_bytes > _MOST_CHUNK_BYTES or self._other_bytes > _MOST_OTHER_BYTES:
            why = f"a copy of topic {topic_id} cannot be used: the source sent more than it was granted"
            return CorruptObject(why, cause="piece")
        if self._cursor_bytes > _MOST_OTHER_BYTES:
            return Overloaded(
                f"the changed cursors of topic {topic_id} have more than {_MOST_OTHER_BYTES >> 20} MiB, and wait until this "
                "broker has written the messages before them. The copy begins again where it ended",
                topic_id=str(topic_id),
            )
        return None

    def _count(self, answer: Answer, sign: int) -> None:
        self._other_bytes += sign * _other_bytes(answer)
        if isinstance(answer, Chunk):
            self.chunk_bytes += sign * len(answer.data)

    async def next(self, stall_s: float | None) -> Answer:
        """Return the next answer. Raises `Unavailable`: none came for so many seconds."""
        if not self._answers:
            self._more.clear()
            try:
                async with asyncio.timeout(stall_s):
                    await self._more.wait()
            except TimeoutError:
                raise Unavailable(f"the owner sent nothing for {stall_s:g} s", cause="stalled") from None
        answer = self._answers.popleft()
        self._count(answer, -1)
        if isinstance(answer, Marks):
            answer = replace(answer, cursors=self._cursors)
            self._cursors, self._cursor_bytes = {}, 0
        return answer


def _other_bytes(answer: Answer) -> int:
    """Estimate the bytes that an answer takes in memory, without the data of a chunk."""
    if not isinstance(answer, Marks):
        return _ANSWER_BYTES
    return _ANSWER_BYTES + sum(_MARK_BYTES + len(each.name) for each in answer.sessions)


class _Stream:
    """A stream to one owner, and its rounds by topic."""

    def __init__(self, owner: Owner) -> None:
        self.wire: Wire | None = None
        self.rounds: dict[int, _Round] = {}
        self.error: ClusterError | None = None
        self.used = 0  # rounds opened so far
        self._owner = owner
        self._credit = ReceiverCredit(STREAM_BYTES)

    def open(self, topic_id: int, number: int) -> _Round:
        assert topic_id not in self.rounds, "a topic has one round at a time"
        self.used += 1
        opened = self.rounds[topic_id] = _Round(number)
        if self.error is not None:
            opened.add(Failure(topic_id, number, self.error))
        return opened

    def close_round(self, topic_id: int, mine: _Round) -> None:
        """Close a round, and request that the owner ends it."""
        del self.rounds[topic_id]
        self.taken(mine.chunk_bytes)
        self.send(Leave(topic_id))

    def send(self, request: Request) -> None:
        if self.wire is not None and self.error is None:
            self.wire.send(request)

    def taken(self, size: int) -> None:
        """Grant the stream's credit for a chunk again, once it was taken or dropped."""
        if grant := self._credit.taken(size):
            self.send(Grant(0, grant))

    def answered(self, answer: Answer) -> None:
        found = self.rounds.get(answer.topic_id)
        if found is not None and found.number == answer.number:
            self.taken(found.add(answer))
        elif isinstance(answer, Chunk):
            self.taken(len(answer.data))

    def lost(self, error: ClusterError) -> None:
        self.error = error
        for topic_id, found in self.rounds.items():
            found.add(Failure(topic_id, found.number, error))

    def close(self) -> None:
        if self.error is None:
            self.lost(Unavailable(f"the stream to broker {self._owner} was closed"))
            if self.wire is not None:
                self.wire.close()
