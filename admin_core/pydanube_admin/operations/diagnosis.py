"""Diagnosis and alerts, as results that every face can show."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, ClassVar, Final, Literal

import anyio
from pydantic import Field
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Diagnosis, Finding, NextCall, Severity, Verdict, verdict_of
from pydanube_core.diagnosis.silences import Silence, silence_of
from pydanube_core.errors import MetadataUnavailable, SubscriptionNotFound
from pydanube_core.units import format_time, known_time, parse_moment_ms

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import (
    Effect,
    Page,
    Place,
    Request,
    Result,
    SortedListRequest,
    SubscriptionArgument,
    TopicArgument,
    is_none,
)
from pydanube_admin.engine.operation import is_known, next_call, operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.gone_owners import STORES_S
from pydanube_admin.operations.alert_silences import silences
from pydanube_admin.operations.connectors import findings_of_connectors
from pydanube_admin.operations.past_events import past_events, with_past
from pydanube_admin.operations.subscriptions import no_such_subscription

_MOST_OF_CONNECTORS = 20  # findings in one answer. The others are counted
FailOn = Annotated[
    Literal["info", "warning", "critical"] | None, Field(description="passed is false (exit 6) from here on")
]
Explain = Annotated[bool, Field(description="Also causes ruled out")]


class DiagnoseClusterRequest(Request):
    fail_on: FailOn = None
    explain: Explain = False


class DiagnoseTopicRequest(Request):
    topic: TopicArgument
    fail_on: FailOn = None
    explain: Explain = False


class DiagnoseSubscriptionRequest(Request):
    topic: TopicArgument
    subscription: SubscriptionArgument
    fail_on: FailOn = None
    explain: Explain = False


class DiagnoseProducerRequest(Request):
    topic: TopicArgument
    producer: Annotated[
        str | None, Field(max_length=256, description="Name of a producer. Default: all of the topic")
    ] = None
    fail_on: FailOn = None
    explain: Explain = False


class RuledOutItem(Result):
    rule: str
    because: str


class NextItem(Result):
    """A call that would help."""

    operation: str
    tool: str
    command: str
    arguments: dict[str, Any]
    why: str


class FindingItem(Result):
    rule: str
    severity: str  # info | warning | critical
    confidence: float  # 0 to 1
    subject: dict[str, Any]
    summary: str
    evidence: dict[str, Any]
    untrusted: dict[str, Any]  # written by others: keys of messages, reasons of consumers
    ruled_out: list[RuledOutItem]  # only on request
    ruled_out_count: int
    unobservable: list[str]
    provisional: bool  # judged from a short history: a warning at most, and no alert
    settles_at: str | None  # time from which the history of a provisional finding is long enough
    next: list[NextItem]


class DiagnosisResult(Result):
    """Findings of a diagnosis, worst first."""

    subject: dict[str, Any]
    verdict: str  # healthy | degraded | failing | unknown
    passed: bool | None  # no finding is as bad as fail_on, or worse. None without fail_on
    findings: list[FindingItem]
    omitted: int  # findings beyond the first hundred
    counts: dict[str, int]  # findings of warning or worse by rule, the omitted ones too
    unobservable: list[str]  # causes that could not be checked
    as_of: str
    took_ms: float


UNKNOWN_SILENCES: Final = "the metadata store does not answer"


class AlertsRequest(SortedListRequest):
    include_closed: Annotated[bool, Field(description="Also the last closed")] = False
    since: Annotated[
        str | None,
        Field(max_length=64, description="Also those closed since"),
    ] = None


class AlertItem(Result):
    identity: ClassVar = ("alert_id",)

    alert_id: str
    rule: str
    subject: dict[str, Any]
    severity: str
    opened_at: str
    closed_at: str | None  # None: open
    finding: FindingItem  # the finding as it was last judged
    silenced: dict[str, Any] | None = None  # known: until, by, at, untrusted.reason
    # Why it is unknown whether the alert is silenced
    silenced_reason: str | None = Field(default=None, exclude_if=is_none)


@operation(
    "diagnose.cluster",
    effect=Effect.READ,
    tool="health_check",
    permission="cluster:read",
    summary="Check everything: findings worst first, with evidence and the next call.",
    default_profile=True,
    condition="passed",
    examples=(Example({}, "the present faults"),),
)
async def diagnose_cluster(context: Context, request: DiagnoseClusterRequest) -> DiagnosisResult:
    return await _result(_cluster(context), request.fail_on, explain=request.explain)


async def _cluster(context: Context) -> Diagnosis:
    """Return the findings of all brokers and of the declared connectors, worst first."""
    found = await context.port.diagnose_cluster()
    connectors: list[Finding] | None = None
    with suppress(MetadataUnavailable), anyio.move_on_after(STORES_S):
        connectors = await findings_of_connectors(context)
    if connectors is None:
        lacking = "declared connectors: the metadata store does not answer"
        return replace(found, unobservable=(*found.unobservable, lacking))
    if not connectors:
        return found
    connectors.sort(key=lambda one: -one.severity)
    shown = connectors[:_MOST_OF_CONNECTORS]
    counts = Counter(found.counts)
    counts.update(one.rule for one in connectors if one.severity > Severity.INFO)
    verdict = found.verdict
    if (own := verdict_of(connectors)) is not Verdict.HEALTHY and verdict is not Verdict.FAILING:
        verdict = own
    return replace(
        found,
        findings=tuple(sorted((*found.findings, *shown), key=lambda one: -one.severity)),
        counts=dict(counts),
        verdict=verdict,
        omitted=found.omitted + len(connectors) - len(shown),
    )


@operation(
    "diagnose.topic",
    at=Place.ANYWHERE,  # also about owners that do not answer
    effect=Effect.READ,
    title="Diagnose a topic",
    permission="topics:read",
    summary="Find the faults of a topic and its subscriptions.",
    default_profile=True,
    condition="passed",
    examples=(Example({"topic": "orders"}, "a topic and its subscriptions"),),
)
async def diagnose_topic(context: Context, request: DiagnoseTopicRequest) -> DiagnosisResult:
    found = context.port.diagnose_topic(request.topic)
    return await _result(found, request.fail_on, explain=request.explain)


@operation(
    "diagnose.subscription",
    at=Place.ANYWHERE,  # also about owners that do not answer
    effect=Effect.READ,
    tool="analyze_consumer_lag",
    permission="topics:read",
    summary="Find why a subscription is behind, if it is: findings, evidence, the next call.",
    default_profile=True,
    condition="passed",
    examples=(
        Example({"topic": "orders", "subscription": "billing"}, "why billing is behind"),
        Example(
            {"topic": "orders", "subscription": "billing", "fail_on": "warning"},
            "exit with 6 if something is wrong",
        ),
    ),
)
async def diagnose_subscription(context: Context, request: DiagnoseSubscriptionRequest) -> DiagnosisResult:
    found = context.port.diagnose_subscription(request.topic, request.subscription)
    try:
        return await _result(found, request.fail_on, explain=request.explain)
    except SubscriptionNotFound:
        raise await no_such_subscription(context, request.topic, request.subscription) from None


@operation(
    "diagnose.producer",
    at=Place.ANYWHERE,  # also about owners that do not answer
    effect=Effect.READ,
    title="Diagnose a producer",
    permission="topics:read",
    summary="Find what stops incoming messages: throttling, schema, silence, disk, journal.",
    default_profile=True,
    condition="passed",
    examples=(Example({"topic": "orders"}, "all producers of a topic"),),
)
async def diagnose_producer(context: Context, request: DiagnoseProducerRequest) -> DiagnosisResult:
    found = context.port.diagnose_producer(request.topic, request.producer)
    return await _result(found, request.fail_on, explain=request.explain)


@operation(
    "alerts.list",
    effect=Effect.READ,
    permission="cluster:read",
    summary="List alerts: findings that lasted, worst first.",
    default_profile=True,
    examples=(
        Example({}, "what is open"),
        Example({"include_closed": True}, "also the last ones that closed"),
        Example({"since": "12h"}, "the faults of last night"),
    ),
)
async def list_alerts(context: Context, request: AlertsRequest) -> Page[AlertItem]:
    opened, closed = await context.port.alerts()
    if request.since is not None:
        now_ms = context.now_ms()
        since_ms = parse_moment_ms(request.since, now_ms=now_ms, field="since")
        past = with_past([*opened, *closed], await past_events(context, since_ms, now_ms))
        closed = [each for each in past if each.closed_at_ms is not None and each.closed_at_ms >= since_ms]
    matches = glob(request.filter)
    wants_closed = request.include_closed or request.since is not None
    found = [alert for alert in chain(opened, closed if wants_closed else ()) if matches(alert.rule)]
    known: Sequence[Silence] | None = None
    with suppress(MetadataUnavailable):  # the alerts are known without it
        known = await silences(context)

    def item(alert: Alert) -> AlertItem:
        if alert.closed_at_ms is not None:
            return _alert(alert)
        if known is None:
            return _alert(alert).model_copy(update={"silenced_reason": UNKNOWN_SILENCES})
        silence = silence_of(alert, known, context.now_ms())
        return _alert(alert).model_copy(update={"silenced": None if silence is None else _silenced(silence)})

    return await page_of(
        context,
        AlertItem,
        found,
        item,
        key=lambda one: (
            one.closed_at_ms is not None,
            -one.severity,
            -one.finding.impact,
            one.opened_at_ms,
            one.alert_id,
        ),
        request=request,
    )


def _silenced(silence: Silence) -> dict[str, Any]:
    return {
        "until": format_time(silence.until_ms),
        "by": silence.by,
        "at": format_time(silence.at_ms),
        "untrusted": {"reason": silence.reason},
    }


async def _result(
    asked: Awaitable[Diagnosis], fail_on: str | None, *, explain: bool = False
) -> DiagnosisResult:
    begun = time.perf_counter()
    found = await asked
    return DiagnosisResult.of(
        found,
        verdict=found.verdict.value,
        passed=_passed(found, fail_on),
        findings=[_finding(one, explain=explain) for one in found.findings],
        as_of=format_time(found.as_of_ms),
        took_ms=round((time.perf_counter() - begun) * 1000, 1),
    )


def _passed(found: Diagnosis, fail_on: str | None) -> bool | None:
    """Return whether the check passed. Something that could not be observed has not: a check must not pass blindly."""
    if fail_on is None:
        return None
    least = Severity[fail_on.upper()]
    return found.verdict is not Verdict.UNKNOWN and all(one.severity < least for one in found.findings)


def _finding(found: Finding, *, explain: bool = False) -> FindingItem:
    return FindingItem.of(
        found,
        severity=found.severity.word,
        ruled_out=[RuledOutItem.of(one) for one in found.ruled_out] if explain else [],
        ruled_out_count=len(found.ruled_out),
        unobservable=list(found.unobservable or ()),
        settles_at=known_time(found.settles_at_ms),
        next=list(_next(found.next)),
    )


def _next(calls: Iterable[NextCall]) -> Iterable[NextItem]:
    """Return the next calls, without those whose operation this version lacks."""
    for call in calls:
        if is_known(call.operation):
            yield NextItem(**next_call(call.operation, call.arguments, call.why))


def _alert(alert: Alert) -> AlertItem:
    return AlertItem.of(
        alert,
        severity=alert.severity.word,
        opened_at=format_time(alert.opened_at_ms),
        closed_at=known_time(alert.closed_at_ms),
        finding=_finding(alert.finding),
    )
