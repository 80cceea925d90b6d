"""Shared and failover delivery, one behaviour a test."""

from __future__ import annotations

from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.effects import Activated
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.policy import FailurePolicy
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms

from tests.broker.subscription.invariants import check

EXACT = FailurePolicy(jitter=0.0)


def make(
    type: SubscriptionType, *, end: int, names: str = "abc", credit: int = 100, single: bool = False
) -> Subscription:
    """A subscription with consumers 1, 2, 3 named a, b, c."""
    sub = Subscription(type, cursor=CursorSnapshot(floor=0), end=end, policy=EXACT)
    for consumer_id, name in enumerate(names, 1):
        sub.join(
            consumer_id, name, 0, ConsumerTerms(credit_messages=credit, credit_bytes=None, single=single)
        )
    return sub


def session(sub: Subscription, consumer_id: int) -> int:
    found = sub.session_of(consumer_id)
    assert found is not None
    return found


def pull(sub: Subscription, now_ms: int = 0, *, at_most: int = 1 << 30) -> list[tuple[int, list[int]]]:
    """Send all that may be sent from a log without holes: (consumer, offsets) of each sending."""
    sent: list[tuple[int, list[int]]] = []
    while (plan := sub.sending.next_plan()) is not None:
        offsets = [o for s, e in plan.ranges for o in range(s, e)][: min(plan.max_messages, at_most)]
        ranges = [(o, o + 1) for o in offsets]
        if plan.consumer_id is None:
            selections = sub.sending.routed(plan, ranges, offsets[-1] + 1, now_ms)
            assert selections is not None
            sent += [(s.consumer_id, [offsets[i] for i in s.indices]) for s in selections]
        else:
            assert sub.sending.sent(plan, ranges, 0, offsets[-1] + 1, now_ms)
            sent.append((plan.consumer_id, offsets))
        check(sub)
    return sent


def test_single_consumers_get_messages_in_strict_turn_over_many_parts() -> None:
    sub = make(SubscriptionType.SHARED, end=4, single=True)
    target = {o: cid for cid, offsets in pull(sub) for o in offsets}
    sub.grew(9)
    target |= {o: cid for cid, offsets in pull(sub) for o in offsets}
    assert [target[o] for o in range(9)] == [1, 2, 3, 1, 2, 3, 1, 2, 3]


def test_a_single_consumer_without_credit_is_passed_over() -> None:
    sub = Subscription(SubscriptionType.SHARED, cursor=CursorSnapshot(floor=0), end=7)
    for consumer_id, credit in ((1, 1), (2, 10), (3, 2)):
        sub.join(
            consumer_id,
            f"c{consumer_id}",
            0,
            ConsumerTerms(credit_messages=credit, credit_bytes=None, single=True),
        )
    target = {o: cid for cid, offsets in pull(sub) for o in offsets}
    assert [target[o] for o in range(7)] == [1, 2, 3, 2, 3, 2, 2]


def test_a_single_consumer_out_of_byte_credit_leaves_the_rest_to_a_later_plan() -> None:
    sub = Subscription(SubscriptionType.SHARED, cursor=CursorSnapshot(floor=0), end=10)
    sub.join(1, "a", 0, ConsumerTerms(credit_messages=10, credit_bytes=25, single=True))
    plan = sub.sending.next_plan()
    assert plan is not None
    assert plan.max_bytes == 25
    selections = sub.sending.routed(plan, [(0, 10)], 10, 0, sizes=[10] * 10)
    assert selections is not None
    assert [list(s.indices) for s in selections] == [[0, 1, 2]]
    assert sub.sending.next_plan() is None
    sub.members.grant(1, 0, 100)
    plan = sub.sending.next_plan()
    assert plan is not None
    assert plan.start == 3


