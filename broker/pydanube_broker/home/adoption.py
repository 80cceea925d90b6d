"""A lone broker becomes the first broker of a cluster: `danube cluster adopt`.

The order makes every interruption harmless. The same call continues from wherever it was killed:

1. Objects are copied to the store that the cluster shares, and each is read back and compared.
2. The empty prefix on etcd is marked as this directory's (`/cluster/adopting`), and the metadata is written there.
3. `cluster.json` in the directory names the cluster. From here on the broker starts neither alone nor on etcd.
4. One transaction makes the prefix that cluster.
5. The SQLite file of the metadata is renamed. The directory now belongs to a broker of the cluster.

Until the third step the broker may continue alone, unaffected. Ids stay as they are, because the journal has them. So
that no id is assigned twice, etcd's revision, from which ids come, is raised above the lone broker's before the fourth
step.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from pydanube_core.errors import ClusterMismatch, InvalidArgument
from pydanube_storage.folders import sync_folder
from pydanube_storage.metadata import (
    Absent,
    Delete,
    DeleteRange,
    EmbeddedStore,
    GuardFailed,
    KeyRange,
    MetadataStore,
    Put,
)
from pydanube_storage.metadata.etcd import EtcdStore
from pydanube_storage.objects import LocalStore, open_store, store_identity

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.bulk_writes import Say, raise_revision
from pydanube_broker.cluster.identity import IDENTITY, Identity
from pydanube_broker.home.cluster_file import SQLITE, Home
from pydanube_broker.home.data_dir import DataDir, read_format
from pydanube_broker.home.metadata_home import ADOPTING, check_settings, options_of
from pydanube_broker.home.relocation import (
    read_relocated,
    relocate_objects,
    write_compared,
)
from pydanube_broker.settings.sections import EMBEDDED, Settings
from pydanube_broker.tier.options import missing_extra, store_options
from pydanube_broker.tier.ownership import OWNER, TIER, is_store
from pydanube_broker.tier.tier import CLUSTER_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The result of `cluster adopt`, or of its dry run.

    `objects` and `object_bytes` include objects that were in the shared store before. `cluster_id` is empty for a dry
    run until an attempt has named the cluster.
    """

    broker_id: str
    cluster_id: str
    metadata: str
    keys: int
    objects: int
    object_bytes: int


async def adopt(settings: Settings, *, dry_run: bool = False, say: Say = lambda line: None) -> Adopted:
    """Move a stopped lone broker to etcd and a shared store. A repeated call continues, or finds everything done.

    Args:
        settings: `data.dir` of the broker, `metadata` and `tier` of the cluster.
        dry_run: check everything and count the keys and objects to move. Change nothing.
        say: gets a line at each step, before it begins.

    Raises:
        InvalidArgument, TierNotShared, MissingExtra: of the settings.
        DataDirLocked: the broker runs.
        ClusterMismatch: it is no lone broker's, or the prefix is not empty.
        ObjectMissing, CorruptObject: of objects that the broker lists.
        StoreUnavailable, MetadataUnavailable.
    """
    folder = checked_folder(settings)
    with DataDir(folder) as data_dir:
        home = Home.read(folder)
        if not (folder / SQLITE).exists():
            raise ClusterMismatch(
                f"{folder} has no broker in it yet"
                if home is None
                else f"{folder} belongs to the cluster on {home.metadata} already: start it with --metadata {home.metadata}",
                field="data.dir",
                data_dir=str(folder),
            )
        options = options_of(settings)
        if home is not None and home.metadata != str(options.address):
            raise ClusterMismatch(
                f"the move of {folder} to {home.metadata} was interrupted and may be complete: "
                f"go on with --metadata {home.metadata}",
                field="metadata.url",
                value=str(options.address),
            )
        async with EtcdStore(options) as etcd:
            move = _Move(
                settings, data_dir, etcd, home or Home(cluster_id=secrets.token_hex(8), metadata=""), say
            )
            if await move.is_a_cluster():  # killed in the last step
                moved = Adopted(
                    broker_id=str(data_dir.broker_id),
                    cluster_id=move.cluster_id,
                    metadata=str(options.address),
                    keys=0,
                    objects=0,
                    object_bytes=0,
                )
            else:
                async with EmbeddedStore(folder / SQLITE) as lone:
                    moved = await move.run(lone, dry_run=dry_run)
        if dry_run:
            return replace(moved, cluster_id=home.cluster_id if home else "")
        say(f"{folder / SQLITE} becomes {SQLITE}.adopted")
        for file in folder.glob(f"{SQLITE}*"):
            if not file.name.endswith(".adopted"):
                file.rename(file.with_name(f"{file.name}.adopted"))
        sync_folder(folder)
        return moved


def checked_folder(settings: Settings) -> Path:
    """Check the stopped broker's directory in the settings, and return it. Nothing is opened. Raises as `adopt`."""
    if settings.metadata.url == EMBEDDED or settings.data.dir is None:
        raise InvalidArgument(
            "give the address of the cluster's metadata: --metadata etcd://host:2379/prefix",
            field="metadata.url",
            value=settings.metadata.url,
        )
    check_settings(settings)
    folder = settings.data.dir.expanduser().absolute()
    if not folder.is_dir() or read_format(folder) is None:
        raise InvalidArgument(
            f"{folder} is no data directory of a broker: name one that a broker has used",
            field="data.dir",
            value=str(folder),
        )
    missing = missing_extra(store_options(settings, folder))
    if missing is not None:
        raise missing
    return folder


