"""Exclusive delivery: sessions, credit, acks, seeks, failures, one behaviour a test."""

from __future__ import annotations

import gc
import itertools
import tracemalloc

import pytest
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.effects import (
    Blocked,
    Dropped,
    Expired,
    SessionEnded,
    SessionStarted,
)
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.planning import Plan, failing, worst_failure
from pydanube_broker.subscription.policy import Backoff, FailurePolicy, PoisonPolicy
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_core.errors import ClusterError, ConsumerBusy, InvalidArgument, NotDelivered

from tests.broker.subscription.invariants import check, runs, take_changes

EXACT = FailurePolicy(jitter=0.0)


def exclusive(
    *,
    end: int = 100,
    floor: int = 0,
    policy: FailurePolicy = EXACT,
    span: int = 65_536,
    ordered: bool = False,
) -> Subscription:
    return Subscription(
        SubscriptionType.EXCLUSIVE,
        cursor=CursorSnapshot(floor=floor),
        end=end,
        policy=policy,
        span_messages=span,
        ordered_retry=ordered,
    )


def attach(sub: Subscription, consumer_id: int = 1, name: str = "a", credit: int = 1000) -> int:
    sub.join(consumer_id, name, 0, ConsumerTerms(credit_messages=credit, credit_bytes=1 << 30))
    session = sub.session_of(consumer_id)
    assert session is not None
    return session


def pull(sub: Subscription, now_ms: int = 0, *, at_most: int = 1 << 30) -> list[tuple[Plan, list[int]]]:
    """Send all that may be sent, from a log without holes; (plan, offsets) of each sending."""
    sent: list[tuple[Plan, list[int]]] = []
    while (plan := sub.sending.next_plan()) is not None:
        offsets = [o for s, e in plan.ranges for o in range(s, e)][: min(plan.max_messages, at_most)]
        ranges = runs(offsets)
        assert sub.sending.sent(plan, ranges, 10 * len(offsets), offsets[-1] + 1, now_ms)
        check(sub)
        sent.append((plan, offsets))
    return sent


def offsets_of(sent: list[tuple[Plan, list[int]]]) -> list[int]:
    return [offset for _, offsets in sent for offset in offsets]


def test_a_message_larger_than_the_byte_credit_is_still_sent() -> None:
    sub = exclusive()
    sub.join(1, "a", 0, ConsumerTerms(credit_messages=10, credit_bytes=5))
    plan = sub.sending.next_plan()
    assert plan is not None
    assert plan.max_bytes == 5
    assert sub.sending.sent(plan, [(0, 1)], 900, 1, 0)
    assert sub.sending.next_plan() is None
    sub.members.grant(1, 0, 894)
    assert sub.sending.next_plan() is None
    sub.members.grant(1, 0, 2)
    assert sub.sending.next_plan() is not None


def test_a_second_name_is_refused_while_the_first_is_attached_and_welcome_after() -> None:
    sub = exclusive()
    attach(sub)
    before = sub.statistics(0)
    with pytest.raises(ConsumerBusy) as caught:
        sub.join(2, "b", 0, ConsumerTerms())
    assert caught.value.details["holder"] == "a"
    assert sub.statistics(0) == before
    sub.leave(1, 0)
    attach(sub, 2, "b")
    assert offsets_of(pull(sub)) == list(range(100))


def test_the_same_name_takes_over_and_gets_what_its_predecessor_held() -> None:
    sub = exclusive(end=10)
    old = attach(sub)
    pull(sub)
    sub.answers.ack(1, old, [(0, 4)])
    effects = sub.join(9, "a", 0, ConsumerTerms(credit_messages=100, credit_bytes=None))
    assert isinstance(effects[0], SessionEnded)
    assert effects[0].consumer_id == 1
    assert isinstance(effects[1], SessionStarted)
    assert effects[1].session > old
    (first,) = pull(sub)
    assert first[1] == [4, 5, 6, 7, 8, 9]
    assert first[0].delivery_count == 2
    assert sub.answers.ack(1, old, [(4, 5)]) == 0
    assert sub.statistics(0).stale_answers == 1


def test_an_ack_of_what_was_never_delivered_is_refused_and_changes_nothing() -> None:
    sub = exclusive(end=100)
    session = attach(sub, credit=10)
    pull(sub)
    before = (sub.snapshot(), sub.statistics(0))
    with pytest.raises(NotDelivered) as caught:
        sub.answers.ack(1, session, [(0, 5), (9, 11)])
    assert caught.value.details["offset"] == 10
    for bad in ([(5, 5)], [(6, 4)], [(-1, 2)]):
        with pytest.raises(InvalidArgument):
            sub.answers.ack(1, session, bad)
    assert (sub.snapshot(), sub.statistics(0)) == before


