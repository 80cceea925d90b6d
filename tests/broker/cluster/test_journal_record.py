"""The record of a broker's journal: kept over restarts, raised by a take-over, opened again when its broker is back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.former_journal import check_former_journal
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.journal_record import (
    JournalRecord,
    JournalState,
    OwnJournal,
    fenced,
    registered,
    settled,
    taken_over,
)
from pydanube_broker.cluster.membership import Membership
from pydanube_core.errors import Conflict
from pydanube_core.facts import BrokerAddress
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Delete, Put

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

JOURNAL = (1 << 64) - 1
TOPICS = [TopicId(n) for n in (9, 10, 11)]


def opened(**changes: object) -> JournalRecord:
    return replace(JournalRecord(journal=JOURNAL, term=3, copies=True), **changes)


def closing(until: int = 7) -> JournalRecord:
    return (
        fenced(taken_over(opened(), TOPICS), until, [BrokerId(2)]) if until else taken_over(opened(), TOPICS)
    )


def membership(store: MemoryStore, clock: ManualClock, journal: int | None) -> Membership:
    me = BrokerAddress(broker_id="1", broker_url="http://b:1", admin_url="http://b:2")
    ttl_ms = None if journal is None else 30_000
    own = None if journal is None else OwnJournal(number=journal)
    return Membership(store, me, ttl_ms=ttl_ms, wall_ms=lambda: 5, clock=clock, journal=own)


async def stored(store: MemoryStore) -> JournalRecord | None:
    item = await store.get(keys.journal_key(BrokerId(1)))
    return None if item is None else JournalRecord.from_json(item.value, key=item.key)


@pytest.mark.anyio
async def test_registration_writes_the_record_once(store: MemoryStore, clock: ManualClock) -> None:
    async with membership(store, clock, JOURNAL):
        first = await stored(store)
    assert first == JournalRecord(journal=JOURNAL, term=1)
    revision = (await store.get(keys.journal_key(BrokerId(1)))).mod_revision  # type: ignore[union-attr]
    async with membership(store, clock, JOURNAL):
        pass
    again = await store.get(keys.journal_key(BrokerId(1)))
    assert again is not None
    assert again.mod_revision == revision
    async with membership(store, clock, 5):
        assert await stored(store) == JournalRecord(journal=5, term=2)


def test_start_of_a_broker_that_stores_topics_keeps_its_chain() -> None:
    stores = OwnJournal(number=JOURNAL, is_needed=True)
    assert registered(opened(), stores, is_start=True) == opened()
    assert not registered(opened(), OwnJournal(number=JOURNAL), is_start=True).copies
    assert not registered(opened(), replace(stores, number=5), is_start=True).copies, "another journal"


@pytest.mark.anyio
@pytest.mark.parametrize("there", [opened(), closing(0), closing()])
async def test_start_with_another_journal_is_refused_while_topics_are_in_the_first(
    store: MemoryStore, there: JournalRecord
) -> None:
    names = ["/default/a", "/system/audit-1"]
    await store.transact(
        [
            Put(keys.journal_key(BrokerId(1)), there.to_json()),
            *(
                Put(
                    keys.assignment_key(topic_id),
                    Assignment(
                        topic=TopicName.parse(name),
                        broker_id=BrokerId(1),
                        incarnation=Incarnation(1),
                        epoch=Epoch(1),
                    ).to_json(),
                )
                for topic_id, name in zip(TOPICS, names, strict=False)
            ),
        ]
    )
    me, other = BrokerId(1), OwnJournal(number=5)
    with pytest.raises(Conflict, match="its folder was lost") as refused:
        await check_former_journal(store, me, other)
    assert refused.value.details["reason"] == "journal_is_gone"
    await check_former_journal(store, me, OwnJournal(number=JOURNAL))
    await check_former_journal(store, BrokerId(2), other)
    await store.transact([Delete(keys.assignment_key(TOPICS[0]))])
    await check_former_journal(store, me, other)  # the audit stays with it


@pytest.mark.anyio
async def test_chain_of_a_process_is_kept_until_another_one_starts(
    store: MemoryStore, clock: ManualClock
) -> None:
    key = keys.journal_key(BrokerId(1))
    async with membership(store, clock, JOURNAL) as joined:
        copying = replace(JournalRecord(journal=JOURNAL, term=1), copies=True)
        await store.transact([Put(key, copying.to_json())])
        former, lease_id = joined.registration, joined.registration.lease_id
        assert lease_id is not None
        await store.revoke_lease(lease_id)
        clock.advance(20_000)
        await joined.renewed_after(former)
        assert await stored(store) == copying, "the same process registered again"
    async with membership(store, clock, JOURNAL):
        assert await stored(store) == replace(copying, copies=False), "this one may not copy"


@pytest.mark.anyio
async def test_lone_broker_has_no_record(store: MemoryStore, clock: ManualClock) -> None:
    async with membership(store, clock, None):
        assert await stored(store) is None


@pytest.mark.anyio
async def test_registration_leaves_a_record_whose_topics_are_taken_over(
    store: MemoryStore, clock: ManualClock
) -> None:
    there = closing()
    await store.transact([Put(keys.journal_key(BrokerId(1)), there.to_json())])
    async with membership(store, clock, JOURNAL):
        assert await stored(store) == replace(there, topics=()), "it keeps topics that are not sealed"


@given(
    st.builds(
        JournalRecord,
        journal=st.integers(1, JOURNAL),
        term=st.integers(1, 1 << 60),
        from_piece=st.integers(1, 1 << 60),
        until=st.integers(0, 1 << 60),
        state=st.just(JournalState.CLOSING),
        heirs=st.lists(st.integers(1, 1 << 62).map(str)).map(tuple),
        topics=st.lists(st.integers(1, 1 << 62).map(str)).map(tuple),
        copies=st.booleans(),
    )
)
def test_record_round_trips(record: JournalRecord) -> None:
    assert JournalRecord.from_json(record.to_json(), key="/journals/1") == record


def test_first_plan_raises_the_term_and_later_ones_add_topics() -> None:
    first = taken_over(opened(until=0), TOPICS[:1])
    assert (first.term, first.state, first.topics) == (4, JournalState.CLOSING, ("9",))
    more = taken_over(fenced(first, 7, [BrokerId(2)]), TOPICS[1:])
    assert (more.term, more.until, more.heirs, more.topics) == (4, 7, ("2",), ("9", "10", "11"))


def test_record_is_settled_only_once_no_heir_is_at_work() -> None:
    assert settled(closing(), is_back=False, under_way=TOPICS[:1], left={}) == closing()
    back = settled(closing(), is_back=True, under_way=(), left={TOPICS[0]: False})
    assert (back.state, back.term, back.until, back.topics) == (JournalState.OPEN, 4, 0, ())
    assert not back.copies, "its broker found the record closing, and began no chain"
    partly = settled(closing(), is_back=False, under_way=(), left={TOPICS[1]: False})
    assert (partly.state, partly.until, partly.topics) == (JournalState.CLOSING, 7, ("10",))
    others_wait = settled(closing(), is_back=False, under_way=(), left={TopicId(99): False})
    assert (others_wait.state, others_wait.topics) == (JournalState.CLOSING, ())
    done = settled(closing(), is_back=False, under_way=(), left={TopicId(99): True})
    assert (done.state, done.topics) == (JournalState.CLOSED, ())


@pytest.mark.parametrize("is_registered", [True, False], ids=["registered", "by an older release"])
def test_only_sealed_topics_of_a_broker_that_is_back_are_still_taken_over(is_registered: bool) -> None:
    left = opened(is_whole=True, on_loss="take_over")
    there = fenced(taken_over(left, TOPICS, given_up=TOPICS[:2]), 7, [BrokerId(2)])
    if is_registered:
        own = OwnJournal(number=JOURNAL)
        there = registered(there, own, is_start=True)
        assert (there.topics, there.given_up, there.is_whole, there.on_loss) == ((), (), False, "")
        assert (there.state, there.until) == (JournalState.CLOSING, 7), "heirs still read the chain"
    back = settled(there, is_back=True, under_way=TOPICS[1:2], left=dict.fromkeys(TOPICS[:1], False))
    assert (back.state, back.until, back.topics) == (JournalState.CLOSING, 7, ("10",))
    assert back.given_up == (() if is_registered else ("10",))
    assert not back.is_whole
    assert not back.on_loss
    # Its next loss takes nothing from the chain, which ended at the fence
    assert settled(back, is_back=False, under_way=TOPICS[1:2], left={}) == back


class Records(RuleBasedStateMachine):
    """Any order of registrations, plans, fences and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.record = replace(registered(None, OwnJournal(number=JOURNAL), is_start=True), copies=True)
        self.fences: dict[int, int] = {}  # term → number, as it was recorded
        self.read: set[TopicId] = set()  # topics that heirs read now
        self.at_broker = dict.fromkeys(TOPICS, False)
        self.acknowledged: set[TopicId] = set()  # since their last plan, while the chain had ended
        self.given_up: set[TopicId] = set()  # by a plan since the broker was lost
        self.is_back = True

    @rule()
    def is_lost(self) -> None:
        self.is_back = False

    @rule(journal=st.sampled_from([JOURNAL, 5]), is_start=st.booleans())
    def registers(self, journal: int, is_start: bool) -> None:
        before = self.record
        self.record = registered(before, OwnJournal(number=journal), is_start=is_start)
        if before.state is JournalState.CLOSING:
            kept = replace(before, topics=(), given_up=(), is_whole=False, on_loss=self.record.on_loss)
            assert self.record == kept, "heirs may be reading"
        elif before.journal != journal:
            assert self.record.term > before.term, "no term twice"
            assert not self.record.copies, "its chain is another"
        self.record = replace(self.record, copies=True)  # the chain is begun
        self.is_back = True

    @precondition(lambda self: self.is_back)
    @rule()
    def acknowledges(self) -> None:
        if self.record.state is JournalState.CLOSING:
            self.acknowledged.update(self.at_broker)
            self.given_up &= self.read

    @precondition(lambda self: self.is_back and self.record.state is JournalState.OPEN)
    @rule()
    def stops_in_order(self) -> None:
        self.record, self.is_back = replace(self.record, is_whole=True), False

    @precondition(lambda self: not self.is_back)
    @rule(topics=st.lists(st.sampled_from(TOPICS), min_size=1), gives_up=st.booleans())
    def plan(self, topics: list[TopicId], gives_up: bool) -> None:
        named = [each for each in topics if each in self.at_broker]
        self.record = taken_over(self.record, named, named if gives_up else ())
        self.acknowledged.difference_update(named)  # the plan shows the loss
        self.given_up.update(named if gives_up else ())

    @precondition(lambda self: self.record.state is JournalState.CLOSING and not self.record.is_fenced)
    @rule(more=st.integers(0, 9))
    def fence(self, more: int) -> None:
        self.record = fenced(self.record, self.record.from_piece + more, [BrokerId(2)])
        assert self.record.term not in self.fences, "one recorded end a term"
        self.fences[self.record.term] = self.record.until

    @precondition(lambda self: not self.is_back and self.record.is_fenced and self.record.topics)
    @rule()
    def take_away(self) -> None:
        for name in self.record.topics:
            if self.at_broker.pop(TopicId(int(name)), None) is not None:
                assert TopicId(int(name)) not in self.acknowledged, (
                    "a plan names what the chain does not have"
                )
                assert TopicId(int(name)) in self.given_up or name not in self.record.given_up
                self.read.add(TopicId(int(name)))

    @rule()
    def opens(self) -> None:
        if self.read:
            self.read.pop()

    @rule()
    def settle(self) -> None:
        self.record = settled(self.record, is_back=self.is_back, under_way=self.read, left=self.at_broker)
        self.record = replace(self.record, copies=True)
        if self.record.state is JournalState.OPEN:
            self.acknowledged.clear()  # the next chain begins with all that the journal has
            self.given_up.clear()

    @invariant()
    def a_chain_that_has_ended_is_not_whole(self) -> None:
        if self.record.is_whole:
            assert not self.acknowledged

    @invariant()
    def what_heirs_read_stays(self) -> None:
        if self.read:
            assert self.record.state is JournalState.CLOSING
            assert self.fences[self.record.term] == self.record.until


TestRecords = Records.TestCase


def test_a_broker_that_has_stopped_in_order_says_so_until_it_starts_again() -> None:
    left = opened(on_loss="take_over", is_whole=True)
    assert JournalRecord.from_json(left.to_json(), key="/journals/1") == left
    assert taken_over(left, TOPICS).is_whole
    assert not registered(left, OwnJournal(number=JOURNAL), is_start=True).is_whole
    over = fenced(taken_over(left, TOPICS), 7, [BrokerId(2)])
    assert not settled(over, is_back=True, under_way=(), left={}).is_whole
