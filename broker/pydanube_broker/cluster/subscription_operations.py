"""Subscriptions in the registry. The creating transaction fixes where one begins (docs/research/behaviours.md#row-10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydanube_core.errors import AlreadyExists
from pydanube_core.names import check_subscription
from pydanube_core.refusals import subscription_taken
from pydanube_storage.metadata import Absent, Delete, DeleteRange, Guard, ModRevision, Put, Write

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import (
    PartitionedSpec,
    SubscriptionRecord,
    SubscriptionSpec,
    TopicRecord,
    TopicSpec,
)
from pydanube_broker.cluster.registry_writer import RegistryWriter

# Of a topic: options of subscriptions that are not there yet, by name; the first of that name takes them.
KEPT_OPTIONS: Final = "kept_subscription_options"


class SubscriptionOperations(RegistryWriter):
    """Create, change and delete subscriptions; look-ups are in `index`."""

    async def create_subscription(
        self,
        topic_id: TopicId,
        subscription: str,
        *,
        type: str,
        start_offset: int,
        options: Mapping[str, Any] | None = None,
    ) -> SubscriptionRecord:
        """Create a subscription; the transaction stores its type, where it begins and its options.

        Raises `AlreadyExists`, `TopicNotFound` (also when it was deleted meanwhile), `InvalidName`, `InvalidArgument`.
        """
        name = check_subscription(subscription)

        async def attempt() -> SubscriptionRecord:
            topic = self._topic_by_id(topic_id)
            if self.index.find_subscription(topic_id, name) is not None:
                raise subscription_taken(str(topic.name), name)
            self.check_not_coming_back(topic_id, name)
            kept = dict(topic.settings.options.get(KEPT_OPTIONS, {}))
            own = {**kept.pop(name, {}), **(options or {})}
            spec = SubscriptionSpec(
                name=name,
                topic=topic.name,
                type=str(type),
                start_offset=start_offset,
                created_at_ms=self._wall_ms(),
                options=own,
            )
            key = keys.subscription_key(topic_id, name)
            guards: list[Guard] = [Absent(key)]
            writes: list[Write] = [Put(key, spec.to_json())]
            is_kept = len(kept) < len(topic.settings.options.get(KEPT_OPTIONS, {}))
            if is_kept or not topic.is_named_by_parent:  # a subscription of a partition that is gone is swept
                guards.append(self._as_known(topic))
            if is_kept:
                writes.append(self._without_kept(topic, name, kept))
            await self.change(writes, guards, whole=topic.is_named_by_parent)
            return self.index.subscription(topic, name)

        return await self.again(attempt)

    def _without_kept(self, topic: TopicRecord, name: str, kept: Mapping[str, Any]) -> Write:
        """Return the write by which kept options are used once: of a whole topic with its last partition's subscription."""
        parent = self.index.partitioned(topic.topic.base) if topic.is_named_by_parent else None
        spec: TopicSpec | PartitionedSpec = topic.spec if parent is None else parent.spec
        lacking = [
            part
            for part in self.index.partitions(topic.topic.base)
            if part.topic_id != topic.topic_id and self.index.find_subscription(part.topic_id, name) is None
        ]
        if parent is None or not lacking:
            options = {**spec.settings.options, KEPT_OPTIONS: kept}
            spec = replace(spec, settings=replace(spec.settings, options=options))
        return Put(topic.key, spec.to_json())  # also where it stays: two that are created at once look again

    async def ensure_subscription(
        self,
        topic_id: TopicId,
        subscription: str,
        *,
        type: str,
        start_offset: int,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[SubscriptionRecord, bool]:
        """The subscription as it is, or created; and whether it was. An existing one keeps type and start."""
        found = self.index.find_subscription(topic_id, subscription)
        if found is not None:
            return found, False
        try:
            created = await self.create_subscription(
                topic_id, subscription, type=type, start_offset=start_offset, options=options
            )
        except AlreadyExists:
            return self.index.subscription(self._topic_by_id(topic_id), subscription), False
        return created, True

    async def update_subscription(
        self, topic_id: TopicId, subscription: str, *, options: Mapping[str, Any]
    ) -> SubscriptionRecord:
        """Replace the options. Raises `TopicNotFound`, `SubscriptionNotFound`."""

        async def attempt() -> SubscriptionRecord:
            topic = self._topic_by_id(topic_id)
            former = self.index.subscription(topic, subscription)
            key = keys.subscription_key(topic_id, subscription)
            spec = replace(former.spec, options=dict(options))
            await self.change([Put(key, spec.to_json())], [ModRevision(key, former.revision)])
            return self.index.subscription(topic, subscription)

        return await self.again(attempt)

    async def delete_subscription(self, topic_id: TopicId, subscription: str) -> SubscriptionRecord:
        """Delete a subscription in the store. Raises `TopicNotFound`, `SubscriptionNotFound`."""

        async def attempt() -> SubscriptionRecord:
            former = self.index.subscription(self._topic_by_id(topic_id), subscription)
            key = keys.subscription_key(topic_id, subscription)
            clients = DeleteRange(keys.consumer_clients_range(topic_id, subscription))
            await self.change([Delete(key), clients], [ModRevision(key, former.revision)])
            return former

        return await self.again(attempt)
