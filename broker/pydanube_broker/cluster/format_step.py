"""The step of the metadata from format 1 to format 2, in which a partitioned topic is one record.

The leader takes the step once every member and every owner supports format 2 (`coordinator`). It begins with a mark
(`keys.FORMAT`). Brokers guard each write of format 1 by the absence of the mark, so no such write follows it. When the
leader has read the mark back, its index has all partitions. Interrupted creations, deletions and restorations are
finished first. Then each topic, and each tombstone, gets its ids in one transaction. Records of single partitions have
no effect from there on. They are deleted in batches. A second mark ends the step.

Every transaction is guarded by the leadership and leaves the metadata whole, so the next leader continues.

This module and `format_1` are removed in the next release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pydanube_core.errors import Conflict
from pydanube_core.names import TopicName
from pydanube_storage.metadata import (
    MAX_OPERATIONS,
    Absent,
    Delete,
    Guard,
    Put,
    Write,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.deleting.tombstone_records import ParentTombstone, TopicTombstone
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import (
    FormatRecord,
    PartitionedRecord,
    PartitionedSpec,
    Stage,
    TopicRecord,
)
from pydanube_broker.cluster.registry_records import WHOLE
from pydanube_broker.cluster.subscription_operations import KEPT_OPTIONS
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.records import Change

_AT_ONCE: Final = MAX_OPERATIONS - 5  # deletions beside a record and its guards


class FormatStep:
    """Converts the metadata of a cluster: `await FormatStep(catalog, leadership).take()`, repeated after any error."""

    def __init__(self, catalog: TopicCatalog, leadership: Guard) -> None:
        self._catalog = catalog
        self._records = catalog.records
        self._index = catalog.index
        self._restorable = catalog.restorable
        self._leadership = leadership

    async def take(self) -> None:
        """Convert all records of format 1. Idempotent. Raises `StoreUnavailable`, and `GuardFailed` if another broker leads."""
        catalog, index = self._catalog, self._index
        if keys.FORMAT in catalog.quarantine.found:
            return
        if index.format.metadata_format < WHOLE:
            begun = FormatRecord(metadata_format=WHOLE)
            await self._change([Put(keys.FORMAT, begun.to_json())], [Absent(keys.FORMAT)])
        if index.format.converted:
            return
        self._records.finishing = True
        try:
            await catalog.resume()
        finally:
            self._records.finishing = False
        for parent in index.all_partitioned():
            if not parent.is_whole:
                await self._records.change(partial(self._convert, parent.topic))
        for tombstone in list(self._restorable.parents.values()):
            if tombstone.spec.ids is None:
                await self._convert_tombstone(tombstone)
        await self._delete(self._left_over())
        done = replace(index.format, converted=all(parent.is_whole for parent in index.all_partitioned()))
        if done.converted:
            await self._change([Put(keys.FORMAT, done.to_json())], [index.format_table.guard(keys.FORMAT)])

    async def _convert(self, topic: TopicName, change: Change) -> None:
        parent = self._index.partitioned(topic)
        parts = self._index.partitions(topic)
        if parent is None or parent.is_whole or parent.spec.stage is not Stage.READY or not parts:
            return  # gone, or quarantined by `resume`
        if any(
            key in keys.TOPICS and keys.topic_of_key(key).base == topic
            for key in self._records.quarantine.found
        ):
            return  # a partition cannot be read: the topic would lose it
        spec = _whole_spec(parent.spec, {part.partition or 0: part.topic_id for part in parts})
        spec = replace(spec, settings=replace(spec.settings, **_merged(parent, parts)))
        change.require(self._leadership, Conflict("another broker leads", retryable=True))
        change.guard(self._records.as_known(parent))
        change.put(keys.partitioned_key(topic), spec)
        change.delete(*(part.key for part in parts[:_AT_ONCE]))

    async def _convert_tombstone(self, tombstone: ParentTombstone) -> None:
        """Put the ids of a deleted topic's partitions into its tombstone. Partitions of an earlier deletion keep theirs."""
        key = keys.parent_tombstone_key(TopicId(tombstone.parent_id))
        parts = [
            each
            for each in self._restorable.topics.values()
            if each.parent_id == tombstone.parent_id and each.call_id == tombstone.call_id
        ]
        guards = [self._restorable.unchanged(key)]
        if not parts:
            await self._change([Delete(key)], guards)
            return
        spec = _whole_spec(tombstone.spec, {_partition(each): each.topic_id for each in parts})
        writes: list[Write] = [Put(key, replace(tombstone, spec=spec).to_json())]
        writes += [Delete(keys.topic_tombstone_key(TopicId(each.topic_id))) for each in parts[:_AT_ONCE]]
        await self._change(writes, guards)

    def _left_over(self) -> list[str]:
        """Return the keys of partitions that count no more, since a whole topic's record or tombstone replaced them."""
        found = []
        for key in self._index.topic_table.known_keys():
            name = keys.topic_of_key(key)
            if name.partition is not None and self._index.is_left_over(name):
                found.append(key)
        for key in self._restorable.topic_table.known_keys():
            topic_id = TopicId(keys.number_in_key(key))
            if self._restorable.is_named(topic_id) or topic_id not in self._restorable.topics:
                found.append(key)
        return [key for key in found if key not in self._records.quarantine.found]

    async def _delete(self, found: Sequence[str]) -> None:
        for start in range(0, len(found), _AT_ONCE):
            await self._change([Delete(key) for key in found[start : start + _AT_ONCE]], [])

    async def _change(self, writes: Sequence[Write], guards: Sequence[Guard]) -> None:
        await self._records.transact(writes, guards=[self._leadership, *guards])


def _whole_spec(spec: PartitionedSpec, ids: dict[int, int]) -> PartitionedSpec:
    named = tuple(ids.get(index) for index in range(max(ids) + 1))
    return replace(spec, stage=Stage.READY, partitions=len(named), ids=named)


def _partition(tombstone: TopicTombstone) -> int:
    index = TopicName.parse(tombstone.name).partition
    assert index is not None, "it has a parent"
    return index


def _merged(parent: PartitionedRecord, parts: Sequence[TopicRecord]) -> dict[str, Any]:
    """Return the settings that partitions of format 1 may have for themselves: the schema, kept subscription options."""
    settings = parent.spec.settings
    schemas = [part.settings.schema for part in parts if part.settings.schema is not None]
    kept = {
        name: options
        for part in reversed(parts)
        for name, options in part.settings.options.get(KEPT_OPTIONS, {}).items()
    }
    options = dict(settings.options)
    if kept or KEPT_OPTIONS in options:
        options[KEPT_OPTIONS] = kept
    return {
        "schema": settings.schema if settings.schema is not None or not schemas else schemas[0],
        "options": options,
    }
