"""A Spark cluster of a master and two workers gives the same answers as one process; and so does S3 without jars."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pydanube_core.errors import StoreUnavailable
from pydanube_core.telemetry.files import HOUR_MS
from pydanube_core.units import format_time
from pydanube_spark.java import find_java
from pydanube_spark.reports.balance.report import run_balance
from pydanube_spark.reports.lag.report import run_lag
from pydanube_spark.reports.main import main
from pydanube_spark.reports.run import ReportRequest
from pydanube_storage.objects import StoreOptions, open_store
from pydanube_storage.objects.local import LocalStore

from tests.support.broker_process import free_ports
from tests.support.s3_server import running_s3_server
from tests.support.telemetry_generator import Plan, generate

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

PLAN = Plan(start_ms=472_222 * HOUR_MS, hours=2, subscriptions=12)
SINCE, UNTIL = format_time(PLAN.start_ms), format_time(PLAN.start_ms + PLAN.hours * HOUR_MS)
START_S = 120.0


@contextlib.contextmanager
def daemon(folder: Path, name: str, until: str, *arguments: str) -> Iterator[None]:
    """One of Spark's own programs, running once its log says so."""
    home = Path(pyspark.__file__).parent
    log = folder / f"{name}.log"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(folder / name),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=environment,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S
        while until not in log.read_text():
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


SHOWN = ("cluster", "since", "until", "as_of", "rows", "summary")


def report(name: str, store: Path, folder: Path, *more: str) -> dict[str, Any]:
    """As a process of its own: what spark-submit would run."""
    command = [
        *(sys.executable, "-m", "pydanube_spark.reports.main", name, f"--tier={store}"),
        *(f"--since={SINCE}", f"--until={UNTIL}", f"--out={folder}", *more),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {key: said[key] for key in SHOWN}


def report_here(run: Callable[[ReportRequest], dict[str, Any]], store: Path) -> dict[str, Any]:
    """By the session of the tests, as JSON has it."""
    said = run(ReportRequest(store=StoreOptions(url=str(store)), since=SINCE, until=UNTIL))
    found: dict[str, Any] = json.loads(json.dumps({key: said[key] for key in SHOWN}, default=str))
    return found


def test_a_master_and_two_workers_say_what_one_process_says(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    generate(LocalStore(tmp_path / "store"), PLAN)
    (port,) = free_ports(1)
    deploy = "org.apache.spark.deploy"
    url = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as running:
        running.enter_context(
            daemon(
                *(tmp_path, "master", "I have been elected leader"),
                *(f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
            )
        )
        for name in ("worker-1", "worker-2"):
            running.enter_context(
                daemon(
                    *(tmp_path, name, "Successfully registered with master"),
                    *(f"{deploy}.worker.Worker", url, "-c", "1", "-m", "1g", "--webui-port", "0"),
                    *("--host", "127.0.0.1"),
                )
            )
        together = {
            name: report(name, tmp_path / "store", tmp_path / f"{name}-cluster", f"--master={url}")
            for name in ("lag", "balance")
        }
    request.getfixturevalue("spark")  # not before: one JVM less beside the cluster's
    assert together["lag"] == report_here(run_lag, tmp_path / "store")
    assert together["balance"] == report_here(run_balance, tmp_path / "store")
    ran = [each for each in tmp_path.glob("worker-*/app-*") if any(each.iterdir())]
    assert {each.parent.name for each in ran} == {"worker-1", "worker-2"}, "only one of them worked"


def test_reports_and_topics_in_s3_need_no_jars(spark: Any, tmp_path: Path) -> None:
    from benchmarks.spark_reading import write

    with running_s3_server(tmp_path / "s3") as server:
        options = server.options("data")
        generate(open_store(options), PLAN)
        local = tmp_path / "local"
        generate(LocalStore(local), PLAN)
        asked = {"since": SINCE, "until": UNTIL}
        there = run_lag(ReportRequest(store=options, **asked))
        here = run_lag(ReportRequest(store=StoreOptions(url=str(local)), **asked))
        assert (there["rows"], there["summary"]) == (here["rows"], here["summary"])
        write(tmp_path / "topic", 3000, 64)
        store = open_store(server.options("topics"))
        for path in (tmp_path / "topic").rglob("*.parquet"):
            store.put(str(path.relative_to(tmp_path / "topic")), path.read_bytes())
        from pydanube_spark import read_topic

        place = {"endpoint": server.endpoint, "region": "us-east-1", "path_style": "true"}
        frame = read_topic(
            spark, "orders", tier="s3://" + str(options.url).split("/")[2] + "/topics", **place
        )
        (row,) = frame.selectExpr(
            "count(*) n", "count(distinct offset) d", "sum(length(payload)) b"
        ).collect()
        assert row.asDict() == {"n": 3000, "d": 3000, "b": 3000 * 64}


def test_the_program_says_what_is_wrong_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["lag", f"--tier={tmp_path / 'nowhere'}"]) == StoreUnavailable("").exit_code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith('{"error"')]
    assert json.loads(line)["error"]["code"] == "STORE_UNAVAILABLE"
