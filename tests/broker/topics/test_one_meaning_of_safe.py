"""Batches, cursors, sessions and trims are promised by one rule: a stricter one would hold all of them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio
import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_broker.journal import RecordKind
from pydanube_broker.topics import topic as topic_module
from pydanube_core.errors import TopicNotFound
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener, broker, client, one_loop, opened
from tests.support.messages import take
from tests.support.waiting import until

__all__ = ["broker", "client", "one_loop", "opened"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

NAME = TopicName.parse("/default/t")


def hold_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a level of durability that asks for more than this disk, and has not got it."""
    monkeypatch.setattr(topic_module, "safe_position", lambda *, safe, local_durable: safe)


async def test_records_of_every_kind_wait_for_the_one_rule(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, kinds = broker.journal.append, set[RecordKind]()

    def noted(kind: RecordKind, topic_id: int, body: Any) -> int:
        kinds.add(kind)
        return append(kind, topic_id, body)

    async with client.producer("t") as producer, client.consumer("t", "s") as consumer:
        await producer.send_many([b"x"] * 10)
        for message in await take(consumer, 10):
            await message.ack()
        topic = broker.registry.find(NAME)
        assert topic is not None
        other = client.producer("t")
        ended: list[str] = []

        async def wait(name: str, work: Awaitable[Any]) -> None:
            await work
            ended.append(name)

        with monkeypatch.context() as held:
            hold_back(held)
            held.setattr(broker.journal, "append", noted)
            async with anyio.create_task_group() as group:
                group.start_soon(wait, "batch", producer.send(b"y"))
                group.start_soon(wait, "cursor", consumer.flush_acks())
                group.start_soon(wait, "session", other.__aenter__())
                group.start_soon(wait, "trim", broker.port.truncate_topic("/default/t", {"/default/t": 5}))
                await until(
                    lambda: (
                        {RecordKind.CURSOR, RecordKind.SESSION, RecordKind.TRIM_PREFIX} <= kinds
                        and topic.state.next_offset == 11
                    )
                )
                await until(lambda: broker.journal.durable_lsn >= topic.position)
                await anyio.sleep(0.05)  # an answer would be there by now
                assert (ended, topic.commit) == ([], 10)
                held.undo()
                topic.advance(broker.journal.durable_lsn)
        assert (sorted(ended), topic.commit) == (["batch", "cursor", "session", "trim"], 11)
        await other.aclose()


async def test_a_topic_comes_back_when_all_that_its_deletion_interrupted_is_safe(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as broker, connect(broker.broker_url) as client, anyio.create_task_group() as group:
        producer = await client.producer("t").__aenter__()
        await producer.send(b"0")
        former = broker.registry.find(NAME)
        assert former is not None

        async def send() -> None:
            with pytest.raises(TopicNotFound):
                await producer.send(b"1")

        with monkeypatch.context() as held:
            hold_back(held)
            group.start_soon(send)
            await until(lambda: former.state.next_offset == 2)
            await broker.registry.delete(NAME, grace=Grace(call_id="c1", until_ms=1 << 50))
            group.start_soon(broker.registry.restore, "c1")
            await until(lambda: broker.journal.durable_lsn >= former.position)
            await anyio.sleep(0.05)  # it would be served by now
            assert broker.registry.find(NAME) is None
            held.undo()
            former.advance(broker.journal.durable_lsn)
        await until(lambda: broker.registry.find(NAME))
        topic = broker.registry.find(NAME)
        assert topic is not None
        assert (topic is former, topic.commit) == (False, 2)
        await producer.aclose()
