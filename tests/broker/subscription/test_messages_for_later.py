"""What waits for its time in the core: no consumer holds it, it has not failed, and it is ready when due."""

from __future__ import annotations

import pytest
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.planning import Plan, worst_failure
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms

from tests.broker.subscription.invariants import check


def _open(type: SubscriptionType, end: int = 10) -> Subscription:
    core = Subscription(type, cursor=CursorSnapshot(floor=0), end=end)
    core.join(1, "a", 0, ConsumerTerms(credit_messages=100, credit_bytes=None))
    return core


def _plan(core: Subscription) -> Plan:
    plan = core.sending.next_plan()
    assert plan is not None
    return plan


def _sent(core: Subscription, now_ms: int) -> list[int]:
    """Send what the core wants to be sent; the offsets."""
    found: list[int] = []
    while (plan := core.sending.next_plan()) is not None:
        assert plan.delivery_count == 1
        assert core.sending.sent(plan, list(plan.ranges), 0, plan.ranges[-1][1], now_ms)
        found += [offset for start, end in plan.ranges for offset in range(start, end)]
        check(core)
    return found


@pytest.mark.parametrize("type", SubscriptionType)
def test_what_waits_is_ready_when_due_and_the_others_at_once(type: SubscriptionType) -> None:
    core = _open(type)
    slots = [7] * 3 + [9] * 7 if type is SubscriptionType.KEY_SHARED else None
    assert core.sending.hold(_plan(core), [(0, 10)], 10, [((0, 2), 500), ((5, 6), 900)], slots=slots)
    check(core)
    at_once = _sent(core, 0)
    if type is SubscriptionType.KEY_SHARED:  # behind a message that waits, nothing of its key
        assert at_once == [3, 4]
    else:
        assert at_once == [2, 3, 4, 6, 7, 8, 9]
    assert core.next_deadline_ms() == 500
    assert core.tick(500) == []
    assert _sent(core, 500)[:2] == [0, 1]
    core.tick(900)
    assert 5 in _sent(core, 900)
    assert core.statistics(900).in_flight == 10
    assert worst_failure(core.window) is None
    check(core)


def test_an_old_plan_holds_nothing() -> None:
    core = _open(SubscriptionType.SHARED)
    plan = _plan(core)
    core.outlived([(0, 1)])
    assert not core.sending.hold(plan, [(0, 10)], 10, [((0, 2), 500)])
    check(core)


def test_what_has_outlived_its_time_counts_as_dropped_and_the_floor_passes_it() -> None:
    core = _open(SubscriptionType.EXCLUSIVE)
    assert core.sending.hold(_plan(core), [(0, 10)], 10, [((0, 2), 500)])
    core.outlived([(0, 3)])
    check(core)
    assert (core.floor, core.marks().dropped) == (3, 3)
    assert _sent(core, 0) == [3, 4, 5, 6, 7, 8, 9]
    assert core.tick(500) == []
    assert _sent(core, 500) == []
