"""Members, their leader and its assignments on a real etcd: several brokers, each with a connection of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AsyncExitStack

import anyio
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assigner
from pydanube_broker.cluster.election import Election, ElectionState
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.membership import Membership
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_core.errors import Conflict
from pydanube_core.facts import BrokerAddress
from pydanube_core.names import TopicName
from pydanube_storage.metadata import GuardFailed, MetadataStore, Put, read_all
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions, EtcdStore

from tests.support.etcd import EtcdMembers
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture

pytestmark = pytest.mark.anyio
TTL_MS = 2_000
_prefixes = itertools.count()


@pytest.fixture
def connected(etcd: EtcdMembers) -> Callable[[], EtcdStore]:
    """Connections of several brokers to one prefix."""
    url = etcd.url(f"/protocols-{next(_prefixes)}")
    return lambda: EtcdStore(EtcdOptions(address=EtcdAddress.parse(url)))


class Candidate:
    """A broker as far as it takes part: registered under a lease, and standing for leader."""

    def __init__(self, store: MetadataStore, broker: int) -> None:
        me = BrokerAddress(
            broker_id=str(broker), broker_url=f"http://b{broker}:1", admin_url=f"http://b{broker}:2"
        )
        self.store = store
        self.membership = Membership(store, me, ttl_ms=TTL_MS, wall_ms=lambda: 5)
        self.election: Election

    async def join(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.membership)
        self.election = await stack.enter_async_context(Election(self.store, self.membership.registration))


async def candidates(
    stack: AsyncExitStack, connected: Callable[[], EtcdStore], count: int
) -> list[Candidate]:
    found = [Candidate(await stack.enter_async_context(connected()), n + 1) for n in range(count)]
    for each in found:
        await each.join(stack)
    return found


async def test_one_of_three_leads_and_the_others_know_whom(connected: Callable[[], EtcdStore]) -> None:
    async with AsyncExitStack() as stack:
        first, *others = await candidates(stack, connected, 3)
        assert first.election.state is ElectionState.LEADING
        for other in others:
            assert other.election.state is ElectionState.FOLLOWING
            assert other.election.leader == first.election.leadership
        items, _ = await read_all(first.store, keys.MEMBERS)
        assert [keys.number_in_key(item.key) for item in items] == [1, 2, 3]


async def test_leader_whose_lease_is_gone_is_replaced_and_its_writes_are_refused(
    connected: Callable[[], EtcdStore],
) -> None:
    async with AsyncExitStack() as stack:
        old, new = await candidates(stack, connected, 2)
        catalog = TopicCatalog(old.store, wall_ms=lambda: 1)
        await catalog.load()
        stack.push_async_callback(catalog.records.aclose)
        topics = await catalog.create_topic(TopicName("default", "t"), partitions=3)
        held = old.election.leadership
        stale = Assigner(old.store, leadership=held, quarantine=catalog.quarantine)
        lease = old.membership.registration.lease_id
        assert lease is not None
        await new.store.revoke_lease(lease)
        await new.election.wait_until(ElectionState.LEADING)
        incarnation = new.membership.registration.incarnation
        with pytest.raises((GuardFailed, Conflict)):
            await stale.assign_all(topics, BrokerId(1), incarnation=incarnation, current={})
        present = Assigner(new.store, leadership=new.election.leadership, quarantine=catalog.quarantine)
        made = await present.assign_all(topics, BrokerId(2), incarnation=incarnation, current={})
        assert {each.broker_id for each in made.values()} == {BrokerId(2)}
        with pytest.raises(Conflict):  # not sealed: nobody else may have it
            await present.assign(topics[0], BrokerId(1), incarnation=incarnation)


async def test_leader_that_leaves_makes_room_at_once(connected: Callable[[], EtcdStore]) -> None:
    leads, leave = anyio.Event(), anyio.Event()

    async def first() -> None:
        async with AsyncExitStack() as stack:
            (one,) = await candidates(stack, connected, 1)
            assert one.election.state is ElectionState.LEADING
            leads.set()
            await leave.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await leads.wait()
        async with AsyncExitStack() as stack:
            second = Candidate(await stack.enter_async_context(connected()), 2)
            await second.join(stack)
            assert second.election.state is ElectionState.FOLLOWING
            leave.set()
            await second.election.wait_until(ElectionState.LEADING)
            while len(items := (await read_all(second.store, keys.MEMBERS))[0]) > 1:
                await anyio.lowlevel.checkpoint()
            assert [keys.number_in_key(item.key) for item in items] == [2]


async def test_member_renews_its_lease_for_longer_than_that_lasts(
    connected: Callable[[], EtcdStore], etcd: EtcdMembers
) -> None:
    async with AsyncExitStack() as stack:
        (only,) = await candidates(stack, connected, 1)
        first = only.membership.registration
        store = await stack.enter_async_context(connected())
        lease = await store.grant_lease(
            TTL_MS
        )  # which nobody renews: its end is later than the member's could be
        now = await store.transact([Put("/witness", b"", lease_id=lease)])
        async with store.watch(keys.only("/witness"), from_revision=now) as events:
            for _ in range(2):
                await anext(events)
        assert first.is_held
        assert only.membership.registration is first
