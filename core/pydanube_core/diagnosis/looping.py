"""The rule on consumers that come, break, and come again."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView
from pydanube_core.units import counted

FEWEST: Final = 3  # departures that make a loop


def consumer_crash_loop(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    gone = view.departures
    if gone is None:
        return "no consumer has gone lately"
    here = len(view.consumers)
    broken = gone.abrupt >= max(FEWEST, 2 * here + 1)
    fruitless = gone.fruitless >= max(FEWEST, 2 * here + 1) and view.unread > options.allowed_messages
    if not broken and not fruitless:
        left = counted(gone.count, "consumer has gone", "consumers have gone")
        return f"{left} lately, {gone.abrupt} of them by a broken connection"
    span_s = max(0, view.now_ms - gone.since_ms) / 1000
    stays_s = min((view.now_ms - one.connected_ms for one in view.consumers), default=0) / 1000
    if here and stays_s > max(options.patience_s, 2 * span_s / gone.count):
        return f"consumers come and went, and those attached have stayed for {stays_s:.0f} s"
    waiting = view.unread > options.allowed_messages
    return Finding(
        severity=Severity.CRITICAL if waiting else Severity.WARNING,
        confidence=0.9 if broken else 0.75,
        summary=f"consumers of {view.log} / {view.subscription} come and go: {gone.count} went within {span_s:.0f} s, "
        f"{gone.abrupt} of them by a broken connection; {counted(view.unread, 'message waits', 'messages wait')}",
        evidence={
            "departures": gone.count,
            "broken_connections": gone.abrupt,
            "without_progress": gone.fruitless,
            "span_s": span_s,
            "consumers": here,
            "consumer": None if view.departure is None else view.departure.name,
            "next_unacked": view.state.next_unacked,
            "lag_messages": view.unread,
            "status": view.status.value,
        },
        next=(
            NextCall(
                "messages.peek",
                {"topic": view.log, "from": f"offset:{view.state.oldest_unread}", "limit": 1},
                "look at the message with which it begins each time",
            ),
            NextCall("consumers.list", {"topic": view.topic}, "see who is there now"),
        ),
    )


CONSUMER_CRASH_LOOP: Final = Rule(
    area=RuleArea.SUBSCRIPTION,
    severity="critical; warning while nothing is unread",
    holds="within three windows three connections of consumers or more broke, or as many consumers went and the cursor "
    "stands where it stood, and more than twice as many as are attached",
    evidence={
        "departures, broken_connections": "how many went, and how many of them without a farewell; at most 16 are kept",
        "without_progress": "the last ones in a row that moved the cursor nowhere",
        "span_s": "since the first of them",
    },
    unobservable=("why the process ends: its own log tells",),
    helps="look at the process's own log, and at the message with which it begins",
    check=consumer_crash_loop,
    many="subscriptions have consumers that break and come again",
)
