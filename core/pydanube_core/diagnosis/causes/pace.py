"""Causes in rates and positions: bursts, slow consumption, retention, moved cursors."""

from __future__ import annotations

from functools import partial
from typing import Final

from pydanube_core.diagnosis.causes.consumers import SHARING, consumer_not_acking
from pydanube_core.diagnosis.causes.lateness import BEHIND, PROCESS, lag_evidence, late, look_again
from pydanube_core.diagnosis.causes.messages import hot_key
from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Severity, SubscriptionRule
from pydanube_core.diagnosis.lag_status import LagStatus
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView, ago_s
from pydanube_core.units import counted

BURST_SHARE: Final = 0.5  # of the lag: less does not explain it
LIMIT_SHARE: Final = 0.9  # consuming at so much of a dispatch limit is consuming at the limit
TOLD_S: Final = 3600.0
LASTING_INTERVALS: Final = 6  # since a step: a flood of twenty seconds is a burst


@partial(
    SubscriptionRule,
    severity="warning until the cursor is at its old position, then info for a window",
    holds="the cursor went back",
    evidence={
        "from_offset, to_offset": "of the step back",
        "rewound_messages": "how far",
        "left_messages": "of them still to be read again",
        "cause": "seek, or null",
        "moved_by": "the client that moved it. Null if an operation did, or if no seek was seen",
    },
    unobservable=("who moved it, where no seek was seen",),
    helps="wait, or go back to where it was",
    many="cursors were moved back",
)
def cursor_rewound(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    rewind = view.rewind
    if rewind is None:
        return "the cursor has not gone back"
    reached = view.state.next_unacked >= rewind.from_offset
    if reached and view.now_ms - rewind.at_ms > options.window_s * 1000:
        return "the cursor went back, and is where it was before"
    return Finding(
        severity=Severity.INFO if reached else Severity.WARNING,
        summary=f"the cursor of {view.log} / {view.subscription} was moved back from {rewind.from_offset} to "
        f"{rewind.to_offset}{'' if rewind.by is None else f' by client {rewind.by!r}'}: "
        + counted(
            rewind.from_offset - rewind.to_offset, "message is unread again", "messages are unread again"
        ),
        evidence={
            "from_offset": rewind.from_offset,
            "to_offset": rewind.to_offset,
            "rewound_messages": rewind.from_offset - rewind.to_offset,
            "next_unacked": view.state.next_unacked,
            "left_messages": max(0, rewind.from_offset - view.state.next_unacked),
            "seconds_ago": ago_s(view, rewind.at_ms),
            "cause": view.rewind_cause,
            "moved_by": rewind.by,
            "lag_messages": view.unread,
        },
        unobservable=() if view.rewind_cause else ("who moved it: no seek was seen",),
        next=(
            NextCall(
                "subscriptions.seek",
                {**view.arguments, "to": f"offset:{rewind.from_offset}"},
                "go back to where it was, if it was moved by mistake",
            ),
            look_again(view),
        ),
    )


@partial(
    SubscriptionRule,
    severity="info",
    holds="within the last hour, the cursor was moved forward over unread messages",
    evidence={
        "from_offset, to_offset": "of the step",
        "passed_over_messages": "that were unread",
        "operation": "by which it was moved",
        "moved_by": "the client that moved it. Null if an operation did",
        "seconds_ago": "how long ago",
    },
    unobservable=("whether those messages are missed",),
    helps="nothing, if it was intended. Else undo it by the call that the audit names, or seek back",
    many="cursors were moved forward over unread messages",
)
def cursor_moved_forward(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    moved = view.moved_forward
    if moved is None:
        return "the cursor was not moved forward over unread messages"
    past_s = max(0, view.now_ms - moved.at_ms) / 1000
    if past_s > TOLD_S:
        return f"the cursor was moved forward {past_s:.0f} s ago, which is long past"
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
        f"{moved.to_offset} {by} {_ago(past_s)}: "
        f"{counted(moved.skipped_messages, 'unread message was', 'unread messages were')} passed over",
        evidence={
            "from_offset": moved.from_offset,
            "to_offset": moved.to_offset,
            "passed_over_messages": moved.skipped_messages,
            "moved_by": moved.by,
            "operation": moved.operation,
            "seconds_ago": past_s,
            "lag_messages": view.unread,
        },
        next=(
            NextCall(
                "audit.query",
                {"topic": view.topic, "operation": moved.operation},
                "see which call moved it. changes.undo takes the record's call_id",
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


@partial(
    SubscriptionRule,
    severity="warning if more messages come since, for six intervals, and the status is FALLING_BEHIND, else info",
    holds="messages wait, and their rate of arrival or of reading tripled or fell to a third, and stayed so for four "
    "intervals",
    evidence={
        "produced_before, produced_since": "messages a second. Null if that rate is even",
        "consumed_before, consumed_since": "messages a second. Null if that rate is even",
        "seconds_ago": "when the first of them changed",
    },
    unobservable=("why the rate changed",),
    helps="see the changes of that moment",
    many="subscriptions have a rate that changed abruptly",
    of_rates=True,
)
def rate_step(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    on_time = late(view, options)
    if on_time is not None:
        return on_time
    came, read = view.lag.produce_step, view.lag.consume_step
    found = [one for one in (came, read) if one is not None]
    if not found:
        return "neither the rate of production nor that of consumption has changed to three times, or a third"
    first_ms = min(one.at_ms for one in found)
    more = came is not None and came.times > 1 and came.intervals >= LASTING_INTERVALS
    words = [
        f"{one.before:.1f} messages a second {verb} until {ago_s(view, one.at_ms):.0f} s ago, {one.after:.1f} since"
        for one, verb in ((came, "came"), (read, "were read"))
        if one is not None
    ]
    return Finding(
        severity=Severity.WARNING if more and view.status is LagStatus.FALLING_BEHIND else Severity.INFO,
        confidence=0.85,
        summary=f"{view.log} / {view.subscription}: {'; '.join(words)}; {counted(view.unread, 'message waits', 'messages wait')}",
        evidence={
            **lag_evidence(view),
            "produced_before": None if came is None else round(came.before, 3),
            "produced_since": None if came is None else round(came.after, 3),
            "consumed_before": None if read is None else round(read.before, 3),
            "consumed_since": None if read is None else round(read.after, 3),
            "seconds_ago": ago_s(view, first_ms),
        },
        next=(
            NextCall("topics.chart", {"topic": view.topic}, "see both rates over time"),
            NextCall("producers.list", {"topic": view.topic}, "see who sends"),
        ),
    )


@partial(
    SubscriptionRule,
    severity="warning, or info for the first minute and while the lag shrinks",
    holds="part of the window brought three times the typical number of messages or more, which explains half of "
    "the lag, and the consumers work",
    evidence={
        "burst_messages": "above the typical",
        "peak_rate, typical_rate": "messages a second",
        "eta_s": "until caught up",
    },
    unobservable=("whether more of it comes",),
    helps="wait, or add consumers",
    many="subscriptions work on a burst",
    of_rates=True,
)
def produce_burst(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    on_time = late(view, options)
    if on_time is not None:
        return on_time
    burst = None if view.production is None else view.production.burst
    if view.production is None or burst is None:
        return "the growth of the log is not measured" if view.production is None else view.production.even
    if burst.messages < BURST_SHARE * view.unread:
        above = counted(burst.messages, "message above the usual does", "messages above the usual do")
        return f"{above} not explain {counted(view.unread, 'unread message')}"
    if not view.consumers:
        return "no consumer is attached"
    if not view.acknowledged.in_window:
        return "nothing is acknowledged: the consumers would be late without a burst too"
    answered_s = ago_s(view, view.acknowledged.last_ms) or 0.0
    if answered_s > max(options.patience_s, 3 * options.sample_interval_s):
        return (
            f"the last acknowledgement came {answered_s:.0f} s ago: no consumer works on the rest of a burst"
        )
    if view.rewind is not None and view.state.next_unacked < view.rewind.from_offset:
        return "the cursor was moved back, which explains the lag"
    age_s = view.lag.age.age_s
    shrinks = view.lag.gaining or view.lag.gaining_lately
    overdue = age_s is None or age_s > 2 * max(options.allowed_age_s, options.patience_s)
    return Finding(
        severity=Severity.WARNING if overdue and not shrinks else Severity.INFO,
        confidence=0.8,
        summary=f"{view.log} got {counted(burst.messages, 'message')} more than usual within {view.production.window_s:.0f} s; "
        f"{view.subscription!r} works on the {counted(view.unread, 'that is left', 'that are left')}",
        evidence={
            **lag_evidence(view),
            "burst_messages": burst.messages,
            "peak_rate": burst.peak_rate,
            "typical_rate": burst.typical_rate,
            "produced_in_window": view.production.messages,
            "consume_rate": view.lag.consume_rate,
            "eta_s": view.lag.eta_s,
        },
        next=(look_again(view),),
    )


@partial(
    SubscriptionRule,
    holds="the status is FALLING_BEHIND, SLOW, AT_RISK or DATA_LOST, consumers acknowledge, and neither a burst nor "
    "a hot key nor a rewind explains it",
    evidence={
        "produce_rate, consume_rate": "messages a second, of the last `rates_of_s`",
        "rates_of_s": "since nothing is read. Else the window, or its end if the lag grows only there",
        "lag_per_s, lag_per_s_low": "growth of the lag, and its lower bound",
        "dispatch_rate_limit": "the policy that holds it back, if it does",
    },
    unobservable=("how busy the consumers' machines are", PROCESS),
    helps="add consumers or partitions, or lift the limit",
    many="subscriptions are read more slowly than messages come",
    of_rates=True,
)
def consumer_slow(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if not view.consumers:
        return "no consumer is attached"
    on_time = late(view, options)
    if on_time is not None:
        return on_time
    lag = view.lag
    if view.status not in BEHIND:
        return f"the lag's status is {view.status.value}"
    fresh = all(view.now_ms - one.connected_at_ms < options.patience_s * 1000 for one in view.consumers)
    if fresh and lag.status is LagStatus.CATCHING_UP:
        return "its consumers have just come, and keep pace: the status is of the time without consumers"
    if not view.acknowledged.in_window and lag.measured_until_ms is None:
        return f"nothing was acknowledged in the last {options.window_s:.0f} s"
    if consumer_not_acking.holds_for(view, options):
        return "its consumers hold messages and acknowledge none"
    if produce_burst.holds_for(view, options):
        return "a burst of messages explains the lag"
    if hot_key.holds_for(view, options):
        return "one key holds most of the unread messages: the other consumers cannot help"
    rewind = view.rewind
    if (
        rewind is not None
        and view.state.next_unacked < rewind.from_offset
        and view.status is not LagStatus.FALLING_BEHIND
    ):
        return "the cursor was moved back, which explains the lag"
    limit, pace = view.dispatch_rate_limit, lag.pace
    limited = bool(limit) and pace is not None and pace.consumed >= LIMIT_SHARE * limit
    then_s = ago_s(view, lag.measured_until_ms)
    rates_of_s = None if pace is None else (ago_s(view, pace.since_ms) or 0.0) - (then_s or 0.0)
    why = (
        f"is held to {counted(limit, 'message')} a second by its dispatch limit"
        if limited
        else "falls behind"
    )
    if view.status is LagStatus.SLOW:
        why = why if limited else "does not catch up"
    return Finding(
        confidence=0.9 if view.status is LagStatus.FALLING_BEHIND else 0.7,
        summary=f"{view.log} / {view.subscription} {why}: {counted(view.unread, 'message')} behind, "
        + ("rates not known" if pace is None
           else f"{pace.produced:.1f} a second came and {'none' if pace.stands else f'{pace.consumed:.1f}'} were read in the "
           + (f"last {rates_of_s:.0f} s" if then_s is None
              else f"{rates_of_s:.0f} s until {then_s:.0f} s ago, before the broker started again")),
        evidence={
            **lag_evidence(view),
            **lag.evidence,
            "produce_rate": None if pace is None else round(pace.produced, 3),
            "consume_rate": None if pace is None else round(pace.consumed, 3),
            "rates_of_s": rates_of_s,
            "eta_s": lag.eta_s,
            "consumers": len(view.consumers),
            "in_flight": view.state.in_flight,
            "acknowledged_in_window": view.acknowledged.in_window,
            "dispatch_rate_limit": limit or None,
            "lost_messages": lag.lost_messages,
        },
        next=(
            *(NextCall("topics.set_policies", {"topic": view.topic, "policies": {"max_subscription_dispatch_rate": 0}}, "lift the dispatch limit") for _ in range(limited)),
            look_again(view),
            NextCall("cluster.what_if", {"scenario": "consumers", "topic": view.topic, "subscription": view.subscription}, "see whether twice as many consumers would keep up")
            if view.type in SHARING
            else NextCall("topics.describe", {"topic": view.topic}, "see whether more partitions or a shared subscription would let more consumers help"),
        ),
    )  # fmt: skip


@partial(
    SubscriptionRule,
    severity="critical",
    holds="the status is AT_RISK or DATA_LOST, with or without consumers",
    evidence={
        "retention_headroom_s": "until the oldest unread message is taken",
        "retention_age_s": "the age that the policy keeps. Null if only its size is bounded",
        "lost_messages": "taken before they were read",
        "lag_messages, oldest_unread_age_s": "the unread messages",
    },
    unobservable=("whether the unread messages are needed",),
    helps="keep messages for longer, let retention wait for cursors (`drop_unread: 0`), or read faster",
    many="subscriptions lose unread messages to retention, or are about to",
)
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
        summary=f"{what} of {view.log} / {view.subscription}{when}: {_readers(view, options)}",
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
            NextCall("topics.get_policies", {"topic": view.topic}, "see which policy deletes it, and when"),
            NextCall(
                "topics.set_policies",
                {"topic": view.topic, "policies": {"drop_unread": 0}},
                "let the topic's retention wait for the slowest cursor",
            ),
        ),
    )


def _readers(view: SubscriptionView, options: DiagnosisOptions) -> str:
    if not view.consumers:
        return "no consumer is attached"
    answered_s = ago_s(view, view.acknowledged.last_ms) or 0.0
    attached = counted(len(view.consumers), "consumer is attached", "consumers are attached")
    if view.acknowledged.in_window and answered_s < options.patience_s:
        return f"{counted(len(view.consumers), 'consumer reads', 'consumers read')}, too slowly"
    if view.acknowledged.in_window:
        return f"{attached}, and the last acknowledgement came {answered_s:.0f} s ago"
    return f"{attached}, and nothing was acknowledged in the last {options.window_s:.0f} s"


@partial(
    SubscriptionRule,
    holds="more is unread than the policy `alert_unread_messages` of its topic allows, or the oldest unread message is older "
    "than `alert_unread_age_s`. Of a partitioned topic each partition is compared",
    evidence={
        "lag_messages, oldest_unread_age_s": "the unread messages",
        "alert_unread_messages, alert_unread_age_s": "the thresholds in force. Null if none is set",
    },
    unobservable=("how much its users can wait for",),
    helps="read faster, or set another threshold",
    many="subscriptions are further behind than their topics' thresholds",
)
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
