"""Leases of the stores that keep them by our clock: to the millisecond. (etcd counts seconds: the conformance suite.)"""

from __future__ import annotations

import pytest
from pydanube_storage.metadata import Absent, KeyRange, LeaseLost, MetadataStore, Put

from tests.support.manual_clock import ManualClock

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("adapter", ["memory", "embedded"], indirect=True)]


async def keys(store: MetadataStore) -> list[str]:
    return [item.key for item in (await store.range(KeyRange.prefix("/"))).items]


async def test_key_goes_at_the_end_of_its_lease_and_not_before(
    store: MetadataStore, clock: ManualClock
) -> None:
    lease = await store.grant_lease(1_000)
    await store.transact([Put("/leased", b"", lease_id=lease), Put("/stays", b"")])
    clock.advance(999)
    item = await store.get("/leased")
    assert item is not None
    assert item.lease_id == lease
    clock.advance(1)
    assert await keys(store) == ["/stays"]


async def test_keep_alive_gives_the_whole_time_again(store: MetadataStore, clock: ManualClock) -> None:
    lease = await store.grant_lease(1_000)
    await store.transact([Put("/leased", b"", lease_id=lease)])
    for _ in range(5):
        clock.advance(900)
        assert await store.keep_alive(lease) == 1_000
    assert await keys(store) == ["/leased"]
    clock.advance(1_000)
    assert await keys(store) == []


async def test_lease_is_lost_at_its_end(store: MetadataStore, clock: ManualClock) -> None:
    lease = await store.grant_lease(1_000)
    clock.advance(1_000)
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)


async def test_put_without_lease_outlives_the_former(store: MetadataStore, clock: ManualClock) -> None:
    lease = await store.grant_lease(1_000)
    await store.transact([Put("/a", b"1", lease_id=lease)])
    await store.transact([Put("/a", b"2")])
    clock.advance(2_000)
    assert await keys(store) == ["/a"]


async def test_put_with_another_lease_ends_with_that_one(store: MetadataStore, clock: ManualClock) -> None:
    short, long = await store.grant_lease(1_000), await store.grant_lease(5_000)
    await store.transact([Put("/a", b"", lease_id=short)])
    await store.transact([Put("/a", b"", lease_id=long)])
    clock.advance(1_000)
    assert await keys(store) == ["/a"]
    clock.advance(4_000)
    assert await keys(store) == []


async def test_guard_does_not_see_a_key_whose_lease_ends_now(
    store: MetadataStore, clock: ManualClock
) -> None:
    lease = await store.grant_lease(1_000)
    await store.transact([Put("/leader", b"old", lease_id=lease)])
    clock.advance(1_000)
    await store.transact([Put("/leader", b"new")], guards=[Absent("/leader")])
