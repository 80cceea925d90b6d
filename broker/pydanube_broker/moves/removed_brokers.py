"""The leader's part in a removal or take-over: take topics away from a lost broker, and have others open them.

A removed broker loses all of its topics, a broker that may come back loses those that a plan names (`take_over`).

The leader decides the offset at which a topic continues, and seals it. The next owner rebuilds it from the store
(`topics.rebuilt_state`). Each topic is sealed and assigned in one guarded transaction, several topics in one, so two
leaders, or a leader that is killed in between, do each of them exactly once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import anyio
from pydanube_core.errors import (
    ClusterError,
    Conflict,
    CorruptObject,
    DiskFull,
    InvalidArgument,
    LastBroker,
    MetadataUnavailable,
    Unavailable,
)
from pydanube_core.facts import RemovalFacts, TakeOverFacts
from pydanube_core.links import link_of
from pydanube_core.refusals import damaged_copy
from pydanube_storage.catalog import CatalogHead, ObjectCatalog
from pydanube_storage.catalog.catalog import Committed
from pydanube_storage.metadata import MAX_OPERATIONS, Guard, GuardFailed, MetadataStore, Put, read_all
from pydanube_storage.objects.names import topic_folder

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import DAMAGE, Assignment
from pydanube_broker.cluster.coordinator import Coordinator, TakenOver
from pydanube_broker.cluster.epochs import EpochCounter, counter_in, epoch_counter
from pydanube_broker.cluster.ids import BrokerId, Epoch, TopicId
from pydanube_broker.cluster.journal_record import JournalState
from pydanube_broker.cluster.move_record import ChainRange, Stage
from pydanube_broker.cluster.records import DispatchStrategy, TopicRecord
from pydanube_broker.cluster.removal import is_registered, remove, removed_among
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.moves.inheritance import Inheritances, Inherited
from pydanube_broker.moves.move import Preconditions, assign, give_up, joined, take_away
from pydanube_broker.moves.take_over import (
    NO_HEIR,
    FoundJournal,
    TakeOvers,
    is_inherited,
    is_taken_from,
)
from pydanube_broker.slices import Slices
from pydanube_broker.tier.topic_reports import TopicReports
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.rebuilt_state import (
    end_of_rebuilt,
    rebuilt_mirror,
    rebuilt_state,
    state_in_the_store,
)
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.cluster")

_NOT_READ: Final = (*DAMAGE, DiskFull, Unavailable)  # of a chain
_AT_ONCE: Final = 2_000  # maximum topics of a broker in one `look`
READ_AT_ONCE: Final = 256  # topics whose records are read concurrently. Their reads share requests
_SENT_AT_ONCE: Final = 4  # concurrent transactions
#: topics of one transaction: six guards and writes each, and three guards for all
_PREPARED_AT_ONCE: Final = 16
#: a topic is busy if it was written so long before the newest message of its owner, or later
_BUSY_MS: Final = 60_000
_AHEAD_S: Final = 5.0  # head start of busy topics, at most: an heir may fail
#: from this share of the cluster's topics on, reading the records of all topics is cheaper than single reads
MANY: Final = 1 / 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """The transaction that gives one topic to its next owner. `facts`: for the log."""

    after: Assignment
    writes: list[Put]
    guards: list[Guard]
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The records of a topic that its transaction guards and changes."""

    head: Committed | None
    counter: EpochCounter


