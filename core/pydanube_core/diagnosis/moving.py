"""The rule on a cursor that somebody moved forward, over messages that were unread."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView

TOLD_S: Final = 3600.0


def cursor_moved_forward(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    moved = view.passing
    if moved is None:
        return "nobody has moved the cursor forward over unread messages"
    ago_s = max(0, view.now_ms - moved.at_ms) / 1000
    if ago_s > TOLD_S:
        return f"the cursor was moved forward {ago_s:.0f} s ago, which is long past"
    if (
        view.rewind is not None
        and view.rewind.at_ms > moved.at_ms
        and view.rewind.to_offset <= moved.from_offset
    ):
        return "the cursor was moved forward, and back again since"
    by = f"by {moved.operation}" if moved.by is None else f"by client {moved.by!r}"
    return Finding(
        severity=Severity.INFO,
        summary=f"the cursor of {view.log} / {view.subscription} was moved forward from {moved.from_offset} to "
        f"{moved.to_offset} {by} {_ago(ago_s)}: {moved.messages} unread messages were passed over",
        evidence={
            "from_offset": moved.from_offset,
            "to_offset": moved.to_offset,
            "passed_over_messages": moved.messages,
            "moved_by": moved.by,
            "operation": moved.operation,
            "seconds_ago": ago_s,
            "lag_messages": view.unread,
        },
        next=(
            NextCall(
                "audit.query",
                {"topic": view.topic, "operation": moved.operation},
                "see who moved it; the record's call_id is what changes.undo takes",
            ),
            NextCall(
                "subscriptions.seek",
                {**view.arguments, "to": f"offset:{moved.from_offset}"},
                "go back to where it was, if it was moved by mistake",
            ),
        ),
    )


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"


CURSOR_MOVED_FORWARD: Final = Rule(
    area=RuleArea.SUBSCRIPTION,
    severity="info",
    holds="within the last hour, somebody moved the cursor forward over unread messages",
    evidence={
        "from_offset, to_offset": "of the step",
        "passed_over_messages": "that were unread",
        "operation": "by which it was moved",
        "moved_by": "the client that asked for it; null: an operation did",
        "seconds_ago": "how long ago",
    },
    unobservable=("whether anybody misses those messages",),
    helps="nothing, if it was meant; else undo it by the call that the audit names, or seek back",
    check=cursor_moved_forward,
    many="cursors were moved forward over unread messages",
)
