"""Ids of sessions and connections come from epochs: a clock that goes back between two owners gives none twice."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from pydanube_broker.broker import Broker
from pydanube_broker.services.consume import ConsumeStream
from pydanube_broker.services.publish import PublishStream
from pydanube_broker.topics import topic as topic_module
from pydanube_broker.topics.stored_messages import append_durably
from pydanube_broker.wall_clock import WallClock
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener
from tests.broker.delivery.test_what_is_confirmed_is_kept import Reply
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

RELIABLE, LIVE = (TopicName.parse(f"/default/{name}") for name in ("reliable", "live"))
NOON_MS = 1_800_000_000_000


class ConsumerReply(Reply):
    """The broker's way to a client that consumes."""

    opened: Any = None

    def send(self, data: bytes) -> None:
        response = pb.ConsumeResponse.FromString(data)
        if response.HasField("opened"):
            self.opened = response.opened


async def opened_as(broker: Broker, **request: Any) -> tuple[ConsumeStream, Any]:
    reply = ConsumerReply()
    stream = ConsumeStream(reply, broker, lambda stream: None)  # type: ignore[arg-type]
    stream.on_message(pb.ConsumeRequest(open=pb.OpenConsumer(**request)).SerializeToString())
    await until(lambda: reply.opened)
    return stream, reply.opened


async def produced_on(broker: Broker, topic: TopicName) -> Any:
    reply = Reply()
    stream = PublishStream(reply, broker, lambda stream: None)  # type: ignore[arg-type]
    stream.on_message(pb.PublishRequest(open=pb.OpenProducer(topic=str(topic))).SerializeToString())
    await until(lambda: reply.sent)
    return reply.sent[0].opened


async def ids(broker: Broker) -> dict[str, int]:
    """What a life of the broker gives out first, of every kind."""
    for name, strategy in ((RELIABLE, "reliable"), (LIVE, "non_reliable")):
        await broker.registry.create(name, partitions=0, dispatch_strategy=strategy)
    _, consumer = await opened_as(broker, topic=str(RELIABLE), subscription="s")
    _, reader = await opened_as(broker, topic=str(RELIABLE))
    _, live = await opened_as(broker, topic=str(LIVE), subscription="s")
    _, live_reader = await opened_as(broker, topic=str(LIVE))
    producer = await produced_on(broker, LIVE)
    (connected,) = await broker.port.producers()
    return {
        "session": consumer.session,
        "session of a reader": reader.session,
        "session of a live subscription": live.session,
        "session of a live reader": live_reader.session,
        "consumer": consumer.consumer_id,
        "producer of a live topic": producer.producer_id,
        "connection of a producer": int(connected.session_id),
    }


async def test_ids_grow_from_life_to_life_also_where_the_clock_goes_back(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = []
    for now_ms in (NOON_MS, NOON_MS - 3_600_000, NOON_MS - 7_200_000):
        monkeypatch.setattr(topic_module, "CLOCK", WallClock(wall_ms=partial(int, now_ms)))
        async with opened() as broker:
            lives.append(await ids(broker))
    for former, later in itertools.pairwise(lives):
        assert {kind: later[kind] > former[kind] for kind in former} == dict.fromkeys(former, True)


async def test_an_acknowledgement_of_a_former_life_does_not_pass_where_the_clock_stands_still(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_module, "CLOCK", WallClock(wall_ms=lambda: NOON_MS))
    async with opened() as broker:
        (topic,) = await broker.registry.create(RELIABLE, partitions=0, dispatch_strategy="reliable")
        await append_durably(topic, [b"x"], producer="p")
        _, former = await opened_as(broker, topic=str(RELIABLE), subscription="s", start="earliest")
    async with opened() as broker:
        stream, consumer = await opened_as(
            broker, topic=str(RELIABLE), subscription="s", credit_messages=10, credit_bytes=1000
        )
        pump = broker.registry.topics[0].subscriptions["s"]
        await until(lambda: pump.delivered == 1)
        floors = []
        for session in (former.session, consumer.session):
            ack = pb.Ack(session=session, ranges=[0, 1])
            stream.on_message(pb.ConsumeRequest(ack=ack).SerializeToString())
            floors.append(pump.floor)
        assert floors == [0, 1]
        stream.on_close()