class RemovedBrokers:
    """Reassigns topics of lost brokers. Each `look` reassigns some of them while this broker leads."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: TopicCatalog,
        reports: TopicReports,
        cluster: str,
        take_overs: TakeOvers,
        inherited: Inheritances,
    ) -> None:
        self.take_overs = take_overs
        self.unsettled = True  # whether a journal record may be closing
        self._lives: Mapping[BrokerId, int] = {}  # members and their incarnations at the last look
        self._store = store
        self._catalog = catalog
        self._reports = reports
        self._cluster = cluster
        self._inherited = inherited
        self._objects = ObjectCatalog(store, wall_ms=now_ms)
        # The last reports of brokers whose topics are being taken away
        self._said: dict[BrokerId, Mapping[int, LogState]] = {}
        # The busy topics of lost brokers, which go to their heirs alone, and until when (monotonic) at most
        self._ahead: dict[BrokerId, tuple[set[TopicId], float]] = {}

    async def look(self, coordinator: Coordinator, due: Collection[BrokerId] = ()) -> None:
        """Reassign some topics of lost brokers. The next call continues with the rest.

        Args:
            due: lost brokers that may be taken over without a plan now (`loss_watch`).

        Raises `MetadataUnavailable`.
        """
        lost = coordinator.lost_owners()
        self._said = {broker: said for broker, said in self._said.items() if broker in lost}
        self._ahead = {broker: ahead for broker, ahead in self._ahead.items() if broker in lost}
        lives = {broker: member.incarnation for broker, member in coordinator.members.items()}
        if lives != self._lives:  # a broker may have returned whose record still names its topics
            self._lives, self.unsettled = lives, True
        if not lost and not self.unsettled:
            coordinator.taken_over = {}
            return
        journals = await self.take_overs.records()
        asked = [
            each for each in lost.intersection(due) if await self._ask(coordinator, each, journals.get(each))
        ]
        if asked:
            journals = await self.take_overs.records()
        closing = {each for each, found in journals.items() if found.record.state is JournalState.CLOSING}
        self.unsettled = bool(closing)
        removed = await removed_among(self._store, lost) if lost else set()
        taken_over = {}
        for broker_id in removed | closing:
            why, damaged = self._damage(coordinator, broker_id)
            try:
                if broker_id in lost and not coordinator.heirs():
                    why = NO_HEIR
                elif broker_id in lost:
                    await self._take_some(
                        coordinator, broker_id, journals.get(broker_id), all_of_it=broker_id in removed
                    )
                if broker_id in closing:
                    await self._give_up_some(coordinator, broker_id, journals[broker_id])
                    await self.take_overs.settle(coordinator, broker_id, journals[broker_id])
            except MetadataUnavailable:
                raise
            except ClusterError as error:  # moves of other brokers do not wait for it
                why = error.message
                if isinstance(error, CorruptObject):
                    why = damaged_copy(why, str(broker_id))
                    damaged = damaged or self._waiting_for(coordinator, broker_id)
                facts = {"broker_id": str(broker_id), "code": error.code, "error": error.message}
                log.warning("topics_not_taken_away", extra=facts)
            theirs = None if broker_id in removed else set(journals[broker_id].record.topics)
            if waiting := self._waiting(coordinator, broker_id, theirs):
                taken_over[broker_id] = TakenOver(topics=waiting, why=why, damaged=damaged)
        coordinator.taken_over = taken_over

    @staticmethod
    def _damage(coordinator: Coordinator, broker_id: BrokerId) -> tuple[str | None, str | None]:
        """Return why heirs of a lost broker cannot rebuild topics, and one of these. None if they can."""
        for place in _inherited_from(coordinator, broker_id):
            if place.damage is not None:
                return damaged_copy(place.damage.why, str(broker_id)), str(place.topic)
        return None, None

    def _waiting_for(self, coordinator: Coordinator, broker_id: BrokerId) -> str | None:
        """Return a topic of a lost broker, if possible not its audit, or None if no topic waits for it."""
        waiting = [each.topic for each in coordinator.owned_by(broker_id) if self._is_to_go(each)]
        return str(min(waiting, key=lambda topic: topic.is_audit)) if waiting else None

    async def _ask(self, coordinator: Coordinator, broker_id: BrokerId, journal: FoundJournal | None) -> bool:
        """Have topics of a lost broker taken over without a plan. Return whether there are any.

        These are the stored topics, or all topics if the broker's record has `on_loss` "take_over".
        """
        if journal is None or not journal.record.copies or not coordinator.heirs():
            return False
        everything = journal.record.on_loss == "take_over"
        asked = set(journal.record.topics if journal.record.state is JournalState.CLOSING else ())
        records = [
            record
            for place in coordinator.owned_by(broker_id)
            if str(place.topic_id) not in asked
            and self._is_to_go(place)
            and not place.topic.is_audit
            and (record := self._record(place)) is not None
            and (everything or place.stored)
        ]
        if not records:
            return False
        try:
            await self.take_overs.plan(coordinator, records)
        except MetadataUnavailable:
            raise
        except ClusterError as error:  # the broker is back, which the next look shows
            facts = {"broker_id": str(broker_id), "code": error.code, "error": error.message}
            log.warning("topics_not_taken_over", extra=facts)
            return False
        log.warning("topics_taken_over", extra={"broker_id": str(broker_id), "topics": len(records)})
        return True

    def _record(self, place: Assignment) -> TopicRecord | None:
        topic_id = place.topic_id
        return self._catalog.index.topic_by_id(topic_id) or self._catalog.restorable.record(topic_id)

    def _is_mirror(self, place: Assignment) -> bool:
        record = self._record(place)
        return record is not None and link_of(record.settings.options) is not None

    def _waiting(self, coordinator: Coordinator, broker_id: BrokerId, asked: Collection[str] | None) -> int:
        """Return how many topics of a lost broker wait for their next owner. `asked`: count only these, or all if None."""
        waiting = [each for each in coordinator.owned_by(broker_id) if self._is_to_go(each)]
        waiting += [
            each
            for each in coordinator.moving_places()
            if each.move is not None and each.move.from_store and each.move.source == str(broker_id)
        ]
        return len({each.topic_id for each in waiting if asked is None or str(each.topic_id) in asked})

    async def _take_some(
        self, coordinator: Coordinator, broker_id: BrokerId, journal: FoundJournal | None, *, all_of_it: bool
    ) -> None:
        """Take away some topics of a lost broker: any of a removed broker, else those that a plan names."""
        asked = set() if journal is None else set(journal.record.topics)
        places = [
            each
            for each in coordinator.owned_by(broker_id)
            if (all_of_it or str(each.topic_id) in asked) and self._is_to_go(each)
        ][:_AT_ONCE]
        if not places or self._are_coming(coordinator, broker_id):
            return
        topics = [each.topic_id for each in places]
        if journal is not None and journal.record.copies:
            self.unsettled = True
            try:
                journal = await self.take_overs.fence(coordinator, broker_id, journal, topics)
            except CorruptObject:
                places = [each for each in places if str(each.topic_id) in journal.record.given_up]
                if not places:
                    raise
        if broker_id not in self._said:
            self._said[broker_id], _ = await self._reports.read(broker_id)
        said = self._said[broker_id]
        # Topics that were written last are taken first, because their producers wait.
        places.sort(key=lambda place: _written_ms(said.get(place.topic_id)), reverse=True)
        # The time of the report itself is by the store's clock, these are by the owner's.
        newest_ms = max(map(_written_ms, said.values()), default=0)
        busy = [each for each in places if _written_ms(said.get(each.topic_id)) > newest_ms - _BUSY_MS]
        if broker_id not in self._ahead and 0 < len(busy) <= len(places) // 2:
            places = busy
            self._ahead[broker_id] = {each.topic_id for each in busy}, time.monotonic() + _AHEAD_S
        targets = coordinator.spread([each.topic_id for each in places], to_heirs=True)
        places = [each for each in places if each.topic_id in targets]
        preconditions = await self._read(coordinator, places)
        waiting = iter(places)

        async def take() -> None:
            # Heirs rebuild the first topics while the last ones are prepared.
            while some := list(islice(waiting, _PREPARED_AT_ONCE)):
                prepared = [
                    self._prepare(coordinator, place, said, targets[place.topic_id], journal, found)
                    for place in some
                    if (found := preconditions.get(place.topic_id)) is not None
                ]
                await self._take(coordinator, deque(each for each in prepared if each is not None))

        async with anyio.create_task_group() as group:
            for _ in range(_SENT_AT_ONCE):
                group.start_soon(take)

    async def _give_up_some(
        self, coordinator: Coordinator, broker_id: BrokerId, journal: FoundJournal
    ) -> None:
        """Have heirs rebuild topics without the chain if a plan gave it up for them."""
        given_up = journal.record.given_up
        places = [each for each in _inherited_from(coordinator, broker_id) if str(each.topic_id) in given_up]
        if not places:
            return
        said, _ = await self._reports.read(broker_id)
        targets = coordinator.spread([each.topic_id for each in places], to_heirs=True)
        preconditions = await self._read(coordinator, places)
        prepared = [
            self._prepare(coordinator, place, said, targets[place.topic_id], journal, found)
            for place in places
            if place.topic_id in targets and (found := preconditions.get(place.topic_id)) is not None
        ]
        await self._take(coordinator, deque(each for each in prepared if each is not None))

    def _are_coming(self, coordinator: Coordinator, broker_id: BrokerId) -> bool:
        """Return whether busy topics of a lost broker are not served yet. The others would take processors from them."""
        topics, until_s = self._ahead.get(broker_id, (set(), 0.0))
        return time.monotonic() < until_s and any(
            place is not None and not place.is_served for place in map(coordinator.place, topics)
        )

    async def _read(self, coordinator: Coordinator, places: Sequence[Assignment]) -> dict[TopicId, _Read]:
        """Read the catalog's heads and the epoch counters of topics. Leaves out topics whose records cannot be read.

        Guards of the transactions hold these records, so they may be older than the transaction.
        """
        found: dict[TopicId, _Read] = {}
        if len(places) > READ_AT_ONCE and len(places) >= MANY * coordinator.placed:
            self._objects.unreadable.clear()
            heads = await self._objects.committed_heads({place.topic_id for place in places})
            items, _ = await read_all(self._store, keys.EPOCHS)
            counters, slices = {item.key: item for item in items}, Slices()
            for place in places:
                await slices()
                topic_id = place.topic_id
                with self._logged(topic_id):
                    if (error := self._objects.unreadable.get(topic_id)) is not None:
                        raise error
                    counter = counter_in(counters, place.topic)
                    found[topic_id] = _Read(head=heads.get(topic_id), counter=counter)
            return found
        limiter = anyio.CapacityLimiter(READ_AT_ONCE)

        async def read(place: Assignment) -> None:
            async with limiter:
                with self._logged(place.topic_id):
                    head = await self._objects.head(place.topic_id)
                    counter = await epoch_counter(self._store, place.topic)
                    found[place.topic_id] = _Read(head=head, counter=counter)

        async with anyio.create_task_group() as group:
            for place in places:
                group.start_soon(read, place)
        return found

    @staticmethod
    @contextmanager
    def _logged(topic_id: TopicId) -> Iterator[None]:
        try:
            yield
        except ClusterError as error:
            log.warning("topic_not_taken_away", extra={"topic_id": topic_id, "error": error.message})

    async def reported_at_ms(self, broker_id: BrokerId) -> int | None:
        """Return the time of the broker's last report about its topics, or None if it never made one."""
        _, reported_ms = await self._reports.read(broker_id)
        return reported_ms

    async def check_removable(self, coordinator: Coordinator, broker_id: BrokerId) -> None:
        """Raise the error for which a broker cannot be removed: `Conflict`, `InvalidArgument`, `LastBroker`, `StoreUnavailable`."""
        if broker_id in coordinator.members:
            raise is_registered(broker_id)
        if await self._store.get(keys.incarnation_key(broker_id)) is None:
            raise InvalidArgument(
                f"there is no broker {broker_id} in this cluster, and never was",
                field="broker_id",
                value=str(broker_id),
            )
        if not coordinator.heirs():
            raise LastBroker(
                f"the topics of broker {broker_id} have nowhere to go: no broker of this release takes any",
                field="broker_id",
            )

    async def forecast(self, coordinator: Coordinator, broker_id: BrokerId) -> RemovalFacts:
        """Return the effect that a removal of the broker would have.

        Without a readable chain of its journal, messages that only the chain has count as missing. Raises as
        `check_removable`.
        """
        await self.check_removable(coordinator, broker_id)
        copied, unread, is_damaged = None, None, False
        async with AsyncExitStack() as stack:
            try:
                copied = await self._copied(broker_id, stack)
            except Conflict:  # its journal was not copied
                pass
            except _NOT_READ as error:
                unread, is_damaged = error.message, isinstance(error, DAMAGE)
            facts = await self._forecast(coordinator, broker_id, copied, is_damaged=is_damaged)
        return replace(facts, copy_error=unread, is_damaged=is_damaged)

    async def _copied(self, broker_id: BrokerId, stack: AsyncExitStack) -> tuple[ChainRange, Inherited]:
        """Replay the chain of a lost broker, for as long as the stack is open. Raises as `Inheritances.of`, `Conflict`."""
        try:
            chain = await self.take_overs.chain_to_now(broker_id)
            return chain, await stack.enter_async_context(self._inherited.of(chain))
        except _NOT_READ as error:
            log.warning("chain_not_read", extra={"broker_id": str(broker_id), "error": error.message})
            raise

    async def _forecast(
        self,
        coordinator: Coordinator,
        broker_id: BrokerId,
        copied: tuple[ChainRange, Inherited] | None,
        *,
        is_damaged: bool,
    ) -> RemovalFacts:
        places = [each for each in coordinator.owned_by(broker_id) if self._is_to_go(each)]
        if is_damaged:
            places += _inherited_from(coordinator, broker_id)
        reports, reported_ms = await self._reports.read(broker_id)
        heads, slices, topics = await self._objects.heads(), Slices(), list[TakeOverFacts]()
        for place in places:
            await slices()
            report = reports.get(place.topic_id), reported_ms
            topics.append(self._facts(broker_id, place, heads.get(place.topic_id), report, copied))
        return RemovalFacts(
            broker_id=str(broker_id),
            is_removed=bool(await removed_among(self._store, [broker_id])),
            said_at_ms=reported_ms,
            topics=tuple(topics),
            is_copied=copied is not None,
        )

    async def forecast_take_over(self, broker_id: BrokerId, topics: Iterable[TopicId]) -> list[TakeOverFacts]:
        """Return the result that a take-over of a lost broker's topics would have.

        Without a readable chain of its journal, messages that only the chain has count as missing.

        Raises `Conflict`, `DiskFull`, `Unavailable`, `StoreUnavailable`, `MetadataUnavailable`.
        """
        copied, damage, found = None, None, []
        async with AsyncExitStack() as stack:
            try:
                copied = await self._copied(broker_id, stack)
            except DAMAGE as error:
                damage = error.message
            reports, reported_ms = await self._reports.read(broker_id)
            for topic_id in topics:
                item = await self._store.get(keys.assignment_key(topic_id))
                if item is None:
                    continue
                now, why = Assignment.of(item.key, item.value), damage
                if is_inherited(now):
                    why = why or (None if now.damage is None else now.damage.why)
                    if why is None:
                        raise Conflict(
                            f"{now.topic} is on its way to broker {now.broker_id}: wait until it is there",
                            topic=str(now.topic),
                        )
                held = await self._objects.head(topic_id)
                head = None if held is None else held.head
                report = reports.get(topic_id), reported_ms
                facts = self._facts(broker_id, now, head, report, copied if why is None else None)
                found.append(replace(facts, copy_error=why))
        return found

    def _facts(
        self,
        broker_id: BrokerId,
        now: Assignment,
        head: CatalogHead | None,
        reported: tuple[LogState | None, int | None],
        copied: tuple[ChainRange, Inherited] | None,
    ) -> TakeOverFacts:
        """Compare what the object store and the chain have of a lost broker's topic with its last report."""
        report, reported_ms = reported
        stored_to, hole, state, chain = 0 if head is None else head.tiered_offset, 0, None, None
        if copied is not None:
            chain, inherited = copied
            state = inherited.state(now, replace(chain, above_epoch=now.sealed_epoch))
            if state is not None and state.next_offset > (begin := max(stored_to, state.needed_offset)):
                first = inherited.first_offset(now.topic_id)
                hole = max(0, (state.next_offset if first is None else first) - begin)
        copied_to = max(stored_to, 0 if state is None else state.next_offset)
        beyond = 0 if report is None else max(0, report.next_offset - copied_to)
        return TakeOverFacts(
            topic=str(now.topic),
            broker_id=str(broker_id),
            copied_to=copied_to,
            copied_at_ms=None if state is None else state.append_time_ms or None,
            reported_to=None if report is None else report.next_offset,
            reported_at_ms=None if report is None else reported_ms,
            missing_messages=hole + beyond,
            is_whole=_is_whole(now, chain),
            is_mirror=self._is_mirror(now),
            is_deleted=self._catalog.index.topic_by_id(now.topic_id) is None,
            subscriptions=len(self._starts(now.topic_id)),
        )

    async def remove(
        self, coordinator: Coordinator, broker_id: BrokerId, *, without_copy: bool = False
    ) -> None:
        """Remove a broker: the leader reassigns its topics. Idempotent. Raises `Conflict`, `StoreUnavailable`.

        `without_copy`: the chain of its journal is damaged, and given up.
        """
        if await remove(self._store, broker_id, at_ms=now_ms()):
            log.warning("broker_removed", extra={"broker_id": str(broker_id)})
        if without_copy:
            places = [each for each in coordinator.owned_by(broker_id) if self._is_to_go(each)]
            places += _inherited_from(coordinator, broker_id)
            await self.take_overs.give_up(broker_id, [each.topic_id for each in places])

    def _is_to_go(self, place: Assignment) -> bool:
        """Return whether a lost broker's topic has to be taken over here.

        Sealed and assigned topics do not: the leader reassigns them, as in any move. Neither do non-reliable ones.
        """
        if place.stage not in (Stage.SERVING, Stage.MOVING):
            return False
        record = self._record(place)
        return record is not None and record.dispatch_strategy is not DispatchStrategy.NON_RELIABLE

    def _prepare(
        self,
        coordinator: Coordinator,
        place: Assignment,
        said: Mapping[int, LogState],
        target: BrokerId,
        journal: FoundJournal | None,
        read: _Read,
    ) -> _Prepared | None:
        """Return the transaction that gives a topic of a lost broker to its next owner. None if it is not to go now."""
        topic_id = place.topic_id
        watched = coordinator.watched(topic_id)
        if watched is None:
            return None
        now, revision = watched  # if it has changed since, the guard of the transaction fails
        is_given_up = journal is not None and str(topic_id) in journal.record.given_up
        is_sealed = is_inherited(now) and is_given_up  # an heir has failed to rebuild it
        if now.broker_id != place.broker_id or not (is_sealed or self._is_to_go(now)):
            return None
        head, counter = read.head, read.counter
        incarnation = coordinator.heirs().get(target)
        if incarnation is None or not coordinator.leads():
            return None
        found = None if head is None else head.head
        state, begin = state_in_the_store(topic_id, said.get(topic_id), found, _copied_to(now))
        if self._is_mirror(now):
            end = max(1, begin)  # as in `rebuild`. 0 means that its owner handed it over
        else:
            end = end_of_rebuilt(state.next_offset, begin, 0 if found is None else found.resumes_at)
        chain = None if journal is None or is_given_up else journal.chain
        if _is_whole(now, chain):
            end = 0  # the chain has all that was acknowledged, so every heir finds the same end there
        if is_sealed:
            taken = give_up(now, revision)
        else:
            taken = take_away(now, revision, target, at_ms=now_ms(), chain=chain)
        epoch = Epoch(max(counter.epoch, now.epoch) + 1)
        assigned = assign(taken.after, revision, target, incarnation=incarnation, epoch=epoch)
        name = now.topic
        preconditions = Preconditions(
            head=head,
            folder=topic_folder(self._cluster, name.namespace, name.name, topic_id),
            start_offset=state.start_offset,
            resumes_at=end,
            journal=None if journal is None or (chain is None and not is_given_up) else journal.revision,
        )
        by = Preconditions(leadership=coordinator.leadership, counter=counter)
        writes, guards = joined(taken, assigned, preconditions, by)
        facts = {
            "topic": str(name),
            "broker_id": str(place.broker_id),
            "known_to": begin,
            "goes_on_at": end or None,  # None: at the end of the chain
            "to": str(target),
        }
        return _Prepared(after=assigned.after, writes=writes, guards=guards, facts=facts)

    async def _take(self, coordinator: Coordinator, prepared: deque[_Prepared]) -> None:
        """Carry out the prepared transactions, several as one, and remove them from the queue."""
        while prepared:
            await self._take_together(coordinator, prepared)

    async def _take_together(self, coordinator: Coordinator, prepared: deque[_Prepared]) -> None:
        taken: list[_Prepared] = []
        writes: dict[str, Put] = {}
        guards: dict[Guard, None] = {}
        while prepared:
            each = prepared[0]
            more = dict.fromkeys([*guards, *each.guards])
            size = len(writes) + len(each.writes) + len(more)
            # Two topics of one name share the counter of epochs
            if taken and (size > MAX_OPERATIONS or any(write.key in writes for write in each.writes)):
                break
            writes.update((write.key, write) for write in each.writes)
            guards = more
            taken.append(prepared.popleft())
        try:
            await self._store.transact(list(writes.values()), guards=list(guards))
        except GuardFailed:
            # Another leader was faster, the broker is back, or one of the topics was deleted
            for one in taken if len(taken) > 1 else ():
                await self._take(coordinator, deque([one]))
        except ClusterError as error:
            log.warning("topics_not_taken_away", extra={"topics": len(taken), "error": error.message})
        else:
            for each in taken:
                place = coordinator.place(each.after.topic_id)
                # With a late watch the next look would prepare it again. An early one has shown later steps.
                if place is not None and place.epoch < each.after.epoch:
                    coordinator.note(each.after)
                log.warning("topic_taken_away", extra=each.facts)

    async def head(self, topic_id: TopicId) -> CatalogHead:
        """Return the catalog's head of a topic that was taken away. Raises `MetadataUnavailable`."""
        found = await self._objects.head(topic_id)
        assert found is not None, "the seal has written it"
        return found.head

    async def rebuild(
        self, now: Assignment, head: CatalogHead, copied_to: int, inherited: LogState | None = None
    ) -> LogState:
        """Return the state with which this broker opens a topic of a lost owner that is assigned to it.

        Args:
            head: of the catalog. The seal has written it.
            copied_to: the end of the messages that the chain, or fragments, had behind the objects.
            inherited: the topic's state at the end of the chain, newer than the owner's last report.

        Raises `StoreUnavailable`, `MetadataUnavailable`.
        """
        assert now.move is not None
        said = inherited
        if said is None:
            said = await self._reports.recent(BrokerId(int(now.move.source)), now.move.chain, now.topic_id)
        state, begin = state_in_the_store(now.topic_id, said, head, copied_to)
        if self._is_mirror(now):
            return rebuilt_mirror(state, end=begin, starts=self._starts(now.topic_id))
        end = head.resumes_at  # decided by the leader, so each owner that rebuilds the topic has the same
        is_whole = _is_whole(now, now.move.chain)
        if is_whole:
            end = max(begin, end, 0 if inherited is None else inherited.next_offset)
        if begin > end or (is_whole and inherited is not None and begin < inherited.next_offset):
            raise CorruptObject(
                f"{now.topic} goes on at {end}, and its lost owner's messages reach to {begin}", cause="chain"
            )
        return rebuilt_state(
            state, begin=begin, end=end, starts=self._starts(now.topic_id), is_whole=is_whole
        )

    def _starts(self, topic_id: TopicId) -> dict[int, int]:
        """Return subscription id → start offset, for existing and restorable subscriptions."""
        restorable = self._catalog.restorable.subscriptions.items()
        return {
            **{
                each.subscription_id: each.start_offset
                for each in self._catalog.index.subscriptions(topic_id)
            },
            **{number: one.spec.start_offset for number, one in restorable if one.topic_id == topic_id},
        }


def _inherited_from(coordinator: Coordinator, broker_id: BrokerId) -> list[Assignment]:
    """Return the topics that heirs rebuild from the chain of a lost broker."""
    return [each for each in coordinator.moving_places() if is_taken_from(each, broker_id)]


def _is_whole(now: Assignment, chain: ChainRange | None) -> bool:
    """Return whether the chain has all that the owner of the topic acknowledged."""
    return chain is not None and (now.stored or chain.is_whole)


def _written_ms(said: LogState | None) -> int:
    return 0 if said is None else said.append_time_ms


def _copied_to(now: Assignment) -> int:
    return now.offered[-1].end_offset if now.offered else 0
