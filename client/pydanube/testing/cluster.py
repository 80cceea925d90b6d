"""The in-memory cluster: what a test makes, fills, breaks and looks into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydanube_core.batch import BatchView
from pydanube_core.errors import ClusterError, SubscriptionNotFound, Unavailable
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName
from pydanube_core.services import STREAM

from pydanube.client import Client
from pydanube.retry import Retry
from pydanube.sync import Client as SyncClient
from pydanube.testing.consuming import ConsumeServer
from pydanube.testing.memory import URL, MemoryState
from pydanube.testing.pipe import Pipe
from pydanube.testing.producing import PublishServer
from pydanube.tracing import Tracing


class InMemoryCluster:
    """Topics, subscriptions and producers in this process; `connect()` gives the real client.

    Has every type of subscription, readers, ack, nack with delay, ack timeout, terminate, seek, partitions, idempotent
    producers and schemas, which it does not compare. Has no failure policies, limits or retention.

    Args:
        auto_create: producers make topics that do not exist.
        max_message_bytes: larger payloads are refused.
    """

    def __init__(self, *, auto_create: bool = True, max_message_bytes: int = 4_000_000) -> None:
        self._memory = MemoryState(auto_create=auto_create, max_message_bytes=max_message_bytes)
        self._lock = self._memory.connections.lock

    def connect(self, *, retry: Retry | None = None, tracing: bool = False) -> Client:
        """A client of this cluster, to be used as `async with`."""
        spans = Tracing() if tracing else None
        return Client(URL, lambda url: _MemoryTransport(self._memory, url), retry or Retry(), spans)

    def connect_sync(self, *, retry: Retry | None = None) -> SyncClient:
        """A client of `pydanube.sync`, to be used as `with`, from any thread."""
        return SyncClient(lambda: self.connect(retry=retry))

    def create_topic(self, topic: str, *, partitions: int = 0, dispatch_strategy: str = "reliable") -> None:
        """Make a topic; partitions 0: a topic without."""
        with self._lock:
            self._memory.create(TopicName.parse(topic), partitions, dispatch_strategy)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its subscriptions; whoever uses it is told `TopicNotFound`."""
        with self._lock:
            self._memory.delete(TopicName.parse(topic))

    def payloads(self, topic: str) -> list[bytes]:
        """Everything stored in a topic, partition after partition."""
        with self._lock:
            return [
                payload
                for concrete in self._memory.concrete(TopicName.parse(topic))
                for stored in concrete.log
                for payload in BatchView.stored(stored.data).payloads()
            ]

    def unacknowledged(self, topic: str, subscription: str) -> int:
        """How far the subscription's floor is behind the head, over all partitions."""
        with self._lock:
            behind = 0
            for concrete in self._memory.concrete(TopicName.parse(topic)):
                found = self._memory.subscriptions.get((concrete.name, subscription))
                if found is None:
                    raise SubscriptionNotFound(f"{topic} has no subscription {subscription}", topic=topic)
                behind += concrete.next_offset - found.floor
            return behind

    def drop_connections(self) -> None:
        """Cut every stream, as a broken network would; clients reconnect."""
        with self._lock:
            for pipe in list(self._memory.connections.pipes):
                pipe.cut(Unavailable("the connection was cut by the test"))

    def stop(self) -> None:
        """Be unreachable until `restart`. Data stays, like that of a broker which was killed."""
        with self._lock:
            self._memory.down = Unavailable("the in-memory cluster is stopped")
            self.drop_connections()

    def restart(self) -> None:
        """End every connection, as a broker does that comes back with all it had stored."""
        with self._lock:
            self._memory.down = None

    def forget_producers(self) -> None:
        """Forget every producer session, as a broker does that has seen too many."""
        with self._lock:
            for topic in self._memory.topics.values():
                topic.producers.clear()

    def fence_producers(self) -> None:
        """Behave as if every producer had been opened again elsewhere, with exclusive access."""
        with self._lock:
            for topic in self._memory.topics.values():
                for state in topic.producers.values():
                    state.epoch += 1

    def refuse_publishes(self, *errors: ClusterError) -> None:
        """Answer the next batches with these errors, one each; nothing of them is stored."""
        with self._lock:
            self._memory.refusals.extend(errors)

    def cut_before_answers(self, count: int = 1) -> None:
        """Store the next `count` batches and cut the connection instead of answering."""
        with self._lock:
            self._memory.cut_before_answers = count

    @contextmanager
    def answers_held(self) -> Iterator[None]:
        """Inside the block publishes are stored and their receipts held back; afterwards they are sent."""
        with self._lock:
            self._memory.held = []
        try:
            yield
        finally:
            with self._lock:
                held, self._memory.held = self._memory.held or [], None
                for pipe, message in held:
                    pipe.send(message)


class _MemoryTransport:
    """The transport into it."""

    def __init__(self, memory: MemoryState, url: str) -> None:
        self._memory = memory
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        with self._memory.connections.lock:
            self._memory.check_up()
            return self._memory.resolve(pb.ResolveRequest.FromString(request)).SerializeToString()

    async def call(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        with self._memory.connections.lock:
            self._memory.check_up()
            if path == STREAM["Match"].path:
                return self._memory.match(pb.MatchRequest.FromString(request)).SerializeToString()
            return self._memory.registry.call(path, request)

    def publish(self) -> Pipe:
        memory = self._memory
        memory.check_up()
        return Pipe(memory.connections, lambda pipe: PublishServer(memory, pipe))

    def consume(self) -> Pipe:
        memory = self._memory
        memory.check_up()
        return Pipe(memory.connections, lambda pipe: ConsumeServer(memory, pipe))

    async def aclose(self) -> None:
        return None
