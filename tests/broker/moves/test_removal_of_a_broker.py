"""A broker that is gone for good is removed: its topics are served by others with everything that the store has."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.copying.arrival import Arrival
from pydanube_broker.moves import removed_brokers
from pydanube_broker.moves.moves import Moves
from pydanube_broker.moves.removed_brokers import RemovedBrokers
from pydanube_broker.tier.topic_reports import TopicReports
from pydanube_broker.topics.log_state import LogState
from pydanube_core.errors import ClusterError, Conflict, Fenced, InvalidArgument
from pydanube_core.names import TopicName

from tests.broker.moves.test_moves_between_brokers import broker_id, move
from tests.broker.serving.test_several_brokers import cluster, create
from tests.broker.serving.test_undo_among_several import delete
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

__all__ = ["cluster"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop", "no_reports"), pytest.mark.timeout(150)]

TIERED = [b"tiered-%d" % n for n in range(10)]
LOST = [b"lost-%d" % n for n in range(5)]
AFTER = [b"after-%d" % n for n in range(5)]
JUMP = 1 << 32


async def half_tiered(cluster: SeveralBrokers, name: str, owner: Broker) -> None:
    """A topic of which the store has the first ten messages; three of them are acknowledged, and five are not stored."""
    topic = TopicName.parse(name)
    await owner.registry.create(topic, partitions=0, dispatch_strategy="reliable", here=True)
    async with connect(owner.broker_url) as client, client.producer(name) as producer:
        await producer.send_many(TIERED)
        assert await owner.port.flush_objects(name) == len(TIERED)
        async with client.consumer(name, "s", start="earliest") as consumer:
            for _ in range(3):
                await (await anext(consumer)).ack()
        served = owner.registry.find(topic)
        assert served is not None
        await until(lambda: served.subscriptions["s"].floor == 3)
        await producer.send_many(LOST)


async def gone(cluster: SeveralBrokers, number: int) -> str:
    """Stop a broker and wait until the others know; returns its id."""
    lost = cluster.brokers[number]
    me = broker_id(lost)
    await cluster.stop(number)
    for broker in cluster.brokers.values():
        members = broker.registry.ownership.coordinator.members
        await until(lambda members=members: me not in members)
    return str(me)


async def assert_taken_over(cluster: SeveralBrokers, name: str, *, said: bool) -> None:
    """All that the store had is read, in order; the subscription goes on; what is sent is stored far above."""
    topic = TopicName.parse(name)
    await until(lambda: cluster.serves(topic))
    served = cluster.owner(name).registry.find(topic)
    assert served is not None
    known = len(TIERED) + (len(LOST) if said else 0)
    assert (served.start_offset, served.commit) == (0, known + JUMP)
    (lag,) = await cluster.owner(name).port.subscriptions(name, "s")
    assert lag.state.lag_messages == len(TIERED) - (3 if said else 0), "the jump counts as skipped"
    url = cluster.owner(name).broker_url
    async with connect(url) as client, client.producer(name) as producer:
        receipts = [await producer.send(payload) for payload in AFTER]
        assert [receipt.offset for receipt in receipts] == [known + JUMP + n for n in range(len(AFTER))]
        async with client.reader(name, start="earliest") as reader:
            assert [(await anext(reader)).payload for _ in [*TIERED, *AFTER]] == TIERED + AFTER
        async with client.consumer(name, "s") as consumer:
            expected = TIERED[3 if said else 0 :] + AFTER
            got = []
            with anyio.fail_after(60):
                for _ in expected:
                    message = await anext(consumer)
                    got.append(message.payload)
                    await message.ack()
            assert got == expected
    await until(lambda: served.subscriptions["s"].floor == served.commit)


@pytest.mark.parametrize("said", [True, False])
async def test_topics_of_a_removed_broker_are_served_with_all_that_was_tiered(
    cluster: SeveralBrokers, said: bool
) -> None:
    owner = cluster.brokers[3]
    for n in range(2):
        await half_tiered(cluster, f"t{n}", owner)
    if said:
        await owner.moves.keep_states()
    lost = await gone(cluster, 3)
    left = await cluster.brokers[1].port.removal(lost)
    assert sorted(each.topic for each in left.topics if each.topic.startswith("/default/t")) == [
        f"/default/t{n}" for n in range(2)
    ]
    assert {
        (each.copied_to, each.reported_to, each.missing_messages)
        for each in left.topics
        if each.topic == "/default/t0"
    } == {(10, 15, 5) if said else (10, None, 0)}
    await cluster.brokers[1].port.remove_broker(lost)
    for n in range(2):
        await assert_taken_over(cluster, f"t{n}", said=said)
    name = TopicName.parse("t0")
    taken = cluster.owner("t0")
    assert await taken.port.flush_objects("t0") > 0
    found = await taken.port.verify_objects("t0", start=0, end=None)
    assert not found["damaged"]
    assert not found["missing"]
    await move(cluster, "t0", next(b for b in cluster.brokers.values() if b is not taken))
    served = cluster.owner("t0").registry.find(name)
    assert served is not None
    async with (
        connect(cluster.owner("t0").broker_url) as client,
        client.reader("t0", start="earliest") as reader,
    ):
        assert [(await anext(reader)).payload for _ in [*TIERED, *AFTER]] == TIERED + AFTER


async def test_a_mirror_of_a_removed_broker_is_an_ordinary_topic_from_where_its_messages_end(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its head had the jump that the mirror does not make: it seemed taken over at each move, and no loss was noticed."""
    name = TopicName.parse("t")
    await half_tiered(cluster, "t", cluster.brokers[3])
    await cluster.brokers[3].moves.keep_states()
    monkeypatch.setattr(removed_brokers, "link_of", lambda options: "eu")
    await cluster.brokers[1].port.remove_broker(await gone(cluster, 3))
    await until(lambda: cluster.serves(name))
    owner = cluster.owner("t")
    served = owner.registry.find(name)
    assert served is not None
    assert served.commit == len(TIERED)
    head = await owner.moves.removed.head(TopicId(served.topic_id))
    assert (head.tiered_offset, head.resumes_at) == (len(TIERED), len(TIERED))
    async with connect(owner.broker_url) as client, client.producer("t") as producer:
        await producer.send_many(AFTER)
    await move(cluster, "t", next(b for b in cluster.brokers.values() if b is not owner))
    await until(lambda: served.topic_id not in owner.hub.states)
    assert not list((tmp_path / "objects").glob("*/lost+found/**/*.parquet"))


