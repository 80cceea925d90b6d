"""Reading and changing subscriptions, for the admin core."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube_core.facts import SubscriptionFacts
from pydanube_core.names import TopicName
from pydanube_core.refusals import no_subscription

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.observation.viewing import consumers_of
from pydanube_broker.parts import BrokerParts
from pydanube_broker.serving.administration import Administration
from pydanube_broker.slices import Slices
from pydanube_broker.tier.cold_lag import ColdPart
from pydanube_broker.topics.topic import Topic, now_ms


class SubscriptionsPart(Administration):
    """The part of `BrokerPort` about subscriptions."""

    _broker: BrokerParts

    async def subscriptions(self, topic: str | None, subscription: str | None) -> Sequence[SubscriptionFacts]:
        registry = self._broker.registry
        if topic is None:
            topics: Sequence[Topic] = sorted(registry.topics, key=lambda one: one.name)
        else:
            topics = registry.known_parts(TopicName.parse(topic))
        slices, found = Slices(), []
        for one in topics:
            for pump in sorted(one.subscriptions.values(), key=lambda pump: pump.name):
                if subscription is None or pump.name == subscription:
                    await slices()
                    found.append(self._subscription(one, pump, await self._cold_part(one, pump)))
        if not found and subscription is not None:
            existing = (name for one in topics for name in one.subscriptions)
            raise no_subscription(topic or "no topic", subscription, existing)
        return found

    async def _cold_part(self, topic: Topic, pump: AnyPump) -> ColdPart | None:
        """Return the part of its unread messages that only the cold tier has."""
        offset = max(pump.floor, topic.start_offset)
        if offset >= min(topic.state.tiered_offset, topic.commit):
            return None
        return await self._broker.tier.lag.part(topic, offset)

    def _subscription(self, topic: Topic, pump: AnyPump, cold: ColdPart | None) -> SubscriptionFacts:
        statistics, state = pump.statistics(), pump.cursor_state(now_ms())
        floor = state.oldest_unread
        if floor >= topic.commit:
            lag_bytes, oldest_ms = 0, None
        elif cold is not None and floor < (tiered := topic.state.tiered_offset):
            # Acknowledgements may have arrived during the read of the tier. They reduce the bytes in proportion, and
            # hardly the age.
            in_tier = cold.bytes * (tiered - max(floor, cold.offset)) // max(1, tiered - cold.offset)
            lag_bytes = in_tier + self._lag_bytes(topic, tiered)
            oldest_ms = cold.append_time_ms
        else:
            lag_bytes = self._lag_bytes(topic, floor)
            oldest_ms = self._broker.journal.time_at_offset(topic.topic_id, floor)
        # It is not recorded which bytes behind the cursor are acknowledged, so their mean size counts.
        if state.acked_above:
            lag_bytes = lag_bytes * state.lag_messages // (state.lag_messages + state.acked_above)
        answer = pump.attendance.last_answer()
        return SubscriptionFacts(
            topic=topic.name,
            partition=topic.options.partition,
            subscription=pump.name,
            subscription_id=pump.subscription_id,
            type=pump.type.value,
            state=state,
            lag_bytes=lag_bytes,
            oldest_unread_append_ms=oldest_ms,
            consumers=consumers_of(pump),
            blocked_reason=None
            if statistics is None or statistics.blocked_by is None
            else f"offset {statistics.blocked_by.offset}: {statistics.blocked_by.reason}",
            created_at_ms=pump.created_at_ms,
            last_consumed_ms=None if answer is None else answer.at_ms,
            last_consumer=None if answer is None else answer.name,
        )

    def _lag_bytes(self, topic: Topic, offset: int) -> int:
        return self._broker.journal.stored_bytes(topic.topic_id, offset)
