"""Rules on subscriptions: who keeps the mail from being read."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.dropping import MESSAGES_DROPPED
from pydanube_core.diagnosis.exceeding import THRESHOLD_EXCEEDED
from pydanube_core.diagnosis.expiring import CONSUMER_EXPIRING
from pydanube_core.diagnosis.filtering import FILTER_MATCHES_NOTHING
from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.holding import CURSOR_STUCK, MESSAGE_HELD, message_held
from pydanube_core.diagnosis.lag_status import POISON_FAILURES, LagStatus
from pydanube_core.diagnosis.looping import CONSUMER_CRASH_LOOP, consumer_crash_loop
from pydanube_core.diagnosis.moving import CURSOR_MOVED_FORWARD
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.retaining import RETENTION_RISK
from pydanube_core.diagnosis.slowing import DELIVERY_OVER_QUOTA
from pydanube_core.diagnosis.views import ConsumerView, SubscriptionView
from pydanube_core.units import counted

BURST_SHARE: Final = 0.5  # of the lag: less does not explain it
HOT_SHARE: Final = 0.5  # of the messages sampled
FEWEST_SAMPLED: Final = 20
IN_DANGER: Final = (LagStatus.STUCK, LagStatus.AT_RISK, LagStatus.DATA_LOST)
LIMIT_SHARE: Final = 0.9  # consuming at so much of a dispatch limit is consuming at the limit

_PROCESS: Final = "what the consumer's process does: the broker sees its connection only"


def _seconds(view: SubscriptionView, then_ms: int | None) -> float | None:
    return None if then_ms is None else max(0, view.now_ms - then_ms) / 1000


def _late(view: SubscriptionView, options: DiagnosisOptions) -> str | None:
    """Why nothing is late; None if something is."""
    if view.unread <= options.allowed_messages:
        return "nothing is unread"
    age_s = view.lag.age.age_s
    if age_s is not None and age_s <= options.allowed_age_s:
        return f"the oldest of {view.unread} unread messages is {age_s:.1f} s old, which is on time"
    return None


def _lag_evidence(view: SubscriptionView) -> dict[str, object]:
    return {
        "lag_messages": view.unread,
        "oldest_unread_age_s": view.lag.age.age_s,
        "status": view.status.value,
    }


def _look(view: SubscriptionView) -> NextCall:
    return NextCall("subscriptions.lag", view.arguments, "see the lag and its rates again")


# -- nobody there ------------------------------------------------------------------------------------------------


def no_consumers(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if view.consumers:
        return counted(len(view.consumers), "consumer is attached", "consumers are attached")
    if view.unread <= options.allowed_messages:
        return "nothing is unread"
    if not isinstance(consumer_crash_loop(view, options), str):
        return "consumers come and go: the last one is only gone for now"
    left = view.departure
    if left is not None and left.abrupt:
        return "the last consumer did not leave: its connection broke"
    since_s = _seconds(view, None if left is None else left.at_ms)
    age_s = view.lag.age.age_s
    # A job that reads everything and comes back later is no fault until its mail is older than the patience.
    visits = left is not None and left.unread <= options.allowed_messages
    if visits and age_s is not None and age_s < options.stuck_after_s:
        return (
            f"the last consumer had read everything when it left, and what came since is {age_s:.0f} s old, less "
            f"than {options.stuck_after_s:.0f} s: a job that comes and goes"
        )
    waited = [one for one in (age_s, since_s) if one is not None]
    soon = bool(waited) and min(waited) < options.patience_s and view.status not in IN_DANGER
    never = left is None and view.cursor_moved_ms is None
    return Finding(
        severity=Severity.INFO if soon else Severity.WARNING,
        summary=counted(view.unread, f"message of {view.log} waits", f"messages of {view.log} wait")
        + f" for subscription {view.subscription!r} and no "
        + ("consumer has come since the broker started" if left is None else f"consumer is attached; {left.name!r} left"),
        evidence={
            **_lag_evidence(view),
            "consumers": 0,
            "last_consumer_left_s_ago": since_s,
            "unread_when_it_left": None if left is None else left.unread,
            "never_seen": never,
        },
        untrusted={} if left is None else {"consumer": left.name},
        next=(
            NextCall("subscriptions.list", {"topic": view.topic}, "see which subscriptions of the topic are read; start a consumer of this one"),
            NextCall("subscriptions.delete", view.arguments, "if nobody needs it any more: it keeps unread messages from being trimmed"),
        ),
    )  # fmt: skip


def _silent(view: SubscriptionView, consumer: ConsumerView, options: DiagnosisOptions) -> bool:
    """It holds messages, and has said nothing for as long as the patience lasts."""
    if not consumer.in_flight or consumer.heard_ms is None:
        return False
    sent_s = consumer.oldest_in_flight_s
    return (
        view.now_ms - consumer.heard_ms >= options.stuck_after_s * 1000
        and sent_s is not None
        and sent_s * 1000 >= min(options.stuck_after_s * 1000, view.now_ms - consumer.heard_ms)
    )


def consumer_dead(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    left = view.departure
    if not isinstance(consumer_crash_loop(view, options), str):
        return "it is not one that broke: consumers break and come again"
    if not view.consumers:
        if left is None or not left.abrupt:
            return "no connection of a consumer broke"
        if view.unread <= options.allowed_messages:
            return "nothing is unread"
        return Finding(
            severity=Severity.CRITICAL,
            confidence=0.95,
            summary=f"the connection of consumer {left.name!r} of {view.log} / {view.subscription} broke, and none has "
            f"come back: {counted(view.unread, 'message waits', 'messages wait')}",
            evidence={
                **_lag_evidence(view),
                "consumer": left.name,
                "connection": "broken",
                "seconds_ago": _seconds(view, left.at_ms),
                "in_flight_when_it_broke": left.in_flight,
                "consumers": 0,
            },
            next=(_look(view),),
        )
    dead = [one for one in view.consumers if _silent(view, one, options) and one.answered_ms is not None]
    if not dead:
        return "every consumer that holds messages was heard of, or has never answered any"
    if not isinstance(message_held(view, options), str):
        return "what came after the messages held is acknowledged: it has nothing else to say"
    working = [
        one for one in view.consumers if one not in dead and one.active and one.answered_ms is not None
    ]
    if working and _late(view, options) is not None:
        silent = counted(len(dead), "consumer is silent", "consumers are silent")
        return f"{silent}, the others read everything in time"
    worst = max(dead, key=lambda one: one.in_flight)
    return Finding(
        severity=Severity.CRITICAL if len(dead) == len(view.consumers) else Severity.WARNING,
        confidence=0.8,
        summary=f"consumer {worst.name!r} of {view.log} / {view.subscription} holds {counted(worst.in_flight, 'message')}, had "
        f"been answering, and has said nothing for {_seconds(view, worst.heard_ms):.0f} s",
        evidence={
            **_lag_evidence(view),
            "consumer": worst.name,
            "connection": "open",
            "silent_s": _seconds(view, worst.heard_ms),
            "last_answer_s_ago": _seconds(view, worst.answered_ms),
            "in_flight": sum(one.in_flight for one in dead),
            "silent_consumers": len(dead),
            "consumers": len(view.consumers),
        },
        unobservable=(_PROCESS,),
        next=(_look(view),),
    )


# -- there, and not answering ------------------------------------------------------------------------------------


def consumer_not_acking(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if not view.consumers:
        return "no consumer is attached"
    on_time = _late(view, options)
    if on_time is not None:
        return on_time
    if not view.state.in_flight:
        return "nothing is in flight"
    if not isinstance(message_held(view, options), str):
        return "what came after the messages held is acknowledged"
    if view.acknowledged.in_window and view.acknowledged.last_ms is not None:
        quiet_s = (view.now_ms - view.acknowledged.last_ms) / 1000
        if quiet_s < options.stuck_after_s:
            return f"the last acknowledgement came {quiet_s:.0f} s ago"
    if (
        view.head_of_line is not None
        and (view.head_of_line.blocked or view.head_of_line.failures >= POISON_FAILURES)
        and view.head_of_line.reason != "ack timeout"
    ):
        return f"the message at offset {view.head_of_line.offset} is given back as failed: it is answered"
    holding = [one for one in view.consumers if one.in_flight]
    if any(_silent(view, one, options) and one.answered_ms is not None for one in holding):
        return "the consumer that holds messages used to answer and is silent altogether"
    held_s = max((one.oldest_in_flight_s or 0.0 for one in holding), default=0.0)
    since_ms = max((one.connected_ms for one in holding), default=view.now_ms)
    waited_s = _seconds(view, since_ms) or 0.0
    if waited_s < options.stuck_after_s or max(held_s, view.lag.age.age_s or 0.0) < options.stuck_after_s:
        return f"messages have been held for {held_s:.0f} s, less than {options.stuck_after_s:.0f} s"
    worst = max(holding, key=lambda one: one.in_flight)
    return Finding(
        severity=Severity.WARNING,
        confidence=0.85 if worst.answered_ms is None else 0.75,
        summary=f"{'a consumer' if len(holding) == 1 else f'{len(holding)} consumers'} of {view.log} / {view.subscription} "
        f"{'holds' if len(holding) == 1 else 'hold'} {counted(view.state.in_flight, 'message')} and acknowledged none",
        evidence={
            **_lag_evidence(view),
            "in_flight": view.state.in_flight,
            "acknowledged_in_window": view.acknowledged.in_window,
            "failed_in_window": view.failed.in_window,
            "consumers": len(view.consumers),
            "consumer": worst.name,
            "held_s": held_s,
            "credit_messages": worst.credit_messages,
        },
        next=(
            _look(view),
            NextCall("subscriptions.get_failure_policy", view.arguments, "see after how long an unanswered message goes to another consumer"),
        ),
    )  # fmt: skip


# -- messages ----------------------------------------------------------------------------------------------------


def poison_message(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    worst = view.head_of_line
    if worst is None or (not worst.blocked and worst.failures < POISON_FAILURES):
        return "no message has failed three times" if worst is None else (
            f"the message that failed most, offset {worst.offset}, did so {counted(worst.failures, 'time')}"
        )  # fmt: skip
    if worst.reason == "ack timeout" and not worst.blocked:
        return f"offset {worst.offset} came back {counted(worst.failures, 'time')} because nobody answered, not as failed"
    handled = view.poison_policy != "block" and not worst.blocked
    return Finding(
        severity=Severity.INFO if handled else Severity.CRITICAL if worst.blocked else Severity.WARNING,
        confidence=1.0 if worst.blocked else 0.9,
        summary=f"the message at offset {worst.offset} of {view.log} has failed {counted(worst.failures, 'time')} for "
        f"{view.subscription!r}"
        + (" and blocks the subscription" if worst.blocked else ""),
        evidence={
            "offset": worst.offset,
            "failures": worst.failures,
            "deliveries": worst.deliveries,
            "blocked": worst.blocked,
            "poison_policy": view.poison_policy,
            "max_redelivery_count": view.max_redelivery_count,
            "lag_messages": view.unread,
        },
        untrusted={"reason": worst.reason},
        next=(
            NextCall("messages.peek", {"topic": view.log, "from": f"offset:{worst.offset}", "limit": 1}, "look at the message"),
            *(
                NextCall("subscriptions.skip", {**view.arguments, "count": 1}, "pass over it once it is understood")
                for _ in range(view.state.next_unacked == worst.offset)
            ),
            NextCall("subscriptions.set_failure_policy", {**view.arguments, "poison_policy": "dead_letter"}, "let messages that fail too often go to a dead-letter topic"),
        ),
    )  # fmt: skip


def dead_letters_growing(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    count = view.dead_lettered
    if not count.in_window:
        return f"no message was dead-lettered in the last {options.window_s:.0f} s ({count.total} since the start)"
    return Finding(
        severity=Severity.WARNING,
        summary=counted(count.in_window, f"message of {view.log} was", f"messages of {view.log} were")
        + f" dead-lettered for {view.subscription!r} within "
        f"{options.window_s:.0f} s",
        evidence={
            "dead_lettered": count.total,
            "dead_lettered_in_window": count.in_window,
            "failed_in_window": view.failed.in_window,
            "last_s_ago": _seconds(view, count.last_ms),
            "dead_letter_topic": view.dead_letter_topic,
        },
        next=(
            NextCall("dead_letters.list", view.arguments, "see each with the reason of its failure"),
        ),
    )  # fmt: skip


def hot_key(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if view.type != "key-shared":
        return f"the subscription is {view.type}: keys do not bind messages to consumers"
    if len(view.consumers) < 2:
        attached = counted(len(view.consumers), "consumer is attached", "consumers are attached")
        return f"{attached}: a key keeps nobody from helping"
    on_time = _late(view, options)
    if on_time is not None:
        return on_time
    keys = view.keys
    if keys is None or keys.sampled < FEWEST_SAMPLED:
        return "too few unread messages are at hand to compare their keys"
    share = keys.messages / keys.sampled
    if share < HOT_SHARE or share < 1.5 / len(view.consumers):
        return f"the most frequent key has {keys.messages} of {keys.sampled} unread messages"
    return Finding(
        severity=Severity.WARNING,
        confidence=0.9,
        summary=f"one key holds {keys.messages} of {keys.sampled} unread messages of {view.topic} / "
        f"{view.subscription}: only one of {len(view.consumers)} consumers may work on them",
        evidence={
            **_lag_evidence(view),
            "key_messages": keys.messages,
            "sampled_messages": keys.sampled,
            "sampled_all": keys.sampled >= view.unread,
            "share": round(share, 3),
            "keys": keys.keys,
            "consumers": len(view.consumers),
        },
        untrusted={"key": keys.key},
        next=(
            NextCall("topics.describe", {"topic": view.topic}, "see who produces; give the key more parts (for example key:0 to key:7)"),
            _look(view),
        ),
    )  # fmt: skip


# -- speed -------------------------------------------------------------------------------------------------------


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
        + counted(rewind.from_offset - rewind.to_offset, "message is unread again", "messages are unread again"),
        evidence={
            "from_offset": rewind.from_offset,
            "to_offset": rewind.to_offset,
            "rewound_messages": rewind.from_offset - rewind.to_offset,
            "next_unacked": view.state.next_unacked,
            "left_messages": max(0, rewind.from_offset - view.state.next_unacked),
            "seconds_ago": _seconds(view, rewind.at_ms),
            "cause": view.rewind_cause,
            "moved_by": rewind.by,
            "lag_messages": view.unread,
        },
        unobservable=() if view.rewind_cause else ("who moved it: no seek was seen",),
        next=(
            NextCall("subscriptions.seek", {**view.arguments, "to": f"offset:{rewind.from_offset}"}, "go back to where it was, if it was moved by mistake"),
            _look(view),
        ),
    )  # fmt: skip


def produce_burst(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    on_time = _late(view, options)
    if on_time is not None:
        return on_time
    burst = None if view.production is None else view.production.burst
    if burst is None:
        return "production was even over the window"
    if burst.messages < BURST_SHARE * view.unread:
        above = counted(burst.messages, "message above the usual does", "messages above the usual do")
        return f"{above} not explain {counted(view.unread, 'unread message')}"
    if not view.consumers:
        return "no consumer is attached"
    if not view.acknowledged.in_window:
        return "nothing is acknowledged: the consumers would be late without a burst too"
    if view.rewind is not None and view.state.next_unacked < view.rewind.from_offset:
        return "the cursor was moved back, which explains the lag"
    assert view.production is not None
    age_s = view.lag.age.age_s
    soon = view.lag.gaining and view.lag.eta_s is not None and view.lag.eta_s < options.allowed_age_s
    late = age_s is None or age_s > 2 * options.allowed_age_s
    return Finding(
        severity=Severity.WARNING if late and not soon else Severity.INFO,
        confidence=0.8,
        summary=f"{view.log} got {counted(burst.messages, 'message')} more than usual within {view.production.window_s:.0f} s; "
        f"{view.subscription!r} works on the {counted(view.unread, 'that is left', 'that are left')}",
        evidence={
            **_lag_evidence(view),
            "burst_messages": burst.messages,
            "peak_rate": burst.peak_rate,
            "typical_rate": burst.typical_rate,
            "produced_in_window": view.production.messages,
            "consume_rate": view.lag.consume_rate,
            "eta_s": view.lag.eta_s,
        },
        next=(_look(view),),
    )


def consumer_slow(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if not view.consumers:
        return "no consumer is attached"
    on_time = _late(view, options)
    if on_time is not None:
        return on_time
    lag = view.lag
    slow = (LagStatus.FALLING_BEHIND, LagStatus.SLOW, LagStatus.AT_RISK, LagStatus.DATA_LOST)
    if view.status not in slow:
        return f"the lag's status is {view.status.value}"
    fresh = all(view.now_ms - one.connected_ms < options.patience_s * 1000 for one in view.consumers)
    if fresh and lag.status is LagStatus.CATCHING_UP:
        return "its consumers have just come, and keep pace: the status is of the time when nobody read"
    if not view.acknowledged.in_window:
        return "nothing at all is acknowledged"
    if not isinstance(produce_burst(view, options), str):
        return "a burst of messages explains the lag"
    if not isinstance(hot_key(view, options), str):
        return "one key holds most of the unread messages: the other consumers cannot help"
    rewind = view.rewind
    if (
        rewind is not None
        and view.state.next_unacked < rewind.from_offset
        and view.status is not LagStatus.FALLING_BEHIND
    ):
        return "the cursor was moved back, which explains the lag"
    limit, rate = view.dispatch_rate_limit, lag.consume_rate
    limited = bool(limit) and rate is not None and rate >= LIMIT_SHARE * limit
    why = (
        f"is held to {counted(limit, 'message')} a second by its dispatch limit"
        if limited
        else "falls behind"
    )
    if view.status is LagStatus.SLOW:
        why = why if limited else "does not catch up"
    return Finding(
        severity=Severity.WARNING,
        confidence=0.9 if view.status is LagStatus.FALLING_BEHIND else 0.7,
        summary=f"{view.log} / {view.subscription} {why}: {counted(view.unread, 'message')} behind, "
        + ("rates not known" if rate is None or lag.produce_rate is None
           else f"{lag.produce_rate:.1f} a second come, {rate:.1f} are read"),
        evidence={
            **_lag_evidence(view),
            **lag.evidence,
            "produce_rate": lag.produce_rate,
            "consume_rate": rate,
            "eta_s": lag.eta_s,
            "consumers": len(view.consumers),
            "in_flight": view.state.in_flight,
            "acknowledged_in_window": view.acknowledged.in_window,
            "dispatch_rate_limit": limit or None,
            "lost_messages": lag.lost_messages,
        },
        next=(
            *(NextCall("topics.set_policies", {"topic": view.topic, "policies": {"max_subscription_dispatch_rate": 0}}, "lift the dispatch limit") for _ in range(limited)),
            _look(view),
            NextCall("topics.describe", {"topic": view.topic}, "see whether more partitions or a shared subscription would let more consumers help"),
        ),
    )  # fmt: skip


SUBSCRIPTION_RULES: Final = (
    CONSUMER_CRASH_LOOP,
    DELIVERY_OVER_QUOTA,
    Rule(
        area=RuleArea.SUBSCRIPTION,
        severity="critical if it blocks; warning from its third failure; info if the policy will take it away",
        holds="one message blocks, or was given back as failed three times or more",
        evidence={
            "offset": "of the message",
            "failures": "how often it was given back or terminated",
            "deliveries": "how often it was sent",
            "blocked": "whether it stops the subscription",
        },
        unobservable=("what in the message the application cannot take",),
        helps="look at the message; skip it, or let messages that fail too often be dead-lettered",
        check=poison_message,
        many="subscriptions have a message that fails again and again",
    ),
    Rule(
        area=RuleArea.SUBSCRIPTION,
        severity="warning until the cursor is where it was; then info for a window",
        holds="the cursor went back",
        evidence={
            "from_offset, to_offset": "of the step back",
            "rewound_messages": "how far",
            "left_messages": "of them still to be read again",
            "cause": "seek, or null",
            "moved_by": "the client that asked for it; null: an operation did, or it was not seen",
        },
        unobservable=("who moved it, where no seek was seen",),
        helps="wait, or go back to where it was",
        check=cursor_rewound,
        many="cursors were moved back",
    ),
    Rule(
        area=RuleArea.SUBSCRIPTION,
        severity="critical; warning while others are attached",
        holds="the last consumer's connection broke without a farewell and mail is unread, or a consumer that used to "
        "answer holds messages and has said nothing for `stuck_after`",
        evidence={
            "consumer": "its name",
            "connection": "broken or open",
            "seconds_ago, silent_s": "since when",
            "in_flight, in_flight_when_it_broke": "messages it held",
        },
        unobservable=("whether the process died or its network did",),
        helps="restart the consumer; what it held goes to others by itself",
        check=consumer_dead,
        many="subscriptions have lost the connection of their consumer",
    ),
    Rule(
        area=RuleArea.SUBSCRIPTION,
        severity="warning; info for the first 30 s (or `stuck_after`, if that is less) of mail or absence",
        holds="mail is unread and nobody is attached, unless the last consumer had read everything and the mail is "
        "younger than `stuck_after`",
        evidence={
            "lag_messages": "unread messages",
            "last_consumer_left_s_ago": "null: none was seen since the broker started",
            "unread_when_it_left": "what the last one left behind",
        },
        unobservable=("whether a consumer is meant to run: the broker does not know your deployments",),
        helps="start a consumer, or delete the subscription",
        check=no_consumers,
        many="subscriptions have unread messages and no consumer",
    ),
    Rule(
        area=RuleArea.SUBSCRIPTION,
        severity="warning",
        holds="consumers hold messages, and for `stuck_after` nothing was acknowledged",
        evidence={
            "in_flight": "messages held",
            "held_s": "how long the oldest of them",
            "acknowledged_in_window": "acknowledgements in the window",
            "failed_in_window": "nacks and ack timeouts in the window",
        },
        unobservable=(_PROCESS, "whether the application took the messages from its client's buffer"),
        helps="look for the missing ack in the application; see the ack timeout",
        check=consumer_not_acking,
        many="subscriptions have consumers that hold messages and acknowledge none",
    ),
    CONSUMER_EXPIRING,
    MESSAGE_HELD,
    CURSOR_MOVED_FORWARD,
    Rule(
        area=RuleArea.SUBSCRIPTION,
        severity="warning",
        holds="a key-shared subscription with two consumers or more is late, and half or more of its oldest unread "
        "messages have one key",
        evidence={
            "key_messages": "of that key",
            "sampled_messages": "of the unread messages that were looked at, the oldest ones",
            "sampled_all": "whether that were all",
            "keys": "different keys among them",
        },
        unobservable=("how long the application works on a message of that key",),
        helps="split the key",
        check=hot_key,
        many="subscriptions wait for one key",
    ),
    Rule(
        area=RuleArea.SUBSCRIPTION,
        severity="warning; info while it is soon over",
        holds="part of the window brought three times the typical number of messages or more, which explains half of "
        "the lag, and the consumers work",
        evidence={
            "burst_messages": "above the typical",
            "peak_rate, typical_rate": "messages a second",
            "eta_s": "until caught up",
        },
        unobservable=("whether more of it comes",),
        helps="wait, or add consumers",
        check=produce_burst,
        many="subscriptions work on a burst",
    ),
    Rule(
        area=RuleArea.SUBSCRIPTION,
        severity="warning",
        holds="the status is FALLING_BEHIND, SLOW, AT_RISK or DATA_LOST, consumers acknowledge, and neither a burst nor "
        "a hot key nor a rewind explains it",
        evidence={
            "produce_rate, consume_rate": "messages a second, over the window",
            "lag_per_s, lag_per_s_low": "growth of the lag, and its lower bound",
            "dispatch_rate_limit": "the policy that holds it back, if it does",
        },
        unobservable=("how busy the consumers' machines are", _PROCESS),
        helps="add consumers or partitions, or lift the limit",
        check=consumer_slow,
        many="subscriptions are read more slowly than messages come",
    ),
    Rule(
        area=RuleArea.SUBSCRIPTION,
        severity="warning",
        holds="messages were dead-lettered in the window",
        evidence={
            "dead_lettered": "since the broker started",
            "dead_lettered_in_window": "in the window",
            "dead_letter_topic": "where they are",
        },
        unobservable=("why the application refuses them, beyond the reason it gave",),
        helps="look at the dead letters",
        check=dead_letters_growing,
        many="subscriptions have new dead letters",
    ),
    MESSAGES_DROPPED,
    FILTER_MATCHES_NOTHING,
    RETENTION_RISK,
    CURSOR_STUCK,
    THRESHOLD_EXCEEDED,  # no cause, so after the fallback: it explains nothing
)
