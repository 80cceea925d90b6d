"""Subscriptions in the registry. The creating transaction fixes where one begins (docs/research/behaviours.md#row-10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydanube_core.errors import AlreadyExists
from pydanube_core.names import TopicName, check_subscription
from pydanube_core.refusals import subscription_taken

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import (
    DispatchStrategy,
    PartitionedSpec,
    SubscriptionRecord,
    SubscriptionSpec,
    TopicRecord,
    TopicSpec,
)
from pydanube_broker.cluster.registry_records import RegistryRecords
from pydanube_broker.records import Change

# An option of a topic: the options of future subscriptions, by name. The first subscription of that name takes them.
KEPT_OPTIONS: Final = "kept_subscription_options"
KEPT_BY_LINK: Final = "kept_by_link"  # an option of a mirror: those of them that its link wrote
MOST_KEPT: Final = 64  # subscriptions that a topic does not have yet


def kept_at_mirror(
    options: Mapping[str, Any], theirs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that a mirror keeps for future subscriptions, and those of them that its link writes. Pure.

    Own options stay, also those by which a caller here has replaced the source's. If the link has not written
    `KEPT_BY_LINK` yet, all options that differ from the source's count as own.

    Args:
        options: of the topic.
        theirs: the options that the source keeps now, by subscription.
    """
    written = options.get(KEPT_BY_LINK, theirs)
    own = {name: each for name, each in options.get(KEPT_OPTIONS, {}).items() if each != written.get(name)}
    added = [name for name in theirs if name not in own][: max(0, MOST_KEPT - len(own))]
    by_link = {name: theirs[name] for name in added}
    return {**own, **by_link}, by_link


class Subscriptions:
    """Create, change and delete subscriptions. Look-ups are in the index."""

    def __init__(self, records: RegistryRecords) -> None:
        self._records = records
        self._index = records.index

    async def create(
        self,
        topic_id: TopicId,
        subscription: str,
        *,
        type: str,
        start_offset: int,
        options: Mapping[str, Any] | None = None,
    ) -> SubscriptionRecord:
        """Create a subscription. The transaction stores its type, its start and its options.

        Raises `AlreadyExists`, `TopicNotFound`, `InvalidName`, `InvalidArgument`.
        """
        name = check_subscription(subscription)

        async def decide(change: Change) -> TopicRecord:
            topic = self._records.topic_by_id(topic_id)
            if self._index.find_subscription(topic_id, name) is not None:
                raise subscription_taken(str(topic.name), name)
            self._records.restorable.check_not_coming_back(topic_id, name)
            kept = dict(topic.settings.options.get(KEPT_OPTIONS, {}))
            own = {**kept.pop(name, {}), **(options or {})}
            spec = SubscriptionSpec(
                name=name,
                topic=topic.name,
                type=str(type),
                start_offset=start_offset,
                created_at_ms=self._records.wall_ms(),
                options=own,
            )
            key = keys.subscription_key(topic_id, name)
            change.absent(key)
            change.put(key, spec)
            is_kept = len(kept) < len(topic.settings.options.get(KEPT_OPTIONS, {}))
            if is_kept or not topic.is_named_by_parent:  # a subscription of a partition that is gone is swept
                change.guard(self._records.as_known(topic))
            if is_kept:
                self._take_kept(change, topic, name, kept)
            return topic

        topic = (await self._records.change(decide)).result
        return self._index.subscription(topic, name)

    def _take_kept(self, change: Change, topic: TopicRecord, name: str, kept: Mapping[str, Any]) -> None:
        """Remove kept options, which are used once, from the topic. A whole topic loses them with its last partition's subscription."""
        parent = self._index.partitioned(topic.topic.base) if topic.is_named_by_parent else None
        spec: TopicSpec | PartitionedSpec = topic.spec if parent is None else parent.spec
        lacking = [
            part
            for part in self._index.partitions(topic.topic.base)
            if part.topic_id != topic.topic_id and self._index.find_subscription(part.topic_id, name) is None
        ]
        if parent is None or not lacking:
            options = {**spec.settings.options, KEPT_OPTIONS: kept}
            spec = replace(spec, settings=replace(spec.settings, options=options))
        for guard in self._records.format_of(topic):
            change.guard(guard)
        # Put also if unchanged, so that the second of two concurrent creations decides again
        change.put(topic.key, spec)

    async def ensure(
        self,
        topic_id: TopicId,
        subscription: str,
        *,
        type: str,
        start_offset: int,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[SubscriptionRecord, bool]:
        """Return the subscription as it is, or created, and whether it was created. An existing one keeps type and start."""
        found = self._index.find_subscription(topic_id, subscription)
        if found is not None:
            return found, False
        try:
            created = await self.create(
                topic_id, subscription, type=type, start_offset=start_offset, options=options
            )
        except AlreadyExists:
            return self._index.subscription(self._records.topic_by_id(topic_id), subscription), False
        return created, True

    async def update(
        self, topic_id: TopicId, subscription: str, *, options: Mapping[str, Any], type: str | None = None
    ) -> SubscriptionRecord:
        """Replace the options, and the type if it is given. Raises `TopicNotFound`, `SubscriptionNotFound`."""

        async def decide(change: Change) -> TopicRecord:
            topic = self._records.topic_by_id(topic_id)
            former = self._index.subscription(topic, subscription)
            change.guard(self._records.as_known(former))
            spec = replace(former.spec, options=dict(options), type=type or former.type)
            change.put(keys.subscription_key(topic_id, subscription), spec)
            return topic

        topic = (await self._records.change(decide)).result
        return self._index.subscription(topic, subscription)

    async def delete(self, topic_id: TopicId, subscription: str) -> SubscriptionRecord:
        """Delete a subscription in the store. Raises `TopicNotFound`, `SubscriptionNotFound`."""

        async def decide(change: Change) -> SubscriptionRecord:
            former = self._index.subscription(self._records.topic_by_id(topic_id), subscription)
            change.guard(self._records.as_known(former))
            change.delete(keys.subscription_key(topic_id, subscription))
            change.delete_range(keys.consumer_clients_range(topic_id, subscription))
            return former

        return (await self._records.change(decide)).result

    async def as_siblings(self, parts: Sequence[TopicRecord]) -> None:
        """Give partitions without messages the subscriptions of their siblings, from the first message on. For the owner."""
        siblings: dict[TopicName, dict[str, SubscriptionRecord]] = {}
        for part in parts:
            if not part.is_named_by_parent or part.dispatch_strategy is DispatchStrategy.NON_RELIABLE:
                continue
            if (found := siblings.get(part.topic.base)) is None:
                found = siblings[part.topic.base] = self._index.subscriptions_of_parts(part.topic.base)
            for one in found.values():
                if self._index.topic_by_id(part.topic_id) is not None:
                    await self.ensure(
                        part.topic_id, one.name, type=one.type, start_offset=0, options=one.spec.options
                    )
