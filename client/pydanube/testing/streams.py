"""The in-memory cluster's side of the streams, and the pipe between it and the client.

Messages are handled in a later turn of the loop than they are written in, as they would be behind a network. A pipe
may be used from several loops (the sync facade has one a client): the cluster's state is under one lock, and what is
sent to a client goes to its own loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from pydanube_core.batch import read_producer_part
from pydanube_core.errors import (
    ClusterError,
    InvalidArgument,
    ProducerFenced,
    SubscriptionNotFound,
    Unavailable,
)
from pydanube_core.frames import PUBLISH_BATCH_FIELD, read_bytes_field
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.testing.key_sharing import KeySharedSubscription
from pydanube.testing.subscription import MemorySubscription, Part, build_frame, pairs

if TYPE_CHECKING:
    from pydanube.testing.cluster import InMemoryCluster
    from pydanube.testing.log import MemoryTopic

__all__ = ["ConsumeServer", "Pipe", "PublishServer"]


class Server(Protocol):
    @property
    def topic(self) -> MemoryTopic | None: ...

    def on_message(self, message: bytes) -> None: ...

    def on_close(self) -> None: ...


class Pipe:
    """A stream as the client holds it; the server writes with `send`."""

    def __init__(self, cluster: InMemoryCluster, serve: Callable[[Pipe], Server]) -> None:
        self._cluster = cluster
        self.loop = asyncio.get_running_loop()
        self._inbound: deque[bytes] = deque()
        self._outbound: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._error: ClusterError | None = None
        self._pumping = False
        self._closed = False
        self._server: Server | None = None
        with cluster.lock:
            cluster.pipes.add(self)
            self._server = serve(self)

    # -- the client's side -----------------------------------------------------------------------------------

    async def write(self, message: bytes) -> None:
        self._check()
        self._inbound.append(message)
        if not self._pumping:
            self._pumping = True
            self.loop.call_soon(self._pump)

    async def read(self) -> bytes | None:
        while not self._outbound:
            self._check()
            self._reader = self.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._outbound.popleft()

    async def finish(self) -> None:
        self.cut(None)

    async def aclose(self) -> None:
        self.cut(None)

    def _check(self) -> None:
        if self._error is not None:
            raise ClusterError.from_dict(self._error.to_dict())
        if self._closed:
            raise Unavailable("the stream is closed")

    # -- the cluster's side ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._pumping = False
        with self._cluster.lock:
            while self._inbound and not self._closed and self._server is not None:
                try:
                    self._server.on_message(self._inbound.popleft())
                except ClusterError as error:
                    self.send_failure(error)

    def serves(self, topics: Collection[MemoryTopic]) -> bool:
        """Whether it is a producer's or a consumer's of one of these."""
        return self._server is not None and self._server.topic in topics

    def send_failure(self, error: ClusterError) -> None:
        """A failure of the stream, which ends it."""
        failure = pb.Failure(error=error.to_json().encode())
        if isinstance(self._server, PublishServer):
            self.send(pb.PublishResponse(failure=failure).SerializeToString())
        else:
            self.send(pb.ConsumeResponse(failure=failure).SerializeToString())
        self.cut(error)

    def send(self, message: bytes) -> None:
        if not self._closed:
            self._outbound.append(message)
            self._wake()

    def cut(self, error: ClusterError | None) -> None:
        """End the stream; what was sent before still arrives."""
        if self._closed:
            return
        self._closed = True
        self._error = error
        self._inbound.clear()
        with self._cluster.lock:
            self._cluster.pipes.discard(self)
            server, self._server = self._server, None
            if server is not None:
                server.on_close()
        self._wake()

    def _wake(self) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self.loop:
            self._wake_reader()
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._wake_reader)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class PublishServer:
    """A producer's stream."""

    def __init__(self, cluster: InMemoryCluster, pipe: Pipe) -> None:
        self._cluster = cluster
        self._pipe = pipe
        self.topic: MemoryTopic | None = None

    def on_message(self, message: bytes) -> None:
        batch = read_bytes_field(PUBLISH_BATCH_FIELD, message)
        if batch is None:
            self._open(pb.PublishRequest.FromString(message).open)
        else:
            self._publish(batch)

    def _open(self, request: pb.OpenProducer) -> None:
        cluster = self._cluster
        self.topic = topic = cluster.topic(request.topic)
        schema = (0, 0)
        if request.schema_subject:
            schema = cluster.registry.find(request.schema_subject, request.schema_version)
            topic.bind_schema(request.schema_subject)
        exclusive = request.access_mode == "exclusive"
        named = exclusive or request.access_mode == "named"
        topic.check_access(request.producer_name, exclusive=exclusive)
        state = topic.open_producer(
            request.producer_name,
            (request.topic_id, request.producer_id, request.producer_epoch, request.producer_token),
            new_id=cluster.new_id(),
            exclusive=named,
        )
        for former in topic.attach(self, state.name, exclusive=exclusive, named=named):
            former.fence(state.name)
        opened = pb.ProducerOpened(
            producer_id=state.producer_id,
            producer_epoch=state.epoch,
            producer_token=state.token,
            next_sequence=state.next_sequence,
            producer_name=state.name,
            topic_id=topic.topic_id,
            durability="memory",
            max_message_bytes=topic.max_message_bytes,
            schema_id=schema[0],
            schema_version=schema[1],
        )
        self._pipe.send(pb.PublishResponse(opened=opened).SerializeToString())

    def _publish(self, batch: memoryview) -> None:
        if self.topic is None:
            raise InvalidArgument("a batch came before the producer was opened", field="open", value=None)
        part = read_producer_part(batch)
        try:
            self._cluster.check_publish()
            stored, duplicate = self.topic.append(batch)
        except ClusterError as error:
            failure = pb.Failure(
                error=error.to_json().encode(), first_sequence=part.first_sequence, count=part.count
            )
            self._pipe.send(pb.PublishResponse(failure=failure).SerializeToString())
            return
        receipt = pb.Receipt(
            first_sequence=part.first_sequence,
            count=part.count,
            base_offset=stored.base,
            append_time_ms=stored.append_time_ms,
            duplicate=duplicate,
        )
        self._cluster.answer(self._pipe, pb.PublishResponse(receipt=receipt).SerializeToString())

    def fence(self, name: str) -> None:
        """Another connection opened the exclusive producer."""
        self._pipe.send_failure(ProducerFenced(f"producer {name} was opened again", outcome="unknown"))

    def on_close(self) -> None:
        if self.topic is not None:
            self.topic.detach(self)
        self.topic = None


