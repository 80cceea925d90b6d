"""The rule on thresholds that an operator has set: so much unread, or so old, is worth an alert, whatever the cause."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView
from pydanube_core.units import counted


def threshold_exceeded(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    limits, age_s = view.thresholds, view.lag.age.age_s
    if not limits.any:
        return "no threshold is set for its topic"
    over = []
    if limits.messages and view.unread > limits.messages:
        unread = counted(view.unread, "message is unread", "messages are unread")
        over.append(f"{unread}, and alert_unread_messages is {limits.messages}")
    if limits.age_s and age_s is not None and age_s > limits.age_s:
        over.append(
            f"the oldest unread message is {age_s:.0f} s old, and alert_unread_age_s is {limits.age_s}"
        )
    if not over:
        unread = counted(view.unread, "unread message exceeds", "unread messages exceed")
        return f"{unread} no threshold of its topic"
    return Finding(
        severity=Severity.WARNING,
        summary=f"{view.log} / {view.subscription}: {'; '.join(over)}",
        evidence={
            "lag_messages": view.unread,
            "oldest_unread_age_s": age_s,
            "alert_unread_messages": limits.messages or None,
            "alert_unread_age_s": limits.age_s or None,
            "status": view.status.value,
        },
        next=(
            NextCall("subscriptions.lag", view.arguments, "see its rates, and whether it gains"),
            NextCall(
                "topics.get_policies", {"topic": view.topic}, "see the thresholds, and where they are set"
            ),
        ),
    )


THRESHOLD_EXCEEDED: Final = Rule(
    area=RuleArea.SUBSCRIPTION,
    severity="warning",
    holds="more is unread than the policy `alert_unread_messages` of its topic says, or the oldest unread message is older "
    "than `alert_unread_age_s`; of a partitioned topic each partition is compared",
    evidence={
        "lag_messages, oldest_unread_age_s": "what is unread",
        "alert_unread_messages, alert_unread_age_s": "the thresholds in force; null: none is set",
    },
    unobservable=("how much its users can wait for",),
    helps="read faster, or set another threshold",
    check=threshold_exceeded,
    many="subscriptions are further behind than their topics' thresholds",
)
