"""What every adapter of the metadata store promises: reading, guards, limits, leases, closing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from pydanube_core.errors import ClosedResource, Conflict, InvalidArgument
from pydanube_storage.metadata import (
    MAX_OPERATIONS,
    MAX_TRANSACTION_BYTES,
    MAX_VALUE_BYTES,
    Absent,
    Delete,
    DeleteRange,
    GuardFailed,
    KeyRange,
    LeaseId,
    LeaseLost,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    Write,
    read_all,
)

from tests.storage.metadata.adapters import LetPass, until_gone

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]


async def keys(store: MetadataStore, prefix: str = "/") -> list[str]:
    return [item.key for item in (await store.range(KeyRange.prefix(prefix))).items]


# Reading and revisions


async def test_absent_key_reads_as_none(store: MetadataStore) -> None:
    assert await store.get("/nothing") is None


async def test_create_revision_stays_and_mod_revision_moves(store: MetadataStore) -> None:
    first = await store.transact([Put("/a", b"1")])
    second = await store.transact([Put("/a", b"2")])
    item = await store.get("/a")
    assert item is not None
    assert (item.value, item.create_revision, item.mod_revision) == (b"2", first, second)
    assert second == first + 1


async def test_key_created_again_has_a_new_create_revision(store: MetadataStore) -> None:
    first = await store.transact([Put("/a", b"")])
    await store.transact([Delete("/a")])
    third = await store.transact([Put("/a", b"")])
    item = await store.get("/a")
    assert item is not None
    assert item.create_revision == third > first + 1


async def test_all_keys_of_a_transaction_share_its_revision(store: MetadataStore) -> None:
    revision = await store.transact([Put("/a", b""), Put("/b", b"")])
    assert {item.create_revision for item in (await store.range(KeyRange.prefix("/"))).items} == {revision}


async def test_transaction_that_changes_nothing_keeps_the_revision(store: MetadataStore) -> None:
    revision = await store.transact([Put("/a", b"")])
    assert await store.transact([Delete("/absent")]) == revision
    assert await store.transact([], guards=[Absent("/absent")]) == revision
    assert await store.transact([Put("/b", b"")]) == revision + 1


async def test_values_may_be_empty_and_hold_any_byte(store: MetadataStore) -> None:
    await store.transact([Put("/empty", b""), Put("/bytes", bytes(range(256)))])
    empty, every = await store.get("/empty"), await store.get("/bytes")
    assert empty is not None
    assert every is not None
    assert (empty.value, every.value) == (b"", bytes(range(256)))


# Ranges


async def test_range_is_half_open_and_in_key_order(store: MetadataStore) -> None:
    await store.transact([Put(key, b"") for key in ("/c", "/a", "/b", "/d")])
    page = await store.range(KeyRange(start="/a", end="/c"))
    assert [item.key for item in page.items] == ["/a", "/b"]
    assert page.more is False


async def test_order_is_by_code_point_beyond_the_basic_plane(store: MetadataStore) -> None:
    names = ["/a", "/z", "/é", "/\uffee", "/\U0001f600"]
    await store.transact([Put(name, b"") for name in reversed(names)])
    assert await keys(store) == names == sorted(names)


async def test_prefix_with_a_slash_does_not_reach_the_neighbour(store: MetadataStore) -> None:
    await store.transact([Put("/t/orders/1", b""), Put("/t/orders-eu/1", b""), Put("/t/orders", b"")])
    assert await keys(store, "/t/orders/") == ["/t/orders/1"]


@pytest.mark.parametrize("descending", [False, True])
async def test_pages_by_after_key_show_each_key_once(store: MetadataStore, descending: bool) -> None:
    names = [f"/p/{i:02d}" for i in range(25)]
    await store.transact([Put(name, b"") for name in names])
    await store.transact([Put("/o", b""), Put("/q", b"")])
    seen: list[str] = []
    sizes: list[int] = []
    after: str | None = None
    more = True
    while more:
        page = await store.range(KeyRange.prefix("/p/"), limit=10, after=after, descending=descending)
        seen += [item.key for item in page.items]
        sizes.append(len(page.items))
        after, more = seen[-1], page.more
    assert seen == (names[::-1] if descending else names)
    assert sizes == [10, 10, 5]


async def test_full_last_page_says_that_nothing_follows(store: MetadataStore) -> None:
    await store.transact([Put(f"/{i}", b"") for i in range(4)])
    assert (await store.range(KeyRange.prefix("/"), limit=4)).more is False
    assert (await store.range(KeyRange.prefix("/"), limit=3)).more is True


async def test_after_outside_the_range_is_no_error(store: MetadataStore) -> None:
    await store.transact([Put("/b", b"")])
    everything = KeyRange(start="/b", end="/c")
    assert len((await store.range(everything, after="/a")).items) == 1
    assert len((await store.range(everything, after="/x")).items) == 0
    assert len((await store.range(everything, after="/x", descending=True)).items) == 1
    assert len((await store.range(everything, after="/a", descending=True)).items) == 0


async def test_read_all_crosses_pages(store: MetadataStore, start: Revision) -> None:
    for first in range(0, 1200, 100):
        await store.transact([Put(f"/{i:04d}", b"") for i in range(first, first + 100)])
    items, at = await read_all(store, KeyRange.prefix("/"))
    assert [item.key for item in items] == [f"/{i:04d}" for i in range(1200)]
    assert at - start == 12


# Guards


async def test_absent_guard_lets_exactly_one_creator_through(store: MetadataStore) -> None:
    outcomes: list[bool] = []

    async def create(value: bytes) -> None:
        try:
            await store.transact([Put("/a", value)], guards=[Absent("/a")])
            outcomes.append(True)
        except Conflict:
            outcomes.append(False)

    async with anyio.create_task_group() as group:
        for i in range(20):
            group.start_soon(create, b"%d" % i)
    assert sorted(outcomes) == [False] * 19 + [True]
    assert store.statistics().conflicts == 19


async def test_mod_revision_guard_refuses_after_another_change(store: MetadataStore) -> None:
    seen = await store.transact([Put("/a", b"1")])
    now = await store.transact([Put("/a", b"2")])
    with pytest.raises(GuardFailed) as caught:
        await store.transact([Put("/a", b"3")], guards=[ModRevision("/a", seen)])
    assert caught.value.guard == ModRevision("/a", seen)
    assert caught.value.actual_revision == now
    assert caught.value.retryable is True
    assert caught.value.details == {
        "guard": "ModRevision",
        "key": "/a",
        "expected_revision": seen,
        "actual_revision": now,
    }
    await store.transact([Put("/a", b"3")], guards=[ModRevision("/a", now)])


async def test_mod_revision_guard_refuses_an_absent_key(store: MetadataStore) -> None:
    with pytest.raises(GuardFailed) as caught:
        await store.transact([Put("/b", b"")], guards=[ModRevision("/a", Revision(1))])
    assert caught.value.actual_revision is None


async def test_one_failed_guard_of_many_leaves_everything_as_it_was(store: MetadataStore) -> None:
    revision = await store.transact([Put("/a", b"a"), Put("/b", b"b")])
    writes: list[Write] = [Put("/new", b""), Put("/a", b"changed"), Delete("/b")]
    with pytest.raises(GuardFailed) as caught:
        await store.transact(writes, guards=[Absent("/c"), ModRevision("/a", revision), Absent("/b")])
    assert caught.value.guard == Absent("/b")
    page = await store.range(KeyRange.prefix("/"))
    assert [(item.key, item.value) for item in page.items] == [("/a", b"a"), ("/b", b"b")]
    assert page.revision == revision


async def test_delete_range_deletes_the_range_only(store: MetadataStore) -> None:
    await store.transact([Put(key, b"") for key in ("/a", "/r/1", "/r/2", "/r/3", "/s")])
    await store.transact([DeleteRange(KeyRange.prefix("/r/"))])
    assert await keys(store) == ["/a", "/s"]


# Limits: the same in every adapter, before anything changes

TOO_MUCH: dict[str, tuple[list[Write], list[Any]]] = {
    "operations": ([Put(f"/{i}", b"") for i in range(MAX_OPERATIONS + 1)], []),
    "operations with guards": ([Put(f"/{i}", b"") for i in range(60)], [Absent(f"/{i}") for i in range(41)]),
    "nothing": ([], []),
    "value": ([Put("/a", bytes(MAX_VALUE_BYTES + 1))], []),
    "bytes": ([Put(f"/{i}", bytes(MAX_VALUE_BYTES)) for i in range(2)], []),
    "put twice": ([Put("/a", b"1"), Put("/a", b"2")], []),
    "put and deleted": ([Put("/a", b"1"), Delete("/a")], []),
    "put in a deleted range": ([DeleteRange(KeyRange.prefix("/a/")), Put("/a/1", b"")], []),
    "key without slash": ([Put("a", b"")], []),
    "key with zero": ([Put("/a\0", b"")], []),
    "key with half a surrogate": ([Put("/a\ud800", b"")], []),
    "long key": ([Put("/" + "k" * 2048, b"")], []),
    "guard's key": ([], [Absent("a")]),
}


@pytest.mark.parametrize("name", TOO_MUCH)
async def test_what_some_adapter_could_not_do_is_refused_by_all(
    store: MetadataStore, start: Revision, name: str
) -> None:
    writes, guards = TOO_MUCH[name]
    with pytest.raises(InvalidArgument):
        await store.transact(writes, guards=guards)
    page = await store.range(KeyRange.prefix("/"))
    assert (page.items, page.revision) == ((), start)


async def test_transaction_at_every_limit_is_carried_out(store: MetadataStore) -> None:
    await store.transact([Put(f"/{i}", b"") for i in range(MAX_OPERATIONS)])
    await store.transact([Put("/" + "k" * 2047, bytes(MAX_VALUE_BYTES))])
    filling = MAX_TRANSACTION_BYTES - MAX_VALUE_BYTES - 2 * (64 + 2)
    await store.transact([Put("/a", bytes(MAX_VALUE_BYTES)), Put("/b", bytes(filling))])
    with pytest.raises(InvalidArgument, match="Split it"):
        await store.transact([Put("/a", bytes(MAX_VALUE_BYTES)), Put("/b", bytes(filling + 1))])
    assert "/" + "k" * 2047 in await keys(store, "/k")


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_page_limit_is_bounded(store: MetadataStore, limit: int) -> None:
    with pytest.raises(InvalidArgument):
        await store.range(KeyRange.prefix("/"), limit=limit)


@pytest.mark.parametrize("prefix", ["", "a", "/\0"])
async def test_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidArgument):
        KeyRange.prefix(prefix)


# Leases: of a second, which is etcd's shortest; times between are such that its clock and ours agree


async def test_key_goes_when_its_lease_runs_out(store: MetadataStore, let_pass: LetPass) -> None:
    lease = await store.grant_lease(1_000)
    await store.transact([Put("/leased", b"", lease_id=lease), Put("/stays", b"")])
    item = await store.get("/leased")
    assert item is not None
    assert item.lease_id == lease
    await let_pass(1_000)
    await until_gone(store, "/leased")
    assert await keys(store) == ["/stays"]


async def test_keep_alive_gives_the_whole_time_again(store: MetadataStore, let_pass: LetPass) -> None:
    lease, unrenewed = await store.grant_lease(2_000), await store.grant_lease(2_000)
    await store.transact([Put("/leased", b"", lease_id=lease), Put("/unrenewed", b"", lease_id=unrenewed)])
    await let_pass(1_200)
    assert await store.keep_alive(lease) == 2_000
    await let_pass(800)
    await until_gone(store, "/unrenewed")
    assert await keys(store) == ["/leased"]
    await let_pass(1_200)
    await until_gone(store, "/leased")


async def test_lost_lease_cannot_be_used(store: MetadataStore, let_pass: LetPass) -> None:
    lease = await store.grant_lease(1_000)
    await store.transact([Put("/leased", b"", lease_id=lease)])
    await let_pass(1_000)
    await until_gone(store, "/leased")
    for use in (
        store.keep_alive(lease),
        store.revoke_lease(lease),
        store.transact([Put("/a", b""), Put("/b", b"", lease_id=lease)]),
        store.keep_alive(LeaseId(999)),
    ):
        with pytest.raises(LeaseLost):
            await use
    assert await keys(store) == []


async def test_the_lease_that_is_lost_is_named_among_several(store: MetadataStore) -> None:
    held, lost = await store.grant_lease(60_000), await store.grant_lease(60_000)
    await store.revoke_lease(lost)
    for first, second in ((held, lost), (lost, held)):
        with pytest.raises(LeaseLost) as caught:
            await store.transact([Put("/a", b"", lease_id=first), Put("/b", b"", lease_id=second)])
        assert caught.value.lease_id == lost
    await store.revoke_lease(held)


async def test_revoking_deletes_all_keys_in_one_revision(store: MetadataStore) -> None:
    lease = await store.grant_lease(1_000_000)
    made = await store.transact([Put(f"/{i}", b"", lease_id=lease) for i in range(5)])
    await store.revoke_lease(lease)
    page = await store.range(KeyRange.prefix("/"))
    assert (page.items, page.revision) == ((), made + 1)


async def test_put_without_lease_lets_go_of_the_former(store: MetadataStore) -> None:
    lease = await store.grant_lease(1_000_000)
    await store.transact([Put("/a", b"1", lease_id=lease), Put("/b", b"1", lease_id=lease)])
    await store.transact([Put("/a", b"2")])
    await store.revoke_lease(lease)
    assert await keys(store) == ["/a"]


async def test_put_with_another_lease_follows_that_one(store: MetadataStore) -> None:
    former, latter = await store.grant_lease(1_000_000), await store.grant_lease(1_000_000)
    await store.transact([Put("/a", b"", lease_id=former)])
    await store.transact([Put("/a", b"", lease_id=latter)])
    await store.revoke_lease(former)
    assert await keys(store) == ["/a"]
    await store.revoke_lease(latter)
    assert await keys(store) == []


async def test_guard_does_not_see_a_key_whose_lease_has_run_out(
    store: MetadataStore, let_pass: LetPass
) -> None:
    lease = await store.grant_lease(1_000)
    await store.transact([Put("/leader", b"old", lease_id=lease)])
    await let_pass(1_000)
    await until_gone(store, "/leader")
    await store.transact([Put("/leader", b"new")], guards=[Absent("/leader")])


@pytest.mark.parametrize("ttl_ms", [0, -5, 25 * 3600 * 1000])
async def test_lease_time_is_bounded(store: MetadataStore, ttl_ms: int) -> None:
    with pytest.raises(InvalidArgument):
        await store.grant_lease(ttl_ms)


# Life


async def test_closed_store_refuses_every_call(
    open_store: Callable[[], AbstractAsyncContextManager[MetadataStore]],
) -> None:
    async with open_store() as store:
        await store.transact([Put("/a", b"")])
    for call in (
        store.get("/a"),
        store.range(KeyRange.prefix("/")),
        store.transact([Put("/a", b"")]),
        store.grant_lease(1_000),
        store.keep_alive(LeaseId(1)),
        store.revoke_lease(LeaseId(1)),
    ):
        with pytest.raises(ClosedResource):
            await call
    with pytest.raises(ClosedResource):
        async with store.watch(KeyRange.prefix("/"), from_revision=Revision(1)):
            pass


async def test_error_in_the_block_reaches_the_outside_unchanged(
    open_store: Callable[[], AbstractAsyncContextManager[MetadataStore]],
) -> None:
    with pytest.raises(KeyError):
        async with open_store():
            raise KeyError("mine")


async def test_cancelled_call_leaves_the_store_usable(store: MetadataStore) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.transact([Put("/a", b"")])
    await store.transact([Put("/b", b"")])
    assert set(await keys(store)) - {"/a"} == {"/b"}


async def test_many_callers_at_once_are_all_answered(store: MetadataStore, start: Revision) -> None:
    revisions: list[int] = []

    async def put(i: int) -> None:
        revisions.append(await store.transact([Put(f"/{i}", b"%d" % i)]))

    async with anyio.create_task_group() as group:
        for i in range(300):
            group.start_soon(put, i)
    assert sorted(each - start for each in revisions) == list(range(1, 301))
    statistics = store.statistics()
    assert (statistics.revision - start, statistics.transactions, statistics.waiting) == (300, 300, 0)
