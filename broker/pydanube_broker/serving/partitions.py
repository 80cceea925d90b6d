"""More partitions for a topic that is being served, and the last of them taken away again while it is unused."""

from __future__ import annotations

import anyio
from pydanube_core.errors import Conflict
from pydanube_core.names import TopicName
from pydanube_core.units import counted

from pydanube_broker.serving.registry import Registry


async def add_partitions(registry: Registry, name: TopicName, partitions: int) -> None:
    """Give a partitioned topic more partitions, so that it has `partitions`; clients hear of them when all are there.

    They have the settings of the others, and their subscriptions from the first message on.

    Raises:
        TopicNotFound, InvalidArgument.
        Conflict: it has as many by now.
        LimitReached: a quota of the namespace.
    """
    catalog = registry.catalog
    present = len(catalog.index.partitions(name))
    namespace = name.namespace
    async with registry.quotas.making(
        "topics", namespace, max(0, partitions - present), lambda: catalog.index.count_topics(namespace)
    ):
        # Shielded: what the catalog has must be owned and served, whoever stopped waiting.
        with anyio.CancelScope(shield=True):
            added = await catalog.make_partitions(name, partitions)
            await registry.ownership.acquire(added)
            await catalog.show_partitions(name, partitions)


async def drop_partition(registry: Registry, name: TopicName) -> None:
    """Take away the last partition of a topic, as its owner, where nothing was ever written to it.

    Raises:
        Conflict: it has messages or producers, or it is not the last one any more.
        NotOwner: another broker serves it.
    """
    topic = registry.find(name)
    if topic is None:
        if registry.catalog.index.find_topic(name) is not None:
            raise registry.not_found(name)
        return
    if topic.closed is not None:
        raise topic.closed
    if topic.state.next_offset or topic.producers_connected:
        raise Conflict(
            f"{name} is in use by now: {counted(topic.state.next_offset, 'message was', 'messages were')} written to "
            f"it, and {counted(topic.producers_connected, 'producer is', 'producers are')} on it; it stays",
            topic=str(name),
            retryable=False,
        )
    # Nothing is awaited between the look and this: from here on it takes no message.
    topic.closed = Conflict(f"{name} is being taken away: nothing was stored", topic=str(name))
    record = topic.options
    with anyio.CancelScope(shield=True):
        try:
            await registry.catalog.drop_partition(name)
        finally:
            topic.closed = None
            registry.follow_deletions([record])
