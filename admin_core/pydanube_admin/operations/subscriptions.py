"""Read subscriptions and their lag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydanube_core.cluster_port import LagFacts
from pydanube_core.cursor_state import LAG_FIELDS, LagField
from pydanube_core.diagnosis.lag_status import LagStatus
from pydanube_core.errors import SubscriptionNotFound, TopicNotFound
from pydanube_core.facts import SubscriptionFacts
from pydanube_core.list_keys import LagKey, ListChanges
from pydanube_core.names import TopicName
from pydanube_core.spelling import close_names, shown
from pydanube_core.units import format_time, known_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import (
    Effect,
    OptionalTopic,
    Page,
    Place,
    Request,
    Result,
    SortedListRequest,
    SubscriptionArgument,
    TopicArgument,
    including,
)
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.engine.paging import Followed, Listing, chosen, glob
from pydanube_admin.engine.permission import Sight
from pydanube_admin.operations.topics import find_topic


class ListSubscriptionsRequest(SortedListRequest):
    topic: OptionalTopic = None


class SubscriptionItem(Result):
    """A subscription of a topic, its partitions taken together."""

    identity: ClassVar = ("topic", "subscription")

    topic: str
    subscription: str
    type: str
    partitions: int
    consumers: int
    lag_messages: int
    in_flight: int
    created_at: str | None
    created_at_reason: str | None = None
    last_consumed_at: str | None  # time of the last ack or nack of a consumer
    last_consumed_at_reason: str | None = None  # not_since_start
    last_consumer: str | None  # which one


def lag_fields(fields: Iterable[LagField]) -> Iterator[tuple[str, Any]]:
    """Return (name, type) of the result's fields; a field of unknown values has its reason behind it."""
    for field in fields:
        yield field.name, field.type | None if field.nullable else field.type
        if field.reasoned:
            yield f"{field.name}_reason", Annotated[str | None, Field(default=None)]


LagStatusName = Literal[
    "UNKNOWN", "DATA_LOST", "CAUGHT_UP", "AT_RISK", "STUCK", "FALLING_BEHIND", "SLOW", "CATCHING_UP"
]


class LagRequest(SortedListRequest):
    topic: OptionalTopic = None
    subscription: Annotated[str | None, Field(max_length=256, description="Only this one")] = None
    status: Annotated[LagStatusName | None, Field(description="Only of this status")] = None


@including(lag_fields(field for field in LAG_FIELDS if field.listed))
class LagItem(Result):
    """The lag of one subscription on one topic, or on one partition of it."""

    identity: ClassVar = ("topic", "subscription", "partition")


class SubscriptionRequest(Request):
    topic: TopicArgument
    subscription: SubscriptionArgument


@including(lag_fields(field for field in LAG_FIELDS if field.described))
class _SubscriptionPart(Result):
    topic: str
    partition: int | None
    subscription_id: str


class SubscriptionPart(_SubscriptionPart):
    """A subscription on one concrete topic."""

    consumers: list[dict[str, Any]]  # {id, name, active, in_flight, standing, credit_messages, connected_at}


class SubscriptionDescription(Result):
    topic: str
    subscription: str
    type: str
    lag_messages: int
    consumers: int
    created_at: str | None
    created_at_reason: str | None = None
    last_consumed_at: str | None  # time of the last ack or nack of a consumer
    last_consumed_at_reason: str | None = None  # not_since_start
    last_consumer: str | None  # which one
    failure_policy: dict[str, Any]
    parts: list[SubscriptionPart]


def _base(facts: SubscriptionFacts) -> str:
    """Return the topic as users name it: `/default/orders` for its partition `/default/orders-part-2`."""
    return facts.topic if facts.partition is None else str(TopicName.parse(facts.topic).base)


async def subscription_facts(
    context: Context, topic: str, subscription: str | None
) -> list[SubscriptionFacts]:
    """Return the subscriptions of a topic, or one of them, on each of its logs, in order.

    Raises `TopicNotFound`, `SubscriptionNotFound`.
    """
    try:
        found = await context.port.subscriptions(topic, subscription)
    except SubscriptionNotFound:
        assert subscription is not None, "all of a topic may be none"
        raise await no_such_subscription(context, topic, subscription) from None
    return sorted(found, key=lambda facts: (facts.partition or 0, facts.subscription))


async def _index(
    context: Context, topic: str | None, subscription: str | None, *, status: LagStatus | None = None
) -> Sequence[LagKey]:
    """Return the subscriptions, or those of a status, that the caller may see."""
    if status is None:
        found = await context.port.lag_index(topic, subscription)
    else:
        found = (await context.port.lag_of_status(status, topic, subscription)).keys
    sight = _sight(context)
    return found if sight.everything else await chosen(found, lambda key: sight.topic(key.topic))


async def _matching(pattern: str | None, keys: Sequence[LagKey]) -> Sequence[LagKey]:
    """Return those whose subscription name matches a glob."""
    matches = glob(pattern)
    return keys if pattern is None else await chosen(keys, lambda key: matches(key.subscription))


