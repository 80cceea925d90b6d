"""Handling times of consumers: what an assistant is shown of each worker, and what it costs."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.recent import MINUTE_MS, Recent
from pydanube_broker.subscription.handling import Handling

from tests.broker.subscription.test_subscription_exclusive import attach, exclusive, pull


def test_times_from_sending_to_acknowledgement_are_counted() -> None:
    sub = exclusive()
    session = attach(sub)
    pull(sub, now_ms=1_000)
    sub.answers.ack(1, session, [(0, 90)], now_ms=1_040)
    sub.answers.ack(1, session, [(90, 100)], now_ms=1_900)
    (consumer,) = sub.statistics(2_000).consumers
    found = consumer.handling
    assert found is not None
    assert found.acked == 100
    assert found.acks_per_s == 50.0  # in the two seconds since it attached
    assert found.p50_ms is not None
    assert 32 <= found.p50_ms < 64
    assert found.p99_ms is not None
    assert 512 <= found.p99_ms < 1_024
    assert (found.late_acks, found.expired, found.from_taken) == (0, 0, False)


def test_official_acknowledgements_are_counted_for_the_consumer_that_holds_the_messages() -> None:
    sub = exclusive()
    attach(sub)
    pull(sub, now_ms=0)
    sub.answers.ack_delivered([(0, 4)], 100)
    (consumer,) = sub.statistics(1_000).consumers
    assert consumer.handling is not None
    assert (consumer.handling.acked, consumer.handling.p50_ms) == (4, 96)


def test_late_acknowledgements_and_expiries_are_counted() -> None:
    sub = exclusive()
    session = attach(sub)
    pull(sub, now_ms=0)
    due_ms = sub.next_deadline_ms()
    assert due_ms is not None
    sub.tick(due_ms)
    sub.answers.ack(1, session, [(0, 3)], now_ms=due_ms + 1)
    (consumer,) = sub.statistics(due_ms + 2).consumers
    assert consumer.handling is not None
    assert (consumer.handling.expired, consumer.handling.late_acks) == (100, 3)
    assert consumer.handling.acked == 0  # an acknowledgement after the expiry has no handling time
    assert consumer.handling.p50_ms is None


@given(times=st.lists(st.integers(0, 4_000_000), min_size=1, max_size=300), part=st.sampled_from([0.5, 0.99]))
def test_a_quantile_lies_in_the_power_of_two_of_the_true_one(times: list[int], part: float) -> None:
    handling = Handling(0)
    for time_ms in times:
        handling.acknowledged(1, time_ms, 10)
    found = handling.statistics(20, from_taken=True)
    value = found.p50_ms if part == 0.5 else found.p99_ms
    true = sorted(times)[max(0, -(-round(part * len(times) * 100) // 100) - 1)]
    assert value is not None
    assert value.bit_length() in {
        min(true.bit_length(), 22) + step for step in (0, 1)
    }  # the upper end of a counter belongs to the next


@pytest.mark.parametrize("seed", range(3))
def test_what_is_older_than_two_minutes_is_forgotten(seed: int) -> None:
    rng = random.Random(seed)
    recent = Recent(1, 0)
    happened: list[tuple[int, int]] = []
    now_ms = 0
    for _ in range(400):
        now_ms += rng.choice([0, 10, 1_000, 20_000, 59_999, 60_000, 130_000])
        count = rng.randrange(5)
        recent.add(0, count, now_ms)
        happened.append((now_ms, count))
        (total,), covered_s = recent.read(now_ms)
        assert covered_s < 2 * MINUTE_MS / 1000
        assert total == sum(count for time_ms, count in happened if time_ms >= now_ms - covered_s * 1000)


def test_a_thousand_consumers_cost_less_than_a_megabyte() -> None:
    tracemalloc.start()
    try:
        made = [Handling(0) for _ in range(1_000)]
        for handling in made:
            for now_ms in (0, MINUTE_MS):
                handling.acknowledged(1, 10, now_ms)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made) == 1_000
    assert taken < 1_000_000
