"""The catalog of objects on the metadata store.

| key | value |
|---|---|
| `/catalog/<topic id>/<end offset>` | `CatalogEntry` of the object that ends there |
| `/catalog-heads/<topic id>` | `CatalogHead`, in a tree of its own, so that a start reads all heads in a few pages |
| `/catalog-retired/<topic id>/<change>` | `Resting`: objects that a change removed from the topic, not deleted yet |

The object that holds offset x is the first key above x: one range request of one key for any number of objects. Every
change is one transaction guarded by the head's revision, so two writers cannot both succeed. A writer of a lower epoch
than the head's is refused before. The loser of a race reads the new head and tries again, because an owner flushes,
merges and drops objects of one topic concurrently. If the answer to a change is lost, reading the head shows its outcome.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec

from pydanube_core.errors import ClusterError, Conflict, StoreUnavailable

from pydanube_storage.catalog.errors import CatalogFenced
from pydanube_storage.catalog.records import CatalogEntry, CatalogHead, Moment, Resting
from pydanube_storage.metadata import (
    MAX_OPERATIONS,
    MAX_VALUE_BYTES,
    Absent,
    Delete,
    DeleteRange,
    Guard,
    GuardFailed,
    KeyRange,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    Write,
    read_all,
)

# Entries that one change may remove, beside a guard, the head, a new entry and a `Resting`
MAX_CHANGED: Final = MAX_OPERATIONS - 4
_PAGE: Final = 500
_RACES: Final = 16  # retries after lost races before the caller gets the error
_PRODUCERS_BYTES: Final = 80 << 10
_TEXTS_BYTES: Final = 40 << 10  # for subscriptions and for schemas

assert _PRODUCERS_BYTES + 2 * _TEXTS_BYTES < MAX_VALUE_BYTES
assert MAX_CHANGED * 130 < MAX_VALUE_BYTES  # names of objects in one `Resting`

P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A stored head with its revision."""

    head: CatalogHead
    revision: Revision


def _raced(
    change: Callable[Concatenate[ObjectCatalog, P], Awaitable[Committed]],
) -> Callable[Concatenate[ObjectCatalog, P], Awaitable[Committed]]:
    """Repeat a change, including the read of the head, if another change came in between."""

    @wraps(change)
    async def changed(self: ObjectCatalog, /, *args: P.args, **kwargs: P.kwargs) -> Committed:
        for _ in range(_RACES):
            try:
                return await change(self, *args, **kwargs)
            except GuardFailed:
                continue
        return await change(self, *args, **kwargs)

    return changed


