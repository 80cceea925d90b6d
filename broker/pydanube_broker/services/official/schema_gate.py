"""The data plane's questions to the schema registry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydanube_core.batch.nulls import is_null
from pydanube_core.errors import InvalidArgument, SchemaMismatch, SchemaNotFound
from pydanube_core.generated import danube_pb2 as pb

from pydanube_broker.schema.topic_schemas import TopicSchemas
from pydanube_broker.services.official.hot_messages import SentMessage
from pydanube_broker.topics.topic import Topic


class SchemaGate:
    """The registry as the data plane needs it: topics have a subject and a policy, and messages are checked."""

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
        """Bind the topic to the subject that a producer names, if it has none yet.

        Raises:
            SchemaMismatch: the topic has another one, also when that was assigned a moment ago; or the subject, or
                the version asked for, is not registered (FAILED_PRECONDITION, as these clients know it).
        """
        pinned, least = _versions(reference)
        try:
            await self._schemas.bind(
                topic.options.topic, reference.subject, version=pinned, min_version=least, may_set=may_set
            )
        except SchemaNotFound as error:
            raise _as_mismatch(error) from error

    def check(self, topic: Topic, message: SentMessage) -> Awaitable[None] | None:
        """Check a message by the topic's policy: at once, or by awaiting the result if it takes longer.

        Raises `InvalidArgument`, `PayloadInvalid`: both INVALID_ARGUMENT, which every official client takes as final.
        """
        guard = topic.schema
        if guard is None:
            return None
        schema_id, version, payload = message.schema_id, message.schema_version, message.payload
        try:
            done = guard.check_message(schema_id, version, payload, null=is_null(payload, message.attributes))
        except SchemaMismatch as error:
            # FAILED_PRECONDITION puts Java into a loop without end or delay
            # (docs/research/data-plane.md#102-unary-reactions).
            raise InvalidArgument(f"{error.code}: {error.message}", **error.details) from error
        return None if done else guard.check_payload(schema_id, version, payload)


def _versions(reference: pb.SchemaReference) -> tuple[int | None, int | None]:
    """Return (pinned version, least version) of a schema reference."""
    match reference.WhichOneof("version_ref"):
        case "pinned_version":
            return reference.pinned_version, None
        case "min_version":
            return None, reference.min_version
        case _:  # use_latest, or nothing: the same to every client
            return None, None


def _as_mismatch(error: SchemaNotFound) -> SchemaMismatch:
    # Tools of the original look for these words, whatever the status (docs/research/data-plane.md).
    return SchemaMismatch(
        f"schema not found: {error.message}", next=error.next, **{**error.details, "field": "schema_ref"}
    )
