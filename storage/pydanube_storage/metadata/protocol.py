"""The interface of every metadata store. Adapters: `EmbeddedStore`, `etcd.EtcdStore`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from pydanube_storage.metadata.model import (
    MAX_PAGE_ITEMS,
    Event,
    Guard,
    KeyRange,
    KeyValue,
    LeaseId,
    Page,
    Revision,
    Write,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """Counters since the store was opened, and present numbers; None if an adapter does not know one."""

    revision: Revision
    oldest_event_revision: Revision | None
    transactions: int  # that were committed
    conflicts: int  # transactions refused by a guard
    commits: int  # durable commits: fewer than transactions, where several share one
    leases: int
    watchers: int
    waiting: int  # calls handed over and not answered
    failed: bool  # writing is off until the store is opened again


class MetadataStore(Protocol):
    """One ordered map with revisions, guarded transactions, leases and watches (`model.py`).

    Every method raises `ClosedResource` once the store is closed, `StoreUnavailable` when it does not answer (with
    `outcome: "unknown"` in the details of a transaction that may have been carried out), and `InvalidArgument` for
    input that no adapter would take, before anything changes.
    """

    async def get(self, key: str) -> KeyValue | None:
        """Read one key; None if it is absent."""

    async def range(
        self,
        range_: KeyRange,
        *,
        limit: int = MAX_PAGE_ITEMS,
        after: str | None = None,
        descending: bool = False,
    ) -> Page:
        """Read at most `limit` (1 to 1000) keys in order, beginning after the key `after`.

        With `descending` the order is reversed and `after` means: below that key.
        """

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        """Carry out all writes if all guards hold, else none.

        Returns:
            The revision of the change, durable by then: for keys it created, their create revision. If nothing
            changed (guards only, or deletions of absent keys) the revision that the guards were checked at.

        Raises:
            GuardFailed: a `Conflict` naming the first guard that failed; nothing was changed.
            LeaseLost: a put names a lease that does not live; nothing was changed.
            InvalidArgument: beyond the limits (`check_transaction`); nothing was changed.

        A cancelled call may have happened, wholly or not at all: read before trying again, or guard it.
        """

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        """Begin a lease. An adapter may lengthen the time (etcd to whole seconds), never shorten it.

        A cancelled call may have made a lease; it runs out by itself.
        """

    async def keep_alive(self, lease_id: LeaseId) -> int:
        """Give a lease its full time again, from some moment during this call; return its ttl in ms.

        Who relies on the lease counts its deadline from before this call. Raises `LeaseLost`.
        """

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        """End a lease and delete its keys in one revision. Raises `LeaseLost`. A cancelled call may have happened."""

    def watch(
        self, range_: KeyRange, *, from_revision: Revision
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Yield all changes in the range from that revision on, in order, without end.

        To follow a range: read its pages, then watch from the first page's revision + 1; an event may repeat what a
        later page showed already (its revision then is not above the key's `mod_revision`).

        Iterating raises `Compacted` when `from_revision` or the reader's place is older than the kept history
        (also for a reader that lags): range again. A slow reader costs no memory. `ClosedResource` ends it when the
        store closes. Cancelling an iteration loses no event.
        """

    def statistics(self) -> StoreStatistics:
        """Return the counters, without waiting."""


async def read_all(store: MetadataStore, range_: KeyRange) -> tuple[list[KeyValue], Revision]:
    """Read a whole range in pages of 1000; return it and the revision to watch from, minus one.

    The list is what lay there page by page; together with a watch from the returned revision + 1 it is exact.
    """
    page = await store.range(range_)
    revision = page.revision
    items = list(page.items)
    while page.more:
        page = await store.range(range_, after=items[-1].key)
        items.extend(page.items)
    return items, revision
