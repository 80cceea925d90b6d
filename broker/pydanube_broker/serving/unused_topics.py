"""Topics with a time to live: deleted, with their messages, when nobody has used them for so long.

Used is a topic with a producer, a consumer or a reader. The time is the broker's own, counted from when it first saw
nobody there, so a restart begins it anew. What the time is, the topic's record says (`options.unused_ttl_s`).
"""

from __future__ import annotations

import logging
import time
from typing import Final

from pydanube_core.errors import TopicNotFound
from pydanube_core.facts import DataChange
from pydanube_core.names import TopicName

from pydanube_broker.serving.data_changes import DataChanges
from pydanube_broker.serving.registry import Registry
from pydanube_broker.topics.topic import Topic, now_ms

UNUSED_TTL: Final = "unused_ttl_s"

log = logging.getLogger("pydanube.topics")


class UnusedTopics:
    """Looked at every few seconds. O(topics), 0.1 µs each without a time to live."""

    def __init__(self, registry: Registry, changes: DataChanges) -> None:
        self._registry = registry
        self._changes = changes
        self._since: dict[TopicName, float] = {}  # when nobody was there first

    async def delete(self) -> None:
        """Delete the topics whose time to live is over."""
        for name in self._due(time.monotonic()):
            del self._since[name]
            try:
                await self._registry.delete(name)
            except TopicNotFound:
                continue  # somebody was quicker
            self._changes.note(
                DataChange(
                    operation="topics.delete",
                    at_ms=now_ms(),
                    principal=None,
                    client=UNUSED_TTL,  # nobody: the time that whoever made it gave it
                    address="",
                    topic=str(name),
                )
            )
            log.info("topic_unused", extra={"topic": str(name)})

    def _due(self, now_s: float) -> list[TopicName]:
        used: dict[TopicName, bool] = {}
        lives: dict[TopicName, float] = {}
        for topic in self._registry.topics:
            ttl_s = topic.options.settings.options.get(UNUSED_TTL)
            if ttl_s:
                name = topic.options.topic.base
                used[name] = used.get(name, False) or _is_used(topic)
                lives[name] = float(ttl_s)
        self._since = {name: self._since.get(name, now_s) for name, busy in used.items() if not busy}
        return [name for name, since in self._since.items() if now_s - since >= lives[name]]


def _is_used(topic: Topic) -> bool:
    pumps = topic.subscriptions.values()
    return bool(topic.producers_connected or topic.readers or any(pump.links for pump in pumps))
