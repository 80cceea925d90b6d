"""Operations that create and delete subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from pydanube_core.errors import AlreadyExists, Conflict, SubscriptionNotFound, TopicNotFound
from pydanube_core.facts import SubscriptionFacts
from pydanube_core.names import check_subscription
from pydanube_core.positions import Position
from pydanube_core.refusals import reused, subscription_taken
from pydanube_core.units import counted

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius, entry, nothing_left
from pydanube_admin.engine.models import Change, Request, SubscriptionArgument, TopicArgument
from pydanube_admin.engine.next_calls import next_call
from pydanube_admin.engine.operation import Example, operation
from pydanube_admin.operations.subscriptions import SubscriptionRequest, subscription_facts
from pydanube_admin.operations.topics import Topic, find_topic


class CreateSubscriptionRequest(Request):
    topic: TopicArgument
    subscription: SubscriptionArgument
    type: Annotated[
        Literal["exclusive", "shared", "failover", "key-shared"], Field(description="Who gets what")
    ] = "exclusive"
    start: Annotated[
        str,
        Field(max_length=64, description="earliest, latest, offset:42, time:2026-01-31T12:00:00Z, time:-15m"),
    ] = "earliest"


class CreatedSubscription(Change):
    topic: str
    subscription: str
    type: str
    partitions: int
    lag_messages: int


class DeletedSubscription(Change):
    """The result of a deletion: what went with the subscription."""

    topic: str
    subscription: str
    partitions: int
    lag_messages: int
    consumers: int


async def find_subscription(
    context: Context, request: SubscriptionRequest | CreateSubscriptionRequest
) -> tuple[Topic, list[SubscriptionFacts]]:
    """The topic, and the subscription on each of its logs. Raises `TopicNotFound`, `SubscriptionNotFound`."""
    topic = await find_topic(context, request.topic)
    return topic, await subscription_facts(context, topic.own.topic, request.subscription)


def subscription_path(topic: Topic, subscription: str) -> str:
    return f"topics{topic.own.topic}/subscriptions/{subscription}"


def lag_of(found: Sequence[SubscriptionFacts]) -> int:
    return sum(facts.state.lag_messages for facts in found)


def consumers_of(found: Sequence[SubscriptionFacts]) -> int:
    return sum(len(facts.consumers) for facts in found)


def passing_over(found: Sequence[SubscriptionFacts], messages: int) -> dict[str, int | None]:
    """So many messages are passed over; nobody has counted their bytes, and none goes from the disk by it."""
    return blast_radius(
        subscriptions=1, consumers=consumers_of(found), messages=messages, bytes=None if messages else 0
    )


async def forecast_create_subscription(context: Context, request: CreateSubscriptionRequest) -> Forecast:
    topic = await _creatable(context, request)
    if all(request.subscription in log.subscriptions for log in topic.logs):
        raise _taken(topic, request.subscription)
    starts = await context.port.resolve_position(topic.own.topic, request.start)
    after = {"type": request.type, "start": request.start}
    return Forecast(
        diff=[entry(subscription_path(topic, request.subscription), None, after)],
        blast_radius=blast_radius(subscriptions=1),
        image={"topic_id": str(topic.own.topic_id), "starts": dict(starts)},
    )


async def undo_create_subscription(context: Context, request: CreateSubscriptionRequest, done: Done) -> Undo:
    """Delete what was created, as long as nobody reads by it; with a plan, once it holds unread or has been used."""
    try:
        topic, found = await find_subscription(context, request)
    except (TopicNotFound, SubscriptionNotFound):
        return Undo(act=nothing_left)
    if str(topic.own.topic_id) != done.image["topic_id"]:
        raise reused("topic", topic.own.topic)
    if consumers_of(found):
        raise Conflict(
            f"{counted(consumers_of(found), 'consumer reads', 'consumers read')} by the subscription "
            f"{request.subscription!r} of {topic.own.topic}: undoing its creation would disconnect them. Delete it with a plan instead",
            field="call_id",
            retryable=False,
            topic=topic.own.topic,
        )
    whole = SubscriptionRequest(topic=request.topic, subscription=request.subscription)
    used = lag_of(found) or any(
        facts.state.next_unacked != done.image.get("starts", {}).get(facts.topic) for facts in found
    )
    forecast = await forecast_delete_subscription(context, whole)
    return Undo(
        act=partial(context.port.delete_subscription, topic.own.topic, request.subscription),
        forecast=replace(forecast, effect=Effect.DESTROY if used else None),
    )


@operation(
    "subscriptions.create",
    effect=Effect.CREATE,
    title="Create a subscription",
    summary="Create a subscription before its first consumer comes, on every partition.",
    forecast=forecast_create_subscription,
    undo=undo_create_subscription,
    examples=(
        Example({"topic": "orders", "subscription": "billing", "type": "shared"}, "from the start"),
        Example(
            {"topic": "orders", "subscription": "audit", "start": "latest"}, "only what comes from now on"
        ),
    ),
)
async def create_subscription(context: Context, request: CreateSubscriptionRequest) -> CreatedSubscription:
    topic = await _creatable(context, request)
    try:
        await context.port.create_subscription(
            topic.own.topic, request.subscription, type=request.type, start=request.start
        )
    except AlreadyExists as error:
        raise _taken(topic, request.subscription) from error
    found = await subscription_facts(context, topic.own.topic, request.subscription)
    return CreatedSubscription(
        topic=topic.own.topic,
        subscription=request.subscription,
        type=found[0].type,
        partitions=topic.own.partitions,
        lag_messages=lag_of(found),
    )


async def _creatable(context: Context, request: CreateSubscriptionRequest) -> Topic:
    check_subscription(request.subscription)
    Position.parse(request.start, now_ms=context.now_ms(), field="start")
    return await find_topic(context, request.topic)


def _taken(topic: Topic, subscription: str) -> AlreadyExists:
    arguments = {"topic": topic.own.topic, "subscription": subscription}
    return subscription_taken(topic.own.topic, subscription).followed_by(
        next_call("subscriptions.lag", arguments, "shows the one that has the name")
    )


async def forecast_delete_subscription(context: Context, request: SubscriptionRequest) -> Forecast:
    topic, found = await find_subscription(context, request)
    before = {
        "type": found[0].type,
        "lag_messages": lag_of(found),
        "next_unacked": [facts.state.next_unacked for facts in found],
    }
    identity = [str(facts.subscription_id) for facts in found]
    at_work = topic.producers or consumers_of(found)
    return Forecast(
        diff=[entry(subscription_path(topic, request.subscription), before, None)],
        blast_radius=passing_over(found, lag_of(found)),
        image={"call_id": context.call_id, "subscription_ids": identity},
        basis=identity,
        counts=None if at_work else before,
    )


async def undo_delete_subscription(context: Context, request: SubscriptionRequest, done: Done) -> Undo:
    return Undo(act=partial(_restore, context, request, done.image))


@operation(
    "subscriptions.delete",
    effect=Effect.DESTROY,
    tool="unsubscribe",
    title="Delete a subscription",
    summary="Delete a subscription with its cursor; its consumers are disconnected.",
    forecast=forecast_delete_subscription,
    undo=undo_delete_subscription,
    examples=(Example({"topic": "orders", "subscription": "billing"}, "shows what would go, then asks"),),
)
async def delete_subscription(context: Context, request: SubscriptionRequest) -> DeletedSubscription:
    topic, found = await find_subscription(context, request)
    await context.port.delete_subscription(topic.own.topic, request.subscription, grace=context.grace)
    return DeletedSubscription(
        topic=topic.own.topic,
        subscription=request.subscription,
        partitions=topic.own.partitions,
        lag_messages=lag_of(found),
        consumers=consumers_of(found),
    )


async def _restore(context: Context, request: SubscriptionRequest, image: Mapping[str, Any]) -> None:
    try:
        await context.port.restore_subscription(image["call_id"])
    except SubscriptionNotFound:
        _, found = await find_subscription(context, request)
        if [str(facts.subscription_id) for facts in found] != image["subscription_ids"]:
            raise reused(
                "subscription", request.subscription
            ) from None  # else it never went, or is back already
