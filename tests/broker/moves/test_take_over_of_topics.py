"""Topics of a lost broker are taken over from the chain of its journal, by a plan, and what only it has is kept."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest
from anyio.abc import TaskGroup
from pydanube import connect
from pydanube_broker import broker as broker_module
from pydanube_broker.broker import Broker
from pydanube_broker.chain import ChainObjects, Item, Place, piece_key
from pydanube_broker.chain.piece import encode_piece
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch
from pydanube_broker.cluster.journal_record import JournalRecord, JournalState, taken_over
from pydanube_broker.copying.arrival import Arrival
from pydanube_broker.moves import inheritance, removed_brokers
from pydanube_broker.moves.move import Change, MoveStep
from pydanube_broker.moves.take_over import NO_HEIR
from pydanube_broker.settings.sections import Cluster, Settings
from pydanube_broker.tier.chain_record import ChainRecord
from pydanube_core.errors import ClusterError, Conflict, CorruptObject, DiskFull, StoreUnavailable
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Put
from pydanube_storage.objects import LocalStore

from tests.broker.chain.records_of import groups_of
from tests.broker.moves.test_moves_between_brokers import broker_id
from tests.broker.serving.test_several_brokers import cluster
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, several_brokers
from tests.support.waiting import until

__all__ = ["cluster"]
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("one_loop", "no_reports", "short_lease"),
    pytest.mark.timeout(150),
]

TIERED = [b"tiered-%d" % n for n in range(10)]
COPIED = [b"copied-%d" % n for n in range(5)]
LOST = [b"lost-%d" % n for n in range(3)]
AFTER = [b"after-%d" % n for n in range(4)]
JUMP = 1 << 32


async def filled(name: str, owner: Broker) -> None:
    """A topic of which the store has ten messages, and the journal five more. Twelve are acknowledged."""
    topic = TopicName.parse(name)
    await owner.registry.create(topic, partitions=0, dispatch_strategy="reliable", here=True)
    async with connect(owner.broker_url) as client, client.producer(name) as producer:
        await producer.send_many(TIERED)
        assert await owner.port.flush_objects(name) == len(TIERED)
        await producer.send_many(COPIED)
        async with client.consumer(name, "s", start="earliest") as consumer:
            for _ in range(12):
                await (await anext(consumer)).ack()
        served = owner.registry.find(topic)
        assert served is not None
        await until(lambda: served.subscriptions["s"].floor == 12)


async def record_of(cluster: SeveralBrokers, owner: int) -> JournalRecord:
    store = next(iter(cluster.brokers.values())).admin_state.store
    key = keys.journal_key(BrokerId(owner))
    item = await store.get(key)
    assert item is not None
    return JournalRecord.from_json(item.value, key=key)


async def until_state(cluster: SeveralBrokers, owner: str, state: JournalState) -> None:
    with anyio.fail_after(30):
        while (await record_of(cluster, int(owner))).state is not state:  # noqa: ASYNC110  (it is in the store)
            await anyio.sleep(0.05)


async def copied(cluster: SeveralBrokers, folder: Path, owner: int, *, each: int = 50) -> None:
    """Make the chain of a broker's journal from its files, as a broker that copies its journal has it in the store.

    `each`: records in a piece.
    """
    store = next(iter(cluster.brokers.values())).admin_state.store
    record, broker = await record_of(cluster, owner), next(iter(cluster.brokers.values()))
    chain, place = ChainObjects(LocalStore(folder / "objects")), Place()
    for item in groups_of(folder / "copied", each=each):
        items: list[Item] = [item]
        header, data = encode_piece(place, items, journal=record.journal, term=record.term, random=bytes(16))
        assert await chain.create(piece_key(broker.tier.cluster, record.journal, place.number), data)
        place = place.after(header)
    await store.transact([Put(keys.journal_key(BrokerId(owner)), replace(record, copies=True).to_json())])


async def lost(cluster: SeveralBrokers, number: int) -> str:
    """Stop a broker and wait until the others know; returns its id."""
    me = broker_id(cluster.brokers[number])
    await cluster.stop(number)
    for broker in cluster.brokers.values():
        members = broker.registry.ownership.coordinator.members
        await until(lambda members=members: me not in members)
    return str(me)


async def read_all(cluster: SeveralBrokers, name: str, count: int) -> list[bytes]:
    async with (
        connect(cluster.owner(name).broker_url) as client,
        client.reader(name, start="earliest") as reader,
    ):
        with anyio.fail_after(60):
            return [(await anext(reader)).payload for _ in range(count)]


@pytest.mark.parametrize("read_at_once", [removed_brokers.READ_AT_ONCE, 0], ids=["few topics", "many topics"])
async def test_topic_goes_on_with_all_that_the_chain_has(
    cluster: SeveralBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_at_once: int
) -> None:
    if not read_at_once:  # records of all topics are read together
        monkeypatch.setattr(removed_brokers, "READ_AT_ONCE", 0)
        monkeypatch.setattr(removed_brokers, "MANY", 0)
    owner = cluster.brokers[3]
    for name in ("t", "other"):
        await filled(name, owner)
    journal = owner.journal.folder
    await owner.journal.until_durable()
    shutil.copytree(journal, tmp_path / "copied")
    async with connect(owner.broker_url) as client, client.producer("t") as producer:
        await producer.send_many(LOST)
    await owner.moves.keep_states()
    gone = await lost(cluster, 3)
    await copied(cluster, tmp_path, int(gone))
    one, two = cluster.brokers[1], cluster.brokers[2]

    (found,) = await one.port.take_over_facts("t")
    assert (found.broker_id, found.copied_to, found.reported_to) == (gone, 15, 18)
    assert (found.missing_messages, found.subscriptions) == (3, 1)
    before = await record_of(cluster, int(gone))
    assert before.state is JournalState.OPEN, "a forecast changes nothing"

    await two.port.take_over("t")
    await two.port.take_over("t")
    await until(lambda: cluster.serves_name("t"))
    after = await record_of(cluster, int(gone))
    assert (after.term, after.state) == (before.term + 1, JournalState.CLOSING)
    assert after.until > 1
    assert not cluster.serves_name("other"), "no plan names it"
    served = cluster.owner("t").registry.find(TopicName.parse("t"))
    assert served is not None
    assert (served.start_offset, served.commit) == (0, 18 + JUMP)
    assert await read_all(cluster, "t", 15) == TIERED + COPIED
    async with connect(cluster.owner("t").broker_url) as client, client.producer("t") as producer:
        await producer.send_many(AFTER)
        async with client.consumer("t", "s") as consumer:
            with anyio.fail_after(60):
                got = [(await anext(consumer)).payload for _ in range(3 + len(AFTER))]
    assert got == COPIED[2:] + AFTER, "what was acknowledged before the copy ended stays acknowledged"

    # the plan for the other topic uses the same fence
    await one.port.take_over("other")
    await until(lambda: cluster.serves_name("other"))
    assert one.moves.fences + two.moves.fences == 1
    assert (await record_of(cluster, int(gone))).until == after.until
    assert await read_all(cluster, "other", 15) == TIERED + COPIED

    # the broker comes back: it keeps what only it has, and serves what others did not take
    await cluster.start(3)
    await cluster.all_know_all()
    kept = tmp_path / "objects" / one.tier.cluster / "lost+found" / gone
    await until(lambda: any(kept.rglob("*.parquet")))
    back = cluster.brokers[3]
    await until(lambda: not {"/default/t", "/default/other"} & {each.name for each in back.registry.topics})
    assert await read_all(cluster, "t", 15 + len(AFTER)) == TIERED + COPIED + AFTER

    await until_state(cluster, gone, JournalState.OPEN)


async def test_what_cannot_be_taken_over_is_refused_with_the_reason(
    cluster: SeveralBrokers, tmp_path: Path
) -> None:
    owner, other = cluster.brokers[3], cluster.brokers[1]
    await filled("t", owner)
    await owner.registry.create(
        TopicName.parse("live"), partitions=0, dispatch_strategy="non_reliable", here=True
    )
    for call in (other.port.take_over, other.port.take_over_facts):
        with pytest.raises(Conflict, match="is registered and serves its topics"):
            await call("t")
        with pytest.raises(ClusterError, match="nowhere"):
            await call("nowhere")
        with pytest.raises(Conflict, match="stores nothing"):
            await call("live")
    gone = await lost(cluster, 3)
    for call in (other.port.take_over, other.port.take_over_facts):
        with pytest.raises(Conflict, match="did not copy its journal"):
            await call("t")
    assert (await record_of(cluster, int(gone))).state is JournalState.OPEN
    await cluster.start(3)
    await until(lambda: cluster.serves_name("t"))
    assert await read_all(cluster, "t", 15) == TIERED + COPIED


async def test_broker_that_is_back_before_its_topics_are_sealed_keeps_them(
    cluster: SeveralBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.brokers[3]
    await filled("t", owner)
    await owner.journal.until_durable()
    shutil.copytree(owner.journal.folder, tmp_path / "copied")
    gone = await lost(cluster, 3)
    await copied(cluster, tmp_path, int(gone))
    asked = anyio.Event()

    async def nobody_looks(*_: object) -> None:
        if not asked.is_set():
            asked.set()

    for broker in cluster.brokers.values():
        monkeypatch.setattr(broker.moves.removed, "look", nobody_looks)
    await cluster.brokers[1].port.take_over("t")
    assert (await record_of(cluster, int(gone))).topics
    await cluster.start(3)
    await until(lambda: cluster.serves_name("t"))
    monkeypatch.undo()
    await until_state(cluster, gone, JournalState.OPEN)
    assert cluster.owner("t") is cluster.brokers[3]
    assert await read_all(cluster, "t", 15) == TIERED + COPIED


async def test_removed_broker_leaves_what_its_chain_has(cluster: SeveralBrokers, tmp_path: Path) -> None:
    owner = cluster.brokers[3]
    await filled("t", owner)
    await owner.journal.until_durable()
    shutil.copytree(owner.journal.folder, tmp_path / "copied")
    async with connect(owner.broker_url) as client, client.producer("t") as producer:
        await producer.send_many(LOST)
    await owner.moves.keep_states()
    gone = await lost(cluster, 3)
    await copied(cluster, tmp_path, int(gone))
    plan = await cluster.brokers[1].port.removal(gone)
    assert plan.is_copied
    (found,) = (each for each in plan.topics if each.topic == "/default/t")
    assert (found.copied_to, found.reported_to, found.missing_messages) == (15, 18, len(LOST)), (
        "the messages of the chain are not lost"
    )
    await cluster.brokers[1].port.remove_broker(gone)
    await until(lambda: cluster.serves_name("t"))
    assert await read_all(cluster, "t", 15) == TIERED + COPIED
    await until_state(cluster, gone, JournalState.CLOSED)


@pytest.mark.parametrize("error", [CorruptObject("piece 1 is damaged", cause="chain"), DiskFull("no room")])
async def test_broker_whose_chain_cannot_be_read_can_still_be_removed(
    cluster: SeveralBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ClusterError
) -> None:
    """The plan replays the chain, and its failure would refuse the removal of exactly that broker."""
    owner = cluster.brokers[3]
    await filled("t", owner)
    await owner.journal.until_durable()
    shutil.copytree(owner.journal.folder, tmp_path / "copied")
    await owner.moves.keep_states()
    gone = await lost(cluster, 3)
    await copied(cluster, tmp_path, int(gone))

    async def replayed(*given: Any, **named: Any) -> Any:
        raise error

    monkeypatch.setattr(inheritance, "replay", replayed)
    plan = await cluster.brokers[1].port.removal(gone)
    assert (plan.is_copied, plan.copy_error) == (False, error.message)
    (found,) = (each for each in plan.topics if each.topic == "/default/t")
    assert (found.copied_to, found.reported_to, found.missing_messages) == (10, 15, len(COPIED))
    monkeypatch.undo()
    await cluster.brokers[1].port.remove_broker(gone)
    await until(lambda: cluster.serves_name("t"))
    assert await read_all(cluster, "t", 15) == TIERED + COPIED


async def test_another_heir_goes_on_if_the_first_is_lost(cluster: SeveralBrokers, tmp_path: Path) -> None:
    owner = cluster.brokers[3]
    await filled("t", owner)
    await owner.journal.until_durable()
    shutil.copytree(owner.journal.folder, tmp_path / "copied")
    gone = await lost(cluster, 3)
    await copied(cluster, tmp_path, int(gone))
    first: list[int] = []
    for n, broker in cluster.brokers.items():
        rebuild = broker.moves.rebuild

        async def hangs(assignment: Assignment, arrival: Arrival, n: int = n, rebuild: Any = rebuild) -> None:
            if first and first[0] != n:
                await rebuild(assignment, arrival)
                return
            first[:] = [n]
            await anyio.sleep_forever()

        broker.moves.rebuild = hangs  # type: ignore[method-assign]
    await cluster.brokers[1].port.take_over("t")
    await until(lambda: bool(first))
    until_then = (await record_of(cluster, int(gone))).until
    await cluster.stop(first[0])
    await until(lambda: cluster.serves_name("t"))
    assert await read_all(cluster, "t", 15) == TIERED + COPIED
    assert (await record_of(cluster, int(gone))).until == until_then, "it reads up to the same fence"


async def test_brokers_of_an_older_release_take_nothing_over(cluster: SeveralBrokers, tmp_path: Path) -> None:
    for name in ("t", "other", "waits"):
        await filled(name, cluster.brokers[3])
    await cluster.brokers[3].journal.until_durable()
    shutil.copytree(cluster.brokers[3].journal.folder, tmp_path / "copied")
    gone = await lost(cluster, 3)
    await copied(cluster, tmp_path, int(gone))

    def is_old(n: int) -> None:
        old = broker_id(cluster.brokers[n])
        for broker in cluster.brokers.values():
            members: Any = broker.registry.ownership.coordinator.members
            members[old] = replace(members[old], inherits=False)

    is_old(2)
    for name in ("t", "other"):  # one for each heir, if both could
        await cluster.brokers[2].port.take_over(name)
        await until(lambda name=name: cluster.serves_name(name))
        assert cluster.owner(name) is cluster.brokers[1]
        assert await read_all(cluster, name, 15) == TIERED + COPIED
    is_old(1)
    with pytest.raises(Conflict, match="no broker of this release takes topics"):
        await cluster.brokers[2].port.take_over("waits")
    # it was planned before
    store, key = cluster.brokers[1].admin_state.store, keys.journal_key(BrokerId(int(gone)))
    waits = cluster.brokers[1].registry.catalog.index.find_topic(TopicName.parse("waits"))
    assert waits is not None
    planned = taken_over(await record_of(cluster, int(gone)), [waits.topic_id])
    await store.transact([Put(key, planned.to_json())])

    def why() -> list[str | None]:
        coordinators = [each.registry.ownership.coordinator for each in cluster.brokers.values()]
        return [each.why for one in coordinators for each in one.taken_over.values()]

    await until(lambda: why() == [NO_HEIR])


@pytest.mark.parametrize("step", ["rebuild", "make_safe"])
async def test_heir_keeps_nothing_of_a_topic_that_goes_to_another_heir(
    cluster: SeveralBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await filled("t", cluster.brokers[3])
    await cluster.brokers[3].journal.until_durable()
    shutil.copytree(cluster.brokers[3].journal.folder, tmp_path / "copied")
    await copied(cluster, tmp_path, int(await lost(cluster, 3)))
    held_up = list[Broker]()
    for broker in cluster.brokers.values():
        door = broker.moves.removed if step == "rebuild" else broker.moves
        carry_out = getattr(door, step)

        async def hangs(*given: Any, broker: Broker = broker, carry_out: Any = carry_out) -> Any:
            if held_up and held_up[0] is not broker:
                return await carry_out(*given)
            held_up[:] = [broker]
            return await anyio.sleep_forever()

        monkeypatch.setattr(door, step, hangs)
    await cluster.brokers[1].port.take_over("t")
    await until(lambda: bool(held_up))
    first = held_up[0]
    (topic_id,) = first.hub.states.keys() & set(first.moves.mover.participants)
    assert topic_id in first.hub.states
    other = next(each for each in cluster.brokers.values() if each is not first)
    # as the leader does when the lease of the first heir has ended
    store, key = first.admin_state.store, keys.assignment_key(topic_id)
    item = await store.get(key)
    assert item is not None
    now = Assignment.of(item.key, item.value)
    coordinator = other.registry.ownership.coordinator
    target, incarnation = broker_id(other), coordinator.alive()[broker_id(other)]
    after = replace(now, broker_id=target, incarnation=incarnation, epoch=Epoch(now.epoch + 1))
    await store.transact([Put(key, after.to_json())])
    await until(lambda: cluster.serves_name("t"))
    assert cluster.owner("t") is other
    await until(lambda: topic_id not in first.moves.mover.participants)
    assert topic_id not in first.hub.states
    assert not first.moves.rebuilt_from
    assert await read_all(cluster, "t", 15) == TIERED + COPIED


def copying(settings: Settings, **more: Any) -> Broker:
    journal = settings.journal.model_copy(update={"copy": True, "stored_linger": 0.02})
    return Broker(settings.model_copy(update={"journal": journal, **more}))


def lost_at_once(settings: Settings) -> Broker:
    return copying(settings, cluster=Cluster(on_loss="take_over"))


async def test_topics_of_a_lost_broker_are_taken_over_without_a_plan_where_its_record_says_so(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with several_brokers(etcd, tmp_path, lost_at_once) as cluster:
        owner = cluster.brokers[3]
        me = str(broker_id(owner))
        for name in ("t", "other"):
            await filled(name, owner)
        before = await record_of(cluster, int(me))
        assert before.on_loss == "take_over"
        await lost(cluster, 3)  # it stops in order, so its chain has everything
        for name in ("t", "other"):
            await until(lambda name=name: cluster.serves_name(name))
            assert await read_all(cluster, name, 15) == TIERED + COPIED
            served = cluster.owner(name).registry.find(TopicName.parse(name))
            assert served is not None
            assert (served.commit, served.subscriptions["s"].floor) == (15, 12), "without a gap"
        await until_state(cluster, me, JournalState.CLOSED)
        assert (await record_of(cluster, int(me))).term == before.term + 1

        await cluster.start(3)
        await until_state(cluster, me, JournalState.OPEN)
        again = await record_of(cluster, int(me))
        assert (again.copies, again.on_loss, again.is_whole) == (True, "take_over", False)


async def test_leader_replays_the_chain_for_its_own_part_before_it_assigns_a_topic(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, counter, replayed = inheritance.replay, removed_brokers.epoch_counter, anyio.Event()

    async def noted(*given: Any, **named: Any) -> Any:
        found = await replay(*given, **named)
        replayed.set()
        return found

    async def after_it(*given: Any) -> Any:  # the leader reads this before it assigns the first topics
        with anyio.fail_after(60):
            await replayed.wait()
        return await counter(*given)

    monkeypatch.setattr(inheritance, "replay", noted)
    monkeypatch.setattr(removed_brokers, "epoch_counter", after_it)
    async with several_brokers(etcd, tmp_path, lost_at_once) as cluster:
        for name in ("t", "other"):  # one for each heir
            await filled(name, cluster.brokers[3])
        await lost(cluster, 3)
        for name in ("t", "other"):
            await until(lambda name=name: cluster.serves_name(name))
            assert await read_all(cluster, name, 15) == TIERED + COPIED


def behind_at_its_end(heir: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Delay a broker's chain; return the bytes that it lacks at the last step by which the broker becomes an owner."""
    create, moves, missing = heir.chain.store.create, heir.moves, list[int]()
    assert moves.mover is not None
    send = moves.mover.ends.send

    async def late(key: str, data: bytes) -> bool:
        await anyio.sleep(0.3)  # longer than a local sync
        return await create(key, data)

    async def opening(change: Change, group: TaskGroup) -> Any:
        if change.step in (MoveStep.ARRIVE, MoveStep.OPEN):
            statistics = heir.chain.statistics()
            assert statistics is not None
            missing.append(max(0, heir.journal.durable_lsn - statistics.stored_lsn))
        return await send(change, group)

    monkeypatch.setattr(heir.chain.store, "create", late)
    monkeypatch.setattr(moves.mover.ends, "send", opening)
    return missing


