"""Causes in messages: one that fails or is held, blocked keys, dead letters."""

from __future__ import annotations

from functools import partial
from typing import Final

from pydanube_core.diagnosis.causes.lateness import lag_evidence, late, look_again
from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Severity, SubscriptionRule
from pydanube_core.diagnosis.lag_status import POISON_FAILURES, LagStatus
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import SubscriptionView, ago_s
from pydanube_core.units import counted

HOT_SHARE: Final = 0.5  # of the messages sampled
FEWEST_SAMPLED: Final = 20


def _peek(view: SubscriptionView) -> NextCall:
    return NextCall(
        "messages.peek",
        {"topic": view.log, "from": f"offset:{view.state.oldest_unread}", "limit": 1},
        "look at the message that the cursor waits for",
    )


FEWEST_FAILING: Final = 10  # different messages: fewer may be bad themselves


@partial(
    SubscriptionRule,
    severity="critical",
    holds=f"{FEWEST_FAILING} different messages or more were given back as failed, one of them twice or taken away by the "
    "failure policy, and none was acknowledged in the window",
    evidence={
        "failing": "different messages that were given back as failed and are open, among the first ones",
        "failed_in_window, acknowledged_in_window": "of the window",
        "dead_lettered_in_window, dropped_in_window": "of them, those that the failure policy took away",
    },
    unobservable=("why the application fails: see its own log",),
    helps="mend the application or its dependencies. Do not skip messages, because all of them fail",
    many="subscriptions fail on every message",
)
def everything_fails(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    gone = view.dead_lettered.in_window + view.dropped.in_window
    failing = view.failing + gone
    if min(failing, view.failed.in_window) < FEWEST_FAILING:
        return counted(failing, "message was", "different messages were") + " given back as failed"
    if view.acknowledged.in_window:
        acknowledged = counted(view.acknowledged.in_window, "other message was", "other messages were")
        return f"{acknowledged} acknowledged in the last {options.window_s:.0f} s"
    worst = view.head_of_line
    if not gone and (worst is None or (worst.failures < 2 and not worst.blocked)):
        return f"{counted(failing, 'message was', 'different messages were')} given back once, and not sent again yet"
    return Finding(
        severity=Severity.CRITICAL,
        confidence=0.95,
        summary=f"consumers of {view.log} / {view.subscription} fail on every message: "
        f"{counted(failing, 'different message was', 'different messages were')} given back as failed, and none was "
        f"acknowledged in the last {options.window_s:.0f} s",
        evidence={
            "failing": view.failing,
            "failed_in_window": view.failed.in_window,
            "acknowledged_in_window": 0,
            "dead_lettered_in_window": view.dead_lettered.in_window,
            "dropped_in_window": view.dropped.in_window,
            "consumers": len(view.consumers),
            "lag_messages": view.unread,
        },
        untrusted={} if worst is None else {"reason": worst.reason},
        next=(
            NextCall(
                "consumers.list",
                {"topic": view.topic},
                "see the consumers, and stop this one until it is mended",
            ),
            _peek(view),
            NextCall(
                "subscriptions.get_failure_policy",
                view.arguments,
                "see when the policy takes failed messages away: they can be replayed once it works again",
            ),
        ),
    )


@partial(
    SubscriptionRule,
    severity="critical if it blocks, warning from its third failure, info if the policy will remove it",
    holds="one message blocks, or was given back as failed three times or more",
    evidence={
        "offset": "of the message",
        "failures": "how often it was given back or terminated",
        "deliveries": "how often it was sent",
        "blocked": "whether it stops the subscription",
    },
    unobservable=("which part of the message the application cannot process",),
    helps="look at the message. Skip it, or let messages that fail too often be dead-lettered",
    many="subscriptions have a message that fails again and again",
)
def poison_message(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    worst = view.head_of_line
    if everything_fails.holds_for(view, options):
        return "every message fails: it is not this one"
    if worst is None or (not worst.blocked and worst.failures < POISON_FAILURES):
        return "no message has failed three times" if worst is None else (
            f"the message that failed most, offset {worst.offset}, did so {counted(worst.failures, 'time')}"
        )  # fmt: skip
    if worst.reason == "ack timeout" and not worst.blocked:
        return f"offset {worst.offset} came back {counted(worst.failures, 'time')} unanswered, not as failed"
    handled = view.poison_policy != "block" and not worst.blocked
    return Finding(
        severity=Severity.INFO if handled else Severity.CRITICAL if worst.blocked else Severity.WARNING,
        confidence=1.0 if worst.blocked else 0.9,
        summary=f"the message at offset {worst.offset} of {view.log} has failed {counted(worst.failures, 'time')} for "
        f"{view.subscription!r}" + (" and blocks the subscription" if worst.blocked else ""),
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
            NextCall(
                "messages.peek",
                {"topic": view.log, "from": f"offset:{worst.offset}", "limit": 1},
                "look at the message",
            ),
            NextCall(
                "subscriptions.skip",
                {**view.arguments, "topic": view.log, "offsets": str(worst.offset)},
                "pass over it once it is understood",
            ),
            NextCall(
                "subscriptions.set_failure_policy",
                {**view.arguments, "poison_policy": "dead_letter"},
                "let messages that fail too often go to a dead-letter topic",
            ),
        ),
    )


@partial(
    SubscriptionRule,
    holds="the status is STUCK, consumers are attached, and more messages behind the cursor's are acknowledged than "
    "are held",
    evidence={
        "offset": "of the message that the cursor waits for",
        "acknowledged_above": "messages behind it that are acknowledged",
        "held_s, consumer": "how long the oldest message is held, and by which consumer. Null if none is held",
        "deliveries": "how often it was sent, if it came back",
    },
    unobservable=("how the consumer's process handles the message",),
    helps="look at the message. Mend the program that forgets it, or let an ack timeout send it again",
    many="subscriptions wait for one message while later ones are acknowledged",
)
def message_held(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if view.status is not LagStatus.STUCK:
        return f"the lag's status is {view.status.value}, {_cursor_words(view)}"
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
        confidence=0.9,
        summary=f"the cursor of {view.log} / {view.subscription} waits at offset {view.state.oldest_unread}: "
        f"{counted(above, 'message behind it is', 'messages behind it are')} acknowledged, it is not"
        + (f"; consumer {holder.name!r} has held a message longest" if held and holder.in_flight else ""),
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


def _cursor_words(view: SubscriptionView) -> str:
    """Return when the cursor moved, in words."""
    moved_s = ago_s(view, view.cursor_moved_ms)
    return (
        "and the cursor was not seen to move"
        if moved_s is None
        else f"and the cursor moved {moved_s:.0f} s ago"
    )


@partial(
    SubscriptionRule,
    severity="warning, or info for the first minute (or twice `stuck_after`, if that is less)",
    holds="the oldest unread message is 30 s old (or `stuck_after`, if that is less), the cursor stands as long, later "
    "messages are acknowledged, and it is held, or came back unanswered",
    evidence={
        "offset": "of the message that the cursor waits for",
        "still_s": "for how long",
        "acknowledged_above": "messages behind it that are acknowledged",
        "deliveries": "how often it was sent, if it came back",
        "consumer, held_s": "the consumer that holds the oldest message, and how long. Null if none is held",
    },
    unobservable=("how the consumer's process handles the message",),
    helps="look at the message, and at the consumer that holds it",
    many="subscriptions wait for one message that is held",
)
def head_held(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    offset, above = view.state.oldest_unread, view.state.acked_above
    if not view.consumers:
        return "no consumer is attached"
    if not above:
        return "no message behind the cursor's is acknowledged"
    age_s = view.lag.age.age_s
    still_s = min(one for one in (age_s, ago_s(view, view.cursor_moved_ms), float("inf")) if one is not None)
    if age_s is None or still_s < options.patience_s:
        return f"the oldest unread message is {'of unknown age' if age_s is None else f'{age_s:.0f} s old'}, {_cursor_words(view)}"
    if message_held.holds_for(view, options):
        return "message_held says it"
    worst = view.head_of_line
    at_head = worst if worst is not None and worst.offset == offset else None
    if at_head is not None and at_head.reason != "ack timeout":
        return f"the message at offset {offset} is given back as failed: it is answered"
    if at_head is None and not view.state.in_flight:
        return f"nothing is in flight, and offset {offset} did not come back"
    holder = max(view.consumers, key=lambda one: one.oldest_in_flight_s or 0.0)
    held = bool(holder.in_flight)
    again = f", {counted(at_head.deliveries, 'time')} sent and not answered" if at_head is not None else ""
    return Finding(
        severity=Severity.WARNING if still_s >= 2 * options.patience_s else Severity.INFO,
        confidence=0.8,
        summary=f"the cursor of {view.log} / {view.subscription} has waited at offset {offset} for {still_s:.0f} s{again}: "
        f"{counted(above, 'message behind it is', 'messages behind it are')} acknowledged",
        evidence={
            "offset": offset,
            "still_s": still_s,
            "acknowledged_above": above,
            "in_flight": view.state.in_flight,
            "deliveries": None if at_head is None else at_head.deliveries,
            "consumer": holder.name if held else None,
            "held_s": holder.oldest_in_flight_s if held else None,
            "lag_messages": view.unread,
        },
        next=(
            _peek(view),
            NextCall("consumers.list", {"topic": view.topic}, "see who holds messages"),
            NextCall(
                "subscriptions.get_failure_policy",
                view.arguments,
                "see after how long a message that is not answered is sent again",
            ),
        ),
    )


@partial(
    SubscriptionRule,
    holds="the status is STUCK, and no other rule explains it",
    evidence={
        "reason": "the reason of the status: `nothing_in_flight`, `no_ack`, `head_of_line`, …",
        "cursor_still_s": "for how long",
        "credit_messages": "messages that the consumers still accept",
        "failures": "of the message at the cursor",
    },
    unobservable=("whether its consumers could take more than their credit",),
    helps="look at the consumers and at the message at the cursor",
    many="subscriptions have a cursor that does not move",
    fallback=True,
)
def cursor_stuck(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if view.status is not LagStatus.STUCK:
        return f"the lag's status is {view.status.value}"
    if not view.consumers:
        return "no consumer is attached to move it"
    reason = view.lag.stuck_reason
    worst = view.head_of_line
    failed = None if worst is None or worst.offset != view.state.oldest_unread else worst
    return Finding(
        confidence=0.6,
        summary=f"the cursor of {view.log} / {view.subscription} does not move: {counted(view.unread, 'message waits', 'messages wait')} from offset "
        f"{view.state.oldest_unread}"
        + ("" if failed is None else f", which has failed {counted(failed.failures, 'time')}"),
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
            "failures": None if failed is None else failed.failures,
        },
        untrusted={} if failed is None else {"reason": failed.reason},
        next=(
            NextCall(
                "consumers.list", {"topic": view.topic}, "see the attached consumers and their messages"
            ),
            _peek(view),
        ),
    )


@partial(
    SubscriptionRule,
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
    many="subscriptions wait for one key",
)
def hot_key(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    if view.type != "key-shared":
        return f"the subscription is {view.type}: keys do not bind messages to consumers"
    if len(view.consumers) < 2:
        attached = counted(len(view.consumers), "consumer is attached", "consumers are attached")
        return f"{attached}: a key keeps no consumer from helping"
    on_time = late(view, options)
    if on_time is not None:
        return on_time
    keys = view.keys
    if keys is None or keys.sampled < FEWEST_SAMPLED:
        return "too few unread messages are at hand to compare their keys"
    share = keys.messages / keys.sampled
    if share < HOT_SHARE or share < 1.5 / len(view.consumers):
        return f"the most frequent key has {keys.messages} of {keys.sampled} unread messages"
    return Finding(
        confidence=0.9,
        summary=f"one key holds {keys.messages} of {keys.sampled} unread messages of {view.topic} / "
        f"{view.subscription}: only one of {len(view.consumers)} consumers may work on them",
        evidence={
            **lag_evidence(view),
            "key_messages": keys.messages,
            "sampled_messages": keys.sampled,
            "sampled_all": keys.sampled >= view.unread,
            "share": round(share, 3),
            "keys": keys.keys,
            "consumers": len(view.consumers),
        },
        untrusted={"key": keys.key},
        next=(
            NextCall(
                "topics.describe",
                {"topic": view.topic},
                "see the producers, and give the key more parts (for example key:0 to key:7)",
            ),
            look_again(view),
        ),
    )


@partial(
    SubscriptionRule,
    holds="messages were dead-lettered in the window",
    evidence={
        "dead_lettered": "since the broker started",
        "dead_lettered_in_window": "in the window",
        "dead_letter_topic": "where they are",
    },
    unobservable=("why the application refuses them, beyond the reason it gave",),
    helps="look at the dead letters",
    many="subscriptions have new dead letters",
)
def dead_letters_growing(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    count = view.dead_lettered
    if not count.in_window:
        return f"no message was dead-lettered in the last {options.window_s:.0f} s ({count.total} since the start)"
    return Finding(
        summary=counted(count.in_window, f"message of {view.log} was", f"messages of {view.log} were")
        + f" dead-lettered for {view.subscription!r} within "
        f"{options.window_s:.0f} s",
        evidence={
            "dead_lettered": count.total,
            "dead_lettered_in_window": count.in_window,
            "failed_in_window": view.failed.in_window,
            "last_s_ago": ago_s(view, count.last_ms),
            "dead_letter_topic": view.dead_letter_topic,
        },
        next=(NextCall("dead_letters.list", view.arguments, "see each with the reason of its failure"),),
    )


@partial(
    SubscriptionRule,
    holds="the poison policy is `drop`, and messages were dropped in the window",
    evidence={
        "dropped": "since the broker started",
        "dropped_in_window": "in the window",
        "poison_policy, max_redelivery_count": "the policy that drops them, and after how many failures",
    },
    unobservable=("why the application refuses them, beyond the reason it gave",),
    helps="let messages that fail too often be dead-lettered",
    many="subscriptions drop messages by their failure policy",
)
def messages_dropped(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    count = view.dropped
    if view.poison_policy != "drop":
        return f"the poison policy is {view.poison_policy}: nothing is dropped by it now"
    if not count.in_window:
        return f"no message was dropped in the last {options.window_s:.0f} s ({count.total} since the start)"
    return Finding(
        summary=counted(count.in_window, f"message of {view.log} was", f"messages of {view.log} were")
        + f" dropped for {view.subscription!r} within "
        f"{options.window_s:.0f} s, unread: they failed more than {counted(view.max_redelivery_count, 'time')} or were given up, "
        "and its failure policy is to drop",
        evidence={
            "dropped": count.total,
            "dropped_in_window": count.in_window,
            "failed_in_window": view.failed.in_window,
            "last_s_ago": ago_s(view, count.last_ms),
            "poison_policy": view.poison_policy,
            "max_redelivery_count": view.max_redelivery_count,
        },
        next=(
            NextCall(
                "subscriptions.set_failure_policy",
                {**view.arguments, "poison_policy": "dead_letter"},
                "keep messages that fail from now on in a dead-letter topic",
            ),
            NextCall(
                "subscriptions.get_failure_policy",
                view.arguments,
                "see after how many failures, and how soon, a message is dropped",
            ),
        ),
    )


@partial(
    SubscriptionRule,
    holds="messages of the window were passed over because no consumer's key filter accepts their key, and none was "
    "accepted",
    evidence={
        "passed_over, passed_over_in_window": "messages that count as read, since the broker started and in the window",
        "acknowledged_in_window": "0: none was accepted",
    },
    unobservable=("which keys the filters were meant for",),
    helps="correct the filters, then go back with `subscriptions.seek`",
    many="subscriptions have key filters that accept nothing",
)
def filter_matches_nothing(view: SubscriptionView, options: DiagnosisOptions) -> Outcome:
    passed = view.unrouted
    if not passed.in_window:
        return "no message was passed over for its key"
    if view.acknowledged.in_window or view.state.in_flight:
        over = counted(passed.in_window, "message was passed over", "messages were passed over")
        return f"{over} by key, and {counted(view.acknowledged.in_window, 'was', 'were')} accepted"
    return Finding(
        confidence=0.9,
        summary=f"the key filters of {view.log} / {view.subscription} accept nothing: "
        f"{counted(passed.in_window, 'message counts', 'messages count')} as read within {options.window_s:.0f} s, and none was acknowledged or is held",
        evidence={
            "passed_over": passed.total,
            "passed_over_in_window": passed.in_window,
            "acknowledged_in_window": view.acknowledged.in_window,
            "consumers": len(view.consumers),
            "lag_messages": view.unread,
        },
        next=(
            NextCall(
                "messages.peek",
                {"topic": view.log, "from": "earliest", "limit": 10},
                "compare the messages' keys with the consumers' filters",
            ),
            NextCall("consumers.list", {"topic": view.topic}, "see whose filters they are"),
        ),
    )
