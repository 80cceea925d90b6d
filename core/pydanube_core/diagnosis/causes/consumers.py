"""Causes in consumers: there are none, or they disconnect, expire, or do not answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Final

from pydanube_core.diagnosis.causes.lateness import BEHIND, PROCESS, lag_evidence, late, look_again
from pydanube_core.diagnosis.causes.messages import message_held
from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Severity, SubscriptionRule
from pydanube_core.diagnosis.lag_status import POISON_FAILURES, LagStatus
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import Departure, SubscriptionView, ago_s
from pydanube_core.facts import ConsumerFacts
from pydanube_core.units import counted

FEWEST: Final = 3  # departures that make a loop
SHARING: Final = ("shared", "key-shared")
WORKERS: Final = 3  # with two it is not known which of them is the usual one
FEWEST_ACKS: Final = 20
LATER: Final = 1.5  # times the usual absence: a job starts late now and then
SLOW_TIMES: Final = 4  # machines of one kind differ by less
IN_DANGER: Final = (LagStatus.STUCK, LagStatus.AT_RISK, LagStatus.DATA_LOST)


@partial(
    SubscriptionRule,
    severity="critical, or warning while nothing is unread",
    holds="within three windows three connections of consumers or more broke, or as many consumers went and the cursor "
    "stands where it stood, and more than twice as many as are attached",
    evidence={
        "departures, broken_connections": "how many went, and how many of them without a farewell. At most 16 are kept",
        "without_progress": "the last ones in a row that moved the cursor nowhere",
        "span_s": "since the first of them",
    },
    unobservable=("why the process ends: see its own log",),
    helps="look at the process's own log, and at the message with which it begins",
    many="subscriptions have consumers that break and come again",
)
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
    stays_s = min((view.now_ms - one.connected_at_ms for one in view.consumers), default=0) / 1000
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
            NextCall("consumers.list", {"topic": view.topic}, "see the present consumers"),
        ),
    )


@partial(
    SubscriptionRule,
    severity="warning, or info for the first 30 s (or `stuck_after`, if that is less) of mail or absence, and for 1.5 times the "
    "usual absence",
    holds="mail is unread and no consumer is attached, unless the last consumer had read everything and the mail is "
    "younger than `stuck_after`",
    evidence={
        "lag_messages": "unread messages",
        "last_consumer_left_s_ago": "null: none was seen since the broker took the topic on",
        "unread_when_it_left": "messages that the last one left unread",
        "usual_absence_s": "longest of the last absences, if each of at least three visits had read everything",
    },
    unobservable=("whether a consumer is meant to run: the broker does not see your deployments",),
    helps="start a consumer, or delete the subscription",
    many="subscriptions have unread messages and no consumer",
    of_partitions=True,
)
def no_consumers(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if view.consumers:
        return counted(len(view.consumers), "consumer is attached", "consumers are attached")
    if view.unread <= options.allowed_messages:
        return "nothing is unread"
    if consumer_crash_loop.holds_for(view, options):
        return "consumers come and go: the last one is only gone for now"
    left = view.departure
    if left is not None and left.abrupt:
        return "the last consumer did not leave: its connection broke"
    since_s = ago_s(view, None if left is None else left.at_ms)
    age_s = view.lag.age.age_s
    # A job that reads everything and comes back later is no fault until its mail is older than the patience.
    visits = left is not None and left.unread <= options.allowed_messages
    if visits and age_s is not None and age_s < options.stuck_after_s:
        return (
            f"the last consumer had read everything when it left, and the oldest message since is {age_s:.0f} s old, less "
            f"than {options.stuck_after_s:.0f} s: a job that comes and goes"
        )
    waited = [one for one in (age_s, since_s) if one is not None]
    usual_s = _usual_absence_s(view.visits, options) if visits else None
    usual = usual_s is not None and since_s is not None and since_s <= LATER * usual_s
    soon = bool(waited) and min(waited) < options.patience_s and view.status not in IN_DANGER
    expected = soon or (usual and view.status not in (LagStatus.AT_RISK, LagStatus.DATA_LOST))
    never = left is None and view.cursor_moved_ms is None
    return Finding(
        severity=Severity.INFO if expected else Severity.WARNING,
        summary=counted(view.unread, f"message of {view.log} waits", f"messages of {view.log} wait")
        + f" for subscription {view.subscription!r} and no "
        + ("consumer has come since the broker took the topic on" if left is None else f"consumer is attached; {left.name!r} left"),
        evidence={
            **lag_evidence(view),
            "consumers": 0,
            "last_consumer_left_s_ago": since_s,
            "unread_when_it_left": None if left is None else left.unread,
            "never_seen": never,
            "usual_absence_s": usual_s,
        },
        untrusted={} if left is None else {"consumer": left.name},
        next=(
            NextCall("subscriptions.list", {"topic": view.topic}, "see which subscriptions of the topic are read, and start a consumer of this one"),
            NextCall("subscriptions.delete", view.arguments, "if it is no longer needed: it keeps unread messages from being trimmed"),
        ),
    )  # fmt: skip


def _usual_absence_s(visits: Sequence[Departure], options: DiagnosisOptions) -> float | None:
    """Return the longest absence between visits that each read everything, or None if they are too few."""
    if len(visits) < FEWEST or any(one.abrupt or one.unread > options.allowed_messages for one in visits):
        return None
    return max(one.back_at_ms - one.at_ms for one in visits if one.back_at_ms is not None) / 1000


@partial(
    SubscriptionRule,
    severity="warning, or info while the consumer that holds the subscription works",
    holds=f"consumers of one name were refused {FEWEST} times or more in the window",
    evidence={
        "refused": "refusals in the window, at most 16",
        "consumer": "the name that was refused most",
        "code": "CONSUMER_BUSY: an exclusive subscription is held. LIMIT_REACHED: the maximum is attached",
        "holder": "the consumer that holds it",
        "consumers": "attached ones",
    },
    unobservable=("whether the refused one is meant to stand by",),
    helps="subscribe as failover or shared, disconnect the holder, or raise the limit",
    many="subscriptions refuse consumers",
)
def consumer_refused(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    names = Counter(one.name for one in view.refusals)
    if not names:
        return f"no consumer was refused in the last {options.window_s:.0f} s"
    name, times = names.most_common(1)[0]
    if times < FEWEST:
        return f"consumer {name!r} was refused {counted(times, 'time')}, fewer than {FEWEST}"
    last = next(one for one in reversed(view.refusals) if one.name == name)
    held = last.code == "CONSUMER_BUSY"
    works = (
        view.unread <= options.allowed_messages
        or bool(view.acknowledged.in_window)
        or late(view, options) is not None
    )
    limit = NextCall("topics.get_policies", {"topic": view.topic}, "see how many consumers may attach")
    why = f"{last.holder!r} held it" if held else f"{counted(len(view.consumers), 'is', 'are')} attached"
    return Finding(
        severity=Severity.INFO if works and held else Severity.WARNING,
        confidence=0.9,
        summary=f"consumer {name!r} of {view.log} / {view.subscription} was refused {counted(times, 'time')} within "
        f"{options.window_s:.0f} s ({last.code}): {why}; {counted(view.unread, 'message waits', 'messages wait')}",
        evidence={
            "refused": len(view.refusals),
            "refused_of_consumer": times,
            "consumer": name,
            "code": last.code,
            "holder": last.holder,
            "last_s_ago": ago_s(view, last.at_ms),
            "consumers": len(view.consumers),
            "acknowledged_in_window": view.acknowledged.in_window,
            "lag_messages": view.unread,
        },
        next=(
            NextCall("consumers.list", {"topic": view.topic}, "see who holds it"),
            *([] if held else [limit]),
        ),
    )


@partial(
    SubscriptionRule,
    holds=f"{FEWEST} deliveries or more expired in the window, half of as many messages or more were acknowledged "
    "after they had expired, and every consumer answers",
    evidence={
        "expired_in_window": "deliveries",
        "expired, answered_late": "deliveries since the start, and messages acknowledged after that",
        "redelivered_in_window": "messages that were sent again, and perhaps worked on twice",
    },
    unobservable=("how long the application works on a message",),
    helps="raise the ack timeout above the longest work on a message",
    many="subscriptions have an ack timeout that is shorter than the work",
)
def ack_timeout_short(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    expired = view.unanswered
    if expired.in_window < FEWEST:
        return f"{counted(expired.in_window, 'delivery', 'deliveries')} expired in the last {options.window_s:.0f} s"
    if 2 * view.answered_late < expired.total:
        late_ones = counted(view.answered_late, "message was", "messages were")
        return f"{late_ones} acknowledged after they had expired, of {expired.total} deliveries that did"
    mute = [one for one in view.consumers if one.answered_at_ms is None or one.standing != "answering"]
    if mute:
        return f"consumer {mute[0].name!r} answers nothing"
    return Finding(
        confidence=0.85,
        summary=f"messages of {view.log} / {view.subscription} are acknowledged after their ack timeout: "
        f"{counted(expired.in_window, 'delivery', 'deliveries')} expired within {options.window_s:.0f} s, and "
        f"{counted(view.redelivered.in_window, 'message was', 'messages were')} sent again",
        evidence={
            "expired_in_window": expired.in_window,
            "expired": expired.total,
            "answered_late": view.answered_late,
            "redelivered_in_window": view.redelivered.in_window,
            "acknowledged_in_window": view.acknowledged.in_window,
            "consumers": len(view.consumers),
            "lag_messages": view.unread,
        },
        next=(
            NextCall(
                "subscriptions.get_failure_policy",
                view.arguments,
                "see the ack timeout. set_failure_policy with a larger ack_timeout_ms ends it",
            ),
            NextCall("consumers.list", {"topic": view.topic}, "see who answers"),
        ),
    )


@partial(
    SubscriptionRule,
    severity="warning, or info while nothing is late",
    holds=f"of {WORKERS} consumers or more, one acknowledged less than a quarter of the others' median, has the median of "
    f"their handling times {SLOW_TIMES} times or more, and holds messages, as many as they do at least. All together "
    f"acknowledged {FEWEST_ACKS} or more",
    evidence={
        "consumer": "its name",
        "handling_p50_ms, others_handling_p50_ms": "median of its handling times, and that of the others. Null if it "
        "acknowledged nothing",
        "acked, others_acked": "messages in the last one to two minutes, of the others the median",
        "in_flight, held_s": "messages it holds, and how long the oldest of them",
        "handling_from": "`taken` by the application, or `sent`: with the wait in the client's buffer",
    },
    unobservable=("its machine and its process",),
    helps="look at that consumer's machine and log. A smaller credit leaves the others more",
    many="subscriptions have one consumer that is much slower than the others",
)
def worker_slow(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if view.type not in SHARING:
        return f"the subscription is {view.type}: its consumers do not share messages"
    if len(view.consumers) < WORKERS:
        attached = counted(len(view.consumers), "consumer is attached", "consumers are attached")
        return f"{attached}, too few to compare"
    acked = sum(one.acked for one in view.consumers)
    if acked < FEWEST_ACKS:
        return f"the consumers acknowledged {counted(acked, 'message')} lately, too few to compare"
    slow = max(view.consumers, key=_handling_ms)
    others = [one for one in view.consumers if one is not slow]
    usual_ms = median(_handling_ms(one) for one in others)
    usual_acked, usual_held = median(one.acked for one in others), median(one.in_flight for one in others)
    spent_ms = _handling_ms(slow)
    if spent_ms < SLOW_TIMES * max(1.0, usual_ms):
        return f"the slowest consumer, {slow.name!r}, takes {spent_ms:.0f} ms a message, the others {usual_ms:.0f} ms"
    if SLOW_TIMES * slow.acked >= usual_acked:
        return f"the slowest consumer, {slow.name!r}, acknowledged {slow.acked} messages, the others {usual_acked:.0f} each"
    if not slow.in_flight or slow.in_flight < usual_held:
        return f"the slowest consumer, {slow.name!r}, holds {slow.in_flight} messages, the others {usual_held:.0f} each"
    keyed = view.type == "key-shared"
    if keyed and not slow.handling_from_taken:
        return "handling times include the wait in the client's buffer, and keys bind messages to consumers"
    on_time = late(view, options)
    return Finding(
        severity=Severity.WARNING if on_time is None else Severity.INFO,
        confidence=0.9 if slow.handling_from_taken else 0.75,
        summary=f"consumer {slow.name!r} of {view.log} / {view.subscription} takes {spent_ms / 1000:.2f} s a message, the "
        f"other {len(others)} take {usual_ms / 1000:.2f} s: it acknowledged {slow.acked} lately and holds {slow.in_flight}; "
        + (on_time or f"{counted(view.unread, 'message is', 'messages are')} unread, and late"),
        evidence={
            **lag_evidence(view),
            "consumer": slow.name,
            "handling_p50_ms": slow.handling_p50_ms,
            "others_handling_p50_ms": usual_ms,
            "acked": slow.acked,
            "others_acked": usual_acked,
            "in_flight": slow.in_flight,
            "held_s": slow.oldest_in_flight_s,
            "handling_from": "taken" if slow.handling_from_taken else "sent",
            "consumers": len(view.consumers),
        },
        next=(
            NextCall(
                "consumers.list",
                {"topic": view.topic, "subscription": view.subscription},
                "compare handling times, and see its host",
            ),
            NextCall(
                "consumers.disconnect",
                {"id": slow.consumer_id},
                "give its messages to the others. It may connect again",
            ),
        ),
    )


def _handling_ms(one: ConsumerFacts) -> float:
    """Return the median of a consumer's handling times, or for how long it holds a message without having acknowledged any."""
    if one.handling_p50_ms is not None:
        return one.handling_p50_ms
    return 1000 * (one.oldest_in_flight_s or 0.0)


