"""Prometheus metrics, computed on request. `metric_table.py` declares them.

Beyond `topic_series_limit` topics the quietest are summed under `topic="_other"`, and subscriptions beyond `SUBSCRIPTION_BYTES`
of text under `subscription="_other"`, so that a broker of ten thousand topics does not overload its monitor.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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

from pydanube_broker.chain import ChainStatistics
from pydanube_broker.rpc.peer_memory import PeerMemoryStatistics
from pydanube_broker.slices import Slices
from pydanube_broker.status.metric_table import METRICS, MetricKind

OTHER: Final = "_other"
SUBSCRIPTION_BYTES: Final = 2 << 20  # of series of subscriptions, ≈ 5 000 subscriptions with short names
FSYNC_BUCKETS_S: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
MCP_BYTES: Final = (1_024, 4_096, 16_384, 65_536, 262_144)
MCP_CLIENTS: Final = 32  # names of programs, which clients choose. Further ones are counted together


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
    """The values of one reading of the broker."""

    broker_id: str
    version: str
    journal_bytes: int
    journal_read_only: bool
    tier_backlog_bytes: int
    tier_errors: int
    tier_objects: Mapping[str, int]  # work on objects → count
    chain: ChainStatistics | None  # None: the journal is not copied
    chain_fences: int  # of lost brokers' chains
    chain_fenced: bool
    peer_memory: PeerMemoryStatistics
    longest_stop_s: float
    open_alerts: Mapping[tuple[str, ...], int]  # (rule, severity) → count
    topics: Sequence[TopicSample]
    subscriptions: Sequence[SubscriptionSample]


class BrokerMetrics:
    """Counters kept here, and metrics read from the broker on request."""

    def __init__(self, *, topic_series_limit: int) -> None:
        # (topic, code): batches, or calls of official clients
        self.rejected: Counter[tuple[str, str]] = Counter()
        self.rejected_messages: Counter[tuple[str, str]] = Counter()  # (topic, code)
        self.grpc_calls: Counter[tuple[str, str, str]] = Counter()  # (service, method, code)
        self.security_refused: Counter[str] = Counter()  # no identity, a bad credential, or a permission
        self.connections_closed: Counter[str] = Counter()  # reason
        self.connections: Counter[str] = Counter()  # of the port for clients: opened, ended
        self.dropped: Counter[tuple[str, str]] = Counter()  # (topic, reason)
        self.validations: Counter[tuple[str, str]] = Counter()  # (topic, policy)
        self.validation_failures: Counter[tuple[str, str]] = Counter()  # (topic, reason)
        self.link_lags: Callable[[], Iterable[tuple[tuple[str, ...], float]]] = tuple
        self.link_logs: Callable[[], Iterable[tuple[tuple[str, ...], float]]] = tuple
        self.quota_felt: Callable[[], Iterable[tuple[tuple[str, ...], int]]] = tuple
        self.observation_s: dict[str, float] = {"sample": 0.0, "judge": 0.0, "tell": 0.0}
        self.alerts_sent: Counter[str] = Counter()  # requests to webhooks: taken, failed
        self.mcp_calls: Counter[tuple[str, str, str]] = Counter()  # (tool, client, code)
        self._mcp_clients: set[str] = set()
        self._mcp_sizes: dict[str, list[int]] = {}  # tool → count of each bucket, then the sum
        self._fsync = _Durations("danube_journal_fsync_seconds")
        self._fsync_wait = _Durations("danube_journal_fsync_wait_seconds")
        self._limit = topic_series_limit

    def mcp_call(self, tool: str, client: str, code: str, size: int) -> None:
        """Count a call of an MCP client: of a tool, by a program as it names itself, with its outcome and answer's bytes."""
        if client not in self._mcp_clients:
            if len(self._mcp_clients) < MCP_CLIENTS:
                self._mcp_clients.add(client)
            else:
                client = OTHER
        self.mcp_calls[tool, client, code] += 1
        sizes = self._mcp_sizes.setdefault(tool, [0] * (len(MCP_BYTES) + 2))
        sizes[bisect_left(MCP_BYTES, size)] += 1
        sizes[-1] += size

    def fsync(self, seconds: float, waited_s: float) -> None:
        """Count a sync of the journal, and the wait until its helper began."""
        self._fsync.count(seconds)
        self._fsync_wait.count(waited_s)

    def forget(self, topics: Collection[str]) -> None:
        """Drop the counters of topics that are gone. A topic of the same name begins at 0."""
        for counter in (
            self.rejected,
            self.rejected_messages,
            self.dropped,
            self.validations,
            self.validation_failures,
        ):
            for key in [key for key in counter if key[0] in topics]:
                del counter[key]

    def fsyncs(self) -> tuple[int, ...]:
        """Return the number of syncs since the start: one for each bucket of `FSYNC_BUCKETS_S`, and those above."""
        return tuple(self._fsync.buckets)

    def fsync_waits(self) -> tuple[int, ...]:
        """Return the number of syncs since the start by the wait before them, as `fsyncs`."""
        return tuple(self._fsync_wait.buckets)

    async def render(self, gathered: Gathered) -> bytes:
        """Return the text of `/metrics`. Families are made in the loop, in slices, the text in a thread."""
        slices, families = Slices(), []
        for family in self._families(gathered):
            families.append(family)
            await slices()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once(families))
        return await asyncio.to_thread(generate_latest, registry)

    def _families(self, now: Gathered) -> Iterator[Metric]:
        yield _build_info(now)
        peers = now.peer_memory
        for name, value in (
            ("danube_broker_topics_owned", len(now.topics)),
            ("danube_leader_election_state", 1),
            ("danube_loop_longest_stop_seconds", now.longest_stop_s),
            ("danube_journal_bytes", now.journal_bytes),
            ("danube_journal_read_only", int(now.journal_read_only)),
            ("danube_tier_backlog_bytes", now.tier_backlog_bytes),
            ("danube_tier_errors", now.tier_errors),
            ("danube_peer_memory_bytes", peers.held_bytes),
            ("danube_peer_memory_limit_bytes", peers.limit_bytes),
            ("danube_peer_memory_connections_closed", peers.connections_closed),
        ):
            family = _family(name)
            family.add_metric([], value)
            yield family
        yield from _chain_families(now)
        yield self._fsync.family()
        yield self._fsync_wait.family()
        yield self.mcp_family()
        yield from self._topic_families(now.topics)
        yield from self._subscription_families(now)
        by_topic: Mapping[str, Counter[tuple[str, str]]] = {
            "danube_publish_rejected": self.rejected,
            "danube_dropped_messages": self.dropped,
            "danube_schema_validation": self.validations,
            "danube_schema_validation_failures": self.validation_failures,
        }
        shown = self._shown(now.topics)
        counted: Mapping[str, Iterable[tuple[tuple[str, ...], float]]] = {
            "danube_open_alerts": now.open_alerts.items(),
            **{name: within(shown, counter) for name, counter in by_topic.items()},
            "danube_quota_felt": list(self.quota_felt()),
            "danube_link_lag_messages": list(self.link_lags()),
            "danube_link_logs": list(self.link_logs()),
            "danube_grpc_calls": list(self.grpc_calls.items()),
            "danube_mcp_calls": list(self.mcp_calls.items()),
            "danube_tier_objects": [((event,), count) for event, count in now.tier_objects.items()],
            "danube_grpc_connections_closed": [((why,), n) for why, n in self.connections_closed.items()],
            "danube_security_refused": [((what,), n) for what, n in self.security_refused.items()],
            "danube_alert_webhook_requests": [((outcome,), n) for outcome, n in self.alerts_sent.items()],
            "danube_observation_seconds": [((part,), spent) for part, spent in self.observation_s.items()],
        }
        for name, counts in counted.items():
            family = _family(name)
            for key, count in counts:
                family.add_metric([*key], count)
            yield family

    def mcp_family(self) -> Metric:
        """Return the sizes of answers to MCP clients, by tool."""
        declared = METRICS["danube_mcp_result_bytes"]
        family = HistogramMetricFamily(declared.name, declared.text, labels=declared.labels)
        for tool, (*counts, size) in list(self._mcp_sizes.items()):
            family.add_metric([tool], buckets=_cumulated(MCP_BYTES, counts), sum_value=size)
        return family

    def _shown(self, topics: Sequence[TopicSample]) -> set[str]:
        if len(topics) <= self._limit:
            return {topic.topic for topic in topics}
        busiest = sorted(topics, key=lambda topic: topic.messages_in, reverse=True)
        return {topic.topic for topic in busiest[: self._limit]}

    def _topic_families(self, topics: Sequence[TopicSample]) -> Iterator[Metric]:
        shown = self._shown(topics)
        for name, field in (
            ("danube_topic_messages_in", "messages_in"),
            ("danube_topic_bytes_in", "bytes_in"),
            ("danube_topic_active_producers", "producers"),
            ("danube_topic_active_consumers", "consumers"),
            ("danube_topic_active_subscriptions", "subscriptions"),
        ):
            family = _family(name)
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
        """Yield the families of subscriptions. Those with the largest lag have series of their own."""
        topics = self._shown(now.topics)
        by_lag = sorted(now.subscriptions, key=lambda sample: sample.state.lag_messages, reverse=True)
        shown: list[SubscriptionSample] = []
        summed: list[SubscriptionSample] = []
        left = SUBSCRIPTION_BYTES
        for sample in by_lag:
            if sample.topic in topics:
                left -= len(_SUBSCRIPTION_METRICS) * (
                    _SERIES_BYTES + _bytes(sample.topic) + _bytes(sample.subscription)
                )
            (shown if sample.topic in topics and left >= 0 else summed).append(sample)
        for name, value_of, together in _SUBSCRIPTION_METRICS:
            family = _family(name)
            for sample in shown:
                value = value_of(sample)
                if value is not None:
                    family.add_metric([sample.topic, sample.subscription], value)
            rest = [value for sample in summed if (value := value_of(sample)) is not None]
            if rest:
                family.add_metric([OTHER, OTHER], together(rest))
            yield family


