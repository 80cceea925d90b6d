"""Rules on topics: what keeps messages from coming in."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.refusing import PRODUCER_LIMIT, PUBLISH_TOO_LARGE, ago_s, refusals
from pydanube_core.diagnosis.slowing import PUBLISH_OVER_QUOTA
from pydanube_core.diagnosis.topic_burst import TOPIC_BURST
from pydanube_core.diagnosis.views import TopicView
from pydanube_core.units import counted

THROTTLE_CODES: Final = ("RATE_LIMITED",)
SCHEMA_CODES: Final = ("SCHEMA_MISMATCH", "PAYLOAD_INVALID", "SCHEMA_NOT_FOUND")
STEADY_SAMPLES: Final = 5  # a stretch shorter than so many samples is a burst or a batch, not a flow
SILENCE_TIMES: Final = 4.0  # the longest gap of the flow
SILENCE_SHARE: Final = 0.1  # of the time it flowed: what came for an hour may pause for minutes


def publish_throttled(view: TopicView, options: DiagnosisOptions) -> Outcome:
    refused = refusals(view.refused, THROTTLE_CODES)
    if not refused.in_window:
        return f"no publish was refused for its rate in the last {options.window_s:.0f} s"
    messages = refusals(view.refused_messages, THROTTLE_CODES)
    return Finding(
        severity=Severity.WARNING,
        summary=f"{view.log} refused {counted(refused.in_window, 'publish', 'publishes')} within {options.window_s:.0f} s: more than "
        f"{counted(view.max_publish_rate, 'message')} a second came",
        evidence={
            "refused_publishes": refused.total,
            "refused_publishes_in_window": refused.in_window,
            "refused_messages_in_window": messages.in_window,
            "max_publish_rate": view.max_publish_rate,
            "produce_rate": round(view.production.rate, 3),
            "last_s_ago": ago_s(view, refused.last_ms),
        },
        next=(
            NextCall("topics.get_policies", {"topic": view.topic}, "see where the limit comes from"),
            NextCall("topics.set_policies", {"topic": view.topic, "policies": {"max_publish_rate": 0}}, "lift it, if the broker may take more"),
        ),
    )  # fmt: skip


def schema_rejections(view: TopicView, options: DiagnosisOptions) -> Outcome:
    refused = refusals(view.refused, SCHEMA_CODES)
    violations = {reason: count for reason, count in view.violations.items() if count.in_window}
    if not refused.in_window and not violations:
        return f"no message was found against its schema in the last {options.window_s:.0f} s"
    messages = refusals(view.refused_messages, SCHEMA_CODES)
    what = "refused" if refused.in_window else "let through, and counted,"
    number = messages.in_window or sum(count.in_window for count in violations.values())
    things = (
        counted(number, "message that does", "messages that do")
        if number
        else counted(refused.in_window, "producer that does", "producers that do")
    )
    return Finding(
        severity=Severity.WARNING,
        summary=f"{view.log} {what} {things} not fit schema subject {view.schema_subject!r} within "
        f"{options.window_s:.0f} s",
        evidence={
            "refused_publishes": refused.total,
            "refused_publishes_in_window": refused.in_window,
            "refused_messages_in_window": messages.in_window,
            "by_code": {c: view.refused[c].in_window for c in SCHEMA_CODES
                        if c in view.refused and view.refused[c].in_window},
            "violations_in_window": {reason: count.in_window for reason, count in violations.items()},
            "validation_policy": view.validation_policy,
            "schema_subject": view.schema_subject,
            "last_s_ago": ago_s(view, refused.last_ms),
        },
        next=(
            NextCall("topics.get_schema_config", {"topic": view.topic}, "see the subject and the policy that hold"),
            *(NextCall("schemas.versions", {"subject": subject}, "see which versions there are, and whether a new one was registered")
              for subject in [view.schema_subject] if subject),
        ),
    )  # fmt: skip


def producer_stopped(view: TopicView, options: DiagnosisOptions) -> Outcome:
    flow = view.production
    if flow.last_ms is None or flow.steady_since_ms is None:
        return "nothing was published while the broker watched"
    if not view.producer_seen:
        return "no producer was here since the broker started: what came was written by the broker, or by operations"
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
    if any(count.last_ms is not None and view.now_ms - count.last_ms < silence_s * 1000 and count.in_window
           for count in view.refused.values()):  # fmt: skip
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
            "connection": "open" if view.producers else None if left is None
            else "broken" if left.abrupt else "closed",
        },
        next=(
            NextCall("producers.list", {"topic": view.topic}, "see who is connected"),
            NextCall("topics.describe", {"topic": view.topic}, "see whether it grows again"),
        ),
    )  # fmt: skip


TOPIC_RULES: Final = (
    PUBLISH_TOO_LARGE,
    PRODUCER_LIMIT,
    Rule(
        area=RuleArea.TOPIC,
        severity="warning",
        holds="messages were refused for their schema in the window, or counted where the policy only warns",
        evidence={
            "refused_publishes": "batches or calls refused since the broker started",
            "refused_publishes_in_window, refused_messages_in_window": "of the window",
            "violations_in_window": "messages by reason, also those that were let through",
        },
        unobservable=("which program sends them: a refused message is not kept",),
        helps="correct the producer, or register the version it writes",
        check=schema_rejections,
        many="topics get messages that do not fit their schema",
    ),
    Rule(
        area=RuleArea.TOPIC,
        severity="warning",
        holds="publishes were refused for their rate in the window",
        evidence={
            "refused_publishes": "batches or calls refused since the broker started",
            "refused_publishes_in_window, refused_messages_in_window": "of the window",
            "max_publish_rate": "the limit in force",
        },
        unobservable=("how many of them were tries of the same messages again",),
        helps="raise the limit, or slow the producer down",
        check=publish_throttled,
        many="topics get more than their rate limit allows",
    ),
    Rule(
        area=RuleArea.TOPIC,
        severity="warning; info if the producer left in good order",
        holds="messages came without a long break for half a window, and then none for four times the longest break and "
        "30 s (or `stuck_after`, if that is less); where no connection broke, also for a tenth of the time they came",
        evidence={
            "silent_s": "since the last message",
            "steady_s, steady_messages": "of the flow before",
            "longest_gap_s": "in it",
            "connection": "of the last producer: open, broken or closed",
        },
        unobservable=("whether there is anything to produce",),
        helps="look at the producer",
        check=producer_stopped,
        many="topics have stopped to get messages",
    ),
    PUBLISH_OVER_QUOTA,
    TOPIC_BURST,
)
