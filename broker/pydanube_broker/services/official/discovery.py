"""`danube.Discovery`: looks up the owner and the partitions of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

from pydanube_core.errors import NoOwner, NotOwner
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.names import TopicName
from pydanube_core.recent import RecentDict

from pydanube_broker.relay.membership import TOPIC
from pydanube_broker.rpc.caller import COLD_CALL, Called
from pydanube_broker.services.official.requests import parse, topic_name
from pydanube_broker.serving.ownership import Ownership
from pydanube_broker.serving.topic_access import Action, TopicAccess
from pydanube_broker.topics.topic import Topic

REMEMBERED: Final = 100_000
_MEANT: Final = "x-danube-broker-url"


class ForeignIds:
    """The topics behind ids of other brokers. Single user: the loop.

    Health checks and `ReceiveMessages` carry an id and no name. This class remembers, within bounds, the topic of each
    producer and consumer whose topic has left this broker, or was elsewhere when they registered through this one. The
    topic is passed to the broker to which such a call is relayed. If it is not remembered, a client in proxy mode
    names the broker (`x-danube-broker-url`, docs/research/data-plane.md#62-proxy-mode).
    """

    def __init__(self, access: TopicAccess, ownership: Ownership) -> None:
        self._access = access
        self._ownership = ownership
        self._topics: RecentDict[int, TopicName] = RecentDict(REMEMBERED)

    def left(self, number: int, topic: Topic) -> None:
        """Remember the topic of an id that was dropped here, if the topic has left."""
        if isinstance(topic.closed, (NotOwner, NoOwner)):
            self._topics[number] = topic.options.topic

    @contextmanager
    def noting(self, number: int, name: TopicName) -> Iterator[None]:
        """Remember the topic of that id if the registration in this context fails because another broker owns the topic."""
        try:
            yield
        except (NotOwner, NoOwner):
            self._topics[number] = name
            raise

    def check(self, called: Called, number: int) -> None:
        """Raise `NotOwner` or `NoOwner` if an unknown id belongs to another broker's topic."""
        if not self._ownership.several:
            return
        metadata = dict(called.caller.metadata)
        said = metadata.get(TOPIC)
        name = TopicName.parse(unquote(said)) if isinstance(said, str) else self._topics.get(number)
        if name is not None:
            error = self._access.elsewhere(name)
            if error is not None:
                raise error
            return
        meant = metadata.get(_MEANT)
        if isinstance(meant, str):
            self._check_meant(meant.rstrip("/"))

    def _check_meant(self, url: str) -> None:
        me = self._ownership.me
        if url != me.broker_url and any(each.broker_url == url for each in self._ownership.members()):
            raise NotOwner(f"the call is for the broker at {url}", broker_url=url, retry_after_ms=100)


class DiscoveryService:
    def __init__(self, access: TopicAccess, ownership: Ownership) -> None:
        self._access = access
        self._ownership = ownership

    async def topic_lookup(self, data: bytes) -> bytes:
        """Look up one concrete topic. NOT_FOUND is the usual first answer to a producer of a new topic."""
        request = parse(pb.TopicLookupRequest, data)
        name = topic_name(request.topic, field="topic")
        kind, url = pb.TopicLookupResponse.LookupType.Connect, self._ownership.me.broker_url
        dialled = self._access.connect_url
        try:
            await self._access.topic_here(COLD_CALL, Action.LOOK_UP, name)
        except NotOwner as error:
            kind, url = pb.TopicLookupResponse.LookupType.Redirect, error.details["broker_url"]
        except NoOwner:
            pass  # it is moving, and calls are held here until it has an owner
        return pb.TopicLookupResponse(
            request_id=request.request_id,
            response_type=kind,
            connect_url=dialled or url,
            broker_url=url,
            proxy=dialled is not None,
        ).SerializeToString()

    async def topic_partitions(self, data: bytes) -> bytes:
        """Return the concrete topics of a name, ordered by partition number. Empty if it does not exist.

        They are not in text order, because Java numbers its consumers by the position in this list, and a partition
        added later must not shift the others.
        """
        request = parse(pb.TopicLookupRequest, data)
        name = topic_name(request.topic, field="topic")
        _, topics = await self._access.placed(COLD_CALL, Action.LOOK_UP, name)
        return pb.TopicPartitionsResponse(
            request_id=request.request_id, partitions=[topic.name for topic in topics]
        ).SerializeToString()
