"""Ids of topics, subscriptions and schemas, from blocks that are leased in the metadata store.

An id is `(n << 40) + i`, below 2^53, so that JSON carries it without loss. `n` is the cluster's number, drawn once from
1 to 8191. So ids are above every revision of a store: builds that take a revision for an id never give out the same.
Ids of two clusters differ unless both drew the same number, so a mirror can keep the ids of schemas.

One guarded transaction leases a block of 1 000 to a process. The rest of a block is lost when the process ends. After a
restore from a backup `skip` raises the count, so that ids which were given out after the backup do not come again.

Builds before metadata format 2 take an id above the store's revision for a sign that the store was put back. So ids come
from blocks only in format 2 (`format_gate`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import anyio
from pydanube_core.errors import FormatTooNew, InvalidArgument
from pydanube_storage.metadata import CorruptMetadata, KeyValue, MetadataStore

from pydanube_broker.cluster.keys import ID_BLOCKS
from pydanube_broker.records import Change, JsonRecord, change

log = logging.getLogger("pydanube.cluster")

BLOCK: Final = 1_000  # ids that one transaction leases
MAX_NUMBER: Final = (1 << 13) - 1
_BITS: Final = 40  # width of i in bits. No store has that many revisions
_ATTEMPTS: Final = 100  # each failed attempt means that another broker leased a block


@dataclass(frozen=True, slots=True, kw_only=True)
class IdBlocksRecord(JsonRecord):
    """`number` is n of the module. `next` is the lowest i that is not leased."""

    number: int
    next: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= MAX_NUMBER:
            raise InvalidArgument(
                f"a cluster's number is 1 to {MAX_NUMBER}, not {self.number}",
                field="number",
                value=self.number,
            )
        if not 0 <= self.next <= 1 << _BITS:
            raise InvalidArgument(
                f"ids are counted up to 2^{_BITS}, not to {self.next}", field="next", value=self.next
            )

    @property
    def limit(self) -> int:
        """Return the lowest id that is not leased."""
        return (self.number << _BITS) + self.next

    @classmethod
    def of(cls, item: KeyValue | None) -> IdBlocksRecord | None:
        return None if item is None else cls.from_json(item.value, key=item.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestIds:
    """The highest ids in a journal or a store: of those that are revisions, and of those from blocks. 0: there is none."""

    revision: int = 0
    leased: int = 0

    @classmethod
    def among(cls, ids: Iterable[int]) -> NewestIds:
        revision = leased = 0
        for each in ids:
            if each >> _BITS:
                leased = max(leased, each)
            else:
                revision = max(revision, each)
        return cls(revision=revision, leased=leased)

    def __bool__(self) -> bool:
        return bool(self.revision or self.leased)

    def is_beyond(self, given_out: NewestIds) -> bool:
        """Return whether a store that gave out ids up to `given_out` cannot have given out these.

        Ids with another number than the store's came from another store, together with their topics.
        """
        same_number = not given_out.leased or self.leased >> _BITS == given_out.leased >> _BITS
        return self.revision > given_out.revision or (same_number and self.leased > given_out.leased)

    def against(self, given_out: NewestIds) -> tuple[int, int]:
        """Return the store's number and the higher one that was seen, for an error of ids beyond it."""
        if self.revision > given_out.revision:
            return given_out.revision, self.revision
        return given_out.leased, self.leased


async def given_out(store: MetadataStore) -> NewestIds:
    """Return the highest ids that a store may have given out. Raises `StoreUnavailable`.

    If the record of the blocks cannot be read, that is any id from a block: a start does not depend on it.
    """
    try:
        record = IdBlocksRecord.of(await store.get(ID_BLOCKS))
    except (CorruptMetadata, FormatTooNew) as error:
        log.warning("counter_unreadable", extra={"key": ID_BLOCKS, "why": error.message})
        leased = (MAX_NUMBER + 1) << _BITS
    else:
        leased = 0 if record is None else record.limit - 1
    return NewestIds(revision=store.statistics().revision, leased=leased)


class IdBlocks:
    """Gives out ids, each once. Single user: the loop."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._left: Iterator[int] = iter(())
        self._leasing = anyio.Lock()

    async def next(self) -> int:
        """Return an id that was not given out before. Raises `StoreUnavailable`, `CorruptMetadata`."""
        async with self._leasing:
            found = next(self._left, None)
            if found is None:
                self._left = iter(await self._lease())
                found = next(self._left)
        return found

    async def take(self, count: int) -> list[int]:
        """Return as many ids, ascending. Raises as `next`."""
        return [await self.next() for _ in range(count)]

    async def _lease(self) -> range:
        async def decide(change: Change) -> range:
            known = IdBlocksRecord.of(await change.read(ID_BLOCKS))
            if known is None:
                known = IdBlocksRecord(number=1 + secrets.randbelow(MAX_NUMBER), next=0)
            following = replace(known, next=known.next + BLOCK)
            change.put(ID_BLOCKS, following)
            return range(known.limit, following.limit)

        return (await change(self._store, decide, attempts=_ATTEMPTS)).result


async def skip(store: MetadataStore, known: NewestIds, margin: int = 0) -> None:
    """Raise the count above the ids that a journal has, and by a margin. Nothing if no block was ever leased.

    Raises `StoreUnavailable`, `CorruptMetadata`.
    """

    async def decide(change: Change) -> None:
        record = IdBlocksRecord.of(await change.read(ID_BLOCKS))
        if record is None and not known.leased:
            return
        same_number = record is None or record.number == known.leased >> _BITS
        if record is None or (same_number and known.leased >= record.limit):
            record = IdBlocksRecord(number=known.leased >> _BITS, next=known.leased % (1 << _BITS) + 1)
        change.put(ID_BLOCKS, replace(record, next=record.next + margin))

    await change(store, decide, attempts=_ATTEMPTS)
