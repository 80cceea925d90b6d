"""Key-shared delivery: ownership of slots, order per key, filters; one behaviour a test."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence

import pytest
from pydanube_broker.subscription.chunk_masks import ChunkMasks
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.policy import FailurePolicy, PoisonPolicy
from pydanube_broker.subscription.routes.spreading import LARGE_PART
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_core.errors import InvalidArgument, LimitReached

from tests.broker.subscription.invariants import check

EXACT = FailurePolicy(jitter=0.0)


class Topic:
    """A log of keys and a subscription on it; a key is its own slot unless `same_slot`."""

    def __init__(self, keys: list[str], *, policy: FailurePolicy = EXACT, same_slot: bool = False) -> None:
        self.keys = keys
        self.slot: dict[str, int] = {}
        self.same_slot = same_slot
        self.sub = Subscription(
            SubscriptionType.KEY_SHARED, cursor=CursorSnapshot(floor=0), end=len(keys), policy=policy
        )
        self.routed_reads = 0

    def join(
        self, consumer_id: int, name: str, *, credit: int = 1_000_000, filters: tuple[str, ...] = ()
    ) -> None:
        self.sub.join(
            consumer_id,
            name,
            0,
            ConsumerTerms(credit_messages=credit, credit_bytes=None, key_filters=filters),
        )

    def publish(self, *keys: str) -> None:
        self.keys += keys
        self.sub.grew(len(self.keys))

    def slot_of(self, key: str) -> int:
        return self.slot.setdefault(key, 5 if self.same_slot else len(self.slot))

    def pull(self, now_ms: int = 0, *, at_most: int = 4000, plans: int = 1 << 30) -> list[tuple[int, int]]:
        """Send all that may be sent; (consumer, offset) in the order of sending."""
        sent: list[tuple[int, int]] = []
        while plans and (plan := self.sub.sending.next_plan()) is not None:
            plans -= 1
            offsets = [o for s, e in plan.ranges for o in range(s, e)][: min(plan.max_messages, at_most)]
            ranges: Sequence[tuple[int, int]] = [(o, o + 1) for o in offsets]
            if type(plan.ranges) is ChunkMasks:
                ranges = ChunkMasks(plan.ranges.below(offsets[-1] + 1))  # as the sender picks them
            if plan.consumer_id is not None:
                assert self.sub.sending.sent(plan, ranges, 0, offsets[-1] + 1, now_ms)
                assert not self.sub.sending.sent(plan, ranges, 0, offsets[-1] + 1, now_ms), "sent twice"
                sent += [(plan.consumer_id, o) for o in offsets]
                continue
            self.routed_reads += 1
            keys = [self.keys[o] for o in offsets]
            selections = self.sub.sending.routed(
                plan,
                ranges,
                offsets[-1] + 1,
                now_ms,
                slots=[self.slot_of(k) for k in keys],
                keys=keys if self.sub.needs_keys else None,
            )
            assert selections is not None
            assert self.sub.sending.routed(plan, ranges, offsets[-1] + 1, now_ms) is None, "routed twice"
            sent += [(s.consumer_id, offsets[i]) for s in selections for i in s.indices]
        check(self.sub)
        return sent

    def ack(self, consumer_id: int, *offsets: int) -> None:
        session = self.sub.session_of(consumer_id)
        assert session is not None
        assert self.sub.answers.ack(consumer_id, session, [(o, o + 1) for o in offsets]) == len(offsets)

    def nack(self, consumer_id: int, *offsets: int, now_ms: int = 0) -> None:
        session = self.sub.session_of(consumer_id)
        assert session is not None
        self.sub.answers.nack(consumer_id, session, [(o, o + 1) for o in offsets], now_ms)

    def owners(self, sent: list[tuple[int, int]]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for consumer_id, offset in sent:
            found.setdefault(self.keys[offset], set()).add(consumer_id)
        return found


def test_unseen_slots_go_to_the_consumer_with_the_fewest() -> None:
    topic = Topic([f"k{i}" for i in range(30)])
    for consumer_id in (1, 2, 3):
        topic.join(consumer_id, f"c{consumer_id}")
    counts = Counter(consumer_id for consumer_id, _ in topic.pull())
    assert counts == {1: 10, 2: 10, 3: 10}
    assert [c.slots for c in topic.sub.statistics(0).consumers] == [10, 10, 10]


def test_a_new_consumer_takes_its_share_and_a_busy_slot_moves_only_when_drained() -> None:
    topic = Topic(["a", "b", "c", "d"])
    topic.join(1, "x")
    topic.pull()
    topic.ack(1, 2)
    topic.join(2, "y")
    assert [c.slots for c in topic.sub.statistics(0).consumers] == [2, 2]
    topic.publish("a", "b", "c", "d")
    owners = topic.owners(topic.pull())
    assert owners["c"] == {2}, "an idle slot moves at once"
    (moving,) = {"a", "b", "d"} - set(owners)
    first = "abcd".index(moving)
    topic.ack(1, first)
    assert topic.pull() == [(2, first + 4)]


def test_row_12_what_an_evicted_consumer_held_is_delivered_to_the_others_in_order() -> None:
    topic = Topic([f"k{i % 10}" for i in range(1000)])
    for consumer_id in (1, 2, 3):
        topic.join(consumer_id, f"c{consumer_id}")
    first = topic.pull()
    lost = [o for c, o in first if c == 2]
    topic.sub.leave(2, 0)
    again = topic.pull()
    assert sorted(o for _, o in again) == lost
    for key in {topic.keys[o] for o in lost}:
        offsets = [o for _, o in again if topic.keys[o] == key]
        assert offsets == sorted(offsets)
    assert all(len(owners) == 1 for owners in topic.owners(again).values())


def test_row_13_one_key_stays_in_order_through_a_flapping_consumer() -> None:
    topic = Topic(["k"] * 10_000)
    dice = random.Random(13)
    processed = 0
    lives = 0
    topic.join(0, "c0")
    topic.join(1, "c1")
    while processed < 10_000:
        lives += 1
        sent = topic.pull(at_most=dice.randint(1, 200), plans=dice.randint(1, 3))
        assert len({consumer_id for consumer_id, _ in sent}) == 1
        # Each life begins with the first message that is not processed, and leaves none out.
        assert [o for _, o in sent] == list(range(processed, processed + len(sent)))
        for consumer_id, offset in sent[: dice.randint(0, len(sent))]:
            topic.ack(consumer_id, offset)
            processed += 1
        topic.sub.leave(sent[0][0], 0)
        topic.join(1 + lives, f"c{1 + lives}")
    assert topic.sub.floor == 10_000
    assert lives > 20


def test_row_14_a_backlog_of_many_keys_drains_without_any_publish_in_few_readings() -> None:
    topic = Topic([f"k{i % 1000}" for i in range(60_000)])
    for consumer_id in range(4):
        topic.join(consumer_id, f"c{consumer_id}")
    assert len(topic.pull()) == 60_000
    assert topic.routed_reads <= 60_000 / 4000 + 1


def test_a_consumer_without_credit_holds_up_only_its_own_keys() -> None:
    topic = Topic(["a", "b"] * 100)
    topic.join(1, "slow", credit=1)
    topic.join(2, "fast")
    sent = topic.pull()
    assert [o for c, o in sent if c == 1] == [0]
    assert [o for c, o in sent if c == 2] == list(range(1, 200, 2))
    topic.sub.members.grant(1, 3, 0)
    assert topic.pull() == [(1, 2), (1, 4), (1, 6)]
    topic.publish("a")
    topic.sub.members.grant(1, 1000, 0)
    assert topic.pull() == [(1, o) for o in [*range(8, 200, 2), 200]]


def test_byte_credit_cuts_a_routed_part_and_one_message_always_goes() -> None:
    topic = Topic(["a"] * 4)
    topic.sub.join(1, "x", 0, ConsumerTerms(credit_messages=10, credit_bytes=5))
    plan = topic.sub.sending.next_plan()
    assert plan is not None
    selections = topic.sub.sending.routed(plan, [(0, 4)], 4, 0, slots=[1] * 4, sizes=[10] * 4)
    assert selections is not None
    assert [list(s.indices) for s in selections] == [[0]]
    topic.sub.members.grant(1, 0, 25)
    plan = topic.sub.sending.next_plan()
    assert plan is not None
    assert (plan.consumer_id, plan.ranges, plan.max_bytes) == (1, ((1, 4),), 20)


def test_row_35_a_nacked_message_comes_again_after_its_delay_and_its_key_waits_for_it() -> None:
    topic = Topic(["a", "b", "a", "b"])
    topic.join(1, "x")
    topic.pull()
    topic.nack(1, 0)
    topic.publish("a", "b")
    assert [topic.keys[o] for _, o in topic.pull()] == ["b"]
    assert topic.sub.next_deadline_ms() == 1000
    topic.sub.tick(1000)
    assert topic.pull(1000) == [(1, 0), (1, 4)]


def test_a_blocked_message_stops_its_key_only_and_what_came_before_it_still_goes() -> None:
    topic = Topic(["a", "a", "a", "b"], policy=FailurePolicy(max_redelivery_count=0, jitter=0.0))
    topic.join(1, "x")
    topic.pull()
    topic.nack(1, 1)
    topic.join(2, "x")
    assert sorted(topic.pull()) == [(2, 0), (2, 3)]
    topic.publish("a", "b")
    assert topic.pull() == [(2, 5)]
    blocked = topic.sub.statistics(0).blocked_by
    assert blocked is not None
    assert blocked.offset == 1
    topic.sub.failures.set_policy(FailurePolicy(max_redelivery_count=0, poison_policy=PoisonPolicy.DROP))
    assert sorted(topic.pull()) == [(2, 2), (2, 4)]


def test_filters_choose_the_consumer_and_a_key_nobody_accepts_is_acknowledged() -> None:
    topic = Topic(["eu-1", "us-1", "asia", "eu-22", "us-2"], same_slot=True)
    topic.join(1, "eu", filters=("eu-?", "eu-22"))
    topic.join(2, "us", filters=("us-*",))
    assert topic.sub.needs_keys
    sent = topic.pull()
    assert topic.owners(sent) == {"eu-1": {1}, "eu-22": {1}, "us-1": {2}, "us-2": {2}}
    assert topic.sub.statistics(0).unrouted == 1
    topic.ack(1, 0, 3)
    topic.ack(2, 1, 4)
    assert topic.sub.floor == 5


def test_a_filter_takes_every_other_character_as_it_is() -> None:
    topic = Topic(["a.b", "axb", "[a]", "a"])
    topic.join(1, "x", filters=("a.b", "[a]"))
    assert [topic.keys[o] for _, o in topic.pull()] == ["a.b", "[a]"]


def test_messages_held_before_filters_came_are_read_again_for_their_keys() -> None:
    topic = Topic(["a", "b", "a", "b"])
    topic.join(1, "x", credit=2)
    topic.pull()
    topic.join(2, "only b", filters=("b",))
    topic.sub.leave(1, 0)
    assert topic.sub.statistics(0).ready == 2
    plan = topic.sub.sending.next_plan(max_messages=1)
    assert plan is not None
    assert (plan.consumer_id, plan.fresh, plan.ranges) == (None, False, ((0, 1),))
    sent = topic.pull()
    assert (2, 1) in sent
    assert all(topic.keys[o] == "b" for _, o in sent)


def test_without_keys_a_filtered_part_is_refused_and_nothing_happens() -> None:
    topic = Topic(["a"])
    topic.join(1, "x", filters=("a",))
    plan = topic.sub.sending.next_plan()
    assert plan is not None
    for columns in ({"slots": [1]}, {"slots": [65_536], "keys": ["a"]}, {"slots": [1, 2]}, {}):
        with pytest.raises(InvalidArgument):
            topic.sub.sending.routed(plan, [(0, 1)], 1, 0, **columns)  # type: ignore[arg-type]
    assert topic.sub.statistics(0).next_offset == 0
    assert topic.pull() == [(1, 0)]


def test_a_take_over_keeps_the_slots_of_its_predecessor() -> None:
    topic = Topic([f"k{i}" for i in range(8)])
    topic.join(1, "x")
    topic.join(2, "y")
    before = topic.owners(topic.pull())
    topic.join(3, "y")
    after = topic.owners(topic.pull())
    assert after == {key: {3} for key, owners in before.items() if owners == {2}}


def test_a_seek_forgets_what_was_held_and_keeps_the_owners() -> None:
    topic = Topic(["a", "b", "c"] * 10)
    topic.join(1, "x", credit=3)
    topic.join(2, "y", credit=100)
    before = topic.owners(topic.pull())
    topic.sub.seek(0, 0)
    topic.sub.members.grant(1, 1000, 0)
    sent = topic.pull()
    assert sorted(o for _, o in sent) == list(range(30))
    assert topic.owners(sent) == before


def test_the_number_of_consumers_is_bounded_by_a_typed_error() -> None:
    topic = Topic([])
    for consumer_id in range(250):
        topic.join(consumer_id, f"c{consumer_id}")
    with pytest.raises(LimitReached):
        topic.join(250, "one more")
    topic.sub.leave(7, 0)
    topic.join(250, "one more")


def waiting_for_credit(messages: int) -> Topic:
    """Keys a and b in turn; x has a and 2 messages in flight, y has b and all its messages; a's rest waits."""
    topic = Topic(["a", "b"] * (messages // 2))
    topic.join(1, "x", credit=2)
    topic.join(2, "y")
    sent = topic.pull()
    assert [c for c, o in sent if topic.keys[o] == "a"] == [1, 1]
    assert [c for c, o in sent if topic.keys[o] == "b"] == [2] * (messages // 2)
    return topic


def test_what_waits_for_credit_alone_is_one_plan_when_credit_comes() -> None:
    topic = waiting_for_credit(400)
    topic.publish(*["a", "b"] * 50)
    assert topic.pull() == [(2, o) for o in range(401, 500, 2)]  # a's stay behind what waits
    topic.sub.members.grant(1, 500, 0)
    assert topic.pull(plans=1) == [(1, o) for o in range(4, 500, 2)]
    assert topic.pull() == []


def test_what_waits_for_credit_goes_in_pieces_as_credit_comes() -> None:
    topic = waiting_for_credit(20)
    for first in (4, 6, 8):
        topic.sub.members.grant(1, 1, 0)
        assert topic.pull() == [(1, first)]
    topic.sub.skip(11)  # 0 to 10, some of them in flight, some waiting
    topic.sub.members.grant(1, 100, 0)
    assert topic.pull() == [(1, o) for o in range(12, 20, 2)]


def test_a_message_that_comes_back_goes_before_what_waits_for_credit() -> None:
    topic = waiting_for_credit(20)
    topic.nack(1, 0)
    topic.sub.members.grant(1, 100, 0)
    assert topic.pull() == []  # its key waits for the retry
    topic.sub.tick(1000)
    assert topic.pull(1000) == [(1, 0), *((1, o) for o in range(4, 20, 2))]


def test_what_waits_for_the_credit_of_a_consumer_that_leaves_goes_to_another_in_order() -> None:
    topic = waiting_for_credit(20)
    topic.sub.leave(1, 0)
    assert topic.pull() == [(2, 0), (2, 2), *((2, o) for o in range(4, 20, 2))]


def test_what_waits_for_credit_is_forgotten_by_a_seek() -> None:
    topic = waiting_for_credit(20)
    topic.sub.seek(10, 0)
    topic.sub.members.grant(1, 100, 0)
    assert sorted(topic.pull()) == sorted((1 if o % 2 == 0 else 2, o) for o in range(10, 20))


def test_a_key_waits_for_its_holder_when_another_consumer_comes_back_with_filters() -> None:
    topic = Topic(["k"])
    topic.join(1, "x")
    topic.join(2, "y")
    assert topic.pull() == [(1, 0)]
    topic.join(3, "y", filters=("k*",))
    topic.publish("k")
    assert topic.pull() == []
    topic.ack(1, 0)
    assert [offset for _, offset in topic.pull()] == [1]


def test_a_consumer_that_comes_back_after_it_was_set_aside_has_its_share_again() -> None:
    keys = [f"k{number}" for number in range(8)]
    topic = Topic(list(keys), policy=FailurePolicy(jitter=0.0, ack_timeout_ms=1000))
    topic.join(1, "x")
    topic.join(2, "y")
    sent = topic.pull()
    topic.ack(1, *(offset for consumer_id, offset in sent if consumer_id == 1))
    topic.sub.tick(1000)
    again = topic.pull(1000)
    assert {consumer_id for consumer_id, _ in again} == {1}, "the other answered nothing"
    topic.ack(1, *(offset for _, offset in again))
    topic.join(3, "y")
    topic.publish(*keys)
    assert Counter(consumer_id for consumer_id, _ in topic.pull(1000)) == {1: 4, 3: 4}


def test_what_a_filtered_consumer_has_no_credit_for_is_sent_when_it_has() -> None:
    topic = Topic(["x"] * 5 + ["y"] * 5)
    topic.join(1, "x", credit=3, filters=("x",))
    topic.join(2, "y", filters=("y",))
    assert topic.pull() == [*((1, offset) for offset in range(3)), *((2, offset) for offset in range(5, 10))]
    topic.sub.members.grant(1, 10, 0)
    assert topic.pull() == [(1, 3), (1, 4)]


@pytest.mark.parametrize(("single", "filtered"), [(True, False), (False, True)])
def test_only_the_messages_that_were_sent_are_charged_to_the_byte_credit(
    single: bool, filtered: bool
) -> None:
    count = LARGE_PART  # from here on the bytes are added up for all consumers at once
    topic = Topic(["x", "y"] * (count // 2))
    for consumer_id, key, size_bytes in ((1, "x", 5), (2, "y", 1 << 20)):
        terms = ConsumerTerms(
            credit_messages=count,
            credit_bytes=size_bytes,
            single=single,
            key_filters=(key,) if filtered else (),
        )
        topic.sub.join(consumer_id, key, 0, terms)
    plan = topic.sub.sending.next_plan()
    assert plan is not None
    assert plan.consumer_id is None
    selections = topic.sub.sending.routed(
        plan,
        [(0, count)],
        count,
        0,
        slots=[0, 1] * (count // 2),
        keys=topic.keys if topic.sub.needs_keys else None,
        sizes=array("q", [3] * count),
    )
    assert selections is not None
    sent = {each.consumer_id: len(each.indices) for each in selections}
    assert sent[1] == 1, "5 bytes are enough for one message of 3"
    for consumer in topic.sub.statistics(0).consumers:
        given = 5 if consumer.consumer_id == 1 else 1 << 20
        assert consumer.credit_bytes == given - 3 * sent[consumer.consumer_id]


def test_a_recall_names_only_messages_whose_slot_waits_for_its_new_owner() -> None:
    topic = Topic([f"k{number}" for number in range(64)])
    topic.sub.join(1, "one", 0, ConsumerTerms(credit_messages=1000, credit_bytes=None, reports=True))
    assert len(topic.pull()) == 64
    assert topic.sub.next_recall(0) is None, "there is no other consumer"
    topic.join(2, "two")
    recall = topic.sub.next_recall(1_000)
    assert recall is not None
    recalled = {offset for start, end in recall.ranges for offset in range(start, end)}
    assert recall.consumer_id == 1
    assert 0 < len(recalled) <= 32
    session = topic.sub.session_of(1)
    assert session is not None
    assert topic.sub.answers.given_back(1, session, recall.ranges) == len(recalled)
    sent = topic.pull(1_000)
    assert {consumer for consumer, _ in sent} == {2}, "no message goes back to the consumer that gave it"
    assert {offset for _, offset in sent} == recalled
