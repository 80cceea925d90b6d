"""Ownership of the store: one start of one data directory at a time may write and delete there.

Each start marks the store as its own (`objects.owner`) before it writes there, one incarnation higher than the mark in
the store and the one recorded in its metadata. The mark in the store decides:

| the store's mark | meaning | action of the start |
|---|---|---|
| ours, this directory | the last start | continues |
| ours, another directory | this directory is a copy of it, or was moved | refuses, naming the other |
| newer than ours | this directory is older than the objects: a restored backup | refuses, or adopts the newer objects |
| none, but the catalog lists objects | emptied, not mounted, another bucket | writes nothing, reports it |

Several brokers on one metadata store share the objects. Each has marks of its own, below its id, and the catalog's
epochs decide which broker may change which topic's objects.

A store inside the data directory moves with the directory and belongs to the holder of the directory's lock: there a
newer mark leads to adoption. `tier.take_over`, set to the incarnation of the mark, decides the other cases: the owner
is gone for good. An owner that finds a mark above its own stops writing.

The decision is pure (`judge`). A mark is a claim (`cluster.claim`) that is noted in the metadata.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydanube_core.errors import Conflict, StoreOwned
from pydanube_core.known_fields import known_fields
from pydanube_storage.metadata import Absent, GuardFailed, KeyRange, MetadataStore, ModRevision, Put, Revision
from pydanube_storage.objects import OwnerMark

from pydanube_broker.cluster.claim import Claim

log = logging.getLogger("pydanube.tier")

TIER: Final = KeyRange.prefix("/tier/")  # the metadata's records of its store
OWNER: Final = "/tier/owner"
_STORE: Final = "/tier/store"


class StoreOwnership(StrEnum):
    CLAIM = "claim"
    ADOPT = "adopt"  # and claim: newer objects are first added to the catalog
    EMPTY = "empty"
    OTHER = "other"
    NEWER = "newer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The directory's record of its store: the incarnation it took last, and the one it was about to take."""

    incarnation: int
    life: str
    next_incarnation: int = 0
    next_life: str = ""

    @classmethod
    def of(cls, value: bytes) -> Known:
        return cls(**known_fields(cls, json.loads(value)))

    @property
    def claim(self) -> Claim[tuple[int, str]]:
        """The incarnations and lives under which the directory may have marked the store."""
        return Claim(held=(self.incarnation, self.life), begun=(self.next_incarnation, self.next_life))

    @classmethod
    def claiming(cls, claim: Claim[tuple[int, str]]) -> Known:
        """Return the record of a claim."""
        incarnation, life = claim.held or (0, "")
        next_incarnation, next_life = claim.begun or (0, "")
        return cls(incarnation=incarnation, life=life, next_incarnation=next_incarnation, next_life=next_life)

    def took(self, mark: OwnerMark) -> bool:
        """Return whether the mark is of a start of this directory."""
        return (mark.incarnation, mark.life) in self.claim


def judge(
    mark: OwnerMark | None,
    known: Known | None,
    *,
    place: str,
    inside: bool,
    objects_listed: bool,
    take_over: int | None,
) -> StoreOwnership:
    """Judge by the module's table. Pure.

    Args:
        inside: the store is in the data directory.
        objects_listed: the catalog has objects that should be there.
        take_over: the incarnation whose owner is declared gone for good. 0: the objects are.
    """
    if mark is None:
        lost = known is not None and objects_listed
        return StoreOwnership.EMPTY if lost and take_over != 0 else StoreOwnership.CLAIM
    if known is not None and known.took(mark):
        same = inside or mark.place == place or take_over == mark.incarnation
        return StoreOwnership.CLAIM if same else StoreOwnership.OTHER
    if known is not None and mark.incarnation < known.incarnation:
        return StoreOwnership.CLAIM  # an older state of the store: reads report missing objects
    if inside or take_over == mark.incarnation:
        return StoreOwnership.ADOPT
    return StoreOwnership.NEWER


def refusal(verdict: StoreOwnership, mark: OwnerMark, url: str) -> StoreOwned:
    """Return the error of a broker that may not have the store, with the remedy."""
    why = (
        "this data directory is a copy of that one, or was moved"
        if verdict is StoreOwnership.OTHER
        else "this data directory is older than that, like a restored backup. The newer objects are kept"
    )
    return StoreOwned(
        f"the objects in {url} belong to {mark.named}: {why}. If that broker is gone for good, start with "
        f"DANUBE_TIER__TAKE_OVER={mark.incarnation}, once: newer objects are adopted. Else give this one a tier.url of its own",
        field="tier.url",
        value=url,
        incarnation=mark.incarnation,
        owner=mark.broker_id,
        data_dir=mark.data_dir,
        host=mark.host,
    )


def place_of(data_dir: Path) -> str:
    """Return the inode number of a file that is written once. It differs between a directory and its copy."""
    stat = (data_dir / "format.json").stat()
    return str(stat.st_ino)


def mark_of(incarnation: int, life: str, *, place: str, broker_id: str, data_dir: str) -> OwnerMark:
    """Return the mark of this process."""
    return OwnerMark(
        incarnation=incarnation,
        life=life,
        place=place,
        broker_id=broker_id,
        host=socket.gethostname(),
        data_dir=data_dir,
        pid=os.getpid(),
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )


async def read_known(metadata: MetadataStore, scope: str) -> Known | None:
    """Read this broker's record of its store. None also if it cannot be read: then the mark in the store decides.

    `scope`: the broker's id if several share metadata and store, each with marks of its own, else empty.
    """
    item = await metadata.get(_key(scope))
    try:
        return None if item is None else Known.of(item.value)
    except (ValueError, TypeError) as error:
        log.warning("tier_owner_unreadable", extra={"error": str(error)})
        return None


async def write_known(metadata: MetadataStore, scope: str, known: Known) -> None:
    """Write this broker's record of its store."""
    await metadata.transact([Put(_key(scope), json.dumps(asdict(known)).encode())])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreName:
    """The name of the store that the brokers of a cluster share, as in the metadata.

    `giver`: the broker that is about to write it to the store. None: it is written.
    """

    store_id: str
    giver: str | None
    revision: Revision


async def store_name(metadata: MetadataStore, broker_id: str, proposed: str) -> StoreName:
    """Return the name of the cluster's store. If it has none, this broker is to give it the proposed one."""
    value = f"{proposed} {broker_id}".encode()
    with contextlib.suppress(GuardFailed):
        revision = await metadata.transact([Put(_STORE, value)], guards=[Absent(_STORE)])
        return StoreName(store_id=proposed, giver=broker_id, revision=revision)
    item = await metadata.get(_STORE)
    if item is None:
        raise Conflict("the name of the cluster's store was deleted in this moment: start again")
    store_id, _, giver = item.value.decode().partition(" ")
    return StoreName(store_id=store_id, giver=giver or None, revision=item.mod_revision)


async def note_name(metadata: MetadataStore, name: StoreName, store_id: str, giver: str | None) -> None:
    """Record the store's name, or the broker that is to write it, unless another broker has changed the record."""
    value = store_id if giver is None else f"{store_id} {giver}"
    with contextlib.suppress(GuardFailed):
        await metadata.transact([Put(_STORE, value.encode())], guards=[ModRevision(_STORE, name.revision)])


async def is_store(metadata: MetadataStore, store_id: str) -> bool:
    """Return whether brokers on these metadata last used the store of that name."""
    item = await metadata.get(_STORE)
    return item is not None and bool(store_id) and item.value.decode().partition(" ")[0] == store_id


def _key(scope: str) -> str:
    return f"{OWNER}/{scope}" if scope else OWNER
