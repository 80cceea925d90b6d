"""The pure parts: ids, takeovers; and cutting messages from batches of our own SDK."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.services.official.ids import MAX_ID, consumer_id, producer_id
from pydanube_broker.services.official.known_clients import LONGEST_DELAY_MS, QUIET_MS, Takeovers
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms


@given(st.text(), st.text(), st.text())
def test_ids_are_positive_numbers_of_java_and_depend_on_every_name(a: str, b: str, c: str) -> None:
    assert 1 <= producer_id(a, b) <= MAX_ID
    assert 1 <= consumer_id(a, b, c) <= MAX_ID
    assert consumer_id(a, b, c) != consumer_id(a, b, c + "x")
    assert producer_id(a, b + "x") != producer_id(a + "x", b)


def test_ids_never_change_between_versions() -> None:
    """Clients hold ids over an upgrade of the broker: these numbers are part of the format."""
    assert producer_id("/default/t", "p") == PRODUCER_ID
    assert consumer_id("/default/t", "s", "c") == CONSUMER_ID


PRODUCER_ID = 8957059018381088570
CONSUMER_ID = 8625181682204183588


def test_first_takeover_is_at_once_and_rivals_settle_at_a_slow_pace() -> None:
    takeovers, now = Takeovers(), 1_000
    waits = []
    for _ in range(8):
        waits.append(takeovers.wait_ms(now))
        now += waits[-1]
        takeovers.happened(now)
    assert waits[:5] == [0, 250, 500, 1000, 2000]
    assert waits[-1] == LONGEST_DELAY_MS
    assert takeovers.wait_ms(now + QUIET_MS) == 0


def test_answers_without_session_count_for_what_was_sent_only() -> None:
    subscription = Subscription(SubscriptionType.EXCLUSIVE, cursor=CursorSnapshot(floor=0), end=10)
    subscription.join(1, "c", 0, ConsumerTerms(window_messages=4, single=True))
    plan = subscription.sending.next_plan()
    assert plan is not None
    assert subscription.sending.sent(plan, [(0, 4)], 0, 4, 0)
    assert subscription.answers.ack_delivered([(2, 8)], 0) == 2
    assert subscription.floor == 0
    assert subscription.answers.nack_delivered([(0, 2), (6, 7)], 0) == []
    assert subscription.answers.ack_delivered([(0, 1)], 0) == 1  # while it waits for its retry
    assert subscription.floor == 1
    subscription.leave(1, 0)
    assert subscription.answers.ack_delivered([(1, 2)], 0) == 1  # by nobody that is attached
    assert subscription.floor == 4


def test_time_of_what_is_queued_behind_begins_with_the_answer_before_it() -> None:
    """A slow consumer holds much that it has not come to yet; only what it passed over expires."""
    subscription = Subscription(SubscriptionType.EXCLUSIVE, cursor=CursorSnapshot(floor=0), end=10)
    subscription.join(1, "c", 0, ConsumerTerms(window_messages=100, single=True, ack_timeout_ms=1_000))
    plan = subscription.sending.next_plan()
    assert plan is not None
    assert subscription.sending.sent(plan, [(0, 10)], 0, 10, 0)
    for number, now in enumerate((900, 1_800, 2_700)):
        assert subscription.answers.ack_delivered([(number, number + 1)], now) == 1
        subscription.tick(now)
        assert subscription.statistics(now).redelivered == 0
        assert held(subscription) == 9 - number
    assert subscription.answers.ack_delivered([(5, 6)], 3_500) == 1  # 3 and 4 are passed over
    subscription.tick(3_750)
    assert held(subscription) == 4  # 6 to 9
    subscription.tick(4_550)
    assert held(subscription) == 0


def held(subscription: Subscription) -> int:
    return subscription.statistics(0).in_flight


def test_paused_consumer_is_sent_nothing_until_it_is_resumed() -> None:
    subscription = Subscription(SubscriptionType.SHARED, cursor=CursorSnapshot(floor=0), end=10)
    for number, name in ((1, "a"), (2, "b")):
        subscription.join(number, name, 0, ConsumerTerms(window_messages=10, single=True))
    subscription.members.pause(1)
    plan = subscription.sending.next_plan()
    assert plan is not None
    selections = subscription.sending.routed(plan, [(0, 10)], 10, 0)
    assert selections is not None
    assert [(s.consumer_id, len(s.indices)) for s in selections] == [(2, 10)]
    subscription.grew(12)
    assert subscription.sending.next_plan() is None
    subscription.members.resume(1)
    assert subscription.sending.next_plan() is not None