def within(shown: Collection[str], counter: Counter[tuple[str, str]]) -> list[tuple[tuple[str, str], int]]:
    """Return a counter by topic, with the sum of all topics that are not shown as one."""
    found: Counter[tuple[str, str]] = Counter()
    for (topic, what), count in counter.items():
        found[topic if topic in shown else OTHER, what] += count
    return list(found.items())


# Metric, its value, and the value of several subscriptions together
_SUBSCRIPTION_METRICS: Final[
    tuple[tuple[str, Callable[[SubscriptionSample], float | None], Callable[[list[float]], float]], ...]
] = (
    ("danube_subscription_lag_messages", lambda sample: sample.state.lag_messages, sum),
    ("danube_subscription_oldest_unread_age_seconds", lambda sample: sample.oldest_unread_age_s, max),
    ("danube_subscription_active_consumers", lambda sample: sample.state.members, sum),
    ("danube_consumer_messages_out", lambda sample: sample.messages_out, sum),
    ("danube_subscription_redelivery", lambda sample: sample.state.redelivered, sum),
)
_SERIES_BYTES: Final = 100  # of a series' line without its names: the longest metric, labels, value


def _bytes(name: str) -> int:
    """Return the bytes of a label's value. Quotes and backslashes are escaped."""
    return len(name.encode()) + name.count("\\") + name.count('"')