def _silent(view: SubscriptionView, consumer: ConsumerFacts, options: DiagnosisOptions) -> bool:
    """Return whether a consumer holds messages, and has not answered within the patience."""
    if not consumer.in_flight or consumer.heard_at_ms is None:
        return False
    sent_s = consumer.oldest_in_flight_s
    return (
        view.now_ms - consumer.heard_at_ms >= options.stuck_after_s * 1000
        and sent_s is not None
        and sent_s * 1000 >= min(options.stuck_after_s * 1000, view.now_ms - consumer.heard_at_ms)
    )


@partial(
    SubscriptionRule,
    severity="critical, or warning while others are attached",
    holds="the last consumer's connection broke without a farewell and mail is unread, or a consumer that used to "
    "answer holds messages and has answered nothing for `stuck_after`",
    evidence={
        "consumer": "its name",
        "connection": "broken or open",
        "seconds_ago, silent_s": "since when",
        "in_flight, in_flight_when_it_broke": "messages it held",
    },
    unobservable=("whether the process died or its network did",),
    helps="restart the consumer. Its messages go to others without help",
    many="subscriptions have lost the connection of their consumer",
)
def consumer_dead(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    left = view.departure
    if consumer_crash_loop.holds_for(view, options):
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
                **lag_evidence(view),
                "consumer": left.name,
                "connection": "broken",
                "seconds_ago": ago_s(view, left.at_ms),
                "in_flight_when_it_broke": left.in_flight,
                "consumers": 0,
            },
            next=(look_again(view),),
        )
    dead = [one for one in view.consumers if _silent(view, one, options) and one.answered_at_ms is not None]
    if not dead:
        return f"every consumer that holds messages was heard of within {options.stuck_after_s:.0f} s, or has never answered any"
    if message_held.holds_for(view, options):
        return "messages after the held ones are acknowledged: it has no other messages to answer"
    working = [
        one for one in view.consumers if one not in dead and one.active and one.answered_at_ms is not None
    ]
    if working and late(view, options) is not None:
        silent = counted(len(dead), "consumer is silent", "consumers are silent")
        return f"{silent}, the others read everything in time"
    worst = max(dead, key=lambda one: one.in_flight)
    return Finding(
        severity=Severity.CRITICAL if len(dead) == len(view.consumers) else Severity.WARNING,
        confidence=0.8,
        summary=f"consumer {worst.name!r} of {view.log} / {view.subscription} holds {counted(worst.in_flight, 'message')}, had "
        f"been answering, and has answered nothing for {ago_s(view, worst.heard_at_ms):.0f} s",
        evidence={
            **lag_evidence(view),
            "consumer": worst.name,
            "connection": "open",
            "silent_s": ago_s(view, worst.heard_at_ms),
            "last_answer_s_ago": ago_s(view, worst.answered_at_ms),
            "in_flight": sum(one.in_flight for one in dead),
            "silent_consumers": len(dead),
            "consumers": len(view.consumers),
        },
        unobservable=(PROCESS,),
        next=(look_again(view),),
    )


