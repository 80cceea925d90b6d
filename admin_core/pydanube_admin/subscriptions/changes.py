"""Making, moving and deleting subscriptions."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pydanube_core.errors import (
    AlreadyExists,
    Conflict,
    SubscriptionNotFound,
    TopicNotFound,
)
from pydanube_core.facts import SubscriptionFacts
from pydanube_core.names import TopicName, check_subscription
from pydanube_core.positions import Position
from pydanube_core.refusals import changed_since, reused, skip_over_partitions, subscription_taken

from pydanube_admin.context import Context
from pydanube_admin.effect import Effect
from pydanube_admin.forecast import Forecast, Undo, blast_radius, entry, nothing_left
from pydanube_admin.next_calls import next_call
from pydanube_admin.subscriptions.models import (
    CreatedSubscription,
    CreateSubscriptionRequest,
    CursorPlace,
    DeletedSubscription,
    MovedCursor,
    SeekSubscriptionRequest,
    SkipMessagesRequest,
    SubscriptionRequest,
)
from pydanube_admin.subscriptions.reading import subscription_facts
from pydanube_admin.topics.reading import Topic, find_topic


async def find_subscription(
    context: Context, request: SubscriptionRequest | CreateSubscriptionRequest
) -> tuple[Topic, list[SubscriptionFacts]]:
    """The topic, and the subscription on each of its logs.

    Raises:
        TopicNotFound, SubscriptionNotFound.
    """
    topic = await find_topic(context, request.topic)
    return topic, await subscription_facts(context, topic.own.topic, request.subscription)


def subscription_path(topic: Topic, subscription: str) -> str:
    return f"topics{topic.own.topic}/subscriptions/{subscription}"


def _lag(found: Sequence[SubscriptionFacts]) -> int:
    return sum(facts.state.lag_messages for facts in found)


def consumers_of(found: Sequence[SubscriptionFacts]) -> int:
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


async def undo_create_subscription(
    context: Context,
    request: CreateSubscriptionRequest,
    image: Mapping[str, Any],
    result: Mapping[str, Any] | None,
) -> Undo:
    """Delete what was created, as long as nobody reads by it; with a plan, once it holds unread or has been used."""
    try:
        topic, found = await find_subscription(context, request)
    except (TopicNotFound, SubscriptionNotFound):
        return Undo(act=nothing_left)
    if str(topic.own.topic_id) != image["topic_id"]:
        raise reused("topic", topic.own.topic)
    if consumers_of(found):
        raise Conflict(
            f"{consumers_of(found)} consumers read by the subscription {request.subscription!r} of {topic.own.topic}: "
            "undoing its creation would disconnect them. Delete it with a plan instead",
            field="call_id",
            topic=topic.own.topic,
        )
    whole = SubscriptionRequest(topic=request.topic, subscription=request.subscription)
    used = _lag(found) or any(
        facts.state.next_unacked != image.get("starts", {}).get(facts.topic) for facts in found
    )
    forecast = await forecast_delete_subscription(context, whole)
    return Undo(
        act=partial(context.port.delete_subscription, topic.own.topic, request.subscription),
        forecast=replace(forecast, effect=Effect.DESTROY if used else None),
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
                next_unacked=facts.state.next_unacked,
                lag_messages=facts.state.lag_messages,
            )
            for facts in found
        ],
    )


_STAY: Final = (
    "They stay in the topic as long as its retention keeps them, which does not wait for them any more"
)
_MOVES: Final = ("subscriptions.seek", "subscriptions.skip", "subscriptions.purge")


async def _moving(
    context: Context,
    topic: Topic,
    subscription: str,
    found: Sequence[SubscriptionFacts],
    *,
    diff: list[dict[str, Any]],
    messages: int,
) -> Forecast:
    """What moving a cursor would do. Where producers or consumers are at work it moves by itself: that is no news."""
    cursors = await context.port.cursors(topic.own.topic, subscription)
    identity = [str(facts.subscription_id) for facts in found]
    at_work = topic.producers or consumers_of(found)
    return Forecast(
        diff=diff,
        blast_radius=blast_radius(subscriptions=1, consumers=consumers_of(found), messages=messages),
        image={
            "moved_by": context.call_id,
            "subscription_ids": identity,
            "cursors": {log: base64.b64encode(image).decode() for log, image in cursors.items()},
            "starts": {facts.topic: facts.state.start_offset for facts in found},
        },
        basis=[identity, None if at_work else [diff, messages]],
        later=_STAY,
    )


async def undo_move(
    context: Context,
    request: SubscriptionRequest,
    image: Mapping[str, Any],
    result: Mapping[str, Any] | None,
) -> Undo:
    """Put the cursors back where they stood. What was acknowledged since comes again: at least once, never lost.

    Where that passes over what is unread now, it wants a plan.

    Raises:
        Conflict: the cursor was moved again since, or retention has taken what would have to come back.
    """
    topic, found = await find_subscription(context, request)
    name, subscription = topic.own.topic, request.subscription
    if [str(facts.subscription_id) for facts in found] != image["subscription_ids"]:
        raise reused("subscription", subscription)
    if await _moved_since(context, request, image, found, result):
        raise changed_since(f"the cursor of {subscription!r} of {name}")
    cursors = {log: base64.b64decode(text) for log, text in image["cursors"].items()}
    difference = await context.port.compare_cursors(name, subscription, cursors, image.get("starts", {}))
    if difference.missing:
        raise Conflict(
            f"{difference.missing} of the messages of {name} that would have to come back for {subscription!r} are not "
            "stored any more: retention, or somebody, has taken them since. What is left can be read again by a seek",
            field="call_id",
            missing_messages=difference.missing,
        ).followed_by(
            next_call(
                "subscriptions.seek",
                {"topic": name, "subscription": subscription, "to": "earliest"},
                "begins at the first message that is left",
            )
        )
    return Undo(
        act=partial(context.port.place_cursors, name, subscription, cursors),
        forecast=Forecast(
            diff=[
                entry(
                    f"{subscription_path(topic, subscription)}/unread_passed_over", 0, difference.passed_over
                ),
            ],
            blast_radius=blast_radius(
                subscriptions=1, consumers=consumers_of(found), messages=difference.passed_over
            ),
            effect=Effect.DESTROY if difference.passed_over else None,
            later=_STAY,
        ),
    )


async def _moved_since(
    context: Context,
    request: SubscriptionRequest,
    image: Mapping[str, Any],
    found: Sequence[SubscriptionFacts],
    result: Mapping[str, Any] | None,
) -> bool:
    """Whether a later change moved the same cursor, or somebody who is not in the records moved it back."""
    places = {place["topic"]: place["next_unacked"] for place in result["cursors"]} if result else {}
    if any(facts.state.next_unacked < places.get(facts.topic, 0) for facts in found):
        return True
    own = (str(TopicName.parse(request.topic)), request.subscription)
    async for later in context.desk.changes.since(str(image.get("moved_by", ""))):
        if later.operation in _MOVES:
            arguments = later.arguments
            if (str(TopicName.parse(arguments["topic"])), arguments["subscription"]) == own:
                return True
    return False


async def seek_subscription(context: Context, request: SeekSubscriptionRequest) -> MovedCursor:
    topic, found = await _subscription_to_move(context, request)
    await context.port.seek_subscription(topic.own.topic, request.subscription, request.to)
    return await _moved(context, topic, request.subscription, _lag(found))


async def _subscription_to_move(
    context: Context, request: SeekSubscriptionRequest
) -> tuple[Topic, list[SubscriptionFacts]]:
    Position.parse(request.to, now_ms=context.now_ms(), field="to")
    return await find_subscription(context, request)


async def forecast_seek(context: Context, request: SeekSubscriptionRequest) -> Forecast:
    """`messages` of the blast radius: unacknowledged ones that would be passed over."""
    topic, found = await _subscription_to_move(context, request)
    targets = await context.port.resolve_position(topic.own.topic, request.to)
    diff = [
        {
            "path": f"{subscription_path(topic, request.subscription)}/cursor"
            + ("" if facts.partition is None else f"/{facts.partition}"),
            "before": facts.state.next_unacked,
            "after": targets[facts.topic],
        }
        for facts in found
    ]
    passed = sum(
        max(0, facts.state.lag_messages - max(0, facts.state.next_offset - targets[facts.topic]))
        for facts in found
        if targets[facts.topic] > facts.state.next_unacked
    )
    return await _moving(context, topic, request.subscription, found, diff=diff, messages=passed)


async def skip_messages(context: Context, request: SkipMessagesRequest) -> MovedCursor:
    topic, found = await _skippable(context, request)
    await context.port.skip_messages(topic.own.topic, request.subscription, request.count)
    return await _moved(context, topic, request.subscription, _lag(found))


async def _skippable(context: Context, request: SkipMessagesRequest) -> tuple[Topic, list[SubscriptionFacts]]:
    topic, found = await find_subscription(context, request)
    if topic.own.partitions:
        raise skip_over_partitions(topic.own.topic, topic.own.partitions).followed_by(
            next_call(
                "subscriptions.lag",
                {"topic": topic.own.topic, "subscription": request.subscription},
                "shows what each partition has left",
            )
        )
    return topic, found


async def forecast_skip(context: Context, request: SkipMessagesRequest) -> Forecast:
    topic, found = await _skippable(context, request)
    lag = _lag(found)
    skipped = min(request.count, lag)
    diff = [
        {
            "path": f"{subscription_path(topic, request.subscription)}/lag_messages",
            "before": lag,
            "after": lag - skipped,
        }
    ]
    return await _moving(context, topic, request.subscription, found, diff=diff, messages=skipped)


async def purge_subscription(context: Context, request: SubscriptionRequest) -> MovedCursor:
    topic, found = await find_subscription(context, request)
    await context.port.purge_subscription(topic.own.topic, request.subscription)
    return await _moved(context, topic, request.subscription, _lag(found))


async def forecast_purge(context: Context, request: SubscriptionRequest) -> Forecast:
    topic, found = await find_subscription(context, request)
    lag = _lag(found)
    diff = [
        {"path": f"{subscription_path(topic, request.subscription)}/lag_messages", "before": lag, "after": 0}
    ]
    return await _moving(context, topic, request.subscription, found, diff=diff, messages=lag)


async def delete_subscription(context: Context, request: SubscriptionRequest) -> DeletedSubscription:
    topic, found = await find_subscription(context, request)
    await context.port.delete_subscription(topic.own.topic, request.subscription, grace=context.grace)
    return DeletedSubscription(
        topic=topic.own.topic,
        subscription=request.subscription,
        partitions=topic.own.partitions,
        lag_messages=_lag(found),
        consumers=consumers_of(found),
    )


async def forecast_delete_subscription(context: Context, request: SubscriptionRequest) -> Forecast:
    topic, found = await find_subscription(context, request)
    before = {
        "type": found[0].type,
        "lag_messages": _lag(found),
        "next_unacked": [facts.state.next_unacked for facts in found],
    }
    identity = [str(facts.subscription_id) for facts in found]
    at_work = topic.producers or consumers_of(found)
    return Forecast(
        diff=[entry(subscription_path(topic, request.subscription), before, None)],
        blast_radius=blast_radius(subscriptions=1, consumers=consumers_of(found), messages=_lag(found)),
        image={"call_id": context.call_id, "subscription_ids": identity},
        basis=[identity, None if at_work else before],
    )


async def undo_delete_subscription(
    context: Context,
    request: SubscriptionRequest,
    image: Mapping[str, Any],
    result: Mapping[str, Any] | None,
) -> Undo:
    return Undo(act=partial(_restore, context, request, image))


async def _restore(context: Context, request: SubscriptionRequest, image: Mapping[str, Any]) -> None:
    try:
        await context.port.restore_subscription(image["call_id"])
    except SubscriptionNotFound:
        _, found = await find_subscription(context, request)
        if [str(facts.subscription_id) for facts in found] != image["subscription_ids"]:
            raise reused(
                "subscription", request.subscription
            ) from None  # else it never went, or is back already
