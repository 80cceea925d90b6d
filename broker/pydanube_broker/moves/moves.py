"""Moves of topics at one of several brokers: begin them, drain this broker, and run the leader's part."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

import anyio
from pydanube_core.errors import (
    ClusterError,
    Conflict,
    InvalidArgument,
    LastBroker,
    NoOwner,
    TopicNotFound,
    Unavailable,
)
from pydanube_core.facts import TakeOverFacts
from pydanube_core.names import TopicName
from pydanube_storage.catalog import CatalogHead
from pydanube_storage.metadata import GuardFailed, MetadataStore, Revision, read_all
from pydanube_storage.objects.names import topic_folder

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.coordinator import LEASE_MS, Coordinator
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.journal_record import JournalRecord
from pydanube_broker.cluster.membership import BrokerState
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.cluster.owner_choice import rounded_load
from pydanube_broker.cluster.records import DispatchStrategy, TopicRecord
from pydanube_broker.copying.arrival import Arrival, confirm
from pydanube_broker.copying.messages import Answer
from pydanube_broker.copying.source import Source
from pydanube_broker.copying.target import Copies, OpenWire
from pydanube_broker.delivery.pump import SubscriptionPump
from pydanube_broker.moves.inheritance import Inheritances
from pydanube_broker.moves.leaving import Leaving
from pydanube_broker.moves.loss_watch import LossWatch
from pydanube_broker.moves.move import Preconditions, begin, transaction
from pydanube_broker.moves.move_leader import Brokers, MoveLeader
from pydanube_broker.moves.mover import Mover
from pydanube_broker.moves.removed_brokers import RemovedBrokers
from pydanube_broker.moves.take_over import TakeOvers
from pydanube_broker.serving.ownership import keep_cursors
from pydanube_broker.serving.registry import Registry
from pydanube_broker.settings.sections import Settings
from pydanube_broker.slices import Slices
from pydanube_broker.status.health import Health
from pydanube_broker.tier.fragments import copy_parts
from pydanube_broker.tier.journal_chain import JournalChain
from pydanube_broker.tier.lost_and_found import LostAndFound, left_behind
from pydanube_broker.tier.tier import Tier
from pydanube_broker.tier.topic_reports import TopicReports
from pydanube_broker.topics.gate import monotonic_ms
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.topic import Topic, now_ms
from pydanube_broker.worker_threads import WorkerThreads

log = logging.getLogger("pydanube.cluster")

LOOK_S: Final = 1.0  # between two checks of all moves in progress
REPORT_S: Final = 60.0  # between two reports of this broker's load and of the states of its topics
TOPICS_AT_ONCE: Final = 10  # topics in one transaction
_NEXT_S: Final = 0.05  # maximum between two steps of a drain while topics are left
_WELL_LOOKS: Final = 5  # consecutive checks in which a broker can store, before it is given topics again
_PROGRESS_S: Final = 10.0  # between two reports of this broker's copying progress
_MOST_REPORTED: Final = 100  # maximum topics in such a report
_AGAIN_MS: Final = 500
#: maximum seconds that an arriving topic waits until its messages are in this broker's chain, before it is served
_COPIED_S: Final = 3.0
# Callers retry after this, and the lookup of the topic's owner then waits until the topic has arrived.
_RETRY_MS: Final = 10


class Moves:
    """Starts and carries out moves. Made before the topics are opened. Call `run` once they and the tier are open."""

    def __init__(
        self,
        registry: Registry,
        hub: Hub,
        store: MetadataStore,
        worker_threads: WorkerThreads,
        settings: Settings,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._hub = hub
        self._store = store
        self._worker_threads = worker_threads
        self._tier: Tier
        self._chain: JournalChain
        self._reports: TopicReports
        self.removed: RemovedBrokers
        self.mover: Mover | None = None
        self._draining = anyio.Event()
        self._sealed: set[TopicId] = set()  # for the leader, which assigns them
        self._member_is_gone = False  # a member, since the leader's last look
        self._wake_leader = anyio.Event()
        self._early: dict[TopicId, tuple[Assignment | None, Revision]] = {}
        # The epoch and head from which a topic was rebuilt. Until it is served here, nothing changes the head in that epoch
        self.rebuilt_from: dict[TopicId, tuple[Epoch, CatalogHead]] = {}

    def seen(self, topic_id: TopicId, assignment: Assignment | None, revision: Revision) -> None:
        """Take in an assignment as read or watched."""
        if assignment is not None and assignment.stage is Stage.SEALED:
            self._sealed.add(topic_id)
            self._wake_leader.set()
        if self.mover is None:
            self._early[topic_id] = (assignment, revision)
        else:
            self.mover.see(topic_id, assignment, revision)

    async def run(
        self,
        tier: Tier,
        load: Callable[[], Mapping[str, float] | None],
        health: Health,
        open_wire: OpenWire,
        chain: JournalChain,
    ) -> None:
        """Carry out moves, until cancelled. A lone broker has none.

        Args:
            load: returns the load of this broker (`cluster.owner_choice`), for the choice of owners. None if not yet
                measured.
            open_wire: opens a stream of copies to another broker.
            chain: of this broker. Its process reads the chains of others, too.
        """
        coordinator = self._registry.ownership.coordinator
        if not self._registry.ownership.several:
            return
        self._tier = tier
        self._chain = chain
        coordinator.member_gone = self._member_gone
        me = BrokerId(int(self._registry.ownership.me.broker_id))
        self._health = health
        copies = Copies(open_wire)
        mover = Mover(
            self._store,
            self._hub,
            copies,
            self,
            me=me,
            incarnation=lambda: Incarnation(coordinator.membership.registration.incarnation),
            wall_ms=now_ms,
        )
        self._registry.ownership.on_their_way = mover.participants
        self._reports = TopicReports(tier.child.call, chain.call, tier.cluster)
        folder = self._hub.journal.folder.parent
        self._inherited = Inheritances(chain.store, tier.cluster, folder, self._worker_threads)
        self.removed = RemovedBrokers(
            self._store,
            self._registry.catalog,
            self._reports,
            tier.cluster,
            TakeOvers(self._store, chain.store, tier.cluster, self._registry.catalog.quarantine, me),
            self._inherited,
        )
        self._left = LostAndFound(self._settings, me, self._hub, tier.cluster, tier.child)
        async with anyio.create_task_group() as group:
            await group.start(self._inherited.run)
            self.removed.take_overs.own_part = lambda chain: group.start_soon(self._inherited.begin, chain)
            await group.start(mover.run)
            self.mover = mover
            for topic_id, (assignment, revision) in self._early.items():
                mover.see(topic_id, assignment, revision)
            self._early.clear()
            group.start_soon(self._lead, coordinator)
            group.start_soon(self._drain, coordinator, mover)
            group.start_soon(self._keep_states)
            group.start_soon(self._report_load, coordinator, load)
            group.start_soon(self._report_progress, coordinator, copies, mover)
            group.start_soon(self._report_storing, coordinator, health)

    def source(
        self, peer: BrokerId, *, send: Callable[[Answer], None], writable: Callable[[], bool]
    ) -> Source:
        """Return the source of copies for another broker's stream. Raises `Unavailable` before `run` has begun."""
        mover = self.mover
        if mover is None:
            raise Unavailable("this broker is starting", retry_after_ms=_AGAIN_MS)
        return Source(
            lambda request: mover.permit(request, peer), self._worker_threads, send=send, writable=writable
        )

    async def _report_progress(self, coordinator: Coordinator, copies: Copies, mover: Mover) -> None:
        while True:
            await anyio.sleep(_PROGRESS_S)
            copying = {
                str(topic_id): each for topic_id, each in list(mover.progress().items())[:_MOST_REPORTED]
            }
            try:
                await coordinator.membership.report_copied(copies.copied_bytes, copying)
            except ClusterError as error:  # the next report follows soon
                log.warning("progress_not_told", extra={"code": error.code})

    async def _report_load(
        self, coordinator: Coordinator, load: Callable[[], Mapping[str, float] | None]
    ) -> None:
        while True:
            await anyio.sleep(REPORT_S)
            if (found := load()) is not None:
                try:
                    await coordinator.membership.report_load(rounded_load(found))
                except ClusterError as error:  # the next report follows in a minute
                    log.warning("load_not_told", extra={"code": error.code})

    async def _report_storing(self, coordinator: Coordinator, health: Health) -> None:
        """Publish whether this broker can store, until cancelled.

        A broker that cannot is given no topics, because their producers would wait for its disk.
        """
        # Consecutive checks, so that a disk that is full every other second causes few writes to etcd
        well = 0
        while True:
            error = health.storing_error
            well = 0 if error is not None else well + 1
            with suppress(ClusterError):  # the next check follows soon
                if error is not None and coordinator.membership.state is BrokerState.ACTIVE:
                    await self._show(BrokerState.READ_ONLY, error.code)
                elif well >= _WELL_LOOKS and coordinator.membership.state is BrokerState.READ_ONLY:
                    await self._show(BrokerState.ACTIVE, "stores again")
            await anyio.sleep(LOOK_S)

    async def _keep_states(self) -> None:
        while True:
            await anyio.sleep(REPORT_S)
            try:
                await self.keep_states()
            except ClusterError as error:  # the next attempt follows in a minute
                log.warning("states_not_kept", extra={"code": error.code})

    async def keep_states(self) -> None:
        """Write the states of topics and cursors to the store, for their next owners if this broker is removed.

        Raises `StoreUnavailable`, `DiskFull`: the previous report remains.
        """
        ownership, slices = self._registry.ownership, Slices()
        for topic in list(self._hub.topics.values()):
            await slices()
            for pump in list(topic.subscriptions.values()):
                pump.store_snapshot()
        states = list(self._hub.states.values())
        await self._reports.write(
            BrokerId(int(ownership.me.broker_id)), Incarnation(ownership.incarnation), states
        )

    async def _lead(self, coordinator: Coordinator) -> None:
        leader: MoveLeader | None = None
        losses = LossWatch(monotonic_ms(), LEASE_MS)
        look_s = time.monotonic()
        while True:
            sealed = await self._sealed_by(look_s)
            is_look = self._member_is_gone or time.monotonic() >= look_s
            self._member_is_gone = False
            if is_look or not coordinator.leads():
                look_s = time.monotonic() + LOOK_S
            if not coordinator.leads():
                leader, coordinator.taken_over = None, {}
                continue
            try:
                if leader is None:
                    self.removed.unsettled = True  # another leader may have fenced
                    leader = MoveLeader(self._store, coordinator.leadership, now_ms=monotonic_ms)
                    losses = LossWatch(monotonic_ms(), LEASE_MS)
                brokers = self._brokers(coordinator)
                await leader.take_steps(sealed, brokers)  # their clients wait
                if not is_look:
                    continue
                due = losses.look(
                    monotonic_ms(),
                    members=coordinator.members,
                    owners=coordinator.lost_owners(),
                    connected=self._health.metadata_away is None,
                )
                await self.removed.look(coordinator, due)
                await leader.look_after(coordinator.moving_places(), brokers)
            except Exception as error:  # tried again at the next look, because this broker still leads
                leader, is_bug = None, not isinstance(error, ClusterError)
                log.warning("moves_not_looked_after", exc_info=is_bug, extra={"error": str(error)})

    @staticmethod
    def _brokers(coordinator: Coordinator) -> Brokers:
        members = coordinator.members
        return Brokers(
            alive=coordinator.alive(),
            copying={broker for broker, member in members.items() if member.copies},
            inheriting={broker for broker, member in members.items() if member.inherits},
            copied={broker: member.copied_bytes for broker, member in members.items()},
            progress={
                (broker, TopicId(int(topic_id))): progress
                for broker, member in members.items()
                for topic_id, progress in (member.copying or {}).items()
            },
        )

    async def _sealed_by(self, then_s: float) -> set[TopicId]:
        """Wait for topics that were sealed since the last call or a lost member, and return those topics."""
        with anyio.move_on_after(then_s - time.monotonic()):
            await self._wake_leader.wait()
        sealed, self._sealed, self._wake_leader = self._sealed, set(), anyio.Event()
        return sealed

    def _member_gone(self) -> None:
        self._member_is_gone = True
        self._wake_leader.set()

    def takers(self) -> list[BrokerId]:
        """Return the brokers that take topics, those with the fewest first. Empty for a lone broker."""
        ownership = self._registry.ownership
        return list(ownership.coordinator.alive()) if ownership.several else []

    def targets(self) -> list[BrokerId]:
        """Return the brokers that this one's topics may be moved to."""
        return [broker for broker in self.takers() if str(broker) != self._registry.ownership.me.broker_id]

    async def begin(
        self,
        records: Sequence[TopicRecord],
        target: BrokerId | None = None,
        *,
        at_once: Container[TopicId] = (),
    ) -> dict[str, BrokerId]:
        """Begin to move topics, owned by any broker, to the named broker, or each to the one with the fewest topics.

        Args:
            at_once: topics with so little to copy that their owner stops before anything is copied.

        Returns:
            The target of each topic, by name, once the moves are recorded. They continue in the background. Topics
            that are at the target already are left out.

        Raises:
            LastBroker: no other broker takes topics.
            InvalidArgument: that broker does not, or one of the topics cannot be moved.
            Conflict: one is moving already, or all are there. No move has begun, unless an assignment changed
                concurrently.
        """
        coordinator = self._registry.ownership.coordinator
        moves = self.destinations(records, target)
        stored = [each for each, _ in moves if each.dispatch_strategy is not DispatchStrategy.NON_RELIABLE]
        found = await self._assignments(stored)
        changes = []
        for record, to in moves:
            if record.topic_id not in found:
                continue
            ready = Incarnation(coordinator.members[to].incarnation) if record.topic_id in at_once else None
            now, revision = found[record.topic_id]
            changes.append(begin(now, revision, to, at_ms=now_ms(), ready=ready))
        for record, to in moves:
            if record.dispatch_strategy is DispatchStrategy.NON_RELIABLE:
                await coordinator.give(record, to)
        for start in range(0, len(changes), TOPICS_AT_ONCE):
            some = changes[start : start + TOPICS_AT_ONCE]
            steps = [transaction(change, Preconditions()) for change in some]
            try:
                await self._store.transact(
                    [write for writes, _ in steps for write in writes],
                    guards=[guard for _, guards in steps for guard in guards],
                )
            except GuardFailed:
                if len(steps) == 1:
                    raise
                for writes, guards in steps:  # one assignment has changed: begin the other moves on their own
                    await self._store.transact(writes, guards=guards)
        return {record.name: to for record, to in moves}

    async def _assignments(
        self, records: Sequence[TopicRecord]
    ) -> dict[TopicId, tuple[Assignment, Revision]]:
        """Read assignments concurrently. Raises `Conflict`: a topic has none yet."""
        found: dict[TopicId, tuple[Assignment, Revision]] = {}
        failures: list[ClusterError] = []
        limiter = anyio.CapacityLimiter(TOPICS_AT_ONCE)

        async def read(record: TopicRecord) -> None:
            key = keys.assignment_key(record.topic_id)
            async with limiter:
                try:
                    item = await self._store.get(key)
                    if item is None:
                        raise Conflict(f"topic {record.name} has no owner yet", topic=record.name)
                except ClusterError as error:
                    failures.append(error)
                else:
                    found[record.topic_id] = Assignment.of(key, item.value), item.mod_revision

        async with anyio.create_task_group() as group:
            for record in records:
                group.start_soon(read, record)
        if failures:
            raise failures[0]
        return found

    def destinations(
        self, records: Sequence[TopicRecord], target: BrokerId | None
    ) -> list[tuple[TopicRecord, BrokerId]]:
        """Return the topics that `begin` would move now, each with its target. Raises as `begin`."""
        coordinator = self._registry.ownership.coordinator
        for record in records:
            if record.topic.is_audit:
                raise InvalidArgument(
                    f"{record.name} is the audit of one broker, and stays with it",
                    field="topic",
                    value=record.name,
                )
        spread = coordinator.spread([record.topic_id for record in records])
        if len(spread) < len(records):
            raise self._last_broker(records[0].name)
        if target is None:
            return [(record, spread[record.topic_id]) for record in records]
        if target not in self.takers():
            raise InvalidArgument(
                f"broker {target} takes no topics. Choose one of {', '.join(map(str, self.takers()))}",
                field="to_broker",
                value=str(target),
            )
        if not self.copies(target):
            raise InvalidArgument(
                f"broker {target} runs an older release, which takes no topics from this one: replace it, or choose "
                "another",
                field="to_broker",
                value=str(target),
            )
        places = [coordinator.place(record.topic_id) for record in records]
        away = [
            record
            for record, place in zip(records, places, strict=True)
            if place is None or place.broker_id != target
        ]
        if not away:
            raise Conflict(
                f"{records[0].name} is with broker {target} already", topic=records[0].name, retryable=False
            )
        return [(record, target) for record in away]

    def _last_broker(self, what: str) -> LastBroker:
        return LastBroker(
            f"{what} has nowhere to go: no other broker is ready to take topics", field="topic", value=what
        )

    async def drain(self) -> None:
        """Take no new topics, and hand over all that can leave, until `activate`.

        Raises `LastBroker`: no other broker takes topics. Nothing has changed.
        """
        if not self.targets():
            raise self._last_broker(f"broker {self._registry.ownership.me.broker_id}")
        await self._show(BrokerState.DRAINING, "unload")
        self._draining.set()

    async def activate(self) -> str:
        """Take topics again. Return the broker's state."""
        if self._draining.is_set():  # else `_drain` waits for this event, and would not see another one
            self._draining = anyio.Event()
        if self._registry.ownership.several:
            await self._show(BrokerState.ACTIVE, "activate")
        return BrokerState.ACTIVE.value

    async def _drain(self, coordinator: Coordinator, mover: Mover) -> None:
        leaving = Leaving(self._registry, self._hub, mover)
        while True:
            if not self._draining.is_set():
                leaving.reset()
                await self._draining.wait()
            ownership = self._registry.ownership
            next_ones, quiet = await leaving.next()
            places = coordinator.spread(
                [record.topic_id for record in next_ones], avoid=leaving.avoid(next_ones)
            )
            groups: dict[BrokerId, list[TopicRecord]] = {}
            for record in next_ones:
                if record.topic_id in places:
                    groups.setdefault(places[record.topic_id], []).append(record)
            for to, records in groups.items():
                try:
                    await self.begin(records, to, at_once=quiet)
                except ClusterError as error:  # retried in the next step
                    log.warning("drain_held_up", extra={"code": error.code, "error": error.message})
            is_empty = leaving.is_empty and not ownership.held
            if is_empty and self._draining.is_set() and coordinator.membership.state is BrokerState.DRAINING:
                with suppress(ClusterError):
                    await self._show(BrokerState.DRAINED, "unload")
            with anyio.move_on_after(LOOK_S if leaving.is_empty else _NEXT_S):
                await mover.until_changed()

    async def _show(self, state: BrokerState, reason: str) -> None:
        await self._registry.ownership.coordinator.membership.set_state(state, reason=reason)

    def _stored(self, records: Sequence[TopicRecord]) -> list[TopicRecord]:
        """Return the topics that store messages. Raises `LastBroker` for a lone broker, `Conflict` if none does."""
        if not self._registry.ownership.several:
            raise LastBroker(
                "this broker is alone: no other broker could take its topics over", field="topic"
            )
        found = [each for each in records if each.dispatch_strategy is not DispatchStrategy.NON_RELIABLE]
        if not found:
            raise Conflict(
                f"{records[0].name} stores nothing, so another broker serves it within seconds without a plan",
                topic=records[0].name,
                retryable=False,
            )
        return found

    async def journals(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the journal records, by broker. Empty for a lone broker. Raises `StoreUnavailable`."""
        items, _ = await read_all(self._store, keys.JOURNALS) if self._registry.ownership.several else ((), 0)
        found = {}
        for item in items:
            with self._registry.catalog.quarantine.reading(item.key):
                record = JournalRecord.from_json(item.value, key=item.key)
                found[str(keys.number_in_key(item.key))] = {
                    "id": str(record.journal),
                    "term": record.term,
                    "state": record.state.value,
                    "copies": record.copies,
                    "on_loss": record.on_loss or "wait",
                }
        return found

    async def take_over(self, records: Sequence[TopicRecord], without_copy: Collection[str] = ()) -> None:
        """Plan the take-over of lost brokers' topics. Raises `Conflict`, `LastBroker`, `StoreUnavailable`.

        `without_copy`: names of those that continue without the chain, which is damaged.
        """
        coordinator, stored = self._registry.ownership.coordinator, self._stored(records)
        given_up = [each.topic_id for each in stored if each.name in without_copy]
        await self.removed.take_overs.plan(coordinator, stored, given_up)

    async def forecast_take_over(self, records: Sequence[TopicRecord]) -> list[TakeOverFacts]:
        """Return the result that `take_over` would have, without a change. Raises as it does."""
        stored, found = self._stored(records), list[TakeOverFacts]()  # a lone broker is refused here
        owners = self.removed.take_overs.owners(self._registry.ownership.coordinator, stored)
        for owner, topics in owners.items():
            found += await self.removed.forecast_take_over(owner, topics)
        return found

    @property
    def fences(self) -> int:
        """The number of lost brokers' chains that this broker has fenced since its start."""
        return 0 if self.mover is None else self.removed.take_overs.fences

    def removals(self) -> RemovedBrokers:
        """Return the part that removes brokers. Raises `LastBroker` for a lone broker."""
        if not self._registry.ownership.several:
            raise LastBroker(
                "this broker is alone: there is no other that could be removed", field="broker_id"
            )
        return self.removed

    # -- TopicSwitch -----------------------------------------------------------------------------------------------

    async def serve(self, assignment: Assignment) -> None:
        ownership = self._registry.ownership
        await self._registry.catalog.records.until_known(assignment.topic_id)
        epoch, head = self.rebuilt_from.pop(assignment.topic_id, (None, None))
        head = await self._tier.adopt(assignment.topic_id, head if epoch == assignment.epoch else None)
        known = self._registry.catalog.index.topic_by_id(assignment.topic_id)
        take_in_clients = None if known is None else await ownership.arriving(known)
        record = self._registry.catalog.index.topic_by_id(assignment.topic_id)
        ownership.held.pop(assignment.topic_id, None)
        if record is not None and record.topic in ownership.topics:
            return
        confirm(self._hub, assignment.topic_id, assignment.epoch)
        state = self._hub.take_state(assignment.topic_id)
        if head is not None:
            state.tiered_offset = max(state.tiered_offset, head.tiered_offset)
            state.start_offset = max(state.start_offset, head.start_offset)
        if record is None:
            return  # deleted: its state stays here as long as it can be restored
        topic = ownership.adopt(record, assignment)
        if take_in_clients is not None:
            take_in_clients(topic)

    async def rebuild(self, assignment: Assignment, arrival: Arrival) -> None:
        assert assignment.move is not None
        await copy_parts(self._tier.child.call, assignment.move.parts, arrival)
        head = state = None
        if not arrival.has_end:  # also if a leader of the previous release has dropped `from_store`
            await self._registry.catalog.records.until_known(assignment.topic_id)
            head = await self.removed.head(assignment.topic_id)
            inherited = await self._inherit(assignment, head, arrival)
            state = await self.removed.rebuild(assignment, head, arrival.next_offset or 0, inherited)
        await arrival.finish(assignment.epoch, state)
        if head is not None:
            self.rebuilt_from[assignment.topic_id] = assignment.epoch, head

    async def _inherit(self, assignment: Assignment, head: CatalogHead, arrival: Arrival) -> LogState | None:
        """Copy the messages that a lost owner's chain has behind the objects. Return the topic's state there, or None."""
        chain = None if assignment.move is None else assignment.move.chain
        catalog, topic_id = self._registry.catalog, assignment.topic_id
        record = catalog.index.topic_by_id(topic_id) or catalog.restorable.record(topic_id)
        if chain is None or record is None:
            return None
        async with self._inherited.of(chain) as inherited:
            state = inherited.state(assignment, chain)
            if state is None:
                log.warning("topic_not_in_the_chain", extra={"topic": record.name})
                return None
            state.tiered_offset = max(state.tiered_offset, head.tiered_offset)
            state.start_offset = max(state.start_offset, head.start_offset)
            if state.needed_offset < state.next_offset:
                async with aclosing(inherited.pieces(record, state)) as pieces:
                    async for piece in pieces:
                        await arrival.take(piece)
            log.warning(
                "topic_inherited",
                extra={
                    "topic": record.name,
                    "stored_to": state.needed_offset,
                    "copied_to": state.next_offset,
                },
            )
            return state

    def copies(self, broker_id: BrokerId) -> bool:
        member = self._registry.ownership.coordinator.members.get(broker_id)
        return member is None or member.copies

    def check_room(self, size: int) -> None:
        self._health.check_publish()
        self._health.check_room(size)

    def stopped_at(self, broker_id: BrokerId) -> int:
        return sum(
            place.broker_id == broker_id and place.stage is Stage.MOVING and not place.is_served
            for place in self._registry.ownership.coordinator.moving_places()
        )

    async def make_safe(self, assignment: Assignment) -> None:
        await self._hub.journal.until_durable()
        if assignment.stored and (storing := self._registry.storing) is not None:
            # The heirs of this broker find the topic in its chain from now on.
            await storing.until_stored()
        elif (chain := self._chain.statistics()) is not None and chain.behind_s < _COPIED_S:
            # The former owner forgets the topic, or its chain is given up, once the topic is here. Until this broker's
            # chain has the topic, too, the loss of this disk would cost all of it that is not tiered.
            with anyio.move_on_after(_COPIED_S):
                await self._chain.until_all_stored()

    async def hold(self, assignment: Assignment) -> None:
        ownership, topic_id = self._registry.ownership, assignment.topic_id
        record = self._registry.catalog.index.topic_by_id(topic_id)
        if topic_id in ownership.held:
            return
        if record is None:
            await ownership.hold_restorable(assignment)
            return
        await self._registry.unused.let_go(record.topic)
        topic = ownership.topics.get(record.topic) or ownership.adopt(record, assignment)
        ownership.held[topic_id] = topic
        error = NoOwner(
            f"topic {topic.name} is being handed over to another broker: try again in a moment",
            topic=topic.name,
            retry_after_ms=_RETRY_MS,
        )
        topic.closed = error
        for pump in topic.subscriptions.values():
            if isinstance(pump, SubscriptionPump):
                pump.store_handover()
        keep_cursors(topic)  # before the wait, so that one sync covers messages and cursors
        for pump in topic.subscriptions.values():
            pump.close(error)
        await topic.ended()  # producers have their receipts by now
        ownership.release(topic, error)

    async def topic(self, assignment: Assignment) -> Topic:
        ownership, topic_id = self._registry.ownership, assignment.topic_id
        if topic_id not in ownership.held and topic_id not in self._hub.topics:
            await ownership.hold_restorable(assignment)
        found = ownership.held.get(topic_id) or self._hub.topics.get(topic_id)
        if found is None:
            raise TopicNotFound(f"the topic with id {topic_id} was deleted", topic_id=str(topic_id))
        if found.awaits_store:  # its end may not be stored, and a copy would leave it out
            raise Unavailable(f"{found.name} waits for the object store", retry_after_ms=_AGAIN_MS)
        return found

    async def save_unmoved(self, topic_id: TopicId) -> None:
        state = self._hub.states.get(topic_id)
        if (
            state is not None
            and (left := await left_behind(self._tier.catalog, self._store, state)) is not None
        ):
            await self._left.write_one(state, left)

    def gone(self, topic_id: TopicId) -> None:
        self._registry.ownership.held.pop(topic_id, None)
        self.rebuilt_from.pop(topic_id, None)
        self._tier.let_go(topic_id)

    def folder(self, topic_id: TopicId, name: TopicName) -> str:
        known = self._tier.folders.get(topic_id)
        return known or topic_folder(self._tier.cluster, name.namespace, name.name, topic_id)
