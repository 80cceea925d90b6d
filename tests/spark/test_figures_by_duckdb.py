"""Every figure of both reports, computed again by DuckDB from the same Parquet files: made-up days with every status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydanube_core.diagnosis import LagStatus
from pydanube_core.telemetry import table_named
from pydanube_core.telemetry.files import HOUR_MS
from pydanube_core.units import format_time
from pydanube_spark.reports.balance.report import run_balance
from pydanube_spark.reports.lag.report import run_lag
from pydanube_spark.reports.run import ReportRequest
from pydanube_storage.objects import StoreOptions
from pydanube_storage.objects.local import LocalStore
from pydanube_storage.telemetry.reading import read_samples
from pydanube_storage.telemetry.writing import encode

from tests.support.report_figures import check_balance, check_lag
from tests.support.telemetry_generator import FIRST_BROKER, Plan, generate

PLAN = Plan(start_ms=472_222 * HOUR_MS, hours=4, subscriptions=15, restarts=True)
UNTIL = PLAN.start_ms + PLAN.hours * HOUR_MS
GAP = (PLAN.start_ms + 100 * 60_000, PLAN.start_ms + 125 * 60_000)  # of the second broker


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Brokers are started anew in it; one of them tells nothing for 25 minutes."""
    folder = tmp_path_factory.mktemp("made-up")
    generate(LocalStore(folder), PLAN)
    for table in ("cursors", "brokers", "topics"):
        for path in folder.glob(f"*/telemetry/{table}/*/*-{FIRST_BROKER + 1}-*.parquet"):
            samples = read_samples(LocalStore(folder), str(path.relative_to(folder)), table_named(table))
            times = samples.column("taken_at").cast(pa.int64())
            kept = pc.or_(pc.less(times, GAP[0]), pc.greater_equal(times, GAP[1]))
            path.write_bytes(encode(table_named(table), samples.filter(kept)))
    return folder


def report(run: Any, store: Path, since_ms: int, until_ms: int) -> dict[str, Any]:
    found: dict[str, Any] = run(
        ReportRequest(
            store=StoreOptions(url=str(store)), since=format_time(since_ms), until=format_time(until_ms)
        )
    )
    return found


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (0, 240),  # from the first sample on
        (60, 240),
        (30, 115),  # ends in the gap
        (-60, 90),  # begins before there was any telemetry
        (100, 101),  # within one window
        (0, 240.8),  # ends a little after the newest sample
    ],
)
def test_duckdb_finds_the_same_figures_of_lag(store: Path, since: float, until: float) -> None:
    since_ms, until_ms = (PLAN.start_ms + round(minute * 60_000) for minute in (since, until))
    rows = report(run_lag, store, since_ms, until_ms)["rows"]
    met = check_lag(rows, store, since_ms, until_ms, window_ms=300_000, interval_ms=5000)
    if (since, until) == (0, 240):
        assert met == set(LagStatus), "every status is met"


def test_duckdb_finds_the_same_figures_of_balance(store: Path) -> None:
    rows = report(run_balance, store, PLAN.start_ms, UNTIL)["rows"]
    check_balance(rows, store, PLAN.start_ms, UNTIL, bucket_ms=1_200_000)