def test_more_single_consumers_than_one_part_can_name_all_get_messages() -> None:
    sub = Subscription(SubscriptionType.SHARED, cursor=CursorSnapshot(floor=0), end=600)
    for consumer_id in range(300):
        sub.join(
            consumer_id,
            f"c{consumer_id}",
            0,
            ConsumerTerms(credit_messages=2, credit_bytes=None, single=True),
        )
    sent = pull(sub)
    assert sorted(o for _, offsets in sent for o in offsets) == list(range(600))
    assert {cid for cid, _ in sent} == set(range(300))


def test_batch_consumers_get_slices_in_turn() -> None:
    sub = make(SubscriptionType.SHARED, end=12)
    assert pull(sub, at_most=2) == [
        (1, [0, 1]),
        (2, [2, 3]),
        (3, [4, 5]),
        (1, [6, 7]),
        (2, [8, 9]),
        (3, [10, 11]),
    ]


def test_a_slow_shared_consumer_does_not_hold_up_the_others() -> None:
    sub = make(SubscriptionType.SHARED, end=50, credit=2)
    pull(sub)
    for _ in range(22):
        sub.members.grant(2, 2, 0)
        pull(sub)
    facts = sub.statistics(0)
    assert [c.delivered for c in facts.consumers] == [2, 46, 2]


def test_messages_that_vanished_before_their_retry_count_as_acknowledged() -> None:
    sub = make(SubscriptionType.SHARED, end=3, names="a")
    pull(sub)
    sub.answers.nack(1, session(sub, 1), [(0, 3)], 0)
    sub.tick(1000)
    plan = sub.sending.next_plan()
    assert plan is not None
    assert sub.sending.sent(plan, [(1, 2)], 0, 3, 1000)
    assert sub.snapshot() == CursorSnapshot(floor=1, acknowledged=((2, 3),), attempts=sub.snapshot().attempts)


def test_row_11_failover_standby_is_promoted_and_gets_the_rest() -> None:
    sub = make(SubscriptionType.FAILOVER, end=10, credit=4)
    assert [c.active for c in sub.statistics(0).consumers] == [True, False, False]
    assert pull(sub) == [(1, [0, 1, 2, 3])]
    sub.answers.ack(1, session(sub, 1), [(0, 1), (2, 3)])
    assert sub.leave(1, 0) == [Activated(consumer_id=2)]
    sub.members.grant(2, 100, 0)
    assert pull(sub) == [(2, [1, 3]), (2, [4, 5, 6, 7, 8, 9])]
    assert sub.answers.ack(2, session(sub, 2), [(1, 10)]) == 8
    assert sub.floor == 10


def test_row_36_the_standby_is_promoted_at_once_however_the_active_one_went() -> None:
    sub = make(SubscriptionType.FAILOVER, end=3)
    pull(sub)
    assert sub.leave(2, 0) == []
    (activated,) = sub.leave(1, 0)
    assert activated == Activated(consumer_id=3)
    assert pull(sub) == [(3, [0, 1, 2])]
    assert sub.next_deadline_ms() == 30_000


def test_an_active_consumer_that_reconnects_keeps_its_place() -> None:
    sub = make(SubscriptionType.FAILOVER, end=3)
    pull(sub)
    effects = sub.join(9, "a", 0, ConsumerTerms(credit_messages=10, credit_bytes=None))
    assert effects[-1] == Activated(consumer_id=9)
    assert pull(sub) == [(9, [0, 1, 2])]
    sub.leave(9, 0)
    assert pull(sub) == [(2, [0, 1, 2])]


def test_counts_of_a_restart_are_forgotten_for_what_a_skip_acknowledges() -> None:
    sub = make(SubscriptionType.SHARED, end=10, names="a")
    pull(sub)
    sub.answers.nack(1, session(sub, 1), [(4, 8)], 0)
    again = Subscription.restore(SubscriptionType.SHARED, sub.snapshot(), end=10)
    assert again.skipped(5, 7) == 0
    assert [(a.start, a.end) for a in again.snapshot().attempts] == [(4, 5), (7, 8)]
