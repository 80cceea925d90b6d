"""`danube.HealthCheck`: every 5 s each official producer and consumer checks that its id is still served here.

On CLOSE, a consumer looks up the topic and subscribes again when its stream ends. So CLOSE is sent only where that
helps: the id is not registered here, or its topic or subscription is gone. A registered consumer that has just lost its
stream gets OK, because it opens a new one with the same id (after CLOSE, Python would first discard a message).

Ids derive from names, so any client can compute them. A caller without permission for the topic gets the same answer
as for an unknown id.
"""

from __future__ import annotations

from typing import Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.generated import danube_pb2 as pb

from pydanube_broker.rpc.caller import Called
from pydanube_broker.rpc.hot import UnaryReply
from pydanube_broker.services.official.client_registry import ClientRegistry
from pydanube_broker.services.official.requests import parse
from pydanube_broker.serving.topic_access import Action, TopicAccess

OK: Final = pb.HealthCheckResponse(status=pb.HealthCheckResponse.ClientStatus.OK).SerializeToString()
CLOSE: Final = pb.HealthCheckResponse(status=pb.HealthCheckResponse.ClientStatus.CLOSE).SerializeToString()
_PRODUCER: Final = pb.HealthCheckRequest.ClientType.Producer
_CONSUMER: Final = pb.HealthCheckRequest.ClientType.Consumer


class HealthCheckService:
    def __init__(self, clients: ClientRegistry, access: TopicAccess) -> None:
        self._clients = clients
        self._access = access
        self.sends_away = False  # whether clients must look up the owners of their topics

    def check(self, data: bytes, reply: UnaryReply) -> None:
        """Answer a health check. Called for each one of official clients."""
        request = parse(pb.HealthCheckRequest, data)
        if request.client == _PRODUCER:
            reply.send(self._producer(reply, request.id))
        elif request.client == _CONSUMER:
            reply.send(self._consumer(reply, request.id))
        else:
            raise InvalidArgument(
                f"client {request.client}: use 0 (producer) or 1 (consumer)",
                field="client",
                value=request.client,
            )

    def _producer(self, called: Called, number: int) -> bytes:
        known = self._clients.producer(number)
        if known is None or not self._access.may(called, Action.PRODUCE, known.topic.options.topic):
            self._look_elsewhere(called, number)
            return CLOSE
        known.touch()
        return OK

    def _look_elsewhere(self, called: Called, number: int) -> None:
        if not self.sends_away:
            self._clients.foreign_ids.check(called, number)

    def _consumer(self, called: Called, number: int) -> bytes:
        closing = self._clients.closing.get(number)
        if closing is not None and self._access.may(called, Action.CONSUME, closing.topic_name):
            closing.told_close()
            return CLOSE
        known = self._clients.consumer(number)
        if known is None or not self._access.may(called, Action.CONSUME, known.topic.options.topic):
            self._look_elsewhere(called, number)
            return CLOSE
        known.touch()
        return OK
