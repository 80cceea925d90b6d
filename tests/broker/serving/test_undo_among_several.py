"""A deletion is taken back at any of several brokers: the topic is where its messages are, whatever happened meanwhile."""

from __future__ import annotations

import time

import anyio
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.copying.arrival import Arrival
from pydanube_core.errors import DiskFull
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName

from tests.broker.moves.test_moves_between_brokers import broker_id, move
from tests.broker.serving.test_several_brokers import cluster, create
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

__all__ = ["cluster"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(150)]

SENT = [b"%d" % n for n in range(20)]
READ = 7  # of them were acknowledged before the deletion


def grace(call_id: str = "c1") -> Grace:
    return Grace(call_id=call_id, until_ms=int(time.time() * 1000) + 3_600_000)


async def filled(cluster: SeveralBrokers, name: str) -> Broker:
    """A topic with messages that are in its owner's journal alone, a part of them acknowledged; returns the owner."""
    await create(cluster.brokers[1], name)
    await until(lambda: cluster.serves(TopicName.parse(name)))
    async with connect(cluster.brokers[1].broker_url) as client:
        async with client.producer(name) as producer:
            await producer.send_many(SENT)
        async with client.consumer(name, "s", start="earliest") as consumer:
            for _ in range(READ):
                await (await anext(consumer)).ack()
    owner = cluster.owner(name)
    topic = owner.registry.find(TopicName.parse(name))
    assert topic is not None
    await until(lambda: topic.subscriptions["s"].floor == READ)
    return owner


async def delete(cluster: SeveralBrokers, at: Broker, name: str, call_id: str = "c1") -> None:
    await at.registry.delete(TopicName.parse(name), grace=grace(call_id))
    await known_everywhere(cluster, call_id)
    await until(lambda: not cluster.serves(TopicName.parse(name)))


async def known_everywhere(cluster: SeveralBrokers, call_id: str) -> None:
    for broker in cluster.brokers.values():
        restorable = broker.registry.catalog.restorable.topics
        await until(lambda restorable=restorable: call_id in {each.call_id for each in restorable.values()})


async def assert_whole(cluster: SeveralBrokers, name: str) -> None:
    """Every message is there in its order, and the subscription goes on where it stood."""
    await until(lambda: cluster.serves(TopicName.parse(name)))
    topic = cluster.owner(name).registry.find(TopicName.parse(name))
    assert topic is not None
    assert (topic.start_offset, topic.commit) == (0, len(SENT))
    async with connect(cluster.brokers[1].broker_url) as client:
        async with client.reader(name, start="earliest") as reader:
            assert [(await anext(reader)).payload for _ in SENT] == SENT
        async with client.consumer(name, "s") as consumer:
            assert (await anext(consumer)).payload == SENT[READ]


async def test_a_deletion_is_taken_back_at_a_broker_that_had_no_part_of_the_topic(
    cluster: SeveralBrokers,
) -> None:
    for n in range(6):
        name = f"back-{n}"
        owner = await filled(cluster, name)
        await delete(cluster, owner, name, call_id=name)
        other = next(broker for broker in cluster.brokers.values() if broker is not owner)
        assert await other.port.restore_topic(name) == f"/default/{name}"
        await until(lambda name=name: cluster.serves(TopicName.parse(name)))
        assert cluster.owner(name) is owner, "its messages are there and nowhere else"
        await assert_whole(cluster, name)


async def test_a_deleted_topic_goes_with_its_owners_drain(cluster: SeveralBrokers) -> None:
    owner = await filled(cluster, "t")
    await delete(cluster, owner, "t")
    me, coordinator = broker_id(owner), owner.registry.ownership.coordinator
    await owner.port.unload()
    await until(lambda: coordinator.members[me].state.value == "drained")
    assert not owner.registry.restorable()
    number = next(n for n, broker in cluster.brokers.items() if broker is owner)
    await cluster.stop(number)
    last = next(iter(cluster.brokers.values()))
    await last.registry.restore("c1")
    await assert_whole_at(cluster, "t")


async def assert_whole_at(cluster: SeveralBrokers, name: str) -> None:
    """As `assert_whole`, by what the owner has: the first broker may be down."""
    await until(lambda: cluster.serves(TopicName.parse(name)))
    owner = cluster.owner(name)
    topic = owner.registry.find(TopicName.parse(name))
    assert topic is not None
    assert (topic.start_offset, topic.commit) == (0, len(SENT))
    async with connect(owner.broker_url) as client:
        async with client.reader(name, start="earliest") as reader:
            assert [(await anext(reader)).payload for _ in SENT] == SENT
        async with client.consumer(name, "s") as consumer:
            assert (await anext(consumer)).payload == SENT[READ]


async def test_a_deletion_is_taken_back_while_its_owner_is_down(cluster: SeveralBrokers) -> None:
    owner = await filled(cluster, "t")
    await delete(cluster, owner, "t")
    number = next(n for n, broker in cluster.brokers.items() if broker is owner)
    await cluster.stop(number)
    other = next(iter(cluster.brokers.values()))
    await other.registry.restore("c1")
    assert other.registry.catalog.index.find_topic(TopicName.parse("t")) is not None
    assert not cluster.serves(TopicName.parse("t")), "it waits for the broker that has its messages"
    await cluster.start(number)
    await assert_whole(cluster, "t")
    assert cluster.owner("t") is cluster.brokers[number]