async def test_who_took_a_topic_over_has_it_after_a_restart(cluster: SeveralBrokers) -> None:
    await half_tiered(cluster, "t", cluster.brokers[3])
    await cluster.brokers[3].moves.keep_states()
    lost = await gone(cluster, 3)
    await cluster.brokers[1].port.remove_broker(lost)
    await until(lambda: cluster.serves(TopicName.parse("t")))
    number = next(n for n, broker in cluster.brokers.items() if broker is cluster.owner("t"))
    await cluster.stop(number)
    await cluster.start(number)
    await assert_taken_over(cluster, "t", said=True)


async def test_a_removed_broker_does_not_come_back_and_what_only_it_had_goes_to_lost_and_found(
    cluster: SeveralBrokers, tmp_path: Path
) -> None:
    for n in range(2):
        await half_tiered(cluster, f"t{n}", cluster.brokers[3])
    await delete(cluster, cluster.brokers[3], "t1")
    lost = await gone(cluster, 3)
    await cluster.brokers[1].port.remove_broker(lost)
    await cluster.brokers[2].port.remove_broker(lost)  # again: nothing more happens
    await assert_taken_over(cluster, "t0", said=False)
    assert await cluster.owner("t0").port.flush_objects("t0") > 0
    (tmp_path / "no-folder").write_text("the shared folder is not mounted")
    with pytest.raises(Fenced, match=r"could not be written to lost\+found"):
        await Broker(cluster.settings(3, tier="no-folder")).__aenter__()
    objects = tmp_path / "objects"
    for _ in range(2):  # a second start finds it there
        with pytest.raises(Fenced, match=r"was removed from the cluster.* are in .*/lost\+found/"):
            await Broker(cluster.settings(3)).__aenter__()
        for n in range(2):
            (found,) = objects.glob(f"*/lost+found/{lost}/default/t{n}/*/*.parquet")
            assert pyarrow.parquet.read_metadata(found).metadata[b"danube.durability"] == b"fsynced"
            table = pyarrow.parquet.read_table(found)
            assert table.column("payload").to_pylist() == LOST
            assert table.column("offset").to_pylist() == [len(TIERED) + i for i in range(len(LOST))]
    owner = cluster.owner("t0")
    found_in_topic = await owner.port.verify_objects("t0", start=0, end=None)
    assert not found_in_topic["damaged"]


async def test_what_is_no_broker_that_is_gone_is_not_removed(cluster: SeveralBrokers) -> None:
    port = cluster.brokers[1].port
    with pytest.raises(Conflict, match="is registered"):
        await port.remove_broker(str(broker_id(cluster.brokers[2])))
    with pytest.raises(InvalidArgument, match="never was"):
        await port.remove_broker("77")
    with pytest.raises(InvalidArgument, match="no broker id"):
        await port.remove_broker("seven")


async def test_two_who_remove_at_once_do_it_once(cluster: SeveralBrokers) -> None:
    for n in range(2):
        await half_tiered(cluster, f"t{n}", cluster.brokers[3])
    await cluster.brokers[3].moves.keep_states()
    lost = await gone(cluster, 3)
    async with anyio.create_task_group() as group:
        for broker in cluster.brokers.values():
            group.start_soon(broker.port.remove_broker, lost)
    for n in range(2):
        await assert_taken_over(cluster, f"t{n}", said=True)


