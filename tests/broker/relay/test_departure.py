"""A broker that leaves: its topics go first, its clients after them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import grpc
import pytest
from pydanube_broker.departure import Patience, depart
from pydanube_broker.moves.moves import Moves
from pydanube_core.names import TopicName

from tests.broker.official.raw_client import CONSUMER, RawClient, code_of
from tests.broker.relay.test_slow_and_fast_clients import topics_of
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(300)]


async def test_official_clients_of_a_broker_that_leaves_are_sent_after_their_topics(
    cluster: SeveralBrokers,
) -> None:
    leaving = cluster.brokers[1]
    (name,) = await topics_of(leaving, cluster, 1)
    async with RawClient(leaving.broker_url) as client, anyio.create_task_group() as group:
        producer = await client.create_producer(name)
        stream = await client.consume(name)
        await client.send(name, producer, b"before")
        message = await stream.next()
        served = leaving.registry.find(TopicName.parse(name))
        assert served is not None
        (consumer,) = served.subscriptions["s"].links
        patience = Patience(topics=60, health_checks=1.0, look_ups=60)
        group.start_soon(depart, leaving, patience)
        await until(lambda: cluster.serves(TopicName.parse(name)) and cluster.owner(name) is not leaving)

        async def closed() -> bool:
            return await client.health(CONSUMER, consumer) == "CLOSE"

        with anyio.fail_after(20):
            await until(lambda: closed())  # what it asks has no event
        sending = client.call("ProducerService/SendMessage", client.message(name, producer, b"x"))
        assert await code_of(sending) is grpc.StatusCode.UNAVAILABLE
        await client.ack(message)
        assert await stream.ended() is grpc.StatusCode.UNAVAILABLE
        found = await client.lookup(name)
        assert found.connect_url == cluster.owner(name).broker_url
        stored = cluster.owner(name).registry.find(TopicName.parse(name))
        assert stored is not None
        await until(lambda: stored.subscriptions["s"].floor == 1)
        group.cancel_scope.cancel()


def once_no_other_takes(moves: Moves) -> Callable[..., Awaitable[object]]:
    """Return `moves.begin`, called only when all others are known to drain: else their topics may have left by then."""
    begin = moves.begin

    async def late(*arguments: Any, **named: Any) -> object:
        await until(lambda: not moves.targets())
        return await begin(*arguments, **named)

    return late


async def test_brokers_that_are_all_stopped_at_once_do_not_wait_for_one_another(
    cluster: SeveralBrokers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = list(cluster.brokers.values())
    for number, broker in enumerate(brokers):
        await broker.registry.create(
            TopicName.parse(f"of-{number}"), partitions=0, dispatch_strategy="reliable", here=True
        )
        monkeypatch.setattr(broker.moves, "begin", once_no_other_takes(broker.moves))
    patience = Patience(topics=200, health_checks=0.1, look_ups=0.1)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for broker in brokers:
                group.start_soon(depart, broker, patience)
    told = [record for record in caplog.records if record.message == "drain_given_up"]
    assert len(told) == len(brokers)
    assert all(record.__dict__["would_wait"] and not record.__dict__["other_brokers"] for record in told)
