"""The records of one range of keys, in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, TypeVar

from pydanube_storage.metadata import (
    Absent,
    Guard,
    KeyRange,
    KeyValue,
    MetadataStore,
    ModRevision,
    Revision,
    read_all,
)

from pydanube_broker.records.quarantine import Quarantine

R = TypeVar("R")


class Table(Generic[R]):
    """Records by key. `Records` fills it. Single user: the loop.

    Args:
        range_: the table's keys.
        read: parses a key and its value. An error sets the key aside.
        changed: called after each change with the key, the previous record or None, and the new record or None. It
            maintains indexes beside the table.
        drops_unreadable: whether to drop a record if its new value cannot be read, so that an outdated record grants
            nothing. By default the previous record stays, because an absent record would look like a deleted one.
    """

    def __init__(
        self,
        range_: KeyRange,
        read: Callable[[KeyValue], R],
        *,
        changed: Callable[[str, R | None, R | None], None] = lambda key, before, after: None,
        drops_unreadable: bool = False,
    ) -> None:
        self.range = range_
        self.rows: dict[str, R] = {}
        self._read = read
        self._changed = changed
        self._drops_unreadable = drops_unreadable
        self._revisions: dict[str, Revision] = {}  # of each key in the store, readable or not
        self._unreadable: set[str] = set()  # keys quarantined because their last value could not be read
        self._read_at = Revision(0)  # for a key without a revision, events up to this one are outdated

    def get(self, key: str) -> R | None:
        return self.rows.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def __iter__(self) -> Iterator[R]:
        return iter(self.rows.values())

    def __len__(self) -> int:
        return len(self.rows)

    def known_keys(self) -> Collection[str]:
        """Return the keys in the store, readable or not."""
        return self._revisions.keys()

    def revision(self, key: str) -> Revision | None:
        """Return the revision of a key's last change, None if it is absent."""
        return self._revisions.get(key)

    def guard(self, key: str) -> Guard:
        """Return a guard that fails if the store's key differs from this table's."""
        revision = self._revisions.get(key)
        return Absent(key) if revision is None else ModRevision(key, revision)

    def has(self, key: str, revision: Revision | None) -> bool:
        """Return whether the table has a key at this revision or a later one. For None: whether the key is absent."""
        known = self._revisions.get(key)
        return known is None if revision is None else known is not None and known >= revision

    # -- filling -------------------------------------------------------------------------------------------------

    def put(self, item: KeyValue, quarantine: Quarantine) -> bool:
        """Apply a key of the store. Return whether the table lacked this revision of it."""
        if self._revisions.get(item.key, self._read_at) >= item.mod_revision:
            return False
        self._revisions[item.key] = item.mod_revision
        before = self.rows.get(item.key)
        with quarantine.reading(item.key):
            after = self.rows[item.key] = self._read(item)
            self._changed(item.key, before, after)
            if item.key in self._unreadable:
                self._unreadable.discard(item.key)
                quarantine.take_out(item.key)
            return True
        self._unreadable.add(item.key)
        if self._drops_unreadable and before is not None:
            del self.rows[item.key]
            self._changed(item.key, before, None)
        return True

    def remove(self, key: str, revision: Revision) -> bool:
        """Apply the deletion of a key at this revision. Return whether the table had the key."""
        known = self._revisions.get(key)
        if known is None or known > revision:
            return False
        del self._revisions[key]
        before = self.rows.pop(key, None)
        if before is not None:
            self._changed(key, before, None)
        return True

    def replace(self, items: Iterable[KeyValue], revision: Revision, quarantine: Quarantine) -> list[str]:
        """Replace all records by the items of the whole range at this revision. Return the changed keys."""
        found = {item.key: item for item in items}
        changed = [key for key in set(self._revisions) - found.keys() if self.remove(key, revision)]
        self._read_at = Revision(0)
        changed += [key for key, item in found.items() if self.put(item, quarantine)]
        self._read_at = revision
        return changed

    async def load(
        self, store: MetadataStore, quarantine: Quarantine, *, part: KeyRange | None = None
    ) -> None:
        """Read the range or a part of it once, for a table that does not follow the store. Raises `StoreUnavailable`."""
        for item in (await read_all(store, part or self.range))[0]:
            self.put(item, quarantine)
