"""Tables follow the store, and changes are made under guards: on every adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydanube_broker.records import ATTEMPTS, Change, Records, Table, change
from pydanube_broker.records.followed import states_of
from pydanube_core.errors import Conflict, StoreUnavailable
from pydanube_storage.metadata import (
    Absent,
    Compacted,
    Delete,
    DeleteRange,
    Event,
    Guard,
    GuardFailed,
    KeyRange,
    KeyValue,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    Write,
)

from tests.storage.metadata.adapters import OpenStore, forget
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60), pytest.mark.usefixtures("one_loop")]

A, B = KeyRange.prefix("/a/"), KeyRange.prefix("/c/")


def number(item: KeyValue) -> int:
    return int(item.value)


class Tables:
    """Two tables of numbers, between which lies a tree that is none of them."""

    def __init__(self, store: MetadataStore, *, drops_unreadable: bool = False) -> None:
        self.hooks: list[tuple[str, int | None, int | None]] = []
        self.changes: list[list[str]] = []
        self.a = Table(
            A, number, changed=lambda *told: self.hooks.append(told), drops_unreadable=drops_unreadable
        )
        self.c = Table(B, number)
        self.records = Records(
            store, [self.c, self.a], changed=lambda keys: self.changes.append(sorted(keys))
        )

    async def add(self, key: str, more: int = 1) -> int:
        async def decide(change: Change) -> int:
            change.unchanged(self.a, key)
            total = (self.a.get(key) or 0) + more
            change.put(key, str(total).encode())
            return total

        return (await self.records.change(decide, attempts=100)).result


@asynccontextmanager
async def following(store: MetadataStore, **options: Any) -> AsyncIterator[Tables]:
    """Tables as a broker has them: with a task that follows."""
    tables = Tables(store, **options)
    await tables.records.load()
    async with anyio.create_task_group() as group:
        group.start_soon(tables.records.follow)
        yield tables
        group.cancel_scope.cancel()
    await tables.records.aclose()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await anyio.lowlevel.checkpoint()


async def test_tables_show_the_past_and_follow_others_changes(store: MetadataStore) -> None:
    await store.transact([Put("/a/1", b"1"), Put("/b/1", b"no number"), Put("/c/1", b"3")])
    async with following(store) as tables:
        assert (tables.a.rows, tables.c.rows) == ({"/a/1": 1}, {"/c/1": 3})
        assert tables.changes == [["/a/1", "/c/1"]]
        await store.transact([Put("/a/1", b"2"), Put("/a/2", b"5"), Put("/b/2", b"-"), Delete("/c/1")])
        await until(lambda: not tables.c.rows)
        assert tables.a.rows == {"/a/1": 2, "/a/2": 5}
        await store.transact([DeleteRange(A)])
        await until(lambda: not tables.a.rows)
        assert tables.hooks == [
            ("/a/1", None, 1),
            ("/a/1", 1, 2),
            ("/a/2", None, 5),
            ("/a/1", 2, None),
            ("/a/2", 5, None),
        ]
        assert not tables.records.quarantine.found


async def test_change_is_in_the_tables_when_it_returns(store: MetadataStore) -> None:
    async with following(store) as tables:
        assert await tables.add("/a/x") == 1
        assert tables.a.rows == {"/a/x": 1}
        item = await store.get("/a/x")
        assert item is not None
        assert tables.a.revision("/a/x") == item.mod_revision
        assert tables.a.guard("/a/x") == ModRevision("/a/x", item.mod_revision)
        assert tables.a.guard("/a/y") == Absent("/a/y")


async def test_change_without_a_task_that_follows_is_seen_all_the_same(store: MetadataStore) -> None:
    tables = Tables(store)
    await tables.records.load()
    await store.transact([Put("/a/other", b"7")])
    assert await tables.add("/a/x") == 1
    assert tables.a.rows == {"/a/other": 7, "/a/x": 1}
    await tables.records.aclose()


async def test_no_increment_of_brokers_that_change_one_record_is_lost(store: MetadataStore) -> None:
    async with following(store) as one, following(store) as two, anyio.create_task_group() as group:
        for tables in (one, two):
            for _ in range(15):
                group.start_soon(tables.add, "/a/sum")
    item = await store.get("/a/sum")
    assert item is not None
    assert item.value == b"30"


async def test_refresh_waits_for_anothers_change_and_deletion(store: MetadataStore) -> None:
    async with following(store) as tables:
        await store.transact([Put("/a/1", b"1"), Put("/c/1", b"1")])
        await tables.records.refresh("/a/1", "/c/1", "/b/none", "/z/none")
        assert (tables.a.rows, tables.c.rows) == ({"/a/1": 1}, {"/c/1": 1})
        await store.transact([Delete("/c/1")])
        await tables.records.refresh("/c/1")
        assert tables.c.rows == {}


async def test_refresh_of_a_key_without_news_does_not_wait_for_the_watch(store: MetadataStore) -> None:
    async with following(store) as tables:
        await store.transact([Put("/elsewhere", b"1")])
        with anyio.fail_after(5):
            await tables.records.refresh("/a/none")


async def test_value_that_cannot_be_read_is_set_aside_and_read_once_it_can_be(store: MetadataStore) -> None:
    await store.transact([Put("/a/1", b"x"), Put("/a/2", b"2")])
    async with following(store) as tables:
        assert tables.a.rows == {"/a/2": 2}
        assert set(tables.records.quarantine.found) == {"/a/1"}
        assert tables.a.revision("/a/1") is not None  # it is there, though nothing can be said of it
        await store.transact([Put("/a/2", b"y")])
        await tables.records.refresh("/a/2")
        assert tables.a.rows == {"/a/2": 2}  # absent it would pass for deleted
        await store.transact([Put("/a/1", b"1"), Put("/a/2", b"3")])
        await tables.records.refresh("/a/1", "/a/2")
        assert tables.a.rows == {"/a/1": 1, "/a/2": 3}
        assert not tables.records.quarantine.found


async def test_key_whose_change_could_not_be_finished_stays_aside_when_it_is_read(
    store: MetadataStore,
) -> None:
    await store.transact([Put("/a/1", b"x")])
    async with following(store) as tables:
        with tables.records.quarantine.finishing("/a/1", "topics.delete", topic="t"):
            raise Conflict("it cannot be finished")
        await store.transact([Put("/a/1", b"1")])
        await tables.records.refresh("/a/1")
        assert tables.a.rows == {"/a/1": 1}
        assert tables.records.quarantine.found["/a/1"].operation == "topics.delete"


async def test_table_that_grants_drops_a_record_whose_value_cannot_be_read(store: MetadataStore) -> None:
    await store.transact([Put("/a/1", b"1")])
    async with following(store, drops_unreadable=True) as tables:
        await store.transact([Put("/a/1", b"x")])
        await tables.records.refresh("/a/1")
        assert tables.a.rows == {}
        assert tables.hooks[-1] == ("/a/1", 1, None)
        await store.transact([Put("/a/1", b"2")])
        await tables.records.refresh("/a/1")
        assert tables.a.rows == {"/a/1": 2}


async def test_tables_that_fell_behind_the_kept_history_are_read_again(open_store: OpenStore) -> None:
    async with open_store(history_revisions=4) as store:
        await store.transact([Put("/a/gone", b"1"), Put("/a/kept", b"1")])
        tables = Tables(store)
        await tables.records.load()
        await store.transact([Delete("/a/gone")])
        for each in range(20):
            await store.transact([Put(f"/a/{each % 3}", str(each).encode())])
        await forget(store, keep=4)
        await tables.records.refresh("/a/0", "/a/1", "/a/2")
        assert tables.a.rows == {"/a/0": 18, "/a/1": 19, "/a/2": 17, "/a/kept": 1}
        assert ("/a/gone", 1, None) in tables.hooks
        await tables.records.aclose()


async def test_states_of_a_key_are_seen_from_now_on_until_the_store_closes(open_store: OpenStore) -> None:
    seen: list[bytes | None] = []

    def note(item: KeyValue | None) -> None:
        seen.append(None if item is None else item.value)

    async with anyio.create_task_group() as group, open_store() as store:

        async def look() -> None:
            async with aclosing(states_of(store, "/k")) as states:
                async for item in states:
                    note(item)

        group.start_soon(look)
        await until(lambda: seen == [None])
        for write, known in ((Put("/k", b"1"), 2), (Put("/other", b""), 2), (Delete("/k"), 3)):
            await store.transact([write])
            await until(lambda known=known: len(seen) == known)  # type: ignore[misc]
    assert seen == [None, b"1", None]


# -- changes of records that no table holds --------------------------------------------------------------------------


async def test_what_was_read_is_guarded_and_decided_on_again(store: MetadataStore) -> None:
    attempts = 0

    async def decide(change: Change) -> int:
        nonlocal attempts
        attempts += 1
        item = await change.read("/counter")
        last = 0 if item is None else int(item.value)
        if attempts < 3:  # another is faster, twice
            await store.transact([Put("/counter", str(last + 10).encode())])
        change.put("/counter", str(last + 1).encode())
        return last + 1

    outcome = await change(store, decide)
    assert (outcome.result, attempts) == (21, 3)
    item = await store.get("/counter")
    assert item is not None
    assert (item.value, item.mod_revision) == (b"21", outcome.revision)


async def test_change_that_is_always_overtaken_ends_with_the_guard(store: MetadataStore) -> None:
    attempts = 0

    async def decide(change: Change) -> None:
        nonlocal attempts
        attempts += 1
        await change.read("/k")
        await store.transact([Put("/k", b"other")])
        change.put("/k", b"mine")

    with pytest.raises(GuardFailed):
        await change(store, decide)
    assert attempts == ATTEMPTS
    item = await store.get("/k")
    assert item is not None
    assert item.value == b"other"


async def test_required_guard_ends_the_change_with_its_error(store: MetadataStore) -> None:
    await store.transact([Put("/removed", b"")])

    async def decide(change: Change) -> None:
        await change.read("/k")
        change.require(Absent("/removed"), Conflict("it was removed"))
        change.put("/k", b"1")

    with pytest.raises(Conflict, match="it was removed") as raised:
        await change(store, decide)
    assert isinstance(raised.value.__cause__, GuardFailed)
    assert await store.get("/k") is None


async def test_decision_without_writes_takes_no_transaction(store: MetadataStore, start: Revision) -> None:
    async def decide(change: Change) -> str:
        await change.read("/k")
        return "nothing to do"

    assert await change(store, decide) == ("nothing to do", None)
    assert (await store.range(A, limit=1)).revision == start


# -- the store stays away --------------------------------------------------------------------------------------------


class Unreliable(MemoryStore):
    """A store whose next transaction happens, or does not, and is not answered."""

    happens: bool | None = None

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        if self.happens is None:
            return await super().transact(writes, guards=guards)
        if self.happens:
            await super().transact(writes, guards=guards)
        raise StoreUnavailable("no answer", outcome="unknown")


@pytest.mark.parametrize("happens", [True, False])
async def test_unknown_outcome_is_resolved_by_what_the_store_has(happens: bool, clock: ManualClock) -> None:
    async with Unreliable(clock=clock) as store, following(store) as tables:
        store.happens = happens
        with pytest.raises(StoreUnavailable):
            await tables.add("/a/1")
        assert tables.records.unsettled == {"/a/1"}
        store.happens = None
        await tables.records.resolve_unknown()
        assert tables.records.unsettled == set()
        assert tables.a.rows == ({"/a/1": 1} if happens else {})


async def test_caller_that_stops_waiting_hands_the_watch_on(clock: ManualClock) -> None:
    async with MemoryStore(clock=clock) as store:
        tables = Tables(store)
        await tables.records.load()
        far = Revision(1 << 40)
        async with anyio.create_task_group() as group:
            first = anyio.CancelScope()

            async def read() -> None:
                with first:
                    await tables.records.until(far, lambda: False)

            group.start_soon(read)
            await anyio.lowlevel.checkpoint()
            group.start_soon(tables.records.until, far, lambda: len(tables.a) == 2)
            await anyio.lowlevel.checkpoint()
            await store.transact([Put("/a/1", b"1")])
            await until(lambda: len(tables.a) == 1)
            first.cancel()
            await store.transact([Put("/a/2", b"1")])
        assert tables.a.rows == {"/a/1": 1, "/a/2": 1}
        await tables.records.aclose()


async def test_watch_that_lost_its_place_while_the_store_was_away_goes_on_afterwards(
    clock: ManualClock,
) -> None:
    class Away(MemoryStore):
        away = False
        loses = True

        @asynccontextmanager
        async def watch(self, range_: KeyRange, *, from_revision: Revision) -> Any:
            if self.loses:
                self.loses = False
                yield Lost()
                return
            async with super().watch(range_, from_revision=from_revision) as events:
                yield events

        async def range(self, *arguments: Any, **options: Any) -> Any:
            if self.away:
                raise StoreUnavailable("away")
            return await super().range(*arguments, **options)

    class Lost:
        """A watch whose place was compacted."""

        async def __anext__(self) -> Event:
            raise Compacted(Revision(1), Revision(2))

    async with Away(clock=clock) as store:
        tables = Tables(store)
        await tables.records.load()
        store.away = True
        await store.transact([Put("/a/1", b"1")])
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await tables.records.transact([Put("/c/1", b"1")])
        store.away = False
        await tables.records.resolve_unknown()
        assert (tables.a.rows, tables.c.rows) == ({"/a/1": 1}, {"/c/1": 1})
        await tables.records.aclose()
