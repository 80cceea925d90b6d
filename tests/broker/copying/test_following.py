"""A round that follows a topic: what a mirror must know before it has the messages."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.copying import source as source_module
from pydanube_broker.copying.credit import CHUNK_BYTES
from pydanube_broker.copying.messages import Answer, Chunk, Marks, Round
from pydanube_broker.copying.piece import Piece
from pydanube_broker.copying.source import Source
from pydanube_broker.subscription.cursor import CursorSnapshot, decode_snapshot
from pydanube_broker.topics.producers import Producers

from tests.broker.copying.test_copying import piece_of
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


def followed() -> Any:
    return SimpleNamespace(
        topic_id=7, commit=0, start_offset=0, closed=None, subscriptions={}, listeners=set(),
        failed_over_to=None, state=SimpleNamespace(producers=Producers(), append_time_ms=1),
    )  # fmt: skip


def source_of(
    monkeypatch: pytest.MonkeyPatch,
    topic: Any,
    sent: list[Answer],
    writable: Callable[[], bool] = lambda: True,
) -> Source:
    async def permit(request: Round) -> Any:
        return topic

    async def check_continues(*of: object) -> int:
        return 0

    async def next_piece(topic: Any, at: int, threads: object) -> Piece:
        return piece_of(7, at, [10] * (topic.commit - at))

    monkeypatch.setattr(source_module, "check_continues", check_continues)
    monkeypatch.setattr(source_module, "next_piece", next_piece)
    source = Source(permit, cast(Any, None), send=sent.append, writable=writable)
    source.handle(
        Round(topic_id=7, number=1, revision=0, first=0, last=False, credit=1 << 20, follow=True, topic="t")
    )
    return source


async def test_a_session_is_sent_before_the_first_messages_of_its_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The marks are not due for an hour, and a fail-over in between would lose the session's token."""
    monkeypatch.setattr(source_module, "MARKS_S", 3600.0)
    topic, sent = followed(), list[Answer]()
    source = source_of(monkeypatch, topic, sent)

    async def publish(count: int) -> None:
        topic.commit += count
        for each in tuple(topic.listeners):
            each.grew()
        chunks = sum(isinstance(each, Chunk) for each in sent)
        await until(lambda: sum(isinstance(each, Chunk) for each in sent) > chunks)

    await until(lambda: sent)
    topic.state.producers.add(1, 1, "", token=9)
    await publish(1)
    await publish(2)
    source.close()
    assert [type(each) for each in sent] == [Marks, Marks, Chunk, Chunk]
    (session,) = cast(Marks, sent[1]).sessions
    assert (session.producer_id, session.token) == (1, 9)


async def test_marks_are_made_when_the_stream_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a narrow wire each second's waited in the source's memory, whatever the stream's bound was."""
    monkeypatch.setattr(source_module, "MARKS_S", 0.001)
    looks, room, topic, sent = 0, False, followed(), list[Answer]()

    def writable() -> bool:
        nonlocal looks
        looks += 1
        return room

    source = source_of(monkeypatch, topic, sent, writable)
    pump = topic.subscriptions["s"] = SimpleNamespace(cursor=CursorSnapshot(floor=0))
    for floor in range(1, 20):
        pump.cursor = CursorSnapshot(floor=floor)
        before = looks
        source.wake()
        await until(lambda: looks > before)  # noqa: B023 (it is called in this turn only)
    assert not sent
    room = True
    source.wake()
    await until(lambda: sent)
    source.close()
    (only,) = cast(list[Marks], sent)
    assert decode_snapshot(only.cursors["s"]).floor == 19


async def test_marks_of_many_cursors_come_in_parts_and_the_last_one_has_the_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One message had all of them, and above 64 MiB the mirror's broker took none."""
    monkeypatch.setattr(source_module, "MARKS_S", 3600.0)
    topic, sent = followed(), list[Answer]()
    cursor = CursorSnapshot(floor=0, acknowledged=tuple((n, n + 1) for n in range(1, 10_000, 2)))
    topic.subscriptions |= {f"s{n}": SimpleNamespace(cursor=cursor) for n in range(50)}
    topic.state.producers.add(1, 1, "", token=9)
    topic.failed_over_to = "us"
    source = source_of(monkeypatch, topic, sent)
    await until(lambda: sent)
    source.close()
    parts = cast(list[Marks], sent)
    assert [name for each in parts for name in each.cursors] == [f"s{n}" for n in range(50)]
    size = sum(map(len, parts[0].cursors.values()))
    assert CHUNK_BYTES <= size < CHUNK_BYTES + 100_000
    assert [each.fenced for each in parts] == [False] * (len(parts) - 1) + [True]
    assert [len(each.sessions) for each in parts] == [1] + [0] * (len(parts) - 1)
