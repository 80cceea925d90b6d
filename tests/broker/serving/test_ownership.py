"""A topic comes and goes as a whole: what is released ends for everybody, what is adopted again goes on where it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from pydanube import Client
from pydanube_broker.broker import Broker
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.delivery import engine
from pydanube_broker.journal.records import RecordKind
from pydanube_broker.topics.topic import Topic
from pydanube_core.errors import TopicNotFound, Unavailable
from pydanube_core.names import TopicName

from tests.support.messages import take
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

NAME = TopicName.parse("/default/t")


async def test_a_released_topic_takes_nothing_and_goes_on_where_it_was_when_it_is_adopted_again(
    broker: Broker, client: Client
) -> None:
    ownership = broker.registry.ownership
    async with client.producer("t") as producer, client.consumer("t", "s", start="earliest") as consumer:
        await producer.send_many([b"0", b"1", b"2"])
        await (await take(consumer, 3))[0].ack()
        await consumer.flush_acks()
    former = ownership.topics[NAME]
    session = next(former.sessions)
    ownership.release(former, Unavailable("it moves", retry_after_ms=10))
    await former.settled()
    assert broker.registry.find(NAME) is None
    with pytest.raises(TopicNotFound):
        await broker.port.topic("t")

    record = broker.registry.catalog.index.topic(NAME)
    ownership.coordinator.forget(TopicId(former.topic_id))
    assert ownership.owner(former.topic_id) is None
    await ownership.acquire([record])
    topic = ownership.topics[NAME]
    assert (topic.commit, topic.subscriptions["s"].floor) == (3, 1)
    assert topic.assigned_epoch == former.assigned_epoch + 1
    assert next(topic.sessions) > session
    owner = ownership.owner(topic.topic_id)
    assert owner is not None
    assert (owner.broker_id, owner.broker_url) == (str(broker.data_dir.broker_id), broker.broker_url)
    async with client.consumer("t", "s") as consumer:
        assert [message.payload for message in await take(consumer, 2)] == [b"1", b"2"]


@asynccontextmanager
async def _unconfirmed() -> AsyncIterator[None]:
    """Let a consumer leave though its last acknowledgements cannot be confirmed any more."""
    with suppress(Unavailable):
        yield


async def test_a_released_topic_keeps_the_acknowledgements_of_its_last_moments(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer of cursors has not written them: the release does, to the journal and to the state of the log."""
    monkeypatch.setattr(engine, "FLUSH_S", 3600.0)
    ownership = broker.registry.ownership
    async with (
        _unconfirmed(),
        client.producer("t") as producer,
        client.consumer("t", "s", start="earliest") as consumer,
    ):
        await producer.send_many([b"0", b"1", b"2", b"3"])
        first, _, third, _ = await take(consumer, 4)
        topic = ownership.topics[NAME]
        pump = topic.subscriptions["s"]
        for message in (third, first):
            await message.ack()
        await until(lambda: pump.floor == 1)
        records: list[RecordKind] = []
        append = Topic.append_record

        def noting(topic: Topic, kind: RecordKind, body: bytes) -> int:
            records.append(kind)
            return append(topic, kind, body)

        monkeypatch.setattr(Topic, "append_record", noting)
        ownership.release(topic, Unavailable("it moves", retry_after_ms=10))
    assert records == [RecordKind.CURSOR]
    kept = topic.state.cursors[pump.subscription_id]
    assert (kept.floor, list(kept.acknowledged)) == (1, [(2, 3)])


async def test_the_broker_that_is_alone_leads_and_owns_every_topic(broker: Broker) -> None:
    await broker.registry.create(NAME, partitions=3, dispatch_strategy="reliable")
    leader = await broker.port.leader()
    assert leader is not None
    (key,) = [each for each in await broker.port.topic_index() if each.topic == str(NAME)]
    facts = await broker.port.topic(str(NAME))
    assert {leader.broker_id, *key.owners, *(each.owner for each in facts)} == {
        str(broker.data_dir.broker_id)
    }
