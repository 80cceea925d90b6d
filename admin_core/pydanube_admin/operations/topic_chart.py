"""A topic over the last minutes or hours: publish rate, lag of its subscriptions, and their acknowledge rates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

from pydantic import Field
from pydanube_core.errors import InvalidArgument
from pydanube_core.units import format_time, parse_moment_ms

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, Request, Result, TopicArgument
from pydanube_admin.engine.operation import operation
from pydanube_admin.operations.subscriptions import no_such_subscription
from pydanube_admin.operations.topics import find_topic

MOST_POINTS: Final = 31  # with the subscriptions below a result has some 4 KB
MOST_LONG_POINTS: Final = 61  # of a longer span than the window: one a minute in an hour
WINDOW: Final = "5m"
LONGEST_MS: Final = 86_400_000  # brokers keep a day
SINCE_OF_CHART: Final = "From so long ago (1h), or from a time, up to 24h"
MOST_SUBSCRIPTIONS: Final = 5  # more lines cannot be told apart in a chart


class ChartTopicRequest(Request):
    topic: TopicArgument
    subscription: Annotated[
        str | None, Field(max_length=256, description="Only this one. Default: those furthest behind")
    ] = None
    since: Annotated[str, Field(max_length=64, description=SINCE_OF_CHART)] = WINDOW


class ChartedSubscription(Result):
    """A subscription over time, with one value for each point of `age_s`."""

    subscription: str
    lag_messages: list[int | None]  # None: it was not seen then
    acknowledge_rate: list[float | None]  # messages a second since the moment before


class TopicChart(Result):
    """A topic from `since` on. Its owner keeps a day, and an hour over a restart."""

    topic: str
    as_of: str
    age_s: list[float]  # of each moment, oldest first. The last is as_of
    publish_rate: list[float | None]  # messages a second since the moment before
    subscriptions: list[ChartedSubscription]  # furthest behind first
    more_subscriptions: int  # number of subscriptions that are not shown


@operation(
    "topics.chart",
    effect=Effect.READ,
    title="Chart a topic",
    summary="Chart a topic's recent publish rate and its subscriptions' lag.",
    default_profile=True,
    examples=(
        Example({"topic": "orders"}, "with the subscriptions furthest behind"),
        Example({"topic": "orders", "subscription": "billing"}, "one subscription"),
        Example({"topic": "orders", "since": "1h"}, "the last hour"),
    ),
)
async def chart_topic(context: Context, request: ChartTopicRequest) -> TopicChart:
    topic = await find_topic(context, request.topic)
    if request.subscription is not None and request.subscription not in topic.subscriptions:
        raise await no_such_subscription(context, topic.own.topic, request.subscription)
    since_s = span_of_chart_s(context, request.since)
    ask = partial(context.port.topic_history, topic.own.topic, request.subscription, most=MOST_SUBSCRIPTIONS)
    more: dict[str, Any] = {} if request.since == WINDOW else {"since_s": since_s}
    try:
        history = await ask(**more)
    except InvalidArgument:
        if not more:
            raise
        history = await ask()  # an owner of an older version refuses the argument, and has the window
    chosen = thinned(len(history.times_ms), MOST_LONG_POINTS if more else MOST_POINTS)
    times = [history.times_ms[i] for i in chosen]
    now_ms = times[-1]
    return TopicChart(
        topic=topic.own.topic,
        as_of=format_time(now_ms),
        age_s=[round((now_ms - time) / 1000, 1) for time in times],
        publish_rate=rates_of(times, [history.published[i] for i in chosen]),
        subscriptions=[
            ChartedSubscription(
                subscription=name,
                lag_messages=[each.lag_messages[i] for i in chosen],
                acknowledge_rate=rates_of(times, [each.acknowledged[i] for i in chosen]),
            )
            for name, each in history.cursors.items()
        ],
        more_subscriptions=history.more_cursors,
    )


def span_of_chart_s(context: Context, since: str) -> float:
    """Return how long before now a chart begins, in seconds."""
    now_ms = context.now_ms()
    span_ms = now_ms - parse_moment_ms(since, now_ms=now_ms, field="since")
    if not 0 < span_ms <= LONGEST_MS:
        raise InvalidArgument(
            f"since {since!r} is not within the last 24 hours, which charts can show. For longer, use reports.traffic "
            "and reports.lag",
            field="since",
            value=since,
        )
    return span_ms / 1000


def thinned(count: int, most: int = MOST_POINTS) -> list[int]:
    """Return the indices of at most `most` of so many points, evenly spread, with the last."""
    step = -(-count // most)
    return list(range((count - 1) % step, count, step))


def rates_of(times_ms: Sequence[int], totals: Sequence[int | None]) -> list[float | None]:
    """Return messages per second between each point and the one before, with None for the first."""
    rates: list[float | None] = [None]
    for i in range(1, len(times_ms)):
        before, after, span_ms = totals[i - 1], totals[i], times_ms[i] - times_ms[i - 1]
        if before is None or after is None or span_ms <= 0:
            rates.append(None)
        else:
            rates.append(round(max(0, after - before) * 1000 / span_ms, 1))
    return rates
