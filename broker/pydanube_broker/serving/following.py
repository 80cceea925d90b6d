"""Apply changes that other brokers make in the metadata to the topics served here.

The watches of the catalog and of the assignments deliver changed keys. A task compares the served objects with the
metadata, key by key. Changes of this broker itself are found done. Each key waits at most once, so the queue is bounded
by their number.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio
import anyio.lowlevel
from pydanube_core.errors import ClusterError, Retryable
from pydanube_core.names import TopicName

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.serving.registry import Registry
from pydanube_broker.subscription.subscription_policy import stored_policy
from pydanube_broker.topics.topic import Topic

log = logging.getLogger("pydanube.topics")

_AT_ONCE: Final = 16  # keys in one turn of the loop
_AGAIN_S: Final = 0.5  # seconds after the metadata store did not answer


class Following:
    """See the module. Single user: the loop."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._keys: dict[str, None] = {}  # in the order in which they changed
        self._more = anyio.Event()
        if registry.ownership.several:
            registry.catalog.records.on_key = self.changed

    def changed(self, key: str) -> None:
        """Apply the change of a key that is already in the index."""
        self._keys[key] = None
        self._more.set()

    async def run(self) -> None:
        """Read and apply the changes of others, until the store closes."""
        schemas = self._registry.schemas.registry
        async with anyio.create_task_group() as group:
            group.start_soon(self._registry.catalog.records.follow)
            group.start_soon(self._registry.quotas.records.follow)
            if self._registry.ownership.several:
                group.start_soon(schemas.records.follow)
                group.start_soon(self._carry_out)

    async def _carry_out(self) -> None:
        while True:
            await self._more.wait()
            self._more = anyio.Event()
            while self._keys:
                batch = list(self._keys)[:_AT_ONCE]
                for key in batch:
                    del self._keys[key]
                    try:
                        await self.follow(key)
                    except Retryable as error:
                        log.info("followed_later", extra={"code": error.code})
                        self._keys[key] = None
                        await anyio.sleep(_AGAIN_S)
                    except ClusterError as error:
                        log.warning("not_followed", extra={"key": key, "error": error.message})
                await anyio.lowlevel.checkpoint()

    async def follow(self, key: str) -> None:
        if key in keys.ASSIGNMENTS:
            await self._place(TopicId(keys.number_in_key(key)))
        elif key in keys.TOPICS:
            await self._topic(keys.topic_of_key(key))
        elif key in keys.SUBSCRIPTIONS:
            self._subscription(*keys.subscription_of_key(key))
        elif key in keys.TOPIC_TOMBSTONES:
            self._registry.deleted.drop(TopicId(keys.number_in_key(key)))
        elif key in keys.NAMESPACES:
            namespace = keys.namespace_of_key(key)
            for topic in self._registry.topics:
                if topic.options.topic.namespace == namespace:
                    self._registry.policies.apply(topic)

    async def _place(self, topic_id: TopicId) -> None:
        """Apply an assignment that was written or deleted."""
        registry = self._registry
        if registry.ownership.is_mine(topic_id):
            await registry.catalog.records.until_known(topic_id)
        record = registry.catalog.index.topic_by_id(topic_id)
        if record is not None:
            registry.list_changes.note(record.name)  # its owner changed
            await self._topic(record.topic)

    async def _topic(self, name: TopicName) -> None:
        registry = self._registry
        ownership = registry.ownership
        served, record = registry.find(name), registry.catalog.index.find_topic(name)
        if served is not None and (record is None or record.topic_id != served.topic_id):
            ownership.deleted(served.options)
            served = None
        if record is None:
            return
        mine = ownership.is_mine(record.topic_id)
        if ownership.is_moving(record.topic_id):
            return  # the move decides
        if served is None:
            if mine:
                await ownership.acquire([record])
        elif not mine and ownership.coordinator.place(record.topic_id) is not None:
            ownership.release(served, ownership.elsewhere(record))
        elif record.revision != served.options.revision:
            if record.settings.schema != served.options.settings.schema:
                served.schema = registry.schemas.guard_of(record)
            registry.policies.apply(served)
            ownership.on_level(served)

    def _subscription(self, topic_id: TopicId, name: str) -> None:
        registry = self._registry
        index = registry.catalog.index
        owner = index.topic_by_id(topic_id)
        topic: Topic | None = None if owner is None else registry.find(owner.topic)
        if topic is None or topic.topic_id != topic_id:
            return
        record, pump = index.find_subscription(topic_id, name), topic.subscriptions.get(name)
        if record is None:
            if pump is not None:
                registry.ownership.subscription_deleted(topic, pump)
        elif pump is None or pump.subscription_id != record.subscription_id:
            if pump is not None:
                registry.ownership.subscription_deleted(topic, pump)
            registry.ownership.adopt_subscription(topic, record)
        else:
            policy = registry.policies.of_failures(stored_policy(record.spec.options))
            if policy != pump.policy:
                pump.set_policy(policy)
