"""Making, moving and deleting subscriptions, and what becomes of failed deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydanube_core.errors import AlreadyExists, InvalidArgument
from pydanube_core.facts import SubscriptionFacts
from pydanube_core.names import check_subscription
from pydanube_core.positions import Position
from pydanube_core.refusals import skip_over_partitions, subscription_taken

from pydanube_admin.context import Context
from pydanube_admin.models import Preview, Request
from pydanube_admin.next_calls import next_call
from pydanube_admin.previews import blast_radius, changes
from pydanube_admin.subscriptions.models import (
    CreatedSubscription,
    CreateSubscriptionRequest,
    CursorPlace,
    DeletedSubscription,
    FailurePolicyResult,
    MovedCursor,
    SeekSubscriptionRequest,
    SetFailurePolicyRequest,
    SkipMessagesRequest,
    SubscriptionRequest,
)
from pydanube_admin.subscriptions.reading import subscription_facts
from pydanube_admin.topics.reading import Topic, find_topic

__all__ = [
    "create_subscription",
    "delete_subscription",
    "get_failure_policy",
    "preview_create_subscription",
    "preview_delete_subscription",
    "preview_purge",
    "preview_seek",
    "preview_set_failure_policy",
    "preview_skip",
    "purge_subscription",
    "seek_subscription",
    "set_failure_policy",
    "skip_messages",
]


async def _found(context: Context, request: SubscriptionRequest) -> tuple[Topic, list[SubscriptionFacts]]:
    """The topic, and the subscription on each of its logs.

    Raises:
        TopicNotFound, SubscriptionNotFound.
    """
    topic = await find_topic(context, request.topic)
    return topic, await subscription_facts(context, topic.own.topic, request.subscription)


def _path(topic: Topic, subscription: str) -> str:
    return f"topics{topic.own.topic}/subscriptions/{subscription}"


def _lag(found: Sequence[SubscriptionFacts]) -> int:
    return sum(facts.lag_messages for facts in found)


def _consumers(found: Sequence[SubscriptionFacts]) -> int:
    return sum(len(facts.consumers) for facts in found)


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
        lag_messages=_lag(found),
    )


async def preview_create_subscription(context: Context, request: CreateSubscriptionRequest) -> Preview:
    topic = await _creatable(context, request)
    if all(request.subscription in log.subscriptions for log in topic.logs):
        raise _taken(topic, request.subscription)
    await context.port.resolve_position(topic.own.topic, request.start)
    return Preview(
        operation="subscriptions.create",
        arguments=request.model_dump(mode="json", exclude_unset=True),
        effect="create",
        reversible=True,
        diff=[
            {
                "path": _path(topic, request.subscription),
                "before": None,
                "after": {"type": request.type, "start": request.start},
            }
        ],
        blast_radius=blast_radius(subscriptions=1),
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


async def _moved(context: Context, topic: Topic, subscription: str, before: int) -> MovedCursor:
    found = await subscription_facts(context, topic.own.topic, subscription)
    return MovedCursor(
        topic=topic.own.topic,
        subscription=subscription,
        skipped_messages=max(0, before - _lag(found)),
        cursors=[
            CursorPlace(
                topic=facts.topic,
                partition=facts.partition,
                next_unacked=facts.next_unacked,
                lag_messages=facts.lag_messages,
            )
            for facts in found
        ],
    )


def _destruction(
    operation: str,
    request: Request,
    topic: Topic,
    found: Sequence[SubscriptionFacts],
    *,
    diff: list[dict[str, Any]],
    messages: int,
) -> Preview:
    return Preview(
        operation=operation,
        arguments=request.model_dump(mode="json"),
        effect="destroy",
        reversible=False,
        diff=diff,
        blast_radius=blast_radius(subscriptions=1, consumers=_consumers(found), messages=messages),
    )


async def seek_subscription(context: Context, request: SeekSubscriptionRequest) -> MovedCursor:
    topic, found = await _sought(context, request)
    await context.port.seek_subscription(topic.own.topic, request.subscription, request.to)
    return await _moved(context, topic, request.subscription, _lag(found))


async def _sought(
    context: Context, request: SeekSubscriptionRequest
) -> tuple[Topic, list[SubscriptionFacts]]:
    Position.parse(request.to, now_ms=context.now_ms(), field="to")
    return await _found(context, request)


async def preview_seek(context: Context, request: SeekSubscriptionRequest) -> Preview:
    """`messages` of the blast radius: unacknowledged ones that would be passed over."""
    topic, found = await _sought(context, request)
    targets = await context.port.resolve_position(topic.own.topic, request.to)
    diff = [
        {
            "path": f"{_path(topic, request.subscription)}/cursor"
            + ("" if facts.partition is None else f"/{facts.partition}"),
            "before": facts.next_unacked,
            "after": targets[facts.topic],
        }
        for facts in found
    ]
    passed = sum(
        max(0, facts.lag_messages - max(0, facts.next_offset - targets[facts.topic]))
        for facts in found
        if targets[facts.topic] > facts.next_unacked
    )
    return _destruction("subscriptions.seek", request, topic, found, diff=diff, messages=passed)


async def skip_messages(context: Context, request: SkipMessagesRequest) -> MovedCursor:
    topic, found = await _skippable(context, request)
    await context.port.skip_messages(topic.own.topic, request.subscription, request.count)
    return await _moved(context, topic, request.subscription, _lag(found))


async def _skippable(context: Context, request: SkipMessagesRequest) -> tuple[Topic, list[SubscriptionFacts]]:
    topic, found = await _found(context, request)
    if topic.own.partitions:
        raise skip_over_partitions(topic.own.topic, topic.own.partitions).followed_by(
            next_call(
                "subscriptions.lag",
                {"topic": topic.own.topic, "subscription": request.subscription},
                "shows what each partition has left",
            )
        )
    return topic, found


async def preview_skip(context: Context, request: SkipMessagesRequest) -> Preview:
    topic, found = await _skippable(context, request)
    lag = _lag(found)
    skipped = min(request.count, lag)
    diff = [
        {
            "path": f"{_path(topic, request.subscription)}/lag_messages",
            "before": lag,
            "after": lag - skipped,
        }
    ]
    return _destruction("subscriptions.skip", request, topic, found, diff=diff, messages=skipped)


async def purge_subscription(context: Context, request: SubscriptionRequest) -> MovedCursor:
    topic, found = await _found(context, request)
    await context.port.purge_subscription(topic.own.topic, request.subscription)
    return await _moved(context, topic, request.subscription, _lag(found))


async def preview_purge(context: Context, request: SubscriptionRequest) -> Preview:
    topic, found = await _found(context, request)
    lag = _lag(found)
    diff = [{"path": f"{_path(topic, request.subscription)}/lag_messages", "before": lag, "after": 0}]
    return _destruction("subscriptions.purge", request, topic, found, diff=diff, messages=lag)


async def delete_subscription(context: Context, request: SubscriptionRequest) -> DeletedSubscription:
    topic, found = await _found(context, request)
    await context.port.delete_subscription(topic.own.topic, request.subscription)
    return DeletedSubscription(
        topic=topic.own.topic,
        subscription=request.subscription,
        partitions=topic.own.partitions,
        lag_messages=_lag(found),
        consumers=_consumers(found),
    )


async def preview_delete_subscription(context: Context, request: SubscriptionRequest) -> Preview:
    topic, found = await _found(context, request)
    before = {
        "type": found[0].type,
        "lag_messages": _lag(found),
        "next_unacked": [facts.next_unacked for facts in found],
    }
    diff = [{"path": _path(topic, request.subscription), "before": before, "after": None}]
    return _destruction("subscriptions.delete", request, topic, found, diff=diff, messages=_lag(found))


async def get_failure_policy(context: Context, request: SubscriptionRequest) -> FailurePolicyResult:
    topic, _ = await _found(context, request)
    return await _failure_policy(context, topic, request.subscription)


async def _failure_policy(context: Context, topic: Topic, subscription: str) -> FailurePolicyResult:
    policy = await context.port.failure_policy(topic.own.topic, subscription)
    return FailurePolicyResult(topic=topic.own.topic, subscription=subscription, **policy)


async def set_failure_policy(context: Context, request: SetFailurePolicyRequest) -> FailurePolicyResult:
    topic, _ = await _policy_change(context, request)
    await context.port.set_failure_policy(topic.own.topic, request.subscription, request.given())
    return await _failure_policy(context, topic, request.subscription)


async def _policy_change(
    context: Context, request: SetFailurePolicyRequest
) -> tuple[Topic, list[SubscriptionFacts]]:
    if not request.given():
        raise InvalidArgument(
            "nothing to set: give at least one field, such as poison_policy",
            field="poison_policy",
            value=None,
        )
    return await _found(context, request)


async def preview_set_failure_policy(context: Context, request: SetFailurePolicyRequest) -> Preview:
    topic, found = await _policy_change(context, request)
    before = await context.port.failure_policy(topic.own.topic, request.subscription)
    return Preview(
        operation="subscriptions.set_failure_policy",
        arguments=request.model_dump(mode="json", exclude_unset=True),
        effect="change",
        reversible=True,
        diff=changes(f"{_path(topic, request.subscription)}/failure_policy", before, request.given()),
        blast_radius=blast_radius(subscriptions=1, consumers=_consumers(found)),
    )
