"""Bounds of the cost of joins: consumers that come and go × slots with an owner × messages in flight."""

from __future__ import annotations

from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.policy import FailurePolicy
from pydanube_broker.subscription.routes.key_slots import SLOTS
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms

from tests.support.processor import at_most

MEMBERS, JOINS = 50, 5
TERMS = ConsumerTerms(credit_messages=SLOTS, credit_bytes=None)


def test_consumers_that_come_and_go_cost_one_pass_over_the_slots_each() -> None:
    """One that joins and leaves takes about 0.15 s. The budget of its principal bounds how many there are."""
    sub = Subscription(
        SubscriptionType.KEY_SHARED,
        cursor=CursorSnapshot(floor=0),
        end=SLOTS,
        policy=FailurePolicy(jitter=0.0),
    )
    for number in range(MEMBERS):
        sub.join(number, str(number), 0, TERMS)
    sent = 0
    while (plan := sub.sending.next_plan()) is not None:  # every slot has an owner and a message in flight
        offsets = [offset for start, end in plan.ranges for offset in range(start, end)][: plan.max_messages]
        ranges = [(offset, offset + 1) for offset in offsets]
        sub.sending.routed(plan, ranges, offsets[-1] + 1, 0, slots=offsets, keys=None)
        sent += len(offsets)
    assert sent == SLOTS
    with at_most(0.5 * JOINS):
        for number in range(MEMBERS, MEMBERS + JOINS):
            sub.join(number, str(number), 0, TERMS)
            sub.leave(number, 0)
