"""Refuse a start with another journal while topics of this broker are in the copy of the former one.

The registration would replace the record by which heirs find the chain of the former journal. So a broker whose journal
folder was lost waits unregistered until others have taken its topics over.
"""

from __future__ import annotations

from pydanube_core.errors import Conflict
from pydanube_storage.metadata import MetadataStore, read_all

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.journal_record import JournalRecord, OwnJournal


async def check_former_journal(store: MetadataStore, broker_id: BrokerId, own: OwnJournal) -> None:
    """Check, before the broker registers, that no topic assigned to it may be in the chain of another journal.

    Raises:
        Conflict: its journal was lost or replaced, and others have not taken its topics over yet. StoreUnavailable.
    """
    key = keys.journal_key(broker_id)
    item = await store.get(key)
    if item is None:
        return
    found = JournalRecord.from_json(item.value, key=key)
    if found.journal == own.number or not found.is_needed_by_heirs:
        return
    items, _ = await read_all(store, keys.ASSIGNMENTS)
    places = (Assignment.of(each.key, each.value) for each in items)
    # Its audit stays with a broker for good
    if any(place.broker_id == broker_id and not place.topic.is_audit for place in places):
        raise Conflict(
            f"broker {broker_id} has another journal than the one that its topics are in: its folder was lost or replaced. "
            "When the broker's last lease has ended, within 10 s, other brokers take its stored topics over from the copy "
            "in the object store. Start it again when they have. If it is refused even then, fsynced topics are left: take "
            "them over with topics.take_over, or give a new broker an empty --data-dir and remove this one with "
            "brokers.remove",
            broker_id=str(broker_id),
            reason="journal_is_gone",
            retryable=False,
        )
