"""The single access to topics for producers and consumers: a topic is found, created if allowed, or refused.

Every service of the data plane comes here when a session begins, with its caller, the action and the topic's name.
`TopicAccess.check` alone decides. Sends within a session do not come here: conditions that apply to each send are
checked where the topic appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import anyio
from pydanube_core.errors import ClusterError, DispatchMismatch, NoOwner, NotOwner, TopicNotFound
from pydanube_core.facts import DataChange, MovedCursor
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName
from pydanube_core.positions import Position
from pydanube_core.refusals import system_is_closed
from pydanube_core.security.permissions import (
    AUDIT_READ,
    CLUSTER,
    CONSUME,
    FENCE,
    LOOK_UP,
    MIRROR,
    PRODUCE,
    Resource,
)

from pydanube_broker.cluster.ids import Epoch, TopicId
from pydanube_broker.cluster.keys import topic_key
from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.rpc.caller import Called
from pydanube_broker.security.locks import Locks
from pydanube_broker.serving.data_changes import DataChanges
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.unused_topics import UNUSED_TTL
from pydanube_broker.settings.advertised import check_advertised
from pydanube_broker.settings.sections import Settings
from pydanube_broker.status.health import Health
from pydanube_broker.tenants.quotas import Share
from pydanube_broker.to_the_end import to_the_end
from pydanube_broker.topics.topic import Topic, now_ms

_ASKING: Final = 8  # concurrent reads of unknown names
PATIENCE_S: Final = 1.0  # seconds to wait for a moving topic, after which the caller retries
_MOST_ASKING: Final = 256  # waiting reads. Beyond that, a flood of unknown names is answered from the index


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A concrete topic and its owner. `broker_url` is empty if there is none.

    `waits_for` is the owner's id if it is not registered, else empty.
    """

    topic: TopicName
    topic_id: int
    dispatch_strategy: str
    broker_url: str
    epoch: int
    max_message_bytes: int
    waits_for: str = ""

    @property
    def name(self) -> str:
        """Return the topic's full name, `/namespace/name`."""
        return str(self.topic)