def test_holes_in_the_log_count_as_acknowledged() -> None:
    sub = exclusive(end=1000)
    session = attach(sub)
    plan = sub.sending.next_plan()
    assert plan is not None
    assert sub.sending.sent(plan, [(10, 12), (20, 21)], 30, 500, 0)
    check(sub)
    assert sub.floor == 10
    sub.answers.ack(1, session, [(10, 21)])
    assert sub.floor == 500
    assert sub.skipped(500, 990) == 0
    assert offsets_of(pull(sub)) == list(range(990, 1000))


def test_credit_larger_than_any_default_is_used_in_one_window() -> None:
    sub = exclusive(end=50_000)
    attach(sub, credit=50_000)
    assert len(offsets_of(pull(sub, at_most=10_000))) == 50_000


def test_a_plan_overtaken_by_a_seek_is_refused_and_nothing_happens() -> None:
    sub = exclusive()
    attach(sub)
    plan = sub.sending.next_plan()
    assert plan is not None
    sub.seek(50, 0)
    assert not sub.sending.sent(plan, [(0, 10)], 100, 10, 0)
    assert sub.statistics(0).in_flight == 0
    assert offsets_of(pull(sub)) == list(range(50, 100))


def test_an_answer_that_does_not_fit_its_plan_is_refused() -> None:
    sub = exclusive(end=100)
    attach(sub, credit=10)
    plan = sub.sending.next_plan()
    assert plan is not None
    answers: list[tuple[list[tuple[int, int]], int]] = [
        ([(0, 11)], 11),
        ([(0, 5)], 4),
        ([(5, 6), (1, 2)], 10),
        ([(0, 5)], 101),
        ([(99, 101)], 101),
    ]
    for ranges, next_offset in answers:
        with pytest.raises(InvalidArgument):
            sub.sending.sent(plan, ranges, 0, next_offset, 0)
    assert sub.statistics(0).in_flight == 0


def test_back_off_doubles_up_to_its_bound_and_never_comes_early() -> None:
    policy = FailurePolicy(jitter=0.5, max_redelivery_count=100, max_redelivery_delay_ms=10_000)
    assert [policy.delay_ms(n, requested_ms=0, random=0.0) for n in range(1, 7)] == [
        1000,
        2000,
        4000,
        8000,
        10000,
        10000,
    ]
    assert policy.delay_ms(2, requested_ms=0, random=0.999) in range(2990, 3000)
    assert policy.delay_ms(1, requested_ms=99_000, random=0.9) == 10_000
    fixed = FailurePolicy(jitter=0.0, backoff_strategy=Backoff.FIXED)
    assert [fixed.delay_ms(n, requested_ms=0, random=0.5) for n in (1, 2, 9)] == [1000, 1000, 1000]
    assert FailurePolicy(jitter=0.0).delay_ms(10_000, requested_ms=0, random=0.5) == 60_000


def test_an_ack_timeout_brings_the_message_again_and_extend_puts_it_off() -> None:
    sub = exclusive(end=4)
    session = attach(sub)
    pull(sub, 0)
    assert sub.next_deadline_ms() == 30_000
    assert sub.answers.extend(1, session, [(0, 1)], 50_000, 10_000) == 1
    (expired,) = sub.tick(30_000)
    assert isinstance(expired, Expired)
    assert expired.ranges == ((1, 4),)
    sub.tick(31_000)
    assert offsets_of(pull(sub, 31_000)) == [1, 2, 3]
    (expired,) = sub.tick(60_000)
    assert isinstance(expired, Expired)
    assert expired.ranges == ((0, 1),)
    marks = sub.marks()
    assert (marks.failed, marks.unanswered) == (4, 4)


def test_an_exhausted_message_blocks_until_a_late_ack_a_skip_or_a_new_policy() -> None:
    policy = FailurePolicy(max_redelivery_count=0, jitter=0.0)
    sub = exclusive(end=10, policy=policy)
    session = attach(sub, credit=5)
    pull(sub)
    (effect,) = sub.answers.nack(1, session, [(2, 3)], 0, reason="bad row")
    assert effect == Blocked(ranges=((2, 3),), reason="bad row", delivery_count=1)
    sub.members.grant(1, 100, 0)
    assert pull(sub) == []
    blocked = sub.statistics(0).blocked_by
    assert blocked is not None
    assert (blocked.offset, blocked.reason) == (2, "bad row")
    (dropped,) = sub.failures.set_policy(
        FailurePolicy(max_redelivery_count=0, poison_policy=PoisonPolicy.DROP)
    )
    assert isinstance(dropped, Dropped)
    assert sub.statistics(0).dropped == 1
    assert offsets_of(pull(sub)) == [5, 6, 7, 8, 9]