async def test_topic_is_opened_once_the_chain_of_its_heir_has_it(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the loss of the heir would cost all that the chain of the first owner had."""
    async with several_brokers(etcd, tmp_path, lost_at_once) as cluster:
        await filled("t", cluster.brokers[3])
        missing = [behind_at_its_end(cluster.brokers[n], monkeypatch) for n in (1, 2)]
        await lost(cluster, 3)
        await until(lambda: cluster.serves_name("t"))
        assert sorted(missing) == [[], [0]]


async def test_topic_arrives_once_the_chain_of_its_next_owner_has_it(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the loss of the next owner's disk would cost all that the former owner forgets."""
    async with several_brokers(etcd, tmp_path, lost_at_once) as cluster:
        await filled("t", cluster.brokers[3])
        target = cluster.brokers[1]
        missing = behind_at_its_end(target, monkeypatch)
        assert await cluster.brokers[3].port.move_topic("t", str(broker_id(target)))
        await until(lambda: cluster.serves_name("t") and cluster.owner("t") is target)
        assert missing == [0]

        # and it is lost, with all that it has not sent
        async def never(key: str, data: bytes) -> bool:
            raise StoreUnavailable("away")

        monkeypatch.setattr(target.chain.store, "create", never)
        monkeypatch.setattr(broker_module, "LEAVE_S", 0.1)
        monkeypatch.setattr(
            ChainRecord, "waits", ChainRecord.leaves
        )  # it says nothing about its chain when it dies
        await lost(cluster, 1)
        shutil.rmtree(tmp_path / "broker-1")
        await until(lambda: cluster.serves_name("t"))
        assert await read_all(cluster, "t", 15) == TIERED + COPIED


async def test_stopped_broker_whose_chain_is_incomplete_keeps_its_topics(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "LEAVE_S", 0.2)
    async with several_brokers(etcd, tmp_path, lost_at_once) as cluster:
        owner = cluster.brokers[3]
        await filled("t", owner)
        await until_copied(owner)
        monkeypatch.setattr(owner.chain.store, "create", AsyncMock(side_effect=StoreUnavailable("away")))
        async with connect(owner.broker_url) as client, client.producer("t") as producer:
            await producer.send_many(LOST)
        gone = await lost(cluster, 3)
        record = await record_of(cluster, int(gone))
        assert (record.on_loss, record.state) == ("", JournalState.OPEN)
        await cluster.start(3)
        await until(lambda: cluster.serves_name("t"))
        assert await read_all(cluster, "t", 18) == TIERED + COPIED + LOST


async def test_without_its_lease_a_broker_acknowledges_only_what_its_chain_has(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several_brokers(etcd, tmp_path, lost_at_once) as cluster:
        owner = cluster.brokers[3]
        await filled("t", owner)
        served = owner.registry.find(TopicName.parse("t"))
        assert served is not None
        create, store_is_away = owner.chain.store.create, anyio.Event()

        async def later(key: str, data: bytes) -> bool:
            await store_is_away.wait()
            return await create(key, data)

        async with connect(owner.broker_url) as client, client.producer("t") as producer:
            monkeypatch.setattr(owner.chain.store, "create", later)
            assert (await producer.send(AFTER[0])).offset == 15, "with its lease the disk counts"
            with monkeypatch.context() as patch:
                patch.setattr(type(owner.registry.ownership.coordinator.membership), "is_overdue", True)
                sending = producer.send_nowait(AFTER[1])
                await until(lambda: served.state.next_offset > 16)
                end = owner.journal.written_lsn
                await until(lambda: owner.journal.durable_lsn >= end)
                assert served.commit == 16, "without it the disk alone does not"
                store_is_away.set()
                assert (await sending).offset == 16


async def test_broker_that_copies_is_taken_over_comes_back_and_copies_again(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with several_brokers(etcd, tmp_path, copying) as cluster:
        owner = cluster.brokers[3]
        me = str(broker_id(owner))
        for name in ("t", "other"):
            await filled(name, owner)
        await until_copied(owner)
        first = await record_of(cluster, int(me))
        assert first.copies
        await lost(cluster, 3)
        await cluster.brokers[1].port.take_over("t")
        await until(lambda: cluster.serves_name("t"))
        assert await read_all(cluster, "t", 15) == TIERED + COPIED

        await cluster.start(3)
        await cluster.all_know_all()
        await until_state(cluster, me, JournalState.OPEN)
        assert cluster.owner("other") is cluster.brokers[3]
        await cluster.stop(3)
        await cluster.start(3)
        await cluster.all_know_all()
        async with connect(cluster.brokers[3].broker_url) as client, client.producer("other") as producer:
            await producer.send_many(AFTER)
        await until_copied(cluster.brokers[3])
        again = await record_of(cluster, int(me))
        assert (again.copies, again.term, again.journal) == (True, first.term + 1, first.journal)

        await lost(cluster, 3)
        await cluster.brokers[2].port.take_over("other")
        await until(lambda: cluster.serves_name("other"))
        assert await read_all(cluster, "other", 15 + len(AFTER)) == TIERED + COPIED + AFTER
        assert (await record_of(cluster, int(me))).term == again.term + 1


async def until_copied(broker: Broker) -> None:
    await broker.journal.until_durable()
    lsn = broker.journal.durable_lsn
    await until(lambda: (found := broker.chain.statistics()) is not None and found.stored_lsn >= lsn)