class Placement:
    """Finds the owner of any topic, for clients before they connect to it.

    A single broker has the topics that it serves. Each of several brokers has all topics from the catalog's watch,
    moments after they were created. An unknown name is read from the metadata store once, with few concurrent reads,
    before it counts as unknown. Single user: the loop.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._asking = anyio.CapacityLimiter(_ASKING)

    def names(self) -> Iterable[TopicName]:
        """Return the cluster's topics by their public names. Partitions count as one."""
        if not self._registry.ownership.several:
            return self._registry.names()
        index = self._registry.catalog.index
        plain = {record.topic for record in index.topics() if record.parent is None}
        return plain | {record.topic for record in index.all_partitioned() if index.partitions(record.topic)}

    def parts(self, name: TopicName) -> tuple[bool, Sequence[Placed]]:
        """Return whether a topic is partitioned, and its concrete topics by index. Empty for an unknown one."""
        partitioned, records = self._records(name)
        return partitioned, [self._placed(record) for record in records]

    def count_partitions(self, name: TopicName) -> int:
        """Return the number of partitions of a topic. 0 if it has a log itself, or is unknown."""
        partitioned, records = self._records(name)
        return len(records) if partitioned else 0

    def _records(self, name: TopicName) -> tuple[bool, Sequence[TopicRecord]]:
        """Return whether a topic is partitioned, and the records of its concrete topics.

        Partitions that are being added are left out until all exist, because a client that hashed keys to some of them
        only would separate messages of one key.
        """
        index = self._registry.catalog.index
        if not self._registry.ownership.several:
            partitioned, topics = self._registry.parts(name)
            records = [topic.options for topic in topics]
        else:
            record = index.find_topic(name)
            partitioned, records = record is None, index.partitions(name) if record is None else [record]
        if (parent := index.partitioned(name)) is not None:
            records = [each for each in records if (each.partition or 0) < parent.spec.partitions]
        return partitioned, records

    def _placed(self, record: TopicRecord) -> Placed:
        registry = self._registry
        served, place = registry.find(record.topic), registry.ownership.coordinator.place(record.topic_id)
        owner = registry.ownership.owner(record.topic_id)
        is_gone = (
            served is None
            and place is not None
            and place.is_served
            and place.broker_id not in registry.ownership.coordinator.members
        )
        if served is not None:
            epoch, largest = served.state.epoch, served.max_message_bytes
        else:
            epoch = 0 if place is None else place.epoch
            largest = registry.policies.limits_of(record).max_message_size
        return Placed(
            topic=record.topic,
            topic_id=record.topic_id,
            dispatch_strategy=record.dispatch_strategy.value,
            broker_url="" if owner is None else owner.broker_url,
            epoch=epoch,
            max_message_bytes=largest,
            waits_for=str(place.broker_id) if is_gone and place is not None else "",
        )

    async def reach(self, name: TopicName, patience_s: float | None = None) -> None:
        """Read topics that other brokers have just created or assigned, and serve the topic if this broker owns it.

        Waits up to `patience_s`, by default `PATIENCE_S`, for a topic that is being handed over. Raises `StoreUnavailable`.
        """
        registry = self._registry
        ownership, index = registry.ownership, registry.catalog.index
        if not ownership.several or registry.find(name) is not None:
            return
        if index.find_topic(name) is None and index.partitioned(name) is None:
            if self._asking.statistics().tasks_waiting >= _MOST_ASKING:
                return
            async with self._asking:
                await registry.catalog.records.look_for(name)
        record = index.find_topic(name)
        records = [record] if record is not None else index.partitions(name)
        ours = [
            each
            for each in records
            if registry.find(each.topic) is None
            and (ownership.coordinator.place(each.topic_id) is None or ownership.is_mine(each.topic_id))
            and topic_key(each.topic) not in registry.catalog.quarantine.found
        ]
        if ours:
            await to_the_end(ownership.acquire)(ours)
        patience_s = PATIENCE_S if patience_s is None else patience_s
        between = [each for each in records if ownership.is_between(each.topic_id)]
        if between and patience_s > 0:
            with anyio.move_on_after(patience_s):
                for each in between:
                    await ownership.until_placed(each.topic_id)

    async def until_moved(self, topics: Sequence[Placed], wait_s: float) -> bool:
        """Wait until one of these topics is served in another epoch than when it was placed.

        For a topic that is being handed over: until it is served. Thousands of clients may wait for the topics of a lost
        broker, so nothing is checked during the wait.

        Returns:
            False after `wait_s`, and when the caller has to check again (`Ownership.recheck_waits`).
        """
        waits = self._registry.ownership.waits
        if not self._registry.ownership.several:
            return True
        with anyio.move_on_after(wait_s) as scope:
            waits.add(scope)
            try:
                if len(topics) == 1:
                    await self._until_moved(topics[0])
                    return True
                async with anyio.create_task_group() as group:

                    async def until(topic: Placed) -> None:
                        await self._until_moved(topic)
                        group.cancel_scope.cancel()

                    for topic in topics:
                        group.start_soon(until, topic)
            finally:
                waits.discard(scope)
        return not scope.cancelled_caught

    async def _until_moved(self, topic: Placed) -> None:
        ownership, topic_id = self._registry.ownership, TopicId(topic.topic_id)
        if ownership.is_between(topic_id):  # it has the next owner's epoch already
            await ownership.until_placed(topic_id)
        else:
            await ownership.until_moved(topic_id, Epoch(topic.epoch))


class Action(StrEnum):
    """An action of a caller on a topic."""

    LOOK_UP = "look_up"  # its owner and its partitions
    PRODUCE = "produce"  # write it, and create it if it is missing
    CONSUME = "consume"  # read it, subscribe to it, acknowledge
    MIRROR = "mirror"  # copy it to another cluster
    FENCE = "fence"  # end its producers and consumers here, because another cluster takes it over
    SET_SCHEMA = "set_schema"  # bind it to a subject, whose schema all producers must write from then on


