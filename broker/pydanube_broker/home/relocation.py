"""Copy a stopped broker's metadata and objects to another place, and compare them there.

`adoption` copies from a lone broker's place to a cluster's, `release` back. Metadata are copied whole, with tombstones
and leased ids, except for keys that apply to one of the two places only. Topics, subscriptions and schemas keep their
ids, because the journal and the objects have them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import anyio
from pydanube_core.errors import ClusterMismatch, CorruptObject, ObjectMissing
from pydanube_core.names import AUDIT_TOPIC, TopicName
from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.metadata import KeyRange, KeyValue, MetadataStore, Put, Revision, read_all
from pydanube_storage.objects import ObjectStore

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.bulk_writes import Say, parts
from pydanube_broker.cluster.records import PartitionedSpec, SubscriptionSpec, TopicSpec
from pydanube_broker.schema.keys import SUBJECTS
from pydanube_broker.schema.records import SubjectSpec
from pydanube_broker.topics.topic import now_ms

_AUDIT_STATE: Final = "/admin/audit/"
_PIECE_BYTES: Final = 8 << 20


async def read_relocated(
    store: MetadataStore, stays: Callable[[str], bool], *, audit_from: int | None, audit_to: int | None
) -> tuple[list[Put], Revision]:
    """Return a broker's metadata for another store, and the revision of this one. Arguments as `relocated`."""
    items, revision = await read_all(store, KeyRange.prefix("/"))
    return list(relocated(items, stays, audit_from=audit_from, audit_to=audit_to)), revision


def relocated(
    items: Iterable[KeyValue],
    stays: Callable[[str], bool],
    *,
    audit_from: int | None,
    audit_to: int | None,
) -> Iterator[Put]:
    """Return a broker's metadata for another store, with ids in place of create revisions, and the audit renamed. Pure.

    Args:
        stays: returns whether a key stays behind. All keys with a lease do.
        audit_from, audit_to: the broker id of the audit, here and there. None for a lone broker.
    """
    before, after = _audit_of(audit_from), _audit_of(audit_to)
    state_before, state_after = _audit_state_of(audit_from), _audit_state_of(audit_to)
    renamed = {
        keys.topic_key(before): keys.topic_key(after),
        keys.epoch_key(before): keys.epoch_key(after),
    }

    def name_of(topic: str) -> str:
        return str(after) if topic == str(before) else topic

    for item in items:
        key, value = item.key, item.value
        if item.lease_id is not None or stays(key):
            continue
        if key in keys.TOPICS:
            topic = TopicSpec.from_json(value, key=key)
            identity = topic.identity or item.create_revision
            value = replace(topic, name=name_of(topic.name), identity=identity).to_json()
        elif key in keys.PARTITIONED:
            parent = PartitionedSpec.from_json(value, key=key)
            value = replace(parent, identity=parent.identity or item.create_revision).to_json()
        elif key in keys.SUBSCRIPTIONS:
            one = SubscriptionSpec.from_json(value, key=key)
            identity = one.identity or item.create_revision
            value = replace(one, topic=name_of(one.topic), identity=identity).to_json()
        elif key in SUBJECTS:
            subject = SubjectSpec.from_json(value, key=key)
            value = replace(subject, identity=subject.identity or item.create_revision).to_json()
        elif key in keys.ASSIGNMENTS:
            place = Assignment.of(key, value)
            value = replace(place, topic=TopicName.parse(name_of(str(place.topic)))).to_json()
        elif key.startswith(state_before):
            rest = key.removeprefix(state_before)
            if not rest.partition("/")[0].isdecimal():  # else another broker's
                key = state_after + rest
        yield Put(renamed.get(key, key), value)


def _audit_of(broker_id: int | None) -> TopicName:
    return TopicName.parse(AUDIT_TOPIC if broker_id is None else f"{AUDIT_TOPIC}-{broker_id}")


def _audit_state_of(broker_id: int | None) -> str:
    return _AUDIT_STATE if broker_id is None else f"{_AUDIT_STATE}{broker_id}/"


async def write_compared(store: MetadataStore, writes: list[Put], *, where: str, mark: str = "") -> None:
    """Write to a store that is empty except for a mark, and read it back. Raises `ClusterMismatch` if it differs."""
    for part in parts(writes):
        await store.transact(part)
    found, _ = await read_all(store, KeyRange.prefix("/"))
    if {each.key: each.value for each in found if each.key != mark} != {
        each.key: each.value for each in writes
    }:
        raise ClusterMismatch(
            f"{where} does not hold the bytes that were written: another program writes there too. Choose a place of its own",
            field="metadata.url",
            value=where,
        )


async def relocate_objects(
    metadata: MetadataStore,
    source: ObjectStore | None,
    target: ObjectStore,
    cluster: str,
    say: Say,
    *,
    dry_run: bool,
    left: tuple[str, ...] = ("owner", "metadata"),
) -> dict[str, int]:
    """Copy the objects, and return the size of each that the target has then, or would have, by its key.

    Args:
        metadata: lists the objects that must exist.
        source: None: the target has them already.
        left: folders that are not copied.

    Raises:
        ObjectMissing.
        CorruptObject: the target has another object under a key.
    """
    there: dict[str, int] = {}
    if source is not None and dry_run:
        there = await anyio.to_thread.run_sync(partial(_sizes_to_copy, left=left), source, cluster)
    elif source is not None:
        say(f"objects go to {target.url}")
        await anyio.to_thread.run_sync(partial(_copy, left=left), source, target, cluster, say)
    there |= await anyio.to_thread.run_sync(_sizes_below, target, cluster)
    await _check_listed(metadata, there, target.url)
    return there


def _sizes_below(store: ObjectStore, cluster: str) -> dict[str, int]:
    """Return the size of each object of a cluster by its key. Blocking."""
    return {each.key: each.bytes for each in store.list(cluster)}


def _sizes_to_copy(source: ObjectStore, cluster: str, *, left: tuple[str, ...]) -> dict[str, int]:
    """Return the size of each object that `_copy` copies, by its key. Blocking."""
    behind = tuple(f"{cluster}/{each}/" for each in left)
    return {key: size for key, size in _sizes_below(source, cluster).items() if not key.startswith(behind)}


def _copy(source: ObjectStore, target: ObjectStore, cluster: str, say: Say, *, left: tuple[str, ...]) -> None:
    """Copy the objects below `cluster`, and read each back. Existing ones are compared and stay. Blocking."""
    there = _sizes_below(target, cluster)
    for done, (key, size) in enumerate(_sizes_to_copy(source, cluster, left=left).items(), start=1):
        if key not in there:
            target.put(key, source.read(key, 0, size))
        if there.get(key, size) != size or _digest(target, key, size) != _digest(source, key, size):
            raise CorruptObject(
                f"{key} in {target.url} differs from {source.url}: remove that object there, or choose a place that is empty",
                store=target.url,
                key=key,
                cause="differs",
            )
        if done % 1000 == 0:
            say(f"{done} objects are in {target.url}")


def _digest(store: ObjectStore, key: str, size: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, size, _PIECE_BYTES):
        digest.update(store.read(key, start, min(size, start + _PIECE_BYTES)))
    return digest.hexdigest()


async def _check_listed(metadata: MetadataStore, there: dict[str, int], url: str) -> None:
    """Raise `ObjectMissing` if the catalog lists an object that is not in `there`, by size, at `url`."""
    catalog = ObjectCatalog(metadata, wall_ms=now_ms)
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
