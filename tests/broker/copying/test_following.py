"""A round that follows a topic: what a mirror must know before it has the messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.copying import source as source_module
from pydanube_broker.copying.messages import Answer, Chunk, Marks, Round
from pydanube_broker.copying.piece import Piece
from pydanube_broker.copying.source import Source
from pydanube_broker.topics.producers import Producers

from tests.broker.copying.test_copying import piece_of
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def test_a_session_is_sent_before_the_first_messages_of_its_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The marks are not due for an hour, and a fail-over in between would lose the session's token."""
    monkeypatch.setattr(source_module, "MARKS_S", 3600.0)
    producers = Producers()
    topic = SimpleNamespace(
        topic_id=7, commit=0, start_offset=0, closed=None, subscriptions={}, listeners=set(),
        failed_over_to=None, state=SimpleNamespace(producers=producers, append_time_ms=1),
    )  # fmt: skip
    sent: list[Answer] = []

    async def permit(request: Round) -> Any:
        return topic

    async def check_continues(*of: object) -> int:
        return 0

    async def next_piece(topic: Any, at: int, threads: object) -> Piece:
        return piece_of(7, at, [10] * (topic.commit - at))

    monkeypatch.setattr(source_module, "check_continues", check_continues)
    monkeypatch.setattr(source_module, "next_piece", next_piece)
    source = Source(permit, cast(Any, None), send=sent.append, writable=lambda: True)
    source.handle(
        Round(topic_id=7, number=1, revision=0, first=0, last=False, credit=1 << 20, follow=True, topic="t")
    )

    async def publish(count: int) -> None:
        topic.commit += count
        for each in tuple(topic.listeners):
            each.grew()
        chunks = sum(isinstance(each, Chunk) for each in sent)
        await until(lambda: sum(isinstance(each, Chunk) for each in sent) > chunks)

    await until(lambda: sent)
    producers.add(1, 1, "", token=9)
    await publish(1)
    await publish(2)
    source.close()
    assert [type(each) for each in sent] == [Marks, Marks, Chunk, Chunk]
    (session,) = cast(Marks, sent[1]).sessions
    assert (session.producer_id, session.token) == (1, 9)