class _Move:
    """One attempt to adopt. `home`: has the cluster's id, the same in every attempt."""

    def __init__(self, settings: Settings, data_dir: DataDir, etcd: EtcdStore, home: Home, say: Say) -> None:
        self._folder = data_dir.path
        self._broker_id = data_dir.broker_id
        self._etcd = etcd
        self._home = home
        self.cluster_id = home.cluster_id
        self._say = say
        self._url = str(options_of(settings).address)
        self._store_options = store_options(settings, data_dir.path, spool=str(data_dir.broker_id))
        self._mark = json.dumps(
            {"broker_id": str(data_dir.broker_id), "data_dir": str(data_dir.path)}
        ).encode()

    async def is_a_cluster(self) -> bool:
        """Return whether an earlier attempt made the prefix this directory's cluster.

        Raises `ClusterMismatch`: it is another's.
        """
        identity, mark = await self._etcd.get(IDENTITY), await self._etcd.get(ADOPTING)
        if identity is not None and Identity.of(identity.value).cluster_id == self.cluster_id:
            return True
        if identity is None and mark is not None and mark.value == self._mark:
            return False
        page = await self._etcd.range(KeyRange.prefix("/"), limit=1)
        if page.items:
            what = "another cluster" if identity is not None else "something else"
            raise ClusterMismatch(
                f"{self._url} holds {what} ({page.items[0].key}). Nothing was changed. A lone broker moves to an empty prefix of its "
                "own: choose another --metadata. Other brokers join it there afterwards. Two clusters cannot be merged, because both "
                "have given out the same ids: let producers write to the other cluster, and consumers read this one to the end",
                field="metadata.url",
                value=self._url,
            )
        return False

    async def run(self, lone: EmbeddedStore, *, dry_run: bool) -> Adopted:
        """Do everything except the last step, which makes the prefix a cluster."""
        objects, size, is_known = await self._copy_objects(lone, dry_run=dry_run)
        # Keys of this one life of the broker, and keys that have a different value on etcd.
        of_alone = keys.Trees(keys.MEMBERS, keys.only(keys.LEADER), keys.only(OWNER) if is_known else TIER)
        writes, revision = await read_relocated(
            lone, lambda key: key in of_alone, audit_from=None, audit_to=self._broker_id
        )
        if not dry_run:
            self._say(f"{len(writes)} keys of the metadata go to {self._url}")
            await self._write_metadata(writes)
            await raise_revision(self._etcd, revision, Put(ADOPTING, self._mark), self._say)
            replace(self._home, metadata=self._url).write(self._folder)
            self._say(f"{self._url} becomes cluster {self.cluster_id}")
            identity = Identity(cluster_id=self.cluster_id, metadata_format=await lone.raise_format(1))
            await self._etcd.transact(
                [Put(IDENTITY, identity.to_json()), Delete(ADOPTING)], guards=[Absent(IDENTITY)]
            )
        return Adopted(
            broker_id=str(self._broker_id),
            cluster_id=self.cluster_id,
            metadata=self._url,
            keys=len(writes),
            objects=objects,
            object_bytes=size,
        )

    async def _copy_objects(self, lone: MetadataStore, *, dry_run: bool) -> tuple[int, int, bool]:
        """Copy the objects.

        Returns:
            Their number and their bytes in the shared store, and whether the metadata named that store before.
        """
        name = await lone.get(CLUSTER_KEY)
        if name is None:
            return 0, 0, False  # it never had a tier
        cluster = name.value.decode()
        target = open_store(self._store_options)
        try:
            own = self._folder / "objects"
            source = LocalStore(own) if (own / cluster).is_dir() else None
            there = await relocate_objects(lone, source, target, cluster, self._say, dry_run=dry_run)
            store_id = await anyio.to_thread.run_sync(store_identity, target, cluster, "")
        finally:
            target.close()
        return len(there), sum(there.values()), await is_store(lone, store_id)

    async def _write_metadata(self, writes: list[Put]) -> None:
        """Write the metadata and the mark to the prefix. They replace the results of an earlier attempt."""
        with suppress(GuardFailed):  # marked before
            await self._etcd.transact(
                [Put(ADOPTING, self._mark)], guards=[Absent(IDENTITY), Absent(ADOPTING)]
            )
        await self.is_a_cluster()  # or by another broker, while objects were copied
        everything = KeyRange.prefix("/")
        only_mark = keys.only(ADOPTING)
        await self._etcd.transact(
            [
                DeleteRange(KeyRange(start=everything.start, end=only_mark.start)),
                DeleteRange(KeyRange(start=only_mark.end, end=everything.end)),
            ],
            guards=[Absent(IDENTITY)],
        )
        await write_compared(self._etcd, writes, where=self._url, mark=ADOPTING)
