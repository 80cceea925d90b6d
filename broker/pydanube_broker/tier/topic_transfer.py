"""The cold part of a topic that comes from another broker or goes to one: the objects stay where they are."""

from __future__ import annotations

from pydanube_storage.catalog import CatalogHead

from pydanube_broker.tier.tier import Tier


async def take_in(tier: Tier, topic_id: int) -> CatalogHead | None:
    """Take over the objects of a topic that came here; return its head. Raises `StoreUnavailable`."""
    found = await tier.catalog.head(topic_id)
    if found is None:
        return None
    tier.folders[topic_id] = found.head.folder
    tier.object_bytes[topic_id] = found.head.bytes
    return found.head


def let_go(tier: Tier, topic_id: int) -> None:
    """Forget the objects of a topic that left: another broker looks after them."""
    tier.flusher.forget(topic_id)
    tier.cold.forget(topic_id)
    tier.cold.cache.drop(topic_id)
    tier.object_bytes.pop(topic_id, None)
    tier.folders.pop(topic_id, None)
