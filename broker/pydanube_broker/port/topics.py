"""Reading and changing topics and namespaces, for the admin core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio
from pydanube_core.facts import (
    BrokerAddress,
    CreatedTopicFacts,
    Grace,
    RetentionFacts,
    TopicFacts,
    UnusedFacts,
    sums_of_parts,
)
from pydanube_core.links import mirror_of, writer_elsewhere
from pydanube_core.list_keys import TopicKey
from pydanube_core.names import TopicName
from pydanube_core.refusals import deleted_meanwhile

from pydanube_broker.cluster.records import Durability, TopicRecord, TopicSettings
from pydanube_broker.parts import BrokerParts
from pydanube_broker.schema.administration import SchemaAdministration
from pydanube_broker.serving.administration import Administration
from pydanube_broker.serving.registry import Registry
from pydanube_broker.slices import Slices
from pydanube_broker.to_the_end import to_the_end
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.retention import Keep
from pydanube_broker.topics.topic import Topic

REACHED_S: Final = 5.0  # maximum that a change of durability waits for the object store


class TopicsPart(Administration):
    """The part of `BrokerPort` about topics."""

    _broker: BrokerParts

    async def topic_index(self) -> Sequence[TopicKey]:
        registry = self._broker.registry
        slices, found = Slices(), []
        several = registry.ownership.several
        records = registry.catalog.index.topics() if several else [t.options for t in registry.topics]
        for index, record in enumerate(records):
            if index % 64 == 0:
                await slices()
            if record.parent is None:
                found.append(TopicKey(record.name, (self._owner(record.topic_id),)))
        for whole in list(registry.catalog.index.all_partitioned()):
            await slices()
            parts = registry.catalog.index.partitions(whole.topic)
            owners = {self._owner(part.topic_id) for part in parts}
            found.append(TopicKey(str(whole.topic), tuple(owners)))
        return found

    async def log_count(self) -> int:
        return self._broker.registry.catalog.index.count_of_users()

    async def owners(self, topic: str) -> Sequence[BrokerAddress | None]:
        registry = self._broker.registry
        logs = registry.catalog.index.logs(TopicName.parse(topic))
        return [registry.ownership.last_known(each.topic_id) for each in logs]

    def _owner(self, topic_id: int) -> str | None:
        owner = self._broker.registry.ownership.owner(topic_id)
        return None if owner is None else owner.broker_id

    async def topics_alike(self, topic: str) -> Sequence[str]:
        return self._broker.registry.spelled_alike(TopicName.parse(topic))

    async def topic(self, topic: str) -> Sequence[TopicFacts]:
        name = TopicName.parse(topic)
        if not (facts := self._facts(name)):
            raise self._broker.registry.not_found(name)
        return facts

    async def topic_facts(self, topics: Sequence[str]) -> Sequence[Sequence[TopicFacts]]:
        slices, found = Slices(), []
        for topic in topics:
            await slices()
            _, namespace, name = topic.split("/")  # names from the index need no check
            if facts := self._facts(TopicName(namespace, name)):
                found.append(facts)
        return found

    def _facts(self, name: TopicName) -> list[TopicFacts]:
        """Return the topic's own facts, then its partitions'. Empty for an unknown topic."""
        partitioned, parts = self._broker.registry.parts(name)
        facts = [self._topic(part) for part in parts]
        return [self._parent(name, facts), *facts] if partitioned and parts else facts

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        dispatch_strategy: str,
        durability: str | None,
        options: Mapping[str, Any],
    ) -> CreatedTopicFacts:
        self._broker.health.check_publish()
        name = TopicName.parse(topic)
        given = dict(options)
        subject = given.pop("schema_subject", None)
        if subject is not None:
            given["schema"] = self._broker.registry.schemas.new_binding(subject).to_settings()
        await self._broker.registry.create(
            name,
            partitions=partitions,
            dispatch_strategy=dispatch_strategy,
            durability=durability,
            options=given,
            must_be_new=True,
        )
        if self._broker.registry.catalog.index.whole(name) is None:
            raise deleted_meanwhile(f"topic {name}", topic=str(name))
        return await self.created_topic(topic)

    async def created_topic(self, topic: str) -> CreatedTopicFacts:
        name, index = TopicName.parse(topic), self._broker.registry.catalog.index
        created = index.whole(name)
        if created is None:
            raise self._broker.registry.not_found(name)
        settings, logs, is_log = created.spec.settings, index.logs(name), isinstance(created, TopicRecord)
        return CreatedTopicFacts(
            topic=str(name),
            topic_id=created.topic_id if isinstance(created, TopicRecord) else created.parent_id,
            partitions=0 if is_log else len(logs),
            dispatch_strategy=settings.dispatch_strategy.value,
            durability=self._durability(settings),
            created_at_ms=created.spec.created_at_ms,
            owners={
                each.name: None if owner is None else owner.broker_id
                for each, owner in zip(logs, await self.owners(topic), strict=True)
            },
            kept_failure_policies=self.kept_failure_policies(topic),
            policies=dict(settings.policies),
            schema=settings.schema,
            mirror_of=mirror_of(settings.options),
            failed_over_to=writer_elsewhere(settings.options),
        )

    def _durability(self, settings: TopicSettings) -> str:
        return "memory" if self._broker.data_dir.memory else settings.durability.value

    @property
    def schemas(self) -> SchemaAdministration:
        return SchemaAdministration(self._broker.registry.schemas)

    async def delete_topic(
        self, topic: str, *, grace: Grace | None = None, held: Sequence[UnusedFacts] | None = None
    ) -> None:
        await self._broker.registry.delete(TopicName.parse(topic), grace=grace, held=held or ())

    async def restore_topic(self, call_id: str) -> str:
        found = (await self._broker.registry.restore(call_id))[0]
        return str(found.topic if found.parent is None else found.parent)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        self._broker.health.check_publish()
        self._broker.registry.check_no_mirror(TopicName.parse(topic))
        await add_partitions(self._broker.registry, TopicName.parse(topic), partitions)

    async def drop_partitions(self, topic: str, partitions: int, *, held: Sequence[UnusedFacts]) -> None:
        await self._broker.registry.drop_partitions(TopicName.parse(topic), partitions, held=held)

    async def truncate_topic(self, topic: str, offsets: Mapping[str, int]) -> None:
        self._broker.registry.check_no_mirror(TopicName.parse(topic))
        parts = [p for p in self._broker.registry.known_parts(TopicName.parse(topic)) if p.name in offsets]
        for part in parts:
            part.trim(min(offsets[part.name], part.commit))
            self._broker.tier.wake()
        for part in parts:
            await part.settled()

    async def set_durability(self, topic: str, durability: str) -> bool:
        registry = self._broker.registry
        parts = registry.known_parts(TopicName.parse(topic))
        level = Durability(durability)
        if level is Durability.STORED:
            await registry.check_stored()
        await registry.catalog.update_topic(TopicName.parse(topic), durability=level)
        for part in parts:
            registry.policies.apply(part)
        with anyio.move_on_after(REACHED_S):
            await self._broker.levels.until_reached(parts)
            return True
        return False

    async def forecast_retention(self, policies: Mapping[str, Mapping[str, int]]) -> RetentionFacts:
        slices, found = Slices(), RetentionFacts()
        registry = self._broker.registry
        for name, limits in policies.items():
            registry.ownership.check_served(registry.catalog.index.partitions(TopicName.parse(name)))
            for part in registry.parts(TopicName.parse(name))[1]:
                await slices()
                found += await self._retention(part, Keep.of(Limits.of(limits)))
        return found

    async def _retention(self, topic: Topic, keep: Keep) -> RetentionFacts:
        journal, tier = self._broker.journal, self._broker.tier
        forecast = tier.enabled().forecast(topic, keep) if self._broker.hub.tiering else None
        start, taken = self._broker.retention.forecast(topic, keep) if forecast is None else await forecast
        end = topic.commit
        if keep.bytes is None and keep.age_ms is None:  # everything below an offset, and no more
            end = min(end, keep.from_offset or 0)
        later = max(0, end - start)
        oldest_ms = None
        if later and keep.bytes is None and keep.age_ms is not None and start >= (keep.from_offset or 0):
            oldest_ms = journal.time_at_offset(topic.topic_id, start)
            if start < topic.state.tiered_offset and (cold := await tier.lag.part(topic, start)) is not None:
                oldest_ms = cold.append_time_ms
        return RetentionFacts(
            messages=start - topic.start_offset,
            bytes=taken,
            later_messages=later,
            later_from_ms=None if oldest_ms is None or keep.age_ms is None else oldest_ms + keep.age_ms,
            waits_for_cursors=not keep.drop_unread,
        )

    async def delete_namespace(self, namespace: str) -> None:
        await self._broker.registry.catalog.namespaces.delete(namespace)

    def _topic(self, topic: Topic) -> TopicFacts:
        record, state = topic.options, topic.state
        parent = record.parent
        journal_bytes, object_bytes = self._broker.stored_bytes(topic)
        tiers = self._broker.tier.missing is None and topic.durability != "memory"
        return TopicFacts(
            topic=topic.name,
            topic_id=topic.topic_id,
            parent=None if parent is None else str(parent),
            partition=record.partition,
            partitions=0,
            dispatch_strategy=record.dispatch_strategy.value,
            durability=topic.durability,
            created_at_ms=record.created_at_ms,
            owner=self._owner(topic.topic_id),
            epoch=max(state.epoch, topic.assigned_epoch),
            start_offset=topic.start_offset,
            next_offset=topic.commit,
            tiered_offset=state.tiered_offset if tiers or state.tiered_offset else None,
            messages=topic.commit - topic.start_offset,
            bytes=journal_bytes + object_bytes,
            journal_bytes=journal_bytes,
            object_bytes=object_bytes,
            producers=topic.producers_connected,
            consumers=sum(len(pump.links) for pump in topic.subscriptions.values()) + topic.readers,
            subscriptions=tuple(sorted(topic.subscriptions)),
            last_published_ms=state.append_time_ms or None,
            kept_failure_policies=self.kept_failure_policies(topic.name),
            policies=dict(record.settings.policies),
            schema=record.settings.schema,
            mirror_of=mirror_of(record.settings.options),
            failed_over_to=writer_elsewhere(record.settings.options),
            **self._stored(topic),
        )

    def _stored(self, topic: Topic) -> dict[str, int]:
        chain = self._broker.chain
        found = chain.statistics()
        if found is None or topic.durability == "memory":
            return {}
        requests, written = chain.per_hour
        first = self._broker.journal.offset_at_lsn(topic.topic_id, found.stored_lsn)
        until = topic.commit if first is None else min(topic.commit, max(first, topic.state.needed_offset))
        return {"stored_until": until, "requests_per_hour": requests, "bytes_per_hour": written}

    def _parent(self, name: TopicName, parts: Sequence[TopicFacts]) -> TopicFacts:
        """Return a partitioned topic's facts as the sum of its parts."""
        record = self._broker.registry.catalog.index.partitioned(name)
        assert record is not None
        settings = record.spec.settings
        return TopicFacts(
            topic=str(name),
            topic_id=record.parent_id,
            parent=None,
            partition=None,
            # An official client may create only some of them.
            partitions=len(parts) or record.spec.partitions,
            dispatch_strategy=settings.dispatch_strategy.value,
            durability=self._durability(settings),
            created_at_ms=record.spec.created_at_ms,
            owner=next((part.owner for part in parts), None),
            epoch=max((part.epoch for part in parts), default=0),
            start_offset=0,
            next_offset=0,
            tiered_offset=None,
            **sums_of_parts(parts),
            policies=dict(settings.policies),
            schema=settings.schema,
            mirror_of=mirror_of(settings.options),
            failed_over_to=writer_elsewhere(settings.options),
        )


async def add_partitions(registry: Registry, name: TopicName, partitions: int) -> None:
    """Add partitions to a topic, up to `partitions`. Clients see them when all exist.

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
        await _make_partitions(registry, name, partitions)


@to_the_end
async def _make_partitions(registry: Registry, name: TopicName, partitions: int) -> None:
    """Topics in the catalog must be owned and served."""
    added = await registry.catalog.make_partitions(name, partitions)
    await registry.ownership.acquire(added)
    await registry.catalog.show_partitions(name, partitions)
