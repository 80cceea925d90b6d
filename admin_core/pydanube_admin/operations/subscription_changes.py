"""Create and delete subscriptions, and set their failure policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from pydantic import Field
from pydanube_core.errors import AlreadyExists, Conflict, InvalidArgument, SubscriptionNotFound, TopicNotFound
from pydanube_core.facts import SubscriptionFacts
from pydanube_core.failure_policy import POLICY_FIELDS, POLICY_NAMES
from pydanube_core.names import SubscriptionType, TopicName, check_subscription
from pydanube_core.positions import Position
from pydanube_core.refusals import changed_since, reused, subscription_taken
from pydanube_core.units import counted

from pydanube_admin.engine.change_records import ChangeRecord
from pydanube_admin.engine.context import COMPAT, Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import (
    Done,
    Forecast,
    Undo,
    blast_radius,
    changes,
    entry,
    is_live,
    nothing_left,
)
from pydanube_admin.engine.models import (
    Change,
    Effect,
    Request,
    Result,
    SubscriptionArgument,
    TopicArgument,
    including,
)
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.operations.namespaces import restoring
from pydanube_admin.operations.subscriptions import SubscriptionRequest, subscription_facts
from pydanube_admin.operations.topics import Topic, find_topic
from pydanube_admin.operations.unused import held_unused


class CreateSubscriptionRequest(Request):
    topic: TopicArgument
    subscription: SubscriptionArgument
    type: Annotated[SubscriptionType, Field(description="How consumers share messages")] = "exclusive"
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
    """The result of a deletion, with its losses."""

    topic: str
    subscription: str
    partitions: int
    lag_messages: int
    consumers: int


async def find_subscription(
    context: Context, request: SubscriptionRequest | CreateSubscriptionRequest
) -> tuple[Topic, list[SubscriptionFacts]]:
    """Return the topic, and the subscription on each of its logs. Raises `TopicNotFound`, `SubscriptionNotFound`."""
    topic = await find_topic(context, request.topic)
    return topic, await subscription_facts(context, topic.own.topic, request.subscription)


def subscription_path(topic: Topic, subscription: str) -> str:
    return f"topics{topic.own.topic}/subscriptions/{subscription}"


def lag_of(found: Sequence[SubscriptionFacts]) -> int:
    return sum(facts.state.lag_messages for facts in found)


def consumers_of(found: Sequence[SubscriptionFacts]) -> int:
    return sum(len(facts.consumers) for facts in found)


_MOVES: Final = ("subscriptions.seek", "subscriptions.skip", "subscriptions.purge")


async def moves_since(context: Context, topic: str, subscription: str, call_id: str) -> list[ChangeRecord]:
    """Return the recorded moves of a cursor after a call."""
    own = (str(TopicName.parse(topic)), subscription)
    return [
        later
        async for later in context.executor.changes.since(call_id)
        if later.operation in _MOVES
        and (str(TopicName.parse(later.arguments["topic"])), later.arguments["subscription"]) == own
    ]


def passing_over(found: Sequence[SubscriptionFacts], messages: int) -> dict[str, int | None]:
    """Return the loss for messages that are passed over. Their bytes are unknown, and the disk keeps them."""
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
    """Delete the created subscription if it has no consumers. One with unread messages, or that was used, needs a plan."""
    try:
        topic, found = await find_subscription(context, request)
    except (TopicNotFound, SubscriptionNotFound):
        return Undo(act=nothing_left)
    done.check_topic(topic.own.topic, topic.own.topic_id)
    if consumers_of(found):
        raise Conflict(
            f"{counted(consumers_of(found), 'consumer reads', 'consumers read')} by the subscription "
            f"{request.subscription!r} of {topic.own.topic}: undoing its creation would disconnect them. Delete it with a plan instead",
            field="call_id",
            retryable=False,
            topic=topic.own.topic,
        )
    whole = SubscriptionRequest(topic=request.topic, subscription=request.subscription)
    starts = done.image.get("starts", {})
    used = lag_of(found) or any(facts.state.next_unacked != starts.get(facts.topic) for facts in found)
    forecast = await forecast_delete_subscription(context, whole)
    return Undo(
        act=partial(_delete_unattended, context, whole, starts=None if used else starts),
        forecast=replace(forecast, effect=Effect.DESTROY if used else None),
    )


async def _delete_unattended(
    context: Context, request: SubscriptionRequest, *, starts: Mapping[str, int] | None = None
) -> None:
    """Delete a subscription while no consumer is attached and, with `starts`, its cursors are there."""
    topic, subscription = str(TopicName.parse(request.topic)), request.subscription
    async with held_unused(context.port, topic, subscription, starts=starts):
        await context.port.delete_subscription(topic, subscription, grace=context.grace, held=True)


@operation(
    "subscriptions.create",
    effect=Effect.CREATE,
    title="Create a subscription",
    summary="Create a subscription before its first consumer comes, on every partition.",
    forecast=forecast_create_subscription,
    undo=undo_create_subscription,
    examples=(
        Example({"topic": "orders", "subscription": "billing", "type": "shared"}, "from the start"),
        Example({"topic": "orders", "subscription": "audit", "start": "latest"}, "only messages from now on"),
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
    # Acknowledgements raise these numbers and lessen the loss. Only a cursor that was moved back lowers one.
    acknowledged = {facts.topic: facts.state.next_unacked + facts.state.acked_above for facts in found}
    pinned = context.pinned or {"since": context.call_id, "acknowledged": acknowledged}
    moved = await moves_since(context, topic.own.topic, request.subscription, pinned["since"])
    went_back = any(acknowledged.get(log, 0) < least for log, least in pinned["acknowledged"].items())
    return Forecast(
        diff=[entry(subscription_path(topic, request.subscription), before, None)],
        blast_radius=passing_over(found, lag_of(found)),
        image={"call_id": context.call_id, "subscription_ids": identity},
        basis=[identity, [each.call_id for each in moved], went_back],
        pinned=pinned,
        counts=[log.next_offset for log in topic.logs],
        was_live=is_live(context.now_ms(), topic.own.last_published_ms),
    )


async def undo_delete_subscription(context: Context, request: SubscriptionRequest, done: Done) -> Undo:
    return Undo(act=partial(_restore, context, request, done.image))


@operation(
    "subscriptions.delete",
    effect=Effect.DESTROY,
    tool="unsubscribe",
    title="Delete a subscription",
    summary="Delete a subscription with its cursor. Its consumers are disconnected.",
    forecast=forecast_delete_subscription,
    undo=undo_delete_subscription,
    examples=(
        Example({"topic": "orders", "subscription": "billing"}, "shows the loss, then needs a confirmation"),
    ),
)
async def delete_subscription(context: Context, request: SubscriptionRequest) -> DeletedSubscription:
    topic, found = await find_subscription(context, request)
    if context.face == COMPAT:  # refused while consumers are attached, as in the original
        await _delete_unattended(context, request)
    else:
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
            # Otherwise it was never deleted, or is restored already
            raise reused("subscription", request.subscription) from None


@including(
    (
        field.name,
        (
            field.type | None,
            Field(
                default=None,
                ge=field.least if field.is_count else None,
                max_length=field.max_chars,
                description=field.description,
            ),
        ),
    )
    for field in POLICY_FIELDS
)
class _FailurePolicyRequest(SubscriptionRequest):
    pass


class SetFailurePolicyRequest(_FailurePolicyRequest):
    keep: Annotated[bool, Field(description="Also for one that is not there yet")] = False

    def given(self) -> dict[str, Any]:
        """Return the fields to change."""
        return {name: value for name in sorted(POLICY_NAMES) if (value := getattr(self, name)) is not None}


@including(
    (field.name, int if field.is_count else str | None if field.is_text else str) for field in POLICY_FIELDS
)
class FailurePolicyResult(Result):
    topic: str
    subscription: str


class ChangedFailurePolicy(FailurePolicyResult, Change):
    pass


@operation(
    "subscriptions.get_failure_policy",
    effect=Effect.READ,
    tool="get_subscription_failure_policy",
    title="Failure policy",
    summary="Show when failed messages are redelivered, and what happens to those that fail too often.",
    examples=(Example({"topic": "orders", "subscription": "billing"}, "every field"),),
)
async def get_failure_policy(context: Context, request: SubscriptionRequest) -> FailurePolicyResult:
    topic = await find_topic(context, request.topic)
    return await _failure_policy(context, topic, request.subscription)


async def _failure_policy(context: Context, topic: Topic, subscription: str) -> FailurePolicyResult:
    policy = await context.port.failure_policy(topic.own.topic, subscription)
    return FailurePolicyResult(topic=topic.own.topic, subscription=subscription, **policy)


async def _policy_change(
    context: Context, request: SetFailurePolicyRequest
) -> tuple[Topic, list[SubscriptionFacts]]:
    if not request.given():
        raise InvalidArgument(
            "nothing to set: give at least one field, such as poison_policy",
            field="poison_policy",
            value=None,
        )
    try:
        return await find_subscription(context, request)
    except SubscriptionNotFound:
        if not request.keep:
            raise
        return await find_topic(context, request.topic), []


async def _policy_before(
    context: Context, topic: Topic, subscription: str, found: list[SubscriptionFacts]
) -> dict[str, Any]:
    """Return the policy in effect, empty if there is neither a subscription nor a kept policy."""
    try:
        return dict(await context.port.failure_policy(topic.own.topic, subscription))
    except SubscriptionNotFound:
        if found:
            raise
        return {}


async def forecast_set_failure_policy(context: Context, request: SetFailurePolicyRequest) -> Forecast:
    topic, found = await _policy_change(context, request)
    name, subscription, given = topic.own.topic, request.subscription, request.given()
    before = await _policy_before(context, topic, subscription, found)
    after = {**before, **given}
    # Kept for a missing subscription it drops nothing yet. It is judged now, because later there is no plan
    leaving = await context.port.forecast_failure_policy(name, subscription, given) if found else 0
    destroys = _drops_more(before, after)
    drops = bool(found) and after["poison_policy"] == "drop"
    identity = [str(facts.subscription_id) for facts in found]
    return Forecast(
        diff=changes(f"{subscription_path(topic, subscription)}/failure_policy", before, given),
        blast_radius=blast_radius(
            subscriptions=1,
            consumers=consumers_of(found),
            messages=leaving if drops else 0,
            bytes=None if drops and leaving else 0,  # unknown: they were not counted
        ),
        effect=Effect.DESTROY if destroys or (drops and leaving) else None,
        reversible=not leaving
        and not (destroys and found),  # messages that left the subscription do not come back
        image={"before": dict(before), "subscription_ids": identity},
        basis=[identity, dict(before)],
        counts=leaving,
        was_live=is_live(context.now_ms(), *(facts.last_consumed_ms for facts in found)),
        later=f"Later, a message that has failed {_times(after)} is acknowledged unread"
        if destroys
        else None,
    )


def _drops_more(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether the policy after drops messages that the one before keeps or retries. `before` is empty for none."""
    if after.get("poison_policy") != "drop":
        return False
    if not before:
        return True
    sooner = after["ack_timeout_ms"] and not 0 < before["ack_timeout_ms"] <= after["ack_timeout_ms"]
    fewer = after["max_redelivery_count"] < before["max_redelivery_count"]
    return bool(before["poison_policy"] != "drop" or fewer or sooner)


