"""Loads from counters: a rise within one life of a broker, and what a new life has counted since."""

from __future__ import annotations

from typing import Any

from pydanube_spark.reports.loads import rate


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


def test_one_moment_has_no_rate() -> None:
    assert rate(rows((0, 1, 100)), "bytes_out") is None
    assert rate(rows((0, 1, 100), (0, 1, 200)), "bytes_out") is None
