"""`danube.stream.Stream/Publish`: one producer on one topic."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from pydanube_core.batch import BatchColumn, ProducerPart
from pydanube_core.batch.layout import UNKNOWN_OFFSET
from pydanube_core.batch.validate import validate_batch
from pydanube_core.errors import (
    ClusterError,
    Internal,
    InvalidArgument,
    NameReused,
    Overloaded,
    ProducerFenced,
    RateLimited,
)
from pydanube_core.frames import PUBLISH_BATCH_FIELD, read_bytes_field
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.links import ids_before
from pydanube_core.names import TopicName, check_client_name

from pydanube_broker.outcome import OutcomeCallback
from pydanube_broker.rpc.caller import ClientSeen
from pydanube_broker.rpc.hot import StreamReply
from pydanube_broker.schema.guard import SchemaGuard
from pydanube_broker.serving.data_plane import DataPlane
from pydanube_broker.serving.rights_watch import Right
from pydanube_broker.serving.topic_access import Action
from pydanube_broker.tenants.pace import Pace
from pydanube_broker.topics.gate import AccessMode, Published
from pydanube_broker.topics.producers import Appended, ProducerSession
from pydanube_broker.topics.topic import ProducerLeft, Topic, now_ms

log = logging.getLogger("pydanube.publish")

LONGEST_HOLD_MS: Final = 10_000  # a batch that the publish rate would delay longer is refused, as retryable
#: maximum uncommitted bytes per connection. Beyond it, the broker stops reading
WAITING_BYTES: Final = 16 << 20


class PublishStream:
    """One stream: `open`, then batches. Each is answered when it is committed."""

    __slots__ = (
        "_answers_unread",
        "_checking",
        "_delayed",
        "_gone",
        "_half_closed",
        "_held",
        "_left_cleanly",
        "_open",
        "_pace",
        "_plane",
        "_receipts_may_wait",
        "_reply",
        "_session",
        "_topic",
        "_waiting",
        "_waiting_bytes",
        "closed",
        "connected_at_ms",
        "published",
    )  # fmt: skip

    def __init__(self, reply: StreamReply, plane: DataPlane, gone: Callable[[PublishStream], None]) -> None:
        self._reply = reply
        self._plane = plane
        self._gone = gone
        self._topic: Topic | None = None
        self._session: ProducerSession | None = None
        self._pace = Pace()
        self._open = False
        self._receipts_may_wait = False  # receipts may wait
        self._waiting = 0
        self._waiting_bytes = 0
        self._delayed: memoryview | None = None
        # The delayed batch waits for the topic's publish rate, and was counted as rejected
        self._held = False
        self._checking = False  # payloads of a batch are being checked
        self._half_closed = False
        self._left_cleanly = False  # the stream was ended, rather than its connection broken
        self._answers_unread = False  # reading is paused until the client reads its answers
        self.closed = False
        self.connected_at_ms = now_ms()
        self.published = Published()

    @property
    def right(self) -> Right | None:
        """Return the permission under which the stream was opened. None before that."""
        return None if self._topic is None or self.closed else Right(self._reply, Action.PRODUCE, self._topic)

    def client(self) -> ClientSeen:
        return ClientSeen.of(self._reply)

    # -- from the client -------------------------------------------------------------------------------------

    def on_message(self, message: bytes) -> None:
        batch = read_bytes_field(PUBLISH_BATCH_FIELD, message)
        if batch is not None:
            self._publish(batch)
            return
        request = pb.PublishRequest.FromString(message)
        if request.WhichOneof("kind") != "open" or self._open:
            raise InvalidArgument("a publish stream begins with one open message", field="kind", value="open")
        self._open, self._receipts_may_wait = True, request.open.receipts_may_wait
        self._reply.pause_reading()
        self._plane.spawn(self._open_producer(request.open))

    async def _open_producer(self, request: pb.OpenProducer) -> None:
        try:
            name = TopicName.parse(request.topic)
            if request.producer_name:
                check_client_name(request.producer_name, field="producer_name")
            self._plane.health.check_publish()
            mode = AccessMode.parse(request.access_mode)
            access = self._plane.access
            await access.load_schema(request.schema_subject)
            topic = await access.topic_to_write(
                self._reply,
                name,
                strategy=request.dispatch_strategy,
                create=request.create,
                check_schema=lambda: access.check_schema(request.schema_subject, request.schema_version),
                schema_subject=request.schema_subject,
            )
            schema = await access.producer_schema(self._reply, topic, request)
            if self.closed:
                return
            if request.producer_id:
                # A session that was opened at the source of a mirror goes on here after the fail-over.
                if request.topic_id != topic.topic_id and request.topic_id not in ids_before(
                    topic.options.settings.options, topic.options.partition
                ):
                    raise NameReused(
                        f"topic {topic.name} was deleted and made again since producer {request.producer_id} opened "
                        "it: messages in flight may be stored in the former one. Open a new producer",
                        field="topic",
                        value=str(topic.name),
                        topic_id=str(request.topic_id),
                        other_topic_id=str(topic.topic_id),
                        outcome="unknown",
                    )
                session = topic.resume_producer(
                    request.producer_id, request.producer_epoch, request.producer_token
                )
                self._opened(topic, session, mode, schema, topic_id=request.topic_id)
            else:
                own = request.producer_name or f"producer-{topic.state.producers.next_id}"
                topic.gate.check_producer(own, mode, topic.producers_connected)
                opening = await topic.open_producer(own, exclusive=mode is not AccessMode.SHARED)
                taken = False
                try:
                    if self.closed:
                        return
                    topic.gate.check_producer(own, mode, topic.producers_connected)
                    session = topic.state.producers.open(opening)
                    taken = True
                finally:
                    if not taken:
                        topic.give_up_producer(opening)
                self._opened(topic, session, mode, schema)
        except ClusterError as error:
            self._not_opened(request.topic, error)
        except Exception:
            log.exception("open_producer_failed")
            self._fail(Internal("the broker could not open the producer. See its log"))

    def _not_opened(self, name: str, error: ClusterError) -> None:
        """Count the refusal of a producer like that of a batch, but only for existing topics."""
        with contextlib.suppress(ClusterError):
            topic = self._plane.ownership.topics.get(TopicName.parse(name))
            if topic is not None:
                self._plane.rejected(topic.name, error, 0)
        if not self._reply.goes_elsewhere(error):
            self._fail(error)

    def _opened(
        self,
        topic: Topic,
        session: ProducerSession,
        mode: AccessMode,
        schema: tuple[int, int],
        *,
        topic_id: int | None = None,
    ) -> None:
        """Answer that the session is open. `topic_id`: the id that the client uses for the topic."""
        if topic.closed is not None:
            raise topic.closed
        share = self._plane.access.share(self._reply, topic)
        share.check_producer()
        topic.gate.attach(self, session.name, mode, topic.producers_connected)
        share.producers(1)
        self._topic, self._session, self._pace = topic, session, Pace(share, topic.name, self._read_on)
        session.connections += 1
        topic.producer_attached()
        self._reply.send(
            pb.PublishResponse(
                opened=pb.ProducerOpened(
                    producer_id=session.producer_id,
                    producer_epoch=session.epoch,
                    next_sequence=session.next_sequence,
                    producer_name=session.name,
                    producer_token=session.token,
                    topic_id=topic.topic_id if topic_id is None else topic_id,
                    durability=topic.durability,
                    max_message_bytes=topic.max_message_bytes,
                    max_batch_messages=topic.gate.batch_messages,
                    schema_id=schema[0],
                    schema_version=schema[1],
                )
            ).SerializeToString()
        )
        self._reply.resume_reading()

    def _publish(self, data: memoryview) -> None:
        """Validate a batch, assign offsets, and answer once they are committed. Does not await."""
        topic = self._topic
        if topic is None:
            raise InvalidArgument(
                "a publish stream begins with its open message", field="kind", value="batch"
            )
        sequence = count = 0
        try:
            part = validate_batch(data, max_message_bytes=topic.max_message_bytes)
            sequence, count = part.first_sequence, part.count
            self._check_session(part)
            self._plane.health.check_publish()
            schema = topic.schema
            if schema is not None and not _is_retry(topic, part) and not schema.check_batch(data, part):
                # To keep the order, reading is paused until the payloads are checked.
                self._reply.pause_reading()
                self._checking = True
                self._plane.spawn(self._check_payloads(schema, topic, data, part))
                return
        except ClusterError as error:
            self._rejected(error, topic, data, sequence, count)
            return
        self._append(topic, data, part)

    async def _check_payloads(
        self, schema: SchemaGuard, topic: Topic, data: memoryview, part: ProducerPart
    ) -> None:
        """Check payloads without blocking the loop, then continue where `_publish` stopped."""
        refused: ClusterError | None = None
        try:
            await schema.check_payloads(data, part)
            self._check_session(part)
            self._plane.health.check_publish()
        except ClusterError as error:
            refused = error
        except Exception:
            log.exception("schema_check_failed", extra={"topic": topic.name})
            refused = Internal("the broker failed to check the batch against its schema. See its log")
        self._checking = False
        if self.closed:
            return
        self._read_on()
        if refused is not None:
            self._rejected(refused, topic, data, part.first_sequence, part.count)
        else:
            self._append(topic, data, part)
        if self._half_closed:
            self.on_half_close()

    def _append(self, topic: Topic, data: memoryview, part: ProducerPart) -> None:
        """Assign offsets to a valid batch, and answer once it is committed."""
        try:
            self._pace.check_publish()
            appended, duplicate = topic.append(data, part)
        except Overloaded:
            # The next segment is still in preparation. Reading from this client is paused until it is ready.
            self._reply.pause_reading()
            self._delayed = data
            topic.when_room(self._publish_delayed)
            return
        except RateLimited as error:
            wait_ms = error.retry_after_ms or 0
            if wait_ms > LONGEST_HOLD_MS:
                self._rejected(error, topic, data, part.first_sequence, part.count)
                return
            # Held here with reading paused, instead of refused and retried: the rate is even and the order is kept.
            if not self._held:
                self._plane.rejected(topic.name, error, part.count)
            self._held = True
            self._reply.pause_reading()
            self._delayed = data
            asyncio.get_running_loop().call_later(wait_ms / 1000, self._publish_delayed)
            return
        except ClusterError as error:
            self._rejected(error, topic, data, part.first_sequence, part.count)
            return
        self._held = False
        size = len(data)
        self._waiting += 1
        self._waiting_bytes += size
        if self._waiting_bytes > WAITING_BYTES:
            self._reply.pause_reading()
        if not duplicate:
            self._pace.count_published(part.count, size)
            self.published.count(part.count, size)
            if self._pace.slowed:
                self._reply.pause_reading()
        # A duplicate without an offset was appended earlier, and may not be durable yet.
        end = (
            topic.state.next_offset if appended.base_offset is None else appended.base_offset + appended.count
        )
        self._when_committed(topic, end, lambda error: self._answer(appended, duplicate, size, error))

    def _when_committed(self, topic: Topic, end: int, done: OutcomeCallback) -> None:
        topic.when_committed(end, partial(self._later, done) if self._receipts_may_wait else done)

    @staticmethod
    def _later(done: OutcomeCallback, error: ClusterError | None) -> None:
        """Call `done` in the next turn of the loop, so that the message is delivered before its receipt is sent."""
        asyncio.get_running_loop().call_soon(done, error)

    def _rejected(
        self, error: ClusterError, topic: Topic, data: memoryview, sequence: int, count: int
    ) -> None:
        self._plane.rejected(topic.name, error, max(1, count))
        self.refuse(error, sequence or _peek_sequence(data), count)

    def _publish_delayed(self) -> None:
        data, self._delayed = self._delayed, None
        if data is not None and not self.closed:
            self._read_on()
            self._publish(data)
            if self._half_closed:
                self.on_half_close()

    def _check_session(self, part: ProducerPart) -> None:
        """Check that the batch belongs to the stream's session, and has the columns of one producer."""
        session = self._session
        if session is None:
            raise ProducerFenced(
                "this producer's right to write has ended", field="producer_id", value=str(part.producer_id)
            )
        if part.producer_id != session.producer_id:
            raise InvalidArgument(
                f"the batch is producer {part.producer_id}'s, the stream is producer {session.producer_id}'s",
                field="producer_id",
                value=str(part.producer_id),
            )
        if part.columns & (BatchColumn.SEQUENCE | BatchColumn.PRODUCER_INDEX):
            raise InvalidArgument(
                "a producer's batch has one producer and consecutive sequences: leave those columns out",
                field="columns",
                value=part.columns,
            )

    def _answer(self, appended: Appended, duplicate: bool, size: int, error: ClusterError | None) -> None:
        self._waiting -= 1
        self._waiting_bytes -= size
        if self.closed:
            return
        if error is not None:
            if self._topic is not None:
                self._plane.rejected(self._topic.name, error, max(1, appended.count))
            self.refuse(error, appended.first_sequence, appended.count)
            return
        # On stable storage by now: the batch and everything before it in its topic (`Topic.advance`).
        response = pb.PublishResponse()
        receipt = response.receipt  # set field by field: half the time of two constructors with keywords
        receipt.first_sequence = appended.first_sequence
        receipt.count = appended.count
        receipt.base_offset = UNKNOWN_OFFSET if appended.base_offset is None else appended.base_offset
        receipt.append_time_ms = appended.append_time_ms
        receipt.duplicate = duplicate
        waited = self._pace.unreported
        if waited is not None:
            receipt.throttled_ms, receipt.throttled_by = waited
            self._pace.unreported = None
        send = self._reply.send_along if self._receipts_may_wait else self._reply.send
        send(response.SerializeToString())
        self._stop_reading_while_answers_wait()
        self._read_on()

    def _read_on(self) -> None:
        if (
            self._waiting_bytes <= WAITING_BYTES // 2
            and self._delayed is None
            and not self._checking
            and not self._answers_unread
            and not self._pace.slowed
        ):
            self._reply.resume_reading()

    def _stop_reading_while_answers_wait(self) -> None:
        if not self._reply.writable:
            self._answers_unread = True
            self._reply.pause_reading()

    def refuse(self, error: ClusterError, sequence: int, count: int) -> None:
        self._reply.send(
            pb.PublishResponse(
                failure=pb.Failure(error=error.to_json().encode(), first_sequence=sequence, count=count)
            ).SerializeToString()
        )
        self._stop_reading_while_answers_wait()

    def _fail(self, error: ClusterError) -> None:
        """End the whole stream with an error."""
        if not self.closed:
            self._reply.send(
                pb.PublishResponse(failure=pb.Failure(error=error.to_json().encode())).SerializeToString()
            )
            self._reply.end(error)

    def end(self, error: ClusterError) -> None:
        """End the stream from the broker's side: draining, topic deleted, or another producer took over."""
        self._left_cleanly = True
        self._release()
        self._fail(error)

    # -- the rest of its life --------------------------------------------------------------------------------

    def on_credit(self) -> None:
        """Resume reading, because the client reads its answers again."""
        if self._answers_unread:
            self._answers_unread = False
            self._read_on()

    def on_half_close(self) -> None:
        self._left_cleanly = True
        if self._checking or self._delayed is not None:
            self._half_closed = True
        elif self._waiting and self._topic is not None:
            self._when_committed(self._topic, self._topic.state.next_offset, lambda error: self._reply.end())
        else:
            self._reply.end()

    def on_close(self) -> None:
        self.closed = True
        self._gone(self)
        self._release()
        self._pace = Pace()  # the old one refers to this stream, and would keep it in memory

    def _release(self) -> None:
        """Release the producer's session. This connection writes no more."""
        if self._session is not None and self._topic is not None:
            self._session.connections -= 1
            self._topic.producer_detached()
            self._pace.producers(-1)
            self._topic.producer_left = ProducerLeft(
                at_ms=now_ms(), name=self._session.name, abrupt=not self._left_cleanly
            )
            self._topic.gate.detach(self)
            self._session = None


def _is_retry(topic: Topic, part: ProducerPart) -> bool:
    """Return whether the log has the batch already. It is then answered as before, even if the schema has changed."""
    known = topic.state.producers.check(
        part.producer_id, part.producer_epoch, part.first_sequence, part.count
    )
    return known is not None


def _peek_sequence(data: memoryview) -> int:
    """Return the sequence in a refused batch, so that its producer can identify the batch."""
    return int.from_bytes(data[40:48], "little") if len(data) >= 72 else 0
