"""Write what a monitor needs to know of a broker: deploy/observability/alerts.yml with its tests, and the dashboards.

    python tools/gen_observability.py            write them
    python tools/gen_observability.py --check    write nothing; exit with 1 when one has drifted

Alert rules are the rules of diagnosis (pydanube_core.diagnosis), which the broker carries out itself and shows as
`danube_open_alerts`: nothing is judged a second time in another language. Panels are the metrics' declarations
(pydanube_broker.status.metric_table), one each.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydanube_broker.status.metric_table import METRICS, MetricArea, MetricDeclaration, MetricKind
from pydanube_connect.statistics import COUNTERS, GAUGES
from pydanube_core.diagnosis.connectors import BUSY, SILENT_MS, SLOT_BYTES, SLOW_LAG
from pydanube_core.diagnosis.findings import Rule
from pydanube_core.diagnosis.rules import RULES

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.generated_files import write_or_compare  # noqa: E402  # a neighbour, found by its folder

FOLDER: Final = ROOT / "deploy" / "observability"
HEAD: Final = "# Written by tools/gen_observability.py; do not edit.\n"
SHOWN_SERIES: Final = 20  # of the largest, in a panel with a series for each topic
UNITS: Final = {"bytes": "bytes", "s": "s", "": "short"}
TITLES: Final = {
    MetricArea.BROKER: "Danube: cluster",
    MetricArea.TOPIC: "Danube: topics",
    MetricArea.SUBSCRIPTION: "Danube: subscriptions",
    MetricArea.TIER: "Danube: cold tier",
    MetricArea.CALLS: "Danube: calls, MCP and administration",
}
STAT_ROWS: Final = 4  # of the grid: the height of the first row
#: the first row of each dashboard: (title, query, unit). A sum of no series is 0
STATS: Final[Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    MetricArea.BROKER: (
        ("brokers", "count(danube_build_info{I})", "short"),
        ("open alerts", "sum(danube_open_alerts{I})", "short"),
        ("messages in", "sum(rate(danube_topic_messages_in_total{I}[$__rate_interval]))", "cps"),
        ("unread messages", "sum(danube_subscription_lag_messages{I})", "short"),
    ),
    MetricArea.TOPIC: (
        ("messages in", "sum(rate(danube_topic_messages_in_total{T}[$__rate_interval]))", "cps"),
        ("bytes in", "sum(rate(danube_topic_bytes_in_total{T}[$__rate_interval]))", "Bps"),
        ("producers", "sum(danube_topic_active_producers{T})", "short"),
        ("publishes refused", "sum(rate(danube_publish_rejected_total{T}[$__rate_interval]))", "cps"),
    ),
    MetricArea.SUBSCRIPTION: (
        ("unread messages", "sum(danube_subscription_lag_messages{T})", "short"),
        ("oldest unread", "max(danube_subscription_oldest_unread_age_seconds{T})", "s"),
        ("consumers", "sum(danube_subscription_active_consumers{T})", "short"),
        ("messages out", "sum(rate(danube_consumer_messages_out_total{T}[$__rate_interval]))", "cps"),
    ),
    MetricArea.TIER: (
        ("waits for the store", "sum(danube_tier_backlog_bytes{I})", "bytes"),
        ("errors", "sum(rate(danube_tier_errors_total{I}[$__rate_interval]))", "cps"),
        ("objects", "sum(rate(danube_tier_objects_total{I}[$__rate_interval]))", "cps"),
        ("journal not copied", "max(danube_chain_behind_seconds{I})", "s"),
    ),
    MetricArea.CALLS: (
        ("calls", "sum(rate(danube_grpc_calls_total{I}[$__rate_interval]))", "cps"),
        ("of them failed", 'sum(rate(danube_grpc_calls_total{I, code!="OK"}[$__rate_interval]))', "cps"),
        ("MCP calls", "sum(rate(danube_mcp_calls_total{I}[$__rate_interval]))", "cps"),
        ("refused by permissions", "sum(rate(danube_security_refused_total{I}[$__rate_interval]))", "cps"),
    ),
    "connect": (
        ("connectors", "sum(danube_connect_running)", "short"),
        ("records", "sum(rate(danube_connect_records_total[$__rate_interval]))", "cps"),
        ("refused records", "sum(rate(danube_connect_refused_total[$__rate_interval]))", "cps"),
        ("behind", "sum(danube_connect_lag_messages)", "short"),
    ),
}
#: every dashboard links to the others, with the chosen brokers and the time
LINKS: Final = [
    {"type": "dashboards", "title": "Danube", "tags": ["danube"], "includeVars": True, "keepTime": True}
]
# What no rule of the broker can say: that nobody answers.
BROKER_DOWN: Final = """\
      - alert: DanubeBrokerDown
        expr: up{job="danube"} == 0
        for: 1m
        labels: {severity: critical}
        annotations:
          summary: "{{ $labels.instance }} does not answer"
          description: "Start it, or look at its log: journalctl -u danube, kubectl logs, podman logs."
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorAlert:
    """A rule over the metrics of workers of connectors, which a broker does not have.

    Attributes:
        fires: values of the series in steps of a minute, for which the rule fires after `after_m` minutes and not before.
        quiet: values for which it never fires.
    """

    name: str
    series: str
    expr: str
    for_m: int
    severity: str
    holds: str
    helps: str
    fires: str
    quiet: str
    after_m: int
    more: tuple[tuple[str, str], ...] = ()  # other series and their values, the same in both tests
    labels: str = 'connector="orders", type="delta-sink"'


