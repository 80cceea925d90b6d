"""The owner of a topic, and the epoch in which it owns it.

`/assignments/<topic id>` names the only owner. A counter for each topic name (`epochs`) outlives the topic. Each assignment raises the counter in the same guarded transaction, so assignments are ordered, and no epoch
of a name is used twice, not even after deletion. The transaction guards the topic's key too: a topic that was deleted
concurrently is not assigned.

A topic with one replica is assigned to another broker (docs/design.md#8-metadata-and-the-cluster) only if the owner
has sealed it (`sealed_at_ms`), or if it is taken over on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Final, TypeAlias

import anyio
from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator
from pydanube_core.errors import ClusterError, Conflict, CorruptJournal, CorruptObject
from pydanube_core.names import TopicName
from pydanube_storage.metadata import (
    MAX_OPERATIONS,
    Absent,
    Guard,
    GuardFailed,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    Write,
    read_all,
)

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.epochs import EpochCounter, EpochRecord, counter_in, epoch_counter
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.move_record import HandOverPart, MoveFailure, MoveRecord, Stage
from pydanube_broker.cluster.records import Durability, TopicRecord
from pydanube_broker.records.json_record import UNLESS_DEFAULT, JsonRecord
from pydanube_broker.records.quarantine import Quarantine

_OPERATIONS_A_TOPIC: Final = 5  # three guards, two puts
#: beside the guards of the leadership and of the floor of epochs
_TOPICS_A_TRANSACTION: Final = (MAX_OPERATIONS - 2) // _OPERATIONS_A_TOPIC
_BATCHES_IN_FLIGHT: Final = 8  # enough for the embedded store to share its fsyncs
_FEW_TOPICS: Final = 100
_ATTEMPTS: Final = 5
_OF_THE_KEY: Final = TopicId(0)  # placeholder for an id that is in the key and not in the value
#: errors by which an heir finds that objects of a lost broker are damaged
DAMAGE: Final = (CorruptObject, CorruptJournal)
_NONE_BEFORE: Final[Mapping[TopicId, Found]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(JsonRecord):
    """An owner's claim. `epoch` fences everything that it writes for the topic.

    `sealed_epoch`: the last epoch that was handed over, 0 for none. `moved`: the revision of the record from which the
    move to this broker ended. The broker keeps the copy that awaits this revision. `stage`, `move`, `failed`: see
    `move_record`.

    `stored`: the owner acknowledges and delivers only messages that its journal's chain in the object store has. An
    heir continues such a topic without a gap. The owner changes it (`serving.levels`), a move keeps it.
    """

    topic_id: Annotated[TopicId, Field(exclude=True)] = _OF_THE_KEY
    topic: Annotated[TopicName, PlainValidator(TopicName.parse), PlainSerializer(str)]
    broker_id: Annotated[BrokerId, BeforeValidator(int), PlainSerializer(str)]
    incarnation: Incarnation
    epoch: Epoch
    sealed_at_ms: int | None = None
    stage: Stage = Stage.SERVING
    sealed_epoch: int = 0
    moved: Annotated[int, UNLESS_DEFAULT] = 0
    move: MoveRecord | None = None
    failed: Annotated[MoveFailure | None, UNLESS_DEFAULT] = None
    stored: Annotated[bool, UNLESS_DEFAULT] = False

    @property
    def record_version(self) -> int:
        # A leader of the release before would drop `chain`, and with it acknowledged messages, when it reassigns the topic
        return 1 if self.move is None or self.move.chain is None else 2

    @property
    def is_served(self) -> bool:
        """Return whether the assigned broker may take calls for the topic: not once the target of a move is ready."""
        return self.stage is Stage.SERVING or (
            self.stage is Stage.MOVING and self.move is not None and self.move.ready is None
        )

    @property
    def offered(self) -> tuple[HandOverPart, ...]:
        """Return the parts that an owner of the previous release has stored in the current move."""
        return () if self.move is None else self.move.parts

    @property
    def next_owner(self) -> BrokerId:
        """Return the broker that owns the topic after the current move, or now if it does not move."""
        if self.move is None or self.stage is Stage.ASSIGNED:
            return self.broker_id
        return BrokerId(int(self.move.target))

    @property
    def damage(self) -> MoveFailure | None:
        """Return why the assigned heir cannot rebuild the topic from damaged objects. None if it has not failed at that.

        The failure of an earlier move does not count, nor that of another heir.
        """
        failed = self.failed
        is_heirs = (
            failed is not None
            and self.move is not None
            and failed.code in {each.code for each in DAMAGE}
            and failed.target == str(self.broker_id)
            and failed.begun_at_ms == self.move.begun_at_ms
        )
        return failed if is_heirs else None

    @classmethod
    def of(cls, key: str, value: bytes) -> Assignment:
        """Parse an assignment from its key and value."""
        return replace(cls.from_json(value, key=key), topic_id=TopicId(keys.number_in_key(key)))


#: an assignment, and the revision at which it was read
Found: TypeAlias = tuple[Assignment, Revision]


def check_may_assign(current: Assignment | None, to: BrokerId, *, take_over: bool) -> None:
    """Raise `Conflict` if the assignment would abandon another broker's unreplicated log, or interrupt a move."""
    if current is not None and current.stage is not Stage.SERVING and not take_over:
        raise Conflict(
            f"{current.topic} is {current.stage}: only the steps of its move may hand over messages",
            topic=str(current.topic),
            owner=str(current.broker_id),
            epoch=str(current.epoch),
        )
    if current is None or current.broker_id == to or current.sealed_at_ms is not None or take_over:
        return
    raise Conflict(
        f"{current.topic} belongs to broker {current.broker_id}, which has not sealed it: drain or move it, or take "
        "it over and accept the loss of its last messages",
        topic=str(current.topic),
        owner=str(current.broker_id),
        epoch=str(current.epoch),
    )


