"""Everything that is known of one subscription."""

from __future__ import annotations

from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.subscriptions.models import (
    SubscriptionDescription,
    SubscriptionPart,
    SubscriptionRequest,
)
from pydanube_admin.subscriptions.reading import subscription_facts
from pydanube_admin.topics.reading import find_topic


async def describe_subscription(context: Context, request: SubscriptionRequest) -> SubscriptionDescription:
    topic = (await find_topic(context, request.topic)).own.topic
    found = await subscription_facts(context, topic, request.subscription)
    created = [facts.created_at_ms for facts in found if facts.created_at_ms is not None]
    return SubscriptionDescription(
        topic=topic,
        subscription=request.subscription,
        type=found[0].type,
        lag_messages=sum(facts.state.lag_messages for facts in found),
        consumers=sum(len(facts.consumers) for facts in found),
        created_at=format_time(min(created)) if created else None,
        created_at_reason=None if created else "not_known",
        failure_policy=dict(await context.port.failure_policy(topic, request.subscription)),
        parts=[
            SubscriptionPart(
                topic=facts.topic,
                partition=facts.partition,
                subscription_id=str(facts.subscription_id),
                next_offset=facts.state.next_offset,
                next_unacked=facts.state.next_unacked,
                acked_above=facts.state.acked_above,
                lag_messages=facts.state.lag_messages,
                in_flight=facts.state.in_flight,
                redelivered=facts.state.redelivered,
                dead_lettered=facts.state.dead_lettered,
                dropped=facts.state.dropped,
                blocked_by=facts.blocked_reason,
                consumers=[
                    {
                        "id": consumer.consumer_id,
                        "name": consumer.name,
                        "active": consumer.active,
                        "in_flight": consumer.in_flight,
                        "standing": consumer.standing,
                        "credit_messages": consumer.credit_messages,
                        "connected_at": format_time(consumer.connected_at_ms),
                    }
                    for consumer in facts.consumers
                ],
            )
            for facts in found
        ],
    )