def _family(name: str) -> GaugeMetricFamily | CounterMetricFamily:
    """Return an empty family of a declared gauge or counter."""
    declared = METRICS[name]
    kind = CounterMetricFamily if declared.kind is MetricKind.COUNTER else GaugeMetricFamily
    return kind(declared.name, declared.text, labels=declared.labels)


def _chain_families(now: Gathered) -> Iterator[Metric]:
    chain = now.chain
    for name, value in (
        ("danube_chain_pieces", 0 if chain is None else chain.pieces),
        ("danube_chain_bytes", 0 if chain is None else chain.bytes),
        ("danube_chain_failures", 0 if chain is None else chain.failures),
        ("danube_chain_behind_bytes", 0 if chain is None else chain.behind_bytes),
        ("danube_chain_behind_seconds", 0.0 if chain is None else chain.behind_s),
        ("danube_chain_fences", now.chain_fences),
        ("danube_chain_fenced", int(now.chain_fenced)),
    ):
        family = _family(name)
        family.add_metric([], value)
        yield family


def _build_info(now: Gathered) -> Metric:
    info = InfoMetricFamily("danube_build", METRICS["danube_build"].text)
    info.add_metric([], {"version": now.version, "broker": now.broker_id})
    return info


class _Once:
    """A collector that yields the values gathered just now."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


class _Durations:
    """A histogram of durations in seconds, by the buckets of syncs."""

    def __init__(self, metric: str) -> None:
        self._declared = METRICS[metric]
        self._sum = 0.0
        self.buckets = [0] * (len(FSYNC_BUCKETS_S) + 1)

    def count(self, seconds: float) -> None:
        self._sum += seconds
        self.buckets[bisect_left(FSYNC_BUCKETS_S, seconds)] += 1

    def family(self) -> Metric:
        found = HistogramMetricFamily(self._declared.name, self._declared.text)
        found.add_metric([], buckets=_cumulated(FSYNC_BUCKETS_S, self.buckets), sum_value=self._sum)
        return found


def _cumulated(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return the buckets of a histogram in the form of Prometheus: (upper bound, count up to it)."""
    total, buckets = 0, []
    for bound, count in zip((*bounds, None), counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound is None else str(bound), float(total)))
    return buckets