async def test_a_deletion_is_taken_back_after_its_owner_has_been_restarted(cluster: SeveralBrokers) -> None:
    owner = await filled(cluster, "t")
    await delete(cluster, owner, "t")
    number = next(n for n, broker in cluster.brokers.items() if broker is owner)
    await cluster.stop(number)
    await cluster.start(number)
    await cluster.all_know_all()
    other = next(broker for n, broker in cluster.brokers.items() if n != number)
    await other.registry.restore("c1")
    await assert_whole(cluster, "t")


async def test_partitions_at_several_brokers_come_back_each_at_its_own(cluster: SeveralBrokers) -> None:
    await create(cluster.brokers[1], "wide", partitions=6)
    parts = [TopicName.parse(f"wide-part-{n}") for n in range(6)]
    await until(lambda: all(cluster.serves(part) for part in parts))
    async with connect(cluster.brokers[1].broker_url) as client:
        for part in parts:
            async with client.producer(str(part)) as producer:
                await producer.send_many(SENT)
    owners = {part: cluster.owner(str(part)) for part in parts}
    assert len({id(owner) for owner in owners.values()}) > 1
    await cluster.brokers[1].registry.delete(TopicName.parse("wide"), grace=grace())
    await until(lambda: not any(cluster.serves(part) for part in parts))
    await known_everywhere(cluster, "c1")
    assert await cluster.brokers[3].port.restore_topic("c1") == "/default/wide"
    await until(lambda: all(cluster.serves(part) for part in parts))
    for part in parts:
        assert cluster.owner(str(part)) is owners[part]
        topic = owners[part].registry.find(part)
        assert topic is not None
        assert topic.commit == len(SENT)


async def test_a_topic_that_is_deleted_while_it_moves_arrives_and_comes_back(cluster: SeveralBrokers) -> None:
    for n in range(4):
        name = f"moving-{n}"
        owner = await filled(cluster, name)
        topic = TopicName.parse(name)
        target = next(broker for broker in cluster.brokers.values() if broker is not owner)
        record = owner.registry.catalog.index.find_topic(topic)
        assert record is not None
        await owner.moves.begin([record], broker_id(target))
        await owner.registry.delete(topic, grace=grace(name))  # whichever step it is at by now
        await known_everywhere(cluster, name)
        await until(lambda: not any(broker.registry.ownership.moves() for broker in cluster.brokers.values()))
        await cluster.brokers[3].registry.restore(name)
        await assert_whole(cluster, name)


async def test_a_topic_that_is_deleted_for_good_while_it_moves_leaves_nothing_behind(
    cluster: SeveralBrokers,
) -> None:
    for n in range(4):
        name = f"gone-{n}"
        owner = await filled(cluster, name)
        topic = TopicName.parse(name)
        target = next(broker for broker in cluster.brokers.values() if broker is not owner)
        record = owner.registry.catalog.index.find_topic(topic)
        assert record is not None
        await owner.moves.begin([record], broker_id(target))
        await owner.registry.delete(topic)
        for broker in cluster.brokers.values():
            index = broker.registry.catalog.index
            await until(lambda index=index, topic=topic: index.find_topic(topic) is None)
        await until(lambda: not any(broker.registry.ownership.moves() for broker in cluster.brokers.values()))
        for broker in cluster.brokers.values():
            held, number = broker.registry.ownership.held, record.topic_id
            await until(lambda held=held, number=number: number not in held)
    await filled(cluster, "after")  # moves go on
    await move(cluster, "after", cluster.others("after")[0])
    await assert_whole(cluster, "after")


async def test_a_subscription_that_was_deleted_before_its_topic_moved_comes_back_where_it_stood(
    cluster: SeveralBrokers,
) -> None:
    owner = await filled(cluster, "t")
    await owner.port.delete_subscription("t", "s", grace=grace())
    await move(cluster, "t", cluster.others("t")[0])
    for broker in cluster.brokers.values():
        restorable = broker.registry.catalog.restorable.subscriptions
        await until(lambda restorable=restorable: bool(restorable))
    await owner.port.restore_subscription("c1")
    topic = cluster.owner("t").registry.find(TopicName.parse("t"))
    assert topic is not None
    await until(lambda: "s" in topic.subscriptions)
    await assert_whole(cluster, "t")


async def test_a_full_disk_ends_the_undo_of_what_it_keeps_and_of_nothing_else(
    cluster: SeveralBrokers,
) -> None:
    owner = await filled(cluster, "t")
    await delete(cluster, owner, "t")
    other = next(broker for broker in cluster.brokers.values() if broker is not owner)
    await other.registry.deleted.give_up()
    await other.registry.restore("c1")
    await assert_whole(cluster, "t")
    await delete(cluster, owner, "t", call_id="c2")
    await owner.registry.deleted.give_up()
    for broker in cluster.brokers.values():
        await until(lambda broker=broker: not broker.registry.catalog.restorable.topics)


async def test_a_deleted_topic_whose_move_was_called_off_comes_back(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await filled(cluster, "t")
    await delete(cluster, owner, "t")
    (topic_id,) = owner.registry.catalog.restorable.topics
    record = owner.registry.catalog.restorable.record(topic_id)
    assert record is not None
    refused = anyio.Event()

    async def without_room(*_: object, **__: object) -> None:
        refused.set()
        raise DiskFull("no room at the target")

    with monkeypatch.context() as patched:
        patched.setattr(Arrival, "take", without_room)
        target = next(broker for broker in cluster.brokers.values() if broker is not owner)
        await owner.moves.begin([record], broker_id(target))
        await refused.wait()
        await until(lambda: not owner.registry.ownership.moves())
    await target.registry.restore("c1")
    await assert_whole(cluster, "t")
    assert cluster.owner("t") is owner
