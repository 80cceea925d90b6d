"""Loads from counters: a rise within one life of a broker, and what a new life has counted since."""

from __future__ import annotations

from typing import Any

from pydanube_core.balance import Resource, TopicLoad
from pydanube_spark.reports.balance.loads import rate, snapshot_of


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
