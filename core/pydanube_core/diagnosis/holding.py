"""Rules on a cursor that stands: one message is held while others are answered, or nothing else explains it."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.lag_status import POISON_FAILURES, LagStatus
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView
from pydanube_core.units import counted

_PROCESS: Final = "what the consumer's process does with the message"


def _peek(view: SubscriptionView) -> NextCall:
    return NextCall(
        "messages.peek",
        {"topic": view.log, "from": f"offset:{view.state.oldest_unread}", "limit": 1},
        "look at the message that the cursor waits for",
    )


def message_held(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if view.status is not LagStatus.STUCK:
        return f"the lag's status is {view.status.value}: the cursor moves"
    if not view.consumers:
        return "no consumer is attached"
    above, held = view.state.acked_above, view.state.in_flight
    if above <= held:
        behind = counted(above, "message behind the cursor's is", "messages behind the cursor's are")
        return f"{behind} acknowledged, and {counted(held, 'is', 'are')} held"
    worst = view.head_of_line
    if (
        worst is not None
        and worst.reason != "ack timeout"
        and (worst.blocked or worst.failures >= POISON_FAILURES)
    ):
        return f"the message at offset {worst.offset} is given back as failed: it is answered"
    holder = max(view.consumers, key=lambda one: one.oldest_in_flight_s or 0.0)
    again = 0 if worst is None or worst.offset != view.state.oldest_unread else worst.deliveries
    return Finding(
        severity=Severity.WARNING,
        confidence=0.9,
        summary=f"the cursor of {view.log} / {view.subscription} waits at offset {view.state.oldest_unread}: "
        f"{counted(above, 'message behind it is', 'messages behind it are')} acknowledged, it is not"
        + (f"; consumer {holder.name!r} holds it" if held and holder.in_flight else ""),
        evidence={
            "offset": view.state.oldest_unread,
            "acknowledged_above": above,
            "in_flight": held,
            "held_s": holder.oldest_in_flight_s,
            "consumer": holder.name if held else None,
            "deliveries": again or None,
            "cursor_still_s": view.lag.evidence.get("cursor_still_s"),
            "lag_messages": view.unread,
            "status": view.status.value,
        },
        next=(
            _peek(view),
            NextCall(
                "subscriptions.get_failure_policy",
                view.arguments,
                "see after how long a message that is not answered is sent again",
            ),
        ),
    )


def cursor_stuck(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if view.status is not LagStatus.STUCK:
        return f"the lag's status is {view.status.value}"
    reason = view.lag.stuck_reason
    return Finding(
        severity=Severity.WARNING,
        confidence=0.6,
        summary=f"the cursor of {view.log} / {view.subscription} does not move: {counted(view.unread, 'message waits', 'messages wait')} from offset "
        f"{view.state.oldest_unread}",
        evidence={
            "lag_messages": view.unread,
            "status": view.status.value,
            "oldest_unread_age_s": view.lag.age.age_s,
            "reason": None if reason is None else reason.value,
            "cursor_still_s": view.lag.evidence.get("cursor_still_s"),
            "in_flight": view.state.in_flight,
            "acknowledged_in_window": view.acknowledged.in_window,
            "consumers": len(view.consumers),
            "credit_messages": sum(one.credit_messages for one in view.consumers),
            "dispatch_rate_limit": view.dispatch_rate_limit or None,
        },
        next=(
            NextCall("consumers.list", {"topic": view.topic}, "see who is attached, and holds what"),
            _peek(view),
        ),
    )


MESSAGE_HELD: Final = Rule(
    area=RuleArea.SUBSCRIPTION,
    severity="warning",
    holds="the status is STUCK, consumers are attached, and more messages behind the cursor's are acknowledged than "
    "are held",
    evidence={
        "offset": "of the message that the cursor waits for",
        "acknowledged_above": "messages behind it that are acknowledged",
        "held_s, consumer": "how long the oldest message is held, and by whom; null: nobody holds one",
        "deliveries": "how often it was sent, if it came back",
    },
    unobservable=(_PROCESS,),
    helps="look at the message; mend what forgets it, or let it be sent again by an ack timeout",
    check=message_held,
    many="subscriptions wait for one message while later ones are acknowledged",
)

CURSOR_STUCK: Final = Rule(
    area=RuleArea.SUBSCRIPTION,
    severity="warning",
    holds="the status is STUCK, and no other rule says why",
    evidence={
        "reason": "as the status tells it: `nothing_in_flight`, `no_ack`, `head_of_line`, …",
        "cursor_still_s": "for how long",
        "credit_messages": "what the consumers still take",
    },
    unobservable=("whether its consumers want more: they have told how much they take, and nothing else",),
    helps="look at the consumers and at the message at the cursor",
    check=cursor_stuck,
    many="subscriptions have a cursor that does not move",
    fallback=True,
)
