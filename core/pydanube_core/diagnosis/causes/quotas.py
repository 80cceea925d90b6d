"""Causes in quotas: traffic slowed, or changes refused, by the quota of a namespace or of a principal."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from pydanube_core.diagnosis.causes.topics import refusals
from pydanube_core.diagnosis.findings import (
    BrokerRule,
    Finding,
    NextCall,
    Outcome,
    Severity,
    SubscriptionRule,
    TopicRule,
)
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import BrokerView, SubscriptionView, TopicView
from pydanube_core.units import counted

QUOTA_CODES: Final = ("QUOTA_EXCEEDED",)
STORED: Final = "stored_bytes"
_NEXT: Final = NextCall("quotas.list", {}, "see the quota and its use")
_OTHERS: Final = "which of its other topics use the quota up"


@partial(
    TopicRule,
    holds="producers waited, or were refused, for a quota in the window",
    evidence={
        "quotas": "exhausted quotas, with their owners",
        "refused_publishes_in_window, refused_messages_in_window": "batches or calls that were refused, and their messages",
        "produce_rate": "messages a second that came in the window",
    },
    unobservable=(_OTHERS,),
    helps="raise the quota, or slow the producers down",
    many="topics get more than a quota allows",
)
def publish_over_quota(view: TopicView, options: DiagnosisOptions) -> Outcome:
    slowed = _of(view.slowed, "_in_per_s")
    refused = refusals(view.refused, QUOTA_CODES)
    if not slowed and not refused.in_window:
        return f"no publish waited for a quota in the last {options.window_s:.0f} s"
    words = []
    if slowed:
        words.append(
            f"was throttled by quota {', '.join(sorted(slowed))}: its producers brought more than they may"
        )
    if refused.in_window:
        quotas = ", ".join(sorted(view.refused_by)) or "of its namespace or principal"
        words.append(f"refused {counted(refused.in_window, 'publish', 'publishes')} for quota {quotas}")
    if any(quota.endswith(STORED) for quota in view.refused_by):
        words.append("as much is stored as may be, until retention or an operator deletes some")
    return Finding(
        summary=f"{view.log} {'; '.join(words)}",
        evidence={
            "quotas": sorted({*slowed, *view.refused_by}),
            "last_s_ago": min({**view.refused_by, **slowed}.values(), default=None),
            "refused_publishes_in_window": refused.in_window,
            "refused_messages_in_window": refusals(view.refused_messages, QUOTA_CODES).in_window,
            "produce_rate": round(view.production.rate, 3),
        },
        next=(_NEXT,),
    )


@partial(
    SubscriptionRule,
    severity="warning, or info where nothing is unread",
    holds="consumers of the topic waited for a quota in the window",
    evidence={
        "quotas": "exhausted quotas, with their owners",
        "lag_messages": "unread by this subscription",
    },
    unobservable=(_OTHERS, "whether it was another subscription of the topic that waited"),
    helps="raise the quota",
    many="subscriptions wait for a quota",
)
def delivery_over_quota(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    slowed = _of(view.slowed, "_out_per_s")
    if not slowed:
        return f"no delivery waited for a quota in the last {options.window_s:.0f} s"
    return Finding(
        severity=Severity.WARNING if view.unread else Severity.INFO,
        confidence=0.9,
        summary=f"delivery of {view.log} was throttled by quota {', '.join(slowed)}; {view.subscription} has "
        f"{view.unread} unread",
        evidence={"quotas": sorted(slowed), "last_s_ago": min(slowed.values()), "lag_messages": view.unread},
        next=(_NEXT,),
    )


@partial(
    BrokerRule,
    holds="a principal made, or destroyed, more within an hour than its quota allows, and a change was refused in the window",
    evidence={"quotas": "quotas that refused a change, with their owners"},
    unobservable=("whether a person or a program is behind it",),
    helps="look at the changes. Freeze the principal if it should stop, or raise its quota",
    many="brokers refuse changes",
)
def changes_burst(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    refused = view.refused_changes
    if not refused:
        return f"no change was refused for a quota in the last {options.window_s:.0f} s"
    quotas, whose = sorted(one.quota for one in refused), min(refused, key=lambda one: one.quota).principal
    return Finding(
        summary=f"changes were refused for quota {', '.join(quotas)}: more was to be changed within an hour than it allows",
        evidence={"quotas": quotas, "last_s_ago": round(min(one.age_s for one in refused), 1)},
        next=(
            NextCall("changes.list", {"by": whose}, "see the changes, each with its undo"),
            NextCall(
                "faces.freeze",
                {"principal": whose, "reason": "more changes than its quota"},
                "let it read and change nothing until it is understood",
            ),
            _NEXT,
        ),
    )


def _of(slowed: Mapping[str, float], ending: str) -> dict[str, float]:
    """Return the quotas with this ending, each with the seconds since traffic waited for it."""
    return {quota: age_s for quota, age_s in slowed.items() if quota.endswith(ending)}
