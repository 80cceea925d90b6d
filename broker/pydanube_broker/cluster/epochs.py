"""Epochs of topic names: the counters that assignments raise, and the sweep of those that no topic needs.

A counter outlives its topic, because a topic that is created again under the same name must begin above every epoch of
the former one. Swept counters share one floor: a name without a counter starts at it. The sweep raises the floor and
deletes counters in one transaction. A caller that finds no counter guards both its absence and the floor, so that no
epoch is given twice if a sweep comes between.

Builds of metadata format 1 have no floor, and begin at 0. Nothing is swept before the metadata have format 2, which
keeps such builds from starting (`format_gate`). Builds of format 2 from before 30 November 2026 have no floor either: do not run
them beside newer ones for longer than a replacement takes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import ClusterError
from pydanube_core.names import TopicName
from pydanube_storage.metadata import (
    MAX_OPERATIONS,
    Absent,
    Delete,
    Guard,
    GuardFailed,
    KeyValue,
    MetadataStore,
    ModRevision,
    Put,
    Write,
    read_all,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import Epoch
from pydanube_broker.records.json_record import JsonRecord
from pydanube_broker.records.quarantine import counted_at_most

_SWEPT_AT_ONCE: Final = (
    MAX_OPERATIONS - 3
) // 2  # guard and deletion each, beside the leadership and the floor


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord(JsonRecord):
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCounter:
    """The last epoch of a topic name, and the guards for the next. For a name without a counter: the floor."""

    epoch: Epoch
    guards: tuple[Guard, ...]


async def epoch_counter(store: MetadataStore, topic: TopicName) -> EpochCounter:
    """Read the epoch counter of a topic's name."""
    found = {}
    for key in (keys.epoch_key(topic), keys.EPOCH_FLOOR):
        if (item := await store.get(key)) is not None:
            found[key] = item
            break
    return counter_in(found, topic)


def counter_in(found: Mapping[str, KeyValue], topic: TopicName) -> EpochCounter:
    """Return the epoch counter of a name, given the counters and the floor by their keys. Pure."""
    key, floor = keys.epoch_key(topic), found.get(keys.EPOCH_FLOOR)
    if (item := found.get(key)) is not None:
        return EpochCounter(epoch=_counted(item), guards=(ModRevision(key, item.mod_revision),))
    return EpochCounter(epoch=_counted(floor), guards=(Absent(key), _unchanged(floor)))


async def sweep_epochs(store: MetadataStore, leadership: Guard, needed: Container[str]) -> int:
    """Delete the counters of names, and raise the floor to them. Return their number. Idempotent.

    Args:
        needed: keys of counters that stay. It may be outdated: a new topic of a swept name begins above the floor.
    """
    items, _ = await read_all(store, keys.EPOCHS)
    floor = next((item for item in items if item.key == keys.EPOCH_FLOOR), None)
    # The highest first, so that the floor is raised once.
    left = sorted(
        (item for item in items if item is not floor and item.key not in needed), key=_counted, reverse=True
    )
    for start in range(0, len(left), _SWEPT_AT_ONCE):
        some = left[start : start + _SWEPT_AT_ONCE]
        guards = [leadership, _unchanged(floor), *(ModRevision(each.key, each.mod_revision) for each in some)]
        writes: list[Write] = [Delete(each.key) for each in some]
        if _counted(some[0]) > _counted(floor):
            writes.append(Put(keys.EPOCH_FLOOR, EpochRecord(epoch=_counted(some[0])).to_json()))
        try:
            await store.transact(writes, guards=guards)
        except GuardFailed as error:
            if error.guard == leadership:
                raise
            return start  # a topic of one of the names was created again: the next sweep takes the others
        floor = await store.get(keys.EPOCH_FLOOR)
    return len(left)


def _unchanged(floor: KeyValue | None) -> Guard:
    return Absent(keys.EPOCH_FLOOR) if floor is None else ModRevision(floor.key, floor.mod_revision)


def _counted(item: KeyValue | None) -> Epoch:
    if item is None:
        return Epoch(0)
    try:
        return Epoch(EpochRecord.from_json(item.value, key=item.key).epoch)
    except ClusterError as error:
        return Epoch(counted_at_most(item, error))