def test_failing_messages_are_those_that_were_given_back_and_are_still_open() -> None:
    sub = exclusive(end=9, policy=FailurePolicy(max_redelivery_count=9, jitter=0.0))
    session = attach(sub)
    pull(sub)
    assert failing(sub.window) == 0, "sent, and not answered yet"
    sub.answers.nack(1, session, [(4, 6)], 0)
    assert failing(sub.window) == 2
    sub.tick(20_000)
    assert offsets_of(pull(sub, 20_000)) == [4, 5]
    assert failing(sub.window) == 2, "sent again, and not answered yet"
    sub.answers.ack(1, session, [(4, 5)])
    assert failing(sub.window) == 1


def test_why_a_message_failed_is_known_while_it_is_on_its_way_again() -> None:
    sub = exclusive(end=9, policy=FailurePolicy(max_redelivery_count=9, jitter=0.0))
    session = attach(sub)
    pull(sub)
    sub.answers.ack(1, session, [(0, 1)])
    assert worst_failure(sub.window) is None
    sub.answers.nack(1, session, [(1, 2)], 0, reason="bad row")
    for offset in range(2, 9):  # others fail as well, each for its own reason or for another
        sub.answers.nack(1, session, [(offset, offset + 1)], 0, reason=f"bad row {offset % 3}")
    waiting = worst_failure(sub.window)
    assert waiting is not None
    assert (waiting.offset, waiting.failures, waiting.reason) == (1, 1, "bad row")
    sub.tick(20_000)
    assert offsets_of(pull(sub, 20_000)) == list(range(1, 9))
    again = worst_failure(sub.window)
    assert again is not None
    assert (again.offset, again.failures, again.reason) == (1, 1, "bad row")


def test_terminate_poisons_at_once() -> None:
    sub = exclusive(end=3, policy=FailurePolicy(poison_policy=PoisonPolicy.DROP))
    session = attach(sub)
    pull(sub)
    (effect,) = sub.answers.terminate(1, session, [(0, 2)], 0, reason="schema")
    assert effect == Dropped(ranges=((0, 2),), reason="schema", delivery_count=1)
    assert sub.floor == 2


def test_a_seek_goes_both_ways_and_answers_from_before_it_are_ignored() -> None:
    sub = exclusive(end=100)
    session = attach(sub)
    pull(sub)
    sub.answers.ack(1, session, [(0, 50), (60, 70)])
    (started,) = sub.seek(10, 0)
    assert isinstance(started, SessionStarted)
    assert (started.offset, sub.window.generation) == (10, 1)
    assert offsets_of(pull(sub)) == list(range(10, 100))
    assert sub.answers.ack(1, session, [(10, 20)]) == 0
    assert sub.answers.nack(1, session, [(10, 20)], 0) == []
    assert sub.floor == 10
    sub.seek(90, 0)
    assert sub.floor == 90
    sub.purge(0)
    assert sub.floor == 100
    with pytest.raises(InvalidArgument):
        sub.seek(101, 0)


def test_a_lost_consumer_is_not_a_failure_of_its_messages() -> None:
    sub = exclusive(end=3, policy=FailurePolicy(max_redelivery_count=1, jitter=0.0))
    for life in range(1, 8):
        attach(sub, life, "a")
        ((plan, offsets),) = pull(sub)
        assert (offsets, plan.delivery_count) == ([0, 1, 2], life)
        sub.leave(life, 0)
    assert sub.snapshot().attempts[0].deliveries == 7
    assert sub.snapshot().attempts[0].failures == 0


def test_counts_and_acknowledgements_survive_a_restart() -> None:
    sub = exclusive(end=20)
    session = attach(sub)
    pull(sub)
    sub.answers.ack(1, session, [(0, 3), (5, 8)])
    sub.answers.nack(1, session, [(3, 4), (10, 12)], 0)
    again = Subscription.restore(
        SubscriptionType.EXCLUSIVE, sub.snapshot(), end=20, sessions=itertools.count(9)
    )
    assert again.snapshot() == sub.snapshot()
    attach(again)
    sent = pull(again)
    counts = {offset: plan.delivery_count for plan, offsets in sent for offset in offsets}
    assert list(counts) == [3, 4, *range(8, 20)]
    assert [o for o, n in counts.items() if n == 2] == [3, 10, 11]
    assert again.session_of(1) == 9


def test_row_10_a_subscription_without_any_ack_delivers_everything_after_a_restart() -> None:
    sub = exclusive(end=0)
    created = sub.snapshot()
    attach(sub)
    sub.grew(100)
    assert len(offsets_of(pull(sub))) == 100
    again = Subscription.restore(SubscriptionType.EXCLUSIVE, created, end=100)
    attach(again)
    assert offsets_of(pull(again)) == list(range(100))


