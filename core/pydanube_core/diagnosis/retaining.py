"""The rule on retention that is about to take what is unread, or has: whoever reads, or does not."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.lag_status import LagStatus
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView
from pydanube_core.units import counted


def retention_risk(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if view.status not in (LagStatus.AT_RISK, LagStatus.DATA_LOST):
        headroom_s = view.lag.retention_headroom_s
        if headroom_s is None:
            return f"retention takes nothing that is unread ({view.lag.reasons.get('retention_headroom_s', 'not known')})"
        return f"retention takes the oldest unread message in {headroom_s:.0f} s at the earliest"
    lost = view.state.lost_messages
    headroom_s = view.lag.retention_headroom_s
    what = (
        f"retention has taken {counted(lost, 'unread message')}"
        if lost
        else f"retention is about to take the oldest of {counted(view.unread, 'unread message')}"
    )
    when = "" if headroom_s is None or lost else f", in {headroom_s:.0f} s"
    return Finding(
        severity=Severity.CRITICAL,
        confidence=1.0 if lost else 0.9,
        summary=f"{what} of {view.log} / {view.subscription}{when}: "
        + (
            f"{counted(len(view.consumers), 'consumer reads', 'consumers read')}, too slowly"
            if view.consumers
            else "nobody reads"
        ),
        evidence={
            "lost_messages": lost,
            "lag_messages": view.unread,
            "retention_headroom_s": headroom_s,
            "retention_age_s": view.lag.evidence.get("retention_age_s"),
            "oldest_unread_age_s": view.lag.age.age_s,
            "status": view.status.value,
            "consumers": len(view.consumers),
            "acknowledged_in_window": view.acknowledged.in_window,
        },
        next=(
            NextCall("topics.get_policies", {"topic": view.topic}, "see what takes it, and when"),
            NextCall(
                "topics.set_policies",
                {"topic": view.topic, "policies": {"drop_unread": 0}},
                "let the topic's retention wait for the slowest cursor",
            ),
        ),
    )


RETENTION_RISK: Final = Rule(
    area=RuleArea.SUBSCRIPTION,
    severity="critical",
    holds="the status is AT_RISK or DATA_LOST, whoever reads or does not",
    evidence={
        "retention_headroom_s": "until the oldest unread message is taken",
        "retention_age_s": "what the policy keeps; null: only its size is bounded",
        "lost_messages": "taken before they were read",
        "lag_messages, oldest_unread_age_s": "what is unread",
    },
    unobservable=("whether anybody needs what is unread",),
    helps="keep messages for longer, let retention wait for cursors (`drop_unread: 0`), or read faster",
    check=retention_risk,
    many="subscriptions lose unread messages to retention, or are about to",
)
