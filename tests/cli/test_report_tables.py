"""What `danube report` prints: tables that fit 80 columns, and what could not be read."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from pydanube_cli import report


def balance_row(*, known: bool, verdict: str = "IMBALANCED") -> dict[str, Any]:
    return {
        "hour": "2026-01-31T12:00:00.000Z",
        "verdict": verdict,
        "score": 45.4,
        "bottleneck": "network_out",
        "brokers": 12,
        "max_over_mean": 2.414,
        "highest_used": 0.234 if known else 123_456_789.0,
        "moves": [{}] * 6,
        "resources": {"network_out": {"capacity_known": known}},
    }


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def test_the_balance_table_fits_80_columns_and_calls_no_bytes_a_share(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow(monkeypatch)
    undecided = {
        **balance_row(known=False, verdict="UNDECIDED"),
        "bottleneck": None,
        "score": None,
        "resources": {},
    }
    report.print_balance(
        {
            "rows": [balance_row(known=True), balance_row(known=False), {**undecided, "max_over_mean": None}],
            "summary": {
                "verdict": "IMBALANCED",
                "because": "why",
                "damaged_files": ["telemetry file x is damaged"],
            },
            "files": {"html": "out/balance.html"},
        }
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, lines
    rows = [line for line in lines if line.startswith("2026")]
    assert rows[0].split() == [
        "2026-01-31T12:00Z",
        "IMBALANCED",
        "45",
        "network_out",
        "2.41",
        "23%",
        "6",
    ]
    assert "%" not in rows[1]
    assert lines[-3:] == ["IMBALANCED: why", "damaged: telemetry file x is damaged", "out/balance.html"]


def test_the_lag_table_fits_80_columns_and_says_why_before_it_says_rates(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow(monkeypatch)
    row = {
        "status": "STUCK",
        "topic": "/default/orders",
        "log": "/default/orders",
        "subscription": "worker",
        "lag_messages": 2_159_004,
        "oldest_unread_age_s": 10_800.0,
        "produce_rate": 199.64,
        "consume_rate": 180.0,
        "velocity": 19.64,
        "stuck_reason": "nothing_in_flight",
        "gone": None,
    }
    report.print_lag(
        {
            "rows": [row, {**row, "status": "FALLING_BEHIND", "stuck_reason": None}],
            "since": "2026-01-31T12:00:00.000Z",
            "until": "2026-01-31T13:00:00.000Z",
            "known_from": "2026-01-31T12:30:00.000Z",
            "data_age_s": 5.0,
            "summary": {"subscriptions": 2, "statuses": {"STUCK": 2}, "gone": 0, "damaged_files": []},
            "files": {},
        }
    )
    table, _, rest = capsys.readouterr().out.partition("\n\n")
    assert "(telemetry begins 2026-01-31T12:30:00.000Z)" in rest
    assert "+19.6/s" in table
    assert max(map(len, table.splitlines())) <= 80, table
    assert re.search(r"^status +topic +subscription +unread +oldest +why", table), table
