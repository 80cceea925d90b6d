"""Read the committed messages of a topic that are not in the cold tier, in pieces, for a copy."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from pydanube_core.errors import JournalReadOnly

from pydanube_broker.copying.piece import PIECE_BYTES, Buffer, Piece
from pydanube_broker.topics.reading import READ_BYTES, read_once
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads


async def pieces_of(
    topic: Topic, first: int | None, worker_threads: WorkerThreads, *, last: bool
) -> AsyncGenerator[Piece]:
    """Yield the committed messages from `first` on, in pieces of about `PIECE_BYTES`, at least one piece.

    Messages that were flushed to the cold tier since the previous piece are a hole. The state in the last piece contains
    the offset up to which the cold tier has the topic.

    Args:
        first: end offset of the previous piece. None begins at the first offset that the cold tier does not have.
        last: whether the last piece has the topic's state. The topic must be closed to producers and committed to its end.

    Raises:
        JournalReadOnly: the newest messages will not be committed. Pieces that were yielded remain valid.
        CorruptJournal: a batch is damaged. Pieces that were yielded remain valid.
    """
    state, end = topic.state, topic.commit
    if last and end != state.next_offset:
        raise JournalReadOnly(f"topic {topic.name}: its last messages are not committed", topic=topic.name)
    size, batches = 0, list[Buffer]()
    begin = state.needed_offset if first is None else first
    at = max(begin, state.needed_offset)
    while at < end:
        found = await read_once(topic, at, end, READ_BYTES, worker_threads)
        # Flushed during the read: skip it, because the object store may be unavailable
        if state.needed_offset > at:
            at = state.needed_offset
            continue
        if found is None:
            continue
        if not found:
            break
        for batch in found:
            if not batches and first is None:
                # A copy has whole batches, so it includes trimmed messages of the first one
                begin = min(begin, batch.base)
            if batches and size + batch.stored_bytes > PIECE_BYTES:
                yield _piece(topic, begin, at, batches)
                begin, batches, size, first = at, [], 0, at
            batches.append(b"".join(batch.buffers))
            size += batch.stored_bytes
            at = batch.end
    yield _piece(topic, begin, max(end, at), batches, last=last)


def _piece(topic: Topic, first: int, end: int, batches: list[Buffer], *, last: bool = False) -> Piece:
    return Piece(
        topic_id=topic.topic_id,
        epoch=topic.assigned_epoch,
        first_offset=first,
        end_offset=end,
        batches=tuple(batches),
        state=topic.state if last else None,
        handovers=tuple(topic.state.handovers.values()) if last else (),
    )
