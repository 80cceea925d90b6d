"""Records of the registry: namespaces, topics, partitioned topics, subscriptions.

A `…Spec` is the JSON in the store. A `…Record` is a spec as read, with its identity from the store (create revision)
and the revision of its last change, which guards the next change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydanube_core.errors import InvalidArgument
from pydanube_core.names import MAX_PARTITIONS, SUBSCRIPTION_TYPES, TopicName
from pydanube_storage.metadata import Guard, KeyValue, ModRevision, Revision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import SubscriptionId, TopicId
from pydanube_broker.records.json_record import UNLESS_DEFAULT, JsonRecord


class DispatchStrategy(StrEnum):
    RELIABLE = "reliable"
    NON_RELIABLE = "non_reliable"


class Durability(StrEnum):
    """How safe an acknowledged message is (docs/design.md#1-promises)."""

    MEMORY = "memory"
    FSYNCED = "fsynced"
    STORED = "stored"
    REPLICATED = "replicated"


class Stage(StrEnum):
    """The stages of an object that takes more than one transaction to create or delete."""

    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"
    RESTORING = "restoring"  # a deleted partitioned topic is being restored, partition by partition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings(JsonRecord):
    """The requested settings of a topic, the same for all its partitions.

    `policies`: only those set for the topic. The namespace's policies apply otherwise. `schema`: subject and
    enforcement, or None. `options`: compaction, typed columns.
    """

    dispatch_strategy: DispatchStrategy = DispatchStrategy.RELIABLE
    durability: Durability = Durability.FSYNCED
    policies: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_reliable = self.dispatch_strategy is DispatchStrategy.RELIABLE
        if is_reliable == (self.durability is Durability.MEMORY):
            allowed = "fsynced or stored" if is_reliable else "memory"
            raise InvalidArgument(
                f"a {self.dispatch_strategy} topic cannot be {self.durability}. Use {allowed}",
                field="durability",
                value=str(self.durability),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec(JsonRecord):
    """A topic with a log of its own: a plain one or one partition. `partition` is None for a plain one.

    `identity` is the id of a topic that was restored, or came from a lone broker's metadata. If None, the create
    revision of its key is the id.
    """

    name: str
    created_at_ms: int
    partition: int | None
    settings: TopicSettings
    identity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedSpec(JsonRecord):
    """The parent of partitions, without a log. It exists before its first partition and after its last.

    `partitions` is one past the highest index. `declared` is False if official clients created the partitions one by
    one, without ever naming their number. `identity` as in `TopicSpec`.

    `ids` are the topic ids of the partitions by index, None for a gap: this record is the whole topic (metadata format
    2). In format 1 `ids` is absent, and each partition has its own record.
    """

    name: str
    created_at_ms: int
    partitions: int
    declared: bool
    stage: Stage
    settings: TopicSettings
    identity: int | None = None
    ids: Annotated[tuple[int | None, ...] | None, UNLESS_DEFAULT] = None

    def __post_init__(self) -> None:
        if self.ids is not None:
            present = [each for each in self.ids if each is not None]
            if len(self.ids) != self.partitions or self.ids[-1] is None or len(set(present)) < len(present):
                raise InvalidArgument(
                    f"{self.name}: {self.partitions} partitions and {len(present)} ids do not match",
                    field="ids",
                    value=len(self.ids),
                )
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            raise InvalidArgument(
                f"{self.name}: a topic has 1 to {MAX_PARTITIONS} partitions, not {self.partitions}",
                field="partitions",
                value=self.partitions,
                limit=MAX_PARTITIONS,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSpec(JsonRecord):
    name: str
    created_at_ms: int
    policies: Mapping[str, Any] = field(default_factory=dict)
    stage: Stage = Stage.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSpec(JsonRecord):
    """A subscription. `start_offset`: its start without a cursor, fixed by the transaction that creates it.

    `identity` as in `TopicSpec`.
    """

    name: str
    topic: str
    type: str
    start_offset: int
    created_at_ms: int
    options: Mapping[str, Any] = field(default_factory=dict)
    identity: int | None = None

    def __post_init__(self) -> None:
        if self.type not in SUBSCRIPTION_TYPES:
            raise InvalidArgument(
                f"subscription type {self.type!r}: use one of {', '.join(SUBSCRIPTION_TYPES)}",
                field="type",
                value=self.type,
            )
        if self.start_offset < 0:
            raise InvalidArgument(
                f"start_offset {self.start_offset}: offsets begin at 0",
                field="start_offset",
                value=self.start_offset,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic with a log. `key`: the key of its own record, or of the partitioned topic that names it."""

    topic_id: TopicId
    revision: Revision
    topic: TopicName
    spec: TopicSpec
    key: str

    @classmethod
    def of(cls, item: KeyValue) -> TopicRecord:
        spec = TopicSpec.from_json(item.value, key=item.key)
        return cls(
            topic_id=TopicId(spec.identity or item.create_revision),
            revision=item.mod_revision,
            topic=keys.topic_of_key(item.key),
            spec=spec,
            key=item.key,
        )

    @property
    def guard(self) -> Guard:
        """Return the guard that the record is unchanged."""
        return ModRevision(self.key, self.revision)

    @property
    def is_named_by_parent(self) -> bool:
        """Return whether the partitioned topic's record names it, so that it has no record of its own."""
        return self.key in keys.PARTITIONED

    @property
    def name(self) -> str:
        """Return the topic's full name, `/namespace/name`."""
        return str(self.topic)

    @property
    def settings(self) -> TopicSettings:
        return self.spec.settings

    @property
    def dispatch_strategy(self) -> DispatchStrategy:
        return self.spec.settings.dispatch_strategy

    @property
    def durability(self) -> Durability:
        return self.spec.settings.durability

    @property
    def created_at_ms(self) -> int:
        return self.spec.created_at_ms

    @property
    def partition(self) -> int | None:
        return self.spec.partition

    @property
    def parent(self) -> TopicName | None:
        """The partitioned topic of this partition, None for a plain topic."""
        return None if self.spec.partition is None else self.topic.base


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedRecord:
    parent_id: TopicId  # `identity`, or create revision of the parent's key. The parent has no log.
    revision: Revision
    topic: TopicName
    spec: PartitionedSpec

    @classmethod
    def of(cls, item: KeyValue) -> PartitionedRecord:
        spec = PartitionedSpec.from_json(item.value, key=item.key)
        return cls(
            parent_id=TopicId(spec.identity or item.create_revision),
            revision=item.mod_revision,
            topic=keys.topic_of_key(item.key),
            spec=spec,
        )

    @property
    def name(self) -> str:
        return str(self.topic)

    @property
    def is_whole(self) -> bool:
        """Return whether the record names its partitions (format 2)."""
        return self.spec.ids is not None

    def part(self, index: int, topic_id: int) -> TopicRecord:
        """Return the record of a partition that this record names."""
        spec = named_part(self.spec, index, topic_id)
        return TopicRecord(
            topic_id=TopicId(topic_id),
            revision=self.revision,
            topic=self.topic.part(index),
            spec=spec,
            key=keys.partitioned_key(self.topic),
        )

    def parts(self) -> list[TopicRecord]:
        """Return the partitions that the record names, by index. Empty in format 1."""
        return [
            self.part(index, topic_id)
            for index, topic_id in enumerate(self.spec.ids or ())
            if topic_id is not None
        ]


def named_part(spec: PartitionedSpec, index: int, topic_id: int) -> TopicSpec:
    """Return the spec of a partition that the spec of a whole topic names."""
    return TopicSpec(
        name=str(TopicName.parse(spec.name).part(index)),
        created_at_ms=spec.created_at_ms,
        partition=index,
        settings=spec.settings,
        identity=topic_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRecord(JsonRecord):
    """The format of the metadata, once it is above 1. No build writes partitions of format 1 from then on.

    `converted`: whether no record of format 1 is left.
    """

    metadata_format: int
    converted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRecord:
    revision: Revision
    name: str
    spec: NamespaceSpec

    @classmethod
    def of(cls, item: KeyValue) -> NamespaceRecord:
        return cls(
            revision=item.mod_revision,
            name=keys.namespace_of_key(item.key),
            spec=NamespaceSpec.from_json(item.value, key=item.key),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRecord:
    subscription_id: SubscriptionId
    revision: Revision
    topic_id: TopicId
    spec: SubscriptionSpec

    @classmethod
    def of(cls, item: KeyValue) -> SubscriptionRecord:
        topic_id, _ = keys.subscription_of_key(item.key)
        spec = SubscriptionSpec.from_json(item.value, key=item.key)
        return cls(
            subscription_id=SubscriptionId(spec.identity or item.create_revision),
            revision=item.mod_revision,
            topic_id=topic_id,
            spec=spec,
        )

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def type(self) -> str:
        return self.spec.type

    @property
    def start_offset(self) -> int:
        return self.spec.start_offset