class ObjectCatalog:
    """The catalog. `wall_ms` returns milliseconds since 1970, `moment` the same with the machine's boot time."""

    def __init__(
        self, store: MetadataStore, *, wall_ms: Callable[[], int], moment: Callable[[], Moment] | None = None
    ) -> None:
        self._store = store
        # Topic id → why `heads` could not read its head
        self.unreadable: dict[int, ClusterError] = {}
        self._moment = moment or (lambda: Moment(wall_ms=wall_ms(), boot="", boot_ms=0))

    # -- reading ---------------------------------------------------------------------------------------------

    async def head(self, topic_id: int) -> Committed | None:
        """Return the topic's head, None if it never had an object."""
        key = head_key(topic_id)
        item = await self._store.get(key)
        if item is None:
            return None
        return Committed(head=CatalogHead.from_json(item.value, key=key), revision=item.mod_revision)

    async def heads(self) -> dict[int, CatalogHead]:
        """Return every readable head by topic id. The others are in `unreadable`."""
        return {topic_id: found.head for topic_id, found in (await self.committed_heads()).items()}

    async def committed_heads(self, topics: Container[int] | None = None) -> dict[int, Committed]:
        """Return the readable heads of these topics, or of all, by topic id. The others are in `unreadable`.

        It reads the heads of all topics, in a few requests.
        """
        items, _ = await read_all(self._store, KeyRange.prefix("/catalog-heads/"))
        found = {}
        for item in items:
            topic_id = int(item.key.rpartition("/")[2])
            if topics is not None and topic_id not in topics:
                continue
            try:
                head = CatalogHead.from_json(item.value, key=item.key)
            except ClusterError as error:
                self.unreadable[topic_id] = error
            else:
                found[topic_id] = Committed(head=head, revision=item.mod_revision)
        return found

    async def find(self, topic_id: int, offset: int) -> CatalogEntry | None:
        """Return the object with `offset`, or the first after it. None if all end before."""
        found = await self.entries_page(topic_id, after=offset, limit=1)
        return found[0] if found else None

    async def entries_page(self, topic_id: int, *, after: int = 0, limit: int = _PAGE) -> list[CatalogEntry]:
        """Return up to `limit` entries that end after `after`, ascending."""
        page = await self._store.range(_above(topic_id, after), limit=limit)
        return [CatalogEntry.from_json(item.value, key=item.key) for item in page.items]

    async def entries(
        self, topic_id: int, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[CatalogEntry]:
        """Yield the entries that overlap `[start, end)`, ascending, a page at a time."""
        after = start
        while found := await self.entries_page(topic_id, after=after):
            for entry in found:
                if end is not None and entry.start >= end:
                    return
                yield entry
            after = found[-1].end

    async def find_time(self, topic_id: int, time_ms: int) -> CatalogEntry | None:
        """Return the first object with a message appended at or after `time_ms`, by O(log offsets) requests of one key."""
        held = await self.head(topic_id)
        if held is None:
            return None
        low, high = held.head.start_offset, held.head.tiered_offset
        found: CatalogEntry | None = None
        while low < high:
            middle = (low + high) // 2
            entry = await self.find(topic_id, middle)
            if entry is None:
                high = middle
            elif entry.max_append_time_ms >= time_ms:
                found, high = entry, min(middle, entry.start)
            else:
                low = entry.end
        return found

    # -- changing --------------------------------------------------------------------------------------------

    @_raced
    async def claim(self, topic_id: int, *, epoch: int, folder: str, start_offset: int) -> Committed:
        """Make `epoch` the only one that may change this topic.

        Raises `CatalogFenced` if a later owner has claimed it.
        """
        held = await self.head(topic_id)
        if held is None:
            head = CatalogHead(
                epoch=epoch, folder=folder, start_offset=start_offset, tiered_offset=start_offset
            )
            return await self._change(topic_id, None, head, [])
        if held.head.epoch == epoch:
            return held
        self._check_epoch(topic_id, held, epoch)
        return await self._change(topic_id, held, replace(held.head, epoch=epoch), [])

    @_raced
    async def append(
        self,
        topic_id: int,
        entry: CatalogEntry,
        *,
        epoch: int,
        epochs: Sequence[tuple[int, int]] = (),
        producers: Sequence[Any] = (),
        subscriptions: Mapping[str, Any] | None = None,
        schemas: Mapping[str, Any] | None = None,
    ) -> Committed:
        """Append the object that follows the last one.

        Raises:
            CatalogFenced: a later owner has claimed the topic.
            Conflict: the object does not begin where the topic's last one ends.
        """
        held = await self._held(topic_id, epoch)
        head = held.head
        if entry.start != head.tiered_offset:
            settled = await self.find(topic_id, entry.start)
            if settled is not None and settled.name == entry.name:
                return held  # our own change, from a call whose answer was lost
            raise Conflict(
                f"object {entry.name} begins at {entry.start}, topic {topic_id} is tiered up to {head.tiered_offset}",
                topic_id=str(topic_id),
                tiered_offset=head.tiered_offset,
            )
        known = list(head.epochs)
        for number, first in epochs:
            if not known or known[-1][0] < number:
                known.append((number, first))
        changed = replace(
            head,
            tiered_offset=entry.end,
            objects=head.objects + 1,
            bytes=head.bytes + entry.bytes,
            epochs=tuple(known[-1000:]),
            producers=_bounded_list(producers, _PRODUCERS_BYTES),
            subscriptions=_bounded_table(subscriptions or {}, _TEXTS_BYTES),
            schemas=_bounded_table(schemas or {}, _TEXTS_BYTES),
        )
        return await self._change(topic_id, held, changed, [_put(topic_id, entry)])

    @_raced
    async def replace(
        self, topic_id: int, sources: Sequence[CatalogEntry], merged: CatalogEntry, *, epoch: int
    ) -> Committed:
        """Replace adjacent objects by one and retire them.

        Raises `CatalogFenced` and `Conflict` like `append`, and `Conflict` if a source is no longer in the catalog.
        """
        assert 2 <= len(sources) <= MAX_CHANGED
        assert (merged.start, merged.end) == (sources[0].start, sources[-1].end)
        held = await self._held(topic_id, epoch)
        present = await self.entries_page(topic_id, after=merged.start, limit=len(sources))
        if [entry.name for entry in present] != [entry.name for entry in sources]:
            if present and present[0].name == merged.name:
                return held
            raise Conflict(
                f"the objects of topic {topic_id} from {merged.start} to {merged.end} have changed",
                topic_id=str(topic_id),
            )
        changed = replace(
            held.head,
            objects=held.head.objects - len(sources) + 1,
            bytes=held.head.bytes - sum(entry.bytes for entry in sources) + merged.bytes,
        )
        writes: list[Write] = [Delete(entry_key(topic_id, entry.end)) for entry in sources[:-1]]
        rest = self._rest(topic_id, sources)
        return await self._change(topic_id, held, changed, [*writes, _put(topic_id, merged), rest])

    @_raced
    async def adopt(self, topic_id: int, entry: CatalogEntry, *, epoch: int) -> Committed:
        """Add an unlisted object after the last one, or in place of the objects that it covers.

        Raises `CatalogFenced` and `Conflict` like `append`, and `Conflict` if it covers an object only partly.
        """
        held = await self._held(topic_id, epoch)
        head = held.head
        covered = [each async for each in self.entries(topic_id, start=entry.start, end=entry.end)]
        if [each.name for each in covered] == [entry.name]:
            return held
        fits = covered[0].start == entry.start if covered else entry.start == head.tiered_offset
        if not fits or (covered and covered[-1].end > entry.end) or len(covered) > MAX_CHANGED:
            raise Conflict(
                f"object {entry.name} does not fit the objects of topic {topic_id}", topic_id=str(topic_id)
            )
        changed = replace(
            head,
            tiered_offset=max(head.tiered_offset, entry.end),
            objects=head.objects - len(covered) + 1,
            bytes=head.bytes - sum(each.bytes for each in covered) + entry.bytes,
        )
        writes: list[Write] = [
            Delete(entry_key(topic_id, each.end)) for each in covered if each.end != entry.end
        ]
        return await self._change(topic_id, held, changed, [*writes, _put(topic_id, entry)])

    @_raced
    async def drop(
        self, topic_id: int, entries: Sequence[CatalogEntry], *, start_offset: int, epoch: int
    ) -> Committed:
        """Let the topic begin at `start_offset` (retention). Objects that end there or before are retired."""
        assert len(entries) <= MAX_CHANGED
        assert all(entry.end <= start_offset for entry in entries)
        held = await self._held(topic_id, epoch)
        head = held.head
        present = await self.entries_page(topic_id, limit=len(entries)) if entries else []
        if [entry.name for entry in present] != [entry.name for entry in entries]:
            if head.start_offset >= start_offset:
                return held  # already done by a call whose answer was lost
            raise Conflict(f"the first objects of topic {topic_id} have changed", topic_id=str(topic_id))
        changed = replace(
            head,
            start_offset=max(head.start_offset, min(start_offset, head.tiered_offset)),
            objects=head.objects - len(entries),
            bytes=head.bytes - sum(entry.bytes for entry in entries),
        )
        writes: list[Write] = [Delete(entry_key(topic_id, entry.end)) for entry in entries]
        if entries:
            writes.append(self._rest(topic_id, entries))
        return await self._change(topic_id, held, changed, writes)

    def _rest(self, topic_id: int, entries: Sequence[CatalogEntry]) -> Put:
        """Return the write that retires objects. The group is named after the last one, whose name is unique."""
        group = Resting(
            group=entries[-1].name, names=tuple(entry.name for entry in entries), since=self._moment()
        )
        return Put(retired_key(topic_id, group.group), group.to_json())

    @_raced
    async def skip(self, topic_id: int, *, start_offset: int, epoch: int) -> Committed:
        """Let a topic without objects begin at an offset, because the journal dropped messages that were never tiered."""
        held = await self._held(topic_id, epoch)
        head = held.head
        assert start_offset >= head.tiered_offset
        assert not head.objects, "objects before a gap: drop them first"
        changed = replace(head, start_offset=start_offset, tiered_offset=start_offset)
        return await self._change(topic_id, held, changed, [])

    async def resting(self, topic_id: int) -> list[Resting]:
        """Return retired objects that are not deleted yet: a group for each change, and one for those in an old head."""
        items, _ = await read_all(self._store, KeyRange.prefix(f"/catalog-retired/{topic_id:020d}/"))
        found = [Resting.from_json(item.value, key=item.key) for item in items]
        held = await self.head(topic_id)
        if held is not None and held.head.retired:
            old = held.head.retired
            since = Moment(wall_ms=max(each.at_ms for each in old), boot="", boot_ms=0)
            found.append(Resting(group="", names=tuple(each.name for each in old), since=since))
        return found

    async def forget_resting(
        self, topic_id: int, group: Resting, names: Sequence[str], *, epoch: int
    ) -> None:
        """Remove deleted objects from a group of retired ones."""
        gone = set(names)
        kept = tuple(name for name in group.names if name not in gone)
        if kept == group.names:
            return
        if not group.group:
            await self._forget_old(topic_id, gone, epoch=epoch)
            return
        await self._held(topic_id, epoch)
        key = retired_key(topic_id, group.group)
        await self._store.transact([Put(key, replace(group, names=kept).to_json()) if kept else Delete(key)])

    @_raced
    async def _forget_old(self, topic_id: int, gone: Collection[str], *, epoch: int) -> Committed:
        held = await self._held(topic_id, epoch)
        kept = tuple(each for each in held.head.retired if each.name not in gone)
        return await self._change(topic_id, held, replace(held.head, retired=kept), [])

    async def forget_topic(self, topic_id: int) -> None:
        """Remove a deleted topic. Its objects are deleted before."""
        await self._store.transact(
            [
                Delete(head_key(topic_id)),
                DeleteRange(KeyRange.prefix(f"/catalog/{topic_id:020d}/")),
                DeleteRange(KeyRange.prefix(f"/catalog-retired/{topic_id:020d}/")),
            ]
        )

    async def _held(self, topic_id: int, epoch: int) -> Committed:
        held = await self.head(topic_id)
        if held is None:
            raise CatalogFenced(f"topic {topic_id} has no catalog: it was deleted", topic_id=str(topic_id))
        self._check_epoch(topic_id, held, epoch)
        if held.head.epoch != epoch:
            raise Conflict(f"topic {topic_id} was not claimed by epoch {epoch}", topic_id=str(topic_id))
        return held

    @staticmethod
    def _check_epoch(topic_id: int, held: Committed, epoch: int) -> None:
        if held.head.epoch > epoch:
            raise CatalogFenced(
                f"topic {topic_id} belongs to epoch {held.head.epoch}, this broker has {epoch}",
                topic_id=str(topic_id),
                epoch=held.head.epoch,
            )

    async def _change(
        self, topic_id: int, held: Committed | None, head: CatalogHead, writes: Sequence[Write]
    ) -> Committed:
        key = head_key(topic_id)
        value = head.to_json()
        guard: Guard = Absent(key) if held is None else ModRevision(key, held.revision)
        try:
            revision = await self._store.transact([*writes, Put(key, value)], guards=[guard])
        except (GuardFailed, StoreUnavailable) as error:
            if isinstance(error, StoreUnavailable) and error.details.get("outcome") != "unknown":
                raise
            now = await self._store.get(key)  # it may be our own change, whose answer was lost
            if now is None or now.value != value:
                raise
            revision = now.mod_revision
        return Committed(head=head, revision=revision)


def head_key(topic_id: int) -> str:
    return f"/catalog-heads/{topic_id:020d}"


def entry_key(topic_id: int, end: int) -> str:
    return f"/catalog/{topic_id:020d}/{end:020d}"


def retired_key(topic_id: int, group: str) -> str:
    return f"/catalog-retired/{topic_id:020d}/{group}"


def _above(topic_id: int, offset: int) -> KeyRange:
    """Return the keys of entries that end after `offset`."""
    return KeyRange(start=entry_key(topic_id, offset + 1), end=f"/catalog/{topic_id:020d}/a")


def _put(topic_id: int, entry: CatalogEntry) -> Put:
    return Put(entry_key(topic_id, entry.end), entry.to_json())


def _bounded_list(items: Sequence[Any], limit_bytes: int) -> tuple[Any, ...]:
    """Return the last items that fit. The first ones are the least recently used."""
    kept: list[Any] = []
    for item in reversed(items):
        limit_bytes -= len(str(item)) + 8
        if limit_bytes < 0:
            break
        kept.append(item)
    return tuple(reversed(kept))


def _bounded_table(table: Mapping[str, Any], limit_bytes: int) -> dict[str, Any]:
    kept = {}
    for name, value in table.items():
        limit_bytes -= len(name) + len(str(value)) + 8
        if limit_bytes < 0:
            break
        kept[name] = value
    return kept
