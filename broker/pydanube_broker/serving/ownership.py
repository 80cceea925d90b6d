"""The topics that this broker owns: adopted with an epoch, released to another broker or for good.

All lookups of a topic's owner go through this class. A single broker owns every topic and leads. With several brokers,
the assignments decide who owns a topic, and a broker opens only its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
from pydanube_core.errors import ClusterError, NoOwner, NotOwner, SubscriptionNotFound, TopicNotFound
from pydanube_core.facts import BrokerAddress, FailedMoveFacts, MoveFacts
from pydanube_core.links import MIRROR, link_of, writer_elsewhere
from pydanube_core.names import TopicName
from pydanube_core.refusals import damaged_copy
from pydanube_storage.metadata import MetadataStore

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.coordinator import Coordinator, Seen
from pydanube_broker.cluster.ids import BrokerId, Epoch, TopicId, numbers_of
from pydanube_broker.cluster.journal_record import OwnJournal
from pydanube_broker.cluster.keys import number_in_key, subscription_key, topic_key
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.cluster.records import DispatchStrategy, Durability, SubscriptionRecord, TopicRecord
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.delivery.engine import DeliveryEngine
from pydanube_broker.delivery.non_reliable import LivePump
from pydanube_broker.delivery.pump import SubscriptionPump
from pydanube_broker.schema.topic_schemas import TopicSchemas
from pydanube_broker.serving.policies import Policies
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.subscription_policy import stored_policy
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.memory_topic import MemoryTopic
from pydanube_broker.topics.topic import Topic

_RETRY_MS = 100  # a new topic is open within moments

#: Arguments: the topics of the catalog, and their former assignments.
Agreement = Callable[[Sequence[TopicRecord], Mapping[TopicId, Assignment]], None]


class Ownership:
    """See the module. `topics`: the served topics, by name. Single user: the loop."""

    coordinator: Coordinator  # from `opened` on

    def __init__(
        self,
        catalog: TopicCatalog,
        schemas: TopicSchemas,
        policies: Policies,
        hub: Hub,
        engine: DeliveryEngine,
        *,
        memory: bool,
        several: bool = False,
    ) -> None:
        self.topics: dict[TopicName, Topic] = {}
        self.held: dict[int, Topic] = {}  # topics that accept no messages during their hand-over
        self.on_their_way: Container[int] = ()  # topics whose move decides when they are served here
        self.several = several  # whether other brokers may be on the same metadata
        #: Reads facts of a topic that had another owner, before it is served here. The result is called when it is.
        self.arriving: Callable[[TopicRecord], Awaitable[Callable[[Topic], None]]] = _nothing
        self.on_served: Callable[[TopicName], None] = lambda name: None  # a topic is served from now on
        self.on_assigned: Callable[[str], None] = lambda key: None  # the assignment of a key changed
        # Called when a topic is served that must be in the object store
        self.on_stored: Callable[[], None] = lambda: None
        # Called when a topic may have to change its durability
        self.on_level: Callable[[Topic], None] = lambda topic: None
        self.me: BrokerAddress
        self._catalog = catalog
        self._schemas = schemas
        self._policies = policies
        self._hub = hub
        self._engine = engine
        self._memory = memory  # nothing outlives the process
        self._opening: dict[TopicName, anyio.Event] = {}  # created, not served yet
        self._arrivals: dict[TopicId, anyio.Event] = {}  # topics with callers that wait for their next owner
        self.waits: set[anyio.CancelScope] = set()  # scopes of waiting callers, which `recheck_waits` cancels

    @asynccontextmanager
    async def opened(
        self,
        store: MetadataStore,
        me: BrokerAddress,
        check: Agreement,
        changed: Callable[[str], None] = lambda key: None,
        seen: Seen = lambda topic_id, assignment, revision: None,
        *,
        journal: OwnJournal | None = None,
    ) -> AsyncIterator[None]:
        """Register this broker, load and check the catalog, and adopt the topics that it owns. Deregister on leaving.

        Args:
            changed: called with the key of each assignment that changes, if there are several brokers.
            seen: called with each assignment that is read or watched there.
            journal: this broker's journal.
        """
        self.me = me

        def note(key: str) -> None:
            changed(key)
            self.on_assigned(key)
            self._arrived(TopicId(number_in_key(key)))

        coordinator = Coordinator(
            store,
            me,
            catalog=self._catalog,
            several=self.several,
            check=check,
            changed=note,
            seen=seen,
            journal=journal,
        )
        coordinator.member_came = self.recheck_waits
        async with coordinator:
            self.coordinator = coordinator
            self._hub.connections = numbers_of(coordinator.membership.registration.incarnation)
            yield

    # -- owners ----------------------------------------------------------------------------------------------

    def owner(self, topic_id: int) -> BrokerAddress | None:
        """Return the broker that owns a topic. None if there is no owner, or its address is not available."""
        place = self.coordinator.place(TopicId(topic_id))
        return None if place is None or not place.is_served else self.coordinator.address(place.broker_id)

    def url(self, topic: Topic) -> str:
        """Return the address where a topic's clients connect. For a topic without an owner, this broker's."""
        return (self.owner(topic.topic_id) or self.me).broker_url

    def speaks_for_all(self) -> bool:
        """Return whether this broker reports the facts of the whole cluster, as the leader and a lone broker do."""
        return not self.several or self.coordinator.leads()

    def url_of(self, broker_id: BrokerId) -> str:
        """Return a broker's own address, or "" if it was never seen."""
        address = self.coordinator.address(broker_id)
        return "" if address is None else address.broker_url

    def leader(self) -> BrokerAddress | None:
        """Return the broker that assigns topics. None while no broker leads."""
        return self.coordinator.leader()

    def members(self) -> list[BrokerAddress]:
        """Return every broker that is registered now."""
        if not self.several:
            return [self.me]
        found = [
            replace(address, state=member.state.value)
            for broker_id, member in self.coordinator.members.items()
            if (address := self.coordinator.address(broker_id)) is not None
        ]
        return found or [self.me]

    def last_known(self, topic_id: int) -> BrokerAddress | None:
        """As `owner`, also for a moving topic. Addresses are empty for a broker that was never seen."""
        place, owner = self.coordinator.place(TopicId(topic_id)), self.owner(topic_id)
        if place is None or owner is not None:
            return owner
        address = self.coordinator.address(place.broker_id)
        return address or BrokerAddress(broker_id=str(place.broker_id), broker_url="", admin_url="")

    def is_mine(self, topic_id: int) -> bool:
        """Return whether this broker owns a topic and serves it, or soon will."""
        return TopicId(topic_id) in self.coordinator.assignments and topic_id not in self.held

    def check_served(self, parts: Sequence[TopicRecord]) -> None:
        """Raise `NoOwner` if this broker owns one of these partitions without serving it, because an answer would lack it."""
        for record in parts if self.several else ():
            if record.topic not in self.topics and self._is_last_here(record.topic_id):
                raise self.elsewhere(record)

    def _is_last_here(self, topic_id: TopicId) -> bool:
        """Return whether the last owner of a topic is this broker, also during a move."""
        place = self.coordinator.place(topic_id)
        return place is not None and str(place.broker_id) == self.me.broker_id

    def is_moving(self, topic_id: int) -> bool:
        """Return whether a topic is moving, according to this broker's copy of the assignments."""
        place = self.coordinator.place(TopicId(topic_id))
        return topic_id in self.held or (place is not None and place.stage is not Stage.SERVING)

    async def until_placed(self, topic_id: TopicId) -> None:
        """Wait until a moving topic is at its new owner, and served if that is this broker."""
        while self.is_between(topic_id):
            await self._arrivals.setdefault(topic_id, anyio.Event()).wait()

    async def until_moved(self, topic_id: TopicId, epoch: Epoch) -> None:
        """Wait until a topic is served in another epoch, or is deleted."""
        while (place := self.coordinator.place(topic_id)) is not None and (
            place.epoch == epoch or self.is_between(topic_id)
        ):
            await self._arrivals.setdefault(topic_id, anyio.Event()).wait()

    def recheck_waits(self) -> None:
        """Cancel the scopes in `waits`, so that waiting callers check again: a broker has registered, or this one stops."""
        for scope in self.waits:
            scope.cancel()

    def is_between(self, topic_id: TopicId) -> bool:
        """Return whether a topic is moving and not served anywhere yet."""
        place = self.coordinator.place(topic_id)
        if place is None or not place.is_served:
            return place is not None
        return self.is_mine(topic_id) and topic_id in self.on_their_way and place.topic not in self.topics

    def _arrived(self, topic_id: TopicId) -> None:
        if (waiting := self._arrivals.pop(topic_id, None)) is not None:
            waiting.set()

    def moves(self) -> list[MoveFacts]:
        """Return the topics that are moving, anywhere in the cluster."""
        found = []
        for place in self.coordinator.moving_places():
            if place.move is None:
                continue
            target = self.coordinator.members.get(place.next_owner)
            copying = None if target is None else (target.copying or {}).get(str(place.topic_id))
            found.append(
                MoveFacts(
                    topic=str(place.topic),
                    source=place.move.source,
                    target=place.move.target,
                    stage=place.stage.value,
                    begun_at_ms=place.move.begun_at_ms,
                    copied_bytes=None if copying is None else copying.done,
                    total_bytes=None if copying is None else copying.total,
                )
            )
        return found

    def failed_moves(self) -> list[FailedMoveFacts]:
        """Return the cancelled moves of topics that have not moved since."""
        return [
            FailedMoveFacts(
                topic=str(place.topic),
                owner=str(place.broker_id),
                target=place.failed.target,
                begun_at_ms=place.failed.begun_at_ms,
                code=place.failed.code,
                why=place.failed.why,
            )
            for topic_id in list(self.coordinator.failed)
            if (place := self.coordinator.place(topic_id)) is not None
            and place.failed is not None
            and place.stage is not Stage.ASSIGNED
        ]

    def elsewhere(self, record: TopicRecord) -> ClusterError:
        """Return the error for a call about a topic that another broker owns, or that has no owner yet."""
        place = self.coordinator.place(record.topic_id)
        owner = self.owner(record.topic_id)
        if place is None or owner is None or self._is_last_here(record.topic_id):
            why = None if place is None else not_rebuilt(place)
            return NoOwner(
                f"topic {record.name} is not served by any broker yet: {why or 'try again in a moment'}",
                topic=record.name,
                retry_after_ms=_RETRY_MS,
            )
        return NotOwner(
            f"topic {record.name} is at broker {owner.broker_id} ({owner.broker_url})",
            topic=record.name,
            broker_id=owner.broker_id,
            broker_url=owner.broker_url,
            admin_url=owner.admin_url,
            epoch=place.epoch,
            retry_after_ms=_RETRY_MS,
        )

    @property
    def incarnation(self) -> int:
        """The number of this broker's registration."""
        return self.coordinator.membership.registration.incarnation

    # -- acquisition -----------------------------------------------------------------------------------------

    async def acquire(self, records: Sequence[TopicRecord], *, here: bool = False) -> None:
        """Assign an owner to each topic that has none, and serve this broker's. Skip topics deleted during the call.
        If a topic is being opened already, wait for that, so that it is opened once. `here`: a topic without an owner
        is assigned to this broker.
        """
        gone: set[TopicId] = set()
        while missing := [
            record
            for record in records
            if record.topic not in self.topics
            and record.topic_id not in gone
            and record.topic_id not in self.on_their_way
        ]:
            mine = [record for record in missing if record.topic not in self._opening]
            if not mine:
                await self._opening[missing[0].topic].wait()
                continue
            opened = anyio.Event()
            self._opening |= dict.fromkeys((record.topic for record in mine), opened)
            try:
                owned = {assignment.topic_id for assignment in await self.coordinator.assign(mine, here=here)}
                await self.complete([record for record in mine if record.topic_id in owned])
                for record in mine:
                    place = self.coordinator.place(record.topic_id) if self.several else None
                    had_an_owner = place is not None and place.epoch > 1
                    add_clients = await self.arriving(record) if had_an_owner else None
                    # A deletion in between has not found it among the served topics, so it must not become one.
                    now = self._catalog.index.topic_by_id(record.topic_id)
                    if now is not None and record.topic_id in owned and record.topic_id not in self.held:
                        if record.topic not in self.topics:
                            topic = self.adopt(now)
                            if add_clients is not None:
                                add_clients(topic)
                    else:
                        gone.add(record.topic_id)
                        if now is None and not self._catalog.restorable.keeps_data(record.topic_id):
                            self.coordinator.forget(record.topic_id)
            finally:
                for record in mine:
                    del self._opening[record.topic]
                opened.set()

    async def complete(self, records: Sequence[TopicRecord]) -> None:
        """Give partitions that this broker owns, and that never had a message, their siblings' subscriptions."""
        states = self._hub.states
        empty = [r for r in records if (state := states.get(r.topic_id)) is None or not state.next_offset]
        await self._catalog.subscriptions.as_siblings(empty)

    def adopt(self, record: TopicRecord, place: Assignment | None = None) -> Topic:
        """Serve a topic that is assigned to this broker, with its subscriptions, from the state in the journal.

        `place`: needed if the watch has not delivered the assignment yet.
        """
        schema = self._schemas.guard_of(record)
        place = place or self.coordinator.assignments[record.topic_id]
        topic: Topic
        if record.dispatch_strategy is DispatchStrategy.NON_RELIABLE:
            limits = self._policies.limits_of(record)
            topic = MemoryTopic(
                record.name, record.topic_id, self._hub, options=record, limits=limits, epoch=place.epoch
            )
        else:
            topic = self._opened(record, place)
            self._hub.add(topic)
            if topic.in_store:
                self.on_stored()
            self.on_level(topic)
        topic.schema = schema
        self.topics[record.topic] = topic
        topic.changes.note(topic.name)
        for subscription in self._catalog.index.subscriptions(record.topic_id):
            with self._catalog.quarantine.reading(subscription_key(record.topic_id, subscription.name)):
                self.adopt_subscription(topic, subscription)
        known = {pump.subscription_id for pump in topic.subscriptions.values()}
        for number in topic.state.cursors.keys() - known:
            if not self._catalog.restorable.keeps_cursor(record.topic_id, number):
                del topic.state.cursors[number]
        self.on_served(record.topic)
        self._arrived(record.topic_id)
        return topic

    def _opened(self, record: TopicRecord, place: Assignment) -> Topic:
        level = Durability.STORED if place.stored else Durability.FSYNCED
        topic = Topic(
            record.name,
            self._hub.take_state(record.topic_id),
            self._hub,
            options=record,
            limits=self._policies.limits_of(record),
            epoch=place.epoch,
            durability="memory" if self._memory else level.value,
        )
        topic.link = link_of(record.settings.options)
        topic.failed_over_to = writer_elsewhere(record.settings.options)
        return topic

    async def hold_restorable(self, place: Assignment) -> None:
        """Make a deleted, restorable topic readable for a move. It is not served."""
        topic_id = place.topic_id
        record = self._catalog.restorable.record(topic_id)
        if record is None or topic_id in self.held:
            return
        if (leaving := self._hub.leaving.get(topic_id)) is not None:
            await leaving.settled()  # messages that its deletion interrupted count as committed from here on
        topic = self._opened(record, place)
        self.held[topic_id] = topic
        self._hub.add(topic)
        topic.open_epoch()
        self._hub.detach(topic_id)
        await topic.settled()

    def adopt_subscription(self, topic: Topic, record: SubscriptionRecord) -> AnyPump:
        """Serve a subscription from its cursor. One that is served already stays as it is."""
        if (served := topic.subscriptions.get(record.name)) is not None:
            found: AnyPump = served
            return found
        policy = self._policies.of_failures(stored_policy(record.spec.options))
        if isinstance(topic, MemoryTopic):
            live = LivePump(
                record.name,
                record.subscription_id,
                SubscriptionType(record.type),
                topic,
                self._engine,
                created_at_ms=record.spec.created_at_ms,
            )
            live.policy = policy
            return live
        pump = SubscriptionPump(
            record.name,
            record.subscription_id,
            SubscriptionType(record.type),
            topic,
            self._engine,
            policy=policy,
            start_offset=record.start_offset,
            created_at_ms=record.spec.created_at_ms,
        )
        pump.follows = MIRROR in record.spec.options
        return pump

    # -- release ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def serving(self, record: TopicRecord) -> Iterator[None]:
        """Context for taking a topic into service. If its metadata does not permit that, it is quarantined with its data."""
        key = topic_key(record.topic)
        with self._catalog.quarantine.reading(key):
            yield
        if key in self._catalog.quarantine.found:
            topic = self.topics.get(record.topic)
            if topic is not None:
                self.release(topic, self._catalog.quarantine.error(key))
            self._hub.detach(record.topic_id)

    def release(self, topic: Topic, error: ClusterError) -> None:
        """Stop serving a topic. Its clients, and waiting callers, get the error. Stored data stays."""
        keep_cursors(topic)
        name = topic.options.topic
        if self.topics.get(name) is topic:
            del self.topics[name]
        topic.closed = error
        topic.changes.note(topic.name)
        for pump in list(topic.subscriptions.values()):
            pump.close(error)
        topic.subscriptions.clear()
        for listener in tuple(topic.listeners):
            listener.grew()
            wake = getattr(listener, "wake", None)
            if wake is not None:
                wake()
        topic.fail(error)
        self._hub.detach(topic.topic_id)

    def deleted(self, record: TopicRecord) -> None:
        """Release a deleted topic, and delete its data unless this broker may have to restore it."""
        kept = self._catalog.restorable.keeps_data(record.topic_id)
        if not (kept and self.several):
            self.coordinator.forget(record.topic_id)
        if not kept and self.held.pop(record.topic_id, None) is not None:
            self._hub.drop(record.topic_id)
        topic = self.topics.get(record.topic)
        if topic is None or topic.topic_id != record.topic_id:
            return
        self.release(
            topic, TopicNotFound(f"topic {record.name} was deleted", field="topic", value=record.name)
        )
        if not kept:
            self._hub.drop(topic.topic_id)

    def subscription_deleted(self, topic: Topic, pump: AnyPump) -> None:
        """End a deleted subscription's consumers, and delete its cursor unless it may have to be restored."""
        if topic.subscriptions.get(pump.name) is pump:
            del topic.subscriptions[pump.name]
            topic.changes.note(topic.name)
        if not self._catalog.restorable.keeps_cursor(topic.topic_id, pump.subscription_id):
            topic.state.cursors.pop(pump.subscription_id, None)
        pump.close(
            SubscriptionNotFound(
                f"subscription {pump.name!r} of {topic.name} was deleted",
                field="subscription",
                value=pump.name,
            )
        )


async def _nothing(record: TopicRecord) -> Callable[[Topic], None]:
    return lambda topic: None


def keep_cursors(topic: Topic) -> None:
    """Write all cursors to the journal and the log state, before the pumps are closed."""
    for pump in topic.subscriptions.values():
        with contextlib.suppress(ClusterError):  # a full disk must not prevent a deletion
            pump.write_cursor()
        pump.store_snapshot()


def not_rebuilt(place: Assignment) -> str | None:
    """Return why the next owner of a lost broker's topic could not rebuild it, and what to do. None if it did not fail."""
    damage = place.damage
    if place.stage is not Stage.ASSIGNED or damage is None or place.move is None:
        return None
    if place.move.chain is None:  # there is no copy to give up
        return f"{damage.why}. Restore that object from a backup: the new owner tries again every second"
    return damaged_copy(damage.why, place.move.source)
