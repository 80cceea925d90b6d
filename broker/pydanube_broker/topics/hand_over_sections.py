"""Read a topic for a hand-over: committed messages that are not in the cold tier, in sections."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydanube_core.errors import JournalReadOnly

from pydanube_broker.topics.fragment import SECTION_BYTES, Buffer, Section
from pydanube_broker.topics.reading import READ_BYTES, read_once
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads


async def sections_of(
    topic: Topic, first: int | None, worker_threads: WorkerThreads, *, final: bool
) -> AsyncIterator[Section]:
    """Yield what is committed from `first` on, in sections of about `SECTION_BYTES`; at least one.

    Args:
        first: where the part before ended; None for the first: from what the cold tier does not have.
        final: the topic takes nothing more, all of it is committed, and the last section is to have its state.

    Raises:
        JournalReadOnly: what was taken will not be committed. CorruptJournal, and what the cold tier raises. What was
        yielded holds.
    """
    state, end = topic.state, topic.commit
    if final and end != state.next_offset:
        raise JournalReadOnly(f"topic {topic.name}: what it took last is not committed", topic=topic.name)
    begin = at = state.needed_offset if first is None else first
    size, batches = 0, list[Buffer]()
    while at < end:
        found = await read_once(topic, at, end, READ_BYTES, worker_threads)
        if found is None:
            continue
        if not found:
            break
        for batch in found:
            if not batches and first is None:
                begin = min(begin, batch.base)  # the first of its messages are trimmed: they come along
            if batches and size + batch.stored_bytes > SECTION_BYTES:
                yield _section(topic, begin, at, batches)
                begin, batches, size, first = at, [], 0, at
            batches.append(b"".join(batch.buffers))
            size += batch.stored_bytes
            at = batch.end
    yield _section(topic, begin, max(end, at), batches, final=final)


def _section(topic: Topic, first: int, end: int, batches: list[Buffer], *, final: bool = False) -> Section:
    return Section(
        topic_id=topic.topic_id,
        epoch=topic.assigned_epoch,
        first_offset=first,
        end_offset=end,
        batches=tuple(batches),
        state=topic.state if final else None,
        holdings=tuple(topic.state.holdings.values()) if final else (),
    )
