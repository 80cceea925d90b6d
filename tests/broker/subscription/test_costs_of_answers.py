"""Bounds of the cost of answers, where a consumer holds many messages."""

from __future__ import annotations

from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.policy import FailurePolicy
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms

from tests.support.processor import at_most, lines_of

PARTS, PART = 1000, 64


def test_acks_of_a_consumer_with_a_short_timeout_look_at_all_in_flight_seldom() -> None:
    sub = Subscription(
        SubscriptionType.SHARED,
        cursor=CursorSnapshot(floor=0),
        end=PARTS * PART,
        policy=FailurePolicy(jitter=0.0),
    )
    terms = ConsumerTerms(credit_messages=PARTS * PART, credit_bytes=None, ack_timeout_ms=8)
    sub.join(1, "a", 0, terms)
    session = sub.session_of(1)
    assert session is not None
    for number in range(PARTS):  # one flight for each part
        plan = sub.sending.next_plan()
        assert plan is not None
        start = number * PART
        assert sub.sending.sent(plan, [(start, start + PART)], 0, start + PART, 0)
    with at_most(0.6):
        for now_ms in range(4000):
            assert sub.answers.ack_delivered([(now_ms, now_ms + 1)], now_ms) == 1


def lines_of_acks(flights: int, *, named: bool) -> int:
    """Return the lines of the acks of ten messages by a consumer that was sent so many messages one by one."""
    sub = Subscription(SubscriptionType.EXCLUSIVE, cursor=CursorSnapshot(floor=0), end=flights)
    sub.join(1, "a", 0, ConsumerTerms(credit_messages=flights, credit_bytes=None))
    session = sub.session_of(1)
    assert session is not None
    for at in range(flights):
        plan = sub.sending.next_plan()
        assert plan is not None
        assert sub.sending.sent(plan, [(at, at + 1)], 0, at + 1, at)

    def acks() -> None:
        for at in range(10):
            if named:
                assert sub.answers.ack(1, session, [(at, at + 1)], now_ms=flights) == 1
            else:
                assert sub.answers.ack_delivered([(at, at + 1)], flights) == 1

    return lines_of(acks)


def test_an_ack_costs_no_more_behind_fifty_times_the_deliveries() -> None:
    assert lines_of_acks(1000, named=True) < 1.5 * lines_of_acks(20, named=True)


def test_deadlines_of_many_deliveries_are_extended_in_linear_time() -> None:
    # The first of these acks extends all others, and the rest costs no more with more deliveries.
    assert lines_of_acks(1000, named=False) < 50 * lines_of_acks(20, named=False)