def test_row_10_a_burst_of_acks_leaves_a_delta_to_write_even_if_nothing_follows() -> None:
    sub = exclusive(end=100)
    session = attach(sub)
    pull(sub)
    sub.answers.ack(1, session, [(0, 100)])
    delta = take_changes(sub)
    assert delta is not None
    assert (delta.floor, delta.acknowledged) == (100, ())


def test_row_16_plans_that_a_rate_limit_leaves_unanswered_lose_nothing() -> None:
    sub = exclusive(end=1000)
    attach(sub, credit=10_000)
    received: list[int] = []
    for second in range(200):
        assert sub.sending.next_plan() is not None
        assert sub.sending.next_plan(max_messages=0) is None
        plan = sub.sending.next_plan(max_messages=10)
        if plan is None:
            break
        assert plan.max_messages <= 10
        offsets = list(range(plan.start, min(plan.start + plan.max_messages, plan.end_limit)))
        assert sub.sending.sent(plan, runs(offsets), 0, offsets[-1] + 1, second)
        received += offsets
        if len(received) == 1000:
            break
    assert received == list(range(1000))


def test_row_20_the_window_is_what_the_consumer_grants_not_one_or_ten() -> None:
    sub = exclusive(end=1_000_000)
    attach(sub, credit=10_000)
    assert len(offsets_of(pull(sub, at_most=2000))) == 10_000
    assert sub.statistics(0).in_flight == 10_000


def test_every_error_is_a_cluster_error() -> None:
    with pytest.raises(ClusterError):
        Subscription(SubscriptionType.EXCLUSIVE, cursor=CursorSnapshot(floor=0), span_messages=0)


def test_an_idle_subscription_takes_less_than_8_kilobytes_also_after_work() -> None:
    def worked(type: SubscriptionType) -> Subscription:
        sub = Subscription(type, cursor=CursorSnapshot(floor=0, acknowledged=((5, 9),)), end=200_000)
        sub.join(1, "a", 0, ConsumerTerms(credit_messages=200_000, credit_bytes=None))
        now = 0
        while (plan := sub.sending.next_plan(max_messages=1000)) is not None:
            now += 1
            end = min(plan.start + plan.max_messages, plan.end_limit)
            if plan.consumer_id is None:
                assert sub.sending.routed(
                    plan, [(plan.start, end)], end, now, slots=list(range(end - plan.start))
                )
            else:
                assert sub.sending.sent(plan, [(plan.start, end)], 0, end, now)
            sub.answers.ack(1, 1, [(plan.start, end)])
        sub.leave(1, now)
        take_changes(sub)
        assert sub.floor == 200_000
        assert sub.next_deadline_ms() is None
        return sub

    for type in SubscriptionType:
        worked(type)  # what is made once for all is not counted
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            kept = [worked(type) for _ in range(3)]
            gc.collect()
            each = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
        finally:
            tracemalloc.stop()
        assert each < 8192, f"{type}: {each:.0f} bytes"


def test_an_ack_by_mask_counts_once_and_refuses_what_was_not_delivered() -> None:
    sub = exclusive(end=10)
    session = attach(sub, credit=6)
    pull(sub)
    assert sub.answers.ack(1, session, [(0, 1)], [(1, 0b1011)]) == 4
    assert sub.answers.ack(1, session, [], [(1, 0b1011)]) == 0
    check(sub)
    assert sub.floor == 3
    for beyond in (6, 1 << 63):
        with pytest.raises(NotDelivered):
            sub.answers.ack(1, session, [], [(3, 1), (beyond, 1)])
    assert sub.floor == 3


def test_a_paused_consumer_is_sent_nothing_and_goes_on_once_it_resumes() -> None:
    sub = exclusive(end=10)
    attach(sub)
    sub.members.pause(1)
    assert pull(sub) == []
    sub.members.resume(1)
    sub.members.resume(7)  # not there
    assert [offset for _, offsets in pull(sub) for offset in offsets] == list(range(10))


def test_a_mask_may_answer_what_was_acknowledged_before_it_was_read_and_nothing_else_that_is_unread() -> None:
    sub = exclusive(end=9)
    sub.skipped(4, 7)
    sub.join(1, "w", 0, ConsumerTerms(credit_messages=9, credit_bytes=None))
    session = sub.session_of(1)
    assert session is not None
    for first, mask in ((4, 1), (4, 0b101), (6, 1)):
        assert sub.answers.ack(1, session, [], [(first, mask)]) == 0
    for first, mask in ((7, 1), (3, 1), (5, 0b101)):
        with pytest.raises(NotDelivered):
            sub.answers.ack(1, session, [], [(first, mask)])
