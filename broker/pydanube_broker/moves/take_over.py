"""Take over topics of a lost broker from the chain of its journal: the plan, and the leader's part.

A plan names topics in the record of the owner's journal (`cluster.journal_record`), which raises its term. The leader
fences the chain, records its end, and seals the topics for their heirs, as it does for a removed broker
(`removed_brokers`). An heir rebuilds its topics from the object store and the chain (`inheritance`). A topic continues
`rebuilt_state.JUMP` above its highest recorded offset, because messages may be missing behind the end of the chain. It
continues without a gap if none can be missing: a stored topic, and any topic of a broker that stopped in order.

If the broker registers again, it keeps the topics that are not sealed yet: sealing is guarded by its absence. Its
registration takes them out of the record, because it acknowledges messages that the chain does not get. After its next
loss they are taken over from that chain only by another plan, which shows the loss.

A damaged chain holds its topics up, before or after their seal, until a plan that shows the loss gives it up for them
(`JournalRecord.given_up`). They continue as topics of a broker without a chain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import Conflict
from pydanube_storage.metadata import Absent, KeyValue, MetadataStore, Revision, read_all

from pydanube_broker.chain import ChainStore, chain_end, check_end, fence
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.coordinator import Coordinator
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.journal_record import JournalRecord, JournalState, fenced, settled, taken_over
from pydanube_broker.cluster.move_record import ChainRange, Stage
from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.records import Change, Quarantine, change
from pydanube_broker.slices import Slices

log = logging.getLogger("pydanube.cluster")

NO_HEIR: Final = "no broker of this release takes topics: start one, or activate one that was drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJournal:
    """A journal record and the revision at which it was read."""

    record: JournalRecord
    revision: Revision

    @property
    def chain(self) -> ChainRange | None:
        """Return the part of the chain that heirs read, or None if there is no chain, or it is not fenced."""
        if not self.record.copies or not self.record.is_fenced:
            return None
        return ChainRange(
            journal=self.record.journal,
            from_piece=self.record.from_piece,
            until=self.record.until,
            is_whole=self.record.is_whole,
        )


class TakeOvers:
    """See the module. Single user: the loop."""

    def __init__(
        self, store: MetadataStore, chains: ChainStore, cluster: str, quarantine: Quarantine, me: BrokerId
    ) -> None:
        self.fences = 0  # chains that were fenced here
        # Called with a chain that was fenced here, if this broker is one of its heirs
        self.own_part: Callable[[ChainRange], object] = lambda chain: None
        self._store = store
        self._quarantine = quarantine
        self._me = me
        self._chains = chains
        self._cluster = cluster

    async def records(self) -> dict[BrokerId, FoundJournal]:
        """Read the journal records of all brokers. Unreadable ones are quarantined. Raises `StoreUnavailable`."""
        items, _ = await read_all(self._store, keys.JOURNALS)
        found = {}
        for item in items:
            with self._quarantine.reading(item.key):
                record = JournalRecord.from_json(item.value, key=item.key)
                found[BrokerId(keys.number_in_key(item.key))] = FoundJournal(
                    record=record, revision=item.mod_revision
                )
        return found

    async def plan(
        self,
        coordinator: Coordinator,
        topics: Sequence[TopicRecord],
        given_up: Collection[TopicId] = (),
    ) -> None:
        """Plan the take-over of topics of lost brokers: all of them, or none. Idempotent.

        Args:
            given_up: those that continue without the chain, which is damaged.

        Raises:
            Conflict: with the reason for which a topic cannot be taken over. StoreUnavailable.
        """
        owners = self.owners(coordinator, topics)

        async def decide(change: Change) -> None:
            for owner, theirs in owners.items():
                lost = [each for each in theirs if each in given_up]
                # A sealed topic is its owner's no longer, even if that is back
                if not all(is_inherited(coordinator.place(each)) for each in theirs):
                    change.require(Absent(keys.member_key(owner)), is_back(owner))
                if len(lost) < len(theirs):
                    change.require(Absent(keys.removed_key(owner)), was_removed_before(owner))
                await self._name(change, owner, theirs, lost)

        await change(self._store, decide)

    async def give_up(self, owner: BrokerId, topics: Sequence[TopicId]) -> None:
        """Have topics of a removed broker continue without its chain, which is damaged. Raises `StoreUnavailable`."""

        async def decide(change: Change) -> None:
            await self._name(change, owner, topics, topics)

        await change(self._store, decide)

    @staticmethod
    async def _name(
        change: Change, owner: BrokerId, topics: Sequence[TopicId], given_up: Sequence[TopicId]
    ) -> None:
        key = keys.journal_key(owner)
        record = _copied(owner, await change.read(key))
        after = taken_over(record, topics, given_up)
        if after != record:
            change.put(key, after)

    def owners(
        self, coordinator: Coordinator, topics: Sequence[TopicRecord]
    ) -> dict[BrokerId, list[TopicId]]:
        """Return the topics of each lost owner, also those that heirs rebuild. Raises `Conflict`: an owner is not lost."""
        found: dict[BrokerId, list[TopicId]] = {}
        for topic in topics:
            place = coordinator.place(topic.topic_id)
            if place is not None and place.move is not None and is_inherited(place):
                found.setdefault(BrokerId(int(place.move.source)), []).append(topic.topic_id)
                continue
            if place is None or place.stage not in (Stage.SERVING, Stage.MOVING):
                raise Conflict(
                    f"{topic.name} is on its way to an owner: wait until it is there", topic=topic.name
                )
            if place.broker_id in coordinator.members:
                raise is_back(place.broker_id)
            found.setdefault(place.broker_id, []).append(topic.topic_id)
        if not coordinator.heirs():
            raise Conflict(NO_HEIR)
        return found

    async def chain_to_now(self, broker_id: BrokerId) -> ChainRange:
        """Return the chain of a lost broker's journal up to its present end.

        Raises `Conflict`: it has no chain. `CorruptObject`, `StoreUnavailable`.
        """
        record = _copied(broker_id, await self._store.get(keys.journal_key(broker_id)))
        until = record.until
        if not record.is_fenced:
            await check_end(self._chains, self._cluster, record.journal, record.from_piece)
            until = (await chain_end(self._chains, self._cluster, record.journal, record.from_piece)).number
        return ChainRange(
            journal=record.journal, from_piece=record.from_piece, until=until, is_whole=record.is_whole
        )

    # -- leading ---------------------------------------------------------------------------------------------

    async def fence(
        self, coordinator: Coordinator, broker_id: BrokerId, found: FoundJournal, topics: Sequence[TopicId]
    ) -> FoundJournal:
        """Fence a lost broker's chain under a raised term, and record its end. Returns the record after that.

        Raises:
            Conflict: this broker no longer leads, or the record has changed. StoreUnavailable, Fenced, CorruptObject.
        """
        if found.record.state is not JournalState.CLOSING:
            found = await self._write(coordinator, broker_id, found, taken_over(found.record, topics))
        if found.record.is_fenced:
            return found
        record = found.record
        await check_end(self._chains, self._cluster, record.journal, record.from_piece)
        until = await fence(self._chains, self._cluster, record.journal, record.from_piece, record.term)
        self.fences += 1
        heirs = set(coordinator.spread(topics, to_heirs=True).values())
        after = await self._write(coordinator, broker_id, found, fenced(record, until, heirs))
        log.warning(
            "chain_fenced",
            extra={"broker_id": str(broker_id), "term": record.term, "until": until, "topics": len(topics)},
        )
        if self._me in heirs and after.chain is not None:
            self.own_part(after.chain)
        return after

    async def settle(self, coordinator: Coordinator, broker_id: BrokerId, found: FoundJournal) -> None:
        """Open a closing record if its broker is back, or close it if no topic is left.

        While heirs are at work, only the topics of a broker that is back are settled: those that are not sealed stay
        with it. Raises as `fence`.
        """
        is_back, record = broker_id in coordinator.members, found.record
        moving = [
            str(place.topic_id) for place in coordinator.moving_places() if is_taken_from(place, broker_id)
        ]
        is_cut = set(record.topics) == set(moving) and not record.is_whole
        if moving and (is_cut or not is_back):
            return  # reading all assignments from the store costs a second with 10 000 topics
        under_way, left = await self._places(broker_id)
        after = settled(record, is_back=is_back, under_way=under_way, left=left)
        if after != record:
            await self._write(coordinator, broker_id, found, after, is_back=is_back)
            log.info("take_over_settled", extra={"broker_id": str(broker_id), "state": after.state.value})

    async def _places(self, broker_id: BrokerId) -> tuple[list[TopicId], Mapping[TopicId, bool]]:
        """Return the topics of a broker without a new owner yet, and for each that it owns, whether it is its audit."""
        items, _ = await read_all(self._store, keys.ASSIGNMENTS)  # from the store, because the watch may lag
        places, slices = list[Assignment](), Slices()
        for item in items:
            await slices()
            places.append(Assignment.of(item.key, item.value))
        under_way = [each.topic_id for each in places if is_taken_from(each, broker_id)]
        left = {each.topic_id: each.topic.is_audit for each in places if each.broker_id == broker_id}
        return under_way, left

    async def _write(
        self,
        coordinator: Coordinator,
        broker_id: BrokerId,
        found: FoundJournal,
        after: JournalRecord,
        *,
        is_back: bool = False,
    ) -> FoundJournal:
        key = keys.journal_key(broker_id)
        guard = coordinator.leadership.guard

        async def decide(change: Change) -> None:
            item = await change.read(key)
            if item is None or item.mod_revision != found.revision:
                raise Conflict(f"{key} was changed by another broker", retryable=True)
            if is_back and await change.read(keys.member_key(broker_id)) is None:  # the watch may lag
                raise Conflict(f"broker {broker_id} is lost again", retryable=True)
            change.require(guard, Conflict("another broker leads", retryable=True))
            change.put(key, after)

        outcome = await change(self._store, decide)
        assert outcome.revision is not None
        return FoundJournal(record=after, revision=outcome.revision)


def is_taken_from(place: Assignment, broker_id: BrokerId) -> bool:
    """Return whether an heir takes the topic over from the chain of this broker now."""
    move = place.move
    return move is not None and move.chain is not None and move.source == str(broker_id)


def is_inherited(place: Assignment | None) -> bool:
    """Return whether an heir rebuilds the topic from a chain, which may be damaged."""
    return place is not None and place.move is not None and place.move.chain is not None


def _copied(broker_id: BrokerId, item: KeyValue | None) -> JournalRecord:
    """Return the record of a journal that has a chain. Raises `Conflict`: it has none."""
    record = None if item is None else JournalRecord.from_json(item.value, key=item.key)
    if record is None or not record.copies:
        raise without_a_chain(broker_id)
    return record


def without_a_chain(broker_id: BrokerId) -> Conflict:
    return Conflict(
        f"broker {broker_id} did not copy its journal into the object store, so its topics cannot be read there: "
        "start it again on its data directory, or remove it with brokers.remove if that is gone for good",
        broker_id=str(broker_id),
        reason="no_copy",
    )


def is_back(broker_id: BrokerId) -> Conflict:
    return Conflict(
        f"broker {broker_id} is registered and serves its topics: move them with topics.move, or wait until its lease of "
        "10 s is over if it was killed a moment ago",
        broker_id=str(broker_id),
        reason="registered",
    )


def was_removed_before(broker_id: BrokerId) -> Conflict:
    return Conflict(
        f"broker {broker_id} was removed, so its topics go to others without a plan: wait until they are there",
        broker_id=str(broker_id),
        reason="removed",
    )
