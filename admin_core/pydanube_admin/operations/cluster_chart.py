"""The cluster over the last minutes or hours: traffic in and out, and the unread messages of all subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field
from pydanube_core.cluster_port import TrafficHistory
from pydanube_core.errors import InvalidArgument
from pydanube_core.interpolation import value_at
from pydanube_core.units import format_time

from pydanube_admin.engine.broker_names import BROKER, MAX_CHARS
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, NotSeen, Request, Result
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.operations.topic_chart import SINCE_OF_CHART, rates_of, span_of_chart_s
from pydanube_admin.peers import not_seen, unseen

PARTS: Final = 60  # one a minute in an hour
SHORTEST_MS: Final = 5000  # between two points


class ChartClusterRequest(Request):
    broker_id: Annotated[str | None, Field(max_length=MAX_CHARS, description="Only this one"), BROKER] = None
    since: Annotated[str, Field(max_length=64, description=SINCE_OF_CHART)] = "1h"


class ClusterChart(Result):
    """The cluster from `since` on, with a rate of the time since the moment before. Each broker keeps a day."""

    as_of: str
    brokers: int  # number of brokers in the sums
    age_s: list[float]  # of each moment, oldest first. The last is as_of
    messages_in_rate: list[float | None]
    bytes_in_rate: list[float | None]
    messages_out_rate: list[float | None]
    bytes_out_rate: list[float | None]
    lag_messages: list[int | None]  # unread, of all subscriptions
    brokers_at: list[int] | None = (
        Field(  # in the sums of each moment, where that is not the same number throughout
            default=None, exclude_if=lambda value: value is None
        )
    )
    not_seen: list[NotSeen] | None = Field(default=None, exclude_if=lambda value: value is None)


@operation(
    "cluster.chart",
    effect=Effect.READ,
    tool="chart_cluster",
    title="Chart the cluster",
    summary="Chart the traffic and the unread messages of the cluster, or of one broker.",
    examples=(Example({}, "the last hour"), Example({"since": "24h"}, "the last day")),
)
async def chart_cluster(context: Context, request: ChartClusterRequest) -> ClusterChart:
    span_s = span_of_chart_s(context, request.since)
    found = [
        each for each in await context.port.traffic_histories() if request.broker_id in (None, each.broker_id)
    ]
    silent = not_seen(unseen())
    if not found and not any(each.broker_id == request.broker_id for each in silent or ()):
        raise InvalidArgument(
            f"there is no broker {request.broker_id!r} that is registered now",
            field="broker_id",
            value=request.broker_id,
        ).followed_by(next_call("brokers.list", {}, "shows the brokers there are"))
    now_ms = max((each.times_ms[-1] for each in found if each.times_ms), default=context.now_ms())
    known_ms = min((each.times_ms[0] for each in found if each.times_ms), default=now_ms)
    begin_ms = max(known_ms, now_ms - int(span_s * 1000))
    parts = max(1, min(PARTS, (now_ms - begin_ms) // SHORTEST_MS))
    times = [begin_ms + (now_ms - begin_ms) * part // parts for part in range(parts + 1)]
    rates = {
        f"{name}_rate": _sums(
            [rates_of(times, _at(each, getattr(each, name), times)) for each in found], len(times)
        )
        for name in ("messages_in", "bytes_in", "messages_out", "bytes_out")
    }
    seen = [_at(each, each.lag_messages, times) for each in found]
    lags = _sums(seen, len(times))
    counts = [sum(values[at] is not None for values in seen) for at in range(len(times))]
    return ClusterChart(
        as_of=format_time(now_ms),
        brokers=len(found),
        age_s=[round((now_ms - time) / 1000, 1) for time in times],
        lag_messages=[None if lag is None else int(lag) for lag in lags],
        brokers_at=counts if len({*counts}) > 1 else None,
        not_seen=silent,
        **rates,
    )


def _at(history: TrafficHistory, values: Sequence[int], times_ms: Sequence[int]) -> list[int | None]:
    """Return a broker's values at these times, None before its first."""
    return [value_at(history.times_ms, values, time) for time in times_ms]


def _sums(series: Sequence[Sequence[float | None]], points: int) -> list[float | None]:
    """Add the values at each point. None where no broker has a value."""
    summed: list[float | None] = []
    for at in range(points):
        known = [value for values in series if (value := values[at]) is not None]
        summed.append(round(sum(known), 1) if known else None)
    return summed
