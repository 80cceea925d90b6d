"""The rule on a topic that got much at once, whether or not a subscription is late for it."""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.findings import Finding, NextCall, Outcome, Rule, RuleArea, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import TopicView
from pydanube_core.units import counted

LEAST_BURST: Final = 100  # messages: less at once is no news


def topic_burst(view: TopicView, options: DiagnosisOptions) -> Outcome:
    if view.production.window_s < options.window_s / 2:
        return f"it has been watched for {view.production.window_s:.0f} s: too short to know what is usual"
    burst = view.production.burst
    if burst is None or burst.messages < LEAST_BURST:
        return "production was even over the window"
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


TOPIC_BURST: Final = Rule(
    area=RuleArea.TOPIC,
    severity="info",
    holds=f"part of the window brought three times the typical number of messages or more, {LEAST_BURST} at least above it",
    evidence={"burst_messages": "above the typical", "peak_rate, typical_rate": "messages a second"},
    unobservable=("whether more of it comes",),
    helps="nothing, while its subscriptions keep pace; see who sends it",
    check=topic_burst,
    many="topics got much more than usual at once",
)
