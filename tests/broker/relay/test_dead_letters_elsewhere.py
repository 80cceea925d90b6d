"""Dead letters whose topic another broker owns."""

from __future__ import annotations

from typing import Any

import anyio
import grpc
import pytest
from pydanube import connect
from pydanube_core.names import TopicName

from tests.broker.relay.test_slow_and_fast_clients import topics_of
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(300)]

COUNT = 20


async def test_dead_letters_reach_a_topic_of_another_broker_and_only_then_are_the_originals_done(
    cluster: SeveralBrokers,
) -> None:
    origin, target = cluster.brokers[1], cluster.brokers[2]
    (bad,) = await topics_of(target, cluster, 1)
    name = TopicName.parse("origin")
    (topic,) = await origin.registry.create(name, partitions=0, dispatch_strategy="reliable", here=True)
    async with connect(origin.broker_url) as client:
        async with client.producer("origin") as producer:
            for n in range(COUNT):
                await producer.send(b"%d" % n)
        await origin.port.create_subscription("origin", "s", type="shared", start="earliest")
        policy: dict[str, Any] = {
            "max_redelivery_count": 1,
            "base_redelivery_delay_ms": 1,
            "poison_policy": "dead_letter",
            "dead_letter_topic": bad,
        }
        await origin.port.set_failure_policy("origin", "s", policy)
        pump = topic.subscriptions["s"]

        async def refuse_all() -> None:
            async with client.consumer("origin", "s", type="shared") as consumer:
                async for message in consumer:
                    await message.nack(0, reason="cannot be read")

        async with anyio.create_task_group() as group:
            group.start_soon(refuse_all)
            await until(lambda: pump.floor == COUNT)
            group.cancel_scope.cancel()
        letters = target.registry.find(TopicName.parse(bad))
        assert letters is not None
        assert letters.commit == COUNT, "each once"
        async with client.reader(bad) as reader:
            seen = [await anext(reader) for _ in range(COUNT)]
    assert {letter.payload for letter in seen} == {b"%d" % n for n in range(COUNT)}
    assert {letter.attributes["x-original-topic"] for letter in seen} == {"/default/origin"}


async def test_copies_come_from_brokers_of_the_cluster_alone(cluster: SeveralBrokers) -> None:
    url = cluster.brokers[1].broker_url
    async with grpc.aio.insecure_channel(url.removeprefix("http://")) as channel:
        call = channel.unary_unary("/danube.relay.Letters/Append")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"\0\0\0\2{}")
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
