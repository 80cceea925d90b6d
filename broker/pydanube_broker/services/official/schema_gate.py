"""The official services' access to the schema registry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydanube_core.batch.nulls import is_null
from pydanube_core.errors import GrpcStatus, SchemaMismatch, SchemaNotFound
from pydanube_core.generated import danube_pb2 as pb

from pydanube_broker.schema.topic_schemas import TopicSchemas
from pydanube_broker.services.official.hot_messages import SentMessage
from pydanube_broker.topics.topic import Topic


class SchemaGate:
    """Binds topics to subjects, and checks messages against them."""

    def __init__(self, schemas: TopicSchemas) -> None:
        self._schemas = schemas

    def look_up(self, reference: pb.SchemaReference) -> None:
        """Check that the schema exists, before a topic is created for it. Raises as `bind`."""
        pinned, least = _versions(reference)
        try:
            self._schemas.choose(reference.subject, version=pinned, min_version=least)
        except SchemaNotFound as error:
            raise _as_mismatch(error) from error

    async def bind(self, topic: Topic, reference: pb.SchemaReference, may_set: Callable[[], None]) -> None:
        """Bind the topic to a producer's subject, if it has none yet.

        Raises:
            SchemaMismatch: the topic has another subject, even one set concurrently, or the requested subject or version
                is not registered (FAILED_PRECONDITION, which these clients expect).
        """
        pinned, least = _versions(reference)
        try:
            await self._schemas.bind(
                topic.options.topic, reference.subject, version=pinned, min_version=least, may_set=may_set
            )
        except SchemaNotFound as error:
            raise _as_mismatch(error) from error

    def check(self, topic: Topic, message: SentMessage) -> Awaitable[None] | None:
        """Check a message by the topic's policy. If that takes longer, return an awaitable that completes the check.

        Raises `SchemaMismatch`, `PayloadInvalid`: both with INVALID_ARGUMENT, which every official client treats as final.
        """
        guard = topic.schema
        if guard is None:
            return None
        schema_id, version, payload = message.schema_id, message.schema_version, message.payload
        try:
            done = guard.check_message(schema_id, version, payload, null=is_null(payload, message.attributes))
        except SchemaMismatch as error:
            # FAILED_PRECONDITION puts Java into an endless loop without delay
            # (docs/research/data-plane.md#102-unary-reactions).
            error.with_status(GrpcStatus.INVALID_ARGUMENT)
            raise
        return None if done else guard.check_payload(schema_id, version, payload)


def _versions(reference: pb.SchemaReference) -> tuple[int | None, int | None]:
    """Return (pinned version, least version) of a schema reference."""
    match reference.WhichOneof("version_ref"):
        case "pinned_version":
            return reference.pinned_version, None
        case "min_version":
            return None, reference.min_version
        case _:  # use_latest or unset, which every client treats the same
            return None, None


def _as_mismatch(error: SchemaNotFound) -> SchemaMismatch:
    # Tools of the original search for these words, with any status (docs/research/data-plane.md).
    return SchemaMismatch(
        f"schema not found: {error.message}", next=error.next, **{**error.details, "field": "schema_ref"}
    )
