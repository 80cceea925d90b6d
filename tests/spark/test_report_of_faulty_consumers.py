"""The lag report of a real broker with three faulty consumers, held against DuckDB over the same telemetry."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydanube.sync import connect
from pydanube_core.units import format_time
from pydanube_spark.reports.balance.work import bucket_ms_of
from pydanube_spark.reports.lag.work import LagRequest, LagWork
from pydanube_spark.reports.run import Span
from pydanube_storage.objects import StoreOptions

from tests.support.broker_process import BrokerProcess
from tests.support.report_figures import check_balance, check_lag

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(470)]

RUN_S = 45.0
FAULTS = ("stopped", "slow", "nacking")


def faulty(broker: BrokerProcess, name: str, ended: threading.Event) -> None:
    """A consumer that does one thing wrong. `stopped` takes a hundred messages and leaves."""
    with (
        connect(broker.info["grpc"]) as client,
        client.consumer("work", name, type="shared", start="earliest") as consumer,
    ):
        taken = 0
        while not ended.is_set():
            got = consumer.receive(1, max_wait_s=1.0)
            if not got:
                continue
            (message,) = got
            taken += 1
            if name == "nacking":
                message.nack()
                ended.wait(0.02)
                continue
            message.ack()
            if name == "slow":
                ended.wait(0.1)
            elif taken == 100:
                return


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    quick = {
        "DANUBE_TIER__FLUSH_AGE": "200ms",
        "DANUBE_TELEMETRY__SAMPLE_INTERVAL": "500ms",
        "DANUBE_TELEMETRY__FLUSH_AGE": "1s",
        "DANUBE_DIAGNOSIS__SAMPLE_INTERVAL": "500ms",
        "DANUBE_DIAGNOSIS__STUCK_AFTER": "10s",
    }
    with BrokerProcess(tmp_path_factory.mktemp("faulty"), environment=quick) as started:
        yield started


def test_the_report_says_what_duckdb_finds_in_the_same_files(broker: BrokerProcess, tmp_path: Path) -> None:
    ended = threading.Event()
    with connect(broker.info["grpc"]) as client, client.producer("work") as producer:
        producer.send(b"first")
        consumers = [
            threading.Thread(target=faulty, args=(broker, name, ended), daemon=True) for name in FAULTS
        ]
        for each in consumers:
            each.start()
        until = time.monotonic() + RUN_S
        while time.monotonic() < until:
            producer.send_many(b"x" * 100 for _ in range(20))
            time.sleep(0.2)
        telemetry = broker.data_dir / "objects"
        told = time.monotonic() + 60
        while not list(telemetry.glob("*/telemetry/topics/*/*.parquet")):
            assert time.monotonic() < told, "no telemetry came"
            time.sleep(0.5)
        asked_ms = time.time_ns() // 1_000_000
        time.sleep(5)  # what was sampled by then is in files
        done = broker.command(
            *("report", "lag", "--since", "40s", "--until", format_time(asked_ms), "--topic", "work"),
            *("--out", str(tmp_path / "report"), "--json"),
            check=False,
            timeout_s=240,
        )
        ended.set()
        for each in consumers:
            each.join(20)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    report = json.loads(done.stdout)
    rows = {row["subscription"]: row for row in report["rows"]}
    assert set(rows) == set(FAULTS)
    span = Span(since_ms=asked_ms - 40_000, until_ms=asked_ms)
    request = LagRequest(store=StoreOptions(url=str(telemetry)), cluster=None, span=span)
    grid = LagWork.plan(request).grid
    spacing = {"window_ms": grid.window_ms, "interval_ms": grid.interval_ms}
    check_lag(
        report["rows"],
        telemetry,
        span.since_ms,
        span.until_ms,
        stuck_ms=10_000,
        topic="/default/work",
        **spacing,
    )
    balance = broker.command(
        *("report", "balance", "--since", "40s", "--until", format_time(asked_ms), "--json"), timeout_s=240
    )
    bucket_ms = bucket_ms_of(span, grid.interval_ms)
    check_balance(
        json.loads(balance.stdout)["rows"], telemetry, span.since_ms, span.until_ms, bucket_ms=bucket_ms
    )
    assert (rows["stopped"]["status"], rows["stopped"]["stuck_reason"]) == ("STUCK", "no_member")
    assert rows["slow"]["status"] == "FALLING_BEHIND"
    assert rows["nacking"]["status"] in ("STUCK", "FALLING_BEHIND")
    assert rows["nacking"]["redelivered"] > 0
    assert all(row["type"] == "shared" and row["lag_bytes"] > 0 for row in rows.values())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--topic", "nothing-like-it", "--since", "1h"], "INVALID_ARGUMENT", "was sampled in that time"),
        (["--since", "0s"], "INVALID_ARGUMENT", ""),
        (["--compare", "yesterday"], "INVALID_ARGUMENT", "there is only previous"),
        (["--tier", "/nowhere/at/all"], "STORE_UNAVAILABLE", "there is no object store"),
    ],
)
def test_bad_input_of_the_command_has_a_code_and_no_trace(
    broker: BrokerProcess, words: list[str], code: str, said: str
) -> None:
    done = broker.command("report", "lag", *words, "--json", check=False, timeout_s=240)
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["code"] == code
    assert said in error["message"]