def _times(policy: Mapping[str, Any]) -> str:
    """Return how often a message fails before the poison policy applies to it."""
    # For a subscription that does not exist yet, None means the broker's default
    most = policy.get("max_redelivery_count")
    return "too often" if most is None else counted(most + 1, "time")


async def undo_set_failure_policy(context: Context, request: SetFailurePolicyRequest, done: Done) -> Undo:
    topic, found = await _policy_change(context, request)
    done.check_subscription(request.subscription, found)
    now = await _policy_before(context, topic, request.subscription, found)
    before = restoring(done.image["before"], request.given()) if done.image["before"] else {}
    if done.result is not None and restoring(now, request.given()) != restoring(done.result, request.given()):
        raise changed_since(f"the failure policy of {request.subscription!r} of {topic.own.topic}")
    if before.get("dead_letter_topic", "unset") is None:
        before["dead_letter_topic"] = ""
    name, subscription = topic.own.topic, request.subscription
    if not before:  # nothing was kept for it
        return Undo(
            act=partial(context.port.set_failure_policy, name, subscription, {}, keep=True),
            forecast=Forecast(
                diff=changes(
                    f"{subscription_path(topic, subscription)}/failure_policy",
                    now,
                    dict.fromkeys(request.given()),
                ),
                blast_radius=blast_radius(subscriptions=1),
            ),
        )
    back = SetFailurePolicyRequest(
        topic=request.topic, subscription=subscription, keep=request.keep, **before
    )
    return Undo(
        act=partial(set_failure_policy, context, back),
        forecast=await forecast_set_failure_policy(context, back),
    )


@operation(
    "subscriptions.set_failure_policy",
    effect=Effect.CHANGE,
    may_destroy=True,
    tool="set_subscription_failure_policy",
    title="Set the failure policy",
    permission="subscriptions:change",
    summary="Set when failed messages are redelivered and what happens to those that fail too often. "
    "Fields not given stay.",
    forecast=forecast_set_failure_policy,
    undo=undo_set_failure_policy,
    examples=(
        Example(
            {"topic": "orders", "subscription": "billing", "poison_policy": "dead_letter"},
            "into /default/orders-dlq-billing",
        ),
    ),
)
async def set_failure_policy(context: Context, request: SetFailurePolicyRequest) -> ChangedFailurePolicy:
    topic, _ = await _policy_change(context, request)
    await context.port.set_failure_policy(
        topic.own.topic, request.subscription, request.given(), keep=request.keep
    )
    found = await _failure_policy(context, topic, request.subscription)
    return ChangedFailurePolicy(**found.model_dump())
