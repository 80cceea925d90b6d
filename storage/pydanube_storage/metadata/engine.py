"""The rules of transactions: guards, revisions, leases and history over rows that an adapter stores.

The engine is synchronous and belongs to one thread. It decides everything before it writes: a transaction whose
guards or leases do not hold has touched no row, so several transactions can share one durable commit (embedded
adapter) without savepoints. After an error of the rows (a full disk) the engine's state is undefined. The adapter then
rolls back and calls `reload`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, assert_never

from pydanube_core.errors import InvalidArgument

from pydanube_storage.metadata.errors import Compacted, GuardFailed
from pydanube_storage.metadata.leases import LeaseTable
from pydanube_storage.metadata.model import (
    Absent,
    Delete,
    DeleteRange,
    Event,
    EventKind,
    Guard,
    KeyRange,
    KeyValue,
    LeaseId,
    ModRevision,
    Put,
    RangePage,
    Revision,
    Write,
)

# Watchers are in the same process or read immediately. A revision has up to 100 events
DEFAULT_HISTORY_REVISIONS: Final = 1000
_FORGET_SLACK: Final = 4  # expired history is deleted in steps of history / 4, not at each commit


class Place(NamedTuple):
    """A position in the history. The next event to read is the first at or after it."""

    revision: Revision
    position: int  # of the event within its revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A revision and the keys it changed."""

    revision: Revision
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters that must be as durable as the rows."""

    revision: Revision
    compacted: Revision  # events up to this revision are deleted
    last_lease: LeaseId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Facts that the shell needs after each step."""

    revision: Revision
    oldest_event_revision: Revision
    leases: int
    next_deadline_ms: int | None


class Rows(Protocol):
    """The storage of keys, history, leases and counters, without rules."""

    def get(self, key: str) -> KeyValue | None: ...

    def scan(self, range_: KeyRange, *, limit: int, descending: bool) -> list[KeyValue]:
        """Return the first `limit` keys of the range in order, all of them if it is -1."""

    def put(self, item: KeyValue) -> None: ...

    def delete(self, key: str) -> None: ...

    def keys_of_lease(self, lease_id: LeaseId) -> list[str]:
        """Return the keys of a lease, in order."""

    def append_events(self, events: Sequence[Event]) -> None:
        """Append all events of one revision."""

    def events(self, range_: KeyRange, place: Place, *, limit: int) -> list[tuple[Event, Place]]:
        """Return at most `limit` events of the range at or after the position, each with its own position."""

    def forget_events(self, up_to: Revision) -> None: ...

    def put_lease(self, lease_id: LeaseId, ttl_ms: int) -> None: ...

    def delete_lease(self, lease_id: LeaseId) -> None: ...

    def leases(self) -> dict[LeaseId, int]: ...

    def counters(self) -> Counters: ...

    def put_counters(self, counters: Counters) -> None: ...

    def raise_format(self, version: int) -> int:
        """Let only builds that read this format open the rows. Return the format in force."""


