"""The leader's snapshots of the metadata in the object store (`pydanube_storage.metadata.snapshots`).

The leader reads all keys once and then follows their changes by a watch, which makes the first reading consistent. Once a
minute it writes the changes. After `_MOST_PIECES` pieces, or another leader's election, a new snapshot begins. The
newest few are kept.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final

import anyio
from pydanube_core.errors import ClusterError, Conflict
from pydanube_storage.metadata import Event, KeyRange, KeyValue, MetadataStore, Revision
from pydanube_storage.metadata.snapshots import (
    MOST_STORED,
    Head,
    by_snapshot,
    encode_piece,
    folder_of,
    piece_key,
)

from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.cluster")

EVERY_S: Final = 60.0
LOOK_S: Final = 1.0
_KEPT: Final = 3
_MOST_PIECES: Final = 500  # of one snapshot. Reading it back takes a request for each
_MOST_PENDING: Final = 10_000  # changed keys in memory. More are written before the minute is over
# Bytes of values in one piece, and of changed values in memory. A reader refuses larger pieces
_MOST_PIECE_BYTES: Final = MOST_STORED // 4
_EVERYTHING: Final = KeyRange.prefix("/")


class MetadataSnapshots:
    """See the module. Single user: the loop.

    Args:
        leads: returns whether this broker writes them now.
    """

    def __init__(
        self, metadata: MetadataStore, tier: Tier, leads: Callable[[], bool], every_s: float = EVERY_S
    ) -> None:
        self._metadata = metadata
        self._tier = tier
        self._leads = leads
        self._every_s = every_s
        self._reset()

    def _reset(self) -> None:
        self._pieces = 0
        self._pending: dict[str, Event] = {}  # by key, of whole revisions
        self._pending_bytes = 0  # of their values
        self._newest: dict[str, Event] = {}  # of one revision, of which more may come
        self._pending_revision = self._newest_revision = Revision(0)
        self._came = 0
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Write snapshots while this broker leads, until cancelled. A failure is logged, and a new snapshot begun."""
        failed = ""
        while True:
            if self._leads() and self._tier.missing is None and self._tier.hold.held:
                try:
                    await self._snapshot()
                    failed = ""
                except* ClusterError as errors:
                    error = errors.exceptions[0]
                    if failed != str(error):
                        log.warning("metadata_snapshot_failed", extra={"error": str(error)})
                    failed = str(error)
                    await asyncio.sleep(self._every_s)
            await asyncio.sleep(LOOK_S)

    async def _snapshot(self) -> None:
        """Write one snapshot and the changes after it, until it is long or this broker no longer leads."""
        self._reset()
        cluster = self._tier.cluster
        present = by_snapshot(await self._names())
        page = await self._metadata.range(_EVERYTHING)
        begun = page.revision
        # An etcd restored from an older snapshot has lower revisions: the newest snapshot still sorts last.
        number = max(int(begun), *(1 + int(each.partition("-")[0]) for each in present), 0)
        name = f"{number:020d}-{secrets.token_hex(4)}"
        async with (
            self._metadata.watch(_EVERYTHING, from_revision=Revision(begun + 1)) as watch,
            anyio.create_task_group() as group,
        ):
            group.start_soon(self._follow, watch)
            while True:
                last = page.revision
                await self._write(name, page.items, last, whole=not page.more and last == begun)
                if not page.more:
                    break
                page = await self._metadata.range(_EVERYTHING, after=page.items[-1].key)
            is_whole, due_s = last == begun, self._monotonic()
            while self._leads() and self._pieces < _MOST_PIECES:
                came = self._came
                await asyncio.sleep(LOOK_S)
                # If it is full, `_follow` waits, maybe within a revision
                if came == self._came and not self._is_full(2):
                    self._close_revision()  # no more of it comes
                if is_whole and present:
                    await self._delete_older(present)
                    present = {}
                due = not is_whole or self._monotonic() >= due_s or self._is_full()
                if not due or not self._pending:
                    continue
                due_s = self._monotonic() + self._every_s
                changes, revision = list(self._pending.values()), self._pending_revision
                self._pending, self._pending_bytes = {}, 0
                self._room.set()
                is_whole = is_whole or revision >= last
                await self._write(name, changes, revision, whole=is_whole)
            group.cancel_scope.cancel()
        log.info("metadata_snapshot_ends", extra={"cluster": cluster, "pieces": self._pieces})

    @staticmethod
    def _monotonic() -> float:
        return asyncio.get_running_loop().time()

    async def _follow(self, watch: AsyncIterator[Event]) -> None:
        async for event in watch:
            while self._is_full(2):
                self._room.clear()
                await self._room.wait()
            if event.revision > self._newest_revision:
                self._close_revision()
                self._newest_revision = event.revision
            self._newest[event.key] = event
            self._came += 1

    def _is_full(self, times: int = 1) -> bool:
        return len(self._pending) >= times * _MOST_PENDING or self._pending_bytes >= times * _MOST_PIECE_BYTES

    def _close_revision(self) -> None:
        """Count the newest revision as whole. A transaction's events share it, and a snapshot has all or none of them."""
        for key, event in self._newest.items():
            former = self._pending.get(key)
            self._pending_bytes += len(event.value) - (0 if former is None else len(former.value))
            self._pending[key] = event
        self._pending_revision = self._newest_revision
        self._newest = {}

    async def _write(
        self, name: str, changes: Sequence[KeyValue | Event], revision: Revision, *, whole: bool
    ) -> None:
        """Write the next piece, or several if it would be too large: the last of them is then whole.

        Raises `Conflict`: another writer has it. Also the errors of the store.
        """
        parts = _parts(changes)
        for number, part in enumerate(parts, 1):
            await self._write_piece(name, part, revision, whole=whole and number == len(parts))

    async def _write_piece(
        self, name: str, changes: Sequence[KeyValue | Event], revision: Revision, *, whole: bool
    ) -> None:
        head = Head(
            cluster=self._tier.cluster,
            snapshot=name,
            piece=self._pieces,
            revision=revision,
            whole=whole,
            written_ms=now_ms(),
        )
        data = await asyncio.to_thread(encode_piece, head, changes)
        key = piece_key(head.cluster, name, head.piece)
        self._tier.hold.check()
        said, _ = await self._tier.child.call("object_create", {"key": key}, data)
        if not said["made"]:
            raise Conflict(f"{key} exists with another content: a new snapshot is begun")
        self._pieces += 1

    async def _names(self) -> Sequence[str]:
        said, _ = await self._tier.child.call("object_names", {"folder": folder_of(self._tier.cluster)})
        return [str(each) for each in said["names"]]

    async def _delete_older(self, present: dict[str, list[str]]) -> None:
        """Delete all but the newest of the earlier snapshots. The present one is whole."""
        for name in sorted(present)[: 1 - _KEPT]:
            for key in reversed(present[name]):  # a crash leaves the begin, never the end alone
                self._tier.hold.check()
                with suppress(ClusterError):
                    await self._tier.child.call("object_delete", {"key": key})


def _parts(changes: Sequence[KeyValue | Event]) -> list[list[KeyValue | Event]]:
    """Return the changes in parts of at most `_MOST_PIECE_BYTES`, or of one larger change. At least one part."""
    parts: list[list[KeyValue | Event]] = [[]]
    size = 0
    for each in changes:
        size += len(each.value)
        if size > _MOST_PIECE_BYTES and parts[-1]:
            parts.append([])
            size = len(each.value)
        parts[-1].append(each)
    return parts
