"""The rule on messages that a failure policy drops: they are lost on purpose, and nobody may have meant that."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView
from pydanube_core.units import counted


def messages_dropped(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    count = view.dropped
    if view.poison_policy != "drop":
        return f"the poison policy is {view.poison_policy}: nothing is dropped by it now"
    if not count.in_window:
        return f"no message was dropped in the last {options.window_s:.0f} s ({count.total} since the start)"
    return Finding(
        severity=Severity.WARNING,
        summary=counted(count.in_window, f"message of {view.log} was", f"messages of {view.log} were")
        + f" dropped for {view.subscription!r} within "
        f"{options.window_s:.0f} s, unread: they failed more than {counted(view.max_redelivery_count, 'time')} or were given up, "
        "and its failure policy is to drop",
        evidence={
            "dropped": count.total,
            "dropped_in_window": count.in_window,
            "failed_in_window": view.failed.in_window,
            "last_s_ago": None if count.last_ms is None else max(0, view.now_ms - count.last_ms) / 1000,
            "poison_policy": view.poison_policy,
            "max_redelivery_count": view.max_redelivery_count,
        },
        next=(
            NextCall(
                "subscriptions.set_failure_policy",
                {**view.arguments, "poison_policy": "dead_letter"},
                "keep what fails from now on in a dead-letter topic",
            ),
            NextCall(
                "subscriptions.get_failure_policy",
                view.arguments,
                "see after how many failures, and how soon, a message is dropped",
            ),
        ),
    )


MESSAGES_DROPPED: Final = Rule(
    area=RuleArea.SUBSCRIPTION,
    severity="warning",
    holds="the poison policy is `drop`, and messages were dropped in the window",
    evidence={
        "dropped": "since the broker started",
        "dropped_in_window": "in the window",
        "poison_policy, max_redelivery_count": "what drops them, and after how many failures",
    },
    unobservable=("why the application refuses them, beyond the reason it gave",),
    helps="let messages that fail too often be dead-lettered",
    check=messages_dropped,
    many="subscriptions drop messages by their failure policy",
)
