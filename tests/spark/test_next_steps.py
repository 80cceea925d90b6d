"""The next steps of reports, without Spark: each names its figure and its command, most urgent first, never more than five."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube_core.diagnosis import LagStatus, StuckReason
from pydanube_spark.reports.balance.page import figures_of, next_steps_of
from pydanube_spark.reports.lag.steps import next_steps

FRESH: dict[str, Any] = {"data_age_s": 5.0}
COMMAND = "danube diagnose subscription /default/orders billing"


def row(status: LagStatus, stuck: StuckReason | None = None, **more: Any) -> dict[str, Any]:
    """A subscription for two minutes in a status."""
    return {
        "log": "/default/orders", "subscription": "billing", "status": status.value,
        "stuck_reason": None if stuck is None else stuck.value, "gone_ms": None,
        "as_of_ms": 180_000, "since_ms": 60_000, "consumers": 1, "lag_messages": 1200, "lost_messages": 1,
        "next_unacked": 17, "in_flight": 5, "retention_headroom_s": 90.0, "produce_rate": 10.0, "consume_rate": 2.5,
    } | more  # fmt: skip


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (row(LagStatus.DATA_LOST), "deleted 1 message before"),
        (row(LagStatus.AT_RISK), "takes the oldest unread message in 1.5 min"),
        (row(LagStatus.FALLING_BEHIND), "10.0 messages a second come, 2.5 are read"),
        (row(LagStatus.FALLING_BEHIND, consumers=0), "1,200 unread messages and no consumer for 2.0 min"),
        (row(LagStatus.SLOW), "1,200 unread messages, and no end in sight"),
        (row(LagStatus.SLOW, consumers=0), "no consumer for 2.0 min"),
        (row(LagStatus.STUCK), "the cursor has not moved for 2.0 min"),
        (row(LagStatus.STUCK, StuckReason.NO_MEMBER), "no consumer for 2.0 min: start one"),
        (row(LagStatus.STUCK, StuckReason.POISON), "the message at offset 17 fails again and again"),
        (row(LagStatus.STUCK, StuckReason.HEAD_OF_LINE), "the message at offset 17 is not answered"),
        (row(LagStatus.STUCK, StuckReason.NOTHING_IN_FLIGHT), "1 consumer takes nothing"),
        (row(LagStatus.STUCK, StuckReason.NOTHING_IN_FLIGHT, consumers=2), "2 consumers take nothing"),
        (row(LagStatus.STUCK, StuckReason.IN_FLIGHT_AT_LIMIT), "hold 5 messages, as many as they may"),
        (row(LagStatus.STUCK, StuckReason.NO_ACK), "hold 5 messages and have answered none for 2.0 min"),
    ],
)
def test_a_step_says_the_figure_behind_its_status_and_where_to_look(found: dict[str, Any], said: str) -> None:
    [step] = next_steps([found], FRESH)
    assert step.text.startswith("billing of /default/orders: ")
    assert said in step.text
    assert step.command == COMMAND


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (row(LagStatus.DATA_LOST, lost_messages=None), "deleted – messages before"),
        (row(LagStatus.AT_RISK, retention_headroom_s=None), "unread message in –:"),
        (row(LagStatus.FALLING_BEHIND, produce_rate=None, consumers=None), "– messages a second come, 2.5"),
        (row(LagStatus.SLOW, lag_messages=None, consumers=None), "– unread messages, and"),
        (row(LagStatus.STUCK, since_ms=None), "not moved for –"),
        (row(LagStatus.STUCK, StuckReason.POISON, next_unacked=None), "at offset – fails"),
    ],
)
def test_a_step_says_that_a_figure_is_unknown_and_never_0(found: dict[str, Any], said: str) -> None:
    [step] = next_steps([found], FRESH)
    assert said in step.text
    assert " 0" not in step.text


def test_where_nothing_is_wrong_the_only_step_says_so() -> None:
    fine = row(LagStatus.CAUGHT_UP)
    gone = row(LagStatus.STUCK, gone_ms=170_000)
    for worst in ([], [fine], [gone], [row(LagStatus.CATCHING_UP), row(LagStatus.UNKNOWN)]):
        [step] = next_steps(worst, FRESH)
        assert (step.text, step.command) == ("Nothing: no subscription is in trouble.", "")


def test_old_samples_come_before_what_they_say() -> None:
    old, stuck = next_steps([row(LagStatus.STUCK)], {"data_age_s": 301.0})
    assert (old.text.partition(":")[0], old.command) == (
        "The newest sample is 5.0 min old",
        "danube brokers status",
    )
    assert stuck.command == COMMAND
    assert len(next_steps([row(LagStatus.STUCK)], {"data_age_s": 300.0})) == 1


def test_of_more_than_five_in_trouble_the_others_are_counted() -> None:
    rows = [row(LagStatus.STUCK, subscription=f"s{number}") for number in range(7)]
    *first, rest = next_steps(rows, FRESH)
    assert [step.command.split()[-1] for step in first] == ["s0", "s1", "s2", "s3", "s4"]
    assert rest.text == "And 2 more below."
    assert len(next_steps(rows[:5], FRESH)) == 5


def balanced(*moved: str, **more: Any) -> dict[str, Any]:
    move = {
        "source": "1", "target": "2", "source_before": 0.9, "target_before": 0.1, "source_after": 0.6, "target_after": 0.4,
    }  # fmt: skip
    return {
        "score": None, "verdict": "even", "brokers": 1, "bottleneck": "cpu", "because": "it is even",
        "moves": [move | {"topic": topic} for topic in moved],
    } | more  # fmt: skip


def test_the_figures_of_a_balance_are_in_the_singular_for_one_and_a_dash_where_unknown() -> None:
    figures = figures_of(balanced("/default/a"))
    assert figures[1:4] == [("–", "of 100 points"), ("1", "broker"), ("1", "move would help")]
    assert [value for value, _ in figures[4:]] == ["–", "–"]
    figures = figures_of(
        balanced(
            "/default/a", "/default/b", brokers=2, score=80.4, days_to_full_load=0.0, days_to_full_disk=12.6
        )
    )
    assert figures[1:4] == [("80", "of 100 points"), ("2", "brokers"), ("2", "moves would help")]
    assert [value for value, _ in figures[4:]] == ["0", "13"]


def test_the_steps_of_a_balance_are_its_moves_then_what_is_full_within_a_month() -> None:
    move, load, disk = next_steps_of(
        balanced("/default/a", days_to_full_load=0.0, days_to_full_disk=29.0), known=True
    )
    assert move.command == "danube topics move /default/a --to-broker 2"
    assert "the processor of the busier of both goes from 90.0 % to 60.0 %" in move.text
    assert load.text == "The bottleneck is 80 % used already: add a broker, or take load away."
    assert disk.text == "The fullest disk is 80 % used in 29 days: add a broker, or take load away."
    [nothing] = next_steps_of(balanced(days_to_full_load=30.0, days_to_full_disk=None), known=True)
    assert nothing.text == "Nothing: it is even"
    assert len(next_steps_of(balanced(*(f"/default/{number}" for number in range(6))), known=False)) == 5