#: the rules of pydanube_core.diagnosis.connectors that the metrics of a worker can judge
CONNECTOR_ALERTS: Final = (
    ConnectorAlert(
        name="DanubeConnectWorkerGone", series="up", expr='up{job="danube-connect"} == 0', for_m=1, severity="critical",
        holds="does not answer", helps="Start the worker. Others of its group have its connectors by now",
        fires="1x3 0x9", quiet="1x12", after_m=6, labels='job="danube-connect"',
    ),
    ConnectorAlert(
        name="DanubeConnectorFailing", series="danube_connect_running", expr="danube_connect_running == 0", for_m=2,
        severity="critical", holds="has stopped, or fails and tries again",
        helps="The error and its code: danube connectors errors NAME. Then danube connectors restart NAME",
        fires="1x3 0x9", quiet="1x12", after_m=7,
    ),
    ConnectorAlert(
        name="DanubeConnectorRefusesRecords", series="danube_connect_refused_total",
        expr="increase(danube_connect_refused_total[5m]) > 0", for_m=0, severity="warning",
        holds="refused records in the last five minutes. They are dead letters",
        helps="Which, and why: danube connectors errors NAME", fires="0x3 5x9", quiet="5x12", after_m=5,
    ),
    ConnectorAlert(
        name="DanubeConnectorTargetSlow", series="danube_connect_busy_ratio",
        expr=f"danube_connect_busy_ratio >= {BUSY} and danube_connect_lag_messages >= {SLOW_LAG}", for_m=5,
        severity="warning", holds="is behind, and waits for its target most of the time",
        helps="Larger batches, or more partitions, may help",
        fires="0.9x12", quiet="0.1x12", after_m=6, more=(("danube_connect_lag_messages", "20000x12"),),
    ),
    ConnectorAlert(
        name="DanubeConnectorSourceSilent", series="danube_connect_last_record_seconds",
        expr=f'time() - danube_connect_last_record_seconds{{type!~".*-sink"}} > {SILENT_MS // 1_000}', for_m=0,
        severity="info", holds="has read no record for ten minutes",
        helps="Its other system may be quiet, or no longer send", fires="1x12", quiet="0+60x12", after_m=11,
        labels='connector="orders", type="kafka-source"',
    ),
    ConnectorAlert(
        name="DanubeConnectorSlotFillsDisk", series="danube_connect_held_bytes",
        expr=f"danube_connect_held_bytes >= {SLOT_BYTES}", for_m=5, severity="warning",
        holds="leaves much of the database's log unread, which its replication slot keeps on the disk",
        helps="Mend the connector, or drop its slot", fires="2000000000x12", quiet="1000x12", after_m=6,
        labels='connector="orders", type="postgres-source"',
    ),
)  # fmt: skip


