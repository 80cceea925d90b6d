"""`cluster.chart`: the sums of all brokers on one line of time, and one broker alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.models import NotSeen
from pydanube_admin.operations import cluster_chart, topic_chart
from pydanube_admin.operations.cluster_chart import ChartClusterRequest, ClusterChart, chart_cluster
from pydanube_core.cluster_port import TopicHistory, TrafficHistory
from pydanube_core.errors import InvalidArgument

pytestmark = pytest.mark.anyio

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000


def history(broker_id: str, *rows: tuple[int, int, int]) -> TrafficHistory:
    """`rows`: minutes ago, messages in, unread messages."""
    times, counts, lags = zip(*rows, strict=True)
    nothing = [0] * len(rows)
    return TrafficHistory(
        broker_id=broker_id,
        times_ms=[NOW_MS - minutes * MINUTE_MS for minutes in times],
        messages_in=counts,
        bytes_in=[count * 100 for count in counts],
        messages_out=nothing,
        bytes_out=nothing,
        lag_messages=lags,
    )


async def charted(*histories: TrafficHistory, **asked: Any) -> ClusterChart:
    async def traffic_histories() -> list[TrafficHistory]:
        return [*histories]

    port = SimpleNamespace(traffic_histories=traffic_histories)
    context = cast("Context", SimpleNamespace(port=port, now_ms=lambda: NOW_MS))
    return await chart_cluster(context, ChartClusterRequest(**asked))


async def test_brokers_are_summed_and_one_that_began_later_counts_from_there() -> None:
    first = history("1", (60, 0, 5), (30, 18_000, 5), (0, 36_000, 7))
    second = history("2", (30, 0, 0), (0, 18_000, 3))
    chart = await charted(first, second)
    assert chart.brokers == 2
    assert len(chart.age_s) == 61
    assert chart.age_s[0] == 3600
    assert chart.age_s[-1] == 0
    assert chart.messages_in_rate[0] is None
    assert chart.messages_in_rate[30] == 10
    assert chart.messages_in_rate[60] == 20
    assert chart.bytes_in_rate[60] == 2000
    assert chart.lag_messages[0] == 5
    assert chart.lag_messages[60] == 10
    assert chart.brokers_at == [1] * 30 + [2] * 31, "else the sum seems to have risen"


async def test_one_broker_is_charted_alone_and_an_unknown_one_is_refused() -> None:
    first, second = history("1", (0, 0, 5)), history("2", (0, 0, 2))
    chart = await charted(first, second, broker_id="2")
    assert (chart.brokers, chart.lag_messages[-1]) == (1, 2)
    assert chart.brokers_at is None
    with pytest.raises(InvalidArgument, match="no broker '3'"):
        await charted(first, second, broker_id="3")


async def test_a_young_cluster_has_a_chart_as_long_as_it_runs() -> None:
    young = history("1", (1, 0, 0), (0, 600, 0))
    chart = await charted(young)
    assert chart.age_s[0] == 60
    assert len(chart.age_s) == 13
    assert (await charted(history("1", (0, 0, 0)))).age_s == [0, 0]


async def test_a_broker_that_does_not_answer_has_a_series_without_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = [NotSeen(broker_id="2", why="it does not answer")]
    monkeypatch.setattr(cluster_chart, "not_seen", lambda unseen: silent)
    chart = await charted(history("1", (1, 0, 0), (0, 600, 0)), broker_id="2")
    assert chart.brokers == 0
    assert chart.lag_messages == chart.messages_in_rate == [None] * len(chart.age_s)


@pytest.mark.parametrize("since", ["0s", "25h", "2030-01-01T00:00:00Z"])
async def test_a_span_beyond_a_day_names_the_reports(since: str) -> None:
    with pytest.raises(InvalidArgument, match=r"reports\.traffic"):
        await charted(history("1", (1, 0, 0)), since=since)


async def test_an_owner_of_an_older_version_charts_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topic_history(topic: str, subscription: str | None, *, most: int, **more: Any) -> TopicHistory:
        if more:
            raise InvalidArgument("a request that this version lacks", field="arguments")
        return TopicHistory(times_ms=[NOW_MS - 1000, NOW_MS], published=[1, 2], cursors={}, more_cursors=0)

    async def found(context: Context, topic: str) -> Any:
        return SimpleNamespace(own=SimpleNamespace(topic=topic), subscriptions={})

    monkeypatch.setattr(topic_chart, "find_topic", found)
    port = SimpleNamespace(topic_history=topic_history)
    context = cast("Context", SimpleNamespace(port=port, now_ms=lambda: NOW_MS))
    chart = await topic_chart.chart_topic(
        context, topic_chart.ChartTopicRequest(topic="/default/t", since="1h")
    )
    assert (chart.age_s, chart.publish_rate) == ([1, 0], [None, 1])
