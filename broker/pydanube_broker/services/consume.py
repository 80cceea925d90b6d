"""`danube.stream.Stream/Consume`: one consumer of a subscription, or one plain reader, on one topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from pydanube_core.errors import ClusterError, Internal, InvalidArgument, NoOwner, NotOwner
from pydanube_core.facts import MovedCursor
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName, check_client_name, check_subscription
from pydanube_core.positions import Position

from pydanube_broker.cluster.records import DispatchStrategy
from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.delivery.frame_builder import FrameBuilder
from pydanube_broker.delivery.live_reader import LiveReader
from pydanube_broker.delivery.reader_pump import ReaderPump
from pydanube_broker.rpc.caller import ClientSeen
from pydanube_broker.rpc.hot import StreamReply
from pydanube_broker.services.answer_ranges import check_number, masks_of, pairs_of
from pydanube_broker.services.left_out import check_left_out
from pydanube_broker.serving.data_plane import DataPlane
from pydanube_broker.serving.rights_watch import Right
from pydanube_broker.serving.topic_access import Action
from pydanube_broker.subscription.cursor import encode_snapshot
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.routes.key_filters import check_filter_sizes, check_key_filters
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_broker.tenants.pace import Pace
from pydanube_broker.topics.memory_topic import MemoryTopic
from pydanube_broker.topics.topic import Topic, now_ms

log = logging.getLogger("pydanube.consume")

HEAD: Final = "head"
ANSWERS: Final = frozenset(("ack", "nack", "terminate"))
WITH_RANGES: Final = frozenset(("ack", "nack", "terminate", "extend", "given_back"))
# Answers that are sent again to the topic's next owner, unless carried out here
SENT_AGAIN: Final = frozenset(("ack", "nack", "terminate", "given_back"))
OF_READERS: Final = frozenset(("stop",))  # fields of OpenConsumer
# Without resume_session: readers of older SDKs send it when their topic has moved
OF_CONSUMERS: Final = frozenset(("type", "key_filters", "ack_timeout_ms", "reports_taken", "max_extend_ms"))
RANGES_AT_ONCE: Final = 2_048  # ranges of an answer per turn of the loop: some milliseconds
MAX_REQUEST_BYTES: Final = 2 << 20  # largest request: one with the maximum number of ranges
# Answers that the client has not read. At this number the broker stops reading requests
MAX_UNREAD_ANSWERS: Final = 1_000


class ConsumeStream:
    """One stream: `open`, then credit and answers in one direction, deliveries in the other."""

    def __init__(self, reply: StreamReply, plane: DataPlane, gone: Callable[[ConsumeStream], None]) -> None:
        self.consumer_id = 0  # 0 until the stream has a topic
        self._name = ""
        self.connected_at_ms = now_ms()
        self.heard_at_ms: int | None = self.connected_at_ms
        self.answered_at_ms: int | None = None
        self.left_cleanly = False
        self._reply = reply
        self._plane = plane
        self._gone = gone
        self._opening = False
        self._early: list[pb.ConsumeRequest] = []
        self._topic: Topic | None = None
        self._pump: AnyPump | None = None
        self._reader: ReaderPump | LiveReader | None = None
        self._opened = False
        self._pace = Pace()
        self._unread = 0
        self._carried_out = 0  # answers of the client that were applied
        self.closed = False

    @property
    def right(self) -> Right | None:
        """Return the permission under which the stream was opened. None before that."""
        return None if self._topic is None or self.closed else Right(self._reply, Action.CONSUME, self._topic)

    # -- from the client -------------------------------------------------------------------------------------

    def on_message(self, message: bytes) -> None:
        if len(message) > MAX_REQUEST_BYTES:  # before parsing, which takes twenty times the memory
            raise InvalidArgument(
                f"a request of {len(message)} bytes, at most {MAX_REQUEST_BYTES} are taken: send ranges in several",
                field="request",
                value=len(message),
                limit=MAX_REQUEST_BYTES,
            )
        request = pb.ConsumeRequest.FromString(message)
        kind = request.WhichOneof("kind")
        self.heard_at_ms = now_ms()
        if kind in ANSWERS:
            self.answered_at_ms = self.heard_at_ms
        if kind == "open":
            if self._opening:
                raise InvalidArgument("a consume stream is opened once", field="kind", value="open")
            self._opening = True
            self._reply.pause_reading()  # so that further requests wait at the client, not here
            budget = self._plane.budget
            self._plane.spawn(budget.within(self._open(request.open), budget.account(self._reply)))
        elif not self._opening:
            raise InvalidArgument(
                "a consume stream begins with its open message", field="kind", value=str(kind)
            )
        elif not self._opened:
            self._early.append(request)
        else:
            self._handle(request)

    def _handle(self, request: pb.ConsumeRequest) -> None:
        try:
            if self._pump is not None:
                kind = request.WhichOneof("kind")
                if kind in WITH_RANGES and len(getattr(request, kind).ranges) > 2 * RANGES_AT_ONCE:
                    check_number(getattr(request, kind).ranges)
                    self._reply.pause_reading()  # later requests are handled after this one
                    self._plane.spawn(self._answer_in_slices(self._pump, request, getattr(request, kind)))
                else:
                    self._answer(self._pump, request)
                    self._carried_out += kind in SENT_AGAIN
            elif self._reader is not None:
                self._reader_request(self._reader, request)
        except ClusterError as error:
            self._fail(error)

    async def _answer_in_slices(self, pump: AnyPump, request: pb.ConsumeRequest, answer: Any) -> None:
        """Call `_answer` for many ranges, in slices. `answer` is the ack, nack or other field that has them."""
        ranges, confirm = list(answer.ranges), getattr(answer, "confirm", 0)
        try:
            for at in range(0, len(ranges), 2 * RANGES_AT_ONCE):
                if self.closed:
                    return
                del answer.ranges[:]
                answer.ranges.extend(ranges[at : at + 2 * RANGES_AT_ONCE])
                if confirm:
                    answer.confirm = confirm if at + 2 * RANGES_AT_ONCE >= len(ranges) else 0
                self._answer(pump, request)
                await asyncio.sleep(0)
            self._carried_out += request.WhichOneof("kind") in SENT_AGAIN
        except ClusterError as error:
            self._fail(error)
        except Exception:
            log.exception("answer_failed")
            self._fail(Internal("the broker could not take the consumer's answer. See its log"))
        finally:
            if not self.closed and self._unread < MAX_UNREAD_ANSWERS:
                self._reply.resume_reading()

    def _answer(self, pump: AnyPump, request: pb.ConsumeRequest) -> None:
        match request.WhichOneof("kind"):
            case "ack":
                ack = request.ack
                if ack.ranges or ack.masks:
                    pump.ack(self.consumer_id, ack.session, pairs_of(ack.ranges), masks_of(ack.masks))
                if ack.confirm:
                    number = ack.confirm
                    pump.confirm(lambda error: self.confirmed(number, error))
            case "credit":
                pump.grant(self.consumer_id, request.credit.messages, request.credit.bytes)
            case "nack":
                nack = request.nack
                if len(nack.returned) > 2 * RANGES_AT_ONCE:
                    raise InvalidArgument(
                        f"a nack returns at most {RANGES_AT_ONCE} ranges",
                        field="returned",
                        value=len(nack.returned) // 2,
                    )
                pump.nack(self.consumer_id, nack.session, pairs_of(nack.ranges), nack.delay_ms, nack.reason)
                if nack.returned:  # in the same turn, so that nothing of these keys is sent in between
                    pump.given_back(self.consumer_id, nack.session, pairs_of(nack.returned))
                    del nack.returned[:]  # of many ranges, the next slice returns nothing more
            case "extend":
                pump.extend(
                    self.consumer_id,
                    request.extend.session,
                    pairs_of(request.extend.ranges),
                    request.extend.ms,
                )
            case "terminate":
                terminate = request.terminate
                pump.terminate(
                    self.consumer_id, terminate.session, pairs_of(terminate.ranges), terminate.reason
                )
            case "seek":
                self._reply.pause_reading()  # later requests are handled after the seek
                self._plane.spawn(self._seek(request.seek))
            case "taken":
                taken = request.taken
                pump.taken(self.consumer_id, taken.session, taken.messages, busy=taken.busy)
            case "given_back":
                back = request.given_back
                pump.given_back(self.consumer_id, back.session, pairs_of(back.ranges))
            case kind:
                raise InvalidArgument(f"a consumer does not send {kind}", field="kind", value=str(kind))

    def _reader_request(self, reader: ReaderPump | LiveReader, request: pb.ConsumeRequest) -> None:
        match request.WhichOneof("kind"):
            case "credit":
                reader.grant(request.credit.messages, request.credit.bytes)
            case "seek":
                self._reply.pause_reading()  # later requests are handled after the seek
                self._plane.spawn(self._seek(request.seek))
            case kind:
                raise InvalidArgument(
                    f"a plain reader has no subscription and does not send {kind}",
                    field="kind",
                    value=str(kind),
                )

    async def _seek(self, seek: pb.Seek) -> None:
        """Move the cursor, or answer with an error. A refusal changes nothing, and the stream stays open."""
        topic, number = self._topic, seek.request
        assert topic is not None
        try:
            position = Position.parse(seek.position, now_ms=now_ms())
            await topic.prepare(position)
            offset = topic.resolve(position)
            if seek.check or self.closed:
                self.confirmed(number, None)
            elif self._pump is not None:
                before, image = self._pump.floor, encode_snapshot(self._pump.cursor)
                self._pump.seek(offset, by=self._name)
                self._plane.access.note(
                    self._reply,
                    "subscriptions.seek",
                    topic.options.topic,
                    subscription=self._pump.name,
                    client=self._name,
                    before={"next_unacked": before},
                    after={"next_unacked": offset},
                    cursor=MovedCursor(
                        log=topic.name,
                        subscription_id=str(self._pump.subscription_id),
                        image=image,
                        start_offset=topic.start_offset,
                    ),
                )
                self._pump.confirm(lambda error: self.confirmed(number, error))
            elif self._reader is not None:
                session = next(topic.sessions)
                self._reader.seek(offset, session)
                self.session_changed(session, offset, "seek")
                self.confirmed(number, None)
        except ClusterError as error:
            self.confirmed(number, error)
        except Exception:
            log.exception("seek_failed", extra={"topic": topic.name})
            self.confirmed(number, Internal("the broker could not move the cursor. See its log"))
        finally:
            if not self.closed and self._unread < MAX_UNREAD_ANSWERS:
                self._reply.resume_reading()

    # -- opening ---------------------------------------------------------------------------------------------

    async def _open(self, request: pb.OpenConsumer) -> None:
        try:
            name = TopicName.parse(request.topic)
            start = Position.parse(request.start or "earliest", now_ms=now_ms(), field="start")
            self._plane.health.check_consume()
            if request.consumer_name:
                check_client_name(request.consumer_name, field="consumer_name")
            if request.subscription:
                check_subscription(request.subscription)
                await self._open_consumer(name, start, request)
            else:
                await self._open_reader(name, start, request)
        except ClusterError as error:
            if not self._reply.goes_elsewhere(error):
                self._fail(error)
            return
        except Exception:
            log.exception("open_consumer_failed")
            self._fail(Internal("the broker could not open the consumer. See its log"))
            return
        self._reply.resume_reading()
        early, self._early = self._early, []
        for message in early:
            if not self.closed:
                self._handle(message)

    async def _open_consumer(self, name: TopicName, start: Position, request: pb.OpenConsumer) -> None:
        check_left_out(request, OF_READERS, "is for readers, which have no subscription")
        if request.type:  # before a subscription is created that the consumer cannot use
            check_key_filters(request.type, request.key_filters)
        check_filter_sizes(request.key_filters)
        terms = ConsumerTerms(
            credit_messages=request.credit_messages,
            credit_bytes=request.credit_bytes,
            ack_timeout_ms=request.ack_timeout_ms or None,
            key_filters=tuple(request.key_filters),
            reports=request.reports_taken,
            max_extend_ms=request.max_extend_ms,
            resumes=request.resume_session,
        )
        topic = await self._plane.access.topic_here(self._reply, Action.CONSUME, name)
        pump = await self._plane.access.subscription(
            self._reply,
            topic,
            request.subscription,
            type=request.type,
            start=start,
            start_given=request.start_given,
        )
        if self.closed:
            return
        self.consumer_id = topic.connection_id()
        consumer_name = request.consumer_name or f"consumer-{self.consumer_id}"
        session = pump.join(self, consumer_name, terms)
        self._name = consumer_name
        self._pace = Pace(self._plane.access.share(self._reply, topic), topic.name, self._flowing)
        self._topic, self._pump, self._opened = topic, pump, True
        self._reply.send(
            pb.ConsumeResponse(
                opened=pb.ConsumerOpened(
                    consumer_id=self.consumer_id,
                    session=session,
                    consumer_name=consumer_name,
                    start_offset=pump.floor,
                    head_offset=topic.commit,
                    active=pump.is_active(self.consumer_id),
                    topic_id=topic.topic_id,
                    type=pump.type.value,
                    ack_timeout_ms=pump.ack_timeout_ms(terms.ack_timeout_ms),
                    takes_masks=True,
                    takes_returned=pump.type is SubscriptionType.KEY_SHARED
                    and topic.options.dispatch_strategy is DispatchStrategy.RELIABLE,
                    resumed=pump.resumed(self.consumer_id),
                )
            ).SerializeToString()
        )

    async def _open_reader(self, name: TopicName, start: Position, request: pb.OpenConsumer) -> None:
        check_left_out(request, OF_CONSUMERS, "is for a subscription's consumers, and subscription is empty")
        topic = await self._plane.access.topic_here(self._reply, Action.CONSUME, name)
        topic.gate.check_consumer(topic.subscriptions.values(), topic.readers, 0)
        stop: int | None = None
        if request.stop == HEAD:
            stop = topic.commit
        elif request.stop:
            until = Position.parse(request.stop, now_ms=now_ms(), field="stop")
            await topic.prepare(until)
            stop = topic.resolve(until)
        await topic.prepare(start)
        position = topic.resolve(start)
        if self.closed:
            return
        self.consumer_id, session = topic.connection_id(), next(topic.sessions)
        engine = self._plane.engine
        self._reply.send(
            pb.ConsumeResponse(
                opened=pb.ConsumerOpened(
                    consumer_id=self.consumer_id,
                    session=session,
                    consumer_name=request.consumer_name or f"reader-{self.consumer_id}",
                    start_offset=position,
                    head_offset=topic.commit,
                    active=True,
                    topic_id=topic.topic_id,
                    type="reader",
                    stop_offset=stop or 0,
                    # A reader of an older SDK gives up the messages that it has received if this is not so
                    resumed=bool(request.resume_session),
                )
            ).SerializeToString()
        )
        self._pace = Pace(self._plane.access.share(self._reply, topic), topic.name, self._flowing)
        self._topic, self._opened = topic, True
        if isinstance(topic, MemoryTopic):
            if stop is not None:
                self._ended(topic.commit)  # later messages are after any stop
                return
            self._reader = LiveReader(topic, self, session=session, turns=engine.turns)
            self._reader.grant(request.credit_messages, request.credit_bytes)
            return
        self._reader = ReaderPump(
            topic,
            self,
            position=position,
            stop=stop,
            session=session,
            turns=engine.turns,
            worker_threads=engine.worker_threads,
            ended=self._ended,
            failed=self._fail,
        )
        self._reader.grant(request.credit_messages, request.credit_bytes)

    # -- to the client (ConsumerLink) ------------------------------------------------------------------------

    def client(self) -> ClientSeen:
        return ClientSeen.of(self._reply)

    @property
    def writable(self) -> bool:
        return self._reply.writable and not self._pace.slowed

    def frame(self, session: int) -> FrameBuilder:
        return FrameBuilder(session)

    def deliver(self, frame: FrameBuilder) -> None:
        self._reply.send(frame.encode())
        self._pace.count_delivered(frame.messages, frame.stored_bytes)

    def session_changed(self, session: int, offset: int, reason: str) -> None:
        if self._opened:
            self._count_unread()
            active = self._pump is None or self._pump.is_active(self.consumer_id)
            self._reply.send(
                pb.ConsumeResponse(
                    session=pb.SessionChanged(session=session, offset=offset, reason=reason, active=active)
                ).SerializeToString()
            )

    def recall(self, session: int, ranges: Sequence[tuple[int, int]]) -> None:
        flat = [edge for pair in ranges for edge in pair]
        self._reply.send(
            pb.ConsumeResponse(recall=pb.Recall(session=session, ranges=flat)).SerializeToString()
        )

    def activated(self) -> None:
        if self._opened and self._pump is not None:
            session, offset = self._pump.session_of(self.consumer_id), self._pump.floor
            self._reply.send(
                pb.ConsumeResponse(
                    session=pb.SessionChanged(session=session, offset=offset, reason="activated", active=True)
                ).SerializeToString()
            )

    def end(self, error: ClusterError) -> None:
        self._fail(error)

    def _count_unread(self) -> None:
        """Count an answer if the client has not read the earlier ones yet."""
        if self._reply.writable:
            return
        self._unread += 1
        if self._unread == MAX_UNREAD_ANSWERS:
            self._reply.pause_reading()

    def confirmed(self, number: int, error: ClusterError | None) -> None:
        if not number:
            if error is not None:  # without a confirm number, only the end of the stream can report the error
                self._fail(error)
            return
        if not self.closed:
            self._count_unread()
            self._reply.send(
                pb.ConsumeResponse(
                    confirmed=pb.Confirmed(
                        confirm=number, error=b"" if error is None else error.to_json().encode()
                    )
                ).SerializeToString()
            )

    def _ended(self, offset: int) -> None:
        self._reply.send(pb.ConsumeResponse(end=pb.End(next_offset=offset)).SerializeToString())

    def _fail(self, error: ClusterError) -> None:
        self.left_cleanly = True  # the broker ends it, so the client did not leave abruptly
        if not self.closed:
            # The topic's next owner continues the session, so the client sends it the other answers.
            elsewhere = self._opened and isinstance(error, (NoOwner, NotOwner))
            carried_out = self._carried_out if elsewhere else None
            self._reply.send(
                pb.ConsumeResponse(
                    failure=pb.Failure(error=error.to_json().encode(), carried_out=carried_out)
                ).SerializeToString()
            )
            self._reply.end(error)

    # -- the rest of its life --------------------------------------------------------------------------------

    def on_credit(self) -> None:
        if self._unread >= MAX_UNREAD_ANSWERS:
            self._reply.resume_reading()
        self._unread = 0
        self._flowing()

    def _flowing(self) -> None:
        """Resume sending, because the stream is writable again."""
        if self._pump is not None:
            self._pump.flowing(self.consumer_id)
        elif self._reader is not None:
            self._reader.wake()

    def on_half_close(self) -> None:
        self.left_cleanly = True
        self._reply.end()

    def on_close(self) -> None:
        self.closed = True
        self._gone(self)
        if self._pump is not None:
            self._pump.leave(self.consumer_id)
        if self._reader is not None:
            self._reader.close()
            self._reader = None  # a cycle would keep both in memory until a full collection
        self._pace = Pace()  # the old one refers to this stream, and would keep it in memory
