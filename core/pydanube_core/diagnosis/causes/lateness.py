"""Shared by all causes in subscriptions: whether any message is late, and the numbers that show it."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import NextCall
from pydanube_core.diagnosis.lag_status import LagStatus
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView

PROCESS: Final = "the work of the consumer's process: the broker sees its connection only"

BEHIND: Final = (LagStatus.FALLING_BEHIND, LagStatus.SLOW, LagStatus.AT_RISK, LagStatus.DATA_LOST)


def late(view: SubscriptionView, options: DiagnosisOptions) -> str | None:
    """Return why nothing is late. None if something is."""
    if view.unread <= options.allowed_messages:
        return "nothing is unread"
    age_s = view.lag.age.age_s
    if age_s is not None and age_s <= options.allowed_age_s:
        return f"the oldest of {view.unread} unread messages is {age_s:.1f} s old, which is on time"
    return None


def lag_evidence(view: SubscriptionView) -> dict[str, object]:
    """Return the number of unread messages, their age and the status, as evidence."""
    return {
        "lag_messages": view.unread,
        "oldest_unread_age_s": view.lag.age.age_s,
        "status": view.status.value,
    }


def look_again(view: SubscriptionView) -> NextCall:
    """Return the call that shows the subscription's lag again."""
    return NextCall("subscriptions.lag", view.arguments, "see the lag and its rates again")
