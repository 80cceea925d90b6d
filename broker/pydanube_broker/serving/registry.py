"""The topics and subscriptions that this broker serves: the catalog's records, with their state from the journal.

The catalog (metadata) lists the topics, the journal has their contents. Both are read at the start and joined by id. A
state without a topic in the catalog was deleted while the broker died. A topic without a state is empty.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from pydanube_core.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    InvalidArgument,
    NotImplementedYet,
    StoreUnavailable,
)
from pydanube_core.facts import BrokerAddress, Grace, UnusedFacts
from pydanube_core.links import link_of
from pydanube_core.names import AUDIT_TOPIC, SYSTEM_NAMESPACE, TopicName
from pydanube_core.positions import Position
from pydanube_core.refusals import audit_is_kept, deleted_meanwhile, mirror_is_read_only, system_is_closed
from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.metadata import MetadataStore

from pydanube_broker.admin_state import AdminState
from pydanube_broker.chain.folder import ChainFile
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.coordinator import Seen
from pydanube_broker.cluster.deleting.tombstone_records import TopicTombstone
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.journal_record import OwnJournal
from pydanube_broker.cluster.keys import topic_key
from pydanube_broker.cluster.records import DispatchStrategy, Durability, TopicRecord, TopicSettings
from pydanube_broker.cluster.registry_records import WHOLE
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.copying.arrival import decide_copies, forget_unfinished
from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.delivery.engine import DeliveryEngine
from pydanube_broker.journal.identity import journal_id
from pydanube_broker.schema.registry import SchemaRegistry
from pydanube_broker.schema.topic_schemas import TopicSchemas
from pydanube_broker.serving.deleted import Deleted
from pydanube_broker.serving.ownership import Ownership, keep_cursors
from pydanube_broker.serving.policies import Policies
from pydanube_broker.serving.unknown_topic import unknown_topic
from pydanube_broker.serving.unused_holds import UnusedHolds
from pydanube_broker.settings.sections import EMBEDDED, Settings
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.tenants.processor import charge_caller
from pydanube_broker.tenants.quotas import Quotas
from pydanube_broker.tier.storing import Storing
from pydanube_broker.to_the_end import to_the_end
from pydanube_broker.topics.agreement import (
    LossAccepted,
    check_epoch,
    check_journal_there,
    check_prefixes_there,
)
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.limits import default_durability
from pydanube_broker.topics.list_changes import ListChanges
from pydanube_broker.topics.log_state import starts_in
from pydanube_broker.topics.topic import Topic, now_ms

log = logging.getLogger("pydanube.topics")


class Registry:
    """See the module. Look-ups are immediate. Changes go through the catalog first."""

    def __init__(self, hub: Hub, engine: DeliveryEngine, store: MetadataStore, settings: Settings) -> None:
        self._hub = hub
        self.worker_threads = engine.worker_threads
        self._store = store
        url = settings.metadata.url
        self._metadata = "metadata.sqlite" if url == EMBEDDED else url  # names the metadata in errors
        self.catalog = TopicCatalog(store, wall_ms=now_ms)
        self.schemas = TopicSchemas(
            SchemaRegistry(
                store,
                wall_ms=now_ms,
                pending=engine.worker_threads.pending,
                charge=charge_caller,
                quarantine=self.catalog.quarantine,
            ),
            self.catalog,
        )
        self.policies = Policies(self.catalog.index, settings)
        self.quotas = Quotas(
            AdminState(store),
            {"namespace": settings.quota.namespace or "", "principal": settings.quota.principal or ""},
            self.catalog.quarantine,
        )
        self.ownership = Ownership(
            self.catalog,
            self.schemas,
            self.policies,
            hub,
            engine,
            memory=settings.data.memory,
            several=url != EMBEDDED,
        )
        self._topics = self.ownership.topics
        self.schemas.serve(self._topics)
        self.deleted = Deleted(self.catalog, hub, several=self.ownership.several)
        self.unused = UnusedHolds(self.catalog, self.ownership)
        self.accepted = LossAccepted(hub.journal.folder)
        self.storing: Storing | None = None  # None for a broker in memory
        # Returns whether an error may propose a topic to the caller. None: it may propose any topic.
        self.may_propose: Callable[[TopicName], bool] | None = None
        # Start offsets of topics whose oldest messages are lost, if the loss is accepted.
        self._begins: dict[int, int] = {}

    # -- start -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(
        self,
        me: BrokerAddress,
        changed: Callable[[str], None] = lambda key: None,
        seen: Seen = lambda topic_id, assignment, revision: None,
    ) -> AsyncIterator[None]:
        """Register this broker, load the topics and adopt its own. Deregister on leaving.

        `changed`, `seen`: see `Ownership.opened`.

        Raises `CorruptMetadata`, `CorruptJournal`: they are of different brokers, or of different times.
        """
        await self.schemas.registry.load()
        await self.quotas.records.load()
        journal = self._own_journal() if self.ownership.several else None
        async with (
            aclosing(self.schemas.registry.records),
            aclosing(self.quotas.records),
            self.ownership.opened(self._store, me, self.check_agreement, changed, seen, journal=journal),
        ):
            coordinator = self.ownership.coordinator
            decide_copies(self._hub, BrokerId(int(self.ownership.me.broker_id)), coordinator.place)
            self.deleted.place_cursors()
            mine = [each for each in self.catalog.index.topics() if self.ownership.is_mine(each.topic_id)]
            await self.ownership.complete(mine)
            for record in mine:
                with self.ownership.serving(record):
                    self.ownership.adopt(record)
            yield

    def _own_journal(self) -> OwnJournal:
        folder = self._hub.journal.folder
        chain = ChainFile.read(folder)
        return OwnJournal(number=journal_id(folder), is_needed=chain is not None and chain.needed)

    async def check_journal(self) -> None:
        """Check, before the journal begins, that it has everything that the topics need.

        Raises `CorruptJournal`: a part is missing, and the loss is not accepted.
        """
        objects = ObjectCatalog(self._store, wall_ms=now_ms)
        heads = await objects.heads()
        for topic_id, error in objects.unreadable.items():
            record = self.catalog.index.topic_by_id(TopicId(topic_id))
            if record is not None:
                with self.ownership.serving(record):
                    raise error
        journal = self._hub.journal
        # A trim may be the last record before a crash: durable, so that segments are gone, and not proven yet.
        trimmed = starts_in([] if journal.recovered is None else journal.recovered.tail)
        self._begins = check_prefixes_there(
            journal.folder,
            (
                (
                    topic.name,
                    topic.state,
                    max(
                        trimmed.get(topic.topic_id, 0),
                        heads[topic.topic_id].goes_on_at if topic.topic_id in heads else 0,
                    ),
                )
                for topic in self._hub.topics.values()
            ),
            journal.first_offset,
            self.accepted,
        )

    def check_agreement(self, topics: Sequence[TopicRecord], former: Mapping[TopicId, Assignment]) -> None:
        stored = [topic for topic in topics if topic.dispatch_strategy is not DispatchStrategy.NON_RELIABLE]
        found = self._hub.journal.recovered
        segments = 0 if found is None else len(found.segments)
        check_journal_there(self._hub.journal.folder, segments, len(stored), self.accepted)
        for topic in stored:
            state, last = self._hub.states.get(topic.topic_id), former.get(topic.topic_id)
            if state is not None and last is not None:
                check_epoch(topic.name, state.epoch, last.epoch, store=self._metadata)

    def begin(self, unstored_lsn: int | None = None) -> None:
        """Start using the journal. It takes records, and everything recovered, also its unproven tail, is durable.

        `unstored_lsn`: its end, if the object store is away, so that stored topics wait for it.
        """
        self._hub.fold_replayed()
        for topic in self._topics.values():
            topic.recovered()
        if unstored_lsn is not None:
            self._hub.await_store(unstored_lsn)
        for topic_id, offset in self._begins.items():
            self._hub.topics[topic_id].trim(offset)
        forget_unfinished(self._hub)
        index = self.catalog.index
        gone = self._hub.forget_unknown(
            # a topic that another broker owns now is dropped by its hand-over, not because it is missing here
            lambda topic_id: (
                self.catalog.restorable.keeps_data(topic_id)
                or (self.ownership.several and index.topic_by_id(TopicId(topic_id)) is not None)
            )
        )
        if gone:
            log.info("topics_dropped", extra={"count": len(gone)})

    # -- look-ups --------------------------------------------------------------------------------------------

    @property
    def list_changes(self) -> ListChanges:
        """Changes of the fields that lists show of topics and subscriptions."""
        return self._hub.changes

    @property
    def topics(self) -> Sequence[Topic]:
        """Every concrete topic, in no order."""
        return list(self._topics.values())

    def restorable(self) -> Sequence[TopicTombstone]:
        """Return this broker's deleted topics that can be restored."""
        found = self.catalog.restorable.topics.items()
        return [
            each for topic_id, each in found if not self.ownership.several or self.ownership.is_mine(topic_id)
        ]

    @property
    def count(self) -> int:
        """Return the number of served topics of users, counting each partition. The broker's own are not counted."""
        return sum(name.namespace != SYSTEM_NAMESPACE for name in self._topics)

    def names(self) -> set[TopicName]:
        """Return the served topics by their public names. Partitions count as one."""
        return {name if topic.options.parent is None else name.base for name, topic in self._topics.items()}

    def find(self, name: TopicName) -> Topic | None:
        """Return the concrete topic of that name if this broker serves it."""
        return self._topics.get(name)

    def known(self, name: TopicName) -> Topic:
        """Return the concrete topic of that name. Raises the error of `not_found`."""
        if (topic := self._topics.get(name)) is None:
            raise self.not_found(name)
        return topic

    def check_no_mirror(self, name: TopicName) -> None:
        """Raise `MirrorReadOnly` for a topic that only a link changes."""
        record = self.catalog.index.whole(name)
        link = None if record is None else link_of(record.spec.settings.options)
        if link is not None:
            raise mirror_is_read_only(str(name), link)

    def known_parts(self, name: TopicName) -> Sequence[Topic]:
        """Return the concrete topics of one by index. Raises the errors of `not_found` and `Ownership.check_served`."""
        self.ownership.check_served(self.catalog.index.partitions(name))
        if not (found := self.parts(name)[1]):
            raise self.not_found(name)
        return found

    def parts(self, name: TopicName) -> tuple[bool, Sequence[Topic]]:
        """Return whether the topic is partitioned, and its concrete topics by index. Empty for an unknown one."""
        topic = self._topics.get(name)
        if topic is not None:
            return False, [topic]
        records = self.catalog.index.partitions(name)
        found = [self._topics[record.topic] for record in records if record.topic in self._topics]
        return True, found

    def spelled_alike(self, name: TopicName) -> list[str]:
        """Return topics with a name similar to `name`, best first. O(log topics)."""
        close = self.catalog.index.spelled.close(name)
        return (
            close
            if self.may_propose is None
            else [each for each in close if self.may_propose(TopicName.parse(each))]
        )

    def not_found(self, name: TopicName) -> ClusterError:
        """Return the error for a topic that is not served here: with its owner, or with similar names if unknown."""
        if topic_key(name) in self.catalog.quarantine.found:
            return self.catalog.quarantine.error(topic_key(name))
        if self.ownership.several:
            record = self.catalog.index.find_topic(name)
            away = [part for part in self.catalog.index.partitions(name) if part.topic not in self._topics]
            if record is not None or away:
                return self.ownership.elsewhere(record or away[0])
        return unknown_topic(name, self.spelled_alike(name))

    # -- changes ---------------------------------------------------------------------------------------------

    async def create(
        self,
        name: TopicName,
        *,
        partitions: int,
        dispatch_strategy: str,
        durability: str | None = None,
        options: dict[str, Any] | None = None,
        must_be_new: bool = False,
        here: bool = False,
    ) -> Sequence[Topic]:
        """Create a topic. An existing one is returned, unless `must_be_new`.

        Returns the parts that this broker serves. `here`: this broker is to own it. `durability`: None for the policy of
        the namespace.

        Raises:
            PermissionDenied: it would be a system topic.
        """
        if name.is_system:
            raise system_is_closed(str(name))
        strategy = _choice(DispatchStrategy, dispatch_strategy, "dispatch_strategy")
        level = _choice(
            Durability,
            durability
            or (
                "memory"
                if strategy is DispatchStrategy.NON_RELIABLE
                else default_durability(*self.policies.layers(None, name.namespace))
            ),
            "durability",
        )
        if level is Durability.REPLICATED:
            raise NotImplementedYet(
                "durability replicated comes with the cluster: use fsynced",
                field="durability",
                value=durability,
            )
        settings = TopicSettings(dispatch_strategy=strategy, durability=level, **(options or {}))
        if level is Durability.STORED:
            await self.check_stored()
        async with self.quotas.making(
            "topics",
            name.namespace,
            0 if self._exists(name) else max(1, partitions),
            lambda: self.catalog.index.count_topics(name.namespace),
        ):
            return await self._make(name, settings, partitions=partitions, must_be_new=must_be_new, here=here)

    async def check_stored(self, *, begin: bool = True) -> None:
        """Check that topics may be stored in the object store, before one is to be.

        Args:
            begin: a lone broker begins its chain.

        Raises:
            Conflict: a broker of an older build may have to serve the topic, and would not read its record.
            StoreUnavailable, StoreUnsuitable.
        """
        if self.storing is None:
            return
        if self.catalog.index.format.metadata_format < WHOLE:
            raise Conflict(
                "durability stored needs all brokers to run this build, and the metadata are still kept in the format of an "
                "older one: replace the brokers that metadata_format_waits in the log names. If it names none, the leader "
                "is converting the metadata: try again in a second"
                if self.ownership.several
                else "durability stored needs metadata that an older build cannot read: start once without --no-upgrade",
                field="durability",
                value=Durability.STORED.value,
                retryable=self.ownership.several,
            )
        await (self.storing.begin() if begin and not self.ownership.several else self.storing.check())

    def _exists(self, name: TopicName) -> bool:
        index = self.catalog.index
        return index.find_topic(name) is not None or index.partitioned(name) is not None

    def newest_message(self) -> tuple[int, str]:
        """Return the append time of the newest message, 0 if there is none, and its topic."""
        states = self._hub.states
        topic_id = max(states, key=lambda each: states[each].append_time_ms, default=None)
        if topic_id is None:
            return 0, ""
        record = self.catalog.index.topic_by_id(TopicId(topic_id))
        return states[topic_id].append_time_ms, f"of id {topic_id}" if record is None else str(record.name)

    async def audit_topic(self) -> Topic:
        """Return this broker's audit topic, created if needed. Each of several brokers has its own."""
        suffix = f"-{self.ownership.me.broker_id}" if self.ownership.several else ""
        name = TopicName.parse(AUDIT_TOPIC + suffix)
        return self.find(name) or (await self._make(name, TopicSettings(), here=True))[0]

    @to_the_end
    async def _make(
        self,
        name: TopicName,
        settings: TopicSettings,
        *,
        partitions: int = 0,
        must_be_new: bool = False,
        here: bool = False,
    ) -> Sequence[Topic]:
        if topic_key(name) in self.catalog.quarantine.found:
            raise self.catalog.quarantine.error(topic_key(name))
        # To the end: once the catalog has the topic, this broker must own it and have it in its index.
        try:
            records = await self.catalog.create_topic(name, partitions=partitions, settings=settings)
        except AlreadyExists:
            # Two producers may create the same topic concurrently. Both continue with it.
            records = [] if must_be_new else await self.catalog.existing_topic(name)
            if not records:
                raise
        await self.ownership.acquire(records, here=here)
        found = [self._topics[record.topic] for record in records if record.topic in self._topics]
        missing = [record for record in records if record.topic not in self._topics]
        if any(
            self.catalog.index.topic_by_id(record.topic_id) is None or self.ownership.is_mine(record.topic_id)
            for record in missing
        ):
            raise deleted_meanwhile(f"topic {name}", topic=str(name))
        return found

    @to_the_end
    async def delete(
        self, name: TopicName, *, grace: Grace | None = None, held: Sequence[UnusedFacts] = ()
    ) -> None:
        """Delete a topic with all its partitions, subscriptions and messages. With a grace it can be restored.

        Raises:
            TopicNotFound.
            Conflict: the topic was to be `held` (see `TopicCatalog.delete_topic`), and is no longer held.
            StoreUnavailable: with outcome `unknown`, the topic accepts no messages until `resolve_unknown` reads the
                outcome.
        """
        if name.is_audit:
            raise audit_is_kept(str(name))
        index = self.catalog.index
        found = index.find_topic(name)
        records = [found] if found is not None else list(index.partitions(name))
        if found is None and index.partitioned(name) is None:
            raise self.not_found(name)
        if grace is not None:
            for part in self.parts(name)[1]:
                keep_cursors(part)
        # To the end: a topic that was deleted from the catalog must not be served.
        try:
            records += await self.catalog.delete_topic(name, grace=grace, held=held)
        finally:
            self.follow_deletions(records)

    @to_the_end
    async def drop_partitions(self, name: TopicName, partitions: int, *, held: Sequence[UnusedFacts]) -> None:
        """Delete the partitions of a topic from an index on. Raises as `delete`."""
        records = [
            part for part in self.catalog.index.partitions(name) if (part.partition or 0) >= partitions
        ]
        try:
            await self.catalog.drop_partitions(name, partitions, held=held)
        finally:
            self.follow_deletions(records)

    def follow_deletions(self, records: Sequence[TopicRecord]) -> None:
        """Release topics that the catalog no longer has, and keep deleted ones from accepting messages."""
        for record in records:
            if self.catalog.index.topic_by_id(record.topic_id) is None:
                self.ownership.deleted(record)
            elif record.key in self.catalog.records.unsettled:
                topic = self._topics.get(record.topic)
                if topic is not None and topic.closed is None:
                    topic.closed = StoreUnavailable(
                        f"{record.name} may have been deleted: the metadata store has not answered yet. "
                        "This batch was not stored. Publishing resumes without help",
                        topic=record.name,
                        retry_after_ms=1000,
                    )

    async def resolve_unknown(self) -> None:
        """Read the results of changes with an unknown outcome, and serve the topics that exist.

        Raises `StoreUnavailable`: the store still does not answer.
        """
        if not self.catalog.records.unsettled:
            return
        await self.catalog.records.resolve_unknown()
        index = self.catalog.index
        for topic in list(self._topics.values()):
            if index.topic_by_id(topic.options.topic_id) is None:
                self.ownership.deleted(topic.options)
                continue
            if isinstance(topic.closed, StoreUnavailable):
                topic.closed = None
            for pump in list(topic.subscriptions.values()):
                if index.find_subscription(topic.options.topic_id, pump.name) is None:
                    self.ownership.subscription_deleted(topic, pump)
        await self.open_all()

    async def open_all(self) -> None:
        """Serve every topic of the catalog, except quarantined ones."""
        quarantine = self.catalog.quarantine.found
        missing = [
            record
            for record in self.catalog.index.topics()
            if record.topic not in self._topics
            and topic_key(record.topic) not in quarantine
            and (
                self.ownership.is_mine(record.topic_id)
                or self.ownership.coordinator.place(record.topic_id) is None
            )
        ]
        if missing:
            for topic in list(self._hub.leaving.values()):
                # Messages that its deletion interrupted count as committed from here on.
                await topic.settled()
            await self.ownership.acquire(missing)

    @to_the_end
    async def restore(self, call_id: str) -> Sequence[TopicRecord]:
        """Restore a deleted topic with its messages, and its subscriptions with their cursors.

        With several brokers, its owner is the one that had it and still has its messages. It is served when that broker
        is up.

        Raises `TopicNotFound`, `NameReused`, `NamespaceNotFound`.
        """
        try:
            records = await self.catalog.restore_topics(call_id)
        finally:  # serve the restored topics, even if others could not be restored
            await self.open_all()
        return records

    async def subscribe(
        self, topic: Topic, name: str, *, type: str, start: Position, start_given: bool
    ) -> AnyPump:
        """Return the subscription of that name, created if it is new.

        Raises `InvalidArgument`, `LimitReached`, `TopicNotFound`.
        """
        if topic.closed is not None:
            raise topic.closed
        pump: AnyPump | None = topic.subscriptions.get(name)
        wanted = _choice(SubscriptionType, type or "exclusive", "type")
        if pump is None:
            topic.gate.limits.check_room(
                "max_subscriptions_per_topic",
                len(topic.subscriptions),
                what="subscriptions",
                topic=topic.name,
            )
            namespace = topic.options.topic.namespace
            async with self.quotas.making(
                "subscriptions", namespace, 1, lambda: self.catalog.index.count_subscriptions(namespace)
            ):
                await topic.prepare(start)
                pump, created = await self._ensure(topic, name, wanted, topic.resolve(start))
            if created:
                return pump
        if start_given:
            raise InvalidArgument(
                f"subscription {name} of {topic.name} exists. A start position counts for a new one only. Move it "
                "with `danube subscriptions seek`, or leave the position out",
                field="start",
                value=str(start),
            ).suggest(
                "subscriptions.seek",
                tool="seek_subscription",
                command=f"danube subscriptions seek {topic.name} {name} --to {start}",
                arguments={"topic": topic.name, "subscription": name, "to": str(start)},
                why="move the existing subscription",
            )
        if type and pump.type is not wanted:
            raise InvalidArgument(
                f"subscription {name} of {topic.name} is {pump.type.value}, not {wanted.value}: use its type or "
                "another name",
                field="type",
                value=type,
                actual=pump.type.value,
            )
        return pump

    @to_the_end
    async def _ensure(
        self, topic: Topic, name: str, wanted: SubscriptionType, start_offset: int
    ) -> tuple[AnyPump, bool]:
        """Return the subscription of that name, and whether it was created now."""
        record, created = await self.catalog.subscriptions.ensure(
            topic.options.topic_id, name, type=wanted.value, start_offset=start_offset
        )
        pump: AnyPump | None = topic.subscriptions.get(name)
        if pump is None:
            if topic.closed is not None:
                raise topic.closed
            now = self.catalog.index.find_subscription(record.topic_id, name)
            if now is None or now.subscription_id != record.subscription_id:
                what = f"subscription {name} of {topic.name}"
                raise deleted_meanwhile(what, topic=topic.name, subscription=name)
            pump = self.ownership.adopt_subscription(topic, record)
        return pump, created


def _choice(kind: Any, text: str, field: str) -> Any:
    """Return the member of a `StrEnum` by its value."""
    try:
        return kind(text)
    except ValueError:
        words = ", ".join(member.value for member in kind)
        raise InvalidArgument(f"{field} {text!r}: use one of {words}", field=field, value=text) from None
