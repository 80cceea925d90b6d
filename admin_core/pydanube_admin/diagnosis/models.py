"""Requests and results of `diagnose.*` and `alerts.list`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pydanube_admin.models import ListRequest, Request, Result, SubscriptionArgument, TopicArgument

FailOn = Annotated[
    Literal["info", "warning", "critical"] | None,
    Field(description="passed is false (exit 6) from here on"),
]


class DiagnoseClusterRequest(Request):
    fail_on: FailOn = None


class DiagnoseTopicRequest(Request):
    topic: TopicArgument
    fail_on: FailOn = None


class DiagnoseSubscriptionRequest(Request):
    topic: TopicArgument
    subscription: SubscriptionArgument
    fail_on: FailOn = None


class DiagnoseProducerRequest(Request):
    topic: TopicArgument
    producer: Annotated[
        str | None, Field(max_length=256, description="Name of a producer; without it, all of the topic")
    ] = None
    fail_on: FailOn = None


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
    ruled_out: list[RuledOutItem]
    unobservable: list[str]
    next: list[NextItem]


class DiagnosisResult(Result):
    """Findings, worst first."""

    subject: dict[str, Any]
    verdict: str  # healthy | degraded | failing | unknown
    passed: bool  # nothing as bad as fail_on, or worse, was found
    findings: list[FindingItem]
    omitted: int  # findings beyond the first hundred
    counts: dict[str, int]  # findings of warning or worse by rule, the omitted ones too
    unobservable: list[str]  # what could matter and was not looked at
    as_of: str
    took_ms: float


class AlertsRequest(ListRequest):
    include_closed: Annotated[bool, Field(description="Also the last ones that closed")] = False


class AlertItem(Result):
    alert_id: str
    rule: str
    subject: dict[str, Any]
    severity: str
    opened_at: str
    closed_at: str | None  # None: open
    finding: FindingItem  # of the last look that had it
