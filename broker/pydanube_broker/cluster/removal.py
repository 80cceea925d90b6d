"""Remove a broker for good: it cannot register again, and others take its topics over from the object store.

One transaction records the removal and raises the broker's incarnation, which ends its earlier lives. The leader then
takes its assignments away one by one (`moves.removed_brokers`), and continues after each interruption. A registered
broker is not removed: it must be stopped, or its lease must expire, first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydanube_core.errors import Conflict
from pydanube_storage.metadata import (
    Absent,
    MetadataStore,
    read_all,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.membership import IncarnationRecord, was_removed
from pydanube_broker.records import Change, JsonRecord, change


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRecord(JsonRecord):
    at_ms: int


async def remove(store: MetadataStore, broker_id: BrokerId, *, at_ms: int) -> bool:
    """Remove a broker. Return False if it was removed before.

    Raises:
        Conflict: it is registered now.
    """
    removed_key, counter_key = keys.removed_key(broker_id), keys.incarnation_key(broker_id)

    async def decide(change: Change) -> bool:
        if await change.read(removed_key) is not None:
            return False
        counter = await change.read(counter_key)
        last = 0
        if counter is not None:
            last = IncarnationRecord.from_json(counter.value, key=counter_key).incarnation
        change.require(Absent(keys.member_key(broker_id)), is_registered(broker_id))
        change.put(removed_key, RemovedRecord(at_ms=at_ms))
        change.put(counter_key, IncarnationRecord(incarnation=last + 1))
        return True

    return (await change(store, decide)).result


def is_registered(broker_id: BrokerId) -> Conflict:
    """Return the error for the removal of a broker that is registered."""
    return Conflict(
        f"broker {broker_id} is registered: have it unloaded and stopped, or wait until its lease of 10 s is over",
        field="broker_id",
        value=str(broker_id),
    )


async def removed_among(store: MetadataStore, brokers: Iterable[BrokerId]) -> set[BrokerId]:
    """Return which of the brokers were removed. Raises `StoreUnavailable`."""
    items, _ = await read_all(store, keys.REMOVED)
    return {BrokerId(keys.number_in_key(item.key)) for item in items} & set(brokers)


async def check_not_removed(store: MetadataStore, broker_id: BrokerId) -> None:
    """Raise `Fenced` if this broker was removed."""
    if await store.get(keys.removed_key(broker_id)) is not None:
        raise was_removed(broker_id)
