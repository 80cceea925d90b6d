"""Guarded changes of the metadata store: decide, write under guards, decide again if another change came first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from pydanube_core.errors import ClusterError
from pydanube_storage.metadata import (
    Absent,
    Delete,
    DeleteRange,
    Guard,
    GuardFailed,
    KeyRange,
    KeyValue,
    LeaseId,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    Write,
)

from pydanube_broker.records.json_record import JsonRecord
from pydanube_broker.records.table import Table

T = TypeVar("T")
ATTEMPTS: Final = 5  # each failed attempt means that another change came first


class Outcome(NamedTuple, Generic[T]):
    """The outcome of a change. `result` is returned by the decision. `revision` is None if there was nothing to write."""

    result: T
    revision: Revision | None


class Transact(Protocol):
    """Carries out one transaction, as `MetadataStore.transact`."""

    def __call__(self, writes: Sequence[Write], *, guards: Sequence[Guard]) -> Awaitable[Revision]: ...


class Change:
    """One attempt at a change: guards and writes that a decision collects."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._guards: dict[Guard, ClusterError | None] = {}
        self.writes: list[Write] = []

    @property
    def guards(self) -> list[Guard]:
        return list(self._guards)

    async def read(self, key: str) -> KeyValue | None:
        """Read a key of the store, and guard that it stays so. Raises `StoreUnavailable`."""
        item = await self._store.get(key)
        self.guard(Absent(key) if item is None else ModRevision(key, item.mod_revision))
        return item

    def guard(self, guard: Guard) -> None:
        """Add a guard. If it fails, the decision is made again."""
        self._guards.setdefault(guard, None)

    def unchanged(self, table: Table[Any], key: str) -> None:
        """Guard that the store has a key as the table does, present or absent."""
        self.guard(table.guard(key))

    def absent(self, key: str) -> None:
        """Guard that a key is absent."""
        self.guard(Absent(key))

    def require(self, guard: Guard, error: ClusterError) -> None:
        """Add a guard. If it fails, the change ends with this error."""
        self._guards[guard] = error

    def put(self, key: str, value: bytes | JsonRecord, *, lease_id: LeaseId | None = None) -> None:
        """Write a key."""
        self.writes.append(Put(key, value if isinstance(value, bytes) else value.to_json(), lease_id))

    def write(self, *writes: Write) -> None:
        """Add writes."""
        self.writes += writes

    def delete(self, *keys: str) -> None:
        """Delete keys."""
        self.writes += [Delete(key) for key in keys]

    def delete_range(self, range_: KeyRange) -> None:
        """Delete all keys of a range."""
        self.writes.append(DeleteRange(range_))

    def error_of(self, failed: GuardFailed) -> ClusterError | None:
        """Return the error of the guard that failed, None if the decision is to be made again."""
        return self._guards.get(failed.guard)


#: adds guards and writes to a change, and returns its result
Decide = Callable[[Change], Awaitable[T]]


async def change(
    store: MetadataStore,
    decide: Decide[T],
    *,
    attempts: int = ATTEMPTS,
    transact: Transact | None = None,
    refresh: Callable[[str], Awaitable[None]] | None = None,
) -> Outcome[T]:
    """Decide and write, again if a guard fails.

    Args:
        decide: called once for each attempt.
        transact: replaces the store's method, which a cancellation may interrupt.
        refresh: called with the key of a guard that failed, before the next attempt.

    Raises:
        GuardFailed: the last attempt failed, and nothing was changed. Errors of `decide` and of `Change.require`.
        StoreUnavailable: with `outcome: unknown` if the change may have happened.
    """
    for attempt in range(1, attempts + 1):
        this = Change(store)
        result = await decide(this)
        if not this.writes:
            return Outcome(result, None)
        try:
            revision = await (transact or store.transact)(this.writes, guards=this.guards)
        except GuardFailed as error:
            if (own := this.error_of(error)) is not None:
                raise own from error
            if attempt == attempts:
                raise
            if refresh is not None:
                await refresh(error.guard.key)
        else:
            return Outcome(result, revision)
    raise AssertionError("unreachable")
