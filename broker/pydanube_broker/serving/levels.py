"""Bring topics served here to the durability that their records name.

The record of a topic has the wanted durability. Its assignment has the one that the owner keeps (`Assignment.stored`), by
which heirs decide whether a topic has lost anything. Only the owner changes it:

* Raised: the owner acknowledges only stored records from now on. Once the older ones are stored too, it writes the
  assignment. If the owner is lost earlier, its heirs assume the lower level.
* Lowered: the assignment is written first. Producers are reconnected, so that each receipt names the kept level.

The transaction is guarded by the revision of the assignment, so a move or another life of the owner makes it fail. A
topic keeps its durability while it moves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import anyio
from pydanube_core.errors import ClusterError, Conflict, MetadataUnavailable, Unavailable
from pydanube_storage.metadata import GuardFailed, MetadataStore, ModRevision, Put

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.cluster.records import Durability
from pydanube_broker.serving.registry import Registry
from pydanube_broker.tier.storing import Storing
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.topic import Topic

log = logging.getLogger("pydanube.topics")

_AGAIN_S: Final = 0.5
_RETRY_MS: Final = 100


class Levels:
    """See the module. Single user: the loop."""

    def __init__(self, registry: Registry, hub: Hub, store: MetadataStore, storing: Storing) -> None:
        self._registry = registry
        self._hub = hub
        self._store = store
        self._storing = storing
        self._due: dict[int, None] = {}  # ids of topics to look at
        self._at_work = 0  # the id of the topic that is changed now
        self._more = anyio.Event()
        self._done = anyio.Event()

    def look(self, topic: Topic) -> None:
        """Change the level of a topic if its record names another."""
        if self._differs(topic):
            self._due[topic.topic_id] = None
            self._more.set()

    async def until_reached(self, topics: Sequence[Topic]) -> None:
        """Wait until these topics have the durability of their records, or are not served here any more."""
        for topic in topics:
            self.look(topic)
        while any(self._differs(topic) or topic.topic_id == self._at_work for topic in topics):
            await self._done.wait()

    def _differs(self, topic: Topic) -> bool:
        served = self._hub.topics.get(topic.topic_id) is topic and topic.closed is None
        is_wanted = topic.options.durability is Durability.STORED
        return served and topic.durability != Durability.MEMORY and topic.in_store != is_wanted

    async def run(self) -> None:
        """Change levels until cancelled, one topic after the other."""
        while True:
            await self._more.wait()
            self._more = anyio.Event()
            failed: dict[int, None] = {}
            while self._due:
                topic_id = next(iter(self._due))
                del self._due[topic_id]
                topic = self._hub.topics.get(topic_id)
                if topic is None or not self._differs(topic):
                    continue
                self._at_work = topic_id
                try:
                    await (self._lower(topic) if topic.in_store else self._raise(topic))
                except ClusterError as error:  # also a topic that moves: tried again until it is there
                    failed[topic_id] = None
                    facts = {"topic": topic.name, "code": error.code, "error": error.message}
                    log.warning("durability_not_changed", extra=facts)
                self._at_work = 0
                done, self._done = self._done, anyio.Event()
                done.set()
            if failed:
                await anyio.sleep(_AGAIN_S)
                self._due |= failed
                self._more.set()

    async def look_whether_needed(self) -> None:
        """Let starts do without the object store once no topic is stored there, and have it recorded if one is.

        Deleted topics that can be restored count as stored.
        """
        hub = self._hub

        def is_needed() -> bool:
            return any(topic.in_store for topic in hub.topics.values())

        if is_needed():
            self._storing.want()
        elif self._storing.is_needed and hub.states.keys() <= hub.topics.keys():
            await hub.journal.until_durable()  # the store may have had more than the disk
            await self._storing.not_needed(is_needed)

    async def _raise(self, topic: Topic) -> None:
        await self._storing.until_stored()  # most of the journal, before anything waits for the store
        self._hub.set_stored(topic, in_store=True)
        try:
            await self._storing.until_stored()
            await self._record(topic, stored=True)
        except ClusterError:
            self._hub.set_stored(topic, in_store=False)
            raise
        log.info("durability_changed", extra={"topic": topic.name, "durability": topic.durability})

    async def _lower(self, topic: Topic) -> None:
        await self._record(topic, stored=False)
        self._hub.set_stored(topic, in_store=False)
        changed = Unavailable(
            f"the durability of {topic.name} was changed to {topic.durability}: connect again",
            topic=topic.name,
            retry_after_ms=_RETRY_MS,
        )
        for _, _, _, producer in topic.gate.attached():
            producer.end(changed)
        log.info("durability_changed", extra={"topic": topic.name, "durability": topic.durability})

    async def _record(self, topic: Topic, *, stored: bool) -> None:
        """Write the level to the assignment, again while it is unknown whether that has happened.

        Raises `Conflict`: the topic moves, or another life of this broker has it. It has the former level.
        """
        key = keys.assignment_key(topic.options.topic_id)
        me = BrokerId(int(self._registry.ownership.me.broker_id))
        while True:
            try:
                item = await self._store.get(key)
                now = None if item is None else Assignment.of(key, item.value)
                if item is None or now is None or (now.broker_id, now.epoch) != (me, topic.assigned_epoch):
                    raise Conflict(f"{topic.name} is not this broker's any more", topic=topic.name)
                if now.stored != stored:
                    if now.stage is not Stage.SERVING:
                        raise Conflict(
                            f"{topic.name} moves: its durability is changed afterwards", topic=topic.name
                        )
                    writes = [Put(key, replace(now, stored=stored).to_json())]
                    await self._store.transact(writes, guards=[ModRevision(key, item.mod_revision)])
                return
            except (GuardFailed, MetadataUnavailable):
                await anyio.sleep(_AGAIN_S)
