"""What a message, a join and a leave cost in a shared subscription with many consumers, in calls made."""

from __future__ import annotations

import pytest
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms

from tests.support.processor import lines_of

TERMS = {
    "official": ConsumerTerms(window_messages=1000, single=True),
    "ours": ConsumerTerms(credit_messages=1000, credit_bytes=1 << 30, reports=True),
}
MESSAGES = 50


def costs(consumers: int, terms: ConsumerTerms) -> tuple[int, int]:
    """Return the lines of a burst of single messages to that many consumers, and those of half of them leaving."""
    core = Subscription(SubscriptionType.SHARED, cursor=CursorSnapshot(floor=0))
    for number in range(consumers):
        core.join(number, f"c{number}", 0, terms)
    sent: list[int] = []

    def burst() -> None:
        for at in range(MESSAGES):
            core.grew(at + 1)
            while (plan := core.sending.next_plan()) is not None:
                if plan.consumer_id is None:
                    found = core.sending.routed(plan, [(at, at + 1)], at + 1, at, sizes=[1])
                    assert found is not None
                    sent.append(found[0].consumer_id)
                else:
                    assert core.sending.sent(plan, [(at, at + 1)], 1, at + 1, at)
                    sent.append(plan.consumer_id)

    def leave() -> None:
        for number in range(consumers // 2, consumers // 2 + MESSAGES // 2):
            core.leave(number, MESSAGES)

    core.sending.next_plan()  # consumers that joined are filed once
    cost = lines_of(burst)
    assert sent == list(range(MESSAGES)), "each consumer in its turn"
    return cost, lines_of(leave)


@pytest.mark.parametrize("kind", TERMS)
def test_a_message_and_a_leave_cost_no_more_with_twenty_times_the_consumers(kind: str) -> None:
    message, leave = costs(60, TERMS[kind])
    message_of_many, leave_of_many = costs(1200, TERMS[kind])
    assert message_of_many < 1.5 * message
    assert leave_of_many < 1.5 * leave
