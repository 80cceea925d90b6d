from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.topics.rate_limit import TokenBucket
from pydanube_core.errors import InvalidArgument


def test_a_bucket_begins_with_one_seconds_worth_and_refills_continuously() -> None:
    bucket = TokenBucket(10, now_ms=0)
    assert bucket.available(0) == 10
    bucket.take(10, 0)
    assert bucket.available(99) == 0
    assert bucket.available(100) == 1  # the reference would wait for the whole second
    assert bucket.wait_ms(1, 100) == 0
    assert bucket.wait_ms(3, 100) == 200
    assert bucket.available(10_000) == 10


def test_more_than_the_burst_goes_only_from_a_full_bucket_and_is_paid_for_afterwards() -> None:
    bucket = TokenBucket(10, now_ms=0)
    assert bucket.wait_ms(50, 0) == 0
    bucket.take(50, 0)
    assert bucket.available(3_999) == 0
    assert bucket.wait_ms(1, 3_999) == 101
    assert bucket.available(4_100) == 1
    assert bucket.wait_ms(50, 4_100) == 900


def test_another_rate_counts_at_once() -> None:
    bucket = TokenBucket(1000, now_ms=0)
    bucket.set_rate(10, 0)
    assert bucket.available(0) == 10
    bucket.take(10, 0)
    bucket.set_rate(1000, 0)
    assert bucket.available(10) == 10


def test_time_before_another_rate_counts_by_the_rate_of_that_time() -> None:
    bucket = TokenBucket(10, now_ms=0)
    bucket.take(10, 0)
    bucket.set_rate(1000, 500)
    assert bucket.available(500) == 5
    assert bucket.available(600) == 105
    bucket.set_rate(10, 600)
    assert bucket.available(600) == 10


def test_no_limit_is_no_bucket() -> None:
    with pytest.raises(InvalidArgument):
        TokenBucket(0, now_ms=0)


@given(
    rate=st.integers(1, 5000),
    steps=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 8000)), max_size=60),
)
def test_never_more_than_the_rate_and_one_burst(rate: int, steps: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(rate, now_ms=0)
    now = taken = 0
    for pause_ms, wanted in steps:
        now += pause_ms
        count = min(wanted, bucket.available(now))
        if count:
            assert bucket.wait_ms(count, now) == 0
            bucket.take(count, now)
            taken += count
        else:
            wait_ms = bucket.wait_ms(1, now)
            assert wait_ms > 0
            assert bucket.available(now + wait_ms) >= 1
            now += wait_ms
        assert taken <= rate + rate * now / 1000 + 1e-6
