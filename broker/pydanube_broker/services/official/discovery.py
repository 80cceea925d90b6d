"""`danube.Discovery`: where a topic is, and which partitions it has."""

from __future__ import annotations

from pydanube_core.errors import NoOwner, NotOwner
from pydanube_core.generated import danube_pb2 as pb

from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_broker.services.official.requests import parse, topic_name
from pydanube_broker.serving.ownership import Ownership
from pydanube_broker.serving.topic_access import Action, TopicAccess


class DiscoveryService:
    def __init__(self, access: TopicAccess, ownership: Ownership) -> None:
        self._access = access
        self._ownership = ownership

    async def topic_lookup(self, data: bytes) -> bytes:
        """One concrete topic. NOT_FOUND for an unknown one is the usual first answer to a producer."""
        request = parse(pb.TopicLookupRequest, data)
        name = topic_name(request.topic, field="topic")
        kind, url = pb.TopicLookupResponse.LookupType.Connect, self._ownership.me.broker_url
        dialled = self._access.connect_url
        try:
            await self._access.topic_here(COLD_CALL, Action.LOOK_UP, name)
        except NotOwner as error:
            kind, url = pb.TopicLookupResponse.LookupType.Redirect, error.details["broker_url"]
        except NoOwner:
            pass  # it moves: calls are held here until it has one
        return pb.TopicLookupResponse(
            request_id=request.request_id,
            response_type=kind,
            connect_url=dialled or url,
            broker_url=url,
            proxy=dialled is not None,
        ).SerializeToString()

    async def topic_partitions(self, data: bytes) -> bytes:
        """The concrete topics behind a name, by index; none for an unknown one.

        By index and not by text: Java numbers its consumers by the place in this list, and a partition made later
        must not move the others.
        """
        request = parse(pb.TopicLookupRequest, data)
        name = topic_name(request.topic, field="topic")
        _, topics = await self._access.placed(COLD_CALL, Action.LOOK_UP, name)
        return pb.TopicPartitionsResponse(
            request_id=request.request_id, partitions=[topic.name for topic in topics]
        ).SerializeToString()