async def no_such_subscription(
    context: Context, topic: str | None, subscription: str
) -> SubscriptionNotFound:
    everywhere = await _index(context, None, None)
    await asyncio.sleep(0)  # each step over all subscriptions is a turn of its own
    name = None if topic is None else str(TopicName.parse(topic))
    here = {key.subscription for key in everywhere if name in (None, key.log, key.topic)}
    close = close_names(subscription, here)
    elsewhere = sorted({key.topic for key in everywhere if key.subscription == subscription})[:3]
    where = f"the topic {name} has" if name else "no topic has"
    no = "no subscription" if name else "a subscription"
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    if elsewhere:
        hint = f"; {', '.join(elsewhere)} has one of that name"
    scope = {} if name is None else {"topic": name}
    return SubscriptionNotFound(
        f"{where} {no} {shown(subscription)!r}{hint}",
        field="subscription",
        value=shown(subscription),
        topic=name,
        did_you_mean=close,
        next=[
            *(next_call("subscriptions.lag", {"topic": other, "subscription": subscription}, "of that name")
              for other in elsewhere),
            *(next_call("subscriptions.lag", {**scope, "subscription": other}, "spelled alike") for other in close),
            next_call("subscriptions.list", scope, "shows the subscriptions there are"),
        ],
    )  # fmt: skip


@operation(
    "subscriptions.list",
    effect=Effect.READ,
    summary="List subscriptions with type, consumers and lag.",
    default_profile=True,
    examples=(Example({}, "every subscription"), Example({"topic": "orders"}, "of one topic")),
)
async def list_subscriptions(context: Context, request: ListSubscriptionsRequest) -> Page[SubscriptionItem]:
    topic = None if request.topic is None else (await find_topic(context, request.topic)).own.topic
    matches, together = glob(request.filter), _Together(context, topic)

    async def found() -> Sequence[tuple[str, str]]:
        return await together.of(await _matching(request.filter, await _index(context, topic, None)))

    async def changed(news: ListChanges) -> Sequence[tuple[str, str]]:
        keys = await chosen(news.subscriptions, lambda key: _is_of(key, topic) and matches(key.subscription))
        return await together.of(keys, partly=True)

    async def made(some: Sequence[tuple[str, str]]) -> list[SubscriptionItem]:
        parts: dict[tuple[str, str], list[SubscriptionFacts]] = {name: [] for name in some}
        for one in await context.port.lag_facts([key for name in some for key in together.keys[name]]):
            parts[_base(one.facts), one.facts.subscription].append(one.facts)
        # One without any went since the index
        return [_item(*name, facts) for name, facts in parts.items() if facts]

    listing = Listing(
        context, SubscriptionItem, made, lambda name: name, key=lambda name: name, request=request
    )
    sight = _sight(context).everything
    return await listing.followed(Followed(found=found, changed=changed, sight=sight))


class _Together:
    """Subscriptions by topic and name, with those of partitions joined."""

    def __init__(self, context: Context, topic: str | None) -> None:
        self._context = context
        self._topic = topic  # of which alone
        self.keys: dict[tuple[str, str], list[LagKey]] = {}

    async def of(self, keys: Sequence[LagKey], *, partly: bool = False) -> list[tuple[str, str]]:
        """Return the subscriptions of the keys. `partly`: some partitions of a topic may be missing."""
        names = list(dict.fromkeys((key.topic, key.subscription) for key in keys))
        await asyncio.sleep(0)  # each step over all subscriptions is a turn of its own
        self.keys |= {name: [] for name in names}
        if partly:
            for topic in {key.topic for key in keys if key.partition is not None}:
                with suppress(TopicNotFound):
                    keys = [*keys, *await _index(self._context, self._topic or topic, None)]
        for key in dict.fromkeys(keys):
            if (those := self.keys.get((key.topic, key.subscription))) is not None:
                those.append(key)
        await asyncio.sleep(0)
        return names


def _is_of(key: LagKey, topic: str | None) -> bool:
    return topic in (None, key.topic, key.log)


def _sight(context: Context) -> Sight:
    return Sight(context.port, "subscriptions:read")


def _item(topic: str, name: str, parts: Sequence[SubscriptionFacts]) -> SubscriptionItem:
    return SubscriptionItem(
        topic=topic,
        subscription=name,
        partitions=sum(facts.partition is not None for facts in parts),
        in_flight=sum(facts.state.in_flight for facts in parts),
        **_over_partitions(parts),
    )


