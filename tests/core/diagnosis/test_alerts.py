from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.diagnosis import DiagnosisOptions
from pydanube_core.diagnosis.alerts import Alerts
from pydanube_core.diagnosis.findings import Finding, Severity

OPTIONS = DiagnosisOptions(open_after=2, close_after=3)


def finding(rule: str = "no_consumers", severity: Severity = Severity.WARNING) -> Finding:
    return Finding(
        rule=rule, severity=severity, confidence=1.0, summary="", evidence={}, subject={"topic": "/default/t"}
    )


def test_an_alert_opens_after_two_looks_and_closes_after_three_without() -> None:
    alerts = Alerts(OPTIONS)
    assert alerts.look("t", [finding()], 10), "under way"
    assert alerts.open() == []
    assert not alerts.look("t", [finding()], 20)
    [opened] = alerts.open()
    assert (opened.opened_at_ms, opened.closed_at_ms) == (10, None)
    for now in (30, 40):
        assert alerts.look("t", [], now)
        assert len(alerts.open()) == 1
    alerts.look("t", [], 50)
    assert alerts.open() == []
    [closed] = alerts.closed()
    assert (closed.alert_id, closed.closed_at_ms) == (opened.alert_id, 50)


def test_one_look_without_it_does_not_close_nor_open_anew() -> None:
    alerts = Alerts(OPTIONS)
    for now, there in enumerate([1, 1, 0, 0, 1, 0, 0, 1]):
        alerts.look("t", [finding()] if there else [], now)
    assert len(alerts.open()) == 1
    assert alerts.closed() == []


def test_remarks_open_nothing_and_the_worst_comes_first() -> None:
    alerts = Alerts(OPTIONS)
    for now in range(3):
        alerts.look("a", [finding("produce_burst", Severity.INFO)], now)
        alerts.look("b", [finding()], now)
        alerts.look("c", [finding("journal_read_only", Severity.CRITICAL)], now)
    assert [one.rule for one in alerts.open()] == ["journal_read_only", "no_consumers"]


def test_of_equal_severity_the_one_with_most_messages_comes_first() -> None:
    alerts = Alerts(OPTIONS)
    for now in range(3):
        for subject, impact in (("a", 1), ("b", 100_001), ("c", 7)):
            alerts.look(subject, [replace(finding(), impact=impact)], now)
    assert [one.finding.impact for one in alerts.open()] == [100_001, 7, 1]


def test_what_is_gone_closes_its_alerts() -> None:
    alerts = Alerts(OPTIONS)
    for now in range(2):
        alerts.look("t", [finding()], now)
    alerts.forget("t", 9)
    assert alerts.open() == []
    assert alerts.closed()[0].closed_at_ms == 9


@given(st.lists(st.booleans(), max_size=60))
def test_alerts_follow_the_rule_of_runs(looks: list[bool]) -> None:
    """Open exactly if, since the last run of three without, there was a run of two with."""
    alerts = Alerts(OPTIONS)
    expected = False
    for now, there in enumerate(looks):
        alerts.look("t", [finding()] if there else [], now)
        if looks[max(0, now - 1) : now + 1] == [True, True]:
            expected = True
        if looks[max(0, now - 2) : now + 1] == [False, False, False]:
            expected = False
        assert bool(alerts.open()) == expected