PERMISSIONS: Final = {
    Action.LOOK_UP: LOOK_UP,
    Action.PRODUCE: PRODUCE,
    Action.CONSUME: CONSUME,
    Action.MIRROR: MIRROR,
    Action.FENCE: FENCE,
    Action.SET_SCHEMA: "schemas:change",
}


class TopicAccess:
    """See the module. Topics are concrete ones."""

    def __init__(
        self,
        registry: Registry,
        health: Health,
        settings: Settings,
        changes: DataChanges,
        locks: Locks | None = None,
    ) -> None:
        self._changes = changes
        self._registry = registry
        self._placement = Placement(registry)
        self._health = health
        self._settings = settings
        self._locks = locks
        given, secure = settings.server.connect_url, settings.tls.cert is not None
        # The one address that clients dial instead of each broker's. None if they dial the brokers'.
        self.connect_url = None if given is None else check_advertised(given, secure=secure)
        if locks is not None:
            registry.may_propose = locks.sees_topic

    def check(self, called: Called, action: Action, name: TopicName) -> None:
        """Raise `PermissionDenied` if the action is forbidden, `Unauthenticated` if the identity is no longer valid."""
        if name.is_system and action in (Action.PRODUCE, Action.MIRROR, Action.FENCE):
            raise system_is_closed(str(name))
        if self._locks is not None:
            if name.is_system and action is Action.CONSUME:
                self._locks.check(called.identity, AUDIT_READ)
            self._locks.check(called.identity, PERMISSIONS[action], Resource.of(name))

    def check_again(self, called: Called, action: Action, topic: Topic) -> None:
        """Check the permission of a stream or of a producer's messages again."""
        if self._locks is not None:
            self.check(called, action, topic.options.topic)

    def check_somewhere(self, called: Called, action: Action, namespace: str) -> None:
        """Raise as `check` if the action is permitted on no topic of a namespace."""
        locks, whole = self._locks, Resource(namespace)
        if locks is not None and not locks.allows_part(called.identity, PERMISSIONS[action], whole):
            locks.check(called.identity, PERMISSIONS[action], whole)

    def check_cluster(self, called: Called, permission: str) -> None:
        """Raise as `check` if the caller does not have a permission on the whole cluster."""
        if self._locks is not None:
            self._locks.check(called.identity, permission)

    def may(self, called: Called, action: Action, name: TopicName) -> bool:
        """Return whether the action is permitted. For cases in which a refusal would reveal that something exists."""
        locks = self._locks
        if locks is None:
            return True
        if (
            name.is_system
            and action is Action.CONSUME
            and not locks.allows(called.identity, AUDIT_READ, CLUSTER)
        ):
            return False
        return locks.allows(called.identity, PERMISSIONS[action], Resource.of(name))

    def topic(self, called: Called, action: Action, name: TopicName) -> Topic:
        """Return the topic of that name. Raises `PermissionDenied`, `TopicNotFound`."""
        self.check(called, action, name)
        return self._registry.known(name)

    def elsewhere(self, name: TopicName) -> ClusterError | None:
        """Return the error for a topic with another owner, or none yet. None if it is here or unknown."""
        topic = self._registry.find(name)
        error = self._registry.not_found(name) if topic is None else topic.closed
        return error if isinstance(error, (NotOwner, NoOwner)) else None

    async def topic_here(self, called: Called, action: Action, name: TopicName) -> Topic:
        """As `topic`, for a new session: also topics that another broker has just created or assigned.

        Raises:
            PermissionDenied, TopicNotFound.
            NotOwner, NoOwner: the client has to look it up.
        """
        self.check(called, action, name)
        await self._placement.reach(name)
        return self.topic(called, action, name)

    async def placed(self, called: Called, action: Action, name: TopicName) -> tuple[bool, Sequence[Placed]]:
        """Return whether the topic is partitioned, and its placed concrete topics in order. Empty for an unknown one."""
        self.check(called, action, name)
        await self._placement.reach(name)
        return self._placement.parts(name)

    async def placed_away(
        self, called: Called, name: TopicName, away: str, wait_s: float
    ) -> tuple[bool, Sequence[Placed]]:
        """As `placed`, but wait at most `wait_s` while a concrete topic is at the broker with the URL `away`, or at none.

        Clients that reach all brokers by one `connect_url` cannot name the broker that failed. They wait while a concrete
        topic's owner is not registered.

        The wait also ends when an owner that was not registered is registered again, even in the same epoch: it may have
        lost only its lease.

        The bound holds for all these cases together: a client cancels calls after their deadline, and thousands of
        cancelled calls would cost it the connection.
        """
        self.check(called, Action.LOOK_UP, name)
        until_s, is_moved = anyio.current_time() + wait_s, False
        gone: set[int] = set()
        while True:
            await self._placement.reach(name, 0.0)
            found = self._placement.parts(name)
            left_s = until_s - anyio.current_time()
            if (
                is_moved
                or left_s <= 0
                or self._health.draining  # the end of the broker waits for its calls
                or not any(self._is_away(topic, away) for topic in found[1])
            ):
                return found
            if any(each.topic_id in gone and self._is_served(each) for each in found[1]):
                return found
            gone |= {each.topic_id for each in found[1] if each.waits_for}
            is_moved = await self._placement.until_moved(found[1], left_s)

    def _is_served(self, topic: Placed) -> bool:
        """Return whether a concrete topic's owner is registered, and the topic is not on its way to it."""
        return not (self._is_nowhere(topic) or topic.waits_for)

    def _is_away(self, topic: Placed, away: str) -> bool:
        """Return whether a concrete topic is at no broker, at the one with this URL, or here and not served yet."""
        # The one address may be a broker's own, and does not identify the owner
        is_there = topic.broker_url == away if self.connect_url is None else bool(topic.waits_for)
        return is_there or self._is_nowhere(topic)

    def _is_nowhere(self, topic: Placed) -> bool:
        """Return whether a concrete topic has no owner, or is on its way to one."""
        return topic.broker_url == "" or self._registry.ownership.is_between(TopicId(topic.topic_id))

    def count_partitions(self, name: TopicName) -> int:
        """Return the number of partitions of a topic that the caller may look up. 0 if it has a log itself."""
        return self._placement.count_partitions(name)

    def names(self) -> Iterable[TopicName]:
        """Return all topics by their public names. Show a caller those for which `may` permits the look-up."""
        return self._placement.names()

    async def topic_to_write(
        self,
        called: Called,
        name: TopicName,
        *,
        strategy: str,
        create: bool,
        check_schema: Callable[[], None],
        schema_subject: str = "",
    ) -> Topic:
        """Return a producer's topic. Create it if it is missing, the producer requests that and the broker allows it.

        Args:
            strategy: reliable or non_reliable. Empty takes the topic as it is, and creates a reliable one.
            check_schema: raises if the producer's schema does not exist. No topic is created then.
            schema_subject: the subject of a topic that is created.

        Returns:
            The topic, or the first partition of one that has partitions.

        Raises:
            PermissionDenied, TopicNotFound, DispatchMismatch.
        """
        self.check(called, Action.PRODUCE, name)
        topic = self._registry.find(name)
        if topic is None:
            await self._placement.reach(name)
            topic = self._registry.find(name)
        if topic is None and create:
            check_schema()
            _, parts = await self.parts_to_write(
                called,
                name,
                partitions=0,
                strategy=strategy or "reliable",
                schema_subject=schema_subject,
            )
            topic = self._registry.find(parts[0].topic)
        if topic is None:
            raise self._registry.not_found(name)
        topic.check_open()
        actual = topic.options.dispatch_strategy.value
        if strategy and strategy != actual:
            raise DispatchMismatch(
                f"topic {topic.name} is {actual}, the producer names {strategy}: use the topic's strategy",
                field="dispatch_strategy",
                value=strategy,
                actual=actual,
            )
        return topic

    async def parts_to_write(
        self,
        called: Called,
        name: TopicName,
        *,
        partitions: int,
        strategy: str,
        unused_ttl_s: int = 0,
        schema_subject: str = "",
    ) -> tuple[bool, Sequence[Placed]]:
        """As `placed`, for a producer: a missing topic is created with that many partitions (0: a plain topic).

        A topic with `unused_ttl_s` is deleted after so long without use. A topic that is created here is bound to
        `schema_subject` from its creation on.
        """
        found = await self.placed(called, Action.PRODUCE, name)
        if found[1]:
            return found
        if not self._settings.topics.auto_create:
            raise TopicNotFound(
                f"topic {name} does not exist, and this broker does not create topics on use "
                "(topics.auto_create = false)",
                field="topic",
                value=str(name),
            )
        self._health.check_publish()
        options: dict[str, Any] = {"options": {UNUSED_TTL: unused_ttl_s}} if unused_ttl_s else {}
        if schema_subject:
            options["schema"] = self._registry.schemas.new_binding(schema_subject).to_settings()
        await self._registry.create(name, partitions=partitions, dispatch_strategy=strategy, options=options)
        self.note(called, "topics.create", name, after={"partitions": partitions})
        found = self._placement.parts(name)
        if not found[1]:
            raise self._registry.not_found(name)
        return found

    @property
    def limited(self) -> bool:
        """Whether any quota is set."""
        return self._registry.quotas.on

    def share(self, called: Called, topic: Topic) -> Share:
        """Return the quotas that a caller's session on the topic counts against."""
        return self._registry.quotas.share(topic.options.topic.namespace, called.identity)

    async def load_schema(self, subject: str) -> None:
        """Read a subject that another broker may have just registered."""
        await self._registry.schemas.registry.know(subject)

    def check_schema(self, subject: str, version: int) -> None:
        """Raise `SchemaNotFound` if the subject, or the version (0: any), does not exist. An empty subject passes."""
        if subject:
            self._registry.schemas.choose(subject, version=version or None)

    def check_set_schema(self, called: Called, topic: Topic) -> None:
        """Raise `PermissionDenied` if the caller may not set the schema of an existing topic.

        A producer sets the schema of a topic that its own call creates.
        """
        self.check(called, Action.SET_SCHEMA, topic.options.topic.base)

    async def producer_schema(
        self, called: Called, topic: Topic, request: pb.OpenProducer
    ) -> tuple[int, int]:
        """Return (schema id, version) for the producer's messages, bound to the topic. Zeros for none."""
        if not request.schema_subject:
            return 0, 0
        record = await self._registry.schemas.bind(
            topic.options.topic,
            request.schema_subject,
            version=request.schema_version or None,
            may_set=lambda: self.check_set_schema(called, topic),
        )
        return record.identity

    async def subscription(
        self, called: Called, topic: Topic, name: str, *, type: str, start: Position, start_given: bool
    ) -> AnyPump:
        """Return the subscription, created if it does not exist."""
        is_new = name not in topic.subscriptions
        pump = await self._registry.subscribe(topic, name, type=type, start=start, start_given=start_given)
        if is_new:
            after = {"type": pump.type.value, "next_unacked": pump.floor}
            self.note(
                called, "subscriptions.create", topic.options.topic.base, subscription=name, after=after
            )
        return pump

    def note(
        self,
        called: Called,
        operation: str,
        name: TopicName,
        *,
        subscription: str | None = None,
        client: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        cursor: MovedCursor | None = None,
    ) -> None:
        """Record a client's change for the audit, with the client."""
        identity = called.identity
        self._changes.note(
            DataChange(
                operation=operation,
                at_ms=now_ms(),
                principal=None if identity is None or identity.method == "none" else identity.principal.name,
                client=client,
                address=called.caller.peer.address,
                topic=str(name.base),
                partition=name.partition,
                subscription=subscription,
                before=before,
                after=after,
                cursor=cursor,
            )
        )