def _said_by(alert: ConnectorAlert, filled: bool) -> tuple[str, str]:
    """Return summary and description, with the labels of the test filled in."""
    name = "instance" if alert.series == "up" else "connector"
    value = {"instance": "w1", "connector": "orders"}[name] if filled else f"{{{{ $labels.{name} }}}}"
    return f"{value} {alert.holds}", f"{alert.helps}."


def connector_alerts() -> str:
    """The group of rules for workers of connectors, which are scraped as the job danube-connect."""
    lines = ["  - name: danube-connect\n    rules:\n"]
    for alert in CONNECTOR_ALERTS:
        summary, description = _said_by(alert, False)
        lines.append(
            f"      - alert: {alert.name}\n        expr: {json.dumps(alert.expr)}\n"
            + (f"        for: {alert.for_m}m\n" if alert.for_m else "")
            + f"        labels: {{severity: {alert.severity}, area: connect}}\n        annotations:\n"
            f"          summary: {json.dumps(summary)}\n          description: {json.dumps(description)}\n"
        )
    return "".join(lines)


def connector_alert_tests() -> str:
    lines = []
    for alert in CONNECTOR_ALERTS:
        summary, description = _said_by(alert, True)
        labels = alert.labels.replace("=", ": ").replace('"', "")
        fired = (
            "          - exp_labels: {severity: "
            + f"{alert.severity}, area: connect, {labels}, instance: w1}}\n"
            f"            exp_annotations:\n              summary: {json.dumps(summary)}\n"
            f"              description: {json.dumps(description)}\n"
        )
        for values, expected in ((alert.fires, "\n" + fired), (alert.quiet, " []\n")):
            lines.append("  - interval: 1m\n    input_series:\n")
            lines += [
                f"      - series: '{series}{{{alert.labels}, instance=\"w1\"}}'\n        values: '{each}'\n"
                for series, each in ((alert.series, values), *alert.more)
            ]
            lines.append(
                f"    alert_rule_test:\n      - {{eval_time: 0s, alertname: {alert.name}, exp_alerts: []}}\n"
                f"      - eval_time: {alert.after_m}m\n        alertname: {alert.name}\n        exp_alerts:{expected}"
            )
    return "".join(lines)


def alert_name(rule: Rule) -> str:
    return "Danube" + "".join(word.capitalize() for word in rule.name.split("_"))


def alerts() -> str:
    """The file of alert rules. The broker has waited for `diagnosis.open_after` looks already: there is no `for`."""
    lines = [HEAD, "groups:\n  - name: danube\n    rules:\n", BROKER_DOWN]
    for rule in RULES.values():
        summary = f"{{{{ $value }}}} × {rule.name} on {{{{ $labels.instance }}}}: {rule.holds}"
        description = f"{rule.helps}. Which one: danube alerts list --admin http://BROKER:50051"
        lines.append(
            f"      - alert: {alert_name(rule)}\n"
            f'        expr: danube_open_alerts{{rule="{rule.name}"}} > 0\n'
            f"        labels: {{area: {rule.area}}}\n"
            "        annotations:\n"
            f"          summary: {json.dumps(summary, ensure_ascii=False)}\n"
            f"          description: {json.dumps(description, ensure_ascii=False)}\n"
        )
    return "".join(lines) + connector_alerts()


