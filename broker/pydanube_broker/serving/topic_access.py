"""How a client's wish for a topic becomes a topic: found, made where that is allowed, or refused."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube_core.errors import TopicNotFound
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName
from pydanube_core.positions import Position

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.health import Health
from pydanube_broker.serving.registry import Registry
from pydanube_broker.settings import Settings
from pydanube_broker.topics.topic import Topic


class TopicAccess:
    """See the module."""

    def __init__(self, registry: Registry, health: Health, settings: Settings) -> None:
        self._registry = registry
        self._health = health
        self._settings = settings

    async def producer_topic(self, request: pb.OpenProducer) -> Topic:
        """The topic of a producer, made if the request asks for it and the broker allows it."""
        name = TopicName.parse(request.topic)
        topic = self._registry.find(name)
        if topic is None and request.create:
            if request.schema_subject:  # as in `Resolve`
                self.check_schema(request.schema_subject, request.schema_version)
            _, parts = await self.topic_parts(
                name, create=True, partitions=0, dispatch_strategy=request.dispatch_strategy or "reliable"
            )
            topic = parts[0]
        if topic is None:
            raise self._registry.not_found(name)
        self._registry.check_strategy(topic, request.dispatch_strategy)
        return topic

    def check_schema(self, subject: str, version: int) -> None:
        """Raise `SchemaNotFound` where there is no such subject, or version (0: any)."""
        self._registry.schemas.choose(subject, version=version or None)

    async def producer_schema(self, topic: Topic, request: pb.OpenProducer) -> tuple[int, int]:
        """(schema id, version) the producer writes, bound to the topic; zeros for a producer without a schema."""
        if not request.schema_subject:
            return 0, 0
        record = await self._registry.schemas.bind(
            topic.options.topic, request.schema_subject, version=request.schema_version or None
        )
        return record.identity

    async def consumer_topic(self, name: TopicName) -> Topic:
        """The concrete topic of that name."""
        topic = self._registry.find(name)
        if topic is None:
            raise self._registry.not_found(name)
        return topic

    async def subscription(
        self, topic: Topic, name: str, *, type: str, start: Position, start_given: bool
    ) -> AnyPump:
        """The subscription, made if it does not exist."""
        return await self._registry.subscribe(topic, name, type=type, start=start, start_given=start_given)

    async def topic_parts(
        self, name: TopicName, *, create: bool, partitions: int, dispatch_strategy: str
    ) -> tuple[bool, Sequence[Topic]]:
        """Whether the topic is partitioned, and its concrete topics in order."""
        found = self._registry.parts(name)
        if not found[1] and create:
            if not self._settings.topics.auto_create:
                raise TopicNotFound(
                    f"topic {name} does not exist, and this broker does not make topics by itself "
                    "(topics.auto_create = false)",
                    field="topic",
                    value=str(name),
                )
            self._health.check_publish()
            await self._registry.create(name, partitions=partitions, dispatch_strategy=dispatch_strategy)
            found = self._registry.parts(name)
        if not found[1]:
            raise self._registry.not_found(name)
        return found
