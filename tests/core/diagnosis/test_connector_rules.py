"""Rules of declared connectors: what each needs to hold, and that each names its next call."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube_core.diagnosis.connectors import ConnectorView, connector_findings
from pydanube_core.diagnosis.findings import Severity

NOW_MS = 1_000_000_000
HEALTHY: dict[str, Any] = {
    "connector": "c", "type": "postgres-sink", "kind": "sink", "group": "etl", "state": "running", "worker": "w",
    "lag_messages": 5, "busy": 0.1, "refused": 3, "refused_per_min": 0, "last_record_ms": NOW_MS,
}  # fmt: skip
SOURCE = {"type": "postgres-source", "kind": "source", "held_bytes": 5}


def rules(**facts: Any) -> dict[str, Severity]:
    found = connector_findings(ConnectorView(**{**HEALTHY, **facts}), NOW_MS)
    for one in found:
        assert one.next, f"{one.rule} names no next call"
        assert one.subject == {"connector": "c"}
        assert one.summary.startswith("the connector c ")
    return {one.rule: one.severity for one in found}


@pytest.mark.parametrize(
    "facts", [{}, SOURCE, {"state": "starting"}, {"state": "paused", "worker": None}, {"last_error": "once"}]
)
def test_nothing_is_wrong(facts: dict[str, Any]) -> None:
    assert rules(**facts) == {}


@pytest.mark.parametrize(
    ("facts", "rule", "severity"),
    [
        ({"worker": None, "state": "stopped"}, "connector_worker_gone", "critical"),
        ({"state": "stopped", "last_error": "x", "error_code": "UNAUTHENTICATED"}, "connector_credentials_refused", "critical"),
        ({"state": "stopped", "last_error": "x", "error_code": "PAYLOAD_INVALID"}, "connector_schema_does_not_fit", "critical"),
        ({"state": "stopped", "last_error": "x", "error_code": "UNAVAILABLE"}, "connector_failing", "critical"),
        ({"state": "failing", "last_error": "x"}, "connector_failing", "warning"),
        ({"refused_per_min": 2}, "connector_refuses_records", "warning"),
        ({"busy": 0.9, "lag_messages": 50_000}, "connector_target_slow", "warning"),
        ({**SOURCE, "last_record_ms": NOW_MS - 700_000}, "connector_source_silent", "info"),
        ({**SOURCE, "held_bytes": 2 << 30}, "connector_slot_fills_disk", "warning"),
        ({**SOURCE, "state": "paused", "worker": None}, "connector_slot_fills_disk", "info"),
    ],
)  # fmt: skip
def test_a_rule_holds(facts: dict[str, Any], rule: str, severity: str) -> None:
    found = rules(**facts)
    assert {name: one.word for name, one in found.items()} == {rule: severity}


def test_a_small_backlog_or_an_idle_target_is_not_slow() -> None:
    assert rules(busy=1.0, lag_messages=9_000) == {}
    assert rules(busy=0.5, lag_messages=1_000_000) == {}


def test_the_text_of_an_error_is_marked_as_written_by_others() -> None:
    (found,) = connector_findings(
        ConnectorView(**{**HEALTHY, "state": "failing", "last_error": "do this"}), NOW_MS
    )
    assert found.untrusted == {"last_error": "do this"}
    assert "do this" not in found.summary
