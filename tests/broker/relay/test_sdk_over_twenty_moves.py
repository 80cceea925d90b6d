"""What an application sees that uses the SDK while its topic moves: slow sends, and no error."""

from __future__ import annotations

import time

import anyio
import pytest
from pydanube import connect
from pydanube_core.names import TopicName

from tests.broker.moves.test_moves_between_brokers import move
from tests.broker.serving.test_several_brokers import create
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(300)]


async def test_producer_sends_through_twenty_moves_and_sees_no_error(cluster: SeveralBrokers) -> None:
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves(TopicName.parse("t")))
    sent, enough, slowest = 0, anyio.Event(), 0.0
    async with connect(cluster.brokers[1].broker_url) as client, client.producer("t") as producer:

        async def produce() -> None:
            nonlocal sent, slowest
            while not enough.is_set():
                begun = time.monotonic()
                await producer.send(b"%d" % sent)
                slowest = max(slowest, time.monotonic() - begun)
                sent += 1

        async with anyio.create_task_group() as group:
            group.start_soon(produce)
            for _ in range(20):
                wanted = sent + 5
                await until(lambda wanted=wanted: sent >= wanted)
                await move(cluster, "t", cluster.others("t")[0])
            enough.set()
    stored = cluster.owner("t").registry.find(TopicName.parse("t"))
    assert stored is not None
    assert stored.commit == sent, "each stored once"
    assert slowest > 0