def alert_tests() -> str:
    """Unit tests for promtool: each rule fires at its own series and at no other's, and is quiet at 0."""
    lines = [HEAD, "rule_files: [alerts.yml]\nevaluation_interval: 15s\ntests:\n"]
    lines.append(
        "  - interval: 15s\n    input_series:\n"
        "      - series: 'up{job=\"danube\", instance=\"b1\"}'\n        values: '1x3 0x9'\n"
        "    alert_rule_test:\n"
        "      - {eval_time: 90s, alertname: DanubeBrokerDown, exp_alerts: []}\n"
        "      - eval_time: 2m\n        alertname: DanubeBrokerDown\n        exp_alerts:\n"
        "          - exp_labels: {severity: critical, job: danube, instance: b1}\n"
        "            exp_annotations:\n"
        '              summary: "b1 does not answer"\n'
        '              description: "Start it, or look at its log: journalctl -u danube, kubectl logs, podman logs."\n'
    )
    names = list(RULES)
    for at, rule in enumerate(RULES.values()):
        other = names[(at + 1) % len(names)]
        summary = f"3 × {rule.name} on b1: {rule.holds}"
        description = f"{rule.helps}. Which one: danube alerts list --admin http://BROKER:50051"
        lines.append(
            "  - interval: 15s\n    input_series:\n"
            f'      - series: \'danube_open_alerts{{rule="{rule.name}", severity="warning", instance="b1"}}\'\n'
            "        values: '0x1 3x2 0x1'\n"
            "    alert_rule_test:\n"
            f"      - {{eval_time: 0s, alertname: {alert_name(rule)}, exp_alerts: []}}\n"
            f"      - {{eval_time: 45s, alertname: {alert_name(RULES[other])}, exp_alerts: []}}\n"
            f"      - eval_time: 45s\n        alertname: {alert_name(rule)}\n        exp_alerts:\n"
            f"          - exp_labels: {{rule: {rule.name}, severity: warning, instance: b1, area: {rule.area}}}\n"
            "            exp_annotations:\n"
            f"              summary: {json.dumps(summary, ensure_ascii=False)}\n"
            f"              description: {json.dumps(description, ensure_ascii=False)}\n"
            f"      - {{eval_time: 90s, alertname: {alert_name(rule)}, exp_alerts: []}}\n"
        )
    return "".join(lines) + connector_alert_tests()


def queries(metric: MetricDeclaration) -> Iterator[tuple[str, str]]:
    """(query, legend) of a metric's panel."""
    chosen = 'instance=~"$instance"' + (', topic=~"$topic"' if "topic" in metric.labels else "")
    series = f"{metric.shown_name}{{{chosen}}}"
    by = ", ".join(metric.labels or ("instance",))
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels or ("instance",))
    match metric.kind:
        case MetricKind.INFO:
            yield series, legend
        case MetricKind.HISTOGRAM:
            for quantile in (0.5, 0.99, 0.999):
                buckets = f"rate({metric.name}_bucket{{{chosen}}}[$__rate_interval])"
                yield f"histogram_quantile({quantile}, sum by (le) ({buckets}))", f"p{quantile * 100:g}"
        case MetricKind.COUNTER:
            yield _largest(metric, f"sum by ({by}) (rate({series}[$__rate_interval]))"), legend
        case MetricKind.GAUGE:
            yield _largest(metric, f"sum by ({by}) ({series})"), legend


def _largest(metric: MetricDeclaration, query: str) -> str:
    return f"topk({SHOWN_SERIES}, {query})" if "topic" in metric.labels else query


def stats(area: str) -> list[dict[str, Any]]:
    """Return the first row of a dashboard."""
    chosen = {"I": 'instance=~"$instance"', "T": 'instance=~"$instance", topic=~"$topic"'}
    panels = []
    for at, (title, query, unit) in enumerate(STATS[area]):
        filled = re.sub(r"\{([IT])(?=[,}])", lambda found: "{" + chosen[found[1]], query)
        panels.append({
            "id": 100 + at, "type": "stat", "title": title, "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"x": 6 * at, "y": 0, "w": 6, "h": STAT_ROWS},
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []}, "options": {"graphMode": "area"},
            "targets": [{"refId": "A", "expr": f"{filled} or vector(0)", "legendFormat": title}],
        })  # fmt: skip
    return panels


