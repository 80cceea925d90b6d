"""The in-memory cluster's side of a consumer's or reader's stream."""

from __future__ import annotations

from collections.abc import Callable

from pydanube_core.errors import ClusterError, InvalidArgument, SubscriptionNotFound
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.testing.key_sharing import KeySharedSubscription
from pydanube.testing.log import MemoryTopic
from pydanube.testing.memory import MemoryState
from pydanube.testing.pipe import Pipe
from pydanube.testing.subscription import MemorySubscription, Part, build_frame, pairs


class ConsumeServer:
    """A consumer's or reader's stream."""

    def __init__(self, memory: MemoryState, pipe: Pipe) -> None:
        self._memory = memory
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
        memory = self._memory
        self.topic = topic = memory.topic(request.topic)
        self.name = request.consumer_name or f"consumer-{memory.new_id()}"
        self.credit_messages, self.credit_bytes = request.credit_messages, request.credit_bytes
        opened = pb.ConsumerOpened(
            consumer_id=memory.new_id(),
            consumer_name=self.name,
            head_offset=topic.next_offset,
            topic_id=topic.topic_id,
            type=request.type,
            active=True,
        )
        if request.subscription:
            subscription = memory.subscription(topic, request)
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
            self.session = memory.new_id()
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
            self.session = self._memory.new_id()
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
            with self._memory.connections.lock:
                call()

        self._pipe.loop.call_later(delay_s, locked)

    def deleted(self, name: str) -> None:
        self._pipe.send_failure(SubscriptionNotFound(f"subscription {name} was deleted", subscription=name))

    def encode_failure(self, failure: pb.Failure) -> bytes:
        return pb.ConsumeResponse(failure=failure).SerializeToString()

    def on_close(self) -> None:
        if self._subscription is not None:
            self._subscription.leave(self)
        if self.topic is not None:
            self.topic.listeners.discard(self.deliver)
