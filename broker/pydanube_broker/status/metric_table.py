"""Every metric that a broker shows at `/metrics`, declared once.

`metrics.py` fills them in. The page docs/reference.md#metrics and the dashboards under deploy/grafana are made from
this table. The original's names are kept if the meaning is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricKind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


class MetricArea(StrEnum):
    """The subject of a metric. Each has a dashboard of its own."""

    BROKER = "broker"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    TIER = "tier"
    CALLS = "calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDeclaration:
    """A metric. `name` is without the ending that its kind adds (`_total`, `_info`, `_bucket` …)."""

    name: str
    kind: MetricKind
    area: MetricArea
    text: str
    labels: tuple[str, ...] = ()
    unit: str = ""  # bytes or s. Otherwise a count

    @property
    def shown_name(self) -> str:
        """The name in the text of `/metrics` and in queries. A histogram's has further endings."""
        return self.name + {MetricKind.COUNTER: "_total", MetricKind.INFO: "_info"}.get(self.kind, "")


def _of(
    area: MetricArea, kind: MetricKind, name: str, text: str, *labels: str, unit: str = ""
) -> MetricDeclaration:
    return MetricDeclaration(name=name, kind=kind, area=area, text=text, labels=labels, unit=unit)


_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER
_BROKER, _TOPIC, _SUBSCRIPTION = MetricArea.BROKER, MetricArea.TOPIC, MetricArea.SUBSCRIPTION
_TIER, _CALLS = MetricArea.TIER, MetricArea.CALLS
_DECLARED: Final = (
    _of(_BROKER, MetricKind.INFO, "danube_build", "version and identity", "version", "broker"),
    _of(_BROKER, _GAUGE, "danube_broker_topics_owned", "topics this broker owns"),
    _of(_BROKER, _GAUGE, "danube_leader_election_state", "1: this broker leads"),
    _of(_BROKER, _GAUGE, "danube_open_alerts", "findings that lasted, by rule of diagnosis", "rule", "severity"),
    _of(
        _BROKER, _COUNTER, "danube_alert_webhook_requests",
        "requests to the addresses in alerts.webhook that were taken, and that failed", "outcome",
    ),
    _of(_BROKER, _GAUGE, "danube_journal_bytes", "bytes of journal segments on disk", unit="bytes"),
    _of(_BROKER, _GAUGE, "danube_journal_read_only", "1: writes failed, restart needed"),
    _of(_BROKER, MetricKind.HISTOGRAM, "danube_journal_fsync_seconds", "time of one fdatasync of the journal", unit="s"),
    _of(_BROKER, MetricKind.HISTOGRAM, "danube_journal_fsync_wait_seconds",
        "time from the request of a sync until the helper process began with it", unit="s"),
    _of(_BROKER, _GAUGE, "danube_peer_memory_bytes", "held for connected clients, of all ports", unit="bytes"),
    _of(_BROKER, _GAUGE, "danube_peer_memory_limit_bytes", "server.peer_memory_bytes", unit="bytes"),
    _of(
        _BROKER, _COUNTER, "danube_peer_memory_connections_closed",
        "connections closed because they made the broker hold too much",
    ),
    _of(
        _BROKER, _GAUGE, "danube_loop_longest_stop_seconds",
        "longest time of the last five minutes for which the event loop was held up", unit="s",
    ),
    _of(
        _BROKER, _COUNTER, "danube_observation_seconds",
        "processor time of sampling topics and subscriptions (sample), of applying the rules (judge), and of "
        "writing telemetry (tell)", "part", unit="s",
    ),
    _of(_TIER, _GAUGE, "danube_tier_backlog_bytes", "bytes that are not in the cold tier yet", unit="bytes"),
    _of(_TIER, _COUNTER, "danube_tier_errors", "flushes and cold reads that failed"),
    _of(_TIER, _COUNTER, "danube_tier_objects", "objects written, merged, dropped by retention, deleted", "event"),
    _of(_TIER, _COUNTER, "danube_chain_pieces", "pieces of the journal's chain that the object store has taken"),
    _of(_TIER, _COUNTER, "danube_chain_bytes", "bytes of these pieces", unit="bytes"),
    _of(_TIER, _COUNTER, "danube_chain_failures", "requests for the chain that failed"),
    _of(_TIER, _GAUGE, "danube_chain_behind_bytes", "bytes of the journal that the chain does not have yet", unit="bytes"),
    _of(_TIER, _GAUGE, "danube_chain_behind_seconds", "age of the oldest of them", unit="s"),
    _of(_TIER, _COUNTER, "danube_chain_fences", "chains of lost brokers that this broker, as the leader, has fenced"),
    _of(_TIER, _GAUGE, "danube_chain_fenced", "1 if another broker has taken the chain over"),
    _of(_BROKER, _GAUGE, "danube_link_lag_messages", "messages that mirrors at this broker lack", "link"),
    _of(_BROKER, _GAUGE, "danube_link_logs", "logs of mirrors at this broker, and topics that have no mirror, by state", "link", "state"),
    _of(_TOPIC, _COUNTER, "danube_topic_messages_in", "messages published", "topic"),
    _of(_TOPIC, _COUNTER, "danube_topic_bytes_in", "stored bytes published", "topic", unit="bytes"),
    _of(_TOPIC, _GAUGE, "danube_topic_active_producers", "producers connected", "topic"),
    _of(_TOPIC, _GAUGE, "danube_topic_active_consumers", "consumers and readers connected", "topic"),
    _of(_TOPIC, _GAUGE, "danube_topic_active_subscriptions", "subscriptions", "topic"),
    _of(_TOPIC, _COUNTER, "danube_publish_rejected", "publishes that were refused", "topic", "code"),
    _of(_CALLS, _COUNTER, "danube_quota_felt", "waits, refusals and warnings by quotas", "account", "quota", "what"),
    _of(_TOPIC, _COUNTER, "danube_dropped_messages", "messages given up on purpose: of non-reliable topics, or beyond their time to live", "topic", "reason"),
    _of(_TOPIC, _COUNTER, "danube_schema_validation", "messages checked against their topic's schema", "topic", "policy"),
    _of(_TOPIC, _COUNTER, "danube_schema_validation_failures", "those that did not fit", "topic", "reason"),
    _of(_SUBSCRIPTION, _GAUGE, "danube_subscription_lag_messages", "messages not acknowledged", "topic", "subscription"),
    _of(
        _SUBSCRIPTION, _GAUGE, "danube_subscription_oldest_unread_age_seconds", "age of the oldest of them",
        "topic", "subscription", unit="s",
    ),
    _of(_SUBSCRIPTION, _GAUGE, "danube_subscription_active_consumers", "consumers connected", "topic", "subscription"),
    _of(
        _SUBSCRIPTION, _COUNTER, "danube_consumer_messages_out", "messages sent to consumers",
        "topic", "subscription",
    ),
    _of(_SUBSCRIPTION, _COUNTER, "danube_subscription_redelivery", "messages sent again", "topic", "subscription"),
    _of(
        _CALLS, _COUNTER, "danube_grpc_calls", "calls that ended. danube.ops serves MCP, JSON-RPC and the command line",
        "service", "method", "code",
    ),
    _of(_CALLS, _COUNTER, "danube_grpc_connections_closed", "connections closed because of their peer", "reason"),
    _of(_CALLS, _COUNTER, "danube_mcp_calls", "calls of MCP clients. other: beyond the first 32 names of programs", "tool", "client", "code"),
    _of(_CALLS, MetricKind.HISTOGRAM, "danube_mcp_result_bytes", "answers to MCP clients", "tool", unit="bytes"),
    _of(_CALLS, _COUNTER, "danube_security_refused", "callers and calls that the locks refuse, or would in optional", "what"),
)  # fmt: skip
METRICS: Final[Mapping[str, MetricDeclaration]] = {one.name: one for one in _DECLARED}
assert len(METRICS) == len(_DECLARED), "a name stands once"
