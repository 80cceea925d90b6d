"""Schemas of topics: setting them, and applying changes to the topics of this broker.

The first producer that names a subject sets the topic's subject. Every later one must name the same. The transaction
that stores the subject decides, so concurrent producers cannot set two (docs/research/behaviours.md#row-33). An
administrator may set another subject.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol

from pydanube_core.errors import SchemaMismatch, SchemaNotFound
from pydanube_core.names import TopicName

from pydanube_broker.cluster.records import PartitionedRecord, TopicRecord
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.schema.binding import Binding
from pydanube_broker.schema.guard import GuardCounters, SchemaGuard
from pydanube_broker.schema.records import VersionRecord
from pydanube_broker.schema.registry import SchemaRegistry
from pydanube_broker.schema.vocabulary import ValidationPolicy


class ServedTopic(Protocol):
    """The part of a served topic that changes with its schema."""

    name: str
    options: Any
    schema: SchemaGuard | None


class TopicSchemas:
    """The bindings of topics, stored in the catalog, and the guards that apply them."""

    def __init__(self, registry: SchemaRegistry, catalog: TopicCatalog) -> None:
        self.registry = registry
        self.counters = GuardCounters()
        self._catalog = catalog
        self._topics: Mapping[TopicName, ServedTopic] = {}

    def serve(self, topics: Mapping[TopicName, ServedTopic]) -> None:
        """Set the served topics, to which changes are applied. The mapping is read at each change."""
        self._topics = topics

    # -- looking -------------------------------------------------------------------------------------------------

    def binding_of(self, record: TopicRecord) -> Binding | None:
        """Return the binding of a topic or partition. A partition has its parent's."""
        parent = None if record.parent is None else self._catalog.index.partitioned(record.parent)
        settings = record.settings if parent is None else parent.spec.settings
        return Binding.of(settings.schema)

    def guard_of(self, record: TopicRecord) -> SchemaGuard | None:
        """Return the guard of a topic's publishes. None if there is nothing to check."""
        binding = self.binding_of(record)
        if binding is None or binding.validation_policy is ValidationPolicy.NONE:
            return None
        return SchemaGuard(record.name, binding, self.registry, self.counters)

    def config(self, topic: TopicName) -> Binding | None:
        """Return the binding of a topic, None if it has none. Raises `TopicNotFound`."""
        name = self._whole(topic)
        parent = self._catalog.index.partitioned(name)
        record: TopicRecord | PartitionedRecord = parent or self._catalog.index.topic(name)
        return Binding.of(record.spec.settings.schema)

    def topics_by_subject(self) -> dict[str, list[str]]:
        """Return the names of the topics bound to each subject, in one pass over all topics."""
        index = self._catalog.index
        found: defaultdict[str, list[str]] = defaultdict(list)
        records: Iterable[TopicRecord | PartitionedRecord] = chain(index.all_partitioned(), index.topics())
        for record in records:
            schema = record.spec.settings.schema
            # `parent` is evaluated last, because it parses the name.
            if schema and (isinstance(record, PartitionedRecord) or record.parent is None):
                found[str(schema.get("subject"))].append(record.name)
        return {subject: sorted(names) for subject, names in found.items()}

    # -- changing ------------------------------------------------------------------------------------------------

    def new_binding(self, subject: str) -> Binding:
        """Return the binding for a new topic with a subject. Raises `SchemaNotFound`."""
        return Binding(subject=subject, schema_id=self.registry.index.subject(subject).schema_id)

    def choose(
        self, subject: str, *, version: int | None = None, min_version: int | None = None
    ) -> VersionRecord:
        """Return the version for a producer: `version`, or the latest. Raises `SchemaNotFound`, as `bind`."""
        record = self.registry.index.subject(subject)
        chosen = self.registry.index.version(record.schema_id, version)
        if min_version is not None and chosen.version < min_version:
            raise SchemaNotFound(
                f"the latest version of subject {subject!r} is {chosen.version}, the producer needs at least "
                f"{min_version}: register it first",
                field="min_version",
                value=min_version,
                subject=subject,
                latest=chosen.version,
            )
        return chosen

    async def bind(
        self,
        topic: TopicName,
        subject: str,
        *,
        version: int | None = None,
        min_version: int | None = None,
        may_set: Callable[[], None] = lambda: None,
    ) -> VersionRecord:
        """Bind a topic to a producer's subject. A topic that has a subject accepts only that one.

        Args:
            may_set: raises if the caller may not set the schema of a topic without one, which affects all producers.

        Returns:
            The version that the producer must write: `version`, or the latest.

        Raises:
            SchemaNotFound: the subject or version does not exist, or the latest is below `min_version`.
            SchemaMismatch: the topic has another subject.
            TopicNotFound.
        """
        chosen = self.choose(subject, version=version, min_version=min_version)
        wanted = Binding(subject=subject, schema_id=chosen.schema_id)

        def decide(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
            present = Binding.of(settings)
            if present is None:
                may_set()
                return wanted.to_settings()
            if present.subject != subject:
                raise SchemaMismatch(
                    f"topic {topic.base} has the schema subject {present.subject!r}, the producer names {subject!r}: "
                    "use the topic's subject, or another topic",
                    field="schema_subject",
                    value=subject,
                    topic=str(topic.base),
                    subject=present.subject,
                ).suggest(
                    "topics.get_schema_config",
                    tool="get_topic_schema_config",
                    command=f"danube topics get-schema-config {topic.base}",
                    arguments={"topic": str(topic.base)},
                    why="shows the topic's schema",
                )
            return present.to_settings()

        await self._decide(topic, decide)
        return chosen

    async def configure(
        self, topic: TopicName, subject: str, policy: ValidationPolicy, *, enable_payload_validation: bool
    ) -> Binding:
        """Set or replace a topic's schema. Raises `SchemaNotFound`, `TopicNotFound`."""
        binding = replace(
            self.new_binding(subject),
            validation_policy=policy,
            enable_payload_validation=enable_payload_validation,
        )
        await self._decide(topic, lambda settings: binding.to_settings())
        return binding

    async def set_policy(
        self, topic: TopicName, policy: ValidationPolicy, *, enable_payload_validation: bool
    ) -> Binding:
        """Change how a topic's schema is enforced. Raises `TopicNotFound`, or `SchemaMismatch` if it has none."""
        made: list[Binding] = []

        def decide(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
            present = Binding.of(settings)
            if present is None:
                raise SchemaMismatch(
                    f"topic {self._whole(topic)} has no schema subject, so there is nothing to validate: configure "
                    "its schema first",
                    field="topic",
                    value=str(topic),
                ).suggest(
                    "topics.configure_schema",
                    tool="configure_topic_schema",
                    command=f"danube topics configure-schema {topic} SUBJECT",
                    arguments={"topic": str(topic), "schema_subject": "SUBJECT"},
                    why="gives the topic a schema",
                )
            made.append(
                replace(
                    present, validation_policy=policy, enable_payload_validation=enable_payload_validation
                )
            )
            return made[-1].to_settings()

        await self._decide(topic, decide)
        return made[-1]

    async def restore(self, topic: TopicName, settings: Mapping[str, Any] | None) -> None:
        """Restore a topic's former schema, or remove its schema. Raises `TopicNotFound`."""
        await self._decide(topic, lambda present: settings or {})

    def _whole(self, topic: TopicName) -> TopicName:
        """Return the topic whose schema applies to a name: a partition's parent, or the topic itself."""
        return topic.base if self._catalog.index.partitioned(topic.base) is not None else topic

    async def _decide(self, topic: TopicName, decide: Any) -> None:
        records = await self._catalog.decide_schema(self._whole(topic), decide)
        for record in records:
            served = self._topics.get(record.topic)
            if served is not None:
                served.options = record
                served.schema = self.guard_of(record)