class Assigner:
    """Makes assignments in one store. `leadership`: guards each of them. `quarantine`: collects unreadable records."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        leadership: Leadership | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._store = store
        self._quarantine = quarantine or Quarantine()
        self._leadership = leadership

    async def found(self) -> dict[TopicId, Found]:
        """Read all assignments in the store, with their revisions."""
        items, _ = await read_all(self._store, keys.ASSIGNMENTS)
        found = {}
        for item in items:
            with self._quarantine.reading(item.key):
                assignment = Assignment.of(item.key, item.value)
                found[assignment.topic_id] = assignment, item.mod_revision
        return found

    async def assign(
        self,
        topic: TopicRecord,
        broker_id: BrokerId,
        *,
        incarnation: Incarnation,
        take_over: bool = False,
        above: int = 0,
    ) -> Assignment:
        """Assign a topic to a broker in a new epoch above `above`, even if it owns the topic already.

        Raises:
            Conflict: another owner has not sealed it, the leadership has ended, or the topic was deleted or changed
                since `topic` was read.
        """
        assignment_key = keys.assignment_key(topic.topic_id)
        for attempt in range(1, _ATTEMPTS + 1):
            current = await self._store.get(assignment_key)
            known = None if current is None else Assignment.of(current.key, current.value)
            check_may_assign(known, broker_id, take_over=take_over)
            counter = await epoch_counter(self._store, topic.topic)
            counter = replace(counter, epoch=Epoch(max(counter.epoch, above)))
            try:
                former = (
                    {}
                    if known is None or current is None
                    else {topic.topic_id: (known, current.mod_revision)}
                )
                (made,) = await self._transact([(topic, counter)], broker_id, incarnation, former=former)
            except GuardFailed as error:
                is_raced = error.guard in counter.guards or error.guard.key == assignment_key
                if not is_raced or attempt == _ATTEMPTS:
                    raise
            else:
                return made
        raise AssertionError("unreachable")

    async def skip_epochs(self, topic: TopicName, above: int) -> None:
        """Let the next assignment of a topic's name have an epoch above this one. Raises `Conflict`: others assign it."""
        for attempt in range(1, _ATTEMPTS + 1):
            counter = await epoch_counter(self._store, topic)
            if counter.epoch >= above:
                return
            raised = Put(keys.epoch_key(topic), EpochRecord(epoch=Epoch(above)).to_json())
            try:
                await self._store.transact([raised], guards=counter.guards)
            except GuardFailed:
                if attempt == _ATTEMPTS:
                    raise
            else:
                return

    async def assign_first(
        self, topics: Sequence[TopicRecord], broker_id: BrokerId, *, incarnation: Incarnation
    ) -> list[Assignment]:
        """Assign topics without an owner to a broker. Return the assignments in effect.

        Another broker may have made some of them. Topics that were deleted concurrently are left out.
        """
        made: list[Assignment] = []
        failures: list[ClusterError] = []
        counted = await self._counters(topics)
        limiter = anyio.CapacityLimiter(_BATCHES_IN_FLIGHT)

        async def assign(batch: list[tuple[TopicRecord, EpochCounter]]) -> None:
            async with limiter:
                try:
                    try:
                        found = await self._transact(batch, broker_id, incarnation)
                    except GuardFailed:
                        found = []
                        for topic, _ in batch:
                            found += await self._first_of_one(topic, broker_id, incarnation)
                except ClusterError as error:
                    failures.append(error)
                else:
                    made.extend(found)

        async with anyio.create_task_group() as group:
            for start in range(0, len(counted), _TOPICS_A_TRANSACTION):
                group.start_soon(assign, counted[start : start + _TOPICS_A_TRANSACTION])
        if failures:
            raise failures[0]
        return made

    async def _first_of_one(
        self, topic: TopicRecord, broker_id: BrokerId, incarnation: Incarnation
    ) -> list[Assignment]:
        key = keys.assignment_key(topic.topic_id)
        for _ in range(_ATTEMPTS):
            try:
                counted = await self._counters([topic])
                return await self._transact(counted, broker_id, incarnation)
            except GuardFailed as error:
                if error.guard.key == topic.key:
                    return []  # deleted, or changed: the next access assigns it
                item = await self._store.get(key)
                if item is not None:
                    return [Assignment.of(item.key, item.value)]
        raise Conflict(
            f"other brokers changed the assignment of {topic.name} {_ATTEMPTS} times", topic=topic.name
        )

    async def assign_all(
        self,
        topics: Sequence[TopicRecord],
        broker_id: BrokerId,
        *,
        incarnation: Incarnation,
        current: Mapping[TopicId, Found],
        take_over: bool = False,
    ) -> dict[TopicId, Assignment]:
        """Assign many topics to one broker, each in a new epoch: 19 per transaction, 8 concurrent transactions.

        `current` is the result of `found`, for the check of owners. The transactions guard it. Topics that were deleted
        concurrently are left out, and without `take_over` those that were assigned to another broker. Raises as `assign`.
        """
        for topic in topics:
            known, _ = current.get(topic.topic_id, (None, 0))
            check_may_assign(known, broker_id, take_over=take_over)
        counted = await self._counters(topics)
        made: dict[TopicId, Assignment] = {}
        failures: list[ClusterError] = []
        limiter = anyio.CapacityLimiter(_BATCHES_IN_FLIGHT)

        async def assign_batch(batch: list[tuple[TopicRecord, EpochCounter]]) -> None:
            async with limiter:
                try:
                    for assignment in await self._transact(batch, broker_id, incarnation, former=current):
                        made[assignment.topic_id] = assignment
                except GuardFailed:
                    await assign_singly([topic for topic, _ in batch])
                except ClusterError as error:
                    failures.append(error)

        async def assign_singly(batch: list[TopicRecord]) -> None:
            # One topic of the batch was changed concurrently. Assign the others regardless.
            for topic in batch:
                try:
                    made[topic.topic_id] = await self.assign(
                        topic, broker_id, incarnation=incarnation, take_over=take_over
                    )
                except GuardFailed as error:
                    is_deleted = error.guard.key == topic.key and error.actual_revision is None
                    if not is_deleted:
                        failures.append(error)
                except Conflict as error:
                    if take_over:
                        failures.append(error)
                except ClusterError as error:
                    failures.append(error)

        async with anyio.create_task_group() as group:
            for start in range(0, len(counted), _TOPICS_A_TRANSACTION):
                group.start_soon(assign_batch, counted[start : start + _TOPICS_A_TRANSACTION])
        if failures:
            raise failures[0]
        return made

    async def _counters(self, topics: Sequence[TopicRecord]) -> list[tuple[TopicRecord, EpochCounter]]:
        if len(topics) <= _FEW_TOPICS:
            return [(topic, await epoch_counter(self._store, topic.topic)) for topic in topics]
        # Read the counters of all names: worth it if most are needed
        items, _ = await read_all(self._store, keys.EPOCHS)
        found = {item.key: item for item in items}
        return [(topic, counter_in(found, topic.topic)) for topic in topics]

    async def _transact(
        self,
        batch: Sequence[tuple[TopicRecord, EpochCounter]],
        broker_id: BrokerId,
        incarnation: Incarnation,
        *,
        former: Mapping[TopicId, Found] = _NONE_BEFORE,
    ) -> list[Assignment]:
        """Assign topics. `former`: their assignments as they were read. A topic that is not there must have none."""
        guards: list[Guard] = [] if self._leadership is None else [self._leadership.guard]
        writes: list[Write] = []
        made: list[Assignment] = []
        for topic, counter in batch:
            epoch = Epoch(counter.epoch + 1)
            before, revision = former.get(topic.topic_id, (None, Revision(0)))
            assignment = Assignment(
                topic_id=topic.topic_id,
                topic=topic.topic,
                broker_id=broker_id,
                incarnation=incarnation,
                epoch=epoch,
                sealed_epoch=0 if before is None else before.sealed_epoch,
                moved=0 if before is None else before.moved,
                stored=topic.durability is Durability.STORED if before is None else before.stored,
            )
            guards += [guard for guard in counter.guards if guard not in guards]  # the floor's is the same
            if not topic.is_named_by_parent:  # the assignment of a deleted partition is swept
                guards.append(topic.guard)
            key = keys.assignment_key(topic.topic_id)
            guards.append(Absent(key) if before is None else ModRevision(key, revision))
            writes += [
                Put(keys.epoch_key(topic.topic), EpochRecord(epoch=epoch).to_json()),
                Put(key, assignment.to_json()),
            ]
            made.append(assignment)
        await self._store.transact(writes, guards=guards)
        return made
