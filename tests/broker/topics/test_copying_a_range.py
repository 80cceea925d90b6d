"""A replay appends each copy once and in order, and says how far the target has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.cluster.ids import Epoch
from pydanube_broker.journal import CachedBatch
from pydanube_broker.topics import replay
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.memory_topic import MemoryTopic
from pydanube_broker.topics.replay import Replay, append_copies
from pydanube_broker.topics.stored_messages import append_durably
from pydanube_broker.topics.topic import Topic
from pydanube_core.batch import encode_batch, read_broker_part, read_producer_part
from pydanube_core.errors import SchemaIncompatible, StoreUnavailable
from pydanube_core.names import TopicName

from tests.core.batches import steady

TARGET = TopicName.parse("target")


class Threads:
    """Worker threads whose work runs in the loop."""

    def pending(self) -> Any:
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


async def copied(
    pieces: list[list[int]], *, fails_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Replay, list[bytes], StoreUnavailable | None]:
    """Replay batches of ten offsets whose copies are batches of so many messages. The append of one number fails."""
    appended: list[bytes] = []
    base = 0

    async def batches(source: Any, start: int, end: int, threads: Any) -> AsyncIterator[Any]:
        for number in range(len(pieces)):
            yield SimpleNamespace(base=number * 10, end=number * 10 + 10)

    def copies(batch: Any, *_: Any) -> list[bytes]:
        number = batch.base // 10
        return [encode_batch([b"%d/%d" % (number, at)] * count) for at, count in enumerate(pieces[number])]

    async def begin(target: TopicName, data: bytes) -> asyncio.Future[int]:
        nonlocal base
        assert target == TARGET
        if len(appended) == fails_at:
            raise StoreUnavailable("away")
        appended.append(data)
        future = asyncio.get_running_loop().create_future()
        future.set_result(100 + base)
        base += read_producer_part(data, verify=False).count
        return future

    monkeypatch.setattr(replay, "batches_between", batches)
    monkeypatch.setattr(replay, "copies_of", copies)
    source: Any = SimpleNamespace(name="/default/source")
    threads: Any = Threads()
    work: Any = SimpleNamespace(done=0)
    found = Replay(source, TARGET, threads, begin)
    try:
        await found.run(0, len(pieces) * 10, work)
    except StoreUnavailable as error:
        return found, appended, error
    assert work.done == found.copied.messages
    return found, appended, None


@steady
@given(
    pieces=st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=12),
    fails_at=st.none() | st.integers(0, 20),
)
def test_each_copy_is_appended_once_and_only_whole_batches_count_as_copied(
    pieces: list[list[int]], fails_at: int | None
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        found, appended, error = anyio.run(lambda: copied(pieces, fails_at=fails_at, monkeypatch=monkeypatch))
    wanted = [
        encode_batch([b"%d/%d" % (number, at)] * count)
        for number, counts in enumerate(pieces)
        for at, count in enumerate(counts)
    ]
    assert appended == wanted[:fails_at]
    messages = sum(read_producer_part(data, verify=False).count for data in appended)
    assert found.copied.messages == messages
    assert found.copied.first_offset == (100 if messages else None)
    assert found.copied.last_offset == (99 + messages if messages else None)
    assert (error is not None) == (fails_at is not None and fails_at < len(wanted))
    if error is None:
        assert found.next_offset == len(pieces) * 10
        return
    until, left = 0, len(appended)
    for number, counts in enumerate(pieces):
        if left < len(counts):
            until = number * 10 if left else until  # the batch's copies will come again
            break
        left -= len(counts)
        until = number * 10 + 10 if counts else until
    assert (error.details["copied_until"], error.details["copied_messages"]) == (until, messages)


class Guard:
    """A schema that knows some batches at a glance, and refuses the payload b"bad"."""

    def __init__(self, *, is_known: bool) -> None:
        self.is_known = is_known

    def check_batch(self, data: bytes, part: Any) -> bool:
        return self.is_known

    async def check_payloads(self, data: bytes, part: Any) -> None:
        if b"bad" in data:
            raise SchemaIncompatible("the payload is bad", topic="/default/t")


def a_live_topic(schema: Guard | None) -> MemoryTopic:
    topic = MemoryTopic("/default/t", 7, Hub(), options=None, limits=Limits(), epoch=Epoch(3))
    guard: Any = schema
    topic.schema = guard
    return topic


@pytest.mark.anyio
@pytest.mark.parametrize("payload", [b"good", b"bad"])
@pytest.mark.parametrize("schema", [None, Guard(is_known=True), Guard(is_known=False)])
async def test_copies_that_the_schema_of_the_target_refuses_are_not_appended(
    payload: bytes, schema: Guard | None
) -> None:
    topic = a_live_topic(schema)
    if schema is not None and not schema.is_known and payload == b"bad":
        with pytest.raises(SchemaIncompatible):
            await append_copies(topic, encode_batch([payload]))
        assert topic.commit == 0
        return
    committed = await append_copies(topic, encode_batch([payload]))
    assert (await committed, topic.commit) == (0, 1)


@pytest.mark.anyio
@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("schema", [None, Guard(is_known=False)])
async def test_messages_of_an_operation_are_checked_by_the_schema_only_where_that_is_asked_for(
    schema: Guard | None, is_checked: bool
) -> None:
    topic = a_live_topic(schema)
    if schema is not None and is_checked:
        with pytest.raises(SchemaIncompatible):
            await append_durably(topic, [b"bad"], producer="p", checked=is_checked)
        assert topic.commit == 0
    else:
        assert await append_durably(topic, [b"bad"], producer="p", checked=is_checked) == 0


class Sink:
    """A reader of a live topic."""

    def __init__(self) -> None:
        self.seen: list[CachedBatch] = []

    def offer(self, batch: CachedBatch) -> None:
        self.seen.append(batch)


@pytest.mark.anyio
async def test_a_live_batch_names_the_offsets_that_it_was_given_and_reaches_every_reader() -> None:
    topic = a_live_topic(None)
    reader, subscription = Sink(), Sink()
    topic.live_readers.add(reader)
    topic.subscriptions["s"] = subscription
    for base, count in ((0, 3), (3, 1), (4, 2)):
        data = encode_batch([b"x"] * count)
        appended, _ = topic.append(data, read_producer_part(data))
        assert (appended.base_offset, topic.commit, topic.start_offset) == (base, base + count, base + count)
        for sink in (reader, subscription):
            batch = sink.seen[-1]
            part = read_broker_part(batch.buffers[0])
            assert (part.base_offset, part.last_offset, part.epoch) == (base, base + count - 1, 3)
            assert (batch.base, batch.end, batch.count) == (base, base + count, count)
            assert batch.stored_bytes == sum(len(each) for each in batch.buffers)


@pytest.mark.anyio
@pytest.mark.parametrize("has_tier", [True, False])
async def test_messages_below_the_tiered_offset_are_read_from_the_tier_and_others_from_the_journal(
    has_tier: bool,
) -> None:
    asked: list[tuple[str, int, int]] = []
    journal: Any = SimpleNamespace(
        read=lambda topic_id, offset, end, size: asked.append(("journal", offset, end)),
        plan_read=lambda topic_id, offset, end, size: asked.append(("journal", offset, end)),
        read_planned=lambda plan: "planned",
    )
    cold: Any = SimpleNamespace(
        read=lambda topic, offset, end, size: asked.append(("tier", offset, end)),
        fill=lambda topic, offset, end, size, threads, done: asked.append(("tier", offset, end)),
    )
    begun: list[Any] = []
    threads: Any = SimpleNamespace(run=lambda work, done: begun.append((work, done)))
    hub = Hub()
    hub.journal, hub.cold = journal, cold if has_tier else None
    topic = Topic(
        "/default/t", LogState(7, next_offset=10), hub, options=None, limits=Limits(), epoch=Epoch(1)
    )
    topic.state.tiered_offset = 5
    done: Any = object()
    for offset in (4, 5):
        place = "tier" if has_tier and offset == 4 else "journal"
        topic.read(offset, 99, 1)
        topic.fill(offset, 99, 1, threads, done)
        assert asked == [(place, offset, 10)] * 2, "no uncommitted message is read"
        assert begun == ([] if place == "tier" else [("planned", done)])
        asked.clear()
        begun.clear()
