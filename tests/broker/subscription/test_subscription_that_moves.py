"""A subscription whose topic goes to another broker: who holds what goes along, and waits there for whoever held it."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.subscription import handover
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.handover import REJOIN_MS
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.planning import worst_failure
from pydanube_broker.subscription.policy import FailurePolicy
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ANY_SESSION, ConsumerTerms
from pydanube_core.errors import ConsumerBusy, NotDelivered

from tests.broker.subscription.invariants import check

POLICY = FailurePolicy(jitter=0.0, ack_timeout_ms=60_000, base_redelivery_delay_ms=0)
KEYS = 7  # offset modulo that is the slot


class Consumers:
    """Clients of one subscription that follow it; what was sent to whom is in `sent`."""

    def __init__(self, type: SubscriptionType, *, end: int = 100, policy: FailurePolicy = POLICY) -> None:
        self.type = type
        self.policy = policy
        self.end = end
        self.now_ms = 0
        self.sessions: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.sent: list[tuple[int, int, int]] = []  # consumer, offset, delivery count
        self._numbers = itertools.count(1)
        self._open(CursorSnapshot(floor=0))

    def _open(self, cursor: CursorSnapshot) -> None:
        self.core = Subscription.restore(
            self.type, cursor, end=self.end, policy=self.policy, sessions=self._numbers
        )

    def join(self, consumer_id: int, *, credit: int = 1000, resumes: bool = False, name: str = "") -> bool:
        """Attach; whether it went on with what it held."""
        self.names[consumer_id] = name or self.names.get(consumer_id, f"c{consumer_id}")
        terms = ConsumerTerms(
            credit_messages=credit,
            credit_bytes=None,
            reports=True,
            resumes=self.sessions.get(consumer_id, 0) if resumes else 0,
        )
        self.core.join(consumer_id, self.names[consumer_id], self.now_ms, terms)
        session = self.core.session_of(consumer_id)
        assert session is not None
        self.sessions[consumer_id] = session
        check(self.core)
        return self.core.places.resumed(consumer_id)

    def pull(self, *, at_most: int = 1 << 30) -> list[tuple[int, int, int]]:
        """Send all that may be sent: (consumer, offset, delivery count)."""
        sent: list[tuple[int, int, int]] = []
        while (plan := self.core.sending.next_plan(max_messages=at_most)) is not None:
            offsets = [o for s, e in plan.ranges for o in range(s, e)][: plan.max_messages]
            ranges = [(o, o + 1) for o in offsets]
            if plan.consumer_id is not None:
                assert self.core.sending.sent(plan, ranges, 0, offsets[-1] + 1, self.now_ms)
                sent += [(plan.consumer_id, o, plan.delivery_count) for o in offsets]
                continue
            slots = [o % KEYS for o in offsets]
            chosen = self.core.sending.routed(plan, ranges, offsets[-1] + 1, self.now_ms, slots=slots)
            assert chosen is not None
            sent += [(s.consumer_id, offsets[i], s.delivery_count) for s in chosen for i in s.indices]
        check(self.core)
        self.sent += sent
        return sent

    def ack(self, consumer_id: int, *offsets: int) -> int:
        return self.core.answers.ack(consumer_id, self.sessions[consumer_id], [(o, o + 1) for o in offsets])

    def move(self) -> None:
        """To another broker; nobody is there yet."""
        held = self.core.places.hand_over(1, self.now_ms)
        self._open(self.core.snapshot())
        if held is not None:
            self.core.places.restore(held, self.now_ms, self.now_ms + REJOIN_MS)
        check(self.core)

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.core.tick(self.now_ms)
        check(self.core)


ALL = pytest.mark.parametrize("type", list(SubscriptionType))


@ALL
def test_a_consumer_that_resumes_keeps_what_it_holds(type: SubscriptionType) -> None:
    clients = Consumers(type, end=10)
    clients.join(1)
    assert len(clients.pull()) == 10
    clients.ack(1, 0, 3)
    clients.move()
    assert clients.join(1, resumes=True)
    assert clients.pull() == []
    assert clients.core.statistics(clients.now_ms).in_flight == 8
    assert clients.ack(1, *range(10)) == 8
    assert clients.core.floor == 10
    clients.core.grew(12)
    assert [offset for _, offset, _ in clients.pull()] == [10, 11]


@ALL
def test_a_stream_that_stayed_open_resumes_without_naming_a_session(
    type: SubscriptionType,
) -> None:
    clients = Consumers(type, end=KEYS)
    carried = ConsumerTerms(window_messages=20, single=True, resumes=ANY_SESSION)
    clients.core.join(1, "c1", 0, carried)
    assert len(clients.pull()) == KEYS
    clients.core.answers.ack_delivered([(0, 1), (3, 4)], 0)
    for _ in range(2):
        clients.move()
    assert clients.core.answers.ack_delivered([(1, 2)], 0) == 1, "late, and before it is there again"
    clients.core.join(1, "c1", 0, carried)
    assert clients.core.places.resumed(1)
    assert clients.pull() == []
    assert clients.core.answers.ack_delivered([(0, KEYS)], 0) == KEYS - 3
    assert clients.core.floor == KEYS


def test_an_official_consumer_has_one_unanswered_message_of_a_key_over_a_move() -> None:
    clients = Consumers(SubscriptionType.KEY_SHARED, end=3 * KEYS)
    carried = ConsumerTerms(window_messages=1000, single=True, resumes=ANY_SESSION)
    clients.core.join(1, "c1", 0, carried)
    assert [offset for _, offset, _ in clients.pull()] == list(range(KEYS))
    clients.move()
    clients.core.join(1, "c1", 0, carried)
    assert clients.pull() == []
    clients.core.answers.ack_delivered([(3, 4)], 0)
    assert [offset for _, offset, _ in clients.pull()] == [3 + KEYS]


@ALL
def test_a_consumer_that_does_not_resume_is_sent_everything_again(type: SubscriptionType) -> None:
    clients = Consumers(type, end=5)
    clients.join(1)
    clients.pull()
    clients.move()
    assert not clients.join(1)
    assert sorted(clients.pull()) == [(1, offset, 2) for offset in range(5)]
    worst = worst_failure(clients.core.window)
    assert worst is None or worst.failures == 0


@ALL
def test_after_ten_seconds_others_get_it_and_it_counts_as_delivered(type: SubscriptionType) -> None:
    clients = Consumers(type, end=5)
    clients.join(1)
    clients.pull()
    clients.move()
    clients.wait(REJOIN_MS - 1)
    if type is not SubscriptionType.EXCLUSIVE:  # there whoever comes takes the place
        clients.join(2)
        assert clients.pull() == []
    assert clients.core.next_deadline_ms() == REJOIN_MS
    clients.wait(1)
    if type is SubscriptionType.EXCLUSIVE:
        clients.join(2)
    assert sorted(clients.pull()) == [(2, offset, 2) for offset in range(5)]
    assert clients.core.statistics(clients.now_ms).consumers[0].consumer_id == 2
    if type is not SubscriptionType.EXCLUSIVE:
        assert not clients.join(1, resumes=True)


@ALL
@pytest.mark.parametrize("moves", [1, 2])
def test_session_of_a_consumer_that_holds_nothing_goes_on(type: SubscriptionType, moves: int) -> None:
    clients = Consumers(type, end=10)
    clients.join(1)
    clients.ack(1, *[offset for _, offset, _ in clients.pull()])
    for _ in range(moves):
        clients.move()
    assert clients.join(1, resumes=True)
    clients.core.grew(12)
    assert [offset for _, offset, _ in clients.pull()] == [10, 11]


def test_session_that_held_nothing_goes_on_beside_one_that_holds_everything() -> None:
    clients = Consumers(SubscriptionType.SHARED, end=10)
    clients.join(1)
    clients.join(2, credit=0)
    assert len(clients.pull()) == 10
    clients.move()
    clients.join(3)
    clients.move()
    assert clients.join(2, resumes=True)
    assert clients.join(1, resumes=True)
    assert not clients.join(3), "without the session"
    assert clients.pull() == []


@ALL
def test_consumer_that_holds_nothing_keeps_no_place_from_others(type: SubscriptionType) -> None:
    clients = Consumers(type, end=5)
    clients.join(1, credit=0)
    clients.move()
    clients.join(2)
    assert sorted(clients.pull()) == [(2, offset, 1) for offset in range(5)]


@ALL
def test_session_that_held_nothing_ends_after_ten_seconds(type: SubscriptionType) -> None:
    clients = Consumers(type, end=5)
    clients.join(1, credit=0)
    clients.move()
    assert clients.core.next_deadline_ms() == REJOIN_MS
    clients.wait(REJOIN_MS)
    assert not clients.join(1, resumes=True)


@ALL
def test_holdings_of_an_older_build_name_only_consumers_that_hold_messages(type: SubscriptionType) -> None:
    clients = Consumers(type, end=5)
    clients.join(1, credit=0)
    held = clients.core.places.hand_over(1, clients.now_ms)
    assert held is not None
    assert held.consumers == ()
    assert held.idle == (("c1", clients.sessions[1]),)
    for older in (None, replace(held, idle=())):
        clients._open(clients.core.snapshot())
        if older is not None:
            clients.core.places.restore(older, clients.now_ms, clients.now_ms + REJOIN_MS)
        assert not clients.join(1, resumes=True)
        assert len(clients.pull()) == 5


def test_the_first_consumer_that_attaches_takes_an_exclusive_place() -> None:
    clients = Consumers(SubscriptionType.EXCLUSIVE, end=5)
    clients.join(1)
    clients.pull()
    clients.move()
    clients.join(2)
    assert len(clients.pull()) == 5
    with pytest.raises(ConsumerBusy):
        clients.join(1, resumes=True)


def test_nobody_else_works_on_a_key_while_its_holder_is_away() -> None:
    clients = Consumers(SubscriptionType.KEY_SHARED, end=2 * KEYS)
    clients.join(1)
    clients.join(2)
    holder = {offset % KEYS: consumer for consumer, offset, _ in clients.pull()}
    assert set(holder.values()) == {1, 2}
    clients.end = 6 * KEYS
    clients.move()
    clients.join(2, resumes=True)
    clients.core.grew(clients.end)
    assert {offset % KEYS for _, offset, _ in clients.pull()} <= {k for k, who in holder.items() if who == 2}
    clients.join(1, resumes=True)
    clients.pull()
    for consumer, offset, _ in clients.sent:
        assert consumer == holder[offset % KEYS]
    assert sorted(offset for _, offset, _ in clients.sent) == list(range(clients.end))


def test_retries_wait_for_what_is_left_of_their_delay() -> None:
    policy = FailurePolicy(jitter=0.0, base_redelivery_delay_ms=5000)
    clients = Consumers(SubscriptionType.SHARED, end=3, policy=policy)
    clients.join(1)
    clients.pull()
    clients.core.answers.nack(1, clients.sessions[1], [(1, 2)], clients.now_ms)
    clients.wait(2000)
    clients.move()
    clients.join(1, resumes=True)
    clients.wait(2999)
    assert clients.pull() == []
    clients.wait(1)
    assert clients.pull() == [(1, 1, 2)]


def test_it_moves_twice_before_its_consumer_is_back() -> None:
    clients = Consumers(SubscriptionType.SHARED, end=5)
    clients.join(1)
    clients.pull()
    clients.move()
    clients.move()
    assert clients.join(1, resumes=True)
    assert clients.ack(1, *range(5)) == 5


def test_deadlines_of_held_messages_keep_running() -> None:
    clients = Consumers(SubscriptionType.SHARED, end=2)
    clients.join(1)
    clients.pull()
    clients.core.answers.taken(1, clients.sessions[1], 1, clients.now_ms)  # the other one waits in its buffer
    clients.wait(40_000)
    clients.move()
    assert clients.join(1, resumes=True)
    assert clients.core.next_deadline_ms() == REJOIN_MS + 40_000
    clients.wait(20_000)
    assert clients.pull() == [(1, 0, 2)]


def test_more_than_a_hand_over_takes_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "MOST_RANGES", 9)
    clients = Consumers(SubscriptionType.SHARED, end=20)
    clients.join(1)
    clients.pull()
    clients.ack(1, *range(1, 20, 2))
    clients.move()
    assert not clients.join(1, resumes=True)
    assert sorted(clients.pull()) == [(1, offset, 2) for offset in range(0, 20, 2)]


def test_a_session_of_another_life_is_not_gone_on_with() -> None:
    clients = Consumers(SubscriptionType.SHARED, end=5)
    clients.join(1)
    clients.pull()
    clients.move()
    clients.sessions[1] += 1
    assert not clients.join(1, resumes=True)
    assert len(clients.pull()) == 5
    with pytest.raises(NotDelivered):
        clients.ack(1, 7)


@ALL
@given(seed=st.integers(0, 1 << 32))
def test_everything_is_acknowledged_in_the_end_however_often_it_moves(
    type: SubscriptionType, seed: int
) -> None:
    rng = random.Random(seed)
    clients = Consumers(type, end=40)
    held: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
    there: set[int] = set()
    acknowledged: set[int] = set()

    def deliver() -> None:
        for consumer, offset, _ in clients.pull(at_most=rng.randint(1, 9)):
            assert offset not in acknowledged
            for other, has in held.items():
                assert other == consumer or offset not in has or type is not SubscriptionType.KEY_SHARED
            held[consumer].add(offset)

    def attach(consumer: int) -> None:
        try:
            resumed = clients.join(consumer, credit=rng.randint(1, 30), resumes=True)
        except ConsumerBusy:
            return
        there.add(consumer)
        if not resumed:
            held[consumer].clear()

    for _ in range(rng.randint(5, 30)):
        match rng.randrange(5):
            case 0:
                attach(rng.choice([1, 2, 3]))
            case 1:
                clients.move()
                there.clear()
            case 2 if there:
                consumer = rng.choice(sorted(there))
                answered = {offset for offset in held[consumer] if rng.random() < 0.5}
                clients.ack(consumer, *sorted(answered))
                acknowledged |= answered
                held[consumer] -= answered
            case 3 if there:
                consumer = rng.choice(sorted(there))
                clients.core.leave(consumer, clients.now_ms)
                check(clients.core)
                there.discard(consumer)
                held[consumer].clear()
            case _:
                clients.wait(rng.choice([0, 100, REJOIN_MS]))
                for consumer in held:
                    if consumer not in there and clients.core.places.until_ms is None:
                        held[consumer].clear()
        deliver()
    clients.wait(REJOIN_MS)
    there.clear()
    for consumer in held:
        held[consumer].clear()
    clients.names[9] = "c9"
    clients.move()
    clients.wait(REJOIN_MS)
    clients.join(9, credit=1000)
    clients.ack(9, *[offset for _, offset, _ in clients.pull()])
    assert clients.core.floor == 40