@partial(
    SubscriptionRule,
    holds="consumers hold messages, and for `stuck_after` nothing was acknowledged. If the lag grows, 30 s or twice their "
    "longest pause suffice",
    evidence={
        "in_flight": "messages held",
        "held_s": "how long the oldest of them",
        "acknowledged_in_window": "acknowledgements in the window",
        "failed_in_window": "nacks and ack timeouts in the window",
    },
    unobservable=(PROCESS, "whether the application took the messages from its client's buffer"),
    helps="look for the missing ack in the application, and see the ack timeout",
    many="subscriptions have consumers that hold messages and acknowledge none",
)
def consumer_not_acking(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if not view.consumers:
        return "no consumer is attached"
    on_time = late(view, options)
    if on_time is not None:
        return on_time
    if not view.state.in_flight:
        return "nothing is in flight"
    if message_held.holds_for(view, options):
        return "messages after the held ones are acknowledged"
    pace = view.lag.pace
    stands = pace is not None and pace.stands and view.status in BEHIND and view.lag.measured_until_ms is None
    least_s = options.patience_s if stands else options.stuck_after_s
    quiet_s = options.window_s
    if view.acknowledged.in_window and view.acknowledged.last_ms is not None:
        quiet_s = (view.now_ms - view.acknowledged.last_ms) / 1000
        if quiet_s < least_s:
            return f"the last acknowledgement came {quiet_s:.0f} s ago"
    if (
        view.head_of_line is not None
        and (view.head_of_line.blocked or view.head_of_line.failures >= POISON_FAILURES)
        and view.head_of_line.reason != "ack timeout"
    ):
        return f"the message at offset {view.head_of_line.offset} is given back as failed: it is answered"
    holding = [one for one in view.consumers if one.in_flight]
    if any(_silent(view, one, options) and one.answered_at_ms is not None for one in holding):
        return "the consumer that holds messages used to answer and is silent altogether"
    held_s = max((one.oldest_in_flight_s or 0.0 for one in holding), default=0.0)
    since_ms = max((one.connected_at_ms for one in holding), default=view.now_ms)
    waited_s = ago_s(view, since_ms) or 0.0
    if waited_s < least_s or max(held_s, view.lag.age.age_s or 0.0) < least_s:
        return f"messages have been held for {held_s:.0f} s, less than {least_s:.0f} s"
    worst = max(holding, key=lambda one: one.in_flight)
    return Finding(
        confidence=0.85 if worst.answered_at_ms is None else 0.75,
        summary=f"{'a consumer' if len(holding) == 1 else f'{len(holding)} consumers'} of {view.log} / {view.subscription} "
        f"{'holds' if len(holding) == 1 else 'hold'} {counted(view.state.in_flight, 'message')}, and nothing was "
        f"acknowledged for {quiet_s:.0f} s",
        evidence={
            **lag_evidence(view),
            "in_flight": view.state.in_flight,
            "acknowledged_in_window": view.acknowledged.in_window,
            "failed_in_window": view.failed.in_window,
            "consumers": len(view.consumers),
            "consumer": worst.name,
            "held_s": held_s,
            "credit_messages": worst.credit_messages,
        },
        next=(
            look_again(view),
            NextCall(
                "subscriptions.get_failure_policy",
                view.arguments,
                "see after how long an unanswered message goes to another consumer",
            ),
        ),
    )


@partial(
    SubscriptionRule,
    severity="warning, or critical if no other consumer answers and messages are unread",
    holds="a consumer let deliveries expire and has answered none since, while no more messages behind the cursor's are "
    "acknowledged than are unread, or it is set aside because it takes nothing",
    evidence={
        "expired_unanswered": "deliveries since its last answer",
        "standing": "`set_aside`, `on_trial`, or `answering` where no other consumer takes its messages",
        "standing_s": "for how long. Null if it is sent messages as usual",
        "set_aside": "consumers that are",
        "expiring_consumers, consumers": "how many of how many",
    },
    unobservable=(PROCESS,),
    helps="end or mend the process, or raise the ack timeout if it is only slow",
    many="subscriptions have consumers that let deliveries expire",
)
def consumer_expiring(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if ack_timeout_short.holds_for(view, options):
        return "expired messages are acknowledged later: the ack timeout is shorter than the work"
    found = [one for one in view.consumers if one.expired or one.standing != "answering"]
    if not found:
        return "no consumer let a delivery expire since it answered last, and none is set aside"
    worst = max(found, key=lambda one: one.expired)
    aside = [one for one in found if one.standing != "answering"]
    alone = len(found) == len(view.consumers)
    above = view.state.acked_above
    if alone and not aside and above > view.unread:
        behind = counted(above, "message behind the cursor's is", "messages behind the cursor's are")
        return f"{behind} acknowledged: only {view.unread} of many expire"
    goes_on = "goes on being sent messages" + (", because no other consumer takes them" if alone else "")
    what = "is set aside" if worst in aside else goes_on
    did = f"let {counted(worst.expired, 'delivery', 'deliveries')} expire and has answered nothing since"
    if not worst.expired:
        did = "took none of the messages in its client's buffer for a whole ack timeout"
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
            NextCall("consumers.list", {"topic": view.topic}, "see which consumers are set aside"),
            NextCall(
                "consumers.disconnect",
                {"id": worst.consumer_id},
                "end its connection, so that a live process starts again",
            ),
            NextCall(
                "subscriptions.get_failure_policy",
                view.arguments,
                "see whether the ack timeout is shorter than the work on a message",
            ),
        ),
    )
