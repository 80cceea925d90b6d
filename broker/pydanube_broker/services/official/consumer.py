"""`danube.ConsumerService`: subscribe, ack, nack. The stream itself is in `receive`."""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube_core.errors import ClusterError, Internal, InvalidArgument, TopicNotFound
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.names import SUBSCRIPTION_TYPES, check_subscription
from pydanube_core.positions import Position, PositionKind

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.rpc.caller import COLD_CALL, Called
from pydanube_broker.rpc.hot import ServerStreamReply, UnaryReply
from pydanube_broker.services.official.client_registry import ClientRegistry
from pydanube_broker.services.official.hot_messages import request_id_only
from pydanube_broker.services.official.ids import consumer_id
from pydanube_broker.services.official.known_clients import ConsumerRecord
from pydanube_broker.services.official.placeholder import placeholder_after_subscribing
from pydanube_broker.services.official.receive import ReceiveStream
from pydanube_broker.services.official.requests import (
    check_ident,
    check_name,
    enum_value,
    parse,
    topic_name,
)
from pydanube_broker.services.official.stream_messages import DecodedBatches
from pydanube_broker.serving.data_plane import DataPlane
from pydanube_broker.serving.topic_access import Action
from pydanube_broker.subscription.routes.key_filters import check_filter_sizes
from pydanube_broker.topics.topic import Topic

CONSUME: Final = Action.CONSUME  # looked up once, for the hot calls
MAX_OFFSET: Final = (1 << 63) - 1


class ConsumerService:
    def __init__(self, plane: DataPlane, clients: ClientRegistry) -> None:
        self._plane = plane
        self._clients = clients
        self._decoded = DecodedBatches()
        self.streams: set[ReceiveStream] = set()

    # -- subscribing -----------------------------------------------------------------------------------------

    async def subscribe(self, data: bytes) -> bytes:
        """Subscribe, without creating a topic.

        A new subscription begins at the end, fixed by the transaction that creates it. An existing subscription keeps
        its type, even if the request has another (as in the original).
        """
        request = parse(pb.ConsumerRequest, data)
        name = topic_name(request.topic_name)
        check_name(request.consumer_name, field="consumer_name")
        check_subscription(request.subscription)
        wanted = enum_value(SUBSCRIPTION_TYPES, request.subscription_type, field="subscription_type")
        filters = list(request.key_filters)
        check_filter_sizes(filters)
        self._plane.health.check_consume()
        number = consumer_id(str(name), request.subscription, request.consumer_name)
        with self._clients.foreign_ids.noting(number, name):
            topic = await self._plane.access.topic_here(COLD_CALL, Action.CONSUME, name)
        pump = await self._open(topic, request.subscription, wanted)
        kind = pump.type.value
        known = await self._clients.remember_consumer(
            topic,
            ConsumerRecord(
                subscription=request.subscription,
                type=kind,
                name=request.consumer_name,
                key_filters=filters if kind == "key-shared" else [],
            ),
        )
        placeholder_after_subscribing(known, pump, asyncio.get_running_loop().time())
        return pb.ConsumerResponse(
            request_id=request.request_id, consumer_id=known.consumer_id, consumer_name=request.consumer_name
        ).SerializeToString()

    async def _open(self, topic: Topic, name: str, type: str) -> AnyPump:
        """Return the subscription, of any type. A new one begins at the end of the topic."""
        pump: AnyPump | None = topic.subscriptions.get(name)
        if pump is not None:
            return pump
        latest = Position(PositionKind.LATEST)
        try:
            return await self._plane.access.subscription(
                COLD_CALL, topic, name, type=type, start=latest, start_given=False
            )
        except InvalidArgument:  # created concurrently with another type
            if name not in topic.subscriptions:
                raise
            made: AnyPump = topic.subscriptions[name]
            return made

    def receive_messages(self, data: bytes, reply: ServerStreamReply) -> ReceiveStream:
        """Open a receiving stream. Called for every official consumer."""
        number: int = parse(pb.ReceiveRequest, data).consumer_id
        if self._clients.consumer(number) is None:
            self._clients.foreign_ids.check(reply, number)
        stream = ReceiveStream(number, reply, self._plane, self._clients, self._decoded, self.streams.discard)
        self.streams.add(stream)
        return stream

    # -- answers ---------------------------------------------------------------------------------------------

    def ack(self, data: bytes, reply: UnaryReply) -> None:
        """Acknowledge a message. Called for every message. A late or unknown id is ignored and answered with OK."""
        request = parse(pb.AckRequest, data)
        pump, offset = self._answered(reply, request), request.msg_id.topic_offset
        if pump is not None and offset <= MAX_OFFSET:
            pump.ack_delivered([(offset, offset + 1)])
        reply.send(request_id_only(request.request_id))

    def nack(self, data: bytes, reply: UnaryReply) -> None:
        request = parse(pb.NackRequest, data)
        pump, offset = self._answered(reply, request), request.msg_id.topic_offset
        if pump is not None and offset <= MAX_OFFSET:
            delay_ms = min(request.delay_ms, MAX_OFFSET)  # the policy's maximum is far lower
            pump.nack_delivered([(offset, offset + 1)], delay_ms, request.reason)
        reply.send(request_id_only(request.request_id))

    def _answered(self, called: Called, answer: pb.AckRequest | pb.NackRequest) -> AnyPump | None:
        """Return the subscription of an answer. None for a non-reliable topic, which expects no answers.

        Raises:
            Internal: the topic or subscription does not exist. This is the original's status, because NOT_FOUND makes
                Java subscribe and acknowledge again forever.
        """
        check_ident(answer)
        topic = self._topic(called, answer.msg_id.topic_name)
        pump: AnyPump | None = topic.subscriptions.get(answer.subscription_name)
        if pump is None and topic.stores:
            raise Internal(
                f"SUBSCRIPTION_NOT_FOUND: {topic.name} has no subscription {answer.subscription_name!r}",
                field="subscription_name",
                value=answer.subscription_name,
            )
        return pump

    def _topic(self, called: Called, name: str) -> Topic:
        parsed = topic_name(name, field="msg_id.topic_name")
        try:
            return self._plane.access.topic(called, CONSUME, parsed)
        except TopicNotFound:
            raise Internal(
                f"TOPIC_NOT_FOUND: topic {name} does not exist", field="msg_id.topic_name", value=name
            ) from None

    def end(self, error: ClusterError) -> None:
        """End every stream as retryable, because the broker is shutting down."""
        for stream in tuple(self.streams):
            stream.end(error)
