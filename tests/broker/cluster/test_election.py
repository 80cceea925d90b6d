"""One leader at a time; the next one when it goes; what a replaced one still wants to write is refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

import anyio
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.election import Election, ElectionState, LeaderRecord, Move, decide
from pydanube_broker.cluster.ids import BrokerId, Incarnation
from pydanube_broker.cluster.membership import Membership, Registration
from pydanube_core.errors import Conflict
from pydanube_core.facts import BrokerAddress
from pydanube_storage.metadata import Delete, Guard, GuardFailed, LeaseId, Put, Revision, Write

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
TTL_MS = 30_000


def membership(
    store: MemoryStore, clock: ManualClock, *, broker: int, ttl_ms: int | None = TTL_MS
) -> Membership:
    me = BrokerAddress(broker_id=str(broker), broker_url="u", admin_url="u")
    return Membership(store, me, ttl_ms=ttl_ms, wall_ms=lambda: 5, clock=clock)


@pytest.mark.parametrize("candidates", [2, 7])
async def test_row_7_of_candidates_at_the_same_instant_exactly_one_leads(
    store: MemoryStore, clock: ManualClock, candidates: int
) -> None:
    async with AsyncExitStack() as stack:
        elections = []
        for broker in range(1, candidates + 1):
            joined = await stack.enter_async_context(membership(store, clock, broker=broker))
            elections.append(Election(store, joined.registration, clock=clock))
        async with anyio.create_task_group() as group:
            for election in elections:
                group.start_soon(election.campaign)
        states = [election.state for election in elections]
        item = await store.get(keys.LEADER)
        assert item is not None
        assert item.mod_revision == item.create_revision, "no broker wrote over another one's leadership"
        assert sorted(states) == ["following"] * (candidates - 1) + ["leading"]
        assert len({election.leader for election in elections}) == 1
        for election in elections:
            if election.state is ElectionState.FOLLOWING:
                with pytest.raises(Conflict):
                    election.leadership  # noqa: B018


async def test_follower_takes_over_when_the_leader_steps_down(store: MemoryStore, clock: ManualClock) -> None:
    async with (
        membership(store, clock, broker=1) as one,
        membership(store, clock, broker=2) as two,
        Election(store, one.registration, clock=clock) as first,
    ):
        async with Election(store, two.registration, clock=clock) as second:
            assert second.state is ElectionState.FOLLOWING
            token = first.leadership.token
            guard = first.leadership.guard
            await first.step_down()
            await second.wait_until(ElectionState.LEADING)
            assert second.leadership.token > token
            with pytest.raises(GuardFailed):
                await store.transact([Put("/a", b"")], guards=[guard])
            await store.transact([Put("/a", b"")], guards=[second.leadership.guard])
        await first.wait_until(ElectionState.LEADING)


async def test_leadership_goes_with_the_registration(store: MemoryStore, clock: ManualClock) -> None:
    async with (
        membership(store, clock, broker=2) as two,
        membership(store, clock, broker=1) as one,
        Election(store, one.registration, clock=clock) as first,
        Election(store, two.registration, clock=clock) as second,
    ):
        registration = one.registration
        assert registration.lease_id is not None
        assert first.state is ElectionState.LEADING
        await store.revoke_lease(registration.lease_id)
        await second.wait_until(ElectionState.LEADING)
        clock.advance(TTL_MS // 3)
        await registration.lost.wait()
        assert first.state is ElectionState.NO_LEADER


async def test_who_lost_the_lead_does_not_count_as_leader_while_it_campaigns_again(
    clock: ManualClock,
) -> None:
    """Else it would still act on what another one may have decided since."""

    class Watched(MemoryStore):
        states: list[ElectionState]

        async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
            if any(isinstance(each, Put) and each.key == keys.LEADER for each in writes):
                self.states.append(election.state)
                with pytest.raises(Conflict):
                    election.leadership  # noqa: B018
            return await super().transact(writes, guards=guards)

    async with Watched(clock=clock) as store, membership(store, clock, broker=1) as one:
        store.states = []
        election = Election(store, one.registration, clock=clock)
        assert await election.campaign() is ElectionState.LEADING
        first = election.leadership.token
        await store.transact([Delete(keys.LEADER)])
        assert await election.campaign() is ElectionState.LEADING
        assert election.leadership.token > first
        assert store.states == [ElectionState.NO_LEADER] * 2


async def test_replaced_life_may_not_lead(store: MemoryStore, clock: ManualClock) -> None:
    async with membership(store, clock, broker=1) as old, membership(store, clock, broker=1) as new:
        with pytest.raises(Conflict, match="registered again since"):
            await Election(store, old.registration, clock=clock).campaign()
        assert await Election(store, new.registration, clock=clock).campaign() is ElectionState.LEADING


async def test_new_life_clears_its_former_life_out_of_office_at_once(
    store: MemoryStore, clock: ManualClock
) -> None:
    async with membership(store, clock, broker=1) as old:
        former = Election(store, old.registration, clock=clock)
        await former.campaign()
        async with membership(store, clock, broker=1) as new:
            election = Election(store, new.registration, clock=clock)
            assert await election.campaign() is ElectionState.LEADING
            assert election.leadership.token > former.leadership.token


async def test_leader_key_of_a_dead_process_does_not_stop_a_lone_broker(
    store: MemoryStore, clock: ManualClock
) -> None:
    dead = LeaderRecord(broker_id="99", incarnation=3)
    await store.transact([Put(keys.LEADER, dead.to_json())])
    async with (
        membership(store, clock, broker=1, ttl_ms=None) as alone,
        Election(store, alone.registration, clock=clock) as election,
    ):
        assert election.state is ElectionState.LEADING
    assert await store.get(keys.LEADER) is None


@pytest.mark.parametrize(
    ("leader", "has_lease", "move"),
    [
        (None, True, Move.CAMPAIGN),
        (None, False, Move.CAMPAIGN),
        (("1", 5), True, Move.LEAD),
        (("1", 4), True, Move.CLEAR),
        (("1", 6), True, Move.FOLLOW),
        (("1", 6), False, Move.FOLLOW),
        (("2", 1), True, Move.FOLLOW),
        (("2", 1), False, Move.CLEAR),
    ],
)
async def test_next_move(leader: tuple[str, int] | None, has_lease: bool, move: Move) -> None:
    own = Registration(
        broker_id=BrokerId(1),
        incarnation=Incarnation(5),
        lease_id=LeaseId(1) if has_lease else None,
        revision=Revision(1),
    )
    found = None if leader is None else LeaderRecord(broker_id=leader[0], incarnation=leader[1])
    assert decide(found, own) is move
