"""What an in-memory cluster holds: topics, partitions, subscriptions, and the faults a test has asked for.

Whoever calls it holds `connections.lock`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pydanube_core.errors import ClusterError, DispatchMismatch, InvalidArgument, TopicNotFound, Unavailable
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName
from pydanube_core.topic_pattern import TopicPattern

from pydanube.testing.key_sharing import KeySharedSubscription
from pydanube.testing.log import MemoryTopic
from pydanube.testing.pipe import Connections, Pipe
from pydanube.testing.registry import MemoryRegistry
from pydanube.testing.subscription import MemorySubscription

URL: Final = "http://in-memory:6650"


class MemoryState:
    """The state of one cluster."""

    def __init__(self, *, auto_create: bool, max_message_bytes: int) -> None:
        self._auto_create = auto_create
        self._max_message_bytes = max_message_bytes
        self.connections = Connections()
        self.topics: dict[str, MemoryTopic] = {}
        self.partitions: dict[str, int] = {}
        self.registry = MemoryRegistry()
        self.subscriptions: dict[tuple[str, str], MemorySubscription] = {}
        self._ids = 0
        self.down: ClusterError | None = None
        self.refusals: deque[ClusterError] = deque()
        self.held: list[tuple[Pipe, bytes]] | None = None  # answers that wait for the end of `answers_held`
        self.cut_before_answers = 0

    def new_id(self) -> int:
        """A number that was not given out yet."""
        self._ids += 1
        return self._ids

    def check_publish(self) -> None:
        """Raise what refuses publishes now."""
        if self.refusals:
            raise self.refusals.popleft()

    def answer(self, pipe: Pipe, message: bytes) -> None:
        """Send an answer to a connection, late where that was asked for."""
        if self.cut_before_answers:
            self.cut_before_answers -= 1
            pipe.cut(Unavailable("the connection was cut by the test"))
        elif self.held is not None:
            self.held.append((pipe, message))
        else:
            pipe.send(message)

    def topic(self, name: str) -> MemoryTopic:
        """The concrete topic of that name. Raises `TopicNotFound`."""
        full = str(TopicName.parse(name))
        topic = self.topics.get(full)
        if topic is None:
            raise _no_topic(full)
        return topic

    def subscription(self, topic: MemoryTopic, request: pb.OpenConsumer) -> MemorySubscription:
        """The subscription that a consumer asks for, made if it is new."""
        found = self.subscriptions.get((topic.name, request.subscription))
        kind = request.type or "exclusive"
        if found is None:
            start = topic.offset_of(request.start or "earliest")
            if kind == "key-shared":
                found = KeySharedSubscription(topic, request.subscription, start, self.new_id)
            else:
                found = MemorySubscription(topic, request.subscription, kind, start, self.new_id)
            self.subscriptions[topic.name, request.subscription] = found
        elif request.start_given:
            raise InvalidArgument(
                f"subscription {request.subscription} exists: move it with seek",
                field="start",
                value=request.start,
            )
        elif found.kind != kind:
            if found.consumers or "key-shared" in (found.kind, kind):
                raise InvalidArgument(
                    f"subscription {request.subscription} is {found.kind}", field="type", value=kind
                )
            found.kind = kind
        return found

    def resolve(self, request: pb.ResolveRequest) -> pb.ResolveResponse:
        """Where a topic is; made if the request asks for it."""
        name = TopicName.parse(request.topic)
        full = str(name)
        if request.schema_subject:
            self.registry.find(request.schema_subject, request.schema_version)
        if full not in self.topics and full not in self.partitions:
            if not (request.create and self._auto_create):
                raise _no_topic(full)
            self.create(name, request.partitions, request.dispatch_strategy or "reliable")
        concrete = self.concrete(name)
        return pb.ResolveResponse(
            topic=full,
            dispatch_strategy=concrete[0].dispatch_strategy,
            partitions=[
                pb.Partition(topic=topic.name, topic_id=topic.topic_id, broker_url=URL, epoch=1)
                for topic in concrete
            ],
            partitioned=full in self.partitions,
            max_message_bytes=self._max_message_bytes,
        )

    def match(self, request: pb.MatchRequest) -> pb.MatchResponse:
        """The topics that fit."""
        patterns = [TopicPattern.parse(text) for text in request.patterns]
        parts = {
            str(TopicName.parse(name).part(i))
            for name, count in self.partitions.items()
            for i in range(count)
        }
        names = [TopicName.parse(name) for name in sorted({*self.topics, *self.partitions} - parts)]
        found = [str(name) for name in names if any(pattern.matches(name) for pattern in patterns)]
        return pb.MatchResponse(topics=found[: request.limit], more=len(found) > request.limit)

    def check_up(self) -> None:
        """Raise `Unavailable` while the cluster is down."""
        if self.down is not None:
            raise ClusterError.from_dict(self.down.to_dict())

    def create(self, name: TopicName, partitions: int, dispatch_strategy: str) -> None:
        """Make a topic, or its partitions."""
        if dispatch_strategy not in ("reliable", "non_reliable"):
            raise DispatchMismatch(f"dispatch strategy {dispatch_strategy!r}", topic=str(name))
        if partitions:
            self.partitions[str(name)] = partitions
        for concrete in [name.part(i) for i in range(partitions)] if partitions else [name]:
            self.topics[str(concrete)] = MemoryTopic(
                str(concrete),
                self.new_id(),
                dispatch_strategy=dispatch_strategy,
                max_message_bytes=self._max_message_bytes,
            )

    def delete(self, name: TopicName) -> None:
        """Delete a topic with its subscriptions, and end the streams of those who use it."""
        concrete = self.concrete(name)
        self.partitions.pop(str(name), None)
        for one in concrete:
            del self.topics[one.name]
            for key in [key for key in self.subscriptions if key[0] == one.name]:
                del self.subscriptions[key]
        for pipe in list(self.connections.pipes):
            if pipe.serves(concrete):
                pipe.send_failure(_no_topic(str(name)))

    def concrete(self, name: TopicName) -> list[MemoryTopic]:
        """The topic itself, or its partitions. Raises `TopicNotFound`."""
        partitions = self.partitions.get(str(name))
        if partitions is None:
            return [self.topic(str(name))]
        return [self.topics[str(name.part(i))] for i in range(partitions)]


def _no_topic(full: str) -> TopicNotFound:
    return TopicNotFound(f"there is no topic {full}", topic=full).suggest(
        "topics.create",
        tool="create_topic",
        command=f"danube topics create {full}",
        why="make it first",
        arguments={"topic": full},
    )
