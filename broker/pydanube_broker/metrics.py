"""Prometheus metrics, computed when they are asked for.

The original's names are kept where the meaning is the same. Beyond `topic_series_limit` topics the quietest are
summed under `topic="_other"`, so that a broker of ten thousand topics does not drown its monitor.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from pydanube_core.cursor_state import CursorState

from pydanube_broker.rpc.peer_memory import HeldForPeers
from pydanube_broker.slices import Slices

OTHER: Final = "_other"
FSYNC_BUCKETS_S: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSample:
    topic: str
    messages_in: int
    bytes_in: int
    producers: int
    consumers: int
    subscriptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSample:
    topic: str
    subscription: str
    state: CursorState
    oldest_unread_age_s: float | None
    messages_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """One look at the broker."""

    broker_id: str
    version: str
    journal_bytes: int
    journal_read_only: bool
    tier_backlog_bytes: int
    tier_errors: int
    tier_objects: Mapping[str, int]  # what was done with objects → how many
    peer_memory: HeldForPeers
    topics: Sequence[TopicSample]
    subscriptions: Sequence[SubscriptionSample]


class BrokerMetrics:
    """Counters that live here, and everything else by a look at the broker."""

    def __init__(self, *, topic_series_limit: int) -> None:
        self.rejected: Counter[tuple[str, str]] = (
            Counter()
        )  # (topic, code): batches, or calls of official clients
        self.rejected_messages: Counter[tuple[str, str]] = Counter()  # (topic, code)
        self.grpc_calls: Counter[tuple[str, str, str]] = Counter()  # (service, method, code)
        self.connections_closed: Counter[str] = Counter()  # reason
        self.dropped: Counter[tuple[str, str]] = Counter()  # (topic, reason)
        self.validations: Counter[tuple[str, str]] = Counter()  # (topic, policy)
        self.validation_failures: Counter[tuple[str, str]] = Counter()  # (topic, reason)
        self.observation_s: dict[str, float] = {"sample": 0.0, "judge": 0.0, "tell": 0.0}
        self._fsync_buckets = [0] * (len(FSYNC_BUCKETS_S) + 1)
        self._fsync_sum = 0.0
        self._limit = topic_series_limit

    def fsync(self, seconds: float) -> None:
        self._fsync_sum += seconds
        for i, bound in enumerate(FSYNC_BUCKETS_S):
            if seconds <= bound:
                self._fsync_buckets[i] += 1
                return
        self._fsync_buckets[-1] += 1

    async def render(self, gathered: Gathered) -> bytes:
        """The text of `/metrics`. Families are made in the loop, in slices; their text beside it."""
        slices, families = Slices(), []
        for family in self._families(gathered):
            families.append(family)
            await slices()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once(families))
        return await asyncio.to_thread(generate_latest, registry)

    def _families(self, now: Gathered) -> Iterator[Metric]:
        info = InfoMetricFamily("danube_build", "version and identity")
        info.add_metric([], {"version": now.version, "broker": now.broker_id})
        yield info
        yield _gauge("danube_broker_topics_owned", "topics this broker owns", len(now.topics))
        yield _gauge("danube_leader_election_state", "1: this broker leads", 1)
        yield _gauge("danube_journal_bytes", "bytes of journal segments on disk", now.journal_bytes)
        yield _gauge(
            "danube_journal_read_only", "1: writes failed, restart needed", int(now.journal_read_only)
        )
        yield _gauge(
            "danube_tier_backlog_bytes", "bytes that are not in the cold tier yet", now.tier_backlog_bytes
        )
        yield CounterMetricFamily(
            "danube_tier_errors", "flushes and cold reads that failed since start", value=now.tier_errors
        )
        peers = now.peer_memory
        yield _gauge("danube_peer_memory_bytes", "held for connected clients, of all ports", peers.held_bytes)
        yield _gauge("danube_peer_memory_limit_bytes", "server.peer_memory_bytes", peers.limit_bytes)
        yield CounterMetricFamily(
            "danube_peer_memory_connections_closed",
            "connections closed for what they made the broker hold",
            value=peers.connections_closed,
        )
        objects = CounterMetricFamily(
            "danube_tier_objects", "objects written, merged, dropped by retention, deleted", labels=["event"]
        )
        for event, count in now.tier_objects.items():
            objects.add_metric([event], count)
        yield objects
        yield self._fsync_family()
        yield from self._topic_families(now.topics)
        yield from self._subscription_families(now)
        for name, text, labels, counts in (
            ("danube_publish_rejected", "publishes that were refused", ["topic", "code"], self.rejected),
            ("danube_dropped_messages", "messages of non-reliable topics", ["topic", "reason"], self.dropped),
            (
                "danube_schema_validation",
                "messages held against their topic's schema",
                ["topic", "policy"],
                self.validations,
            ),
            (
                "danube_schema_validation_failures",
                "those that did not fit",
                ["topic", "reason"],
                self.validation_failures,
            ),
            ("danube_grpc_calls", "calls that ended", ["service", "method", "code"], self.grpc_calls),
        ):
            family = CounterMetricFamily(name, text, labels=labels)
            for key, count in list(counts.items()):
                family.add_metric([*key], count)
            yield family
        closed = CounterMetricFamily(
            "danube_grpc_connections_closed", "connections closed for what their peer did", labels=["reason"]
        )
        for reason, count in self.connections_closed.items():
            closed.add_metric([reason], count)
        yield closed
        observation = CounterMetricFamily(
            "danube_observation_seconds",
            "processor time of looking at topics and subscriptions (sample), of judging them (judge), of telling "
            "telemetry (tell)",
            labels=["part"],
        )
        for part, seconds in self.observation_s.items():
            observation.add_metric([part], seconds)
        yield observation

    def _fsync_family(self) -> Metric:
        family = HistogramMetricFamily("danube_journal_fsync_seconds", "time of one fdatasync of the journal")
        total, buckets = 0, []
        for bound, count in zip((*FSYNC_BUCKETS_S, None), self._fsync_buckets, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else str(bound), total))
        family.add_metric([], buckets=buckets, sum_value=self._fsync_sum)
        return family

    def _shown(self, topics: Sequence[TopicSample]) -> set[str]:
        if len(topics) <= self._limit:
            return {topic.topic for topic in topics}
        busiest = sorted(topics, key=lambda topic: topic.messages_in, reverse=True)
        return {topic.topic for topic in busiest[: self._limit]}

    def _topic_families(self, topics: Sequence[TopicSample]) -> Iterator[Metric]:
        shown = self._shown(topics)
        for kind, name, text, field in (
            (
                CounterMetricFamily,
                "danube_topic_messages_in",
                "messages published since start",
                "messages_in",
            ),
            (CounterMetricFamily, "danube_topic_bytes_in", "stored bytes published since start", "bytes_in"),
            (GaugeMetricFamily, "danube_topic_active_producers", "producers connected", "producers"),
            (
                GaugeMetricFamily,
                "danube_topic_active_consumers",
                "consumers and readers connected",
                "consumers",
            ),
            (GaugeMetricFamily, "danube_topic_active_subscriptions", "subscriptions", "subscriptions"),
        ):
            family = kind(name, text, labels=["topic"])
            other = 0
            for topic in topics:
                if topic.topic in shown:
                    family.add_metric([topic.topic], getattr(topic, field))
                else:
                    other += getattr(topic, field)
            if len(shown) < len(topics):
                family.add_metric([OTHER], other)
            yield family

    def _subscription_families(self, now: Gathered) -> Iterator[Metric]:
        shown = self._shown(now.topics)
        labels = ["topic", "subscription"]
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            "lag_messages": GaugeMetricFamily(
                "danube_subscription_lag_messages", "messages not acknowledged", labels=labels
            ),
            "oldest_unread_age_s": GaugeMetricFamily(
                "danube_subscription_oldest_unread_age_seconds", "age of the oldest of them", labels=labels
            ),
            "members": GaugeMetricFamily(
                "danube_subscription_active_consumers", "consumers connected", labels=labels
            ),
            "messages_out": CounterMetricFamily(
                "danube_consumer_messages_out", "messages sent to consumers since start", labels=labels
            ),
            "redelivered": CounterMetricFamily(
                "danube_subscription_redelivery", "messages sent again since start", labels=labels
            ),
        }
        for sample in now.subscriptions:
            if sample.topic not in shown:
                continue
            for field, family in families.items():
                value = getattr(sample if field in _OF_SAMPLE else sample.state, field)
                if value is not None:
                    family.add_metric([sample.topic, sample.subscription], value)
        yield from families.values()


_OF_SAMPLE: Final = ("oldest_unread_age_s", "messages_out")


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


class _Once:
    """A collector over what was gathered just now."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
