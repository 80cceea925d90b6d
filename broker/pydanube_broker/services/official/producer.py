"""`danube.ProducerService`: producers of the official clients.

`CreateProducer` is their only call that creates a topic. `SendMessage` is the hot call, and never awaits. A message is
accepted from any producer whose id matches the name in the message, even if it is not registered: after a restart of
the broker Rust, Go and Python keep using their old id, and pass any error except UNAVAILABLE to the application.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from pydanube_core.errors import AlreadyExists, ClusterError, Internal, TopicNotFound, Unavailable
from pydanube_core.generated import danube_pb2 as pb

from pydanube_broker.rpc.caller import COLD_CALL, Called, ClientSeen
from pydanube_broker.rpc.hot import UnaryReply
from pydanube_broker.services.official.client_registry import ClientRegistry
from pydanube_broker.services.official.grouping import Grouping, Pending, check_message, check_size
from pydanube_broker.services.official.hot_messages import SentMessage, read_sent
from pydanube_broker.services.official.ids import producer_id
from pydanube_broker.services.official.known_clients import KnownProducer
from pydanube_broker.services.official.requests import (
    check_name,
    enum_value,
    parse,
    topic_name,
)
from pydanube_broker.services.official.schema_gate import SchemaGate
from pydanube_broker.serving.data_plane import DataPlane
from pydanube_broker.serving.topic_access import Action
from pydanube_broker.topics.gate import AccessMode
from pydanube_broker.topics.topic import Topic

log = logging.getLogger("pydanube.official")

STRATEGIES: Final = ("non_reliable", "reliable")
MODES: Final = ("shared", "exclusive")


class ProducerService:
    def __init__(self, plane: DataPlane, clients: ClientRegistry, schemas: SchemaGate) -> None:
        self._plane = plane
        self._clients = clients
        self._schemas = schemas
        self._grouping = Grouping(plane.rejected)
        self._loop = asyncio.get_running_loop()

    async def create_producer(self, data: bytes) -> bytes:
        """Create a producer. An existing name gets its id again, and concurrent creations of a name count as one."""
        request = parse(pb.ProducerRequest, data)
        name = topic_name(request.topic_name)
        check_name(request.producer_name, field="producer_name")
        self._plane.health.check_publish()
        strategy = enum_value(STRATEGIES, request.dispatch_strategy, field="dispatch_strategy")
        schema = request.schema_ref if request.HasField("schema_ref") and request.schema_ref.subject else None
        if schema is not None:
            await self._plane.access.load_schema(schema.subject)
        with self._clients.foreign_ids.noting(producer_id(str(name), request.producer_name), name):
            topic = await self._plane.access.topic_to_write(
                COLD_CALL,
                name,
                strategy=strategy,
                create=True,
                check_schema=lambda: None if schema is None else self._schemas.look_up(schema),
                schema_subject="" if schema is None else schema.subject,
            )
        if topic.options.topic != name:
            raise AlreadyExists(
                f"{name} exists with partitions: produce to {name.part(0)} and its siblings",
                field="topic_name",
                value=str(name),
            )
        if schema is not None:
            access = self._plane.access
            await self._schemas.bind(topic, schema, lambda: access.check_set_schema(COLD_CALL, topic))
        mode = enum_value(MODES, request.producer_access_mode, field="producer_access_mode")
        share = self._plane.access.share(COLD_CALL, topic)
        known = await self._clients.remember_producer(topic, request.producer_name, AccessMode(mode), share)
        known.seen = ClientSeen.of(COLD_CALL)
        return pb.ProducerResponse(
            request_id=request.request_id, producer_id=known.producer_id, producer_name=request.producer_name
        ).SerializeToString()

    def send_message(self, data: bytes, reply: UnaryReply) -> None:
        """Store a message of an official producer. Called for every message."""
        check_size(len(data))  # before parsing, where attributes take thirty times the memory
        message = read_sent(data)
        name = message.topic_name
        known = self._clients.producer(message.producer_id)
        if known is None or known.topic.name != name:
            known = self._attach(reply, message, name)
        else:  # any client can compute its id
            self._plane.access.check_again(reply, Action.PRODUCE, known.topic)
        topic = known.topic
        try:
            self._plane.health.check_publish()
            if known.fenced is not None:
                raise known.fenced
            if known.admitted is None:  # it is back after a restart or a pause, and may not be admitted again
                known.admit(known.mode)
            check_message(message, topic)
            checking = self._schemas.check(topic, message)
            known.touch()
            known.published.count(1, len(data))
            pending = Pending(message, len(data), reply, self._not_before(topic, reply, len(data)))
            if checking is None:
                self._grouping.add(topic, pending)
            else:
                self._plane.spawn(self._add_checked(checking, topic, pending))
        except ClusterError as error:
            self._plane.rejected(topic.name, error)
            raise

    def _not_before(self, topic: Topic, reply: UnaryReply, size: int) -> float:
        """Return the earliest time of the answer, whose delay throttles these clients. Raises `QuotaExceeded`."""
        if not self._plane.access.limited:
            return 0.0
        share = self._plane.access.share(reply, topic)
        share.check_publish()
        waited = share.count_published(topic.name, 1, size)
        return 0.0 if waited is None else self._loop.time() + waited.wait_ms / 1000

    async def _add_checked(self, checking: Awaitable[None], topic: Topic, pending: Pending) -> None:
        """Queue a message after the check of a payload that would block the loop too long."""
        try:
            await checking
            self._plane.health.check_publish()
            self._grouping.add(topic, pending)
        except ClusterError as error:
            self._plane.rejected(topic.name, error)
            pending.reply.fail(error)
        except Exception:
            log.exception("schema_check_failed", extra={"topic": topic.name})
            pending.reply.fail(
                Internal("the broker failed to check the message against its schema. See its log")
            )

    def _attach(self, called: Called, message: SentMessage, name: str) -> KnownProducer:
        """Attach a producer that was created before this start of the broker."""
        parsed = topic_name(name, field="msg_id.topic_name")
        try:
            topic = self._plane.access.topic(called, Action.PRODUCE, parsed)
        except TopicNotFound:
            raise TopicNotFound(
                f"topic {name} does not exist", field="msg_id.topic_name", value=name
            ) from None
        if producer_id(name, message.producer_name) != message.producer_id:
            raise Unavailable(
                f"producer {message.producer_id} does not exist on {name}: create it again",
                field="msg_id.producer_id",
                value=str(message.producer_id),
                retry_after_ms=200,
            )
        check_name(message.producer_name, field="producer_name")
        share = self._plane.access.share(called, topic)
        known = self._clients.attach_producer(topic, message.producer_name, AccessMode.SHARED, share)
        known.seen = ClientSeen.of(called)
        return known
