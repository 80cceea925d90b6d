"""What a watch of every adapter promises: all events, in order, from any kept revision, none twice."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from pydanube_core.errors import ClosedResource, InvalidArgument
from pydanube_storage.metadata import (
    Compacted,
    Delete,
    DeleteRange,
    Event,
    EventKind,
    KeyRange,
    MetadataStore,
    Put,
    Revision,
    read_all,
)

from tests.storage.metadata.adapters import EVERYTHING, LetPass, OpenStore, forget, revision

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    return [await anext(events) for _ in range(count)]


def short(events: list[Event], start: Revision) -> list[tuple[str, str, int]]:
    return [(event.kind.value, event.key, event.revision - start) for event in events]


async def test_watch_replays_the_past_and_goes_on_with_the_present(
    store: MetadataStore, start: Revision
) -> None:
    await store.transact([Put("/a", b"1")])
    await store.transact([Put("/b", b"2"), Delete("/a")])
    async with store.watch(EVERYTHING, from_revision=Revision(start + 1)) as events:
        assert short(await take(events, 3), start) == [
            ("put", "/a", 1),
            ("put", "/b", 2),
            ("delete", "/a", 2),
        ]
        await store.transact([Put("/c", b"3")])
        (event,) = await take(events, 1)
        assert (event.key, event.value, event.revision) == ("/c", b"3", start + 3)
        assert event.key_value == await store.get("/c")


async def test_waiting_watch_is_woken_by_a_later_change(store: MetadataStore, start: Revision) -> None:
    seen: list[Event] = []
    waiting = anyio.Event()

    async def follow() -> None:
        async with store.watch(EVERYTHING, from_revision=Revision(start + 1)) as events:
            waiting.set()
            seen.extend(await take(events, 2))

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        await waiting.wait()
        await anyio.lowlevel.checkpoint()
        await store.transact([Put("/a", b"")])
        await store.transact([Delete("/a")])
    assert short(seen, start) == [("put", "/a", 1), ("delete", "/a", 2)]
    assert store.statistics().watchers == 0


async def test_watch_shows_its_range_only(store: MetadataStore, start: Revision) -> None:
    async with store.watch(KeyRange.prefix("/m/"), from_revision=Revision(start + 1)) as events:
        await store.transact([Put("/m/1", b""), Put("/n/1", b"")])
        await store.transact([Put("/n/2", b"")])
        await store.transact([Put("/m-x/2", b"")])
        await store.transact([Put("/m/2", b"")])
        assert short(await take(events, 2), start) == [("put", "/m/1", 1), ("put", "/m/2", 4)]


async def test_watch_from_a_later_revision_waits_for_it(store: MetadataStore, start: Revision) -> None:
    async with store.watch(EVERYTHING, from_revision=Revision(start + 3)) as events:
        for i in range(4):
            await store.transact([Put(f"/{i}", b"")])
        assert short(await take(events, 2), start) == [("put", "/2", 3), ("put", "/3", 4)]


async def test_delete_range_is_an_event_a_key(store: MetadataStore, start: Revision) -> None:
    await store.transact([Put("/r/1", b""), Put("/r/2", b"")])
    await store.transact([DeleteRange(KeyRange.prefix("/r/"))])
    async with store.watch(EVERYTHING, from_revision=Revision(start + 2)) as events:
        seen = await take(events, 2)
    assert short(seen, start) == [("delete", "/r/1", 2), ("delete", "/r/2", 2)]
    assert {event.create_revision for event in seen} == {start + 1}


async def test_expiry_is_seen_by_a_watch_while_nobody_calls(
    store: MetadataStore, start: Revision, let_pass: LetPass
) -> None:
    lease = await store.grant_lease(1_000)
    await store.transact([Put("/member", b"", lease_id=lease)])
    async with store.watch(EVERYTHING, from_revision=Revision(start + 2)) as events:
        await let_pass(1_000)
        assert short(await take(events, 1), start) == [("delete", "/member", 2)]


async def test_renewed_lease_expires_at_its_later_time(
    store: MetadataStore, start: Revision, let_pass: LetPass
) -> None:
    lease = await store.grant_lease(2_000)
    other = await store.grant_lease(2_000)
    await store.transact([Put("/member", b"", lease_id=lease), Put("/other", b"", lease_id=other)])
    await let_pass(1_200)
    await store.keep_alive(lease)
    async with store.watch(EVERYTHING, from_revision=Revision(start + 2)) as events:
        await let_pass(800)
        assert short(await take(events, 1), start) == [("delete", "/other", 2)]
        await let_pass(1_200)
        assert short(await take(events, 1), start) == [("delete", "/member", 3)]


async def test_range_then_watch_misses_nothing_that_happens_between_pages(store: MetadataStore) -> None:
    for i in range(0, 1100, 100):
        await store.transact([Put(f"/k/{j:05d}", b"old") for j in range(i, i + 100)])
    first = await store.range(KeyRange.prefix("/k/"))
    await store.transact([Put("/k/00001", b"new"), Delete("/k/01050"), Put("/k/01060", b"new")])
    second = await store.range(KeyRange.prefix("/k/"), after=first.items[-1].key)
    view = {item.key: item for item in (*first.items, *second.items)}
    async with store.watch(KeyRange.prefix("/k/"), from_revision=Revision(first.revision + 1)) as events:
        for event in await take(events, 3):
            if event.kind is EventKind.DELETE:
                view.pop(event.key, None)
            else:
                view[event.key] = event.key_value
    assert (
        sorted(view.values(), key=lambda item: item.key) == (await read_all(store, KeyRange.prefix("/k/")))[0]
    )


async def test_more_events_than_one_read_arrive_in_order(store: MetadataStore, start: Revision) -> None:
    for first in range(0, 700, 100):
        await store.transact([Put(f"/{i:04d}", b"") for i in range(first, first + 100)])
    await store.transact([DeleteRange(EVERYTHING)])
    async with store.watch(EVERYTHING, from_revision=Revision(start + 1)) as events:
        seen = await take(events, 1400)
    assert [event.key for event in seen] == [f"/{i:04d}" for i in range(700)] * 2
    assert [event.revision - start for event in seen[700:]] == [8] * 700


async def test_past_beyond_the_kept_history_is_compacted(open_store: OpenStore) -> None:
    async with open_store(history_revisions=10) as store:
        start = await revision(store)
        for i in range(30):
            await store.transact([Put("/a", b"%d" % i)])
        await forget(store, keep=10)
        assert store.statistics().oldest_event_revision == start + 21
        async with store.watch(EVERYTHING, from_revision=Revision(start + 20)) as events:
            with pytest.raises(Compacted) as caught:
                await anext(events)
        assert (caught.value.from_revision, caught.value.oldest_revision) == (start + 20, start + 21)
        assert caught.value.retryable is True
        async with store.watch(EVERYTHING, from_revision=Revision(start + 21)) as events:
            assert [each.revision - start for each in await take(events, 10)] == list(range(21, 31))


async def test_deletion_at_the_edge_of_the_history_is_not_passed_over(open_store: OpenStore) -> None:
    """etcd drops it with the revision it compacts up to, and would let a watch begin there."""
    async with open_store(history_revisions=10) as store:
        start = await revision(store)
        await store.transact([Put("/a", b"")])
        deleted = await store.transact([Delete("/a")])
        for i in range(10):
            await store.transact([Put("/b", b"%d" % i)])
        await forget(store, keep=10)
        assert deleted == start + 2
        async with store.watch(EVERYTHING, from_revision=deleted) as events:
            with pytest.raises(Compacted):
                await anext(events)


async def test_reader_that_lags_behind_the_history_is_told_or_misses_nothing(open_store: OpenStore) -> None:
    async with open_store(history_revisions=10) as store:
        start = await revision(store)
        async with store.watch(EVERYTHING, from_revision=Revision(start + 1)) as events:
            await store.transact([Put("/a", b"")])
            await take(events, 1)
            for _ in range(20):
                await store.transact([Put("/a", b"")])
            await forget(store, keep=10)
            seen: list[int] = []
            try:
                seen += [each.revision - start for each in await take(events, 20)]
            except Compacted:
                return  # ours hold nothing for a slow reader; what etcd has sent it is under way
            assert seen == list(range(2, 22))


async def test_quiet_watch_is_not_compacted_by_changes_elsewhere(open_store: OpenStore) -> None:
    async with open_store(history_revisions=10) as store:
        start = await revision(store)
        async with store.watch(KeyRange.prefix("/members/"), from_revision=Revision(start + 1)) as events:
            await store.transact([Put("/members/1", b"")])
            await take(events, 1)
            for _ in range(50):
                await store.transact([Put("/cursors/1", b"")])
            await forget(store, keep=10)
            await store.transact([Put("/members/2", b"")])
            assert short(await take(events, 1), start) == [("put", "/members/2", 52)]


async def test_cancelled_iteration_loses_no_event(store: MetadataStore, start: Revision) -> None:
    async with store.watch(EVERYTHING, from_revision=Revision(start + 1)) as events:
        for i in range(10):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anext(events)
            await store.transact([Put(f"/{i}", b"")])
        assert [each.revision - start for each in await take(events, 10)] == list(range(1, 11))


async def test_closing_the_store_ends_a_waiting_watch(
    open_store: OpenStore,
) -> None:
    ended = anyio.Event()

    async def follow(store: MetadataStore, following: anyio.Event, ready: anyio.Event) -> None:
        after = Revision(await revision(store) + 1)
        async with store.watch(EVERYTHING, from_revision=after) as events:
            following.set()
            await take(events, 1)
            ready.set()
            with pytest.raises(ClosedResource):
                async for _ in events:
                    pass
        ended.set()

    async with anyio.create_task_group() as group:
        async with open_store() as store:
            following, ready = anyio.Event(), anyio.Event()
            group.start_soon(follow, store, following, ready)
            await following.wait()
            await store.transact([Put("/a", b"")])
            await ready.wait()
        await ended.wait()


async def test_watch_left_behind_cannot_be_iterated(store: MetadataStore, start: Revision) -> None:
    async with store.watch(EVERYTHING, from_revision=Revision(start + 1)) as events:
        pass
    with pytest.raises(ClosedResource):
        await anext(events)


async def test_revision_zero_is_refused(store: MetadataStore) -> None:
    with pytest.raises(InvalidArgument):
        async with store.watch(EVERYTHING, from_revision=Revision(0)):
            pass
