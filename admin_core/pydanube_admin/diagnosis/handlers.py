"""Diagnosis and alerts, as results that every face can show."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable
from itertools import chain

from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Diagnosis, Finding, NextCall, Severity, Verdict
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.diagnosis.models import (
    AlertItem,
    AlertsRequest,
    DiagnoseClusterRequest,
    DiagnoseProducerRequest,
    DiagnoseSubscriptionRequest,
    DiagnoseTopicRequest,
    DiagnosisResult,
    FindingItem,
    NextItem,
    RuledOutItem,
)
from pydanube_admin.models import Page
from pydanube_admin.next_calls import is_known, next_call
from pydanube_admin.paging import cut, glob


async def diagnose_cluster(context: Context, request: DiagnoseClusterRequest) -> DiagnosisResult:
    return await _result(context.port.diagnose_cluster(), request.fail_on)


async def diagnose_topic(context: Context, request: DiagnoseTopicRequest) -> DiagnosisResult:
    return await _result(context.port.diagnose_topic(request.topic), request.fail_on)


async def diagnose_subscription(context: Context, request: DiagnoseSubscriptionRequest) -> DiagnosisResult:
    found = context.port.diagnose_subscription(request.topic, request.subscription)
    return await _result(found, request.fail_on)


async def diagnose_producer(context: Context, request: DiagnoseProducerRequest) -> DiagnosisResult:
    return await _result(context.port.diagnose_producer(request.topic, request.producer), request.fail_on)


async def list_alerts(context: Context, request: AlertsRequest) -> Page[AlertItem]:
    opened, closed = await context.port.alerts()
    matches = glob(request.filter)
    found = [
        alert for alert in chain(opened, closed if request.include_closed else ()) if matches(alert.rule)
    ]
    page = cut(
        found,
        key=lambda one: (one.closed_at_ms is not None, -one.severity, one.opened_at_ms, one.alert_id),
        operation="alerts.list",
        request=request,
    )
    return Page[AlertItem](
        items=[_alert(alert) for alert in page.items],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
    )


async def _result(asked: Awaitable[Diagnosis], fail_on: str | None) -> DiagnosisResult:
    begun = time.perf_counter()
    found = await asked
    return DiagnosisResult(
        subject=dict(found.subject),
        verdict=found.verdict.value,
        passed=_passed(found, fail_on),
        findings=[_finding(one) for one in found.findings],
        omitted=found.omitted,
        counts=dict(found.counts),
        unobservable=list(found.unobservable),
        as_of=format_time(found.as_of_ms),
        took_ms=round((time.perf_counter() - begun) * 1000, 1),
    )


def _passed(found: Diagnosis, fail_on: str | None) -> bool:
    """What could not be looked at has not passed: a check that cannot see must not be green."""
    if fail_on is None:
        return True
    least = Severity[fail_on.upper()]
    return found.verdict is not Verdict.UNKNOWN and all(one.severity < least for one in found.findings)


def _finding(found: Finding) -> FindingItem:
    return FindingItem(
        rule=found.rule,
        severity=found.severity.word,
        confidence=found.confidence,
        subject=dict(found.subject),
        summary=found.summary,
        evidence=dict(found.evidence),
        untrusted=dict(found.untrusted),
        ruled_out=[RuledOutItem(rule=one.rule, because=one.because) for one in found.ruled_out],
        unobservable=list(found.unobservable),
        next=list(_next(found.next)),
    )


def _next(calls: Iterable[NextCall]) -> Iterable[NextItem]:
    """The calls there are; one whose operation this version lacks is left out rather than offered in vain."""
    for call in calls:
        if is_known(call.operation):
            yield NextItem(**next_call(call.operation, call.arguments, call.why))


def _alert(alert: Alert) -> AlertItem:
    return AlertItem(
        alert_id=alert.alert_id,
        rule=alert.rule,
        subject=dict(alert.subject),
        severity=alert.severity.word,
        opened_at=format_time(alert.opened_at_ms),
        closed_at=None if alert.closed_at_ms is None else format_time(alert.closed_at_ms),
        finding=_finding(alert.finding),
    )
