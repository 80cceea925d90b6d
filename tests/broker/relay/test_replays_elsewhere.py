"""Replays into topics that other brokers own."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.topics.replay import Replay
from pydanube_core.errors import ClusterError, TopicNotFound
from pydanube_core.names import TopicName

from tests.broker.moves.test_moves_between_brokers import move
from tests.broker.schema.test_registry_service import RegistryClient, register
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(300)]

COUNT = 120
WHOLE = {"/default/origin": (0, COUNT)}


async def create(owner: Broker, cluster: SeveralBrokers, name: str, **options: Any) -> None:
    topic = TopicName.parse(name)
    await owner.registry.create(topic, partitions=0, dispatch_strategy="reliable", here=True, **options)
    for broker in cluster.brokers.values():
        await until(lambda broker=broker: broker.registry.catalog.index.find_topic(topic) is not None)


async def fill(owner: Broker, cluster: SeveralBrokers) -> None:
    """In batches so large that they are read, and copied, one after the other."""
    await create(owner, cluster, "origin")
    async with connect(owner.broker_url) as client, client.producer("origin") as producer:
        for start in range(0, COUNT, 30):
            await producer.send_many([b"%d" % n + bytes(60_000) for n in range(start, start + 30)])


async def assert_all_there(broker: Broker) -> None:
    async with connect(broker.broker_url) as client, client.reader("copy", start="earliest") as reader:
        copies = [await anext(reader) for _ in range(COUNT)]
    assert [copy.payload.rstrip(b"\0") for copy in copies] == [b"%d" % n for n in range(COUNT)]
    assert copies[7].attributes["x-replayed-from"] == "/default/origin@7"


async def test_a_replay_goes_to_a_topic_of_another_broker_in_order(cluster: SeveralBrokers) -> None:
    origin, target = cluster.brokers[1], cluster.brokers[2]
    await fill(origin, cluster)
    await create(target, cluster, "copy")
    (found,) = await origin.port.replay_topic("origin", ranges=WHOLE, to="copy")
    assert found == {
        "topic": "/default/copy",
        "messages": COUNT,
        "first_offset": 0,
        "last_offset": COUNT - 1,
    }
    await assert_all_there(cluster.brokers[3])


async def test_a_replay_makes_its_topic_wherever_that_comes_to_be(cluster: SeveralBrokers) -> None:
    origin = cluster.brokers[1]
    await fill(origin, cluster)
    for number in range(6):  # brokers by chance
        (found,) = await origin.port.replay_topic(
            "origin", ranges={"/default/origin": (5, 6)}, to=f"n{number}"
        )
        assert (found["messages"], found["last_offset"]) == (1, 0)
    assert {cluster.owner(f"n{number}").broker_url for number in range(6)} != {origin.broker_url}


async def test_a_replay_waits_for_an_owner_that_does_not_know_the_new_topic_yet(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, target = cluster.brokers[1], cluster.brokers[2]
    await fill(origin, cluster)
    await create(target, cluster, "copy")
    known, asked = target.registry.known, []

    def late(name: TopicName) -> Any:
        asked.append(name)
        if len(asked) == 1:
            raise TopicNotFound(f"topic {name} does not exist")
        return known(name)

    monkeypatch.setattr(target.registry, "known", late)
    (found,) = await origin.port.replay_topic("origin", ranges=WHOLE, to="copy")
    assert (found["messages"], found["last_offset"]) == (COUNT, COUNT - 1)
    await assert_all_there(cluster.brokers[3])


async def test_a_replay_follows_its_target_to_another_broker(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, first, then = (cluster.brokers[n] for n in (1, 2, 3))
    await fill(origin, cluster)
    await create(first, cluster, "copy")
    begun, moved, append = anyio.Event(), anyio.Event(), Replay.append

    async def held_up(*arguments: Any) -> None:
        await append(*arguments)
        begun.set()
        await moved.wait()

    monkeypatch.setattr(Replay, "append", held_up)

    async def move_it() -> None:
        await begun.wait()
        await move(cluster, "copy", then)
        moved.set()

    async with anyio.create_task_group() as group:
        group.start_soon(move_it)
        (found,) = await origin.port.replay_topic("origin", ranges=WHOLE, to="copy")
    assert (found["messages"], found["last_offset"]) == (COUNT, COUNT - 1)
    await assert_all_there(origin)


async def test_the_owner_holds_copies_against_the_schema_of_its_topic(cluster: SeveralBrokers) -> None:
    origin, target = cluster.brokers[1], cluster.brokers[2]
    await fill(origin, cluster)
    await create(target, cluster, "copy")
    async with RegistryClient(target.broker_url) as schemas:
        await register(schemas, "numbers", "number", b"")
        await schemas.ConfigureTopicSchema(
            topic_name="/default/copy", schema_subject="numbers", validation_policy="enforce"
        )
    with pytest.raises(ClusterError) as refused:
        await origin.port.replay_topic("origin", ranges=WHOLE, to="copy")
    assert (refused.value.code, refused.value.details["copied_until"]) == ("SCHEMA_MISMATCH", 0)
