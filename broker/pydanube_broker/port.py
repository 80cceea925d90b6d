"""The broker as the admin core and the status pages see it (`pydanube_core.cluster_port.ClusterPort`)."""

from __future__ import annotations

import importlib.metadata
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydanube_core.errors import SubscriptionNotFound
from pydanube_core.facts import (
    BrokerFacts,
    ConsumerFacts,
    NamespaceFacts,
    PolicyFacts,
    Reason,
    SubscriptionFacts,
    TopicFacts,
)
from pydanube_core.names import TopicName

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.delivery.non_reliable import LivePump
from pydanube_broker.metrics import Gathered, SubscriptionSample, TopicSample
from pydanube_broker.schema.administration import SchemaAdministration
from pydanube_broker.serving.administration import Administration
from pydanube_broker.tier.cold_lag import ColdPart
from pydanube_broker.tier.port import TierPort
from pydanube_broker.topics.topic import Topic, now_ms

if TYPE_CHECKING:
    from pydanube_broker.broker import Broker
    from pydanube_broker.tier.tier import Tier

__all__ = ["BrokerPort"]


class BrokerPort(TierPort):
    """Facts, read at the moment they are asked for, and the changes an operation may make."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        try:
            self.version = importlib.metadata.version("pydanube")
        except importlib.metadata.PackageNotFoundError:
            self.version = "0+source"

    # -- topics ----------------------------------------------------------------------------------------------

    async def topics(self) -> Sequence[TopicFacts]:
        registry = self._broker.registry
        facts = [self._topic(topic) for topic in registry.topics]
        facts += [self._parent(record.topic) for record in registry.catalog.index.all_partitioned()]
        return sorted(facts, key=lambda fact: fact.topic)

    async def topic(self, topic: str) -> Sequence[TopicFacts]:
        name = TopicName.parse(topic)
        partitioned, parts = self._broker.registry.parts(name)
        if not parts:
            raise self._broker.registry.not_found(name)
        facts = [self._topic(part) for part in parts]
        return [self._parent(name), *facts] if partitioned else facts

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        dispatch_strategy: str,
        durability: str,
        options: Mapping[str, Any],
    ) -> None:
        self._broker.health.check_publish()
        given = dict(options)
        subject = given.pop("schema_subject", None)
        if subject is not None:
            given["schema"] = self._broker.registry.schemas.new_binding(subject).to_settings()
        await self._broker.registry.create(
            TopicName.parse(topic),
            partitions=partitions,
            dispatch_strategy=dispatch_strategy,
            durability=durability,
            options=given,
            must_be_new=True,
        )

    @property
    def schemas(self) -> SchemaAdministration:
        return SchemaAdministration(self._broker.registry.schemas)

    async def delete_topic(self, topic: str) -> None:
        await self._broker.registry.delete(TopicName.parse(topic))

    async def topic_policies(self, topic: str) -> PolicyFacts:
        return self._administration.topic_policies(topic)

    async def set_topic_policies(self, topic: str, changes: Mapping[str, int | None]) -> None:
        await self._administration.set_topic_policies(topic, changes)

    async def namespaces(self) -> Sequence[NamespaceFacts]:
        return self._administration.namespaces()

    async def create_namespace(self, namespace: str, policies: Mapping[str, int | None]) -> None:
        await self._administration.create_namespace(namespace, policies)

    async def namespace_policies(self, namespace: str) -> PolicyFacts:
        return self._administration.namespace_policies(namespace)

    async def set_namespace_policies(self, namespace: str, changes: Mapping[str, int | None]) -> None:
        await self._administration.set_namespace_policies(namespace, changes)

    @property
    def _administration(self) -> Administration:
        return Administration(self._broker.registry)

    def _topic(self, topic: Topic) -> TopicFacts:
        record, state = topic.options, topic.state
        parent = record.parent
        # Once: what is tiered and still in the journal counts as an object.
        journal_bytes = self._broker.journal.stored_bytes(topic.topic_id, state.needed_offset)
        object_bytes = self._broker.tier.object_bytes.get(topic.topic_id, 0)
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
            owner=str(self._broker.data_dir.broker_id),
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
            policies=dict(record.settings.policies),
            schema=record.settings.schema,
        )

    def _parent(self, name: TopicName) -> TopicFacts:
        """A partitioned topic as the sum of its parts."""
        record = self._broker.registry.catalog.index.partitioned(name)
        assert record is not None
        parts = [self._topic(topic) for topic in self._broker.registry.parts(name)[1]]
        settings = record.spec.settings
        return TopicFacts(
            topic=str(name),
            topic_id=record.parent_id,
            parent=None,
            partition=None,
            partitions=record.spec.partitions,
            dispatch_strategy=settings.dispatch_strategy.value,
            durability="memory" if self._broker.data_dir.memory else settings.durability.value,
            created_at_ms=record.spec.created_at_ms,
            owner=str(self._broker.data_dir.broker_id),
            epoch=max((part.epoch for part in parts), default=0),
            start_offset=0,
            next_offset=0,
            tiered_offset=None,
            messages=sum(part.messages for part in parts),
            bytes=sum(part.bytes for part in parts),
            journal_bytes=sum(part.journal_bytes for part in parts),
            object_bytes=sum(part.object_bytes for part in parts),
            producers=sum(part.producers for part in parts),
            consumers=sum(part.consumers for part in parts),
            subscriptions=tuple(sorted({name for part in parts for name in part.subscriptions})),
            policies=dict(settings.policies),
            schema=settings.schema,
        )

    # -- subscriptions ---------------------------------------------------------------------------------------

    async def subscriptions(self, topic: str | None, subscription: str | None) -> Sequence[SubscriptionFacts]:
        registry = self._broker.registry
        if topic is None:
            topics: Sequence[Topic] = sorted(registry.topics, key=lambda one: one.name)
        else:
            name = TopicName.parse(topic)
            topics = registry.parts(name)[1]
            if not topics:
                raise registry.not_found(name)
        found = [
            self._subscription(one, pump, await self._cold_part(one, pump))
            for one in topics
            for pump in sorted(one.subscriptions.values(), key=lambda pump: pump.name)
            if subscription is None or pump.name == subscription
        ]
        if not found and subscription is not None:
            raise SubscriptionNotFound(
                f"{topic or 'no topic'} has no subscription {subscription!r}",
                field="subscription",
                value=subscription,
                existing=sorted({pump for one in topics for pump in one.subscriptions})[:20],
            )
        return found

    async def create_subscription(self, topic: str, subscription: str, *, type: str, start: str) -> None:
        await self._administration.create_subscription(topic, subscription, type=type, start=start)

    async def resolve_position(self, topic: str, position: str) -> Mapping[str, int]:
        return await self._administration.resolve(topic, position)

    async def seek_subscription(self, topic: str, subscription: str, position: str) -> None:
        await self._administration.seek(topic, subscription, position)

    async def skip_messages(self, topic: str, subscription: str, count: int) -> int:
        return await self._administration.skip(topic, subscription, count)

    async def purge_subscription(self, topic: str, subscription: str) -> None:
        await self._administration.purge(topic, subscription)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        await self._administration.delete_subscription(topic, subscription)

    async def failure_policy(self, topic: str, subscription: str) -> Mapping[str, Any]:
        return self._administration.failure_policy(topic, subscription)

    async def set_failure_policy(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> None:
        await self._administration.set_failure_policy(topic, subscription, changes)

    async def _cold_part(self, topic: Topic, pump: AnyPump) -> ColdPart | None:
        """What of its unread messages is not in the journal any more."""
        offset = max(pump.cursor.floor, topic.start_offset)
        if offset >= min(topic.state.tiered_offset, topic.commit):
            return None
        return await self._broker.tier.lag.part(topic, offset)

    def _subscription(self, topic: Topic, pump: AnyPump, cold: ColdPart | None) -> SubscriptionFacts:
        cursor = pump.cursor
        statistics = pump.statistics()
        floor = max(cursor.floor, topic.start_offset)
        behind = floor < topic.commit
        if not behind:
            lag_bytes, oldest_ms = 0, None
        elif cold is not None and floor <= cold.offset < topic.state.tiered_offset:
            lag_bytes = cold.bytes + self._lag_bytes(topic, topic.state.tiered_offset)
            oldest_ms = cold.append_time_ms
        else:
            lag_bytes = self._lag_bytes(topic, floor)
            oldest_ms = self._broker.journal.time_at_offset(topic.topic_id, floor)
        consumers = () if statistics is None else statistics.consumers
        return SubscriptionFacts(
            topic=topic.name,
            partition=topic.options.partition,
            subscription=pump.name,
            subscription_id=pump.subscription_id,
            type=pump.type.value,
            start_offset=topic.start_offset,
            next_offset=topic.commit,
            next_unacked=cursor.floor,
            acked_above=sum(end - start for start, end in cursor.acknowledged),
            in_flight=0 if statistics is None else statistics.in_flight,
            redelivered=0 if statistics is None else statistics.redelivered,
            dead_lettered=0 if statistics is None else statistics.dead_lettered,
            lag_bytes=lag_bytes,
            oldest_unread_append_ms=oldest_ms,
            consumers=tuple(
                ConsumerFacts(
                    consumer_id=str(consumer.consumer_id),
                    name=consumer.name,
                    active=consumer.active,
                    credit_messages=consumer.credit_messages,
                    in_flight=consumer.in_flight,
                    connected_at_ms=pump.links[consumer.consumer_id].connected_at_ms
                    if consumer.consumer_id in pump.links
                    else now_ms(),
                    dropped=pump.dropped_of(consumer.consumer_id) if isinstance(pump, LivePump) else 0,
                )
                for consumer in consumers
            ),
            blocked_reason=None
            if statistics is None or statistics.blocked_by is None
            else f"offset {statistics.blocked_by.offset}: {statistics.blocked_by.reason}",
            created_at_ms=pump.created_at_ms,
            dropped=0 if statistics is None else statistics.dropped,
        )

    def _oldest_ms(self, topic: Topic, offset: int) -> int | None:
        """Append time at an offset, as far as it is in memory: that of a cursor in the cold tier may be looked up yet."""
        if offset < topic.state.tiered_offset:
            known = self._broker.tier.lag.known_time_ms(topic.topic_id, offset)
            if known is not None:
                return known
            first = self._broker.journal.first_offset(topic.topic_id)
            if first is None or offset < first:
                return None
        return self._broker.journal.time_at_offset(topic.topic_id, offset)

    def _lag_bytes(self, topic: Topic, offset: int) -> int:
        return self._broker.journal.stored_bytes(topic.topic_id, offset)

    # -- the broker ------------------------------------------------------------------------------------------

    def not_ready(self) -> tuple[Reason, ...]:
        return self._broker.health.reasons()

    def degraded(self) -> tuple[Reason, ...]:
        """What is not as it should be and keeps nobody from publishing or consuming."""
        tier: Tier | None = getattr(self._broker, "tier", None)  # none before the journal has begun
        return () if tier is None else tier.reasons()

    async def status(self) -> BrokerFacts:
        broker = self._broker
        journal = broker.journal.statistics()
        sync_s = sorted(journal.fsync_s)
        reasons = broker.health.reasons()
        listen = {"grpc": broker.broker_url, "admin": broker.admin_url, "metrics": broker.metrics_url}
        if broker.http_url is not None:
            listen["http"] = broker.http_url
        return BrokerFacts(
            version=self.version,
            broker_id=str(broker.data_dir.broker_id),
            pid=os.getpid(),
            uptime_s=round(time.monotonic() - broker.started_at, 1),
            durability=broker.durability,
            grpc_runtime=broker.settings.server.grpc_runtime,
            data_dir=None if broker.data_dir.memory else str(broker.data_dir.path),
            data_dir_reason="memory_only" if broker.data_dir.memory else None,
            listen=listen,
            disk=dict(broker.health.disk),
            journal={
                "bytes": journal.bytes,
                "segments": journal.segments,
                "ready_segments": journal.ready_segments,
                "durable_lsn": journal.durable_lsn,
                "waiting_bytes": journal.waiting_bytes,
                "tail_cache_bytes": journal.tail_cache_bytes,
                "syncs": journal.syncs,
                "fsync_p50_ms": _percentile_ms(sync_s, 0.5),
                "fsync_p99_ms": _percentile_ms(sync_s, 0.99),
            },
            tier=broker.tier.status(),
            topics=len(broker.registry.topics),
            read_only=journal.read_only,
            ready=not reasons,
            reasons=reasons + self.degraded(),
        )

    def metrics(self) -> bytes:
        broker = self._broker
        journal = broker.journal.statistics()
        now = now_ms()
        tier: Tier | None = getattr(broker, "tier", None)
        topics: list[TopicSample] = []
        subscriptions: list[SubscriptionSample] = []
        for topic in broker.registry.topics:
            pumps = list(topic.subscriptions.values())
            topics.append(
                TopicSample(
                    topic=topic.name,
                    messages_in=topic.messages_in,
                    bytes_in=topic.bytes_in,
                    producers=topic.producers_connected,
                    consumers=sum(len(pump.links) for pump in pumps) + topic.readers,
                    subscriptions=len(pumps),
                )
            )
            for pump in pumps:
                floor = max(pump.cursor.floor, topic.start_offset)
                acked = sum(end - start for start, end in pump.cursor.acknowledged)
                lag = topic.commit - floor - acked
                oldest = self._oldest_ms(topic, floor) if lag else None
                statistics = pump.statistics()
                subscriptions.append(
                    SubscriptionSample(
                        topic=topic.name,
                        subscription=pump.name,
                        lag_messages=lag,
                        oldest_unread_age_s=0.0
                        if not lag
                        else None
                        if oldest is None
                        else (now - oldest) / 1000,
                        active_consumers=len(pump.links),
                        messages_out=pump.delivered,
                        redelivered=0 if statistics is None else statistics.redelivered,
                    )
                )
        return broker.metrics.render(
            Gathered(
                broker_id=str(broker.data_dir.broker_id),
                version=self.version,
                journal_bytes=journal.bytes,
                journal_read_only=journal.read_only,
                tier_backlog_bytes=0 if tier is None else tier.backlog_bytes,
                tier_errors=0 if tier is None else tier.errors,
                tier_objects={} if tier is None else tier.object_counts(),
                topics=topics,
                subscriptions=subscriptions,
            )
        )


def _percentile_ms(ascending_s: Sequence[float], share: float) -> float | None:
    if not ascending_s:
        return None
    return round(ascending_s[min(len(ascending_s) - 1, math.floor(len(ascending_s) * share))] * 1000, 3)
