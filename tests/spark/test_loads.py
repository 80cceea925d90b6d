"""Loads from counters: a rise within one life of a broker, and what a new life has counted since."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube_core.balance import BalanceVerdict, Policy, Resource, TopicLoad, assess
from pydanube_spark.reports.balance.loads import rate, snapshot_of
from pydanube_spark.reports.balance.report import balance_summary, days_to_full
from pydanube_spark.reports.balance.work import BALANCE_SCHEMA


def rows(*samples: tuple[int, int, int]) -> list[dict[str, Any]]:
    """(second, incarnation, bytes)."""
    return [{"taken_at": 1000 * at, "incarnation": life, "bytes_out": count} for at, life, count in samples]


def test_a_rate_is_the_rise_of_a_counter() -> None:
    assert rate(rows((0, 1, 100), (5, 1, 150), (10, 1, 300)), "bytes_out") == 20.0


def test_another_incarnation_began_at_zero() -> None:
    assert rate(rows((0, 1, 5000), (5, 2, 100), (10, 2, 200)), "bytes_out") == 20.0


def test_a_fall_is_no_restart() -> None:
    """A counter that is smaller by one has not counted everything again: 258 kB/s were reported where there were 38."""
    assert rate(rows((0, 1, 5000), (5, 1, 4999), (10, 1, 5200)), "bytes_out") == 20.1


BROKER = {
    "broker_id": "1", "incarnation": 1, "cpus": 2, "cpu_s": 0.0, "bytes_out": 0,
    "network_in_bytes_per_s": None, "network_out_bytes_per_s": None,
    "disk_free_bytes": None, "disk_total_bytes": None, "state": "active",
}  # fmt: skip


def stretch_of(*topics: tuple[int, str, int, int]) -> dict[str, TopicLoad]:
    """(second, topic, id, bytes in) told by one broker, that took in 100 bytes a second."""
    brokers = [BROKER | {"taken_at": 1000 * at, "bytes_in": 100 * at} for at in (0, 300, 600)]
    told = [
        {
            "taken_at": 1000 * at, "broker_id": "1", "incarnation": 1, "topic": topic, "topic_id": topic_id,
            "bytes_in": count, "bytes_out": 0, "unread_messages": 0,
        }
        for at, topic, topic_id, count in topics
    ]  # fmt: skip
    stretch = snapshot_of(brokers, told, end_ms=600_000, interval_ms=60_000, epoch=0)
    return {topic.topic: topic for topic in stretch.snapshot.topics}


def test_a_topic_that_was_deleted_is_not_there_to_be_moved() -> None:
    found = stretch_of(
        (0, "/d/a", 1, 0), (0, "/d/gone", 2, 0), (300, "/d/a", 1, 0), (300, "/d/gone", 2, 9000)
    )
    assert set(found) == {"/d/a", "/d/gone"}
    found = stretch_of((0, "/d/gone", 2, 0), (300, "/d/gone", 2, 9000), (600, "/d/a", 1, 0))
    assert set(found) == {"/d/a"}


def test_a_topic_that_was_made_again_has_counted_from_zero() -> None:
    found = stretch_of((0, "/d/a", 1, 5000), (300, "/d/a", 2, 5400), (600, "/d/a", 2, 6000))
    assert found["/d/a"].load[Resource.NETWORK_IN] == 10.0


def test_one_moment_has_no_rate() -> None:
    assert rate(rows((0, 1, 100)), "bytes_out") is None
    assert rate(rows((0, 1, 100), (0, 1, 200)), "bytes_out") is None


def broker_rows(*samples: tuple[int, int], broker: str = "1", cpus: int | None = 2) -> list[dict[str, Any]]:
    """(second, bytes in) of a broker whose processors are 85 % busy."""
    return [
        BROKER
        | {"broker_id": broker, "taken_at": 1000 * at, "bytes_in": count, "cpu_s": 1.7 * at, "cpus": cpus}
        for at, count in samples
    ]


def topic_row(at: int, broker: str, count: int, topic: str = "/d/a") -> dict[str, Any]:
    return {
        "taken_at": 1000 * at, "broker_id": broker, "incarnation": 1, "topic": topic, "topic_id": 1,
        "bytes_in": count, "bytes_out": 0, "unread_messages": 0,
    }  # fmt: skip


def judged(brokers: list[dict[str, Any]], topics: list[dict[str, Any]], *, begin: int, end: int) -> Any:
    stretch = snapshot_of(
        brokers, topics, begin_ms=1000 * begin, end_ms=1000 * end, interval_ms=60_000, epoch=0
    )
    return assess(stretch.snapshot, Policy()), stretch


def test_one_sample_is_no_load_of_zero() -> None:
    """It was OVERLOADED, and a broker was to be added, in the first moment of each interval."""
    brokers = broker_rows((600, 0)) + broker_rows((0, 0), (300, 0), (600, 0), broker="2", cpus=2)
    found, _ = judged(brokers, [], begin=600, end=601)
    assert found.verdict is BalanceVerdict.UNDECIDED
    assert "broker 1: it has one sample so far" in found.because


def test_the_sample_before_the_stretch_gives_its_first_rate() -> None:
    found, stretch = judged(broker_rows((480, 900), (540, 1000), (600, 7000)), [], begin=600, end=601)
    assert stretch.snapshot.brokers[0].load[Resource.NETWORK_IN] == 100.0
    assert found.verdict is not BalanceVerdict.UNDECIDED


def test_the_fullest_disk_is_that_of_the_stretch() -> None:
    def disk(broker: str, free: int | None) -> dict[str, Any]:
        sizes = {"disk_free_bytes": free, "disk_total_bytes": 100}
        return BROKER | {"broker_id": broker, "taken_at": 0, "bytes_in": 0, **sizes}

    def share(*brokers: dict[str, Any]) -> float | None:
        return snapshot_of(brokers, [], end_ms=1, interval_ms=1, epoch=0).disk_used_share

    assert share(disk("1", 60), disk("2", 25), disk("3", None)) == 0.75
    assert share(disk("3", None)) is None


def test_days_to_full_are_those_of_a_share_that_surely_rises() -> None:
    day_ms = 86_400_000
    rising = [(number * day_ms, 0.3 + 0.05 * number) for number in range(10)]
    assert days_to_full(rising) == (pytest.approx(1.0), None)
    assert days_to_full([*rising, (10 * day_ms, 0.8)]) == (0.0, None)
    assert days_to_full([(at, 1 - share) for at, share in rising]) == (None, "not_rising")
    assert days_to_full(rising[:1]) == (None, "too_few_samples")
    assert days_to_full([]) == (None, "not_known")


def test_a_move_at_the_edge_of_a_stretch_is_counted_once_and_cools_down() -> None:
    brokers = [
        *broker_rows((540, 0), (600, 0), (660, 0)),
        *broker_rows((540, 0), (600, 0), (660, 0), broker="2"),
    ]
    told = [topic_row(540, "1", 0), topic_row(600, "2", 0)]
    _, before = judged(brokers, told[:1], begin=0, end=600)
    _, at = judged(brokers, told, begin=600, end=660)
    _, after = judged(brokers, [*told, topic_row(660, "2", 0)], begin=660, end=720)
    assert (before.owner_changes, at.owner_changes, after.owner_changes) == (0, 1, 0)
    assert [each.snapshot.topics[0].cooling_down for each in (before, at, after)] == [False, True, True]


def test_a_topic_without_a_rate_leaves_a_busy_broker_undecided() -> None:
    mib = 1 << 20
    brokers = broker_rows((0, 0), (300, 600 * mib), (600, 1200 * mib))
    told = [topic_row(0, "1", 0), topic_row(600, "1", 300 * mib), topic_row(600, "1", 5, topic="/d/new")]
    found, _ = judged(brokers, told, begin=0, end=601)
    assert found.verdict is BalanceVerdict.UNDECIDED
    assert "the rates of /d/new take a second sample" in found.because
    told[1] = topic_row(600, "1", 1100 * mib)  # the others explain what the broker took in
    found, _ = judged(brokers, told, begin=0, end=601)
    assert found.verdict is not BalanceVerdict.UNDECIDED


def row(as_of_ms: int, verdict: str, score: float | None) -> dict[str, Any]:
    return {
        **dict.fromkeys(BALANCE_SCHEMA.names),
        **{"as_of_ms": as_of_ms, "verdict": verdict, "because": "so", "score": score, "brokers": 2},
        **{"topics": 0, "owner_changes": 1, "flapping": 0},
        **dict.fromkeys(("moves", "rejected", "what_if", "hot_topics", "missing"), "[]"),
    }


def test_the_summary_is_of_the_last_stretch_and_names_the_judged_one_before() -> None:
    found = balance_summary([row(0, "BALANCED", 90.0), row(3_600_000, "UNDECIDED", None)], [])
    assert (found["verdict"], found["score"]) == ("UNDECIDED", None)
    assert found["before"] == {
        "as_of": "1970-01-01T00:00:00.000Z", "verdict": "BALANCED", "because": "so", "score": 90.0
    }  # fmt: skip
    assert found["owner_changes"] == 2
    assert balance_summary([row(0, "BALANCED", 90.0)], [])["before"] is None


def test_a_cluster_that_uses_nothing_has_no_unknown_capacity() -> None:
    assert balance_summary([row(0, "BALANCED", 90.0)], [])["days_to_full_load_reason"] == "nothing_used"
