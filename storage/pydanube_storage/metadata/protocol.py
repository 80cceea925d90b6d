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
    RangePage,
    Revision,
    Write,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """Counters since the store was opened, and current values. None if the adapter cannot determine one."""

    revision: Revision
    oldest_event_revision: Revision | None
    transactions: int  # committed
    conflicts: int  # transactions refused by a guard
    commits: int  # durable commits. Fewer than transactions where several share one
    leases: int
    watchers: int
    waiting: int  # pending calls
    failed: bool  # writing is off until the store is opened again


class MetadataStore(Protocol):
    """One ordered map with revisions, guarded transactions, leases and watches (`model.py`).

    Every method raises `ClosedResource` once the store is closed, `StoreUnavailable` if it does not answer (with
    `outcome: "unknown"` in the details of a transaction that may have been carried out), and `InvalidArgument` for
    input that no adapter accepts, before anything changes.
    """

    async def get(self, key: str) -> KeyValue | None:
        """Read one key. Return None if it is absent."""

    async def range(
        self,
        range_: KeyRange,
        *,
        limit: int = MAX_PAGE_ITEMS,
        after: str | None = None,
        descending: bool = False,
    ) -> RangePage:
        """Read at most `limit` (1 to 1000) keys in order, starting after the key `after`.

        With `descending` the order is reversed and the page starts below `after`.
        """

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        """Carry out all writes if all guards hold, else none.

        Returns:
            The revision of the change, which is durable. It is the create revision of the keys it created. If nothing
            changed (guards only, or deletions of absent keys), the revision at which the guards were checked.

        Raises:
            GuardFailed: a `Conflict` that names the first failed guard. Nothing was changed.
            LeaseLost: the lease of a put does not exist. Nothing was changed.
            InvalidArgument: a limit is exceeded (`check_transaction`). Nothing was changed.

        A cancelled call may have happened, wholly or not at all. Read before trying again, or guard it.
        """

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        """Grant a lease. An adapter may lengthen the time (etcd to whole seconds), never shorten it.

        A cancelled call may have granted a lease, which then expires unused.
        """

    async def keep_alive(self, lease_id: LeaseId) -> int:
        """Renew a lease for its full time, from some moment during this call, and return its ttl in ms.

        The holder computes its deadline from before this call. Raises `LeaseLost`.
        """

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        """End a lease and delete its keys in one revision. Raises `LeaseLost`. A cancelled call may have happened."""

    def watch(
        self, range_: KeyRange, *, from_revision: Revision
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Yield all changes in the range from that revision on, in order, without end.

        To follow a range, read its pages, then watch from the first page's revision + 1. An event may repeat a change
        that a later page already contained (its revision then is not above the key's `mod_revision`).

        Iterating raises `Compacted` if `from_revision` or the reader's place is older than the kept history, which also
        happens to a reader that lags. Read the range again then. A slow reader costs no memory. Iterating raises
        `ClosedResource` when the store closes. Cancelling an iteration loses no event.
        """

    def statistics(self) -> StoreStatistics:
        """Return the counters without waiting."""


async def read_all(store: MetadataStore, range_: KeyRange) -> tuple[list[KeyValue], Revision]:
    """Read a whole range in pages of 1000. Return its items and the revision to watch from, minus one.

    The pages may be of different revisions. A watch from the returned revision + 1 makes the list consistent.
    """
    page = await store.range(range_)
    revision = page.revision
    items = list(page.items)
    while page.more:
        page = await store.range(range_, after=items[-1].key)
        items.extend(page.items)
    return items, revision
