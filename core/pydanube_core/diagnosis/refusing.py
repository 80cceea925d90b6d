"""Rules on publishes that are refused for what they are: too large, or one producer too many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import NO_COUNT, Count, TopicView
from pydanube_core.units import counted

SIZE_CODES: Final = ("MESSAGE_TOO_LARGE", "BATCH_TOO_LARGE")
LIMIT_CODES: Final = ("LIMIT_REACHED",)
_WHO: Final = "which program sends them: a refused message is not kept"


def refusals(counts: Mapping[str, Count], codes: tuple[str, ...]) -> Count:
    """The sum of the counts of some codes."""
    found = [counts.get(code, NO_COUNT) for code in codes]
    return Count(
        total=sum(count.total for count in found),
        in_window=sum(count.in_window for count in found),
        last_ms=max((count.last_ms for count in found if count.last_ms is not None), default=None),
    )


def ago_s(view: TopicView, then_ms: int | None) -> float | None:
    return None if then_ms is None else max(0, view.now_ms - then_ms) / 1000


def _evidence(view: TopicView, refused: Count, codes: tuple[str, ...]) -> dict[str, object]:
    return {
        "refused_publishes": refused.total,
        "refused_publishes_in_window": refused.in_window,
        "refused_messages_in_window": refusals(view.refused_messages, codes).in_window,
        "last_s_ago": ago_s(view, refused.last_ms),
    }


def publish_too_large(view: TopicView, options: DiagnosisOptions) -> Outcome:
    refused = refusals(view.refused, SIZE_CODES)
    if not refused.in_window:
        return f"no publish was refused for its size in the last {options.window_s:.0f} s"
    limit = view.max_message_size
    return Finding(
        severity=Severity.WARNING,
        summary=f"{view.log} refused {counted(refused.in_window, 'publish', 'publishes')} within {options.window_s:.0f} s for their size: "
        + (f"its policy max_message_size is {limit} bytes" if limit else "they are larger than a broker takes at all"),
        evidence={**_evidence(view, refused, SIZE_CODES), "max_message_size": limit or None},
        next=(
            NextCall("topics.get_policies", {"topic": view.topic}, "see max_message_size, and where it comes from"),
            *(NextCall("topics.set_policies", {"topic": view.topic, "policies": {"max_message_size": 0}}, "lift it, if messages may be that large") for _ in range(bool(limit))),
        ),
    )  # fmt: skip


def producer_limit(view: TopicView, options: DiagnosisOptions) -> Outcome:
    refused = refusals(view.refused, LIMIT_CODES)
    if not refused.in_window:
        return f"no producer was turned away for a limit in the last {options.window_s:.0f} s"
    limit = view.max_producers
    return Finding(
        severity=Severity.WARNING,
        confidence=1.0 if limit else 0.8,
        summary=f"{view.log} turned producers away {counted(refused.in_window, 'time')} within {options.window_s:.0f} s: "
        f"{counted(view.producers, 'is connected', 'are connected')}, and max_producers_per_topic is {limit}",
        evidence={
            **_evidence(view, refused, LIMIT_CODES),
            "producers": view.producers,
            "max_producers_per_topic": limit or None,
        },
        next=(
            NextCall("producers.list", {"topic": view.topic}, "see who is connected"),
            NextCall("topics.get_policies", {"topic": view.topic}, "see the quota, and where it comes from"),
            NextCall("topics.set_policies", {"topic": view.topic, "policies": {"max_producers_per_topic": 0}}, "lift it, if more may write"),
        ),
    )  # fmt: skip


_COUNTED: Final = {
    "refused_publishes": "batches or calls refused since the broker started",
    "refused_publishes_in_window, refused_messages_in_window": "of the window",
}

PUBLISH_TOO_LARGE: Final = Rule(
    area=RuleArea.TOPIC,
    severity="warning",
    holds="publishes were refused for their size in the window",
    evidence={**_COUNTED, "max_message_size": "the limit in force, in bytes; null: that of every broker"},
    unobservable=(_WHO,),
    helps="send less at once, or raise the policy",
    check=publish_too_large,
    many="topics refuse messages for their size",
)

PRODUCER_LIMIT: Final = Rule(
    area=RuleArea.TOPIC,
    severity="warning",
    holds="producers were refused in the window because there may be no more",
    evidence={**_COUNTED, "producers": "connected now", "max_producers_per_topic": "the quota"},
    unobservable=("whether those that are connected are still needed",),
    helps="end producers that are not needed, or raise the quota",
    check=producer_limit,
    many="topics turn producers away for their quota",
)
