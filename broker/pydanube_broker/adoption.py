"""A lone broker becomes the first broker of a cluster: `danube cluster adopt`.

The order makes every interruption harmless; the same call goes on from wherever it was killed:

1. Objects are copied to the store that the cluster shares, and each is read back and compared.
2. The prefix on etcd, which is empty, is marked as this directory's (`/cluster/adopting`), and the metadata is written there.
3. `cluster.json` in the directory names the cluster. From here on it starts neither alone nor on etcd.
4. One transaction makes the prefix that cluster.
5. The SQLite file of the metadata gets another name: the directory is a broker's of the cluster.

Up to the third step the broker may go on alone as if nothing had happened. Ids stay as they are, since the journal has them; that
none is given out again, etcd's revision, from which ids come, is raised above the lone broker's before the fourth.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from pydanube_core.errors import ClusterMismatch, CorruptObject, InvalidArgument, ObjectMissing
from pydanube_core.names import AUDIT_TOPIC, TopicName
from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.folders import sync_folder
from pydanube_storage.metadata import (
    Absent,
    Delete,
    DeleteRange,
    EmbeddedStore,
    KeyRange,
    KeyValue,
    MetadataStore,
    Put,
    read_all,
)
from pydanube_storage.metadata.etcd import EtcdStore
from pydanube_storage.objects import LocalStore, ObjectStore, open_store

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import AssignmentRecord
from pydanube_broker.cluster.bulk_writes import Say, parts, raise_revision
from pydanube_broker.cluster.records import PartitionedSpec, SubscriptionSpec, TopicSpec
from pydanube_broker.data_dir import DataDir, read_format
from pydanube_broker.metadata_home import (
    ADOPTING,
    IDENTITY,
    SQLITE,
    Home,
    Identity,
    check_settings,
    options_of,
)
from pydanube_broker.schema.keys import SUBJECTS
from pydanube_broker.schema.records import SubjectSpec
from pydanube_broker.settings import EMBEDDED, Settings
from pydanube_broker.tier.options import missing_extra, store_options
from pydanube_broker.tier.tier import CLUSTER_KEY
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.cluster")

_LONE: Final = (  # what was true of that one life of the broker, or is another's on etcd
    keys.MEMBERS,
    keys.only(keys.LEADER),
    keys.only("/tier/owner"),
)
_AUDIT_STATE: Final = "/admin/audit/"
_PIECE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What was moved. `objects`: in the shared store, those that were there already among them."""

    broker_id: str
    cluster_id: str
    metadata: str
    keys: int
    objects: int
    object_bytes: int


async def adopt(settings: Settings, *, say: Say = lambda line: None) -> Adopted:
    """Move a lone broker that is stopped to etcd and a shared store. Called again it goes on, or finds all done.

    Args:
        settings: `data.dir` of the broker; `metadata` and `tier` of the cluster.
        say: gets a line at each step, before it begins.

    Raises:
        InvalidArgument, TierNotShared, MissingExtra: of the settings.
        DataDirLocked: the broker runs. ClusterMismatch: it is no lone broker's, or the prefix is not empty.
        ObjectMissing, CorruptObject: of objects that the broker lists. StoreUnavailable, MetadataUnavailable.
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
                f"{folder} was about to become the cluster on {home.metadata} when that was interrupted, and may be it by now: "
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
                    moved = await move.run(lone)
        say(f"{folder / SQLITE} becomes {SQLITE}.adopted")
        for file in folder.glob(f"{SQLITE}*"):
            if not file.name.endswith(".adopted"):
                file.rename(file.with_name(f"{file.name}.adopted"))
        sync_folder(folder)
        return moved


def checked_folder(settings: Settings) -> Path:
    """The directory that the settings name, of a broker that is stopped. Raises what `adopt` raises of settings; nothing is opened."""
    if settings.metadata.url == EMBEDDED or settings.data.dir is None:
        raise InvalidArgument(
            "say where the cluster's metadata is: --metadata etcd://host:2379/prefix",
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
    """One attempt. `home`: under which id the cluster is made, and was if this attempt is not the first."""

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
        """Whether the prefix became this directory's cluster already. Raises `ClusterMismatch`: it is another."""
        identity, mark = await self._etcd.get(IDENTITY), await self._etcd.get(ADOPTING)
        if identity is not None and Identity.of(identity.value).cluster_id == self.cluster_id:
            return True
        if identity is None and mark is not None and mark.value == self._mark:
            return False
        page = await self._etcd.range(KeyRange.prefix("/"), limit=1)
        if page.items:
            what = "another cluster" if identity is not None else "something else"
            raise ClusterMismatch(
                f"{self._url} holds {what} ({page.items[0].key}). Nothing was changed. A lone broker is moved to a prefix of its own, "
                "which is empty: choose another --metadata; other brokers join it there afterwards. Two clusters are not made one, as "
                "both have given out the same ids: let its producers go to the other, and its consumers read here to the end",
                field="metadata.url",
                value=self._url,
            )
        return False

    async def run(self, lone: MetadataStore) -> Adopted:
        """Do everything up to where the prefix is the cluster, which it is not yet."""
        items, revision = await read_all(lone, KeyRange.prefix("/"))
        objects, size = await self._copy_objects(lone)
        writes = list(moved(items, self._broker_id))
        self._say(f"{len(writes)} keys of the metadata go to {self._url}")
        await self._write_metadata(writes)
        await raise_revision(self._etcd, revision, Put(ADOPTING, self._mark), self._say)
        replace(self._home, metadata=self._url).write(self._folder)
        self._say(f"{self._url} becomes cluster {self.cluster_id}")
        identity = Identity(cluster_id=self.cluster_id)
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

    async def _copy_objects(self, lone: MetadataStore) -> tuple[int, int]:
        name = await lone.get(CLUSTER_KEY)
        if name is None:
            return 0, 0  # it never had a tier
        cluster = name.value.decode()
        target = open_store(self._store_options)
        try:
            listed = partial(_sizes, target, cluster)
            if (self._folder / "objects" / cluster).is_dir():
                self._say(f"objects go to {target.url}")
                source = LocalStore(self._folder / "objects")
                await anyio.to_thread.run_sync(_copy, source, target, cluster, self._say)
            there = await anyio.to_thread.run_sync(listed)
        finally:
            target.close()
        await _check_listed(ObjectCatalog(lone, wall_ms=now_ms), there, target.url)
        return len(there), sum(there.values())

    async def _write_metadata(self, writes: list[Put]) -> None:
        """The prefix holds these and the mark, and nothing that an earlier attempt left."""
        mark = await self._etcd.get(ADOPTING)
        if mark is None:
            await self._etcd.transact(
                [Put(ADOPTING, self._mark)], guards=[Absent(IDENTITY), Absent(ADOPTING)]
            )
        everything = KeyRange.prefix("/")
        only_mark = keys.only(ADOPTING)
        await self._etcd.transact(
            [
                DeleteRange(KeyRange(start=everything.start, end=only_mark.start)),
                DeleteRange(KeyRange(start=only_mark.end, end=everything.end)),
            ],
            guards=[Absent(IDENTITY)],
        )
        for part in parts(writes):
            await self._etcd.transact(part)
        found, _ = await read_all(self._etcd, everything)
        if {each.key: each.value for each in found if each.key != ADOPTING} != {
            each.key: each.value for each in writes
        }:
            raise ClusterMismatch(
                f"{self._url} does not hold what was written there: somebody else writes there too. Choose a prefix of its own",
                field="metadata.url",
                value=self._url,
            )