async def test_damage_of_what_a_removed_broker_had_said_holds_nothing_up(
    cluster: SeveralBrokers, tmp_path: Path
) -> None:
    owner = cluster.brokers[3]
    await half_tiered(cluster, "t", owner)
    await owner.moves.keep_states()
    lost = await gone(cluster, 3)
    (said,) = (tmp_path / "objects").glob(f"*/states/{lost}/*.fragment")
    said.write_bytes(said.read_bytes()[:-1])
    left = await cluster.brokers[1].port.removal(lost)
    assert left.said_at_ms is None
    await create(cluster.brokers[1], "other")
    await cluster.brokers[1].port.remove_broker(lost)
    await move(cluster, "other", next(b for b in cluster.brokers.values() if b is not cluster.owner("other")))
    await assert_taken_over(cluster, "t", said=False)


async def test_a_deleted_topic_of_a_removed_broker_comes_back_with_what_was_tiered(
    cluster: SeveralBrokers,
) -> None:
    owner = cluster.brokers[3]
    await half_tiered(cluster, "t", owner)
    await owner.moves.keep_states()
    await delete(cluster, owner, "t")
    lost = await gone(cluster, 3)
    await cluster.brokers[1].port.remove_broker(lost)
    registry = cluster.brokers[1].registry
    await until(lambda: any(broker.registry.restorable() for broker in cluster.brokers.values()))
    await registry.restore("c1")
    await assert_taken_over(cluster, "t", said=True)


async def test_the_report_of_a_removed_broker_is_read_once_for_all_of_its_topics(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names all topics, so reading it for each of thousands of topics kept the processor of an heir busy."""
    owner, names = cluster.brokers[3], [f"t{n}" for n in range(8)]
    for name in names:
        await owner.registry.create(
            TopicName.parse(name), partitions=0, dispatch_strategy="reliable", here=True
        )
    await owner.moves.keep_states()
    lost = await gone(cluster, 3)
    reads: list[TopicReports] = []
    read = TopicReports.read

    async def counted(self: TopicReports, broker_id: BrokerId) -> tuple[dict[int, LogState], int | None]:
        reads.append(self)
        return await read(self, broker_id)

    monkeypatch.setattr(TopicReports, "read", counted)
    await cluster.brokers[1].port.remove_broker(lost)
    for name in names:
        await until(lambda name=name: cluster.serves(TopicName.parse(name)))
    most = max(Counter(map(id, reads)).values())
    assert most <= 2, "as the leader, and as an heir"


async def test_topics_that_are_written_are_served_before_idle_ones_are_given_to_an_heir(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The idle ones took the heirs' processors while the clients of the written ones waited."""
    owner = cluster.brokers[3]
    for name in ("idle-1", "idle-2", "idle-3"):
        await owner.registry.create(
            TopicName.parse(name), partitions=0, dispatch_strategy="reliable", here=True
        )
    await half_tiered(cluster, "written", owner)
    await owner.moves.keep_states()
    (report,) = (tmp_path / "objects").glob(f"*/states/{broker_id(owner)}/*.fragment")
    os.utime(report, (ahead_s := time.time() + 3600, ahead_s))  # the clock of the store is an hour ahead
    lost = await gone(cluster, 3)
    looks, begun, go_on = list[None](), list[str](), anyio.Event()
    look, rebuild = RemovedBrokers.look, Moves.rebuild

    async def counted(self: RemovedBrokers, *arguments: Any) -> None:
        await look(self, *arguments)
        looks.append(None)

    async def held(self: Moves, assignment: Assignment, arrival: Arrival) -> None:
        begun.append(assignment.topic.name)
        if assignment.topic.name == "written":
            await go_on.wait()
        await rebuild(self, assignment, arrival)

    monkeypatch.setattr(RemovedBrokers, "look", counted)
    monkeypatch.setattr(Moves, "rebuild", held)
    await cluster.brokers[1].port.remove_broker(lost)
    await until(lambda: bool(begun))
    then = len(looks)
    await until(lambda: len(looks) >= then + 2)
    assert begun == ["written"]
    go_on.set()
    for name in ("written", "idle-1", "idle-2", "idle-3"):
        await until(lambda name=name: cluster.serves(TopicName.parse(name)))


async def test_new_topics_of_a_removed_broker_name_are_not_held_up(cluster: SeveralBrokers) -> None:
    lost = await gone(cluster, 3)
    await cluster.brokers[1].port.remove_broker(lost)
    await create(cluster.brokers[1], "new")
    await until(lambda: cluster.serves(TopicName.parse("new")))
    with pytest.raises(ClusterError):
        await cluster.brokers[1].port.topic("none")
