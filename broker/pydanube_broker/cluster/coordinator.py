"""A broker's place in its cluster: its registration, and its view of all members and of each topic's owner.

One of several brokers on a store is registered under a lease, and follows changes by watch. The broker that creates a
topic assigns it, to a member chosen by zone and load (`owner_choice`). The first assignment is guarded by absence: if
two brokers assign a topic concurrently, exactly one succeeds. The assignment of a reliable topic does not expire: a
lease only shows that a broker is alive. Without its lease this broker continues to serve its topics, and gives up the
lead. The leader finishes operations that a crash interrupted, assigns topics without an assignment, and reassigns
non-reliable topics of members that are gone, because these topics store no messages.

A lone broker follows the same protocol, without watches: its directory lock is its lease, and only the holder of the
lock can open the store. So it takes over all topics of other lives and other ids.

Each start raises the epoch of each owned topic, so that no write of an earlier life can pass for the current owner's.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Self

import anyio
from pydanube_core.errors import ClusterError, Conflict
from pydanube_core.facts import LEASE_S, BrokerAddress
from pydanube_core.names import AUDIT_TOPIC, TopicName
from pydanube_storage.metadata import (
    MAX_OPERATIONS,
    Delete,
    KeyValue,
    MetadataStore,
    Revision,
    read_all,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assigner, Assignment, Found
from pydanube_broker.cluster.election import Election, ElectionState, Leadership
from pydanube_broker.cluster.epochs import sweep_epochs
from pydanube_broker.cluster.format_gate import are_starting, holding_up, refuse_older_builds
from pydanube_broker.cluster.format_step import FormatStep
from pydanube_broker.cluster.former_journal import check_former_journal
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.journal_record import OwnJournal
from pydanube_broker.cluster.membership import BrokerState, MemberRecord, Membership
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.cluster.owner_choice import Candidate, choose_owner
from pydanube_broker.cluster.records import DispatchStrategy, TopicRecord
from pydanube_broker.cluster.registry_records import WHOLE
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.records import Records, Table

log = logging.getLogger("pydanube.cluster")

LEASE_MS: Final = LEASE_S * 1000
SWEEP_S: Final = 2.0  # between two sweeps of the leader, which acts on topics that lack an owner in both
_AGAIN_S: Final = 1.0  # after the store did not answer
_EPOCHS_SWEPT_S: Final = 600.0  # one sweep reads the counters of all topic names
_ASSIGNMENTS_AT_ONCE: Final = 500  # maximum in one sweep


#: called with each assignment that is read or watched, None if it was deleted, and its revision
Seen = Callable[[TopicId, Assignment | None, Revision], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """A lost broker whose topics others take over.

    topics: not served yet.
    why: the error of the leader, or of heirs. None without one.
    damaged: a topic that waits because the copy of the broker's journal is damaged, None without one.
    """

    topics: int
    why: str | None
    damaged: str | None = None


class Coordinator:
    """`async with Coordinator(store, me, catalog=…, several=…, …) as coordinator`.

    Entering registers, loads the catalog, passes this broker's topics and their former assignments to `check`, and
    takes these topics in a new epoch, except moving ones. A lone broker takes all topics, after finishing operations
    that a crash interrupted. Others assign no topic to this broker before `open`.

    Args:
        several: whether other brokers may be on the same store.
        journal: this broker's journal.
        changed: called with the key of each assignment that changes afterwards. Never called for a lone broker.
        seen: called with each assignment that is read or watched. Never called for a lone broker.
    """

    def __init__(
        self,
        store: MetadataStore,
        me: BrokerAddress,
        *,
        catalog: TopicCatalog,
        several: bool,
        check: Callable[[Sequence[TopicRecord], Mapping[TopicId, Assignment]], None],
        changed: Callable[[str], None],
        seen: Seen,
        journal: OwnJournal | None = None,
    ) -> None:
        self.catalog = catalog
        self._store = store
        self._several = several
        self._check = check
        self._changed = changed
        self._seen = seen
        self._draw = random.Random()
        self._me = BrokerId(int(me.broker_id))
        self._journal = journal if several else None
        self.membership = Membership(
            store,
            me,
            ttl_ms=LEASE_MS if several else None,
            wall_ms=_wall_ms,
            state=BrokerState.STARTING if several else BrokerState.ACTIVE,
            journal=self._journal,
        )
        self._election: Election | None = None
        self._format_raised = False  # by this broker, as the leader
        self._waited_for: set[BrokerId] = set()  # brokers of older builds
        self._epochs_swept: tuple[int, float] | None = None  # as of which change of the index, and when
        self._assigner = Assigner(store, quarantine=catalog.quarantine)
        self._places: dict[TopicId, Assignment] = {}
        self._mine: dict[TopicId, Assignment] = {}
        self._changes = 0  # of assignments and members, as they are watched
        self.moving: set[TopicId] = set()  # topics with a move in progress
        self.failed: set[TopicId] = set()  # topics whose last move was cancelled
        self.member_came: Callable[[], None] = lambda: None  # called when a broker has registered
        self.member_gone: Callable[[], None] = lambda: None  # called when a broker is no longer registered
        # While this broker leads: lost brokers whose topics are taken over
        self.taken_over: Mapping[BrokerId, TakenOver] = {}
        self._load: Counter[BrokerId] = Counter()
        # As `_load`, with moving topics counted at their next owner
        self._heading: Counter[BrokerId] = Counter()
        self._members: dict[BrokerId, MemberRecord] = {}
        self._topics_then: dict[BrokerId, int] = {}  # number of topics at each broker's last load report
        # The last records of brokers no longer registered, and the wall clock when their registration ended
        self._gone: dict[BrokerId, tuple[MemberRecord, int]] = {}
        quarantine = catalog.quarantine
        self._place_table = Table(keys.ASSIGNMENTS, _assignment_of)
        self._place_records = Records(
            store, [self._place_table], changed=self._take_places, quarantine=quarantine
        )
        self._member_table = Table(keys.MEMBERS, _member_of, changed=self._take_member)
        self._member_records = Records(store, [self._member_table], quarantine=quarantine)
        self._stack = AsyncExitStack()

    # -- the view --------------------------------------------------------------------------------------------

    @property
    def assignments(self) -> Mapping[TopicId, Assignment]:
        """The topics that this broker owns."""
        return self._mine

    @property
    def changes(self) -> int:
        """The number of changes of assignments and members that this broker has seen."""
        return self._changes

    @property
    def members(self) -> Mapping[BrokerId, MemberRecord]:
        """The brokers that are registered now."""
        return self._members

    def leads(self) -> bool:
        """Return whether this broker leads the cluster now."""
        return self._election is not None and self._election.state is ElectionState.LEADING

    @property
    def leadership(self) -> Leadership:
        """Return this broker's leadership. Raises `Conflict` if it does not lead."""
        if self._election is None:
            raise Conflict("this broker is not a candidate now", broker_id=str(self._me))
        return self._election.leadership

    def alive(self) -> dict[BrokerId, Incarnation]:
        """Return the brokers that take topics, those with the fewest topics first."""
        active = sorted(self._active(), key=lambda broker: self._heading[broker])
        return {broker: Incarnation(self._members[broker].incarnation) for broker in active}

    def heirs(self) -> dict[BrokerId, Incarnation]:
        """Return the brokers of `alive` that can take over topics of a lost broker. An older release reads no chain."""
        return {broker: life for broker, life in self.alive().items() if self._members[broker].inherits}

    def spread(
        self,
        topics: Sequence[TopicId],
        *,
        avoid: Mapping[TopicId, BrokerId] = MappingProxyType({}),
        to_heirs: bool = False,
    ) -> dict[TopicId, BrokerId]:
        """Choose a broker for each topic as if all moved: the one with the fewest topics, including those just chosen.

        Topics that no other broker could take are left out. `avoid`: brokers to choose only if there is no other.
        `to_heirs`: choose among `heirs`.
        """
        load, active = self._heading.copy(), self.heirs() if to_heirs else self._active()
        found: dict[TopicId, BrokerId] = {}
        for topic_id in topics:
            place = self._places.get(topic_id)
            others = [broker for broker in active if place is None or broker != place.broker_id]
            if others:
                found[topic_id] = min(
                    others, key=lambda broker: (broker == avoid.get(topic_id), load[broker], broker)
                )
                load[found[topic_id]] += 1
        return found

    async def give(self, topic: TopicRecord, to: BrokerId) -> None:
        """Assign a non-reliable topic to another broker. Its current owner releases it when it sees the assignment.

        Raises:
            Conflict: it was deleted, or assigned by another broker, concurrently. StoreUnavailable.
        """
        incarnation = Incarnation(self._members[to].incarnation)
        self.note(await self._assigner.assign(topic, to, incarnation=incarnation, take_over=True))

    async def raise_epoch(self, topic: TopicRecord, above: int) -> Epoch | None:
        """Own a topic in a new epoch above another cluster's. None while it moves: the move ends in such an epoch.

        Raises `Conflict`: it was deleted or assigned concurrently. StoreUnavailable.
        """
        incarnation = Incarnation(self._members[self._me].incarnation)
        try:
            made = await self._assigner.assign(topic, self._me, incarnation=incarnation, above=above)
        except Conflict:
            place = self.place(topic.topic_id)
            if place is None or place.stage is Stage.SERVING:
                raise
            await self._assigner.skip_epochs(topic.topic, above)
            return None
        self.note(made)
        return made.epoch

    def leader(self) -> BrokerAddress | None:
        """Return the last seen leader, or None if there is none."""
        leader = None if self._election is None else self._election.leader
        return None if leader is None else self.address(leader.broker_id)

    def epoch(self, topic_id: TopicId) -> Epoch:
        """Return the epoch in which this broker owns the topic. Raises `KeyError` if it does not own it."""
        return self._mine[topic_id].epoch

    def place(self, topic_id: TopicId) -> Assignment | None:
        """Return the assignment of a topic, or None if it has no owner."""
        return self._places.get(topic_id)

    def watched(self, topic_id: TopicId) -> tuple[Assignment, Revision] | None:
        """Return the assignment of a topic as it was read or watched last, with its revision.

        None if there is none, or if it cannot be read.
        """
        key = keys.assignment_key(topic_id)
        made, revision = self._place_table.get(key), self._place_table.revision(key)
        return (
            None
            if made is None or revision is None or key in self.catalog.quarantine.found
            else (made, revision)
        )

    def moving_places(self) -> list[Assignment]:
        """Return the assignments of topics that move, anywhere in the cluster."""
        return [place for topic_id in self.moving if (place := self._places.get(topic_id)) is not None]

    def address(self, broker_id: BrokerId) -> BrokerAddress | None:
        """Return a broker's address, its last one if it is not registered, or None if it was never seen."""
        record = self._members.get(broker_id)
        if record is None:
            record, _ = self._gone.get(broker_id, (None, 0))
        if record is None:
            return None
        return BrokerAddress(
            broker_id=record.broker_id,
            broker_url=record.broker_url,
            admin_url=record.admin_url,
            zone=record.zone,
            name=record.name,
        )

    def gone_addresses(self) -> list[BrokerAddress]:
        """Return the last addresses of the brokers that this one saw go, and that are not registered again."""
        return [
            address
            for broker_id in self._gone
            if broker_id not in self._members and (address := self.address(broker_id)) is not None
        ]

    def gone_since_ms(self, broker_id: BrokerId) -> int | None:
        """Return when this broker saw the registration of another one end, or None."""
        _, since_ms = self._gone.get(broker_id, (None, None))
        return since_ms if broker_id not in self._members else None

    def absent_owners(self) -> Mapping[BrokerId, int]:
        """Return the number of waiting topics of each owner that is not registered now, without its own audit.

        Zero: only its audit waits.
        """
        if self._load.keys() <= self._members.keys():
            return {}
        restorable = Counter(
            place.broker_id
            for topic_id in self.catalog.restorable.topics
            if (place := self._places.get(topic_id))
        )
        return {
            broker_id: waiting - self._audits_of(broker_id)
            for broker_id, topics in self._load.items()
            if (waiting := topics - restorable[broker_id]) > 0 and broker_id not in self._members
        }

    def _audits_of(self, broker_id: BrokerId) -> int:
        """Return the number of audit topics of a broker: one, if it has written any."""
        topic = self.catalog.index.find_topic(TopicName.parse(f"{AUDIT_TOPIC}-{broker_id}"))
        place = None if topic is None else self._places.get(topic.topic_id)
        return int(place is not None and place.broker_id == broker_id)

    def lost_owners(self) -> set[BrokerId]:
        """Return the owners of topics, also of restorable ones, that are not registered now."""
        return {broker for broker, topics in self._load.items() if topics > 0 and broker not in self._members}

    @property
    def placed(self) -> int:
        """The number of topics that have an owner, anywhere in the cluster."""
        return len(self._places)

    def owned_by(self, broker_id: BrokerId) -> list[Assignment]:
        """Return the topics that a broker owns, with deleted ones that can be restored. O(topics)."""
        return [place for place in self._places.values() if place.broker_id == broker_id]

    # -- changes ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Announce that this broker takes topics: from now on other brokers may assign topics to it."""
        if self._several:
            await self.membership.set_state(BrokerState.ACTIVE, reason="ready")

    async def assign(self, topics: Sequence[TopicRecord], *, here: bool = False) -> list[Assignment]:
        """Assign the topics that have no owner yet. Return those that this broker owns.

        Args:
            here: choose this broker.
        """
        missing = [topic for topic in topics if topic.topic_id not in self._places]
        if missing and self._several:
            await self._assign_first(missing, self._assigner, here=here)
        elif missing:
            # A restored topic has an assignment in the store, and gets a new epoch too.
            await self._raise_epochs(missing, {})
        return [self._mine[topic.topic_id] for topic in topics if topic.topic_id in self._mine]

    def forget(self, topic_id: TopicId) -> None:
        """Forget a deleted topic. The catalog deletes its assignment in the store."""
        self._set(topic_id, None)

    async def _assign_first(
        self, topics: Sequence[TopicRecord], assigner: Assigner, *, here: bool = False
    ) -> None:
        chosen: dict[BrokerId, list[TopicRecord]] = {}
        standings = {} if here else self._candidates()
        zones: dict[TopicName, Counter[str]] = {}
        for topic in topics:
            owner = self._me
            if standings:
                if topic.topic.base not in zones:
                    zones[topic.topic.base] = self._zones_beside(topic)
                owner = choose_owner(standings, zones[topic.topic.base], self._draw)
                there = standings[owner]
                standings[owner] = replace(there, topics=there.topics + 1)
                zones[topic.topic.base][there.zone] += 1
            chosen.setdefault(owner, []).append(topic)
        for owner, those in chosen.items():
            member = self._members.get(owner)
            incarnation = (
                self.membership.registration.incarnation
                if member is None
                else Incarnation(member.incarnation)
            )
            for made in await assigner.assign_first(those, owner, incarnation=incarnation):
                self.note(made)

    def _active(self) -> list[BrokerId]:
        return [broker for broker, member in self._members.items() if member.state is BrokerState.ACTIVE]

    def _candidates(self) -> dict[BrokerId, Candidate]:
        """Return the brokers that take topics, with their load and number of topics in this broker's view."""
        return {
            broker: Candidate(
                topics=self._heading[broker],
                zone=self._members[broker].zone,
                load=self._members[broker].load,
                topics_then=self._topics_then.get(broker, 0),
            )
            for broker in self._active()
        }

    def _zones_beside(self, topic: TopicRecord) -> Counter[str]:
        """Return the number of other partitions of the same topic, by zone."""
        parts = () if topic.parent is None else self.catalog.index.partitions(topic.parent)
        owners = [place.next_owner for part in parts if (place := self._places.get(part.topic_id))]
        return Counter(self._members[owner].zone for owner in owners if owner in self._members)

    def note(self, made: Assignment) -> None:
        """Take in an assignment that this broker wrote, or that was watched, unless a later epoch was seen."""
        known = self._places.get(made.topic_id)
        if known is None or known.epoch <= made.epoch:
            self._set(made.topic_id, made)

    def _set(self, topic_id: TopicId, made: Assignment | None) -> None:
        self._changes += 1
        former = self._places.pop(topic_id, None)
        self._mine.pop(topic_id, None)
        self.moving.discard(topic_id)
        self.failed.discard(topic_id)
        if former is not None:
            self._load[former.broker_id] -= 1
            self._heading[former.next_owner] -= 1
        if made is not None:
            self._places[topic_id] = made
            self._load[made.broker_id] += 1
            self._heading[made.next_owner] += 1
            if made.stage is not Stage.SERVING:
                self.moving.add(topic_id)
            if made.failed is not None:
                self.failed.add(topic_id)
            if made.broker_id == self._me and made.is_served:
                self._mine[topic_id] = made

    # -- life ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.catalog.records.aclose)
            await self.catalog.load()
            if self._journal is not None:
                await check_former_journal(self._store, self._me, self._journal)
            await stack.enter_async_context(self.membership)
            await (self._join(stack) if self._several else self._take_over(stack))
            log.info(
                "office_taken",
                extra={
                    "incarnation": self.membership.registration.incarnation,
                    "members": len(self._members),
                    "topics": len(self.catalog.index.topics()),
                    "owned": len(self._mine),
                },
            )
            self._stack = stack.pop_all()
        return self

    async def _join(self, stack: AsyncExitStack) -> None:
        """Continue with the topics that this broker owns, and watch members and assignments."""
        for records in (self._member_records, self._place_records):
            stack.push_async_callback(records.aclose)
            await records.load()
        own = [topic for topic in self.catalog.index.topics() if topic.topic_id in self._mine]
        self._check(own, dict(self._mine))
        former = {
            topic.topic_id: found for topic in own if (found := self.watched(topic.topic_id)) is not None
        }
        await self._raise_epochs([topic for topic in own if topic.topic_id not in self.moving], former)
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        for records in (self._member_records, self._place_records):
            group.start_soon(records.follow)
        group.start_soon(self._campaign)

    async def _take_over(self, stack: AsyncExitStack) -> None:
        """Take all topics. Delete the registrations of other brokers, and the assignments of deleted topics."""
        self._election = await stack.enter_async_context(Election(self._store, self.membership.registration))
        assert self.leads(), "only the leader opens the store"
        await self.catalog.resume()
        if self.catalog.raises_format:
            await self._raise_format()
        found = await self._assigner.found()
        former = {topic_id: assignment for topic_id, (assignment, _) in found.items()}
        await self.catalog.wholes.sweep(self.leadership.guard, former)
        topics = self.catalog.index.topics()
        self._check(topics, former)
        own, (members, _) = keys.member_key(self._me), await read_all(self._store, keys.MEMBERS)
        left = [item.key for item in members if item.key != own]
        left += [
            keys.assignment_key(topic_id)
            for topic_id in former.keys() - {topic.topic_id for topic in topics}
            if not self.catalog.restorable.keeps_data(topic_id)
        ]
        for start in range(0, len(left), MAX_OPERATIONS - 1):
            deletions = [Delete(key) for key in left[start : start + MAX_OPERATIONS - 1]]
            await self._store.transact(deletions, guards=[self.leadership.guard])
        await self._member_table.load(self._store, self.catalog.quarantine)
        await self._raise_epochs(topics, found)

    async def _raise_epochs(self, topics: Sequence[TopicRecord], former: Mapping[TopicId, Found]) -> None:
        """Assign topics to this broker in a new epoch. A lone broker takes them from any owner."""
        taken = await self._assigner.assign_all(
            topics,
            self._me,
            incarnation=self.membership.registration.incarnation,
            current=former,
            take_over=not self._several,
        )
        for made in taken.values():
            self.note(made)

    async def __aexit__(self, *failure: Any) -> bool | None:
        return await self._stack.__aexit__(*failure)

    # -- leading ---------------------------------------------------------------------------------------------

    async def _campaign(self) -> None:
        """Campaign with one registration after the other, and do the leader's work while elected."""
        while True:
            registration = self.membership.registration
            try:
                async with (
                    Election(self._store, registration) as election,
                    anyio.create_task_group() as group,
                ):
                    self._election = election
                    group.start_soon(self._lead, election)
                    await registration.lost.wait()
                    group.cancel_scope.cancel()
            except ClusterError as error:
                log.warning("election_waits", extra={"code": error.code})
            self._election = None
            await self.membership.renewed_after(registration)
            await anyio.sleep(0 if self.membership.registration is not registration else _AGAIN_S)

    async def _lead(self, election: Election) -> None:
        while True:
            await election.wait_until(ElectionState.LEADING)
            log.info("leading", extra={"broker_id": str(self._me)})
            before: set[TopicId] = set()
            swept = -1  # the number of changes at the last sweep
            while election.state is ElectionState.LEADING:
                try:
                    if swept < 0:
                        await self.catalog.resume()
                        await self.catalog.wholes.sweep(self.leadership.guard, self._places)
                        self._format_raised = False
                    if not self._format_raised:
                        await self._raise_format()
                    changed = self._changes + self.catalog.index.changes
                    # Without a change all topics still have owners: skip the check of ten thousand topics
                    if before or changed != swept:
                        before, swept = await self._sweep(election, before), changed
                except ClusterError as error:  # the next sweep follows soon
                    log.warning("sweep_failed", extra={"code": error.code})
                await anyio.sleep(SWEEP_S)

    async def _raise_format(self) -> None:
        """Raise the metadata to this build's format, once each broker that may read the metadata announces it."""
        if await self._holding_up():
            return
        await refuse_older_builds(self._store)
        if await self._holding_up():  # an older build may have started before the refusal
            return
        await FormatStep(self.catalog, self.leadership.guard).take()
        self._format_raised = True

    async def _holding_up(self) -> set[BrokerId]:
        """Read the brokers of older builds from the store."""
        if not self._several:
            return set()
        # Read before the members: a broker that registers in between is in one of the two.
        residents, _ = await read_all(self._store, keys.RESIDENTS)
        incarnations, _ = await read_all(self._store, keys.INCARNATIONS)
        items, _ = await read_all(self._store, keys.MEMBERS)
        removed, _ = await read_all(self._store, keys.REMOVED)
        members = {
            BrokerId(keys.number_in_key(item.key)): MemberRecord.from_json(item.value, key=item.key)
            for item in items
        }
        owners = {each.broker_id for each in self._places.values() if not each.topic.is_audit}
        owners |= are_starting(residents, incarnations)
        found = holding_up(members, owners, {BrokerId(keys.number_in_key(each.key)) for each in removed})
        if found != self._waited_for:
            self._waited_for = found
            log.info("metadata_format_waits", extra={"broker_ids": sorted(map(str, found))})
        return found

    async def _sweep(self, election: Election, before: set[TopicId]) -> set[TopicId]:
        """Assign topics that had no serving owner in this sweep and the last one. Return those without one now."""
        lacking = {topic.topic_id: topic for topic in self.catalog.index.topics() if self._is_lacking(topic)}
        due = [topic for topic_id, topic in lacking.items() if topic_id in before][:_ASSIGNMENTS_AT_ONCE]
        orphans = [topic for topic in due if topic.topic_id in self._places]
        if due:
            assigner = Assigner(
                self._store, leadership=election.leadership, quarantine=self.catalog.quarantine
            )
            await self._assign_first([t for t in due if t.topic_id not in self._places], assigner)
            for topic in orphans:
                standings = self._candidates()
                if standings and self._is_lacking(topic):
                    to = choose_owner(standings, self._zones_beside(topic), self._draw)
                    incarnation = Incarnation(self._members[to].incarnation)
                    with suppress(Conflict):  # deleted, or its owner is back
                        made = await assigner.assign(topic, to, incarnation=incarnation, take_over=True)
                        self.note(made)
        return set(lacking)

    def _is_lacking(self, topic: TopicRecord) -> bool:
        place, stores = self._places.get(topic.topic_id), topic.dispatch_strategy is DispatchStrategy.RELIABLE
        if place is not None and (place.broker_id in self._members or stores):
            return False
        # An assignment that this build cannot read may have an owner
        return keys.assignment_key(topic.topic_id) not in self.catalog.quarantine.found

    async def sweep_metadata(self) -> None:
        """As the leader, delete records that deleted topics left. Raises `Conflict` and `GuardFailed` if another broker leads."""
        guard, index = self.leadership.guard, self.catalog.index
        await self.catalog.wholes.sweep(guard)
        if index.format.metadata_format < WHOLE:
            return  # a broker of an older build would start swept names at epoch 0
        changes, now_s = index.changes, time.monotonic()
        if (last := self._epochs_swept) and (last[0] == changes or now_s < last[1] + _EPOCHS_SWEPT_S):
            return
        names = {each.topic for each in index.topics()} | {each.topic for each in self._places.values()}
        names |= {TopicName.parse(each.name) for each in self.catalog.restorable.topics.values()}
        await sweep_epochs(self._store, guard, {keys.EPOCH_FLOOR, *map(keys.epoch_key, names)})
        self._epochs_swept = changes, now_s

    # -- watches ---------------------------------------------------------------------------------------------

    def _take_places(self, changed: Sequence[str]) -> None:
        """Take in assignments that were read or watched."""
        for key in changed:
            if key in self.catalog.quarantine.found:
                continue
            topic_id, made = TopicId(keys.number_in_key(key)), self._place_table.get(key)
            if made is None:
                self._set(topic_id, None)
            else:
                self.note(made)
            revision = self._place_table.revision(key) or self._place_records.revision
            self._seen(topic_id, made, revision)
            self._changed(key)

    def _take_member(self, key: str, before: MemberRecord | None, after: MemberRecord | None) -> None:
        self._changes += 1
        broker_id = BrokerId(keys.number_in_key(key))
        if after is None:
            if before is not None:
                del self._members[broker_id]
                self._gone[broker_id] = before, _wall_ms()
                log.info("member_gone", extra={"broker_id": str(broker_id)})
                self.member_gone()
            return
        self._members[broker_id] = after
        if before is None or before.load != after.load:
            self._topics_then[broker_id] = self._heading[broker_id]
        if before is None:
            self.member_came()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _assignment_of(item: KeyValue) -> Assignment:
    return Assignment.of(item.key, item.value)


def _member_of(item: KeyValue) -> MemberRecord:
    return MemberRecord.from_json(item.value, key=item.key)