class Engine:
    """See the module. All times are milliseconds of one clock that never goes back."""

    def __init__(
        self, rows: Rows, *, now_ms: int, history_revisions: int = DEFAULT_HISTORY_REVISIONS
    ) -> None:
        if history_revisions < 1:
            raise InvalidArgument(
                f"history_revisions {history_revisions}: at least 1 revision is kept",
                field="history_revisions",
                value=history_revisions,
            )
        self._rows = rows
        self._history_revisions = history_revisions
        self._changes: list[Change] = []
        self.reload(now_ms)

    def reload(self, now_ms: int) -> None:
        """Load the state from the rows again. Live leases get their full time again."""
        counters = self._rows.counters()
        self._revision = counters.revision
        self._compacted = counters.compacted
        self._last_lease = counters.last_lease
        self._leases = LeaseTable(self._rows.leases(), now_ms=now_ms)
        self._changes.clear()

    # Facts

    def facts(self) -> EngineFacts:
        return EngineFacts(
            revision=self._revision,
            oldest_event_revision=Revision(self._forgotten + 1),
            leases=len(self._leases),
            next_deadline_ms=self._leases.next_deadline_ms(),
        )

    def take_changes(self) -> list[Change]:
        """Return the revisions made since the last call, ascending."""
        changes, self._changes = self._changes, []
        return changes

    def has_due(self, now_ms: int) -> bool:
        """Whether `expire` would delete any lease at `now_ms`."""
        return bool(self._leases.due(now_ms))

    @property
    def _forgotten(self) -> Revision:
        # The rows may still hold older events (deleted in steps), but all adapters must behave alike.
        return Revision(max(self._compacted, self._revision - self._history_revisions))

    # Reading

    def get(self, key: str) -> KeyValue | None:
        return self._rows.get(key)

    def range(self, range_: KeyRange, *, limit: int, after: str | None, descending: bool) -> RangePage:
        start, end = range_.start, range_.end
        if after is not None and descending:
            end = min(end, after)
        elif after is not None and after >= start:
            start = after + "\x01"  # the least text behind `after`, as keys hold no U+0000
        if start >= end:
            return RangePage(items=(), revision=self._revision, more=False)
        items = self._rows.scan(KeyRange(start=start, end=end), limit=limit + 1, descending=descending)
        return RangePage(items=tuple(items[:limit]), revision=self._revision, more=len(items) > limit)

    def events(self, range_: KeyRange, place: Place, *, limit: int) -> tuple[list[Event], Place]:
        """Return at most `limit` events from the position on, and the position after them. Raises `Compacted`."""
        if place.revision <= self._forgotten:
            raise Compacted(place.revision, Revision(self._forgotten + 1))
        found = self._rows.events(range_, place, limit=limit)
        if len(found) == limit:
            last = found[-1][1]
            behind = Place(last.revision, last.position + 1)
        else:
            behind = max(place, Place(Revision(self._revision + 1), 0))
        return [event for event, _ in found], behind

    # Writing

    def transact(self, guards: Iterable[Guard], writes: Iterable[Write]) -> Revision:
        """Run a transaction like `MetadataStore.transact`. The caller has checked its limits."""
        seen: dict[str, KeyValue | None] = {}  # most puts write guarded keys, which are read only once
        for guard in guards:
            seen[guard.key] = self._check_guard(guard)
        writes = tuple(writes)
        for write in writes:
            if isinstance(write, Put) and write.lease_id is not None:
                self._leases.check(write.lease_id)

        revision = Revision(self._revision + 1)
        events: list[Event] = []
        for write in writes:
            match write:
                case Put(key):
                    former = seen[key] if key in seen else self._rows.get(key)
                    events.append(self._put(former, write, revision))
                case Delete(key):
                    events += self._delete(self._rows.get(key), revision)
                case DeleteRange(range_):
                    for item in self._rows.scan(range_, limit=-1, descending=False):
                        events += self._delete(item, revision)
                case _:
                    assert_never(write)
        self._record(events, revision)
        return self._revision

    def raise_format(self, version: int) -> int:
        return self._rows.raise_format(version)

    def grant_lease(self, ttl_ms: int, now_ms: int) -> LeaseId:
        self._last_lease = LeaseId(self._last_lease + 1)
        self._leases.add(self._last_lease, ttl_ms, now_ms)
        self._rows.put_lease(self._last_lease, ttl_ms)
        self._save()
        return self._last_lease

    def keep_alive(self, lease_id: LeaseId, now_ms: int) -> int:
        return self._leases.renew(lease_id, now_ms)

    def revoke_lease(self, lease_id: LeaseId) -> None:
        self._leases.remove(lease_id)
        self._rows.delete_lease(lease_id)
        revision = Revision(self._revision + 1)
        events: list[Event] = []
        for key in self._rows.keys_of_lease(lease_id):
            events += self._delete(self._rows.get(key), revision)
        self._record(events, revision)

    def expire(self, now_ms: int) -> None:
        """End leases that have expired, one revision each."""
        for lease_id in self._leases.due(now_ms):
            self.revoke_lease(lease_id)

    def _check_guard(self, guard: Guard) -> KeyValue | None:
        item = self._rows.get(guard.key)
        actual = None if item is None else item.mod_revision
        match guard:
            case Absent():
                holds = actual is None
            case ModRevision(_, revision):
                holds = actual == revision
            case _:
                assert_never(guard)
        if not holds:
            raise GuardFailed(guard, actual)
        return item

    def _put(self, former: KeyValue | None, put: Put, revision: Revision) -> Event:
        item = KeyValue(
            key=put.key,
            value=put.value,
            create_revision=revision if former is None else former.create_revision,
            mod_revision=revision,
            lease_id=put.lease_id,
        )
        self._rows.put(item)
        return Event.put(item)

    def _delete(self, item: KeyValue | None, revision: Revision) -> list[Event]:
        if item is None:
            return []
        self._rows.delete(item.key)
        event = Event(
            kind=EventKind.DELETE,
            revision=revision,
            key=item.key,
            value=b"",
            create_revision=item.create_revision,
        )
        return [event]

    def _record(self, events: list[Event], revision: Revision) -> None:
        if not events:  # nothing changed: the revision stays, as in etcd
            return
        assert revision == self._revision + 1, "revisions have no holes"
        self._rows.append_events(events)
        self._revision = revision
        self._changes.append(Change(revision=revision, keys=tuple(event.key for event in events)))
        if self._forgotten - self._compacted > self._history_revisions // _FORGET_SLACK:
            self._rows.forget_events(self._forgotten)
            self._compacted = self._forgotten
        self._save()

    def _save(self) -> None:
        self._rows.put_counters(
            Counters(revision=self._revision, compacted=self._compacted, last_lease=self._last_lease)
        )
