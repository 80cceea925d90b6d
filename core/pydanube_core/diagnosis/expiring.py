"""The rule on consumers that are sent messages and let them expire, or take none."""

from __future__ import annotations

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView
from pydanube_core.units import counted


def consumer_expiring(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    found = [one for one in view.consumers if one.expired or one.standing != "answering"]
    if not found:
        return "no consumer let a delivery expire since it answered last, and none is set aside"
    worst = max(found, key=lambda one: one.expired)
    aside = [one for one in found if one.standing != "answering"]
    alone = len(found) == len(view.consumers)
    above = view.state.acked_above
    if alone and not aside and above > view.unread:
        behind = counted(above, "message behind the cursor's is", "messages behind the cursor's are")
        return f"{behind} acknowledged: what expires is {view.unread} of many"
    what = "is set aside" if worst in aside else "goes on being sent messages, for nobody else takes them"
    did = f"let {counted(worst.expired, 'delivery', 'deliveries')} expire and has answered nothing since"
    if not worst.expired:
        did = "took nothing of what waits in its client's buffer for a whole ack timeout"
    return Finding(
        severity=Severity.CRITICAL if alone and view.unread else Severity.WARNING,
        confidence=0.95,
        summary=f"consumer {worst.name!r} of {view.log} / {view.subscription} {did}: it {what}",
        evidence={
            "consumer": worst.name,
            "expired_unanswered": worst.expired,
            "standing": worst.standing,
            "standing_s": worst.standing_s,
            "set_aside": sum(one.standing == "set_aside" for one in found),
            "expiring_consumers": len(found),
            "consumers": len(view.consumers),
            "lag_messages": view.unread,
        },
        next=(
            NextCall("consumers.list", {"topic": view.topic}, "see who is set aside"),
            NextCall(
                "consumers.disconnect",
                {"id": worst.consumer_id},
                "end its connection, so that a process that lives begins anew",
            ),
            NextCall(
                "subscriptions.get_failure_policy",
                view.arguments,
                "see whether the ack timeout is shorter than the work on a message",
            ),
        ),
    )


CONSUMER_EXPIRING = Rule(
    area=RuleArea.SUBSCRIPTION,
    severity="warning; critical if no other consumer answers and messages are unread",
    holds="a consumer let deliveries expire and has answered none since, while no more messages behind the cursor's are "
    "acknowledged than are unread, or it is set aside because it takes nothing",
    evidence={
        "expired_unanswered": "deliveries since its last answer",
        "standing": "`set_aside`, `on_trial`, or `answering` where nobody else takes its messages",
        "standing_s": "for how long; null: it is sent messages as ever",
        "set_aside": "consumers that are",
        "expiring_consumers, consumers": "how many of how many",
    },
    unobservable=("what the consumer's process does: the broker sees its connection only",),
    helps="end or mend the process; raise the ack timeout if it is only slow",
    check=consumer_expiring,
    many="subscriptions have consumers that let deliveries expire",
)
