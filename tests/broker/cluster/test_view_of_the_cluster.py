"""A broker's view of members and owners: where topics go, whose topics wait, which address a broker has."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.coordinator import Coordinator
from pydanube_broker.cluster.election import LeaderRecord
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.membership import BrokerState, MemberRecord
from pydanube_broker.cluster.move_record import MoveRecord, Stage
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_core.facts import BrokerAddress, Grace
from pydanube_core.names import AUDIT_TOPIC, TopicName
from pydanube_storage.metadata import Delete, Put, Write

from tests.support.memory_store import MemoryStore

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
ME = BrokerId(99)
BROKERS = [BrokerId(each) for each in (1, 2, 3, 4)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A topic's owner, and the broker to which it moves. `stage`: of the move."""

    owner: BrokerId
    target: BrokerId | None = None
    stage: Stage = Stage.MOVING

    @property
    def next_owner(self) -> BrokerId:
        return self.owner if self.target is None or self.stage is Stage.ASSIGNED else self.target

    def record(self, topic_id: int, topic: TopicName | None = None, *, epoch: int = 1) -> Assignment:
        move = MoveRecord(source=str(self.owner), target=str(self.target), begun_at_ms=0)
        return Assignment(
            topic_id=TopicId(topic_id),
            topic=topic or TopicName("default", f"t{topic_id}"),
            broker_id=self.owner,
            incarnation=Incarnation(1),
            epoch=Epoch(epoch),
            stage=Stage.SERVING if self.target is None else self.stage,
            move=None if self.target is None else move,
        )


def member(broker_id: int, state: BrokerState = BrokerState.ACTIVE, *, inherits: bool = True) -> Put:
    record = MemberRecord(
        broker_id=str(broker_id),
        incarnation=10 + broker_id,
        broker_url=f"http://b{broker_id}:1",
        admin_url=f"http://b{broker_id}:2",
        state=state,
        reason="",
        registered_at_ms=0,
        zone=f"z{broker_id}",
        name=f"n{broker_id}",
        inherits=inherits,
    )
    return Put(keys.member_key(BrokerId(broker_id)), record.to_json())


@asynccontextmanager
async def following(
    store: MemoryStore, places: Mapping[int, Placed], *members: Put, catalog: TopicCatalog | None = None
) -> AsyncIterator[Coordinator]:
    """A broker that starts beside these members and owners, and leads nothing."""
    writes: list[Write] = [
        Put(keys.assignment_key(TopicId(topic_id)), each.record(topic_id).to_json())
        for topic_id, each in places.items()
    ]
    await store.transact([Put(keys.LEADER, LeaderRecord(broker_id="1", incarnation=11).to_json())])
    if members or writes:
        await store.transact([*members, *writes])
    coordinator = Coordinator(
        store,
        BrokerAddress(broker_id=str(ME), broker_url="http://me:1", admin_url="http://me:2"),
        catalog=catalog or TopicCatalog(store, wall_ms=lambda: 1),
        several=True,
        check=lambda topics, former: None,
        changed=lambda key: None,
        seen=lambda topic_id, assignment, revision: None,
    )
    with anyio.fail_after(30):
        async with coordinator:
            yield coordinator


_placed = st.builds(
    Placed,
    owner=st.sampled_from([*BROKERS, ME]),
    target=st.none() | st.sampled_from(BROKERS),
    stage=st.sampled_from([Stage.MOVING, Stage.ASSIGNED]),
)
_states = st.sampled_from(
    [BrokerState.ACTIVE, BrokerState.ACTIVE, BrokerState.DRAINING, BrokerState.READ_ONLY]
)


@settings(max_examples=60, deadline=None)
@given(
    places=st.lists(_placed, max_size=8),
    members=st.dictionaries(st.sampled_from(BROKERS), st.tuples(_states, st.booleans()), max_size=4),
    avoid=st.dictionaries(st.integers(0, 11), st.sampled_from(BROKERS), max_size=6),
    order=st.permutations(range(12)),
    changes=st.lists(st.tuples(st.integers(0, 11), st.none() | _placed), max_size=8),
)
def test_topics_are_spread_over_the_brokers_that_take_them_and_have_the_fewest(
    places: list[Placed],
    members: dict[BrokerId, tuple[BrokerState, bool]],
    avoid: dict[int, BrokerId],
    order: list[int],
    changes: list[tuple[int, Placed | None]],
) -> None:
    anyio.run(_spread, dict(enumerate(places)), members, avoid, order, changes)


