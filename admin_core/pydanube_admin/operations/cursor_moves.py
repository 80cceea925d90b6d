"""Move a subscription's cursor: to a position, over some messages, over all."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

from pydantic import Field
from pydanube_core.errors import Conflict, InvalidArgument
from pydanube_core.facts import SubscriptionFacts
from pydanube_core.positions import Position
from pydanube_core.refusals import changed_since, skip_over_partitions

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, entry, is_live
from pydanube_admin.engine.models import Change, Effect, Result
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.operations.offset_ranges import MOST_AT_ONCE, merged, ranges_of_text
from pydanube_admin.operations.subscription_changes import (
    find_subscription,
    lag_of,
    moves_since,
    passing_over,
    subscription_path,
)
from pydanube_admin.operations.subscriptions import SubscriptionRequest, subscription_facts
from pydanube_admin.operations.topics import Topic


class SeekSubscriptionRequest(SubscriptionRequest):
    to: Annotated[
        str,
        Field(max_length=64, description="earliest, latest, offset:42, time:2026-01-31T12:00:00Z, time:-15m"),
    ]


class SkipMessagesRequest(SubscriptionRequest):
    count: Annotated[
        int | None, Field(ge=1, le=2**53 - 1, description="Messages from the oldest, in place of offsets")
    ] = None
    offsets: Annotated[
        str | None, Field(max_length=4096, description="In place of count: 20 or 3,7,10-90")
    ] = None


class CursorPlace(Result):
    topic: str
    partition: int | None
    next_unacked: int
    lag_messages: int


class MovedCursor(Change):
    """The result of a moved cursor: where the subscription stands now."""

    topic: str
    subscription: str
    skipped_messages: int  # unacknowledged before, and not any more
    cursors: list[CursorPlace]


async def _moved(context: Context, topic: Topic, subscription: str, before: int) -> MovedCursor:
    found = await subscription_facts(context, topic.own.topic, subscription)
    return MovedCursor(
        topic=topic.own.topic,
        subscription=subscription,
        skipped_messages=max(0, before - lag_of(found)),
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
    "The subscription passes over them. They stay in the topic as long as its retention keeps them, which does not wait "
    "for them any more"
)
_AGAIN: Final = (
    "No unread message is skipped. Messages acknowledged from the new position on are delivered again"
)
_NONE: Final = "No unread message is there: nothing would change"


async def _moving(
    context: Context,
    topic: Topic,
    subscription: str,
    found: Sequence[SubscriptionFacts],
    *,
    diff: list[dict[str, Any]],
    messages: int,
    pinned: Mapping[str, Any] | None,
    later: str = _NONE,
) -> Forecast:
    """Forecast a moved cursor. Acknowledgements do not make the plan stale, another move of the cursor does.

    Args:
        later: the sentence of a plan that passes over no unread message.
    """
    cursors = await context.port.cursors(topic.own.topic, subscription)
    identity = [str(facts.subscription_id) for facts in found]
    since = context.call_id if context.pinned is None else context.pinned["since"]
    times_ms = (topic.own.last_published_ms, *(facts.last_consumed_ms for facts in found))
    moved = [each.call_id for each in await moves_since(context, topic.own.topic, subscription, since)]
    return Forecast(
        diff=diff,
        blast_radius=passing_over(found, messages),
        image={
            "moved_by": context.call_id,
            "subscription_ids": identity,
            "cursors": {log: base64.b64encode(image).decode() for log, image in cursors.items()},
            "starts": {facts.topic: facts.state.start_offset for facts in found},
        },
        basis=[identity, moved, pinned],
        counts=[diff, messages],
        was_live=None if pinned is not None else is_live(context.now_ms(), *times_ms),
        pinned=None if pinned is None else {**pinned, "since": since},
        later=_STAY if messages else later,
    )


async def undo_move(context: Context, request: SubscriptionRequest, done: Done) -> Undo:
    """Put the cursors back. Messages acknowledged since are delivered again: at least once, never lost.

    Where that passes over unread messages, it needs a plan.

    Raises `Conflict`: the cursor was moved again since, or retention has deleted messages that would come back.
    """
    topic, found = await find_subscription(context, request)
    name, subscription = topic.own.topic, request.subscription
    done.check_subscription(subscription, found)
    if await _moved_since(context, request, done.image, found, done.result):
        raise changed_since(f"the cursor of {subscription!r} of {name}")
    cursors = {log: base64.b64decode(text) for log, text in done.image["cursors"].items()}
    difference = await context.port.compare_cursors(name, subscription, cursors, done.image.get("starts", {}))
    if difference.missing:
        raise Conflict(
            f"{difference.missing} of the messages of {name} that would have to come back for {subscription!r} are not "
            "stored any more: they were deleted by retention or a truncation. The rest can be read again by a seek",
            field="call_id",
            missing_messages=difference.missing,
            retryable=False,
        ).followed_by(
            next_call(
                "subscriptions.seek",
                {"topic": name, "subscription": subscription, "to": "earliest"},
                "begins at the first message that is left",
            )
        )
    lag = sum(facts.state.lag_messages for facts in found)
    after = lag + difference.restored - difference.passed_over
    return Undo(
        act=partial(context.port.place_cursors, name, subscription, cursors),
        forecast=Forecast(
            diff=[entry(f"{subscription_path(topic, subscription)}/lag_messages", lag, after)],
            blast_radius=passing_over(found, difference.passed_over),
            effect=Effect.DESTROY if difference.passed_over else None,
            later=_STAY if difference.passed_over else _AGAIN,
        ),
    )


async def _moved_since(
    context: Context,
    request: SubscriptionRequest,
    image: Mapping[str, Any],
    found: Sequence[SubscriptionFacts],
    result: Mapping[str, Any] | None,
) -> bool:
    """Return whether the same cursor was moved since, by a recorded change or otherwise."""
    places = {place["topic"]: place["next_unacked"] for place in result["cursors"]} if result else {}
    if any(facts.state.next_unacked < places.get(facts.topic, 0) for facts in found):
        return True
    since = str(image.get("moved_by", ""))
    return bool(await moves_since(context, request.topic, request.subscription, since))


def _keeps(topic: Topic) -> bool:
    """Return whether the topic stores messages, so that a place in it can be pinned."""
    return topic.own.dispatch_strategy != "non_reliable"


async def _subscription_to_move(
    context: Context, request: SeekSubscriptionRequest
) -> tuple[Topic, list[SubscriptionFacts]]:
    Position.parse(request.to, now_ms=context.now_ms(), field="to")
    return await find_subscription(context, request)


async def forecast_seek(context: Context, request: SeekSubscriptionRequest) -> Forecast:
    """Forecast a seek. `messages` of the blast radius: unacknowledged ones that would be passed over."""
    topic, found = await _subscription_to_move(context, request)
    targets = await _targets(context, topic, request)
    path = subscription_path(topic, request.subscription)
    diff = [
        entry(
            f"{path}/cursor" + ("" if facts.partition is None else f"/{facts.partition}"),
            facts.state.next_unacked,
            targets[facts.topic],
        )
        for facts in found
    ]
    passed = 0
    for facts in found:
        passed += await _unacknowledged(context, request.subscription, facts, [(0, targets[facts.topic])])
    pinned = {"targets": dict(targets)} if _keeps(topic) else None
    return await _moving(
        context,
        topic,
        request.subscription,
        found,
        diff=diff,
        messages=passed,
        pinned=pinned,
        later=_AGAIN,
    )


async def _targets(context: Context, topic: Topic, request: SeekSubscriptionRequest) -> Mapping[str, int]:
    """Return the target on each concrete topic: that of the plan, if there is one."""
    if context.pinned is not None:
        targets: Mapping[str, int] = context.pinned["targets"]
        return {log.topic: max(targets.get(log.topic, 0), log.start_offset) for log in topic.logs}
    return await context.port.resolve_position(topic.own.topic, request.to)


@operation(
    "subscriptions.seek",
    effect=Effect.DESTROY,
    title="Move a subscription",
    summary="Move a subscription to a position, forward or back, also under its consumers. Acknowledgements "
    "above it are forgotten.",
    forecast=forecast_seek,
    undo=undo_move,
    required_flags=("to",),
    examples=(
        Example({"topic": "orders", "subscription": "billing", "to": "earliest"}, "everything again"),
        Example({"topic": "orders", "subscription": "billing", "to": "time:-15m"}, "the last 15 minutes"),
    ),
)
async def seek_subscription(context: Context, request: SeekSubscriptionRequest) -> MovedCursor:
    topic, found = await _subscription_to_move(context, request)
    if context.pinned is None:
        await context.port.seek_subscription(topic.own.topic, request.subscription, request.to)
    else:
        targets = await _targets(context, topic, request)
        for facts in found:
            place = f"offset:{targets[facts.topic]}"
            await context.port.seek_subscription(facts.topic, request.subscription, place)
    return await _moved(context, topic, request.subscription, lag_of(found))


async def _skippable(context: Context, request: SkipMessagesRequest) -> tuple[Topic, list[SubscriptionFacts]]:
    topic, found = await find_subscription(context, request)
    if (request.count is None) == (request.offsets is None):
        raise InvalidArgument(
            "write count, for the oldest messages, or offsets: one of the two",
            field="count",
            value=request.count,
        )
    if request.offsets is not None:
        ranges_of_text(request.offsets)
    if topic.own.partitions:
        raise skip_over_partitions(topic.own.topic, topic.own.partitions).followed_by(
            next_call(
                "subscriptions.lag",
                {"topic": topic.own.topic, "subscription": request.subscription},
                "shows the messages left in each partition",
            )
        )
    return topic, found


async def forecast_skip(context: Context, request: SkipMessagesRequest) -> Forecast:
    topic, found = await _skippable(context, request)
    lag = lag_of(found)
    path = subscription_path(topic, request.subscription)
    ranges = await _skipped(context, topic, request, found)
    if ranges is None:
        assert request.count is not None, "checked"
        skipped = min(request.count, lag)
    else:
        skipped = min(lag, await _unacknowledged(context, request.subscription, found[0], ranges))
    diff = [entry(f"{path}/lag_messages", lag, lag - skipped)]
    if ranges:
        diff.append(entry(f"{path}/offsets", None, shown_ranges(ranges, found[0].state.next_unacked)))
    pinned = None if ranges is None else {"ranges": [list(each) for each in ranges]}
    return await _moving(
        context, topic, request.subscription, found, diff=diff, messages=skipped, pinned=pinned
    )


async def _skipped(
    context: Context, topic: Topic, request: SkipMessagesRequest, found: Sequence[SubscriptionFacts]
) -> list[tuple[int, int]] | None:
    """Return the ranges to acknowledge: those of the plan, if there is one. None of a topic that stores nothing."""
    if not _keeps(topic):
        return None
    if context.pinned is not None:
        return [(start, end) for start, end in context.pinned["ranges"]]
    if request.offsets is not None:
        # An offset without a message yet is none that the plan has counted.
        end = found[0].state.next_offset
        return merged((start, min(last, end)) for start, last in ranges_of_text(request.offsets))
    assert request.count is not None, "checked"
    start = found[0].state.next_unacked
    end = await context.port.end_of_oldest(topic.own.topic, request.subscription, request.count)
    return [(start, end)] if end > start else []


async def _unacknowledged(
    context: Context, subscription: str, facts: SubscriptionFacts, ranges: Sequence[tuple[int, int]]
) -> int:
    """Return how many messages of the ranges are not acknowledged."""
    state = facts.state
    floor, head = max(state.next_unacked, state.start_offset), state.next_offset
    above = merged((max(start, floor), min(end, head)) for start, end in ranges)
    if above == [(floor, head)]:
        return state.lag_messages
    if not above or not state.acked_above:
        return sum(end - start for start, end in above)
    try:
        return await context.port.count_unacknowledged(facts.topic, subscription, above)
    except InvalidArgument as error:
        if error.details.get("field") != "operation":
            raise
        # The owner runs an earlier version, which counts no ranges.
        return await _counted_by_offsets(context, subscription, facts, above)


async def _counted_by_offsets(
    context: Context, subscription: str, facts: SubscriptionFacts, above: Sequence[tuple[int, int]]
) -> int:
    """Return how many messages of the ranges are not acknowledged.

    O(offsets), up to the last one that was acknowledged out of order: those after it are all unacknowledged.
    """
    found, acknowledged = sum(end - start for start, end in above), facts.state.acked_above
    for start, end in above:
        while start < end and acknowledged > 0:
            some = range(start, min(start + MOST_AT_ONCE, end))
            still = await context.port.unacknowledged(facts.topic, subscription, list(some))
            await asyncio.sleep(0)  # leases are renewed between two queries, however far the offset is
            found -= len(some) - len(still)
            acknowledged -= len(some) - len(still)
            start = some.stop
    return found


def shown_ranges(ranges: Sequence[tuple[int, int]], floor: int) -> str:
    """Return offsets as they are written in `offsets`, without those below the cursor."""
    above = [(max(start, floor), end) for start, end in ranges if end > floor]
    return ",".join(str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in above)


@operation(
    "subscriptions.skip",
    effect=Effect.DESTROY,
    summary="Acknowledge the oldest unacknowledged messages of a subscription, unread.",
    forecast=forecast_skip,
    undo=undo_move,
    examples=(
        Example({"topic": "orders", "subscription": "billing", "count": 1}, "past a message that blocks"),
        Example({"topic": "orders", "subscription": "billing", "offsets": "20"}, "past that one only"),
    ),
)
async def skip_messages(context: Context, request: SkipMessagesRequest) -> MovedCursor:
    topic, found = await _skippable(context, request)
    ranges = await _skipped(context, topic, request, found)
    if ranges is not None:
        name = topic.own.topic
        await context.port.acknowledge(name, request.subscription, ranges, "subscriptions.skip")
    else:
        assert request.count is not None, "checked"
        await context.port.skip_messages(topic.own.topic, request.subscription, request.count)
    return await _moved(context, topic, request.subscription, lag_of(found))


async def forecast_purge(context: Context, request: SubscriptionRequest) -> Forecast:
    topic, found = await find_subscription(context, request)
    lag = lag_of(found)
    purged = lag
    pinned = None
    if _keeps(topic):
        ends = (
            context.pinned["ends"] if context.pinned else {log.topic: log.next_offset for log in topic.logs}
        )
        pinned = {"ends": ends}
        purged = 0
        for facts in found:
            purged += await _unacknowledged(context, request.subscription, facts, [(0, ends[facts.topic])])
    left = max(0, lag - purged)
    diff = [entry(f"{subscription_path(topic, request.subscription)}/lag_messages", lag, left)]
    return await _moving(
        context, topic, request.subscription, found, diff=diff, messages=purged, pinned=pinned
    )


@operation(
    "subscriptions.purge",
    effect=Effect.DESTROY,
    title="Purge a subscription",
    summary="Acknowledge everything published so far.",
    forecast=forecast_purge,
    undo=undo_move,
    examples=(
        Example({"topic": "orders", "subscription": "billing"}, "shows the lag, then needs a confirmation"),
    ),
)
async def purge_subscription(context: Context, request: SubscriptionRequest) -> MovedCursor:
    topic, found = await find_subscription(context, request)
    if context.pinned is None:
        await context.port.purge_subscription(topic.own.topic, request.subscription)
    else:
        for facts in found:
            ranges = [(0, context.pinned["ends"][facts.topic])]
            await context.port.acknowledge(facts.topic, request.subscription, ranges, "subscriptions.purge")
    return await _moved(context, topic, request.subscription, lag_of(found))
