"""What the admin core relies on in a `ClusterPort`: the in-memory one of tests and a real broker's, alike."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from pydanube_admin.testing import MemoryCluster
from pydanube_broker.broker import Broker
from pydanube_broker.settings import MEMORY_DIR, load_settings
from pydanube_core.errors import AlreadyExists, SubscriptionNotFound, TopicNotFound
from pydanube_core.facts import ClusterPort

pytestmark = pytest.mark.anyio

PORTS = ("grpc_port", "admin_port", "metrics_port")


@pytest.fixture(params=["memory", "broker"])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[ClusterPort]:
    if request.param == "memory":
        yield MemoryCluster()
        return
    free = {f"server.{name}": 0 for name in PORTS}
    settings = load_settings(None, {}, {"data.dir": MEMORY_DIR, "server.grpc_runtime": "grpcio", **free})
    with anyio.fail_after(60):
        async with Broker(settings) as broker:
            yield broker.port


async def create(port: ClusterPort, topic: str, partitions: int = 0) -> None:
    await port.create_topic(
        topic, partitions=partitions, dispatch_strategy="reliable", durability="fsynced", options={}
    )


async def test_a_topic_is_its_own_facts_alone(port: ClusterPort) -> None:
    await create(port, "/default/one")
    (own,) = await port.topic("/default/one")
    assert (own.topic, own.parent, own.partition, own.partitions) == ("/default/one", None, None, 0)
    assert (own.messages, own.start_offset, own.next_offset) == (0, 0, 0)
    assert own.owner is not None
    assert own.owner.isdecimal()
    assert [facts.topic for facts in await port.topics()] == ["/default/one"]


async def test_a_partitioned_topic_comes_first_and_its_partitions_behind_it(port: ClusterPort) -> None:
    await create(port, "/default/many", partitions=2)
    own, *parts = await port.topic("/default/many")
    assert (own.topic, own.parent, own.partitions) == ("/default/many", None, 2)
    assert sorted((part.topic, part.partition, part.parent, part.partitions) for part in parts) == [
        (f"/default/many-part-{index}", index, "/default/many", 0) for index in range(2)
    ]
    (part,) = await port.topic("/default/many-part-1")
    assert part.parent == "/default/many"
    assert len(await port.topics()) == 3


async def test_a_name_is_taken_once_and_free_again_after_deletion(port: ClusterPort) -> None:
    await create(port, "/default/many", partitions=2)
    with pytest.raises(AlreadyExists):
        await create(port, "/default/many")
    await port.delete_topic("/default/many")
    assert list(await port.topics()) == []
    await create(port, "/default/many")
    assert len(await port.topic("/default/many")) == 1


async def test_what_is_not_there_is_said_by_kind(port: ClusterPort) -> None:
    for call in (
        port.topic("/default/none"),
        port.delete_topic("/default/none"),
        port.subscriptions("/default/none", None),
    ):
        with pytest.raises(TopicNotFound):
            await call
    await create(port, "/default/one")
    assert list(await port.subscriptions("/default/one", None)) == []
    assert list(await port.subscriptions(None, None)) == []
    for topic in ("/default/one", None):
        with pytest.raises(SubscriptionNotFound):
            await port.subscriptions(topic, "none")


async def test_the_broker_has_a_status(port: ClusterPort) -> None:
    status = await port.status()
    assert status.broker_id.isdecimal()
    assert status.ready
    assert status.data_dir is None