async def _spread(
    places: dict[int, Placed],
    members: dict[BrokerId, tuple[BrokerState, bool]],
    avoid: dict[int, BrokerId],
    order: Sequence[int],
    changes: Sequence[tuple[int, Placed | None]],
) -> None:
    active = {broker for broker, (state, _) in members.items() if state is BrokerState.ACTIVE}
    heirs = {broker for broker in active if members[broker][1]}
    topics = [TopicId(each) for each in order]
    written = [member(broker, state, inherits=inherits) for broker, (state, inherits) in members.items()]
    async with MemoryStore() as store, following(store, places, *written) as me:
        for epoch, (topic_id, placed) in enumerate(changes, 2):
            if placed is None:
                places.pop(topic_id, None)
                me.forget(TopicId(topic_id))
            else:
                places[topic_id] = placed
                me.note(placed.record(topic_id, epoch=epoch))
        heading = Counter(each.next_owner for each in places.values())
        alive = me.alive()
        assert alive == {broker: 10 + broker for broker in active}
        assert [heading[broker] for broker in alive] == sorted(heading[broker] for broker in active)
        assert me.heirs().keys() == heirs
        for to_heirs, those in ((False, active), (True, heirs)):
            found = me.spread(
                topics, avoid={TopicId(key): each for key, each in avoid.items()}, to_heirs=to_heirs
            )
            load = heading.copy()
            for topic_id in topics:
                others = those - ({places[topic_id].owner} if topic_id in places else set())
                wanted = min(
                    others, key=lambda each: (each == avoid.get(topic_id), load[each], each), default=None
                )
                assert found.get(topic_id) == wanted
                if wanted is not None:
                    load[wanted] += 1
        assert me.placed == len(places)
        owners = Counter(each.owner for each in places.values() if each.owner not in {*members, ME})
        assert me.absent_owners() == owners
        assert me.lost_owners() == owners.keys()
        for broker in (*BROKERS, ME):
            owned = {topic_id for topic_id, each in places.items() if each.owner == broker}
            assert {each.topic_id for each in me.owned_by(broker)} == owned
        moving = {topic_id for topic_id, each in places.items() if each.target is not None}
        assert {each.topic_id for each in me.moving_places()} == me.moving == moving


async def test_topics_of_an_owner_that_is_gone_wait_without_its_audit_and_those_that_are_deleted(
    store: MemoryStore, catalog: TopicCatalog
) -> None:
    there, lost, audits, deleted_only = BROKERS
    plain = [(await catalog.create_topic(TopicName("default", f"t{i}")))[0] for i in range(5)]
    log_of = [
        (await catalog.create_topic(TopicName.parse(f"{AUDIT_TOPIC}-{each}")))[0] for each in (lost, audits)
    ]
    owners = (there, lost, lost, deleted_only, lost, lost, audits)
    for topic, owner in zip((*plain, *log_of), owners, strict=True):
        made = Placed(owner=owner).record(topic.topic_id, topic.topic)
        await store.transact([Put(keys.assignment_key(topic.topic_id), made.to_json())])
    for topic in plain[3:]:
        await catalog.delete_topic(topic.topic, grace=Grace(call_id="c", until_ms=1 << 50))
    follower = TopicCatalog(store, wall_ms=lambda: 1)
    async with following(store, {}, member(there), catalog=follower) as me:
        assert me.absent_owners() == {lost: 2, audits: 0}
        assert me.lost_owners() == {lost, audits, deleted_only}
        for broker in (lost, audits, deleted_only):
            await store.transact([member(broker)])
            while broker not in me.members:
                await anyio.lowlevel.checkpoint()
            assert broker not in me.absent_owners()
            assert broker not in me.lost_owners()
        assert me.absent_owners() == {}


async def test_a_broker_that_is_gone_keeps_its_last_address_until_it_is_back(store: MemoryStore) -> None:
    one, two = BROKERS[:2]
    known = BrokerAddress(
        broker_id="2", broker_url="http://b2:1", admin_url="http://b2:2", zone="z2", name="n2"
    )
    async with following(store, {}, member(one), member(two)) as me:
        assert me.address(two) == known
        assert me.address(BROKERS[2]) is None
        assert me.gone_addresses() == []
        await store.transact([Delete(keys.member_key(two))])
        while two in me.members:
            await anyio.lowlevel.checkpoint()
        assert me.address(two) == known
        assert me.gone_addresses() == [known]
        await store.transact([member(two)])
        while two not in me.members:
            await anyio.lowlevel.checkpoint()
        assert me.gone_addresses() == []


async def test_an_assignment_of_an_earlier_epoch_does_not_replace_a_later_one(store: MemoryStore) -> None:
    one, two = BROKERS[:2]
    async with following(store, {7: Placed(owner=one)}, member(one), member(two)) as me:
        assert me.place(TopicId(7)) == Placed(owner=one).record(7)
        for owner, epoch, kept in ((two, 1, two), (one, 0, two), (one, 2, one), (two, 1, one)):
            me.note(
                Assignment(
                    topic_id=TopicId(7),
                    topic=TopicName("default", "t7"),
                    broker_id=owner,
                    incarnation=Incarnation(1),
                    epoch=Epoch(epoch),
                )
            )
            assert [each.topic_id for each in me.owned_by(kept)] == [7]
            assert me.placed == 1
