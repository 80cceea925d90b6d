"""What the data plane asks of the schema registry."""

from __future__ import annotations

from typing import Protocol

from pydanube_core.errors import NotImplementedYet
from pydanube_core.generated import danube_pb2 as pb

from pydanube_broker.topics.topic import Topic

__all__ = ["NoSchemas", "SchemaGate"]


class SchemaGate(Protocol):
    """Topics have a subject and a policy; messages are held against both."""

    async def bind(self, topic: Topic, subject: str) -> None:
        """A producer names the topic's subject: assign it where there is none.

        Raises:
            SchemaMismatch: the topic has another one; also when that was assigned a moment ago.
            SchemaMismatch or SchemaNotFound as FAILED_PRECONDITION: the subject is not registered.
        """
        ...

    def check(self, topic: Topic, message: pb.StreamMessage) -> None:
        """Hold a message against the topic's policy; must not wait.

        Raises:
            SchemaInvalid, PayloadInvalid …: INVALID_ARGUMENT, which every official client takes as final.
        """
        ...


class NoSchemas:
    """A broker without a registry: topics have no subject, and nobody can name one."""

    async def bind(self, topic: Topic, subject: str) -> None:
        raise NotImplementedYet(
            "this broker has no schema registry: create the producer without a schema",
            field="schema_ref.subject",
            value=subject,
        )

    def check(self, topic: Topic, message: pb.StreamMessage) -> None:
        return
