"""One consumer or reader on one partition: a stream, its session, its credit.

* Credit: the broker may send `credit_messages` and `credit_bytes` (stored bytes, as carried in the frames) that the
  application has not taken. Messages taken are granted again when they reach half of the whole, so the local buffer is
  bounded by the credit, plus one delivery in bytes.
* Session: a reconnect or a seek begins a new one. Messages buffered for the old one are dropped (the broker delivers
  them again), acknowledgements for it are dropped and counted. When the topic moves to another broker, the session
  continues there if that broker agrees: the buffer is kept, and answers that the former owner did not carry out are
  sent again. A reader has nothing to acknowledge: it keeps its buffer over a reconnect and continues behind it.
* Control messages (credit, acks, nacks …) go through one queue with one writer. Acks are ranges gathered for some
  milliseconds, so the queue stays short, and senders of other messages wait until those are written.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from pydanube_core.errors import (
    ClosedResource,
    ClusterError,
    ConsumerBusy,
    Internal,
    NoOwner,
    NotOwner,
    Retryable,
    Unavailable,
)
from pydanube_core.frames import CONSUME_DELIVERY_FIELD, decode_delivery, read_bytes_field
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.decoded_batch import DecodedBatch
from pydanube.facts import ClientEventKind
from pydanube.message import Delivered
from pydanube.receiving.consume_options import ConsumeOptions
from pydanube.receiving.control import ControlQueue
from pydanube.receiving.credit import CreditAccount
from pydanube.receiving.lane_answers import LaneAnswers
from pydanube.receiving.taken_counts import TakenCounts
from pydanube.wire.first_answer import first_answer
from pydanube.wire.lane_stream import LaneStream
from pydanube.wire.transport import Stream, copy_of, gave_up

SETTLED_S: Final = 1.0  # an outage ends when a stream has lasted this long, or has delivered


class ConsumeLane:
    """Receives deliveries and hands them to the consumer, in order."""

    def __init__(self, options: ConsumeOptions) -> None:
        self._options = options
        self.topic = options.topic
        self.partition = options.partition
        self.concrete_topic = options.concrete_topic
        self.decode = options.decode
        self.reply = options.reply
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counters = options.counters
        self._control = ControlQueue()
        self.answers = LaneAnswers(
            options.receiver,
            options.concrete_topic,
            self._control,
            options.counters,
            lambda nacked, ranges: options.behind(self, nacked, ranges),
        )
        # Deliveries of an older generation are void. Credit belongs to an epoch: a subscription's stream starts with
        # its whole credit, so deliveries of an older stream may not be granted again. A reader's buffer lives on.
        self.generation = 0
        self.epoch = 0
        self.ended = False
        self.left = False
        self.error: ClusterError | None = None
        self.consumer_name = options.receiver.name
        self.active = False
        self.start_offset = 0  # where delivery began when it was first opened
        self._next_offset = -1  # a reader's place: one past the last message received
        self._stop_offset = -1
        self._takings = TakenCounts()
        self._position = (0, 0)  # the application's position among all deliveries, when it was last reported
        self._ack_timeout_ms, self._takes_masks = 0, False
        self._report_timer: asyncio.TimerHandle | None = None
        self._stream = LaneStream(
            options.topic, options.concrete_topic,
            locate=options.locate, take=self._take_message, ended=self._control.nudge, emit=options.emit,
        )  # fmt: skip
        self._failed_since: float | None = None
        self.credit = CreditAccount(options.credit_messages, options.credit_bytes)
        self._opened_at = 0.0

    @property
    def reader(self) -> bool:
        return not self._options.receiver.subscription

    # -- the application's side ------------------------------------------------------------------------------

    def taken(self, delivered: Delivered, messages: int, *, more: bool = False) -> None:
        """Count messages taken by the application, and the bytes of the batch with its last message.

        Sends gathered acks unless `more` deliveries wait for it or some have just been sent, and grants credit again
        when half of it is used.
        """
        delivered.taken += messages
        if delivered.generation == self.generation:
            self._takings.taken += messages
        if delivered.epoch != self.epoch:
            return
        size_bytes = delivered.size_bytes if delivered.taken == len(delivered) else 0
        self.credit.taken(messages, size_bytes)
        self.answers.taken(messages, more=more)
        self._grant_used()

    def hold_credit(self) -> None:
        """Grant nothing until `release_credit`: the consumer is paused."""
        self.credit.held = True

    def release_credit(self) -> None:
        """Grant credit again, also for messages taken in the meantime."""
        self.credit.held = False
        self._grant_used()

    def resize(self, messages: int, size_bytes: int) -> None:
        """Set another share of the consumer's credit. Credit out beyond a smaller share is not renewed."""
        self.credit.resize(messages, size_bytes)
        self._grant_used()

    def _grant_used(self) -> None:
        if self._control.connected and self.credit.due:
            messages, size_bytes = self.credit.grant()
            self._control.post(pb.ConsumeRequest(credit=pb.Credit(messages=messages, bytes=size_bytes)))

    def returned(self, delivered: Delivered, messages: int) -> None:
        """Take back the credit of messages that were given back to the broker."""
        self._takings.received -= messages
        self.credit.taken(messages, 0 if delivered else delivered.size_bytes)
        if not delivered:
            delivered.size_bytes = 0
        self._counters.received_messages -= messages

    def _report(self) -> None:
        """Report to the broker how many messages the application has taken."""
        self._report_timer = None
        if not self._control.connected:
            return
        handed_out = self._options.handed_out(self)
        loop = asyncio.get_running_loop()
        total = self._takings.due(handed_out, loop.time())
        if total is not None:
            before, self._position = self._position, self._options.position()
            taken = pb.Taken(session=self.answers.acks.session, messages=total, busy=before != self._position)
            self._control.post(pb.ConsumeRequest(taken=taken))
        wait_s = self._takings.next_s(handed_out)
        if wait_s is not None:
            self._report_timer = loop.call_later(wait_s, self._report)

    def _watch_takings(self) -> None:
        wait_s = self._takings.next_s(0)
        if self._report_timer is None and wait_s is not None and not self.reader:
            self._report_timer = asyncio.get_running_loop().call_later(wait_s, self._report)

    async def seek(self, position: str, *, check: bool = False) -> None:
        """Move the subscription's cursor (or the reader's position), and drop buffered messages.

        A refusal changes nothing. Safe to repeat, and repeated over reconnects as long as the client's `Retry` allows.
        `check`: only check whether it is possible.
        """
        since = time.monotonic()
        attempt = 0
        while True:
            if self.error is not None:
                raise copy_of(self.error)
            try:
                if not self._control.connected:
                    raise Unavailable(f"{self.concrete_topic}: not connected")
                request = self._control.new_request()
                seek = pb.Seek(position=position, request=request, check=check)
                await self._control.send_and_wait(request, pb.ConsumeRequest(seek=seek))
                return
            except Unavailable as error:
                attempt += 1
                if time.monotonic() - since >= self._options.retry.max_elapsed_s:
                    raise
                delay_s = self._options.retry.delay_s(
                    attempt, draw=random.random(), retry_after_ms=error.retry_after_ms
                )
                await asyncio.sleep(delay_s)

    # -- life ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a stream open until cancelled, ended, or failed for good."""
        try:
            await self._run()
        except asyncio.CancelledError:
            self._die(ClosedResource(f"the consumer of {self.topic} is closed", topic=self.topic))
            raise
        except Exception as error:
            self._die(Internal(f"the consumer's task failed: {error!r}", topic=self.topic))
            raise

    def task_ended(self) -> None:
        """Fail the opener if `run` was cancelled before it began, because the client was closed in that moment."""
        if not self.opened.done():
            self._die(ClosedResource(f"the consumer of {self.topic} is closed", topic=self.topic))

    async def _run(self) -> None:
        attempt = 0
        retry = self._options.retry
        while not self.ended:
            try:
                await self._connect_and_receive()
                continue  # only a reader at its end comes back
            except ClusterError as error:
                failure = error
            was_open = self.opened.done()
            self._options.emit(ClientEventKind.DISCONNECTED, self._stream.url, 0, failure.message)
            # After a reconnect our own former stream may still hold the exclusive slot, until the broker notices.
            again = isinstance(failure, Retryable) or (was_open and isinstance(failure, ConsumerBusy))
            now = time.monotonic()
            since = self._failed_since
            if since is not None and self._opened_at > since and now - self._opened_at > SETTLED_S:
                # it was opened again and worked for a while: this is another outage
                self._failed_since = None
            attempt = 1 if self._failed_since is None else attempt + 1
            if self._failed_since is None:
                self._failed_since = now
            if not again or now - self._failed_since >= retry.max_elapsed_s:
                self._die(gave_up(failure, now - self._failed_since) if again else failure)
                return
            delay_s = retry.delay_s(attempt, draw=random.random(), retry_after_ms=failure.retry_after_ms)
            self._options.emit(ClientEventKind.RECONNECTING, self._stream.url, attempt, failure.message)
            left_s = self._failed_since + retry.max_elapsed_s - now
            await self._options.pause(self._options.concrete_topic, failure, min(delay_s, left_s), left_s)

    async def _connect_and_receive(self) -> None:
        try:
            await self._stream.run(
                lambda transport: transport.consume(),
                opening=self._open,
                writing=lambda stream: self._control.write_out(stream, self._over),
                over=self._disconnect,
            )
        except Retryable:
            if not self.ended:
                raise

    async def _open(self, stream: Stream) -> None:
        options = self._options
        again = self.opened.done()
        request = pb.OpenConsumer(
            topic=options.concrete_topic,
            subscription=options.receiver.subscription,
            type=options.receiver.type,
            consumer_name=self.consumer_name,
            start=options.receiver.start,
            start_given=options.receiver.start_given and not again,
            stop=options.receiver.stop,
            key_filters=options.receiver.key_filters,
            ack_timeout_ms=options.receiver.ack_timeout_ms,
            reports_taken=not self.reader,
            max_extend_ms=options.receiver.max_extend_ms,
        )
        # A reader keeps its buffer, so it may not get its whole credit again.
        keeps = again and self.reader
        if keeps:
            if self._next_offset >= 0:
                request.start = f"offset:{self._next_offset}"
            if self._stop_offset >= 0:
                request.stop = f"offset:{self._stop_offset}"
        resumes = self.answers.repeated.between_owners
        if self.answers.repeated.complete:
            request.resume_session = self.answers.acks.session
        credit_messages, credit_bytes = self.credit.open(keeps=keeps or resumes)
        # The next owner must get the messages given back before it sends later ones of their keys.
        credit_later = self.answers.repeated.gave_back
        if not credit_later:
            request.credit_messages, request.credit_bytes = credit_messages, credit_bytes
        await stream.write(pb.ConsumeRequest(open=request).SerializeToString())
        response = await first_answer(
            stream,
            pb.ConsumeResponse.FromString,
            who="consumer",
            topic=options.topic,
            concrete_topic=options.concrete_topic,
        )
        opened = response.opened
        self.consumer_name = opened.consumer_name or self.consumer_name
        self.active = opened.active
        if options.receiver.stop:
            self._stop_offset = opened.stop_offset
        if self._next_offset < 0:
            self._next_offset = opened.start_offset
        if not again:
            self.start_offset = opened.start_offset
        self._ack_timeout_ms, self._takes_masks = opened.ack_timeout_ms, opened.takes_masks
        self.answers.takes_returned = opened.takes_returned
        if opened.resumed:
            keeps = self._options.receiver.max_extend_ms > 0
            self._takings = TakenCounts(self._ack_timeout_ms, keeps=keeps, before=self._takings)
            self.answers.resume_session(opened.session)
        else:
            if resumes:
                self._session_lost()
            self.answers.repeated.begin_stream(keeps=False)
            self._begin_session(opened.session)
        if resumes:
            self._options.changed()
        self._control.connected = True
        if credit_later:
            self._control.post(
                pb.ConsumeRequest(credit=pb.Credit(messages=credit_messages, bytes=credit_bytes))
            )
        self._opened_at = time.monotonic()
        if again:
            self._counters.reconnects += 1
        else:
            self.opened.set_result(None)

    def _begin_session(self, session: int) -> None:
        self._takings = TakenCounts(self._ack_timeout_ms, keeps=self._options.receiver.max_extend_ms > 0)
        self.answers.begin_session(session, takes_masks=self._takes_masks)

    def _disconnect(self) -> None:
        """Handle a lost stream: end the session and fail the requests that wait for an answer."""
        if not self._control.connected:
            return
        self._control.connected = False
        if not self.reader and not self.answers.repeated.between_owners:
            self.epoch += 1
            self._session_lost()
        self._control.lost(
            Unavailable(f"{self.concrete_topic}: the connection was lost before the answer", topic=self.topic)
        )
        self._options.changed()

    def _session_lost(self) -> None:
        """End the session: drop the buffer and unconfirmed acknowledgements, which the broker delivers again."""
        self.generation += 1
        self.answers.session_lost()

    def _over(self) -> bool:
        """Return whether the stream's writer has to stop. Raises the reader's error."""
        if self._stream.error is not None:
            raise self._stream.error
        return self.ended

    # -- messages of the broker ------------------------------------------------------------------------------

    def _take_message(self, data: bytes) -> bool:
        frame = read_bytes_field(CONSUME_DELIVERY_FIELD, data)
        if frame is not None:
            self._deliver(frame)
        else:
            self._handle(pb.ConsumeResponse.FromString(data))
        return not self.ended

    def _deliver(self, frame: memoryview) -> None:
        session, parts = decode_delivery(frame)
        self._failed_since = None
        current = session == self.answers.acks.session
        counters = self._counters
        decoded: DecodedBatch | None = None
        carried: object = None
        for part in parts:
            size = 0
            if decoded is None or part.batch is not carried:
                decoded, carried, size = DecodedBatch(part.batch), part.batch, len(part.batch)
            delivered = Delivered(decoded, part, self, size)
            messages = len(delivered)
            self.credit.delivered(messages, size)
            counters.received_messages += messages
            counters.received_bytes += size
            if part.delivery_count > 1:
                counters.redelivered_messages += messages
            if current:
                self._next_offset = part.end
                self._takings.received += messages
                self._options.ready(delivered)
                if self.answers.withholds:
                    self._give_back_early(delivered)
            else:
                self.drop(delivered)
        self._watch_takings()

    def _give_back_early(self, delivered: Delivered) -> None:
        """Give back those messages of a delivery that must be delivered again after a nacked one of their key."""
        keys = delivered.batch.routing_keys(delivered.low, delivered.high)
        self.answers.give_back(
            zip(delivered.offsets, keys, strict=True), lambda ranges: self._options.give_back(self, ranges)
        )
        self._grant_used()

    def drop(self, delivered: Delivered) -> None:
        """Drop the rest of a delivery whose session is over: count it as stale, and return its credit."""
        left = len(delivered) - delivered.taken
        self._counters.stale_messages += left
        self.taken(delivered, left)

    def _handle(self, response: pb.ConsumeResponse) -> None:
        match response.WhichOneof("kind"):
            case "confirmed":
                confirmed = response.confirmed
                error = ClusterError.from_json(confirmed.error.decode()) if confirmed.error else None
                self._control.answered(confirmed.confirm, error)
            case "session":
                change = response.session
                self.active = change.active
                self.generation += 1
                self._begin_session(change.session)
                self._next_offset = change.offset
                self._options.changed()
                self._control.answered(change.request, None)
            case "recall":
                recall = response.recall
                back: list[int] = []
                if recall.session == self.answers.acks.session:
                    back = self._options.give_back(self, recall.ranges)
                self.answers.send(
                    pb.ConsumeRequest(given_back=pb.GivenBack(session=recall.session, ranges=back))
                )
                self._grant_used()
            case "end":
                self.ended = True
                self._next_offset = response.end.next_offset
                self._options.changed()
            case "failure":
                failure = response.failure
                error = ClusterError.from_json(failure.error.decode())
                moves = isinstance(error, (NoOwner, NotOwner)) and failure.HasField("carried_out")
                if moves and not self.reader:  # a reader has no session that the next owner could continue
                    self.answers.repeated.owner_left(failure.carried_out)
                raise error
            case other:
                raise Internal(f"the broker sent {other} on a consumer's stream", topic=self.topic)

    def _die(self, error: ClusterError) -> None:
        if self.answers.repeated.between_owners:
            self._session_lost()
            self.answers.repeated.begin_stream(keeps=False)
        self.left = isinstance(error, self._options.may_leave)
        if self.left:  # the consumer drops its messages and continues with its other topics
            self._options.emit(ClientEventKind.LEFT, self._stream.url, 0, error.message)
            self.generation += 1
        self.answers.end(error, left=self.left)
        self.error = error
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        if not self.opened.done():
            self.opened.set_exception(copy_of(error))
            self.opened.exception()  # seen: the opener may have been cancelled
        self._options.changed()
