"""Marks of the metadata in the store, so that no older state of etcd, and no second etcd, writes to the same objects.

Once a minute, if the metadata have changed, one broker leaves a mark in the store,
`<cluster>/owner/metadata/<revision>.json`. Before that, it notes the mark's number and life in etcd (`/tier/metadata`).
So an etcd without the newest mark is not the one that it was made from: it was restored from an older snapshot, or it
is the original and another one, restored from its snapshot, is used beside it. Every broker checks, at its start and
every ten seconds. `cluster_recovery` notes the newest mark in etcd.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import ClusterMismatch
from pydanube_storage.metadata import Absent, GuardFailed, MetadataStore, ModRevision, Put, Revision
from pydanube_storage.objects import OwnerMark

from pydanube_broker.tier.ownership import mark_of

SCOPE: Final = "metadata"
_KEY: Final = "/tier/metadata"
_KEPT: Final = 64  # marks that etcd remembers: a broker that noted one has an hour to make it
EVERY_S: Final = 60.0
_LIFE_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """The marks noted in the metadata, ascending, and the revisions at which they were read and written."""

    marks: tuple[tuple[int, str], ...]
    read_at: Revision
    written_at: Revision | None  # None: there is no such key yet

    def knows(self, mark: OwnerMark) -> bool:
        """Return whether the mark was made from these metadata.

        A mark older than all noted ones counts as made from them: the store takes no new ones, or was itself restored.
        """
        older = bool(self.marks) and mark.incarnation < self.marks[0][0]
        return older or (mark.incarnation, mark.life) in self.marks


async def read_noted(metadata: MetadataStore) -> Noted:
    """Read the marks noted in the metadata."""
    item = await metadata.get(_KEY)
    read_at = metadata.statistics().revision
    if item is None:
        return Noted(marks=(), read_at=read_at, written_at=None)
    marks = tuple((int(number), str(life)) for number, life in json.loads(item.value))
    return Noted(marks=marks, read_at=read_at, written_at=item.mod_revision)


async def note(metadata: MetadataStore, noted: Noted, number: int, life: str) -> None:
    """Note one more mark in the metadata. Raises `GuardFailed`: another broker has noted one since."""
    marks = [*noted.marks, (number, life)][-_KEPT:]
    guard = Absent(_KEY) if noted.written_at is None else ModRevision(_KEY, noted.written_at)
    await metadata.transact([Put(_KEY, json.dumps(marks).encode())], guards=[guard])


def check_known(newest: OwnerMark | None, noted: Noted, url: str) -> None:
    """Raise `ClusterMismatch` if the newest mark of the store at `url` was not made from these metadata. Pure."""
    if newest is None or noted.knows(newest):
        return
    raise ClusterMismatch(
        f"etcd, at revision {noted.read_at}, has no record of the write to {url} at revision {newest.incarnation} "
        f"({newest.named}): etcd was restored from an older snapshot, or brokers on another etcd, made of a snapshot, write "
        "there too. No object is written or deleted from here. Stop the brokers on one of the two, or restore etcd from a "
        "newer snapshot. To go on with an etcd as it is: danube cluster recover DATA_DIR --metadata URL, for the directory of "
        "each of its brokers",
        field="metadata.url",
        store=url,
        revision=noted.read_at,
        marked=newest.incarnation,
    )


class MetadataWitness:
    """Checks and writes the marks. Single user: the loop.

    Args:
        newest, make: read the newest mark of the store, and make one, with the errors of stores.
        me: the broker's id and data directory, for people.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        url: str,
        *,
        newest: Callable[[], Awaitable[OwnerMark | None]],
        make: Callable[[OwnerMark], Awaitable[object]],
        me: tuple[str, str],
        monotonic: Callable[[], float],
    ) -> None:
        self._metadata = metadata
        self._url = url
        self._newest = newest
        self._make = make
        self._me = me
        self._monotonic = monotonic
        self._seen: OwnerMark | None = None
        self._due_s = float("-inf")  # a start changes metadata: it leaves a mark immediately

    async def look(self) -> None:
        """Check that the newest mark was made from these metadata, and write one if that is due.

        Raises `ClusterMismatch` if it was not, and the errors of store and metadata.
        """
        # Before the metadata are read: a mark that is made now is noted by then
        newest = await self._newest()
        noted = await read_noted(self._metadata)
        check_known(newest, noted, self._url)
        if newest is not None and newest != self._seen and self._seen is not None:
            self._due_s = self._monotonic() + EVERY_S  # another broker has just left one
        self._seen = newest
        # More than the change by the mark itself
        has_changed = newest is None or noted.read_at > newest.incarnation + 1
        if has_changed and self._monotonic() >= self._due_s:
            self._due_s = self._monotonic() + EVERY_S
            await self._leave(noted)

    async def _leave(self, noted: Noted) -> None:
        broker_id, data_dir = self._me
        mark = mark_of(
            max((noted.read_at, *(number + 1 for number, _ in noted.marks))),
            secrets.token_hex(_LIFE_BYTES),
            place="",
            broker_id=broker_id,
            data_dir=data_dir,
        )
        with suppress(GuardFailed):  # another broker leaves one concurrently
            await note(self._metadata, noted, mark.incarnation, mark.life)
            await self._make(mark)
            self._seen = mark
