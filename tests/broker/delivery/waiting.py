"""Wait for what the broker says, not for time."""

from __future__ import annotations

from typing import Any

from pydanube import Message
from pydanube_broker.broker import Broker
from pydanube_core.facts import SubscriptionFacts

from tests.support.waiting import until

__all__ = ["facts_of", "take", "until"]

STEP_S = 0.005


async def facts_of(broker: Broker, topic: str, subscription: str) -> SubscriptionFacts:
    (facts,) = await broker.port.subscriptions(topic, subscription)
    return facts


async def take(consumer: Any, count: int) -> list[Message]:
    """Receive that many messages without acknowledging them."""
    found: list[Message] = []
    while len(found) < count:
        found += await consumer.receive(max_messages=count - len(found), max_wait_s=60)
    return found
