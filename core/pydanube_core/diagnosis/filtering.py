"""The rule on key filters that match nothing: what no consumer accepts counts as read, and nobody saw it."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView
from pydanube_core.units import counted


def filter_matches_nothing(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    passed = view.unrouted
    if not passed.in_window:
        return "no message was passed over for its key"
    if view.acknowledged.in_window or view.state.in_flight:
        over = counted(passed.in_window, "message was passed over", "messages were passed over")
        return f"{over} by key, and {counted(view.acknowledged.in_window, 'was', 'were')} accepted"
    return Finding(
        severity=Severity.WARNING,
        confidence=0.9,
        summary=f"the key filters of {view.log} / {view.subscription} accept nothing: "
        f"{counted(passed.in_window, 'message counts', 'messages count')} as read within {options.window_s:.0f} s, and nobody was sent one",
        evidence={
            "passed_over": passed.total,
            "passed_over_in_window": passed.in_window,
            "acknowledged_in_window": view.acknowledged.in_window,
            "consumers": len(view.consumers),
            "lag_messages": view.unread,
        },
        next=(
            NextCall("messages.peek", {"topic": view.log, "from": "earliest", "limit": 10}, "compare the messages' keys with the consumers' filters"),
            NextCall("consumers.list", {"topic": view.topic}, "see whose filters they are"),
        ),
    )  # fmt: skip


FILTER_MATCHES_NOTHING: Final = Rule(
    area=RuleArea.SUBSCRIPTION,
    severity="warning",
    holds="messages of the window were passed over because no consumer's key filter accepts their key, and none was "
    "accepted",
    evidence={
        "passed_over, passed_over_in_window": "messages that count as read, since the broker started and in the window",
        "acknowledged_in_window": "0: none was accepted",
    },
    unobservable=("which keys the filters were meant for",),
    helps="correct the filters, then go back with `subscriptions.seek`",
    check=filter_matches_nothing,
    many="subscriptions have key filters that accept nothing",
)
