"""Random histories of each adapter against a model of plain dicts: whatever the store answers, the model foretold."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pydanube_storage.metadata import (
    Absent,
    Compacted,
    Delete,
    DeleteRange,
    EmbeddedStore,
    Event,
    EventKind,
    Guard,
    GuardFailed,
    KeyRange,
    KeyValue,
    LeaseId,
    LeaseLost,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    Write,
    read_all,
)

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

HISTORY = 12
KEYS = st.sampled_from(["/a", "/a-x", "/a/1", "/a/2", "/b/1", "/b/2", "/é", "/\U0001f600"])
RANGES = st.one_of(
    KEYS.map(KeyRange.prefix),
    st.just(KeyRange.prefix("/")),
    st.tuples(KEYS, KEYS).map(lambda two: KeyRange(start=min(two), end=max(two))),
)


@dataclass
class Model:
    """The reference: what the store holds, in the dullest words."""

    revision: int = 0
    items: dict[str, KeyValue] = field(default_factory=dict)
    history: list[Event] = field(default_factory=list)
    ttls: dict[LeaseId, int] = field(default_factory=dict)
    deadlines: dict[LeaseId, int] = field(default_factory=dict)

    def select(self, range_: KeyRange) -> list[KeyValue]:
        return [self.items[key] for key in sorted(self.items) if range_.start <= key < range_.end]

    def holds(self, guard: Guard) -> bool:
        item = self.items.get(guard.key)
        return (
            item is None
            if isinstance(guard, Absent)
            else item is not None and item.mod_revision == guard.revision
        )

    def apply(self, writes: list[Write]) -> None:
        revision = Revision(self.revision + 1)
        for write in writes:
            if isinstance(write, Put):
                former = self.items.get(write.key)
                item = KeyValue(
                    key=write.key,
                    value=write.value,
                    create_revision=former.create_revision if former else revision,
                    mod_revision=revision,
                    lease_id=write.lease_id,
                )
                self.items[write.key] = item
                self.note(EventKind.PUT, item, revision)
                self.revision = revision
                continue
            gone = self.select(write.range) if isinstance(write, DeleteRange) else [self.items.get(write.key)]
            for item_gone in gone:
                if item_gone is not None:
                    del self.items[item_gone.key]
                    self.note(EventKind.DELETE, item_gone, revision)
                    self.revision = revision

    def note(self, kind: EventKind, item: KeyValue, revision: Revision) -> None:
        is_put = kind is EventKind.PUT
        self.history.append(
            Event(
                kind=kind,
                revision=revision,
                key=item.key,
                value=item.value if is_put else b"",
                create_revision=item.create_revision,
                lease_id=item.lease_id if is_put else None,
            )
        )

    def end_lease(self, lease_id: LeaseId) -> None:
        del self.ttls[lease_id], self.deadlines[lease_id]
        self.apply([Delete(key) for key in sorted(self.items) if self.items[key].lease_id == lease_id])


class StoreMachine(RuleBasedStateMachine):
    """Rules over a store that lives in an event loop of its own thread."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.portal: BlockingPortal = self.stack.enter_context(start_blocking_portal("asyncio"))
        self.folder = Path(tempfile.mkdtemp(prefix="pydanube-model-"))
        self.stack.callback(shutil.rmtree, self.folder)
        self.model = Model()
        self.now_ms = 0
        self.leases: list[LeaseId] = [LeaseId(10**9)]  # one that never was

    def make(self, clock: ManualClock) -> AbstractAsyncContextManager[MetadataStore]:
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        self.clock = self.portal.call(ManualClock)
        self.opened = self.portal.wrap_async_context_manager(self.make(self.clock))
        self.store = self.opened.__enter__()

    def close(self) -> None:
        self.opened.__exit__(None, None, None)

    def teardown(self) -> None:
        self.close()
        self.stack.close()

    def call(self, function: object, *arguments: object) -> object:
        async def bounded() -> object:
            with anyio.fail_after(30):
                return await function(*arguments)  # type: ignore[operator]

        return self.portal.call(bounded)

    @rule(
        puts=st.dictionaries(
            KEYS, st.tuples(st.binary(max_size=3), st.none() | st.integers(0, 50)), max_size=3
        ),
        deletes=st.lists(KEYS, max_size=2),
        delete_range=st.none() | RANGES,
        guards=st.lists(st.tuples(KEYS, st.sampled_from(["absent", "now", "before", "true"])), max_size=3),
    )
    def transact(
        self,
        puts: dict[str, tuple[bytes, int | None]],
        deletes: list[str],
        delete_range: KeyRange | None,
        guards: list[tuple[str, str]],
    ) -> None:
        writes: list[Write] = [Delete(key) for key in deletes if key not in puts]
        if delete_range is not None and not any(key in delete_range for key in puts):
            writes.append(DeleteRange(delete_range))
        for key, (value, lease) in puts.items():
            lease_id = None if lease is None else self.leases[lease % len(self.leases)]
            writes.append(Put(key, value, lease_id=lease_id))
        checks = [self.guard(key, kind) for key, kind in guards]
        if not writes and not checks:
            return

        failed = next((guard for guard in checks if not self.model.holds(guard)), None)
        lost = any(
            isinstance(w, Put) and w.lease_id is not None and w.lease_id not in self.model.ttls
            for w in writes
        )

        async def transact() -> int:
            return await self.store.transact(writes, guards=checks)

        try:
            revision = self.call(transact)
        except GuardFailed as error:
            assert error.guard == failed  # noqa: PT017  (it may also not be raised)
        except LeaseLost:
            assert failed is None
            assert lost
        else:
            assert failed is None
            assert not lost
            self.model.apply(writes)
            assert revision == self.model.revision

    def guard(self, key: str, kind: str) -> Guard:
        item = self.model.items.get(key)
        if kind == "absent" or (kind == "true" and item is None):
            return Absent(key)
        newest = item.mod_revision if item else Revision(self.model.revision)
        return ModRevision(key, Revision(max(1, newest - 1)) if kind == "before" else newest)

    @rule(ttl_ms=st.integers(1, 30))
    def grant(self, ttl_ms: int) -> None:
        lease_id = self.call(self.store.grant_lease, ttl_ms)
        assert isinstance(lease_id, int)
        assert lease_id not in self.leases
        self.leases.append(LeaseId(lease_id))
        self.model.ttls[LeaseId(lease_id)] = ttl_ms
        self.model.deadlines[LeaseId(lease_id)] = self.now_ms + ttl_ms

    @rule(which=st.integers(0, 50), revoke=st.booleans())
    def keep_or_revoke(self, which: int, revoke: bool) -> None:
        lease_id = self.leases[which % len(self.leases)]
        try:
            self.call(self.store.revoke_lease if revoke else self.store.keep_alive, lease_id)
        except LeaseLost:
            assert lease_id not in self.model.ttls
        else:
            self.model.deadlines[lease_id] = self.now_ms + self.model.ttls[lease_id]
            if revoke:
                self.model.end_lease(lease_id)

    @rule(by_ms=st.integers(1, 20))
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms
        for lease_id in sorted(self.model.deadlines):
            if self.model.deadlines[lease_id] <= self.now_ms:
                self.model.end_lease(lease_id)
        self.portal.call(self.clock.advance, by_ms)

    @rule(range_=RANGES, limit=st.integers(1, 5), after=st.none() | KEYS, descending=st.booleans())
    def page(self, range_: KeyRange, limit: int, after: str | None, descending: bool) -> None:
        async def read() -> object:
            return await self.store.range(range_, limit=limit, after=after, descending=descending)

        page = self.call(read)
        expected = self.model.select(range_)
        if descending:
            expected.reverse()
        if after is not None:
            expected = [item for item in expected if (item.key < after if descending else item.key > after)]
        assert page.items == tuple(expected[:limit])  # type: ignore[attr-defined]
        assert page.more == (len(expected) > limit)  # type: ignore[attr-defined]
        assert page.revision == self.model.revision  # type: ignore[attr-defined]

    @rule(range_=RANGES, back=st.integers(0, HISTORY + 4))
    def watch_to_the_present(self, range_: KeyRange, back: int) -> None:
        start = Revision(max(1, self.model.revision + 1 - back))
        oldest = max(1, self.model.revision - HISTORY + 1)
        expected = [e for e in self.model.history if e.revision >= start and e.key in range_]

        async def follow() -> list[Event]:
            async with self.store.watch(range_, from_revision=start) as events:
                return [await anext(events) for _ in range(len(expected))]

        if not expected:
            return
        try:
            seen = self.call(follow)
        except Compacted as error:
            assert start < oldest == error.oldest_revision  # noqa: PT017
        else:
            assert start >= oldest
            assert seen == expected

    @invariant()
    def store_equals_model(self) -> None:
        if not hasattr(self, "store"):
            return
        items, revision = self.call(read_all, self.store, KeyRange.prefix("/"))  # type: ignore[misc]
        assert items == self.model.select(KeyRange.prefix("/"))
        assert revision == self.model.revision


class MemoryMachine(StoreMachine):
    def make(self, clock: ManualClock) -> AbstractAsyncContextManager[MetadataStore]:
        return MemoryStore(clock=clock, history_revisions=HISTORY)


class EmbeddedMachine(StoreMachine):
    def make(self, clock: ManualClock) -> AbstractAsyncContextManager[MetadataStore]:
        return EmbeddedStore(self.folder / "m.sqlite", clock=clock, history_revisions=HISTORY)

    @precondition(lambda self: hasattr(self, "store"))
    @rule()
    def restart(self) -> None:
        self.close()
        self.opened = self.portal.wrap_async_context_manager(self.make(self.clock))
        self.store = self.opened.__enter__()
        for lease_id, ttl_ms in self.model.ttls.items():
            self.model.deadlines[lease_id] = self.now_ms + ttl_ms


_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def test_the_store_in_memory_does_what_the_model_does() -> None:
    run_state_machine_as_test(
        MemoryMachine,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=_QUIET
        ),
    )


def test_the_embedded_store_does_what_the_model_does() -> None:
    run_state_machine_as_test(
        EmbeddedMachine,
        settings=settings(
            max_examples=12, stateful_step_count=30, deadline=None, suppress_health_check=_QUIET
        ),
    )
