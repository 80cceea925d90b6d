"""Let the last broker of a cluster continue alone, without etcd: `danube cluster release`, the reverse of `adoption`.

It is called for the data directory of the only broker that is left. The others were removed, so all topics are its own.
The order makes every interruption harmless. The same call continues from wherever it was killed:

1. On demand objects are copied from the shared store to the directory, and each is read back and compared.
2. The cluster's identity on etcd is marked as released to this broker. From here on no broker starts on that prefix.
3. The metadata is written to a new SQLite file and compared. Its revision, from which ids come, continues above etcd's.
4. `cluster.json` is marked when this file is complete. Then the file gets its name, and `cluster.json` another one.

Until the second step the broker may continue in the cluster, unaffected. The keys on etcd stay there for operators.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import anyio
from pydanube_core.errors import ClusterError, ClusterMismatch, Conflict
from pydanube_storage.folders import sync_folder
from pydanube_storage.metadata import (
    Absent,
    EmbeddedStore,
    ModRevision,
    Put,
    Revision,
    read_all,
)
from pydanube_storage.metadata.etcd import EtcdStore
from pydanube_storage.objects import LocalStore, ObjectStore, make_mark, newest_mark, open_store

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.bulk_writes import Say
from pydanube_broker.cluster.id_blocks import given_out
from pydanube_broker.cluster.identity import IDENTITY, Identity
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.membership import check_nobody_registered
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.cluster.records import DispatchStrategy, PartitionedRecord, TopicRecord
from pydanube_broker.cluster.removal import check_not_removed
from pydanube_broker.home.adoption import checked_folder
from pydanube_broker.home.cluster_file import CLUSTER_FILE, SQLITE, Home
from pydanube_broker.home.cluster_recovery import journal_of
from pydanube_broker.home.data_dir import DataDir
from pydanube_broker.home.metadata_home import (
    RECOVERING,
    Resident,
    broker_key,
    check_home,
    check_not_older,
    check_resident,
    options_of,
    resident_of,
    was_put_back,
)
from pydanube_broker.home.relocation import (
    read_relocated,
    relocate_objects,
    write_compared,
)
from pydanube_broker.settings.sections import Settings
from pydanube_broker.tier.metadata_witness import SCOPE, check_known, read_noted
from pydanube_broker.tier.options import store_options
from pydanube_broker.tier.ownership import Known, mark_of, place_of, write_known
from pydanube_broker.tier.tier import CLUSTER_KEY
from pydanube_broker.topics.hub import Hub

log = logging.getLogger("pydanube.cluster")

_NEW: Final = f"{SQLITE}.new"
_SHOWN: Final = 10  # maximum of topics named in an error
# Folders of objects that only several brokers need
_OF_SEVERAL: Final = (
    "owner",
    "fragments",
    "states",
    "metadata",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The result of `cluster release`, or of its dry run. `url`: the store that has the objects, from now on."""

    broker_id: str
    cluster_id: str
    url: str
    keys: int
    objects: int
    object_bytes: int


async def release(
    settings: Settings, *, copy: bool = False, dry_run: bool = False, say: Say = lambda line: None
) -> Released:
    """Make the last broker of a cluster, which is stopped, a lone one. A repeated call continues.

    Args:
        settings: `data.dir` of the broker, `metadata` and `tier` of the cluster.
        copy: objects go to the data directory. Otherwise the broker continues with the shared store.
        dry_run: check everything and count the keys and objects to move. Change nothing.
        say: gets a line at each step, before it begins.

    Raises:
        InvalidArgument, TierNotShared, MissingExtra: of the settings.
        DataDirLocked: the broker runs.
        ClusterMismatch: the directory is no broker's of this cluster, or etcd was put back.
        Conflict: there are other brokers, or topics that are not this broker's.
        ObjectMissing, CorruptObject, CorruptJournal, DiskFull, StoreUnavailable, MetadataUnavailable.
    """
    folder = checked_folder(settings)
    with DataDir(folder) as data_dir:
        home = Home.read(folder)
        if home is None or (not home.released and (folder / SQLITE).exists()):
            raise ClusterMismatch(
                f"{folder} belongs to no cluster: "
                + (
                    "start it without --metadata"
                    if home is None
                    else "danube cluster adopt was interrupted there"
                ),
                field="data.dir",
                data_dir=str(folder),
            )
        done = Released(
            broker_id=str(data_dir.broker_id),
            cluster_id=home.cluster_id,
            url=str(folder / "objects") if copy else str(settings.tier.url),
            keys=0,
            objects=0,
            object_bytes=0,
        )
        if not home.released:
            async with EtcdStore(options_of(settings)) as etcd:
                done = await _Release(settings, data_dir, home, etcd, say).run(
                    done, copy=copy, dry_run=dry_run
                )
        if dry_run:
            return done
        say(f"{_NEW} becomes {SQLITE}")
        with suppress(FileNotFoundError):  # killed after it
            (folder / _NEW).rename(folder / SQLITE)
        sync_folder(folder)
        (folder / CLUSTER_FILE).rename(folder / f"{CLUSTER_FILE}.released")
        sync_folder(folder)
        return done


