"""Bounds of the cost of answers: acks × messages in flight, where the consumer chooses its own timeout."""

from __future__ import annotations

from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.policy import FailurePolicy
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms

from tests.support.processor import at_most

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
