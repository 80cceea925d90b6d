"""Holds a report's rows against what DuckDB finds in the same files. Counts are exact, the rest to a millionth."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.lag_by_duckdb import balance_by_duckdb, times_by_duckdb, windows_by_duckdb


def close(value: Any) -> Any:
    """DuckDB prints a 128-bit sum, and a decimal, as text."""
    return None if value is None else pytest.approx(float(value), rel=1e-6, abs=1e-6)


def check_lag(
    rows: list[dict[str, Any]],
    store: Path,
    since_ms: int,
    until_ms: int,
    *,
    window_ms: int,
    interval_ms: int,
    stuck_ms: int = 300_000,
    topic: str | None = None,
) -> set[str]:
    """Every figure of the rows of the whole time; the statuses that were met.

    Statuses of DuckDB do not settle: minutes in a status may differ by a window for each change of it.
    """
    spacing = {"window_ms": window_ms, "interval_ms": interval_ms}
    windows = windows_by_duckdb(store, since_ms, until_ms, stuck_ms=stuck_ms, **spacing)
    times = times_by_duckdb(store, since_ms, until_ms, **spacing)
    own: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for window in windows:
        if topic not in (None, window["topic"]):
            continue
        own.setdefault((window["topic"], window["subscription"]), []).append(window)
    assert {(row["topic"], row["subscription"]) for row in rows} == set(own)
    for row in rows:
        key = row["topic"], row["subscription"]
        check_figures(row, own[key][-1], times[key], known=int(own[key][-1]["nominal"]) == until_ms)
        check_minutes(row, own[key], times[key], (until_ms - since_ms) / 60_000, window_ms / 60_000)
    return {window["status"] for window in windows}


def check_figures(row: dict[str, Any], last: dict[str, Any], whole: dict[str, Any], *, known: bool) -> None:
    """`known`: whether there is a window at the end of the time; where it holds no sample, there is nothing to say."""
    said = f"{row['topic']} {row['subscription']}"
    if not known:
        last = dict.fromkeys(last)
    counts = ("next_offset", "next_unacked", "lag_messages", "lost_messages", "in_flight", "consumers")
    names = ("head", "cur", "lag", "lost", "in_flight", "members")
    theirs = [None if last[name] is None else int(last[name]) for name in names]
    assert [row[name] for name in counts] == theirs, said
    rises = ("redelivered", "dead_lettered", "dropped", "newly_lost_messages")
    names = ("redelivered", "dead_lettered", "dropped", "newly_lost")
    rose = [None if whole.get(name) is None else int(whole[name]) for name in names]
    assert [row[name] for name in rises] == rose, said
    for ours, name in (
        ("oldest_unread_age_s", "age_s"),
        ("produce_rate", "produced"),
        ("consume_rate", "consumed"),
        ("velocity", "velocity"),
        ("eta_s", "eta_s"),
        ("retention_headroom_s", "headroom"),
    ):
        assert row[ours] == close(last[name]), (said, ours)
    if known:
        size = 0.0 if not int(last["lag"]) else last["size"]
        assert row["lag_bytes"] == (
            None if size is None else pytest.approx(int(last["lag"]) * size, abs=1)
        ), said
    else:
        assert (row["lag_bytes"], row["status"]) == (None, "UNKNOWN"), said
    for ours, name in (("p50_age_s", "p50"), ("p95_age_s", "p95"), ("max_age_s", "highest")):
        assert row[ours] == close(whole.get(name)), (said, ours)
    assert row["samples"] == int(whole.get("samples") or 0), said


def check_minutes(
    row: dict[str, Any], windows: list[dict[str, Any]], whole: dict[str, Any], length: float, window: float
) -> None:
    said = f"{row['topic']} {row['subscription']}"
    minutes = dict(row["minutes"])
    assert sum(minutes.values()) == pytest.approx(length, abs=0.01), said
    changes = sum(before["status"] != after["status"] for before, after in pairwise(windows))
    found: dict[str, float] = {}
    for each in windows:
        found[each["status"]] = found.get(each["status"], 0.0) + window
    unknown = minutes.pop("UNKNOWN", 0.0)
    assert unknown >= length - float(whole["known_minutes"]) - 0.01, said
    for status in set(minutes) | set(found) - {"UNKNOWN"}:
        assert minutes.get(status, 0.0) == pytest.approx(
            found.get(status, 0.0), abs=(changes + 2) * window
        ), (
            said,
            status,
            minutes,
            found,
        )
    # It may have settled later than DuckDB, who has no patience; a fact waits for nobody.
    if row["status"] == "UNKNOWN" and "next_offset" in row["reasons"]:
        return  # no sample holds there
    late = {each["status"] for each in windows[-3:]}
    assert row["status"] in late, (said, row["status"], late)
    if windows[-1]["status"] in ("DATA_LOST", "CAUGHT_UP", "UNKNOWN"):
        assert row["status"] == windows[-1]["status"], said


def check_balance(
    rows: list[dict[str, Any]], store: Path, since_ms: int, until_ms: int, *, bucket_ms: int
) -> None:
    """Loads of each broker in each stretch, and what is made of them."""
    stretches: dict[int, dict[str, dict[str, Any]]] = {}
    for found in balance_by_duckdb(store, since_ms, until_ms, bucket_ms=bucket_ms):
        stretches.setdefault(int(found["bucket"]), {})[found["broker_id"]] = found
    assert len(rows) == len(stretches)
    for row, brokers in zip(rows, stretches.values(), strict=True):
        assert row["brokers"] == len(brokers) + len(row["missing"])
        assert not brokers.keys() & {each["broker_id"] for each in row["missing"]}
        assert row["disk_used"] == close(max(each["disk"] for each in brokers.values()))
        for resource, rate, capacity in (
            ("cpu", "cpu_s", "cpus"),
            ("network_in", "bytes_in", "cap_in"),
            ("network_out", "bytes_out", "cap_out"),
        ):
            view = row["resources"].get(resource)
            if view is None:
                continue
            known = all(each[capacity] for each in brokers.values())
            assert view["capacity_known"] == known
            used = {
                name: (each[rate] or 0.0) / (each[capacity] if known else 1) for name, each in brokers.items()
            }
            assert view["used"] == {name: close(value) for name, value in used.items()}, (
                row["hour"],
                resource,
            )
            mean = sum(used.values()) / len(used)
            assert view["mean"] == close(mean)
            if mean:
                deviation = (sum((each - mean) ** 2 for each in used.values()) / len(used)) ** 0.5
                assert (view["max_over_mean"], view["cv"]) == (
                    close(max(used.values()) / mean),
                    close(deviation / mean),
                )
                pairs = sum(abs(a - b) for a in used.values() for b in used.values())
                assert view["gini"] == close(pairs / (2 * len(used) ** 2 * mean))
            if row["bottleneck"] == resource:
                assert row["mean_used"] == close(mean)
                assert row["highest_used"] == close(max(used.values()))
