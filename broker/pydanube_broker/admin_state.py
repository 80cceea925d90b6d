"""The admin core's values in the metadata store, under `/admin/` (`pydanube_core.cluster_port.MetadataPort`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from pydanube_core.facts import StateItem
from pydanube_core.security.records import VERSION
from pydanube_storage.metadata import (
    Absent,
    Delete,
    Guard,
    KeyRange,
    KeyValue,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    Write,
)

from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.keys import incarnation_key
from pydanube_broker.cluster.membership import IncarnationRecord
from pydanube_broker.records import Table

ADMIN_PREFIX: Final = "/admin/"
SECURITY_VERSION: Final = ADMIN_PREFIX + VERSION
T = TypeVar("T")


def admin_table(
    prefix: str,
    decode: Callable[[bytes], T],
    changed: Callable[[str, T | None, T | None], None] = lambda key, before, after: None,
) -> Table[T]:
    """Return the table of the records below a prefix of the tree. A record that cannot be read is left out."""
    range_ = KeyRange.prefix(ADMIN_PREFIX + prefix)
    return Table(range_, lambda item: decode(item.value), changed=changed, drops_unreadable=True)


def version_table() -> Table[bytes]:
    """Return the table of the version that each change of grants and quotas writes last."""
    return Table(KeyRange.only(SECURITY_VERSION), lambda item: item.value)


class AdminState:
    """Reads and guarded writes of one tree of the store."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    async def read(self, key: str) -> StateItem | None:
        found = await self.store.get(ADMIN_PREFIX + key)
        return None if found is None else _item(found)

    async def list(
        self, prefix: str, *, after: str | None, limit: int, descending: bool
    ) -> Sequence[StateItem]:
        page = await self.store.range(
            KeyRange.prefix(ADMIN_PREFIX + prefix),
            limit=limit,
            after=None if after is None else ADMIN_PREFIX + after,
            descending=descending,
        )
        return [_item(found) for found in page.items]

    async def is_over(self, life: str) -> bool:
        """Return whether that start of a broker is over: a later one has begun, or the broker is unknown."""
        broker_id, _, incarnation = life.partition("/")
        if not broker_id.isdecimal() or not incarnation.isdecimal():
            return True  # kept by a version that did not record its owner
        key = incarnation_key(BrokerId(int(broker_id)))
        found = await self.store.get(key)
        return found is None or IncarnationRecord.from_json(found.value, key=key).incarnation > int(
            incarnation
        )

    async def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, int | None]) -> int:
        """Write under guards. Raises `Conflict`: a key has another revision than expected."""
        writes: list[Write] = [
            Delete(ADMIN_PREFIX + key) if value is None else Put(ADMIN_PREFIX + key, value)
            for key, value in changes.items()
        ]
        guards: list[Guard] = [
            Absent(ADMIN_PREFIX + key)
            if revision is None
            else ModRevision(ADMIN_PREFIX + key, Revision(revision))
            for key, revision in expected.items()
        ]
        return await self.store.transact(writes, guards=guards)


def _item(found: KeyValue) -> StateItem:
    return StateItem(key=found.key.removeprefix(ADMIN_PREFIX), value=found.value, revision=found.mod_revision)
