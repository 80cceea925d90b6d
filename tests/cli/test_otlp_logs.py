"""The broker's log by OTLP, as a collector receives it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli.running import Danube, command_line

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

Received = list[ExportLogsServiceRequest]


@pytest.fixture
def collector() -> Iterator[tuple[str, Received]]:
    """What takes OTLP over HTTP, and what it has taken."""
    received: Received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/logs"
            received.append(ExportLogsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


def run_a_broker(url: str, data: Path) -> tuple[list[str], float]:
    """Start and stop one that sends to `url`; the events on its stderr, and how long the stop took."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DANUBE_", "OTEL_"))},
        **{f"DANUBE_SERVER__{name}_PORT": "0" for name in ("GRPC", "ADMIN", "METRICS", "HTTP")},
        "DANUBE_LOG__OTLP": url,
        "DANUBE_LOG__FORMAT": "json",
    }
    words = command_line("broker", "--data-dir", str(data), "--json")
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert json.loads(broker.stdout.readline())["event"] == "ready"
        begun = time.monotonic()
        broker.terminate()
        _, err = broker.communicate(timeout=60)
        assert broker.returncode == 0, err
    return [json.loads(line)["event"] for line in err.decode().splitlines()], time.monotonic() - begun


def test_a_collector_receives_the_events_of_stderr(collector: tuple[str, Received], tmp_path: Path) -> None:
    url, received = collector
    written, _ = run_a_broker(url, tmp_path / "data")
    [resource] = {str(each.resource) for request in received for each in request.resource_logs}
    assert 'key: "service.name"' in resource
    assert 'string_value: "danube"' in resource
    records = [
        record
        for request in received
        for each in request.resource_logs
        for scope in each.scope_logs
        for record in scope.log_records
    ]
    assert [record.event_name for record in records] == [event for event in written if event != "log"]
    [ready] = [record for record in records if record.event_name == "broker_ready"]
    assert ready.severity_text == "info"
    assert {each.key for each in ready.attributes} >= {"grpc", "data_dir", "records"}
    assert abs(ready.time_unix_nano / 1e9 - time.time()) < 600


def test_a_collector_that_is_away_keeps_no_broker_from_starting_or_stopping(tmp_path: Path) -> None:
    written, _ = run_a_broker("http://127.0.0.1:9", tmp_path / "data")
    assert "broker_ready" in written


def test_an_address_that_is_none_is_refused_by_name(
    danube: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANUBE_LOG__OTLP", "collector:4318")
    ran = danube("broker", "--data-dir", str(tmp_path / "data"), "--json")
    assert (ran.code, ran.error["code"]) == (2, "INVALID_ARGUMENT")
    assert "'collector:4318'" in ran.error["message"]
