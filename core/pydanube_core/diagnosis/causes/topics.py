"""Causes in topics: what keeps messages from coming in, or brings too many."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Severity, TopicRule
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import NO_COUNT, Count, TopicView, ago_s
from pydanube_core.units import counted

SIZE_CODES: Final = ("MESSAGE_TOO_LARGE", "BATCH_TOO_LARGE")
LIMIT_CODES: Final = ("LIMIT_REACHED",)
THROTTLE_CODES: Final = ("RATE_LIMITED",)
SCHEMA_CODES: Final = ("SCHEMA_MISMATCH", "PAYLOAD_INVALID", "SCHEMA_NOT_FOUND")
STEADY_SAMPLES: Final = 5  # a stretch shorter than so many samples is a burst or a batch, not a flow
SILENCE_TIMES: Final = 4.0  # the longest gap of the flow
SILENCE_SHARE: Final = 0.1  # of the time it flowed: a flow of an hour may pause for minutes
MANY_SESSIONS: Final = 50  # of one topic: fewer may be meant
SESSION_TIMES: Final = 4
RISES: Final = 4  # looks at which there are more: a deployment of many comes at once
LEAST_BURST: Final = 100  # messages: a smaller burst is no news
CLOCK_OFF_S: Final = 60.0
STEADY_CLOCK_S: Final = 10.0  # what waited for the broker was published at one time and appended at many
_WHO: Final = "which program sends them: a refused message is not kept"
_COUNTED: Final = {
    "refused_publishes": "batches or calls refused since the broker started",
    "refused_publishes_in_window, refused_messages_in_window": "of the window",
}


def refusals(counts: Mapping[str, Count], codes: tuple[str, ...]) -> Count:
    """The sum of the counts of some codes."""
    found = [counts.get(code, NO_COUNT) for code in codes]
    return Count(
        total=sum(count.total for count in found),
        in_window=sum(count.in_window for count in found),
        last_ms=max((count.last_ms for count in found if count.last_ms is not None), default=None),
    )


def _evidence(view: TopicView, refused: Count, codes: tuple[str, ...]) -> dict[str, object]:
    return {
        "refused_publishes": refused.total,
        "refused_publishes_in_window": refused.in_window,
        "refused_messages_in_window": refusals(view.refused_messages, codes).in_window,
        "last_s_ago": ago_s(view, refused.last_ms),
    }


@partial(
    TopicRule,
    holds="publishes were refused for their size in the window",
    evidence={**_COUNTED, "max_message_size": "the limit in force, in bytes. Null if that of every broker"},
    unobservable=(_WHO,),
    helps="send smaller messages, or raise the policy",
    many="topics refuse messages for their size",
)
def publish_too_large(view: TopicView, options: DiagnosisOptions) -> Outcome:
    refused = refusals(view.refused, SIZE_CODES)
    if not refused.in_window:
        return f"no publish was refused for its size in the last {options.window_s:.0f} s"
    limit = view.max_message_size
    return Finding(
        summary=f"{view.log} refused {counted(refused.in_window, 'publish', 'publishes')} within {options.window_s:.0f} s for their size: "
        + (f"its policy max_message_size is {limit} bytes" if limit else "no policy bounds it now, so they were larger than a broker takes"
           " at all, or the policy was lifted since"),
        evidence={**_evidence(view, refused, SIZE_CODES), "max_message_size": limit or None},
        next=(
            NextCall("topics.get_policies", {"topic": view.topic}, "see max_message_size, and where it comes from"),
            *(NextCall("topics.set_policies", {"topic": view.topic, "policies": {"max_message_size": 0}}, "lift it, if messages may be that large") for _ in range(bool(limit))),
        ),
    )  # fmt: skip


@partial(
    TopicRule,
    holds="producers were refused in the window because there may be no more",
    evidence={**_COUNTED, "producers": "connected now", "max_producers_per_topic": "the quota"},
    unobservable=("whether those that are connected are still needed",),
    helps="end producers that are not needed, or raise the quota",
    many="topics turn producers away for their quota",
)
def producer_limit(view: TopicView, options: DiagnosisOptions) -> Outcome:
    refused = refusals(view.refused, LIMIT_CODES)
    if not refused.in_window:
        return f"no producer was turned away for a limit in the last {options.window_s:.0f} s"
    limit = view.max_producers
    return Finding(
        confidence=1.0 if limit else 0.8,
        summary=f"{view.log} turned producers away {counted(refused.in_window, 'time')} within {options.window_s:.0f} s: "
        f"{counted(view.producers, 'is connected', 'are connected')}, and "
        + (f"max_producers_per_topic is {limit}" if limit else "no policy bounds their number now"),
        evidence={
            **_evidence(view, refused, LIMIT_CODES),
            "producers": view.producers,
            "max_producers_per_topic": limit or None,
        },
        next=(
            NextCall("producers.list", {"topic": view.topic}, "see the connected producers"),
            NextCall("topics.get_policies", {"topic": view.topic}, "see the quota, and where it comes from"),
            NextCall(
                "topics.set_policies",
                {"topic": view.topic, "policies": {"max_producers_per_topic": 0}},
                "lift it, if more may write",
            ),
        ),
    )


@partial(
    TopicRule,
    holds="messages were refused for their schema in the window, or counted where the policy only warns",
    evidence={**_COUNTED, "violations_in_window": "messages by reason, also those that were let through"},
    unobservable=(_WHO,),
    helps="correct the producer, or register the version it writes",
    many="topics get messages that do not fit their schema",
)
def schema_rejections(view: TopicView, options: DiagnosisOptions) -> Outcome:
    refused = refusals(view.refused, SCHEMA_CODES)
    violations = {reason: count for reason, count in view.violations.items() if count.in_window}
    if not refused.in_window and not violations:
        return f"no message was found against its schema in the last {options.window_s:.0f} s"
    what = "refused" if refused.in_window else "let through, and counted,"
    number = (
        refusals(view.refused_messages, SCHEMA_CODES).in_window
        if refused.in_window
        else sum(count.in_window for count in violations.values())
    )
    things = (
        counted(number, "message that does", "messages that do")
        if number
        else counted(refused.in_window, "producer that does", "producers that do")
    )
    return Finding(
        summary=f"{view.log} {what} {things} not fit schema subject {view.schema_subject!r} within "
        f"{options.window_s:.0f} s",
        evidence={
            **_evidence(view, refused, SCHEMA_CODES),
            "by_code": {c: view.refused[c].in_window for c in SCHEMA_CODES
                        if c in view.refused and view.refused[c].in_window},
            "violations_in_window": {reason: count.in_window for reason, count in violations.items()},
            "validation_policy": view.validation_policy,
            "schema_subject": view.schema_subject,
        },
        next=(
            NextCall("topics.get_schema_config", {"topic": view.topic}, "see the subject and the policy that hold"),
            *(NextCall("schemas.versions", {"subject": subject}, "see which versions there are, and whether a new one was registered")
              for subject in [view.schema_subject] if subject),
        ),
    )  # fmt: skip


@partial(
    TopicRule,
    holds="publishes were refused for their rate in the window",
    evidence={**_COUNTED, "max_publish_rate": "the limit in force"},
    unobservable=("how many of them were tries of the same messages again",),
    helps="raise the limit, or slow the producer down",
    many="topics get more than their rate limit allows",
)
def publish_throttled(view: TopicView, options: DiagnosisOptions) -> Outcome:
    refused = refusals(view.refused, THROTTLE_CODES)
    if not refused.in_window:
        return f"no publish was refused for its rate in the last {options.window_s:.0f} s"
    return Finding(
        summary=f"{view.log} refused {counted(refused.in_window, 'publish', 'publishes')} within {options.window_s:.0f} s: "
        + (
            f"more than {counted(view.max_publish_rate, 'message')} a second came"
            if view.max_publish_rate
            else "more came than its rate limit allowed, which was lifted since"
        ),
        evidence={
            **_evidence(view, refused, THROTTLE_CODES),
            "max_publish_rate": view.max_publish_rate,
            "produce_rate": round(view.production.rate, 3),
        },
        next=(
            NextCall("topics.get_policies", {"topic": view.topic}, "see where the limit comes from"),
            NextCall(
                "topics.set_policies",
                {"topic": view.topic, "policies": {"max_publish_rate": 0}},
                "lift it, if the broker may take more",
            ),
        ),
    )


@partial(
    TopicRule,
    severity="warning, or info if the producer left in good order",
    holds="messages came without a long break for half a window, and then none for four times the longest break and "
    "30 s (or `stuck_after`, if that is less). Where no connection broke, also for a tenth of the time they came",
    evidence={
        "silent_s": "since the last message",
        "steady_s, steady_messages": "of the flow before",
        "longest_gap_s": "in it",
        "connection": "of the last producer: open, broken or closed",
    },
    unobservable=("whether there is anything to produce",),
    helps="look at the producer",
    many="topics have stopped to get messages",
)
def producer_stopped(view: TopicView, options: DiagnosisOptions) -> Outcome:
    flow = view.production
    if flow.last_ms is None or flow.steady_since_ms is None:
        return "nothing was published while the broker watched"
    if not view.producer_seen:
        return "no producer was here since the broker started: the messages were written by the broker, or by operations"
    steady_s = (flow.last_ms - flow.steady_since_ms) / 1000
    silence_s = max(0, view.now_ms - flow.last_ms) / 1000
    enough_s = max(STEADY_SAMPLES * options.sample_interval_s, options.window_s / 2)
    if steady_s < enough_s:
        return f"messages came for {steady_s:.0f} s in one stretch: too short to call it a flow"
    left = view.departure
    patience_s = max(options.patience_s, SILENCE_TIMES * flow.longest_gap_s)
    if left is None or not left.abrupt:  # no connection broke: it may only pause
        patience_s = max(patience_s, min(options.stuck_after_s, SILENCE_SHARE * steady_s))
    if silence_s < patience_s:
        return f"the last message came {silence_s:.0f} s ago, and patience lasts {patience_s:.0f} s"
    finished = not view.producers and left is not None and not left.abrupt
    if any(
        count.last_ms is not None and view.now_ms - count.last_ms < silence_s * 1000 and count.in_window
        for count in view.refused.values()
    ):
        return "publishes come and are refused: the producers have not stopped"
    if finished:
        how = "its producer left in good order"
    elif view.producers:
        how = counted(view.producers, "producer is", "producers are") + " connected and silent"
    elif left is not None:
        how = f"the connection of producer {left.name!r} broke"
    else:
        how = "no producer is connected"
    return Finding(
        severity=Severity.INFO if finished else Severity.WARNING,
        confidence=0.5 if finished else 0.7 if view.producers else 0.9,
        summary=f"{view.log} got messages without a break longer than {flow.longest_gap_s:.1f} s for {steady_s:.0f} s, "
        f"and none for {silence_s:.0f} s: {how}",
        evidence={
            "silent_s": silence_s,
            "steady_s": steady_s,
            "steady_messages": flow.steady_messages,
            "longest_gap_s": flow.longest_gap_s,
            "producers": view.producers,
            "producer": None if left is None else left.name,
            "connection": "open"
            if view.producers
            else None
            if left is None
            else "broken"
            if left.abrupt
            else "closed",
        },
        next=(
            NextCall("producers.list", {"topic": view.topic}, "see the connected producers"),
            NextCall("topics.describe", {"topic": view.topic}, "see whether it grows again"),
        ),
    )


@partial(
    TopicRule,
    holds=f"{MANY_SESSIONS} producers or more are connected, {SESSION_TIMES} times as many as at the window's start, and "
    f"their number rose in {RISES} looks or more and never fell",
    evidence={
        "producers": "connected now",
        "producers_before": "at the start of the window, or of the watch",
        "rises": "looks at which there were more",
    },
    unobservable=("whether one program opens them: compare their names and addresses",),
    helps="let the program keep one producer and close it at the end. Bound them by max_producers_per_topic",
    many="topics have producers that only become more",
)
def sessions_growing(view: TopicView, options: DiagnosisOptions) -> Outcome:
    counts = view.sessions
    now, before = view.producers, counts[0] if counts else view.producers
    if now < max(MANY_SESSIONS, SESSION_TIMES * max(1, before)):
        return f"{counted(now, 'producer is', 'producers are')} connected, {before} at the window's start"
    steps = list(pairwise((*counts, now)))
    rises = sum(after > earlier for earlier, after in steps)
    if rises < RISES or any(after < earlier for earlier, after in steps):
        return f"the number of producers rose to {now} in {counted(rises, 'look')}, or fell between"
    return Finding(
        confidence=0.8,
        summary=f"{view.log} has {now} connected producers, {before} at the window's start, and their number never fell: a "
        "program may open a new one for each message",
        evidence={
            "producers": now,
            "producers_before": before,
            "rises": rises,
            "produced_in_window": view.production.messages,
            "max_producers_per_topic": view.max_producers or None,
        },
        next=(
            NextCall("producers.list", {"topic": view.topic}, "see their names"),
            NextCall("topics.get_policies", {"topic": view.topic}, "see how many may be connected"),
        ),
    )


@partial(
    TopicRule,
    severity="info",
    holds=f"part of the window brought three times the typical number of messages or more, {LEAST_BURST} at least above it",
    evidence={"burst_messages": "above the typical", "peak_rate, typical_rate": "messages a second"},
    unobservable=("whether more of it comes",),
    helps="nothing, while its subscriptions keep pace. Else look for its senders",
    many="topics suddenly got much more than usual",
)
def topic_burst(view: TopicView, options: DiagnosisOptions) -> Outcome:
    burst = view.production.burst
    if burst is None:
        return view.production.even
    if burst.messages < LEAST_BURST:
        return f"{counted(burst.messages, 'message')} more than usual came at once, fewer than {LEAST_BURST}"
    return Finding(
        severity=Severity.INFO,
        confidence=0.9,
        summary=f"{view.log} got {counted(burst.messages, 'message')} more than usual within {view.production.window_s:.0f} s: "
        f"{burst.peak_rate:.0f} a second at the most, {burst.typical_rate:.0f} usually",
        evidence={
            "burst_messages": burst.messages,
            "peak_rate": burst.peak_rate,
            "typical_rate": burst.typical_rate,
            "produced_in_window": view.production.messages,
            "producers": view.producers,
        },
        next=(
            NextCall("producers.list", {"topic": view.topic}, "see who sends"),
            NextCall("topics.chart", {"topic": view.topic}, "see it over time"),
        ),
    )


@partial(
    TopicRule,
    holds="among the newest messages a run with 20 different payloads or more has the keys and payloads of messages before "
    "it, in the same order",
    evidence={
        "repeated_messages": "in a row",
        "first_offset, again_offset": "where they begin for the first time, and again",
        "sampled_messages": "the newest ones that were compared",
        "producers": "how many wrote them",
    },
    unobservable=("whether the repetition is meant: a snapshot that did not change looks the same",),
    helps="leave retries to the producer, because they are stored once. Do not publish a batch again after an error "
    "of unknown outcome",
    many="topics get the same messages again",
)
def repeated_publishes(view: TopicView, options: DiagnosisOptions) -> Outcome:
    if view.tail is None:
        return "too few messages are at hand to compare them"
    found = view.tail.repetition
    if found is None:
        return f"none of the newest {view.tail.messages} messages come in the order of others before them"
    return Finding(
        confidence=0.8,
        summary=f"{counted(found.messages, 'message')} of {view.log} from offset {found.again_offset} on are, in the same "
        f"order, those from offset {found.first_offset} on; both were written by {counted(len(found.producers), 'producer')}",
        evidence={
            "repeated_messages": found.messages,
            "first_offset": found.first_offset,
            "again_offset": found.again_offset,
            "sampled_messages": view.tail.messages,
            "producers": len(found.producers),
        },
        untrusted={"producers": list(found.producers)},
        next=(
            NextCall(
                "messages.peek",
                {"topic": view.log, "from": f"offset:{found.again_offset}", "limit": 1},
                "look at the first of them, and compare",
            ),
            NextCall("producers.list", {"topic": view.topic}, "see who sends, and since when"),
        ),
    )


@partial(
    TopicRule,
    severity="warning, or info if no other producer writes: it may be this broker's clock",
    holds=f"the publish times of one producer are {CLOCK_OFF_S:.0f} s or more from the append times, always by as much, and "
    "no other producer's are",
    evidence={
        "behind_s": "append time less publish time, the median of its newest batches. Below 0 its clock is ahead",
        "spread_s": "between the largest and the smallest",
        "batches": "that were compared",
        "other_producers": "producers whose publish times fit",
    },
    unobservable=(
        "the clock of the producer's machine, and where no other producer writes, whose clock is wrong",
    ),
    helps="correct the clock of the producer's machine: positions by time and ages use append times, applications may not",
    many="topics get messages with publish times that are far off",
)
def publish_time_off(view: TopicView, options: DiagnosisOptions) -> Outcome:
    clocks = () if view.tail is None else view.tail.clocks
    if not clocks:
        return "too few batches are at hand to compare their times"
    off = [
        one
        for one in clocks
        if abs(one.behind_s) > CLOCK_OFF_S and one.spread_s <= max(STEADY_CLOCK_S, abs(one.behind_s) / 20)
    ]
    if not off:
        most = max(clocks, key=lambda one: abs(one.behind_s))
        steady = "" if abs(most.behind_s) <= CLOCK_OFF_S else ", and not always by as much"
        return f"publish times are at most {abs(most.behind_s):.1f} s from the append times{steady}"
    others = [one for one in clocks if abs(one.behind_s) <= CLOCK_OFF_S]
    if len(off) > 1 and not others:
        return f"{len(off)} producers differ from this broker's clock, and none fits: see clocks_apart"
    worst = max(off, key=lambda one: abs(one.behind_s))
    word = "behind" if worst.behind_s > 0 else "ahead of"
    return Finding(
        severity=Severity.WARNING if others else Severity.INFO,
        confidence=0.95 if others else 0.7,
        summary=f"publish times of a producer of {view.log} are {abs(worst.behind_s):.0f} s {word} the append times, in each "
        f"of its newest {worst.batches} batches"
        + (f"; those of {counted(len(others), 'other producer')} fit" if others else ""),
        evidence={
            "behind_s": worst.behind_s,
            "spread_s": worst.spread_s,
            "batches": worst.batches,
            "other_producers": len(others),
        },
        untrusted={"producer": worst.producer},
        next=(
            NextCall(
                "producers.list", {"topic": view.topic}, "see its host, and correct that machine's clock"
            ),
        ),
    )