def _over_partitions(parts: Sequence[SubscriptionFacts]) -> dict[str, Any]:
    """Return the fields of a subscription that are one for all of its topic's partitions."""
    created_ms = min(
        (facts.created_at_ms for facts in parts if facts.created_at_ms is not None), default=None
    )
    last = max(parts, key=lambda facts: facts.last_consumed_ms or 0)  # acknowledgement on any partition
    return {
        "type": parts[0].type,
        "consumers": sum(len(facts.consumers) for facts in parts),
        "lag_messages": sum(facts.state.lag_messages for facts in parts),
        "created_at": known_time(created_ms),
        "created_at_reason": "not_known" if created_ms is None else None,
        "last_consumed_at": known_time(last.last_consumed_ms),
        "last_consumed_at_reason": "not_since_start" if last.last_consumed_ms is None else None,
        "last_consumer": last.last_consumer,
    }


@operation(
    "subscriptions.lag",
    at=Place.ANYWHERE,
    effect=Effect.READ,
    tool="get_consumer_lag",
    title="Consumer lag",
    summary="Show how far subscriptions are behind, by partition: messages, bytes, age of the oldest unread, rates, "
    "time until caught up, status.",
    default_profile=True,
    examples=(
        Example({"topic": "orders"}, "every subscription of a topic"),
        Example({"subscription": "billing"}, "one subscription, wherever it reads"),
        Example({"status": "STUCK"}, "those that stand still"),
    ),
)
async def consumer_lag(context: Context, request: LagRequest) -> Page[LagItem]:
    topic = None if request.topic is None else (await find_topic(context, request.topic)).own.topic
    status = None if request.status is None else LagStatus(request.status)
    matches = glob(request.filter)

    async def found() -> Sequence[LagKey]:
        keys = await _index(context, topic, request.subscription, status=status)
        if (
            not keys
            and request.subscription is not None
            and (status is None or not await _index(context, topic, request.subscription))
        ):
            raise await no_such_subscription(context, request.topic, request.subscription)
        await asyncio.sleep(0)  # each step over all subscriptions is a turn of its own
        return await _matching(request.filter, keys)

    of_status: set[LagKey] | None = None

    async def changed(news: ListChanges) -> Sequence[LagKey]:
        nonlocal of_status
        if status is not None and of_status is None:
            of_status = set(await _index(context, topic, request.subscription, status=status))
        return await chosen(
            news.subscriptions,
            lambda key: (
                _is_of(key, topic)
                and request.subscription in (None, key.subscription)
                and matches(key.subscription)
            ),
        )

    async def made(some: Sequence[LagKey]) -> list[LagItem]:
        keys = some if of_status is None else [key for key in some if key in of_status]
        return [_lag_item(one) for one in await context.port.lag_facts(keys)]

    listing = Listing(
        context,
        LagItem,
        made,
        lambda key: (key.topic, key.subscription, key.partition),
        key=lambda key: key.place,
        request=request,
    )
    return await listing.followed(
        Followed(
            found=found,
            changed=changed,
            sight=_sight(context).everything,
            ordered=status is None,
        )
    )


def _lag_item(found: LagFacts) -> LagItem:
    facts, judged = found.facts, found.judgement
    age, reasons = judged.age, judged.reasons
    between: dict[str, float | None] = {}
    if age.low_s != age.high_s:
        between = {"oldest_unread_age_s_low": age.low_s, "oldest_unread_age_s_high": age.high_s}
    return LagItem.of(
        facts,
        facts.state,
        topic=_base(facts),
        consumers=len(facts.consumers),
        lag_bytes_reason="not_known" if facts.lag_bytes is None else None,
        oldest_unread_age_s=age.age_s,
        oldest_unread_age_s_reason=age.reason,
        age_quality=age.quality,
        blocked_by=facts.blocked_reason,
        produce_rate=_rounded(judged.produce_rate),
        produce_rate_reason=reasons.get("produce_rate"),
        consume_rate=_rounded(judged.consume_rate),
        consume_rate_reason=reasons.get("consume_rate"),
        eta_s=_rounded(judged.eta_s),
        eta_s_reason=reasons.get("eta_s"),
        retention_headroom_s=_rounded(judged.retention_headroom_s),
        retention_headroom_s_reason=reasons.get("retention_headroom_s"),
        status=found.status.value,
        since=known_time(found.since_ms),
        since_reason="not_known" if found.since_ms is None else None,
        evidence={**judged.evidence, **between, "looked": judged.status.value},
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


@operation(
    "subscriptions.describe",
    effect=Effect.READ,
    title="Describe a subscription",
    summary="Show one subscription: its cursor, its consumers, its failure policy.",
    default_profile=True,
    examples=(Example({"topic": "orders", "subscription": "billing"}, "on every partition"),),
)
async def describe_subscription(context: Context, request: SubscriptionRequest) -> SubscriptionDescription:
    topic = (await find_topic(context, request.topic)).own.topic
    found = await subscription_facts(context, topic, request.subscription)
    return SubscriptionDescription(
        topic=topic,
        subscription=request.subscription,
        **_over_partitions(found),
        failure_policy=dict(await context.port.failure_policy(topic, request.subscription)),
        parts=[
            SubscriptionPart.of(
                facts,
                facts.state,
                subscription_id=str(facts.subscription_id),
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
