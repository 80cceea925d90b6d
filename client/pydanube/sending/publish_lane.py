"""One producer on one partition: a stream, its session, and the batches in flight.

Invariants

* Batches are written in the order of their sequence numbers, at most `MAX_IN_FLIGHT` of them unanswered, and each
  retry within a session sends the same bytes. The broker takes a batch only if its sequence is the next one.
* A batch is answered exactly once: stored, or failed with a typed error.

Failures

* Stream lost, or a retryable failure of one batch (disk full, draining, another owner …): the stream is abandoned.
  After a back-off a new one resumes the same session (producer id and epoch) and resends all unanswered batches, from
  the oldest. Batches that the log already holds are answered as duplicates with their first offsets.
* A fatal failure of one batch: its messages fail. The broker has also refused the batches in flight behind it, because
  the sequence has a gap now, so they are certainly not stored and return to the queue. The lane waits for the batches
  in flight before it. Then a *new session* is opened and the queue continues with its sequence numbers. Sending other
  bytes under old numbers in the old session would be wrong if a copy of a refused batch, delayed in a connection,
  arrived late. In a session that is never written to again, that copy meets the gap for ever.
* PRODUCER_UNKNOWN, OUT_OF_SEQUENCE, or a session that was resumed as another: whether the batches in flight are stored
  is unknown, and resending could duplicate them. They fail with `details.outcome = "unknown"`. Batches not yet written
  go on in a new session. PRODUCER_FENCED: the same, but nothing goes on, because another producer has the name.
* A resumed session whose log ends below the oldest batch in flight: the topic was taken over from a lost broker, and
  batches that were answered are missing in it. The log has no gap within a session, so it has none of the batches in
  flight either. They go on in a new session, without an error.
* Retryable failures for longer than `Retry.max_elapsed_s`: all waiting batches fail, those already written with
  `outcome = "unknown"`, so that the next attempt also starts a new session.
* Until the stream is open again, batches that were never written go to other partitions, unless one of their messages
  is bound to this one. A batch that may be stored stays.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Final

from pydanube_core.batch import BATCH_TARGET_BYTES, Codec
from pydanube_core.batch.layout import UNKNOWN_OFFSET
from pydanube_core.errors import (
    ClosedResource,
    ClusterError,
    Internal,
    OutOfSequence,
    ProducerFenced,
    ProducerUnknown,
    Retryable,
    TopicNotFound,
)
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.facts import ClientEventKind
from pydanube.options import BATCH_BYTES
from pydanube.schemas import schema_of
from pydanube.sending.lane_options import LaneOptions
from pydanube.sending.outbound import MESSAGE_OVERHEAD_BYTES, OutBatch, PackedMessages, Session
from pydanube.wire.first_answer import first_answer
from pydanube.wire.lane_stream import LaneStream
from pydanube.wire.transport import Stream, copy_of, gave_up

MAX_IN_FLIGHT: Final = 5  # the broker remembers the last 8 batches of a session (docs/design.md#6-delivery)
assert MAX_IN_FLIGHT < 8
ALONE_BATCHES: Final = 4
# With so many messages under way, gathered messages leave with the next answer: a batch costs both sides as much as
# some hundred messages, and the broker would take it no sooner. A full batch does not wait.
CROWD_MESSAGES: Final = 512


class PublishLane:
    """Takes messages (`gathering`), sends them, and answers their batches. Everything but `run` is synchronous."""

    def __init__(self, options: LaneOptions) -> None:
        self._options = options
        self.limit_bytes = options.producer.batch_bytes
        self.gathering = OutBatch(options.topic, options.partition)
        self.waker: asyncio.Future[None] | None = None  # set while the lane waits for a first message
        self.max_message_bytes = 0
        self.session: Session | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sealed: deque[OutBatch] = deque()
        self._in_flight: deque[OutBatch] = deque()
        self._open_stream: Stream | None = None  # while batches may be written to it
        # Consecutive batches of one message with nothing else under way when they were answered
        self._alone = 0
        self._may_be_alone = options.producer.linger_ms == 0 and options.codec is Codec.NONE
        self._logged_below = 0  # the log held every lower sequence number when this stream was opened
        self._unwritten = 0  # number of batches at the right end of in_flight not written to this stream
        self._sleeper: asyncio.Future[None] | None = None
        self._stream = LaneStream(
            options.topic, options.concrete_topic,
            locate=options.locate, take=self._take_answer, ended=self.nudge, emit=options.emit,
        )  # fmt: skip
        self._renew = False  # open a new session once in_flight is empty
        self._hurry = False
        self._failed_since: float | None = None
        self.dead: ClusterError | None = None

    # -- taking messages -------------------------------------------------------------------------------------

    def seal(self) -> OutBatch:
        """Close the gathering batch and return the next one."""
        if self.gathering.payloads:
            self._sealed.append(self.gathering)
            self.gathering = OutBatch(self._options.topic, self._options.partition)
            if self._sleeper is not None:
                self.nudge()
        return self.gathering

    def add_packed(self, messages: PackedMessages) -> OutBatch:
        """Queue a batch that is already full, after the gathered messages."""
        self.seal()
        batch = OutBatch.of(self._options.topic, self._options.partition, messages)
        self._sealed.append(batch)
        self.nudge()
        return batch

    def take_over(self, batch: OutBatch) -> None:
        """Queue a batch of another partition, after the gathered messages."""
        self.seal()
        batch.partition = self._options.partition
        self._sealed.append(batch)
        self.nudge()

    def first_message(self) -> None:
        """Note that the gathering batch has its first message."""
        self.gathering.publish_time_ms = time.time_ns() // 1_000_000
        if self.waker is not None:
            self.nudge()

    @property
    def _free_stream(self) -> Stream | None:
        """Return the stream if a message should leave immediately, because the last ones were alone in their batches.

        If many coroutines send in one turn of the loop, the batches were not, and their messages gather.
        """
        # The waker is set only if no message has gathered and the session is in order.
        free = self._alone >= ALONE_BATCHES and self.waker is not None and not self._in_flight
        return self._open_stream if free and self._may_be_alone else None

    def send_alone(
        self, payload: bytes, key: bytes | None = None, attributes: Mapping[str, str] | None = None
    ) -> OutBatch | None:
        """Send this message alone in this turn of the loop. Return None if it should wait for others."""
        stream, session = self._free_stream, self.session
        if stream is None or session is None or len(payload) > self.max_message_bytes:
            return None
        now_ms = time.time_ns() // 1_000_000
        wire = session.lone(payload, now_ms, key, attributes)
        if not stream.write_at_once(wire):
            return None
        batch = OutBatch(self._options.topic, self._options.partition)
        batch.bytes, batch.count, batch.publish_time_ms = len(payload) + MESSAGE_OVERHEAD_BYTES, 1, now_ms
        batch.wire, batch.first_sequence, batch.writes = wire, session.next_sequence, 1
        session.next_sequence += 1
        self._in_flight.append(batch)
        self._options.counters.written_batches += 1
        return batch

    def nudge(self) -> None:
        """Wake the lane's task, which runs at the end of this loop tick."""
        self.waker = None
        sleeper = self._sleeper
        if sleeper is not None and not sleeper.done():
            sleeper.set_result(None)

    def hurry(self) -> list[OutBatch]:
        """Send gathered messages without lingering, and return all unanswered batches, oldest first."""
        waiting = self.unanswered()
        if waiting:
            self._hurry = True
            self.nudge()
        return waiting

    def unanswered(self) -> list[OutBatch]:
        """Return all batches with messages and without an answer, oldest first."""
        waiting = [*self._in_flight, *self._sealed]
        if self.gathering.payloads:
            waiting.append(self.gathering)
        return waiting

    # -- life ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a stream open until cancelled, or until the producer is fenced."""
        try:
            await self._run()
        except asyncio.CancelledError:
            self._die(ClosedResource("the producer is closed", topic=self._options.topic))
            raise
        except Exception as error:  # a defect of ours must reach the senders, not a log
            self._die(Internal(f"the producer's task failed: {error!r}", topic=self._options.topic))
            raise

    def task_ended(self) -> None:
        """Fail the opener if `run` was cancelled before it began, because the client was closed in that moment."""
        if not self.opened.done():
            self._die(ClosedResource("the producer is closed", topic=self._options.topic))

    async def _run(self) -> None:
        attempt = 0
        while True:
            try:
                await self.connect_and_send()
                attempt = 0
                continue  # a new session is due
            except ClusterError as error:
                failure = error
            if not self._settle(failure):
                return
            if isinstance(failure, Retryable):
                self._reroute_unbound()
            if isinstance(failure, TopicNotFound):
                await self._wait_for_message()
                attempt, self._failed_since = 0, None
                continue
            attempt = 1 if self._failed_since is None else attempt + 1
            now = time.monotonic()
            if self._failed_since is None or not self._waiting:
                self._failed_since = now  # an outage counts from the first message or opener that waits
            retry = self._options.retry
            if now - self._failed_since >= retry.max_elapsed_s:
                self._give_up(gave_up(failure, now - self._failed_since))
                if self.dead is not None:
                    return  # it never opened, and the opener has the error
                self._failed_since = now
            delay_s = retry.delay_s(attempt, draw=random.random(), retry_after_ms=failure.retry_after_ms)
            self._options.emit(ClientEventKind.RECONNECTING, self._stream.url, attempt, failure.message)
            # Without a waiting message the lane retries for ever.
            left_s = max(0.0, self._failed_since + retry.max_elapsed_s - now) if self._waiting else math.inf
            await self._options.pause(self._options.concrete_topic, failure, min(delay_s, left_s), left_s)

    def _reroute_unbound(self) -> None:
        """Give batches without a required partition to other lanes, because the owner does not answer."""
        options = self._options
        options.down(True)
        self._sealed = deque(each for each in self._sealed if each.bound or not options.reroute(each))
        gathering = self.gathering
        if gathering.payloads and not gathering.bound and options.reroute(gathering):
            self.gathering = OutBatch(options.topic, options.partition)

    def open_later(self, like: PublishLane) -> None:
        """End the wait for this partition. Until it opens, its batches have the size limit of `like`."""
        self.opened.set_result(None)
        self.limit_bytes = like.limit_bytes

    async def _wait_for_message(self) -> None:
        """Wait for a message, because only a send checks whether a deleted topic was restored."""
        while not self._waiting:
            self._sleeper = self.waker = asyncio.get_running_loop().create_future()
            await self.waker
            self._sleeper = self.waker = None

    @property
    def _waiting(self) -> bool:
        return bool(self._in_flight or self._sealed or self.gathering.payloads or not self.opened.done())

    async def connect_and_send(self) -> None:
        """Run one stream, from open to failure. Return when the session has to be renewed."""
        await self._stream.run(lambda transport: transport.publish(), opening=self._open, writing=self._write)

    async def _open(self, stream: Stream) -> None:
        options, session = self._options, self.session
        asked = options.producer
        subject, version = schema_of(asked.schema)
        if subject and session is not None:
            version = session.schema[1]  # values serialised by one version are not sent as another
        request = pb.OpenProducer(
            topic=options.concrete_topic,
            producer_name=session.producer_name if session else asked.name,
            dispatch_strategy=asked.dispatch_strategy or "",
            access_mode=asked.access_mode,
            schema_subject=subject,
            schema_version=version,
            receipts_may_wait=options.receipts_may_wait,
        )
        # Also if a new session is due, because the old one's batches have to be answered first
        resume = session is not None and (bool(self._in_flight) or not self._renew)
        if session is not None and resume:
            request.producer_id, request.producer_epoch = session.producer_id, session.epoch
            request.producer_token, request.topic_id = session.token, session.topic_id
        await stream.write(pb.PublishRequest(open=request).SerializeToString())
        response = await first_answer(
            stream,
            pb.PublishResponse.FromString,
            who="producer",
            topic=options.topic,
            concrete_topic=options.concrete_topic,
        )
        opened = response.opened
        if resume and session is not None:
            session.check_resumed(opened, options.topic)
            self._logged_below = opened.next_sequence
            oldest = self._in_flight[0].first_sequence if self._in_flight else session.next_sequence
            # A topic in memory stores no sessions
            if opened.next_sequence < oldest and opened.durability != "memory":
                self._queue_again(0)
                self._renew = True
            elif not self._in_flight:
                session.next_sequence = opened.next_sequence
        else:
            assert not self._in_flight, "the old session's batches are answered before a new one begins"
            self.session = Session.of(opened, options.topic, asked.name, before=session)
            self._renew = False
            self._logged_below = opened.next_sequence
            options.counters.sessions += 1
        self.max_message_bytes = opened.max_message_bytes
        # Each message counts at least its overhead, so this many bytes never hold more messages.
        paced = opened.max_batch_messages * MESSAGE_OVERHEAD_BYTES
        limit = options.producer.batch_bytes
        if limit == BATCH_BYTES and opened.durability == "stored":
            limit = BATCH_TARGET_BYTES
        self.limit_bytes = min(limit, paced or limit)
        options.down(False)
        if not self.opened.done():
            self.opened.set_result(None)
        elif self._failed_since is not None:
            options.counters.reconnects += 1
        if not self._in_flight:
            self._failed_since = None

    # -- writing ---------------------------------------------------------------------------------------------

    async def _write(self, stream: Stream) -> None:
        self._unwritten = len(self._in_flight)
        self._open_stream = stream
        try:
            await self._write_on(stream)
        finally:
            self._open_stream = None

    async def _write_on(self, stream: Stream) -> None:
        counters = self._options.counters
        while True:
            if self._stream.error is not None:
                raise self._stream.error
            batch = self._next()
            if batch is None:
                if self._renew and not self._in_flight:
                    return
                await self._sleep()
                continue
            batch.writes += 1
            counters.written_batches += 1
            if batch.writes > 1:
                counters.resent_batches += 1
            await stream.write(batch.wire)

    def _next(self) -> OutBatch | None:
        """Return the batch to write now, None if there is nothing to do but wait."""
        if self._unwritten:
            batch = self._in_flight[-self._unwritten]
            self._unwritten -= 1
            return batch
        if self._renew or len(self._in_flight) >= MAX_IN_FLIGHT:
            return None
        if self._sealed:
            batch = self._sealed.popleft()
        elif self.gathering.payloads and self._linger_left_s() <= 0 and not self._crowded:
            batch = self.gathering
            self.gathering = OutBatch(self._options.topic, self._options.partition)
        else:
            return None
        assert self.session is not None
        batch.encode(self.session, self._options.codec)
        self._in_flight.append(batch)
        return batch

    @property
    def _crowded(self) -> bool:
        return not self._hurry and sum(batch.count for batch in self._in_flight) >= CROWD_MESSAGES

    def _linger_left_s(self) -> float:
        if self._options.producer.linger_ms == 0 or self._hurry:
            return 0.0
        age_s = time.time() - self.gathering.publish_time_ms / 1000
        # a wall clock that was set back must not hold a message longer than `linger_ms`
        linger_s = self._options.producer.linger_ms / 1000
        return min(linger_s - age_s, linger_s)

    async def _sleep(self) -> None:
        """Wait for a message, an answer or a failure. If the pipe is full, messages do not wake it."""
        if not self.gathering.payloads and not self._sealed:
            self._hurry = False
        loop = asyncio.get_running_loop()
        self._sleeper = sleeper = loop.create_future()
        timer = None
        if len(self._in_flight) < MAX_IN_FLIGHT and not self._renew:
            if not self.gathering.payloads:
                self.waker = sleeper
            elif not self._crowded:  # else the next answer wakes it
                timer = loop.call_later(self._linger_left_s(), self.nudge)
        try:
            await sleeper
        finally:
            self._sleeper = self.waker = None
            if timer is not None:
                timer.cancel()

    # -- answers ---------------------------------------------------------------------------------------------

    def _take_answer(self, data: bytes) -> bool:
        self._answer(pb.PublishResponse.FromString(data))
        if self.waker is None or self._renew:  # else the next message wakes the lane
            self.nudge()
        return True

    def _answer(self, response: pb.PublishResponse) -> None:
        """Handle one answer.

        Raises:
            ClusterError: the stream cannot go on.
        """
        kind = response.WhichOneof("kind")
        if kind == "receipt":
            receipt = response.receipt
            batch, in_flight = self._take(receipt.first_sequence, receipt.count), self._in_flight
            if batch is None:
                raise Internal(
                    "the broker acknowledged a batch that is not in flight", sequence=receipt.first_sequence
                )
            assert self.session is not None
            counters = self._options.counters
            if receipt.base_offset == UNKNOWN_OFFSET:
                self._fail(
                    batch,
                    Internal(
                        f"{self._options.topic}: these messages were stored before, and the broker has forgotten where",
                        topic=self._options.topic, outcome="stored",
                    ),
                )  # fmt: skip
                return
            counters.acknowledged_messages += batch.count
            if receipt.duplicate:
                counters.duplicate_messages += batch.count
            if receipt.throttled_ms:
                counters.throttled(receipt.throttled_ms, receipt.throttled_by)
            # On stable storage by now: the broker writes a receipt only when the durability that it named at open is
            # reached (`fsynced`: after fdatasync of the journal).
            batch.store(
                receipt.base_offset,
                receipt.append_time_ms,
                self.session.durability,
                duplicate=receipt.duplicate,
            )
            self._failed_since = None
            self._alone = 0 if in_flight or batch.count > 1 or self.gathering.payloads else self._alone + 1
            self._options.released(batch)
        elif kind == "failure":
            error = ClusterError.from_json(response.failure.error.decode())
            if not response.failure.HasField("first_sequence"):
                raise error
            self._refused(response.failure.first_sequence, error)
        else:
            raise Internal(f"the broker sent {kind} on a producer's stream")

    def _take(self, first_sequence: int, count: int) -> OutBatch | None:
        """Remove that batch from those in flight and return it. None if it is not there, or was not written yet."""
        for i, batch in enumerate(self._in_flight):
            if i >= len(self._in_flight) - self._unwritten:
                return None
            if batch.first_sequence == first_sequence:
                if batch.count != count:
                    return None  # it stays, and fails with the others
                del self._in_flight[i]
                return batch
        return None

    def _refused(self, first_sequence: int, error: ClusterError) -> None:
        at = next((i for i, b in enumerate(self._in_flight) if b.first_sequence == first_sequence), None)
        if at is None:
            return  # returned to the queue when an earlier batch was refused, so its sequence left a gap
        if isinstance(error, (Retryable, ProducerFenced, ProducerUnknown, OutOfSequence)):
            raise error
        batch = self._in_flight[at]
        if first_sequence < self._logged_below:
            raise OutOfSequence(f"the broker refuses a batch that its log holds: {error.message}")
        stored_unknown = error.details.get("outcome") == "unknown"
        if not stored_unknown:
            self._queue_again(at + 1)
        self._in_flight.remove(batch)
        self._renew = True
        self._fail(batch, error)

    def _queue_again(self, start: int) -> None:
        """Return the batches in flight from this position on to the queue. They are certainly not stored."""
        while len(self._in_flight) > start:
            batch = self._in_flight.pop()
            batch.reopen()
            self._sealed.appendleft(batch)
        self._unwritten = 0

    # -- failure ---------------------------------------------------------------------------------------------

    def _settle(self, failure: ClusterError) -> bool:
        """Handle a lost stream. Return False if the lane is over."""
        self._options.emit(ClientEventKind.DISCONNECTED, self._stream.url, 0, failure.message)
        if isinstance(failure, Retryable):
            return True
        if self.session is None:
            self._die(failure)
            return False
        self._fail_in_flight(failure)
        if isinstance(failure, TopicNotFound):  # an undo may bring it back
            self._fail_queue(failure)
        if isinstance(failure, (ProducerUnknown, OutOfSequence, TopicNotFound)):
            return True
        self._die(failure)
        return False

    def _give_up(self, failure: ClusterError) -> None:
        if not self.opened.done():
            self._die(failure)
            return
        self._fail_in_flight(failure)
        self._fail_queue(failure)

    def _fail_in_flight(self, error: ClusterError) -> None:
        if self._in_flight:
            self._renew = True
        while self._in_flight:
            batch = self._in_flight.popleft()
            self._fail(batch, copy_of(error, outcome="unknown"))
        self._unwritten = 0
        if not isinstance(error, Retryable):
            self._renew = True

    def _fail_queue(self, error: ClusterError) -> None:
        self.seal()
        while self._sealed:
            self._fail(self._sealed.popleft(), copy_of(error, outcome="not_stored"))

    def _fail(self, batch: OutBatch, error: ClusterError) -> None:
        self._options.counters.failed_messages += len(batch)
        batch.fail(error)
        self._options.released(batch)

    def _die(self, error: ClusterError) -> None:
        self.dead = error
        self._options.died(error)
        if not self.opened.done():
            self.opened.set_exception(copy_of(error))
            self.opened.exception()  # seen: the opener may have been cancelled
        self._fail_in_flight(error)
        self._fail_queue(error)