class ConsumeServer:
    """A consumer's or reader's stream."""

    def __init__(self, cluster: InMemoryCluster, pipe: Pipe) -> None:
        self._cluster = cluster
        self._pipe = pipe
        self.name = ""
        self.session = 0
        self.credit_messages = 0
        self.credit_bytes = 0
        self.topic: MemoryTopic | None = None
        self._subscription: MemorySubscription | None = None
        self._place = 0  # a reader's
        self._stop: int | None = None
        self._ended = False

    def on_message(self, message: bytes) -> None:
        request = pb.ConsumeRequest.FromString(message)
        kind = request.WhichOneof("kind")
        subscription = self._subscription
        if kind == "open":
            self._open(request.open)
            return
        if kind == "credit":
            self.credit_messages += request.credit.messages
            self.credit_bytes += request.credit.bytes
        elif kind == "seek":
            self._seek(request.seek)
        elif subscription is None:
            raise InvalidArgument(f"a reader sent {kind}", field="kind", value=kind)
        elif kind == "ack":
            self._ack(subscription, request.ack)
        elif kind == "nack":
            nack = request.nack
            subscription.nacked(self, nack.session, pairs(nack.ranges), nack.delay_ms)
        elif kind == "extend":
            extend = request.extend
            subscription.extended(self, extend.session, pairs(extend.ranges), extend.ms)
        elif kind == "taken":
            subscription.taken(self, request.taken.session, request.taken.messages)
        elif kind == "terminate":
            terminate = request.terminate
            subscription.terminated += subscription.acked(self, terminate.session, pairs(terminate.ranges))
        self.deliver()

    def _open(self, request: pb.OpenConsumer) -> None:
        cluster = self._cluster
        self.topic = topic = cluster.topic(request.topic)
        self.name = request.consumer_name or f"consumer-{cluster.new_id()}"
        self.credit_messages, self.credit_bytes = request.credit_messages, request.credit_bytes
        opened = pb.ConsumerOpened(
            consumer_id=cluster.new_id(),
            consumer_name=self.name,
            head_offset=topic.next_offset,
            topic_id=topic.topic_id,
            type=request.type,
            active=True,
        )
        if request.subscription:
            subscription = cluster.subscription(topic, request)
            if isinstance(subscription, KeySharedSubscription):
                subscription.filter(self, request.key_filters)
            elif request.key_filters:
                raise InvalidArgument(
                    "key_filters are of key-shared subscriptions",
                    field="key_filters",
                    value=list(request.key_filters),
                )
            opened.active = subscription.join(self, request.ack_timeout_ms, reports=request.reports_taken)
            opened.ack_timeout_ms = request.ack_timeout_ms
            opened.takes_masks = True
            self._subscription = subscription
            opened.start_offset = subscription.floor
        else:
            self.session = cluster.new_id()
            self._place = opened.start_offset = topic.offset_of(request.start or "earliest")
            if request.stop:
                self._stop = topic.next_offset if request.stop == "head" else topic.offset_of(request.stop)
                opened.stop_offset = self._stop
            topic.listeners.add(self.deliver)
        opened.session = self.session
        self._pipe.send(pb.ConsumeResponse(opened=opened).SerializeToString())
        self.deliver()

    def _ack(self, subscription: MemorySubscription, ack: pb.Ack) -> None:
        ranges = pairs(ack.ranges)
        for each in ack.masks:
            bits = int.from_bytes(each.bits, "little")
            ranges += [
                (each.first + i, each.first + i + 1) for i in range(bits.bit_length()) if bits >> i & 1
            ]
        subscription.acked(self, ack.session, ranges)
        self._confirm(ack.confirm)

    def _confirm(self, request: int) -> None:
        if request:
            confirmed = pb.Confirmed(confirm=request)
            self._pipe.send(pb.ConsumeResponse(confirmed=confirmed).SerializeToString())

    def _seek(self, seek: pb.Seek) -> None:
        assert self.topic is not None
        try:
            place = self.topic.offset_of(seek.position)
        except ClusterError as error:  # nothing has moved, and the stream lives on
            refused = pb.Confirmed(confirm=seek.request, error=error.to_json().encode())
            self._pipe.send(pb.ConsumeResponse(confirmed=refused).SerializeToString())
            return
        if seek.check:
            pass
        elif self._subscription is not None:
            self._subscription.seek(seek.position)
        else:
            self._place = place
            self.session = self._cluster.new_id()
            self.session_changed(self.session, self._place, "seek", active=True)
        self._confirm(seek.request)

    def deliver(self) -> None:
        if self._subscription is not None:
            self._subscription.deliver()
            return
        if self.topic is None or self._ended:
            return
        while True:
            frame, _ = build_frame(self.topic, self._take, self)
            if frame is None:
                break
            self.send(frame)
        if self._stop is not None and self._place >= self._stop:
            self._ended = True
            self.send(pb.ConsumeResponse(end=pb.End(next_offset=self._place)).SerializeToString())

    def _take(self, limit: int) -> Part | None:
        assert self.topic is not None
        stored = self.topic.batch_at(self._place)
        if stored is None or (self._stop is not None and self._place >= self._stop):
            return None
        first = self._place
        self._place = min(stored.end, first + limit)
        if self._stop is not None:
            self._place = min(self._place, self._stop)
        return first, self._place, 1

    def send(self, message: bytes) -> None:
        self._pipe.send(message)

    def session_changed(self, session: int, offset: int, reason: str, *, active: bool) -> None:
        change = pb.SessionChanged(session=session, offset=offset, reason=reason, active=active)
        self._pipe.send(pb.ConsumeResponse(session=change).SerializeToString())

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        def locked() -> None:
            with self._cluster.lock:
                call()

        self._pipe.loop.call_later(delay_s, locked)

    def deleted(self, name: str) -> None:
        self._pipe.send_failure(SubscriptionNotFound(f"subscription {name} was deleted", subscription=name))

    def on_close(self) -> None:
        if self._subscription is not None:
            self._subscription.leave(self)
        if self.topic is not None:
            self.topic.listeners.discard(self.deliver)
