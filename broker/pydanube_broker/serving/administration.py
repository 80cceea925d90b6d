"""An administrator's changes to topics, namespaces and subscriptions that are being served.

The catalog changes first, in one guarded transaction per item, then the served objects. Limits and failure policies
apply from the next call on, and cursors move under their consumers. A method that moves a cursor returns when that is
durable.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydanube_core.errors import DispatchMismatch, InvalidArgument, LimitReached
from pydanube_core.facts import (
    CursorDifference,
    Grace,
    NamespaceFacts,
    PolicyFacts,
    Redelivery,
    UnusedFacts,
)
from pydanube_core.names import TopicName, check_namespace, check_subscription
from pydanube_core.positions import Position
from pydanube_core.refusals import (
    no_subscription,
    policies_of_a_partition,
    skip_over_partitions,
    subscription_taken,
)

from pydanube_broker.cluster.records import Durability
from pydanube_broker.cluster.subscription_operations import KEPT_OPTIONS, MOST_KEPT
from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.delivery.pump import SubscriptionPump
from pydanube_broker.outcome import outcome_of
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.unused_holds import check_never_written
from pydanube_broker.subscription.cursor import decode_snapshot, encode_snapshot
from pydanube_broker.subscription.ranges import normalise, subtract, total
from pydanube_broker.subscription.subscription_policy import SubscriptionPolicy, policy_options, stored_policy
from pydanube_broker.to_the_end import to_the_end
from pydanube_broker.topics.limits import (
    DURABILITY_KEY,
    check_namespace_policies,
    check_policies,
    default_durability,
    effective_policies,
)
from pydanube_broker.topics.topic import Topic, now_ms


class Administration(ABC):
    """The administrator's changes, which are the part of the port that needs only the registry."""

    @property
    @abstractmethod
    def _registry(self) -> Registry:
        """The topics that this broker serves."""

    def _parts(self, topic: str) -> tuple[TopicName, Sequence[Topic]]:
        """Return the concrete topics of a name. Raises `TopicNotFound`."""
        name = TopicName.parse(topic)
        return name, self._registry.known_parts(name)

    def _pumps(self, topic: str, subscription: str) -> list[tuple[Topic, AnyPump]]:
        """Return the pumps of a subscription, one for each concrete topic. Raises `TopicNotFound`, `SubscriptionNotFound`."""
        name, parts = self._parts(topic)
        found = [
            (part, part.subscriptions[subscription]) for part in parts if subscription in part.subscriptions
        ]
        if not found:
            raise no_subscription(
                name, subscription, (known for part in parts for known in part.subscriptions)
            )
        return found

    # -- policies --------------------------------------------------------------------------------------------

    async def topic_policies(self, topic: str) -> PolicyFacts:
        """Return the policies set on the topic, and those in effect for it."""
        name, parts = self._parts(topic)
        index = self._registry.catalog.index
        parent = index.partitioned(name)
        own = parts[0].options.settings.policies if parent is None else parent.spec.settings.policies
        return PolicyFacts(own=dict(own), effective=parts[0].gate.limits.as_policies())

    async def set_topic_policies(self, topic: str, changes: Mapping[str, Any]) -> None:
        """Set some policies. None removes one. The others stay."""
        name, parts = self._parts(topic)
        if parts[0].options.parent is not None and name == parts[0].options.topic:
            raise policies_of_a_partition(str(name))
        self._registry.check_no_mirror(name)
        policies = _changed((await self.topic_policies(topic)).own, changes, check_policies)
        await self._registry.catalog.update_topic(name, policies=policies)
        for part in parts:
            self._registry.policies.apply(part)

    async def namespaces(self) -> Sequence[NamespaceFacts]:
        index = self._registry.catalog.index
        several = self._registry.ownership.several
        topics = index.topics() if several else [topic.options for topic in self._registry.topics]
        counts = Counter(topic.topic.namespace for topic in topics if topic.parent is None)
        counts.update(parent.topic.namespace for parent in index.all_partitioned())
        return [
            NamespaceFacts(
                namespace=record.name,
                created_at_ms=record.spec.created_at_ms,
                policies=dict(record.spec.policies),
                topics=counts[record.name],
            )
            for record in sorted(index.namespaces(), key=lambda record: record.name)
        ]

    async def create_namespace(
        self, namespace: str, policies: Mapping[str, Any], *, created_at_ms: int | None = None
    ) -> None:
        """Create a namespace with these policies. Raises `AlreadyExists`, `InvalidName`, `InvalidArgument`."""
        checked = await self._checked({}, policies)
        await self._registry.catalog.namespaces.create(
            namespace, policies=checked, created_at_ms=created_at_ms
        )

    async def namespace_policies(self, namespace: str) -> PolicyFacts:
        """Return the policies set on the namespace, and those in effect for a topic in it that sets none."""
        name = check_namespace(namespace)
        own = self._registry.catalog.index.namespace(name).spec.policies
        layers = self._registry.policies.layers(None, name)
        effective = {**effective_policies(*layers), DURABILITY_KEY: default_durability(*layers)}
        return PolicyFacts(own=dict(own), effective=effective)

    async def _checked(self, own: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, int | str]:
        """Return a namespace's policies after a change. A store that topics are to be in by default is checked first."""
        policies = _changed(own, changes, check_namespace_policies)
        if changes.get(DURABILITY_KEY) == Durability.STORED:
            await self._registry.check_stored(begin=False)
        return policies

    async def set_namespace_policies(self, namespace: str, changes: Mapping[str, Any]) -> None:
        """As `set_topic_policies`, for every topic in the namespace that does not set its own."""
        name = check_namespace(namespace)
        policies = await self._checked((await self.namespace_policies(name)).own, changes)
        await self._registry.catalog.namespaces.set_policies(name, policies)
        for topic in self._registry.topics:
            if topic.options.topic.namespace == name:
                self._registry.policies.apply(topic)

    # -- deletion of unused topics and subscriptions ------------------------------------------------------------

    async def hold_unused(
        self,
        topic: str,
        subscription: str | None = None,
        *,
        starts: Mapping[str, int] | None = None,
        from_partition: int | None = None,
    ) -> Sequence[UnusedFacts]:
        """Close a topic or a subscription here if it is unused. Raises `Conflict`, `ConsumerBusy`: it is used."""
        name, parts = self._parts(topic)
        if from_partition is not None:
            parts = [part for part in parts if (part.options.partition or 0) >= from_partition]
            return [self._registry.unused.hold_topic(name, parts, check=check_never_written)] if parts else []
        if subscription is None:
            return [self._registry.unused.hold_topic(name, parts)]
        self._registry.unused.hold_subscription(name, self._pumps(topic, subscription), starts)
        return []

    async def release_unused(self, topic: str, subscription: str | None = None) -> None:
        """Open a topic or a subscription again that `hold_unused` closed."""
        await self._registry.unused.release(TopicName.parse(topic), subscription)

    # -- subscriptions ---------------------------------------------------------------------------------------

    async def create_subscription(self, topic: str, subscription: str, *, type: str, start: str) -> None:
        """Create a subscription on every partition.

        Raises:
            AlreadyExists: it exists on all partitions. If another error ended an earlier call half-way, this call
                creates the missing ones.
        """
        name, parts = self._parts(topic)
        check_subscription(subscription)
        position = Position.parse(start, now_ms=now_ms(), field="start")
        if all(subscription in part.subscriptions for part in parts):
            raise subscription_taken(str(name), subscription)
        for part in parts:
            await part.prepare(position)
            part.resolve(position)  # an offset that one of them does not have is refused before any is made
        for part in parts:
            if subscription not in part.subscriptions:
                await self._registry.subscribe(
                    part, subscription, type=type, start=position, start_given=False
                )

    async def resolve_position(self, topic: str, position: str) -> Mapping[str, int]:
        """Return concrete topic → the offset of a position in it."""
        _, parts = self._parts(topic)
        place = Position.parse(position, now_ms=now_ms(), field="to")
        for part in parts:
            await part.prepare(place)
        return {part.name: part.resolve(place) for part in parts}

    async def seek_subscription(self, topic: str, subscription: str, position: str) -> None:
        """Move the cursor on every partition, with consumers attached."""
        pumps = self._pumps(topic, subscription)
        place = Position.parse(position, now_ms=now_ms(), field="to")
        for part, _ in pumps:
            await part.prepare(place)
        targets = [(pump, part.resolve(place)) for part, pump in pumps]
        for pump, offset in targets:
            if pump.closed is not None:  # deleted, or handed over to another broker, during `prepare`
                raise pump.closed
            pump.seek(offset)
        await _durable([pump for pump, _ in targets])

    async def skip_messages(self, topic: str, subscription: str, count: int) -> int:
        """Acknowledge the first `count` unacknowledged messages. Return how many were acknowledged."""
        pumps = self._pumps(topic, subscription)
        if len(pumps) > 1:
            raise skip_over_partitions(topic, len(pumps))
        ((_, pump),) = pumps
        before = pump.cursor_state(now_ms()).lag_messages
        pump.skip(count)
        await _durable([pump])
        return before - pump.cursor_state(now_ms()).lag_messages

    def _reliable(self, topic: str, subscription: str) -> SubscriptionPump:
        """Return the pump of one concrete topic. Raises `DispatchMismatch`: the topic keeps no messages."""
        ((_, pump),) = self._pumps(topic, subscription)
        if not isinstance(pump, SubscriptionPump):
            raise DispatchMismatch(
                f"{topic} is non_reliable: it keeps no messages, so none can be delivered again",
                field="topic",
                value=topic,
            )
        return pump

    async def unacknowledged(self, topic: str, subscription: str, offsets: Sequence[int]) -> Sequence[int]:
        """Return which offsets of a concrete topic are not acknowledged."""
        return self._reliable(topic, subscription).unacknowledged(offsets)

    async def count_unacknowledged(
        self, topic: str, subscription: str, ranges: Sequence[tuple[int, int]]
    ) -> int:
        """Return how many offsets of ranges of a concrete topic are not acknowledged."""
        return self._reliable(topic, subscription).count_unacknowledged(ranges)

    async def redeliver(self, topic: str, subscription: str, messages: Sequence[Redelivery]) -> Sequence[int]:
        """Deliver acknowledged messages of a concrete topic again. Return their offsets."""
        pump = self._reliable(topic, subscription)
        found = pump.redeliver(messages)
        await _durable([pump])
        return found

    async def end_of_oldest(self, topic: str, subscription: str, count: int) -> int:
        """Return one past the `count`-th message of a concrete topic that is not acknowledged."""
        return self._reliable(topic, subscription).end_of_oldest(count)

    async def acknowledge(
        self, topic: str, subscription: str, ranges: Sequence[tuple[int, int]], operation: str
    ) -> None:
        """Acknowledge ranges of a concrete topic, in any state. Durable on return."""
        pump = self._reliable(topic, subscription)
        pump.acknowledge(ranges, operation)
        await _durable([pump])

    async def withdraw(self, topic: str, subscription: str, messages: Sequence[Redelivery]) -> Sequence[int]:
        """Acknowledge those redelivered messages that were not sent since. Return their offsets."""
        pump = self._reliable(topic, subscription)
        found = pump.withdraw(messages)
        await _durable([pump])
        return found

    async def purge_subscription(self, topic: str, subscription: str) -> None:
        """Acknowledge everything published so far, on every partition."""
        pumps = [pump for _, pump in self._pumps(topic, subscription)]
        for pump in pumps:
            pump.purge()
        await _durable(pumps)

    async def cursors(self, topic: str, subscription: str) -> Mapping[str, bytes]:
        """Return the cursor of each concrete topic, in the form that `place_cursors` takes."""
        return {part.name: encode_snapshot(pump.cursor) for part, pump in self._pumps(topic, subscription)}

    async def place_cursors(self, topic: str, subscription: str, images: Mapping[str, bytes]) -> None:
        """Restore cursors to these images. Durable on return."""
        pumps = [(part, pump) for part, pump in self._pumps(topic, subscription) if part.name in images]
        for part, pump in pumps:
            pump.restore_cursor(decode_snapshot(images[part.name]))
        await _durable([pump for _, pump in pumps])

    async def compare_cursors(
        self, topic: str, subscription: str, images: Mapping[str, bytes], starts: Mapping[str, int]
    ) -> CursorDifference:
        """Return the result that `place_cursors` would have. `starts`: the topics' start offsets at the images' time."""
        passed = missing = restored = 0
        for part, pump in self._pumps(topic, subscription):
            if part.name not in images:
                continue
            then = decode_snapshot(images[part.name])
            stored = normalise([(part.start_offset, part.commit)])
            unread = subtract(stored, [(0, pump.floor), *pump.cursor.acknowledged])
            unread_then = subtract(stored, [(0, then.floor), *then.acknowledged])
            passed += total(subtract(unread, unread_then))
            restored += total(subtract(unread_then, unread))
            begin = max(then.floor, starts.get(part.name, 0))
            missing += total(subtract(normalise([(begin, part.start_offset)]), then.acknowledged))
        return CursorDifference(passed_over=passed, missing=missing, restored=restored)

    async def restore_subscription(self, call_id: str) -> None:
        """Restore a deleted subscription, with its cursors.

        Raises `SubscriptionNotFound`, `TopicNotFound`, `NameReused`.
        """
        for record in await self._registry.catalog.tombstones.restore_subscriptions(call_id):
            owner = self._registry.catalog.index.topic_by_id(record.topic_id)
            part = None if owner is None else self._registry.find(owner.topic)
            if part is not None:
                self._registry.ownership.adopt_subscription(part, record)

    async def delete_subscription(
        self, topic: str, subscription: str, *, grace: Grace | None = None, held: bool = False
    ) -> None:
        """Delete a subscription on every partition, and end its consumers' streams. With a grace it can be restored."""
        pumps = self._pumps(topic, subscription)
        if not held:
            await self._delete_subscription(pumps, subscription, grace)
            return
        with self._registry.unused.deleting_subscription(TopicName.parse(topic), subscription):
            await self._delete_subscription(pumps, subscription, grace)

    @to_the_end
    async def _delete_subscription(
        self, pumps: Sequence[tuple[Topic, AnyPump]], subscription: str, grace: Grace | None
    ) -> None:
        catalog = self._registry.catalog
        if grace is not None:
            await _durable([pump for _, pump in pumps])
        for part, pump in pumps:
            topic_id = part.options.topic_id
            try:
                if grace is None:
                    await catalog.subscriptions.delete(topic_id, subscription)
                else:
                    pump.store_snapshot()
                    await catalog.tombstones.delete_subscription(topic_id, subscription, grace)
            finally:  # a subscription that left the catalog is not served, however the call ended
                if catalog.index.find_subscription(topic_id, subscription) is None:
                    self._registry.ownership.subscription_deleted(part, pump)

    async def failure_policy(self, topic: str, subscription: str) -> Mapping[str, Any]:
        """Return the fields in effect, or those kept for a subscription that does not exist yet."""
        kept = self.kept_failure_policies(topic).get(subscription)
        if kept is not None and not self._has(topic, subscription):
            return self._registry.policies.of_failures(kept).as_fields(TopicName.parse(topic), subscription)
        part, pump = self._pumps(topic, subscription)[0]
        return pump.policy.as_fields(part.options.topic, subscription)

    async def set_failure_policy(
        self, topic: str, subscription: str, changes: Mapping[str, Any], *, keep: bool = False
    ) -> None:
        """Set some of the fields, and keep the others. Takes effect immediately.

        Raises:
            InvalidArgument: a field or its value is wrong. Nothing has changed.
            LimitReached: with `keep`, see `ClusterPort.set_failure_policy`. The topic keeps the maximum number of them.
        """
        catalog = self._registry.catalog
        if keep and not self._has(topic, subscription):
            await self._keep_failure_policy(topic, subscription, changes)
            return
        for part, pump, stored, policy in self._with_policy(topic, subscription, changes):
            record = catalog.index.subscription(part.options, subscription)
            await catalog.subscriptions.update(
                part.options.topic_id, subscription, options={**record.spec.options, **policy_options(stored)}
            )
            pump.set_policy(policy)

    async def forecast_failure_policy(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> int:
        """Return how many messages `set_failure_policy` would drop or dead-letter immediately. Raises as it does."""
        found = self._with_policy(topic, subscription, changes)
        return sum(pump.exhausted_by(policy) for _, pump, _, policy in found)

    def _with_policy(
        self, topic: str, subscription: str, changes: Mapping[str, Any]
    ) -> list[tuple[Topic, AnyPump, dict[str, Any], SubscriptionPolicy]]:
        """Return each concrete topic's subscription, with its policy after a change: as stored, and as in effect."""
        self._check_dead_letters(changes)
        catalog = self._registry.catalog
        found = []
        for part, pump in self._pumps(topic, subscription):
            record = catalog.index.subscription(part.options, subscription)
            stored = {**stored_policy(record.spec.options), **changes}
            if not stored.get("dead_letter_topic", "unset"):
                del stored["dead_letter_topic"]  # empty: the default one again
            policy = self._registry.policies.of_failures(stored)
            policy.check(part.options.topic, subscription)
            found.append((part, pump, stored, policy))
        return found

    def _check_dead_letters(self, changes: Mapping[str, Any]) -> None:
        named = changes.get("dead_letter_topic")
        if named and self._registry.catalog.index.find_namespace(TopicName.parse(named).namespace) is None:
            raise InvalidArgument(
                f"dead_letter_topic: the namespace of {named} does not exist. Create it first, or name another topic",
                field="dead_letter_topic",
                value=named,
            )

    def _has(self, topic: str, subscription: str) -> bool:
        return any(subscription in part.subscriptions for part in self._parts(topic)[1])

    def kept_failure_policies(self, topic: str) -> dict[str, dict[str, Any]]:
        """Return the failure policies kept for subscriptions that do not exist yet, by name."""
        index = self._registry.catalog.index
        return {
            name: stored_policy(options)
            for log in index.logs(TopicName.parse(topic))
            for name, options in log.settings.options.get(KEPT_OPTIONS, {}).items()
        }

    async def _keep_failure_policy(self, topic: str, subscription: str, fields: Mapping[str, Any]) -> None:
        name, parts = self._parts(topic)

        def decide(present: Mapping[str, Any]) -> Mapping[str, Any]:
            others = {key: each for key, each in present.items() if key != subscription}
            changed = {**stored_policy(present.get(subscription, {})), **fields} if fields else {}
            # An empty value is the default dead-letter topic
            given = {key: value for key, value in changed.items() if value != ""}
            if not given:
                return others
            self._check_dead_letters(given)
            self._registry.policies.of_failures(given).check(name, check_subscription(subscription))
            if len(others) >= MOST_KEPT:
                raise LimitReached(
                    f"{name} keeps the failure policies of {len(others)} subscriptions that are not there, at most "
                    f"{MOST_KEPT}: make some of them first",
                    field="subscription",
                    value=subscription,
                    kept=sorted(others)[:20],
                )
            return {**others, subscription: policy_options(given)}

        await self._registry.catalog.decide_kept(name, decide)
        for part in parts:
            self._registry.policies.apply(part)


def _changed(
    own: Mapping[str, Any],
    changes: Mapping[str, Any],
    check: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the policies after a change whose values are checked. None removes one."""
    kept = {key: value for key, value in own.items() if key not in changes}
    return {**kept, **check({key: value for key, value in changes.items() if value is not None})}


async def _durable(pumps: Sequence[AnyPump]) -> None:
    """Wait until the cursors are safe. Raises the error that prevents it."""
    waiting = [outcome_of(pump.confirm) for pump in pumps]
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
