"""The messages of `danube.stream.Stream/Copy` (`danube_stream.proto`), as values. Pure.

A target requests rounds. The answers of a round are `Start`, chunks of pieces, and at the end `End` or `Failure`. A
round that follows its topic has `Marks` between them, and no `End`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from pydanube_core.errors import ClusterError, CorruptObject

from pydanube_broker.copying.credit import CHUNK_BYTES
from pydanube_broker.copying.piece import Piece, decode_piece, encode_piece
from pydanube_broker.topics.producers import MAX_PRODUCERS

# Maximum of one piece in memory, in bytes. Its largest part is the state of a topic with very many cursors.
MAX_PIECE_BYTES: Final = 256 << 20
# Cursors kept per source. A cursor above the maximum is sent again with its next change
MOST_CURSORS: Final = 10_000
# Bytes of an answer, which is decoded before it is counted: 4 MiB of empty cursors take 110 MB. The largest honest
# one has a part of the marks, and one cursor more: 32 768 ranges and attempts, of 40 bytes.
MAX_ANSWER_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A request for a topic's committed messages from offset `first` on.

    Attributes:
        number: number of this round. The target drops answers of the topic with another number.
        revision: store revision at which the target read the assignment.
        first: None for the first round, which begins at the first offset that the object store does not have.
        last: whether this is the last round. The owner has closed the topic, and the last piece has its state.
        credit: the topic's first credit in bytes.
        follow: whether the round follows the topic without an end, for a mirror in another cluster. Its pieces include
            messages that only the object store has.
        topic: with `follow`, the topic's name, by which the caller's right is checked.
        previous_time_ms: append time of the mirror's last batch, which ends at `first`. 0: unknown.
    """

    topic_id: int
    number: int
    revision: int
    first: int | None
    last: bool
    credit: int
    follow: bool = False
    previous_time_ms: int = 0
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """More credit in bytes for a topic, or with topic id 0 for the stream."""

    topic_id: int
    count: int


@dataclass(frozen=True, slots=True)
class Leave:
    """End a topic's round."""

    topic_id: int


@dataclass(frozen=True, slots=True)
class Start:
    """The round begins. It has about `size` bytes of batches."""

    topic_id: int
    number: int
    size: int


class SessionMark(NamedTuple):
    """A producer session, as the source's journal has it."""

    producer_id: int
    epoch: int
    token: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The present state of a topic that a round follows. Many cursors come in several, and a new `fenced` with the last.

    Attributes:
        start: offset of the first message.
        end: one past the newest committed message.
        time_ms: append time of the newest message.
        cursors: by subscription, encoded snapshots of the cursors that changed since the last marks.
        sessions: the producer sessions that changed since.
        fenced: whether the topic was failed over: it takes no client any more, and only commits under way may follow.
    """

    topic_id: int
    number: int
    start: int
    end: int
    time_ms: int
    cursors: Mapping[str, bytes]
    sessions: Sequence[SessionMark]
    fenced: bool = False

    def after(self, earlier: Marks) -> Marks:
        """Return marks that replace earlier ones and these, without cursors, which the target keeps apart.

        If a source sends more sessions than a topic has, its oldest ones are left out.
        """
        return replace(self, cursors={}, sessions=[*earlier.sessions, *self.sessions][-MAX_PRODUCERS:])


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a piece. The pieces of a topic come one after another."""

    topic_id: int
    number: int
    data: bytes
    ends_piece: bool


@dataclass(frozen=True, slots=True)
class End:
    """All of the round was sent, up to this offset."""

    topic_id: int
    number: int
    end: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The round has failed."""

    topic_id: int
    number: int
    error: ClusterError


Request: TypeAlias = Round | Grant | Leave
Answer: TypeAlias = Start | Marks | Chunk | End | Failure


def chunks_of(piece: Piece, number: int) -> Iterator[Chunk]:
    """Yield the piece in chunks of at most `CHUNK_BYTES`."""
    data = memoryview(b"".join(encode_piece(piece)))
    for at in range(0, len(data), CHUNK_BYTES):
        end = at + CHUNK_BYTES
        yield Chunk(piece.topic_id, number, bytes(data[at:end]), end >= len(data))


class Assembly:
    """Puts the chunks of one topic's round together."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._bytes = 0

    def add(self, chunk: Chunk) -> Piece | None:
        """Add a chunk, and return the piece that it completes, or None.

        Raises `CorruptObject`, `FormatTooNew`: the piece is damaged, of another topic, or above `MAX_PIECE_BYTES`.
        """
        self._held.append(chunk.data)
        self._bytes += len(chunk.data)
        if self._bytes > MAX_PIECE_BYTES:
            raise _corrupt(chunk, f"a piece has more than {MAX_PIECE_BYTES} bytes")
        if not chunk.ends_piece:
            return None
        data, self._held, self._bytes = b"".join(self._held), [], 0
        piece = decode_piece(data)
        if piece.topic_id != chunk.topic_id:
            raise _corrupt(chunk, f"it came with a piece of topic {piece.topic_id}")
        return piece

    @property
    def is_whole(self) -> bool:
        """Return whether there is no incomplete piece."""
        return not self._held


def _corrupt(chunk: Chunk, why: str) -> CorruptObject:
    return CorruptObject(f"a copy of topic {chunk.topic_id} cannot be used: {why}", cause="piece", reason=why)
