"""Wait for what the broker says, not for time."""

from __future__ import annotations

from pydanube_broker.broker import Broker
from pydanube_core.facts import SubscriptionFacts

STEP_S = 0.005


async def facts_of(broker: Broker, topic: str, subscription: str) -> SubscriptionFacts:
    (facts,) = await broker.port.subscriptions(topic, subscription)
    return facts
