"""The text of `/metrics` stays below a size, however many subscriptions there are and however they are named."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydanube_broker.rpc.peer_memory import PeerMemoryStatistics
from pydanube_broker.status import metrics as measures
from pydanube_broker.status.metrics import (
    OTHER,
    BrokerMetrics,
    Gathered,
    SubscriptionSample,
    TopicSample,
)
from pydanube_core.cursor_state import CursorState

pytestmark = pytest.mark.anyio


def gathered(topics: dict[str, int], *, name: str) -> Gathered:
    """Return a reading of topics with that many subscriptions each. The n-th subscription of a topic has lag n."""
    samples = [
        SubscriptionSample(
            topic=topic,
            subscription=f"{name}{n}",
            state=CursorState(0, 0, n, 0, 0, 0, 2, redelivered=3),
            oldest_unread_age_s=float(n),
            messages_out=5,
        )
        for topic, count in topics.items()
        for n in range(count)
    ]
    return Gathered(
        broker_id="1", version="0", journal_bytes=0, journal_read_only=False, tier_backlog_bytes=0, tier_errors=0,
        tier_objects={}, chain=None,
        chain_fences=0, chain_fenced=False, peer_memory=PeerMemoryStatistics(held_bytes=0, limit_bytes=0, connections_closed=0), longest_stop_s=0.0,
        open_alerts={}, subscriptions=samples,
        topics=[
            TopicSample(topic=topic, messages_in=count, bytes_in=0, producers=0, consumers=0, subscriptions=count)
            for topic, count in topics.items()
        ],
    )  # fmt: skip


def values(text: bytes, metric: str) -> dict[tuple[str, str], float]:
    """Return a metric's value by topic and subscription."""
    return {
        (sample.labels["topic"], sample.labels["subscription"]): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == metric
    }


async def test_subscriptions_beyond_a_size_are_summed_and_those_with_the_largest_lag_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, bound = 500, 100_000
    monkeypatch.setattr(measures, "SUBSCRIPTION_BYTES", bound)
    metrics = BrokerMetrics(topic_series_limit=10)
    text = await metrics.render(gathered({"/default/t": count}, name='a "long\\" ä name '))
    bare = await metrics.render(gathered({}, name=""))
    assert bound * 0.7 < len(text) - len(bare) < bound + 1_000
    lags = values(text, "danube_subscription_lag_messages")
    rest = lags.pop((OTHER, OTHER))
    assert sorted(lags.values()) == list(range(count - len(lags), count))
    assert rest + sum(lags.values()) == sum(range(count))
    assert (
        values(text, "danube_subscription_oldest_unread_age_seconds")[OTHER, OTHER] == count - len(lags) - 1
    )
    assert values(text, "danube_consumer_messages_out_total")[OTHER, OTHER] == 5 * (count - len(lags))


async def test_subscriptions_of_topics_without_series_are_in_the_sum() -> None:
    metrics = BrokerMetrics(topic_series_limit=1)
    text = await metrics.render(gathered({"/default/busy": 3, "/default/quiet": 2}, name="s"))
    assert values(text, "danube_subscription_active_consumers") == {
        **{("/default/busy", f"s{n}"): 2 for n in range(3)},
        (OTHER, OTHER): 4,
    }


async def test_few_subscriptions_have_no_sum() -> None:
    text = await BrokerMetrics(topic_series_limit=1).render(gathered({"/default/t": 3}, name="s"))
    assert len(values(text, "danube_subscription_redelivery_total")) == 3
