"""The format of the metadata: which builds may use it, and when it may be raised.

Brokers are replaced one by one, so for a time builds of two formats share the metadata. A broker announces in its member
record the highest format that it reads and writes. The leader raises the format once every broker that may read the
metadata announces it (`holding_up`). Before anything of the new format is written, builds without it are kept from
starting (`refuse_older_builds`).

A build of format 1 reads one of two records at its start, before it changes anything:

* On etcd it reads `/cluster/identity`, and refuses if the field `released` names a broker.
* Beside the journal it reads the version of the SQLite file, and refuses with `FORMAT_TOO_NEW`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from pydanube_core.errors import ClusterMismatch
from pydanube_storage.metadata import KeyValue, MetadataStore
from pydanube_storage.metadata.shell import StoreShell

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.identity import IDENTITY, Identity
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.records import Change, change

METADATA_FORMAT: Final = 2  # the highest that this build reads and writes


def object_format(metadata_format: int) -> int:
    """Return the highest format of objects that all builds of a metadata format read. Pure.

    The formats are those of `pydanube_storage.parquet.columns`, which a broker without pyarrow cannot import.
    """
    return 1 if metadata_format < 2 else 2


class Announced(Protocol):
    """A member, as far as the gate looks at it."""

    @property
    def metadata_format(self) -> int: ...


def holding_up(
    members: Mapping[BrokerId, Announced],
    owners: Iterable[BrokerId],
    removed: Collection[BrokerId],
) -> set[BrokerId]:
    """Return the brokers that do not announce the format. If there are none, it may be raised. Pure.

    Args:
        members: the brokers that are registered.
        owners: of assignments, and brokers that `are_starting`. One that is stopped announces nothing.
        removed: brokers that may not start again.
    """
    below = {broker for broker, member in members.items() if member.metadata_format < METADATA_FORMAT}
    return (below | (set(owners) - members.keys())) - set(removed)


def are_starting(residents: Iterable[KeyValue], incarnations: Iterable[KeyValue]) -> set[BrokerId]:
    """Return the brokers that have read the identity, and have not registered since. Pure.

    A start claims its directory on the prefix (`keys.RESIDENTS`), guarded by the identity, and then registers under a new
    incarnation. So a start that `refuse_older_builds` does not stop is found here until it is a member.
    """
    registered = {keys.number_in_key(each.key): each.mod_revision for each in incarnations}
    return {
        BrokerId(number)
        for each in residents
        if each.mod_revision > registered.get(number := keys.number_in_key(each.key), 0)
    }


async def refuse_older_builds(store: MetadataStore) -> None:
    """Keep builds without a format from starting on these metadata. Idempotent, and durable on return.

    Raises:
        StoreUnavailable: it may have happened. Call it again.
        ClusterMismatch: the cluster was released in this moment.
    """
    if isinstance(store, StoreShell):
        await store.raise_format(METADATA_FORMAT)
        return

    async def decide(change: Change) -> None:
        item = await change.read(IDENTITY)
        identity = None if item is None else Identity.of(item.value)
        if identity is None or identity.released:
            raise ClusterMismatch(
                "the cluster has no identity, or was released: its metadata stay as they are"
            )
        if identity.metadata_format < METADATA_FORMAT:
            change.put(IDENTITY, replace(identity, metadata_format=METADATA_FORMAT).to_json())

    await change(store, decide)
