"""The traffic report against samples whose counts are worked out by hand."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydanube_core.errors import InvalidArgument
from pydanube_core.telemetry import TelemetryFile, table_named, telemetry_folder
from pydanube_core.telemetry.files import HOUR_MS, date_of
from pydanube_core.units import format_time
from pydanube_spark.reports.run import ReportRequest
from pydanube_spark.reports.traffic import COUNTERS, run_traffic
from pydanube_storage.objects import StoreOptions
from pydanube_storage.objects.local import LocalStore
from pydanube_storage.telemetry.writing import arrow_schema, encode

BEGIN = 472_224 * HOUR_MS  # midnight
MINUTE = 60_000
TABLE = table_named("topics")
#: (minute, topic, log, life of the broker, messages in, messages out); a message has 10 bytes
Sample = tuple[int, str, int, int, int, int]


def write(folder: Path, broker: int, samples: Iterable[Sample], *, hour: int = 0) -> None:
    rows = []
    for minute, topic, log, life, messages_in, messages_out in samples:
        row: dict[str, Any] = dict.fromkeys(arrow_schema(TABLE).names, 0)
        row |= {"taken_at": BEGIN + minute * MINUTE, "broker_id": str(broker), "incarnation": life}
        row |= {"topic": topic, "topic_id": log, "partition": None, "drop_unread": None}
        row |= {"messages_in": messages_in, "bytes_in": 10 * messages_in}
        row |= {"messages_out": messages_out, "bytes_out": 10 * messages_out}
        rows.append(row)
    start_ms = BEGIN + hour * HOUR_MS
    name = TelemetryFile(
        start_ms=start_ms, end_ms=start_ms + HOUR_MS, broker_id=str(broker), generation=1, random="0"
    )
    data = encode(TABLE, pa.Table.from_pylist(rows, schema=arrow_schema(TABLE)))
    LocalStore(folder).put(f"{telemetry_folder('c', 'topics', date_of(start_ms))}/{name}", data)


def write_start(folder: Path, broker: int, minute: int, uptime_s: float) -> None:
    """A sample of a broker, as it is told in each round."""
    table = table_named("brokers")
    row: dict[str, Any] = dict.fromkeys(arrow_schema(table).names, 0)
    row |= {"taken_at": BEGIN + minute * MINUTE, "broker_id": str(broker), "incarnation": 1}
    row |= {"uptime_s": uptime_s, "store_error": None, "journal_read_only": False, "state": "active"}
    name = TelemetryFile(
        start_ms=BEGIN, end_ms=BEGIN + HOUR_MS, broker_id=str(broker), generation=1, random="0"
    )
    data = encode(table, pa.Table.from_pylist([row], schema=arrow_schema(table)))
    LocalStore(folder).put(f"{telemetry_folder('c', 'brokers', date_of(BEGIN))}/{name}", data)


def report(folder: Path, since: int, until: int, **more: Any) -> dict[str, Any]:
    """Of the minutes `[since, until)` after midnight."""
    said = {"since": format_time(BEGIN + since * MINUTE), "until": format_time(BEGIN + until * MINUTE)}
    return run_traffic(ReportRequest(store=StoreOptions(url=str(folder)), **said, **more))


def counts(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {row["topic"]: (row["messages_in"], row["messages_out"]) for row in found["rows"]}


def test_what_counters_rose_by_is_spread_over_the_time_and_a_sample_before_it_says_where_they_stood(
    tmp_path: Path,
) -> None:
    write(tmp_path, 1, [(0, "/default/a", 1, 1, 1000, 0), (30, "/default/a", 1, 1, 1300, 600)])
    write(tmp_path, 1, [(60, "/default/a", 1, 1, 1300, 600), (110, "/default/a", 1, 1, 1800, 600)], hour=1)
    whole = report(tmp_path, 0, 120)
    assert counts(whole) == {"/default/a": (800, 600)}
    assert whole["rows"][0]["bytes_in"] == 8000
    assert whole["summary"]["covered_s"] == 110 * 60, "nothing is known of the last ten minutes"
    assert whole["rows"][0]["messages_in_per_s"] == round(800 / 6600, 3)
    stretches = {one["from"]: one for one in whole["summary"]["stretches"]}
    at = {minute: stretches[format_time(BEGIN + minute * MINUTE)] for minute in (0, 15, 30, 60, 105)}
    assert [at[minute]["messages_in"] for minute in (0, 15, 30, 60, 105)] == [50, 50, 0, 50, 50]
    assert (at[105]["covered_s"], stretches[format_time(BEGIN + 110 * MINUTE)]) == (
        300,
        {"from": format_time(BEGIN + 110 * MINUTE), "covered_s": 0.0} | dict.fromkeys(COUNTERS),
    )
    assert whole["rows"][0]["busiest_messages_in_per_s"] == round(50 / 300, 3)
    with pytest.raises(InvalidArgument, match="no two samples"):
        report(tmp_path, 60, 85)  # the next sample comes later
    assert counts(report(tmp_path, 60, 120)) == {"/default/a": (500, 0)}
    assert counts(report(tmp_path, 85, 120)) == {"/default/a": (250, 0)}


def test_restarts_moves_new_topics_and_partitions_are_counted_and_no_counter_runs_backwards(
    tmp_path: Path,
) -> None:
    write(
        tmp_path,
        1,
        [
            (
                0,
                "/default/a",
                1,
                1,
                5000,
                0,
            ),  # what came before the first round is not known to be of this time
            (10, "/default/a", 1, 1, 5100, 0),
            (20, "/default/a", 1, 2, 7, 0),  # the broker was started again
            (10, "/default/new", 2, 1, 40, 0),  # made since the round before
            (0, "/default/p-part-0", 3, 1, 0, 0),
            (20, "/default/p-part-0", 3, 2, 5, 0),
            (0, "/default/moves", 5, 1, 10, 0),
            (10, "/default/moves", 5, 1, 30, 0),
        ],
    )
    write(
        tmp_path,
        2,
        [
            (1, "/default/p-part-1", 4, 1, 0, 0),
            (21, "/default/p-part-1", 4, 1, 9, 0),
            (21, "/default/moves", 5, 1, 60, 0),  # it came from the other broker, and counts from 0
        ],
    )
    found = report(tmp_path, 0, 60)
    assert counts(found) == {
        "/default/a": (107, 0),
        "/default/moves": (80, 0),
        "/default/new": (40, 0),
        "/default/p": (14, 0),
    }
    assert found["summary"]["messages_in"] == 241
    assert counts(report(tmp_path, 0, 60, topic="p")) == {"/default/p": (14, 0)}
    assert report(tmp_path, 0, 60, topic="new")["summary"]["messages_in"] == 40


def test_what_came_between_a_start_and_the_first_sample_of_topics_counts(tmp_path: Path) -> None:
    write(tmp_path, 1, [(15, "/default/a", 1, 1, 1200, 0), (20, "/default/a", 1, 1, 1500, 0)])
    assert counts(report(tmp_path, 0, 60)) == {"/default/a": (300, 0)}, (
        "not known when the broker was started"
    )
    write_start(tmp_path, 1, 11, uptime_s=60)
    found = report(tmp_path, 0, 60)
    assert counts(found) == {"/default/a": (1500, 0)}
    assert found["summary"]["covered_s"] == 10 * 60
    shutil.rmtree(tmp_path / "c/telemetry/brokers")
    write_start(tmp_path, 1, 11, uptime_s=90 * 86_400)
    assert counts(report(tmp_path, 0, 60)) == {"/default/a": (300, 0)}, "most of it came long before"


def test_rates_are_compared_with_those_of_the_time_before_of_which_less_may_be_known(tmp_path: Path) -> None:
    write(tmp_path, 1, [(30, "/default/a", 1, 1, 0, 0), (55, "/default/a", 1, 1, 1500, 0)])
    write(
        tmp_path,
        1,
        [
            (60, "/default/a", 1, 1, 1800, 0),
            (119, "/default/a", 1, 1, 8880, 0),
            (70, "/default/b", 2, 1, 6, 0),
        ],
        hour=1,
    )
    found = report(tmp_path, 60, 120, compare="previous")
    a, b = found["rows"]
    assert (a["messages_in_per_s_before"], a["messages_in_per_s"], a["change"]) == (1.0, 2.0, 1.0)
    assert (b["messages_in_per_s_before"], b["change"]) == (None, None), (
        "there was none of it to compare with"
    )
    assert found["previous"]["summary"]["covered_s"] == 25 * 60
    assert report(tmp_path, 30, 60, compare="previous")["previous"]["reason"]


def test_what_cannot_be_reported_says_why(tmp_path: Path) -> None:
    write(tmp_path, 1, [(0, "/default/a", 1, 1, 5, 0)])
    with pytest.raises(InvalidArgument, match="no two samples"):
        report(tmp_path, 0, 60)
    write(tmp_path, 1, [(61, "/default/a", 1, 1, 5, 0)], hour=1)
    with pytest.raises(InvalidArgument, match=r"no topic 'b\*' was sampled"):
        report(tmp_path, 0, 120, topic="b*")
    key = next(tmp_path.rglob("*.parquet"))
    key.write_bytes(key.read_bytes()[:-20])
    write(tmp_path, 1, [(125, "/default/a", 1, 1, 9, 0)], hour=2)
    assert len(report(tmp_path, 0, 130)["summary"]["damaged_files"]) == 1
