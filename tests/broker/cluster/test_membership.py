"""Registration: renewed in time, given up before its lease can end, counted so that lives can be told apart."""

from __future__ import annotations

import anyio
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.format_gate import METADATA_FORMAT
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.membership import (
    BrokerState,
    LeaseTerm,
    MemberRecord,
    Membership,
)
from pydanube_broker.cluster.removal import remove, removed_among
from pydanube_core.errors import Conflict, Fenced, StoreUnavailable
from pydanube_core.facts import BrokerAddress
from pydanube_storage.metadata import LeaseId

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
TTL_MS = 30_000


class MuteStore(MemoryStore):
    """A store that can stop answering; its own clock goes on."""

    mute = False
    renewals = 0

    async def keep_alive(self, lease_id: LeaseId) -> int:
        await anyio.lowlevel.checkpoint()
        if self.mute:
            raise StoreUnavailable("no answer")
        ttl_ms = await super().keep_alive(lease_id)
        self.renewals += 1
        return ttl_ms

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        await anyio.lowlevel.checkpoint()
        if self.mute:
            raise StoreUnavailable("no answer")
        return await super().grant_lease(ttl_ms)


def membership(
    store: MemoryStore, clock: ManualClock, *, broker: int = 1, ttl_ms: int | None = TTL_MS
) -> Membership:
    me = BrokerAddress(broker_id=str(broker), broker_url="http://b:1", admin_url="http://b:2")
    return Membership(store, me, ttl_ms=ttl_ms, wall_ms=lambda: 5, clock=clock)


async def member(store: MemoryStore, broker: int = 1) -> MemberRecord | None:
    item = await store.get(keys.member_key(BrokerId(broker)))
    return None if item is None else MemberRecord.from_json(item.value, key=item.key)


async def until(what: object, *arguments: object) -> None:
    while not what(*arguments):  # type: ignore[operator]
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("ttl_ms", [TTL_MS, None])
async def test_member_is_there_inside_the_block_only(
    store: MemoryStore, clock: ManualClock, ttl_ms: int | None
) -> None:
    async with membership(store, clock, ttl_ms=ttl_ms) as joined:
        record = await member(store)
        assert record is not None
        assert (record.broker_id, record.incarnation, record.state) == ("1", 1, BrokerState.ACTIVE)
        assert (record.broker_url, record.admin_url, record.registered_at_ms) == (
            "http://b:1",
            "http://b:2",
            5,
        )
        beside_others = ttl_ms is not None  # so topics may move to it, also from brokers that are lost
        assert (record.copies, record.inherits) == (beside_others, beside_others)
        assert record.metadata_format == METADATA_FORMAT
        assert (joined.registration.lease_id is None) == (ttl_ms is None)
    assert await member(store) is None
    assert not joined.registration.is_held


async def test_each_life_has_a_greater_incarnation(store: MemoryStore, clock: ManualClock) -> None:
    for life in (1, 2, 3):
        async with membership(store, clock, ttl_ms=None) as joined:
            assert joined.registration.incarnation == life


async def test_member_stays_as_long_as_it_renews(clock: ManualClock) -> None:
    async with MuteStore(clock=clock) as store, membership(store, clock) as joined:
        for renewal in range(1, 10):
            clock.advance(TTL_MS // 3)
            await until(lambda renewal=renewal: store.renewals >= renewal)
        assert joined.registration.is_held
        record = await member(store)
        assert record is not None
        assert record.incarnation == 1


async def test_registration_is_lost_at_its_deadline_and_taken_anew_when_the_store_answers(
    clock: ManualClock,
) -> None:
    async with MuteStore(clock=clock) as store, membership(store, clock) as joined:
        first = joined.registration
        store.mute = True
        clock.advance(TTL_MS - 1)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert first.is_held
        clock.advance(1)
        await first.lost.wait()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert joined.registration is first
        store.mute = False
        clock.advance(5_000)
        await until(lambda: joined.registration is not first)
        assert joined.registration.is_held
        assert joined.registration.incarnation == 2
        record = await member(store)
        assert record is not None
        assert (record.incarnation, record.reason) == (2, "registration_expired")


async def test_lease_that_the_store_ended_is_lost_at_the_next_renewal(
    store: MemoryStore, clock: ManualClock
) -> None:
    async with membership(store, clock) as joined:
        first = joined.registration
        assert first.lease_id is not None
        await store.revoke_lease(first.lease_id)
        clock.advance(TTL_MS // 3)
        await first.lost.wait()
        await until(lambda: joined.registration is not first)
        assert joined.registration.incarnation == 2


async def test_quick_restart_replaces_its_former_life_at_once(store: MemoryStore, clock: ManualClock) -> None:
    async with membership(store, clock) as old, membership(store, clock) as new:
        assert new.registration.incarnation == old.registration.incarnation + 1
        record = await member(store)
        assert record is not None
        assert record.incarnation == new.registration.incarnation
        with pytest.raises(Conflict):
            await old.set_state(BrokerState.DRAINED, reason="test")
        await new.set_state(BrokerState.DRAINING, reason="test")
        record = await member(store)
        assert record is not None
        assert (record.state, record.reason) == (BrokerState.DRAINING, "test")


def test_lease_is_counted_from_sending() -> None:
    term = LeaseTerm(ttl_ms=30_000, sent_ms=1_000)
    assert (term.renew_at_ms, term.deadline_ms) == (11_000, 31_000)
    assert [term.pause_ms(failures) for failures in range(5)] == [1_000, 2_000, 4_000, 5_000, 5_000]
    assert LeaseTerm(ttl_ms=60, sent_ms=0).pause_ms(3) == 10


async def test_who_was_removed_registers_no_more_and_who_is_registered_is_not_removed(
    store: MemoryStore, clock: ManualClock
) -> None:
    async with membership(store, clock):
        with pytest.raises(Conflict, match="is registered"):
            await remove(store, BrokerId(1), at_ms=7)
    assert await remove(store, BrokerId(1), at_ms=7)
    assert not await remove(store, BrokerId(1), at_ms=8), "once is enough"
    with pytest.raises(Fenced, match="was removed from the cluster"):
        await membership(store, clock).__aenter__()
    assert await member(store) is None
    async with membership(store, clock, broker=2):  # nobody else is meant
        assert await removed_among(store, [BrokerId(1), BrokerId(2)]) == {BrokerId(1)}


async def test_a_life_that_lost_its_lease_ends_when_it_was_removed_meanwhile(
    store: MemoryStore, clock: ManualClock
) -> None:
    async with membership(store, clock) as joined:
        assert joined.registration.lease_id is not None
        await store.revoke_lease(joined.registration.lease_id)
        assert await remove(store, BrokerId(1), at_ms=7)
        clock.advance(TTL_MS)
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        assert await member(store) is None