class _Release:
    """One attempt to release, up to a complete file of the metadata."""

    def __init__(self, settings: Settings, data_dir: DataDir, home: Home, etcd: EtcdStore, say: Say) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._folder = data_dir.path
        self._me = BrokerId(data_dir.broker_id)
        self._home = home
        self._etcd = etcd
        self._say = say
        self._url = str(options_of(settings).address)

    async def run(self, done: Released, *, copy: bool, dry_run: bool) -> Released:
        identity, revision = await self._check_home()
        await self._check_alone()
        name = await self._etcd.get(CLUSTER_KEY)
        cluster = "" if name is None else name.value.decode()  # empty: it never had a tier
        shared = open_store(store_options(self._settings, self._folder, spool=str(self._me)))
        try:
            target: ObjectStore = LocalStore(self._folder / "objects") if copy else shared
            if cluster:
                mark = await anyio.to_thread.run_sync(newest_mark, shared, cluster, SCOPE)
                check_known(mark, await read_noted(self._etcd), shared.url)
                if not copy and not dry_run:
                    await anyio.to_thread.run_sync(self._disown, cluster)
            there: dict[str, int] = {}
            if cluster:
                there = await relocate_objects(
                    self._etcd,
                    shared if copy else None,
                    target,
                    cluster,
                    self._say,
                    dry_run=dry_run,
                    left=_OF_SEVERAL,
                )
            if dry_run:
                count = len((await self._writes())[0])
            else:
                await self._mark(identity, revision)
                count = await self._write_metadata(target, cluster, identity)
        finally:
            shared.close()
        if not dry_run:
            replace(self._home, released=True).write(self._folder)
            log.info("cluster_released", extra={"cluster_id": self._home.cluster_id})
        return replace(done, url=target.url, keys=count, objects=len(there), object_bytes=sum(there.values()))

    def _disown(self, cluster: str) -> None:
        """Delete the owner marks that a lone broker left in `objects/` before its adoption. Blocking.

        Otherwise a start without `tier.url` would take that folder for the store.
        """
        left = LocalStore(self._folder / "objects")
        for fact in list(left.list(f"{cluster}/owner")):
            left.delete(fact.key)

    async def _check_home(self) -> tuple[Identity, Revision]:
        """Return the cluster's identity and its revision. Raises `ClusterMismatch`: the directory is of another cluster, or older."""
        item = await self._etcd.get(IDENTITY)
        identity = None if item is None else Identity.of(item.value)
        if identity is not None and identity.released == str(self._me):
            identity = replace(identity, released="")  # killed in a later step
        self._say("the journal is read")
        with journal_of(self._settings, self._folder) as (hub, newest):
            check_home(self._home, identity, await given_out(self._etcd), newest, self._url, self._folder)
            await self._check_epochs(hub)
        assert item is not None
        assert identity is not None
        await check_not_older(self._etcd, self._url, self._folder)
        await check_not_removed(self._etcd, self._me)
        own = resident_of(self._data_dir, self._home.life)
        resident = await self._etcd.get(broker_key(self._me))
        if resident is not None:
            check_resident(Resident.of(resident.value), own, self._home, self._url)
        return identity, item.mod_revision

    async def _check_epochs(self, hub: Hub) -> None:
        """Raise `ClusterMismatch` if the journal has a topic in a later epoch than etcd."""
        for state in hub.states.values():
            key = keys.assignment_key(TopicId(state.topic_id))
            if state.opened and (item := await self._etcd.get(key)) is not None:
                place = Assignment.of(key, item.value)
                if state.epoch > place.epoch:
                    raise was_put_back(self._etcd.statistics().revision, self._home.revision)

    async def _check_alone(self) -> None:
        """Raise `Conflict` if the cluster has other brokers, or this one lacks some topics."""
        await check_nobody_registered(self._etcd, self._url)
        residents, _ = await read_all(self._etcd, keys.RESIDENTS)
        removed, _ = await read_all(self._etcd, keys.REMOVED)
        others = {keys.number_in_key(item.key) for item in residents} - {self._me}
        others -= {keys.number_in_key(item.key) for item in removed}
        if others:
            names = ", ".join(map(str, sorted(others)))
            raise Conflict(
                f"brokers {names} are of the cluster on {self._url}, too, and it is released to its last one. Nothing was changed. "
                "Start all, then for each of the others: danube brokers unload BROKER_ID, stop it, danube brokers remove BROKER_ID",
                field="metadata.url",
                value=self._url,
                brokers=sorted(map(str, others)),
                retryable=False,
            )
        topics, _ = await read_all(self._etcd, keys.TOPICS)
        wholes, _ = await read_all(self._etcd, keys.PARTITIONED)
        parts = [part for item in wholes for part in PartitionedRecord.of(item).parts()]
        stored_nowhere = {
            record.topic_id
            for record in (*map(TopicRecord.of, topics), *parts)
            if record.dispatch_strategy is DispatchStrategy.NON_RELIABLE
        }
        items, _ = await read_all(self._etcd, keys.ASSIGNMENTS)
        places = [Assignment.of(item.key, item.value) for item in items]
        away = sorted(
            str(place.topic)
            for place in places
            if (place.broker_id != self._me or place.stage is not Stage.SERVING)
            and place.topic_id not in stored_nowhere
        )
        if away:
            raise Conflict(
                f"topics are not with this broker yet, or on their way: {len(away)} ({', '.join(away[:_SHOWN])}). Nothing was changed. Start "
                "the broker and wait until it serves them: danube topics list",
                field="metadata.url",
                value=self._url,
                topics=away[:_SHOWN],
                retryable=False,
            )

    async def _mark(self, identity: Identity, revision: Revision) -> None:
        """Mark the prefix so that no broker starts there. Undone if this broker turns out not to be the only one."""
        self._say(f"{self._url} is released to broker {self._me}: no broker starts there any more")
        released = replace(identity, released=str(self._me))
        marked = await self._etcd.transact(
            [Put(IDENTITY, released.to_json())],
            guards=[ModRevision(IDENTITY, revision), Absent(RECOVERING)],
        )
        try:
            await self._check_alone()  # a broker may have started while objects were copied
        except ClusterError:
            await self._etcd.transact(
                [Put(IDENTITY, identity.to_json())], guards=[ModRevision(IDENTITY, marked)]
            )
            raise

    async def _writes(self) -> tuple[list[Put], Revision]:
        """Return the lone broker's metadata, and etcd's revision."""

        def is_of_several(key: str) -> bool:
            own = (CLUSTER_KEY, keys.incarnation_key(self._me))
            return key not in own and (key in keys.OF_SEVERAL or key in keys.INCARNATIONS)

        return await read_relocated(self._etcd, is_of_several, audit_from=self._me, audit_to=None)

    async def _write_metadata(self, target: ObjectStore, cluster: str, identity: Identity) -> int:
        writes, revision = await self._writes()
        self._say(f"{len(writes)} keys of the metadata go to {self._folder / _NEW}")
        for file in self._folder.glob(f"{_NEW}*"):
            file.unlink()
        async with EmbeddedStore(self._folder / _NEW, first_revision=revision) as alone:
            await alone.raise_format(identity.metadata_format)
            await write_compared(alone, writes, where=str(self._folder / _NEW))
            if cluster:
                life = secrets.token_hex(8)
                former = await anyio.to_thread.run_sync(newest_mark, target, cluster)
                following = 1 + (0 if former is None else former.incarnation)
                await write_known(alone, "", Known(incarnation=following, life=life))
                mark = mark_of(
                    following,
                    life,
                    place=place_of(self._folder),
                    broker_id=str(self._me),
                    data_dir=str(self._folder),
                )
                await anyio.to_thread.run_sync(make_mark, target, cluster, mark)
        return len(writes)
