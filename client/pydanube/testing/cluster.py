"""The in-memory cluster: what a test makes, fills, breaks and looks into."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pydanube_core.batch import BatchView
from pydanube_core.errors import (
    ClusterError,
    DispatchMismatch,
    InvalidArgument,
    SubscriptionNotFound,
    TopicNotFound,
    Unavailable,
)
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName
from pydanube_core.services import STREAM
from pydanube_core.topic_pattern import TopicPattern

from pydanube.client import Client
from pydanube.retry import Retry
from pydanube.sync import Client as SyncClient
from pydanube.testing.key_sharing import KeySharedSubscription
from pydanube.testing.log import MemoryTopic
from pydanube.testing.registry import MemoryRegistry
from pydanube.testing.streams import ConsumeServer, Pipe, PublishServer
from pydanube.testing.subscription import MemorySubscription
from pydanube.tracing import Tracing

__all__ = ["InMemoryCluster"]

_URL: Final = "http://in-memory:6650"


class InMemoryCluster:
    """Topics, subscriptions and producers in this process; `connect()` gives the real client.

    Has every type of subscription, readers, ack, nack with delay, ack timeout, terminate, seek, partitions, idempotent
    producers and schemas, which it does not compare. Has no failure policies, limits or retention.

    Args:
        auto_create: producers make topics that do not exist.
        max_message_bytes: larger payloads are refused.
    """

    def __init__(self, *, auto_create: bool = True, max_message_bytes: int = 4_000_000) -> None:
        self._auto_create = auto_create
        self._max_message_bytes = max_message_bytes
        self.lock = threading.RLock()
        self.pipes: set[Pipe] = set()
        self._topics: dict[str, MemoryTopic] = {}
        self._partitions: dict[str, int] = {}
        self.registry = MemoryRegistry()
        self._subscriptions: dict[tuple[str, str], MemorySubscription] = {}
        self._ids = 0
        self._down: ClusterError | None = None
        self._refusals: deque[ClusterError] = deque()
        self._held: list[tuple[Pipe, bytes]] | None = None
        self._cut_before_answers = 0

    # -- for tests -------------------------------------------------------------------------------------------

    def connect(self, *, retry: Retry | None = None, tracing: bool = False) -> Client:
        """A client of this cluster, to be used as `async with`."""
        spans = Tracing() if tracing else None
        return Client(_URL, lambda url: _MemoryTransport(self, url), retry or Retry(), spans)

    def connect_sync(self, *, retry: Retry | None = None) -> SyncClient:
        """A client of `pydanube.sync`, to be used as `with`, from any thread."""
        return SyncClient(lambda: self.connect(retry=retry))

    def create_topic(self, topic: str, *, partitions: int = 0, dispatch_strategy: str = "reliable") -> None:
        """Make a topic; partitions 0: a topic without."""
        with self.lock:
            self._create(TopicName.parse(topic), partitions, dispatch_strategy)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its subscriptions; whoever uses it is told `TopicNotFound`."""
        with self.lock:
            name = TopicName.parse(topic)
            concrete = self._concrete(name)
            self._partitions.pop(str(name), None)
            for one in concrete:
                del self._topics[one.name]
                for key in [key for key in self._subscriptions if key[0] == one.name]:
                    del self._subscriptions[key]
            for pipe in list(self.pipes):
                if pipe.serves(concrete):
                    pipe.send_failure(_no_topic(str(name)))

    def payloads(self, topic: str) -> list[bytes]:
        """Everything stored in a topic, partition after partition."""
        with self.lock:
            return [
                payload
                for concrete in self._concrete(TopicName.parse(topic))
                for stored in concrete.log
                for payload in BatchView.stored(stored.data).payloads()
            ]

    def unacknowledged(self, topic: str, subscription: str) -> int:
        """How far the subscription's floor is behind the head, over all partitions."""
        with self.lock:
            behind = 0
            for concrete in self._concrete(TopicName.parse(topic)):
                found = self._subscriptions.get((concrete.name, subscription))
                if found is None:
                    raise SubscriptionNotFound(f"{topic} has no subscription {subscription}", topic=topic)
                behind += concrete.next_offset - found.floor
            return behind

    def drop_connections(self) -> None:
        """Cut every stream, as a broken network would; clients reconnect."""
        with self.lock:
            for pipe in list(self.pipes):
                pipe.cut(Unavailable("the connection was cut by the test"))

    def stop(self) -> None:
        """Be unreachable until `restart`. Data stays, like that of a broker which was killed."""
        with self.lock:
            self._down = Unavailable("the in-memory cluster is stopped")
            self.drop_connections()

    def restart(self) -> None:
        """End every connection, as a broker does that comes back with all it had stored."""
        with self.lock:
            self._down = None

    def forget_producers(self) -> None:
        """Forget every producer session, as a broker does that has seen too many."""
        with self.lock:
            for topic in self._topics.values():
                topic.producers.clear()

    def fence_producers(self) -> None:
        """Behave as if every producer had been opened again elsewhere, with exclusive access."""
        with self.lock:
            for topic in self._topics.values():
                for state in topic.producers.values():
                    state.epoch += 1

    def refuse_publishes(self, *errors: ClusterError) -> None:
        """Answer the next batches with these errors, one each; nothing of them is stored."""
        with self.lock:
            self._refusals.extend(errors)

    def cut_before_answers(self, count: int = 1) -> None:
        """Store the next `count` batches and cut the connection instead of answering."""
        with self.lock:
            self._cut_before_answers = count

    @contextmanager
    def answers_held(self) -> Iterator[None]:
        """Inside the block publishes are stored and their receipts held back; afterwards they are sent."""
        with self.lock:
            self._held = []
        try:
            yield
        finally:
            with self.lock:
                held, self._held = self._held or [], None
                for pipe, message in held:
                    pipe.send(message)

    # -- for the streams -------------------------------------------------------------------------------------

    def new_id(self) -> int:
        """A number that was not given out yet."""
        self._ids += 1
        return self._ids

    def check_publish(self) -> None:
        """Raise what refuses publishes now."""
        if self._refusals:
            raise self._refusals.popleft()

    def answer(self, pipe: Pipe, message: bytes) -> None:
        """Send an answer to a connection, late where that was asked for."""
        if self._cut_before_answers:
            self._cut_before_answers -= 1
            pipe.cut(Unavailable("the connection was cut by the test"))
        elif self._held is not None:
            self._held.append((pipe, message))
        else:
            pipe.send(message)

    def topic(self, name: str) -> MemoryTopic:
        """The concrete topic of that name. Raises `TopicNotFound`."""
        full = str(TopicName.parse(name))
        topic = self._topics.get(full)
        if topic is None:
            raise _no_topic(full)
        return topic

    def subscription(self, topic: MemoryTopic, request: pb.OpenConsumer) -> MemorySubscription:
        """The subscription that a consumer asks for, made if it is new."""
        found = self._subscriptions.get((topic.name, request.subscription))
        kind = request.type or "exclusive"
        if found is None:
            start = topic.offset_of(request.start or "earliest")
            if kind == "key-shared":
                found = KeySharedSubscription(topic, request.subscription, start, self.new_id)
            else:
                found = MemorySubscription(topic, request.subscription, kind, start, self.new_id)
            self._subscriptions[topic.name, request.subscription] = found
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
        if full not in self._topics and full not in self._partitions:
            if not (request.create and self._auto_create):
                raise _no_topic(full)
            self._create(name, request.partitions, request.dispatch_strategy or "reliable")
        concrete = self._concrete(name)
        return pb.ResolveResponse(
            topic=full,
            dispatch_strategy=concrete[0].dispatch_strategy,
            partitions=[
                pb.Partition(topic=topic.name, topic_id=topic.topic_id, broker_url=_URL, epoch=1)
                for topic in concrete
            ],
            partitioned=full in self._partitions,
            max_message_bytes=self._max_message_bytes,
        )

    def match(self, request: pb.MatchRequest) -> pb.MatchResponse:
        """The topics that fit."""
        patterns = [TopicPattern.parse(text) for text in request.patterns]
        parts = {
            str(TopicName.parse(name).part(i))
            for name, count in self._partitions.items()
            for i in range(count)
        }
        names = [TopicName.parse(name) for name in sorted({*self._topics, *self._partitions} - parts)]
        found = [str(name) for name in names if any(pattern.matches(name) for pattern in patterns)]
        return pb.MatchResponse(topics=found[: request.limit], more=len(found) > request.limit)

    def check_up(self) -> None:
        """Raise `Unavailable` while the cluster is down."""
        if self._down is not None:
            raise ClusterError.from_dict(self._down.to_dict())

    def _create(self, name: TopicName, partitions: int, dispatch_strategy: str) -> None:
        if dispatch_strategy not in ("reliable", "non_reliable"):
            raise DispatchMismatch(f"dispatch strategy {dispatch_strategy!r}", topic=str(name))
        if partitions:
            self._partitions[str(name)] = partitions
        for concrete in [name.part(i) for i in range(partitions)] if partitions else [name]:
            self._topics[str(concrete)] = MemoryTopic(
                str(concrete),
                self.new_id(),
                dispatch_strategy=dispatch_strategy,
                max_message_bytes=self._max_message_bytes,
            )

    def _concrete(self, name: TopicName) -> list[MemoryTopic]:
        partitions = self._partitions.get(str(name))
        if partitions is None:
            return [self.topic(str(name))]
        return [self._topics[str(name.part(i))] for i in range(partitions)]


def _no_topic(full: str) -> TopicNotFound:
    return TopicNotFound(f"there is no topic {full}", topic=full).suggest(
        "topics.create",
        tool="create_topic",
        command=f"danube topics create {full}",
        why="make it first",
        arguments={"topic": full},
    )


class _MemoryTransport:
    """The transport into an `InMemoryCluster`."""

    def __init__(self, cluster: InMemoryCluster, url: str) -> None:
        self._cluster = cluster
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        with self._cluster.lock:
            self._cluster.check_up()
            return self._cluster.resolve(pb.ResolveRequest.FromString(request)).SerializeToString()

    async def call(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        with self._cluster.lock:
            self._cluster.check_up()
            if path == STREAM["Match"].path:
                return self._cluster.match(pb.MatchRequest.FromString(request)).SerializeToString()
            return self._cluster.registry.call(path, request)

    def publish(self) -> Pipe:
        cluster = self._cluster
        cluster.check_up()
        return Pipe(cluster, lambda pipe: PublishServer(cluster, pipe))

    def consume(self) -> Pipe:
        cluster = self._cluster
        cluster.check_up()
        return Pipe(cluster, lambda pipe: ConsumeServer(cluster, pipe))

    async def aclose(self) -> None:
        return None