def moved(items: Iterable[KeyValue], broker_id: int) -> Iterator[Put]:
    """A lone broker's metadata as one of several has it: with ids in place of create revisions, and an audit of its own. Pure."""
    own_audit = TopicName.parse(f"{AUDIT_TOPIC}-{broker_id}")
    audit = TopicName.parse(AUDIT_TOPIC)
    renamed = {
        keys.topic_key(audit): keys.topic_key(own_audit),
        keys.epoch_key(audit): keys.epoch_key(own_audit),
    }
    for item in items:
        key, value = item.key, item.value
        if item.lease_id is not None or any(key in left for left in _LONE):
            continue
        if key in keys.TOPICS:
            topic = TopicSpec.from_json(value, key=key)
            name = str(own_audit) if topic.name == str(audit) else topic.name
            value = replace(topic, name=name, identity=topic.identity or item.create_revision).to_json()
        elif key in keys.PARTITIONED:
            parent = PartitionedSpec.from_json(value, key=key)
            value = replace(parent, identity=parent.identity or item.create_revision).to_json()
        elif key in keys.SUBSCRIPTIONS:
            one = SubscriptionSpec.from_json(value, key=key)
            name = str(own_audit) if one.topic == str(audit) else one.topic
            value = replace(one, topic=name, identity=one.identity or item.create_revision).to_json()
        elif key in SUBJECTS:
            subject = SubjectSpec.from_json(value, key=key)
            value = replace(subject, identity=subject.identity or item.create_revision).to_json()
        elif key in keys.ASSIGNMENTS:
            place = AssignmentRecord.from_json(value, key=key)
            if place.topic == str(audit):
                value = replace(place, topic=str(own_audit)).to_json()
        elif key.startswith(_AUDIT_STATE):
            key = f"{_AUDIT_STATE}{broker_id}/{key.removeprefix(_AUDIT_STATE)}"
        yield Put(renamed.get(key, key), value)


def _sizes(store: ObjectStore, cluster: str) -> dict[str, int]:
    return {each.key: each.bytes for each in store.list(cluster)}


def _copy(source: ObjectStore, target: ObjectStore, cluster: str, say: Say) -> None:
    """Copy what is below `cluster`, but for whose it is; what is there already is compared, and stays. Blocking."""
    there = _sizes(target, cluster)
    done = 0
    for fact in source.list(cluster):
        if fact.key.startswith(f"{cluster}/owner/"):
            continue
        if fact.key not in there:
            target.put(fact.key, source.read(fact.key, 0, fact.bytes))
        if there.get(fact.key, fact.bytes) != fact.bytes or _digest(target, fact.key, fact.bytes) != _digest(
            source, fact.key, fact.bytes
        ):
            raise CorruptObject(
                f"{fact.key} in {target.url} is not what it is in {source.url}: choose a tier.url that is empty, or remove that object there",
                store=target.url,
                key=fact.key,
                cause="adopt",
            )
        done += 1
        if done % 1000 == 0:
            say(f"{done} objects are in {target.url}")


def _digest(store: ObjectStore, key: str, size: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, size, _PIECE_BYTES):
        digest.update(store.read(key, start, min(size, start + _PIECE_BYTES)))
    return digest.hexdigest()


async def _check_listed(catalog: ObjectCatalog, there: dict[str, int], url: str) -> None:
    """Raise `ObjectMissing` where the catalog has an object that the cluster's store has not."""
    for topic_id, head in (await catalog.heads()).items():
        async for entry in catalog.entries(topic_id):
            key = f"{head.folder}/{entry.name}"
            if there.get(key) != entry.bytes:
                raise ObjectMissing(
                    f"{key} is not in {url}, nor in the data directory, and the broker's catalog lists it: if its objects are in "
                    "another store, set DANUBE_TIER__URL to that one. Nothing was changed on etcd",
                    store=url,
                    key=key,
                )
