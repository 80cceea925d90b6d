"""Topics with a time to live: deleted, with their messages, after so long without use.

A topic is used while it has a producer, a consumer or a reader. The time is the broker's own, counted from its first
look without a client, so a restart begins it again. The topic's record has the time (`options.unused_ttl_s`).
"""

from __future__ import annotations

import logging
import time
from typing import Final

from pydanube_core.errors import Conflict, TopicNotFound
from pydanube_core.facts import DataChange
from pydanube_core.names import TopicName

from pydanube_broker.serving.data_changes import DataChanges
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.unused_holds import check_without_clients
from pydanube_broker.topics.topic import now_ms

UNUSED_TTL: Final = "unused_ttl_s"

log = logging.getLogger("pydanube.topics")


class UnusedTopics:
    """Deletes unused topics. Checked every few seconds. O(topics), 0.1 µs each without a time to live."""

    def __init__(self, registry: Registry, changes: DataChanges) -> None:
        self._registry = registry
        self._changes = changes
        self._since: dict[TopicName, float] = {}  # time of the first look without a client
        self._passed: dict[TopicName, int] = {}  # messages in and out at the last look

    async def delete(self) -> None:
        """Delete the topics whose time to live has ended."""
        for name in self._due(time.monotonic()):
            del self._since[name]
            try:
                parts = self._registry.known_parts(name)
                if len(parts) < len(self._registry.catalog.index.partitions(name)):
                    continue  # only the owners of the other partitions see their use
                held = self._registry.unused.hold_topic(name, parts, check=check_without_clients)
                await self._registry.delete(name, held=[held])
            except TopicNotFound:
                continue  # deleted by another call
            except Conflict:  # a client came in between
                await self._registry.unused.release(name)
                continue
            self._changes.note(
                DataChange(
                    operation="topics.delete",
                    at_ms=now_ms(),
                    principal=None,
                    client=UNUSED_TTL,  # no caller: the time to live set at its creation
                    address="",
                    topic=str(name),
                )
            )
            log.info("topic_unused", extra={"topic": str(name)})

    def _due(self, now_s: float) -> list[TopicName]:
        passed: dict[TopicName, int] = {}
        used: set[TopicName] = set()
        lives: dict[TopicName, float] = {}
        for topic in self._registry.topics:
            ttl_s = topic.options.settings.options.get(UNUSED_TTL)
            if ttl_s:
                name = topic.options.topic.base
                lives[name] = float(ttl_s)
                passed[name] = passed.get(name, 0) + topic.messages_in + topic.messages_out
                try:
                    check_without_clients(topic)
                except Conflict:
                    used.add(name)
        # A client that came and went between two looks has used it too.
        used |= {name for name, count in passed.items() if self._passed.get(name, count) != count}
        self._passed = passed
        self._since = {name: self._since.get(name, now_s) for name in passed.keys() - used}
        return [name for name, since in self._since.items() if now_s - since >= lives[name]]
