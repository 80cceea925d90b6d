"""Next steps for subscriptions in trouble: a sentence for each, and the command to begin with. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydanube_core.diagnosis import LagStatus, StuckReason
from pydanube_core.telemetry.tables import FRESH_S
from pydanube_core.units import counted

from pydanube_spark.reports.lag.summary import WARNING
from pydanube_spark.reports.pages.page import NextStep
from pydanube_spark.reports.pages.time_texts import age_text

_MOST: Final = 5
_STUCK: Final = {
    StuckReason.NO_MEMBER: "{lag} and no consumer for {since}: start one, or delete the subscription if it is no longer needed",
    StuckReason.POISON: "the message at offset {next_unacked} fails again and again: look at it, skip it, or set a dead-letter topic",
    StuckReason.HEAD_OF_LINE: "the message at offset {next_unacked} is not answered while those behind it are: look at the consumer that holds it",
    StuckReason.NOTHING_IN_FLIGHT: "{consumers}: look at their processes",
    StuckReason.IN_FLIGHT_AT_LIMIT: "consumers hold {in_flight}, as many as they may, and answer none: look at their processes",
    StuckReason.NO_ACK: "consumers hold {in_flight} and have answered none for {since}: look at their processes",
}
_STATUS: Final = {
    LagStatus.DATA_LOST: "retention deleted {lost} before they were read: let it wait for cursors, or give it more time",
    LagStatus.AT_RISK: "retention takes the oldest unread message in {headroom}: give it more time, or read faster",
    LagStatus.FALLING_BEHIND: "{produced} messages a second come, {consumed} are read: add consumers or partitions",
    LagStatus.SLOW: "{lag}, and no end in sight within an hour: add consumers or partitions",
    LagStatus.STUCK: "the cursor has not moved for {since}",
}


def next_steps(worst: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> list[NextStep]:
    """Return 1 to `_MOST` steps, most urgent first."""
    steps = []
    if report["data_age_s"] > FRESH_S:
        steps.append(
            NextStep(
                text=f"The newest sample is {age_text(report['data_age_s'])} old: see whether the brokers run and write telemetry.",
                command="danube brokers status",
            )
        )
    trouble = [row for row in worst if row["status"] in WARNING and row["gone_ms"] is None]
    steps += [_step(row) for row in trouble[:_MOST]]
    if len(trouble) > _MOST:
        steps.append(
            NextStep(text=f"And {len(trouble) - _MOST} more below.", command="danube diagnose cluster")
        )
    return steps or [NextStep(text="Nothing: no subscription is in trouble.")]


def _step(row: Mapping[str, Any]) -> NextStep:
    status = LagStatus(row["status"])
    form = _STATUS[status]
    if status is LagStatus.STUCK and row["stuck_reason"]:
        form = _STUCK[StuckReason(row["stuck_reason"])]
    elif status in (LagStatus.FALLING_BEHIND, LagStatus.SLOW) and row["consumers"] == 0:
        form = _STUCK[StuckReason.NO_MEMBER]

    def number(name: str, shape: str) -> str:
        return "–" if row[name] is None else format(row[name], shape)

    def count(name: str, one: str, many: str | None = None) -> str:
        return f"– {many or one + 's'}" if row[name] is None else counted(row[name], one, many, spec=",")

    sentence = form.format(
        lag=count("lag_messages", "unread message"),
        lost=count("lost_messages", "message"),
        since=age_text(None if row["since_ms"] is None else (row["as_of_ms"] - row["since_ms"]) / 1000),
        next_unacked=number("next_unacked", "d"),
        consumers=count("consumers", "consumer takes nothing", "consumers take nothing"),
        in_flight=count("in_flight", "message"),
        headroom=age_text(row["retention_headroom_s"]),
        produced=number("produce_rate", ",.1f"),
        consumed=number("consume_rate", ",.1f"),
    )
    words = shlex.join(["danube", "diagnose", "subscription", row["log"], row["subscription"]])
    return NextStep(text=f"{row['subscription']} of {row['log']}: {sentence}.", command=words)