def panel(number: int, metric: MetricDeclaration) -> dict[str, Any]:
    """One panel, two in a row."""
    per_second = metric.kind is MetricKind.COUNTER
    unit = "Bps" if per_second and metric.unit == "bytes" else "cps" if per_second else UNITS[metric.unit]
    table = metric.kind is MetricKind.INFO
    return {
        "id": number + 1,
        "type": "table" if table else "timeseries",
        "title": metric.shown_name.removeprefix("danube_") + (" per second" if per_second else ""),
        "description": metric.text,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": 12 * (number % 2), "y": STAT_ROWS + 8 * (number // 2), "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "expr": query,
                "legendFormat": legend,
                "instant": table,
                "format": "table" if table else "time_series",
            }
            for at, (query, legend) in enumerate(queries(metric))
        ],
    }


def dashboard(area: MetricArea) -> str:
    """A dashboard as Grafana reads it from a folder."""
    metrics = [metric for metric in METRICS.values() if metric.area is area]

    def chosen_by(label: str, of: str) -> dict[str, Any]:
        source = {"type": "prometheus", "uid": "${datasource}"}
        query = f"label_values({of}, {label})"
        more = {"includeAll": True, "allValue": ".*", "multi": True, "refresh": 2}
        return {"name": label, "type": "query", "datasource": source, "query": query, **more}

    variables: list[dict[str, Any]] = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        chosen_by("instance", "danube_build_info"),
    ]
    if any("topic" in metric.labels for metric in metrics):
        variables.append(chosen_by("topic", "danube_topic_messages_in_total"))
    value = {
        "uid": f"danube-{area}",
        "title": TITLES[area],
        "tags": ["danube"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "links": LINKS,
        "panels": [*stats(area), *(panel(number, metric) for number, metric in enumerate(metrics))],
    }
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def connect_dashboard() -> str:
    """The dashboard of the workers of connectors, whose metrics are not a broker's."""
    shown = [(f"danube_connect_{name}_total", about, True) for name, about in COUNTERS.items()]
    shown += [(name, about, False) for name, about, _ in GAUGES]
    panels = []
    for number, (name, about, counts) in enumerate(shown):
        query = (
            f"sum by (connector) (rate({name}[$__rate_interval]))"
            if counts
            else f"max by (connector) ({name})"
        )
        unit = (
            "cps"
            if counts
            else "bytes"
            if name.endswith("_bytes")
            else "dateTimeFromNow"
            if name.endswith("_seconds")
            else "short"
        )
        if name.endswith("_seconds"):
            query = f"{query} * 1000"
        panels.append({
            "id": number + 1, "type": "timeseries",
            "title": name.removeprefix("danube_").removesuffix("_total") + (" per second" if counts else ""),
            "description": about, "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"x": 12 * (number % 2), "y": STAT_ROWS + 8 * (number // 2), "w": 12, "h": 8},
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "targets": [{"refId": "A", "expr": query, "legendFormat": "{{connector}}"}],
        })  # fmt: skip
    value = {
        "uid": "danube-connect", "title": "Danube: connectors", "tags": ["danube"], "schemaVersion": 39, "editable": False,
        "refresh": "10s", "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "links": LINKS, "panels": [*stats("connect"), *panels],
    }  # fmt: skip
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def files() -> dict[Path, str]:
    return {
        FOLDER / "alerts.yml": alerts(),
        FOLDER / "alerts_test.yml": alert_tests(),
        FOLDER / "dashboards" / "connect.json": connect_dashboard(),
        **{FOLDER / "dashboards" / f"{area}.json": dashboard(area) for area in MetricArea},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Write alert rules and dashboards.")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    return write_or_compare(files(), check=check, remedy="make docs")


if __name__ == "__main__":
    sys.exit(main())
