"""Tables that follow the store by one watch, and their changes.

At any time one caller reads the watch and the others wait. When its change has arrived, it hands the watch to the next
caller. So a broker sees its own changes without a task, and those of other brokers while a caller waits or `follow` runs.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any, Final, TypeVar

import anyio
from pydanube_core.errors import ClosedResource, MetadataUnavailable, Retryable, StoreUnavailable
from pydanube_storage.metadata import (
    Compacted,
    DeleteRange,
    Event,
    EventKind,
    Guard,
    KeyRange,
    KeyValue,
    MetadataStore,
    Put,
    Revision,
    Write,
    read_all,
)

from pydanube_broker.records.change import ATTEMPTS, Decide, Outcome, change
from pydanube_broker.records.quarantine import Quarantine
from pydanube_broker.records.table import Table

log = logging.getLogger("pydanube.cluster")

T = TypeVar("T")
_NEVER: Final = Revision(1 << 62)
_PAUSE_S: Final = 1.0  # pause after an error of the store
# A record that moves between two tables while they are read is found in one of them by the second reading.
_READINGS: Final = 2
STORE_S: Final = 10.0  # maximum of a change, or of a wait for the watch


class Records:
    """See the package. Single user: the loop.

    Args:
        tables: their ranges must not overlap. One watch spans all of them, so keys that change with traffic must not
            lie between them. Other keys between the tables are ignored.
        changed: called with the changed keys, once per event, and once per reading of all tables.
        quarantine: collects values that cannot be read.
    """

    def __init__(
        self,
        store: MetadataStore,
        tables: Sequence[Table[Any]],
        *,
        changed: Callable[[Sequence[str]], None] = lambda keys: None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.quarantine = quarantine or Quarantine()
        self.on_change = changed
        self.unsettled: set[str] = set()  # keys of changes whose outcome is unknown
        self._store = store
        self._tables = sorted(tables, key=lambda table: table.range.start)
        ranges = [table.range for table in self._tables]
        assert all(one.end <= other.start for one, other in pairwise(ranges)), "they overlap"
        self._range = KeyRange(start=ranges[0].start, end=ranges[-1].end)
        self._stack = AsyncExitStack()
        self._watch: AsyncIterator[Event]
        self._revision = Revision(0)  # of the newest event. All before it are applied
        self._reading = False
        self._lost = False  # the watch was compacted, so the tables must be read again
        self._waiting: dict[Revision, anyio.Event] = {}

    @property
    def revision(self) -> Revision:
        """The revision of the newest applied event, or of the last reading."""
        return self._revision

    # -- following -----------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read all tables, and watch the store from that revision on. Raises `StoreUnavailable`."""
        changed = dict[str, None]()
        for _ in range(_READINGS):
            revisions = []
            for table in self._tables:
                items, read_at = await read_all(self._store, table.range)
                revisions.append(read_at)
                changed |= dict.fromkeys(table.replace(items, read_at, self.quarantine))
            if len(set(revisions)) == 1:
                break
        self._revision = revisions[0]
        watch = self._store.watch(self._range, from_revision=Revision(revisions[0] + 1))
        self._watch = await self._stack.enter_async_context(watch)
        if changed:
            self.on_change(list(changed))

    async def follow(self, holds: Callable[[], bool] = lambda: False) -> None:
        """Apply changes until `holds()` is true or the store closes. Log an error, and retry after a second."""
        while True:
            try:
                await self._until(_NEVER, holds)
            except ClosedResource:
                return
            except Retryable as error:
                log.warning("records_not_followed", extra={"range": self._range.start, "error": str(error)})
                await anyio.sleep(_PAUSE_S)
            else:
                return

    async def aclose(self) -> None:
        """End the watch."""
        await self._stack.aclose()

    async def refresh(self, *keys: str) -> None:
        """Update the tables until they have the store's present state of these keys. Keys of no table are ignored.

        Raises:
            StoreUnavailable: the store does not answer, or the watch did not reach its state within 10 s.
        """
        for key in keys:
            if (table := self._table_of(key)) is not None:
                await self._refresh(table, key)

    async def _refresh(self, table: Table[Any], key: str) -> None:
        page = await self._store.range(KeyRange.only(key), limit=1)
        revision = page.items[0].mod_revision if page.items else None
        with anyio.move_on_after(STORE_S):
            await self._until(page.revision, lambda: table.has(key, revision), at_latest=True)
            return
        raise MetadataUnavailable(f"the watch of the metadata store has brought nothing for {STORE_S:.0f} s")

    async def until(self, revision: Revision, holds: Callable[[], bool]) -> None:
        """Wait 10 s at most until `holds()` is true or all events up to the store's revision are applied."""
        with anyio.move_on_after(STORE_S):
            await self._until(revision, holds, at_latest=True)

    async def _until(self, revision: Revision, holds: Callable[[], bool], *, at_latest: bool = False) -> None:
        """Read events until `holds()` is true, or all events up to a revision were read.

        Args:
            at_latest: the revision is the store's at the call. The awaited event may be older, and the range may have no
                event of that revision, so `holds` is checked after each event.
        """
        try:
            while self._revision <= revision and not holds():
                if self._reading:
                    woken_at = self._revision if at_latest else revision
                    await self._waiting.setdefault(woken_at, anyio.Event()).wait()
                    continue
                self._reading = True
                try:
                    await self._next()
                finally:
                    self._reading = False
        finally:
            if not self._reading and self._waiting:  # the next caller reads the watch
                self._waiting.pop(next(iter(self._waiting))).set()

    async def _next(self) -> None:
        if not self._lost:
            try:
                event = await anext(self._watch)
            except Compacted:
                log.warning("records_read_again", extra={"range": self._range.start})
                await self._stack.aclose()
                self._lost = True
            else:
                self._revision = event.revision
                self._take(event)
        if self._lost:
            await self.load()
            self._lost = False
        for revision in [each for each in self._waiting if each <= self._revision]:
            self._waiting.pop(revision).set()

    def _take(self, event: Event) -> None:
        table = self._table_of(event.key)
        if table is None:
            return
        if event.kind is EventKind.PUT:
            is_new = table.put(event.key_value, self.quarantine)
        else:
            is_new = table.remove(event.key, event.revision)
        if is_new:
            self.on_change([event.key])

    def _table_of(self, key: str) -> Table[Any] | None:
        return next((table for table in self._tables if key in table.range), None)

    # -- changing ------------------------------------------------------------------------------------------------

    async def change(self, decide: Decide[T], *, attempts: int = ATTEMPTS) -> Outcome[T]:
        """Decide and write, again if a guard fails. Return when the tables have the change. Raises as `change`."""
        return await change(
            self._store, decide, attempts=attempts, transact=self.transact, refresh=self.refresh
        )

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        """Run one transaction, and return when the tables have it. A cancellation waits, so that the outcome is certain.

        Raises:
            GuardFailed: nothing was changed.
            StoreUnavailable: if it has `outcome: unknown`, the keys are `unsettled`.
        """
        keys = {write.key for write in writes if not isinstance(write, DeleteRange)}
        with anyio.move_on_after(STORE_S, shield=True):
            try:
                revision = await self._store.transact(writes, guards=guards)
            except StoreUnavailable as error:
                if error.details.get("outcome") == "unknown":
                    self.unsettled |= keys
                raise
            try:
                await self._until(revision, lambda: self._reflects(writes, revision))
            except StoreUnavailable as error:
                self.unsettled |= keys
                error.details["outcome"] = "unknown"
                raise
            return revision
        self.unsettled |= keys
        raise MetadataUnavailable(
            f"the metadata store has not answered for {STORE_S:.0f} s. The change may have happened",
            outcome="unknown",
        )

    def _reflects(self, writes: Sequence[Write], revision: Revision) -> bool:
        """Return whether the tables have these writes of a revision."""
        return all(
            table.has(write.key, revision if isinstance(write, Put) else None)
            for write in writes
            if not isinstance(write, DeleteRange) and (table := self._table_of(write.key)) is not None
        )

    async def resolve_unknown(self) -> None:
        """Refresh the keys of changes with unknown outcome. The store's present state is the outcome.

        An answer of the store proves whether the change was made: our stores run requests in order, and the client of
        etcd writes a fence first.

        Raises:
            StoreUnavailable: the remaining keys stay unsettled.
        """
        for key in sorted(self.unsettled):
            await self.refresh(key)
            self.unsettled.discard(key)


async def states_of(store: MetadataStore, key: str) -> AsyncGenerator[KeyValue | None, None]:
    """Yield the present value of a key, and each later one, until the store closes.

    Wait while the store is unavailable. The caller must close the generator.
    """
    table = Table(KeyRange.only(key), lambda item: item)
    records = Records(store, [table])

    def has_changed_since(revision: Revision | None) -> Callable[[], bool]:
        return lambda: table.revision(key) != revision

    try:
        while True:
            try:
                await records.load()
            except Retryable:
                await anyio.sleep(_PAUSE_S)
            else:
                break
        has_changed = has_changed_since(Revision(-1))
        while has_changed():
            has_changed = has_changed_since(table.revision(key))
            yield table.get(key)
            await records.follow(has_changed)
    finally:
        await records.aclose()
