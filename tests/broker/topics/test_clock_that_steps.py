"""One wrong moment of the clock leaves no trace; a clock that stays elsewhere is believed; what was stamped wrong heals."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.journal.index import Run
from pydanube_broker.tier.upkeep import expired
from pydanube_broker.topics.retention import Keep
from pydanube_broker.wall_clock import APPEND_TOLERANCE_MS, HOLD_MS, WallClock, append_time
from pydanube_storage.catalog import CatalogEntry

from tests.core.batches import steady

YEAR_MS = 365 * 86_400_000
HOUR_MS = 3_600_000


class Machine:
    """The machine's counter and its wall clock, which somebody sets."""

    def __init__(self) -> None:
        self.counter = 5_000
        self.ahead_ms = 0

    def wall(self) -> int:
        return 1_000_000_000_000 + self.counter + self.ahead_ms

    def clock(self) -> WallClock:
        return WallClock(wall_ms=self.wall, counter_ms=lambda: self.counter)


def test_a_year_ahead_for_a_second_is_noticed_and_not_followed() -> None:
    machine = Machine()
    clock = machine.clock()
    for step in (YEAR_MS, -HOUR_MS):
        before = clock.now_ms()
        machine.ahead_ms = step
        machine.counter += 500
        assert clock.now_ms() == before + 500
        assert clock.reason() is not None
        machine.ahead_ms = 0
        machine.counter += 500
        assert clock.now_ms() == before + 1000 == machine.wall()
    assert clock.steps == 2
    machine.counter += HOUR_MS
    clock.now_ms()
    assert clock.reason() is None, "it is over"


def test_a_clock_that_stays_elsewhere_is_believed_after_a_while() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.ahead_ms = -HOUR_MS
    before = clock.now_ms()
    machine.counter += HOLD_MS - 1
    assert clock.now_ms() == before + HOLD_MS - 1
    machine.counter += 1
    assert clock.now_ms() == machine.wall()
    assert clock.steps == 1


def test_small_corrections_are_followed_at_once() -> None:
    machine = Machine()
    clock = machine.clock()
    for ahead in (3, 900, 400, 2000):
        machine.ahead_ms = ahead
        assert clock.now_ms() == machine.wall()
    assert clock.steps == 0


def test_append_times_do_not_fall_but_heal_where_they_are_plainly_wrong() -> None:
    assert append_time(100, 90) == 100
    assert append_time(100, 100 + APPEND_TOLERANCE_MS) == 100 + APPEND_TOLERANCE_MS
    assert append_time(100, 100 + YEAR_MS) == 100


@steady
@given(times=st.lists(st.integers(0, 50), min_size=1, max_size=40), wanted=st.integers(0, 51))
def test_a_time_is_found_behind_the_last_batch_that_is_older(times: list[int], wanted: int) -> None:
    run = Run.empty(0)
    for i, time_ms in enumerate(times):
        run.append(i, i + 1, time_ms, 0, 1)
    older = [i for i, time_ms in enumerate(times) if time_ms < wanted]
    assert run.at_time(wanted) == (older[-1] + 1 if older else 0)
    assert list(run.times) == sorted(run.times)


def test_retention_takes_what_a_clock_that_ran_ahead_has_stamped() -> None:
    def entry(start: int, newest_ms: int) -> CatalogEntry:
        facts: dict[str, Any] = {"min_append_time_ms": newest_ms, "max_append_time_ms": newest_ms}
        return CatalogEntry(
            name=str(start), start=start, end=start + 10, messages=10, bytes=1, epoch=1, generation=0, digest="",
            footer_bytes=1, footer_crc=0, committed_at_ms=0, **facts,
        )  # fmt: skip

    entries = [entry(0, 1000), entry(10, YEAR_MS), entry(20, 2000), entry(30, 9000)]
    gone = expired(entries, Keep(age_ms=5000), total_bytes=4, now=10_000, slowest=None)
    assert [each.start for each in gone] == [0, 10, 20]
