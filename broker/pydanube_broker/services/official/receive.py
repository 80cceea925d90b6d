"""`danube.ConsumerService/ReceiveMessages`: the stream of one official consumer.

This module follows from the clients' reactions to the begin and end of a stream
(docs/research/data-plane.md#82-receivemessages, #103-receivemessages-reactions):

* The headers are sent as soon as the consumer is attached, because Rust holds a lock until they arrive. A failure before
  that sends only trailers, because an error after the headers makes Rust open the stream again without a pause.
* The stream never ends with OK (Go stops forever, the others spin), but with UNAVAILABLE.
* An unknown id, or a place in use, is answered after a pause, because Python retries immediately.
* If the topic is gone, the consumer's next health check returns CLOSE, and the stream ends shortly after. Only then do
  all clients subscribe again, and only once.

A consumer takes part in its subscription while its stream is open. When the stream is lost, its unacknowledged messages
can be redelivered. When its topic moves, they cannot: the stream is relayed (`relay`), and the client keeps its messages
at the next owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from pydanube_core.errors import (
    ClusterError,
    ConsumerBusy,
    Draining,
    Internal,
    NoOwner,
    NotOwner,
    SubscriptionNotFound,
    TopicNotFound,
    Unavailable,
)
from pydanube_core.names import TopicName

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.rpc.caller import ClientSeen
from pydanube_broker.rpc.hot import ServerStreamReply
from pydanube_broker.services.official.client_registry import ClientRegistry
from pydanube_broker.services.official.known_clients import KnownConsumer
from pydanube_broker.services.official.placeholder import placeholder_after_loss
from pydanube_broker.services.official.stream_messages import DecodedBatches, MessageFrame
from pydanube_broker.serving.data_plane import DataPlane
from pydanube_broker.serving.rights_watch import Right
from pydanube_broker.serving.topic_access import Action
from pydanube_broker.subscription.effects import SessionReason
from pydanube_broker.subscription.terms import ANY_SESSION, ConsumerTerms
from pydanube_broker.tenants.pace import Pace
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.official")

REFUSE_AFTER_S: Final = 0.3  # delay of the answer to an unknown id or a place in use
FAILED_PAUSE_MS: Final = 1_000  # pause of the same consumer after a failure of the broker
CLOSE_WAIT_S: Final = 6.0  # longer than the 5 s between two health checks
CLOSE_GRACE_S: Final = 0.2  # from the answer CLOSE to the end of the stream
STEP_MESSAGES: Final = 16  # messages per turn: ≈ 100 µs of encoding


class ReceiveStream:
    """One open stream (`HotServerStream`) to one consumer (`ConsumerLink`), with its own delivery loop (`Pump`)."""

    def __init__(
        self,
        consumer_id: int,
        reply: ServerStreamReply,
        plane: DataPlane,
        clients: ClientRegistry,
        decoded: DecodedBatches,
        gone: Callable[[ReceiveStream], None],
    ) -> None:
        self.consumer_id = consumer_id
        self.connected_at_ms = now_ms()
        # Answers are separate calls, without the consumer's id
        self.heard_at_ms: int | None = None
        self.answered_at_ms: int | None = None
        # These clients leave by cancelling, which looks like a broken connection
        self.left_cleanly = True
        self.queued = False
        self.closed = False
        self._pace = Pace()
        self._reply = reply
        self._plane = plane
        self._clients = clients
        self._decoded = decoded
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._known: KnownConsumer | None = None
        self._pump: AnyPump | None = None
        self._frames: deque[Iterator[bytes]] = deque()
        self._owed = 0  # remaining bytes of the current frame, as reported to the connection
        self.name = ""
        self._try()

    # -- attaching -------------------------------------------------------------------------------------------

    def _later(self, delay_s: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, then)

    def _try(self) -> None:
        """Attach if that is possible now, otherwise try again later."""
        self._timer = None
        if self.closed:
            return
        known = self._clients.consumer(self.consumer_id)
        # Any client can compute an id. Without permission, the answer is as for an unknown id, and no place is taken.
        if known is None or not self._plane.access.may(
            self._reply, Action.CONSUME, known.topic.options.topic
        ):
            self._refuse(
                Unavailable(
                    f"consumer {self.consumer_id} does not exist here: subscribe again",
                    field="consumer_id",
                    value=str(self.consumer_id),
                )
            )
            return
        self._known = known
        self.name = known.name
        now = self._now_ms()
        wait_ms = known.not_before_ms - now
        if known.stream is not None:
            wait_ms = max(wait_ms, known.takeovers.wait_ms(now))
        if wait_ms > 0:
            # Earlier if the place becomes free. This stream replaces another one that waits.
            if known.waiting is not None and known.waiting is not self:
                known.waiting.stop_waiting()
            known.waiting = self
            self._later(wait_ms / 1000, self._try)
            return
        if known.waiting is self:
            known.waiting = None
        self._attach(known, known.topic.subscriptions[known.subscription])

    def _attach(self, known: KnownConsumer, pump: AnyPump) -> None:
        taken_over = known.stream
        try:
            self._plane.access.check(self._reply, Action.CONSUME, known.topic.options.topic)
            self._plane.health.check_consume()
            pump.join(
                self,
                known.name,
                ConsumerTerms(
                    key_filters=known.filters_for(pump),
                    window_messages=pump.policy.failure.max_unacked_messages,
                    single=True,
                    resumes=ANY_SESSION if self._reply.goes_on else 0,
                ),
            )
        except ConsumerBusy as error:
            self._refuse(Unavailable(error.message, **error.details))
            return
        except ClusterError as error:
            self._refuse(error)
            return
        if taken_over is not None:
            known.takeovers.happened(self._now_ms())
        known.stream = self
        former = self._clients.closing.pop(self.consumer_id, None)
        if former is not None:  # a stream of the deleted topic, whose client has subscribed again already
            former.told_close()
        known.touch()
        self._pace = Pace(
            self._plane.access.share(self._reply, known.topic), known.topic.name, self.on_credit
        )
        self._pump = pump
        self._reply.begin()

    @property
    def right(self) -> Right | None:
        """Return the permission under which the stream was opened."""
        return (
            None
            if self._known is None or self.closed
            else Right(self._reply, Action.CONSUME, self._known.topic)
        )

    def _refuse(self, error: ClusterError) -> None:
        """End with an error, without response headers, after a pause."""
        if not self.closed:
            self._later(REFUSE_AFTER_S, lambda: self._refuse_now(error))

    def _refuse_now(self, error: ClusterError) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reply.end(error)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _taken_over(self) -> Unavailable:
        return Unavailable(
            f"another stream took the place of consumer {self.name!r}. Two processes with one name take turns: give "
            "each its own",
            field="consumer_name",
            value=self.name,
        )

    # -- to the client (ConsumerLink, Pump) ------------------------------------------------------------------

    def client(self) -> ClientSeen:
        return ClientSeen.of(self._reply)

    @property
    def writable(self) -> bool:
        return not self._frames and not self._pace.slowed and self._reply.writable

    def frame(self, session: int) -> MessageFrame:
        return MessageFrame()

    def deliver(self, frame: MessageFrame) -> None:
        known = self._known
        assert known is not None, "only attached consumers are delivered to"
        self._frames.append(frame.encode(known.topic, self._decoded, self._plane.ownership.me.broker_url))
        self._count_owed(frame.stored_bytes)
        if len(self._frames) == 1 and self._feed():
            self._plane.engine.turns.wake(self)

    def step(self) -> bool:
        more = self._feed()
        if not self._frames:
            self._flowing()
        return more

    def _feed(self) -> bool:
        """Encode and send a few messages. Return whether more can be sent now."""
        frames, reply, messages, size, owed = self._frames, self._reply, 0, 0, self._owed
        try:
            for _ in range(STEP_MESSAGES):
                # Owed bytes count as queued, but `has_room` ignores other streams: with `writable` they would block
                # one another.
                if not frames or not reply.has_room or self._pace.slowed:
                    return False  # `on_credit` goes on
                message = next(frames[0], None)
                if message is None:
                    frames.popleft()
                    owed = 0
                else:
                    reply.send(message)
                    messages, size = messages + 1, size + len(message)
                    owed = max(0, owed - len(message))
        except Exception:
            self._failed()
            owed = 0
            return False
        finally:
            if owed != self._owed:
                self._count_owed(owed - self._owed)
            if messages:  # sizes as sent, because these clients receive compressed batches uncompressed
                self._pace.count_delivered(messages, size)
        return bool(frames)

    def _send_rest(self) -> bool:
        """Send all delivered messages, which are in memory anyway, even to a slow client. Return False if that failed."""
        try:
            for message in chain.from_iterable(self._frames):
                self._reply.send(message)
        except Exception:
            self._failed()
            return False
        self._drop_frames()
        return True

    def _failed(self) -> None:
        log.exception("delivery_failed", extra={"consumer": self.consumer_id})
        self._drop_frames()
        self.end(Internal("the broker could not read a message. See its log"))

    def _count_owed(self, count: int) -> None:
        self._owed += count
        self._reply.owes(count)

    def _drop_frames(self) -> None:
        self._frames.clear()
        self._count_owed(-self._owed)

    def _flowing(self) -> None:
        if self._pump is not None and self.writable:
            self._pump.flowing(self.consumer_id)

    def session_changed(self, session: int, offset: int, reason: str) -> None:
        """Drop the messages not sent yet. Official clients have no sessions, so there is nothing to send."""
        if reason != SessionReason.JOINED:
            self._drop_frames()
            self._flowing()

    def recall(self, session: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing, because official clients cannot return messages from their buffers."""

    def activated(self) -> None:
        """Do nothing, because for official clients a standby is a silent stream until messages arrive."""

    def end(self, error: ClusterError) -> None:
        """End the stream: taken over, topic or subscription gone, log unreadable, or shutdown."""
        if self.closed:
            return
        known = self._known
        match error:
            case NotOwner() | NoOwner():
                # The relay continues the stream. It ends in the next turn, because the caller is iterating over its
                # consumers. Delivered messages stay with the consumer at the next owner, and must reach the client
                # before later ones.
                if self._send_rest():
                    self._later(0, lambda: self._reply.end(error))
            case TopicNotFound() | SubscriptionNotFound() if known is not None:
                self._clients.closing[self.consumer_id] = self
                self._later(CLOSE_WAIT_S, lambda: self._reply.end(Unavailable(error.message)))
            case ConsumerBusy():
                self._detach()
                self._reply.end(self._taken_over())
            case Unavailable() | Draining():
                self._reply.end(error)
            case _:
                if known is not None:
                    known.not_before_ms = self._now_ms() + FAILED_PAUSE_MS
                self._reply.end(Unavailable(str(error)))

    @property
    def topic_name(self) -> TopicName:
        assert self._known is not None, "only attached consumers call this"
        name: TopicName = self._known.topic.options.topic
        return name

    def told_close(self) -> None:
        """End the stream soon, because the consumer's health check was answered with CLOSE."""
        self._later(
            CLOSE_GRACE_S,
            lambda: self._reply.end(Unavailable("the topic is not here any more. Look it up again")),
        )

    def stop_waiting(self) -> None:
        """Refuse this waiting stream, because a newer one waits instead."""
        self._refuse_now(self._taken_over())

    def place_is_free(self) -> None:
        """Attach, because the previous stream has ended."""
        self._later(0, self._try)

    # -- the rest of its life --------------------------------------------------------------------------------

    def on_credit(self) -> None:
        """Continue once the client has credit, or the quota allows it."""
        if self._frames:
            self._plane.engine.turns.wake(self)
        else:
            self._flowing()

    def on_close(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._drop_frames()
        pump, known = self._pump, self._known
        if pump is not None and known is not None:
            attached = pump.links.get(self.consumer_id) is self
            if attached and not placeholder_after_loss(known, pump, self._loop.time()):
                pump.leave(self.consumer_id)
        self._detach()
        self._gone(self)
        self._pace = Pace()  # drops the old one, which references this stream

    def _detach(self) -> None:
        """Free the consumer's place. A waiting stream takes it."""
        known = self._known
        if known is None:
            return
        if self._clients.closing.get(self.consumer_id) is self:
            del self._clients.closing[self.consumer_id]
        if known.waiting is self:
            known.waiting = None
        if known.stream is self:
            known.stream = None
            if known.waiting is not None:
                known.waiting.place_is_free()
