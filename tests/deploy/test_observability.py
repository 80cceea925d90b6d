"""Alert rules, scrape configuration and dashboards, by promtool and a real Prometheus that scrapes a real broker."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from mcp import Client
from pydanube_broker.status.metric_table import METRICS
from pydanube_core.diagnosis.rules import RULES

from tests.deploy.conftest import DEPLOY, tool
from tests.support.broker_process import BrokerProcess, free_ports
from tools.gen_observability import CONNECTOR_ALERTS

FOLDER = DEPLOY / "observability"
DEBIAN = "apt-get install prometheus"
SCRAPES_S = 60.0
# Families without a series until something goes wrong that these tests do not bring about.
WITHOUT_SERIES = {
    "danube_alert_webhook_requests_total",
    "danube_dropped_messages_total",
    "danube_grpc_connections_closed_total",
    "danube_link_lag_messages",
    "danube_link_logs",
    "danube_quota_felt_total",
    "danube_security_refused_total",
}


def run(*words: str) -> str:
    done = subprocess.run(words, cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_scrape_configuration_and_the_rules_are_valid() -> None:
    promtool = tool("promtool", DEBIAN)
    run(promtool, "check", "config", "prometheus.yml")
    assert f"{1 + len(RULES) + len(CONNECTOR_ALERTS)} rules found" in run(
        promtool, "check", "rules", "alerts.yml"
    )


def test_each_alert_fires_at_its_own_series_alone() -> None:
    assert "SUCCESS" in run(tool("promtool", DEBIAN), "test", "rules", "alerts_test.yml")


@pytest.fixture(scope="module")
def prometheus(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that scrapes the broker, which has seen some of everything; yields its URL."""
    program = tool("prometheus", DEBIAN)
    _bring_about(broker)
    folder = tmp_path_factory.mktemp("prometheus")
    address = urllib.parse.urlsplit(broker.metrics).netloc
    text = (FOLDER / "prometheus.yml").read_text()
    text = text.replace("127.0.0.1:9040", address).replace("15s", "1s")
    (folder / "prometheus.yml").write_text(text)
    (folder / "alerts.yml").write_text((FOLDER / "alerts.yml").read_text())
    (port,) = free_ports(1)
    words = [
        program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            _until(lambda: _answers(url) and _query(url, 'count_over_time(up{job="danube"}[1m]) > 3'))
            yield url
        finally:
            process.terminate()


def _bring_about(broker: BrokerProcess) -> None:
    for topic in ("orders", "logs"):
        broker.command("produce", topic, "-m", "x", "--count", "500")
        broker.command("consume", topic, "-s", "billing", "--count", "100", "--for", "60s")
    text = '{"type":"object"}'
    broker.command(
        "schemas", "register", "checked", "--schema-type", "json_schema", "--schema-definition", text, "--yes"
    )
    broker.command("topics", "create", "strict")
    broker.command(
        "topics", "configure-schema", "strict", "checked", "--validation-policy", "enforce",
        "--enable-payload-validation", "--yes",
    )  # fmt: skip
    refused = broker.command("produce", "strict", "-m", "x", "--schema-subject", "checked", check=False)
    assert refused.returncode == 2, refused.stderr
    anyio.run(_call_a_tool, broker)
    _until(lambda: broker.json_command("alerts", "list")["items"])
    _until(lambda: broker.json_command("objects", "list", "orders")["items"])


async def _call_a_tool(broker: BrokerProcess) -> None:
    with anyio.fail_after(SCRAPES_S):
        async with Client(f"{broker.http}/mcp") as client:
            await client.call_tool("list_topics", {})


def _until(holds: Any, what: str = "it") -> Any:
    deadline = time.monotonic() + SCRAPES_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not come about in {SCRAPES_S} s"
        time.sleep(0.2)
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _query(url: str, text: str) -> list[Any]:
    words = urllib.parse.urlencode({"query": text})
    with urllib.request.urlopen(f"{url}/api/v1/query?{words}", timeout=30) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
        return found


def panels() -> list[tuple[str, str, str]]:
    """(dashboard, panel, query) of every panel, with Grafana's variables as it would fill them in."""
    found = []
    for file in sorted((FOLDER / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "20s")
                for variable in ("instance", "topic"):
                    query = query.replace(f"${variable}", ".*")
                assert "$" not in query
                found.append((file.stem, panel["title"], query))
    return found


def test_every_dashboard_begins_with_a_row_of_stats_and_links_to_the_others() -> None:
    for file in sorted((FOLDER / "dashboards").glob("*.json")):
        board = json.loads(file.read_text())
        first = [panel for panel in board["panels"] if panel["gridPos"]["y"] == 0]
        assert [panel["type"] for panel in first] == ["stat"] * 4, file.name
        assert sum(panel["gridPos"]["w"] for panel in first) == 24, "the width of Grafana's grid"
        below = {panel["gridPos"]["y"] for panel in board["panels"]} - {0}
        assert min(below) == first[0]["gridPos"]["h"], "no panel lies over another"
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        assert board["links"][0]["tags"] == board["tags"]


def test_every_metric_has_a_panel() -> None:
    queries = " ".join(query for _, _, query in panels())
    assert [one.shown_name for one in METRICS.values() if one.name not in queries] == []


def test_every_panel_shows_data_of_a_real_broker(prometheus: str) -> None:
    empty = {
        title.removesuffix(" per second")
        for dashboard, title, query in panels()
        if dashboard != "connect"  # a worker has its metrics
        and not _query(prometheus, query)
        and not _waited_for(prometheus, query)
    }
    assert empty == {name.removeprefix("danube_") for name in WITHOUT_SERIES}


def _waited_for(url: str, query: str) -> bool:
    """A series that has just come needs two scrapes for a rate."""
    if any(name in query for name in WITHOUT_SERIES):
        return False
    return bool(_until(lambda: _query(url, query), query))


def test_an_alert_of_the_broker_is_an_alert_of_prometheus(prometheus: str) -> None:
    def firing() -> set[str]:
        return {found["metric"]["alertname"] for found in _query(prometheus, 'ALERTS{alertstate="firing"}')}

    _until(lambda: "DanubeNoConsumers" in firing())
    assert "DanubeBrokerDown" not in firing()


def test_no_metric_is_undeclared(broker: BrokerProcess, prometheus: str) -> None:
    with urllib.request.urlopen(f"{broker.metrics}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert shown == {one.shown_name for one in METRICS.values()}
