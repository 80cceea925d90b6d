"""`danube.stream.Stream/Copy` and `Mirror`: both ends.

Brokers that prove that they are of one cluster copy topics by `Copy`, brokers of another cluster by `Mirror`, as callers
with the right `data:mirror`. `CopyStream` serves copies of this broker's topics, and `LinkWire` is such a stream to
another broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError
from pydanube_core.errors import ClusterError, CorruptObject, InvalidArgument, Unavailable
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.grpc_wire import Headers, MessageReader, WireError, decode_metadata, frame
from pydanube_core.services import STREAM

from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.copying.messages import (
    MAX_ANSWER_BYTES,
    MOST_CURSORS,
    Answer,
    Chunk,
    End,
    Failure,
    Grant,
    Leave,
    Marks,
    Request,
    Round,
    SessionMark,
    Start,
)
from pydanube_broker.copying.source import Source
from pydanube_broker.copying.target import Answers
from pydanube_broker.moves.moves import Moves
from pydanube_broker.relay.link import NO_STATUS, BrokerCall, Link, Links
from pydanube_broker.relay.membership import not_a_member
from pydanube_broker.relay.relay import Relay
from pydanube_broker.relay.relayed_call import error_in
from pydanube_broker.rpc.hot import StreamReply
from pydanube_broker.rpc.routing import RELAYED

if TYPE_CHECKING:
    from pydanube_core.http2 import Stream
    from pydanube_core.http2.head import AnswerHead

COPY: Final = STREAM["Copy"].path


class OpenSource(Protocol):
    """Opens the source of a stream's copies. Raises `ClusterError`: the caller may not copy."""

    def __call__(self, *, send: Callable[[Answer], None], writable: Callable[[], bool]) -> Source: ...


class CopyStream:
    """One peer's copies (`rpc.hot.HotStream`)."""

    def __init__(self, reply: StreamReply, open_source: OpenSource) -> None:
        self._reply = reply
        self._open_source = open_source
        self._source: Source | None = None

    def on_message(self, message: bytes) -> None:
        if self._source is None:
            self._source = self._open_source(
                send=lambda answer: self._reply.send(_encode_answer(answer)),
                writable=lambda: self._reply.writable,
            )
        self._source.handle(_decode_request(message))

    def on_credit(self) -> None:
        if self._source is not None:
            self._source.wake()

    def on_half_close(self) -> None:
        self._reply.end()

    def on_close(self) -> None:
        if self._source is not None:
            self._source.close()


def copy_stream(reply: StreamReply, relay: Relay | None, moves: Moves) -> CopyStream:
    """Serve the copies of another broker of this cluster."""

    def open_source(*, send: Callable[[Answer], None], writable: Callable[[], bool]) -> Source:
        shown = dict(reply.caller.metadata).get(RELAYED.decode())
        if relay is None or relay.membership is None or not isinstance(shown, str):
            raise not_a_member()
        relay.membership.check(shown.encode())
        return moves.source(BrokerId(int(shown.partition(".")[0])), send=send, writable=writable)

    return CopyStream(reply, open_source)


class LinkWire(BrokerCall):
    """A stream to another broker over a link (`copying.target.Wire`)."""

    def __init__(self, links: Links, headers: Headers, url: str, answers: Answers) -> None:
        super().__init__(url)
        self._answers: Answers | None = answers
        self._early: list[Request] = []  # before the link is there
        self._reader = MessageReader(limit=MAX_ANSWER_BYTES, unpacker=None)
        self._link: Link | None = None
        self._stream: Stream | None = None

        def go(link: Link | str) -> None:
            if self._answers is None:
                return
            if isinstance(link, str):
                self.on_lost(link, untouched=True)
                return
            self._link, self._stream = link, link.start(headers, self)
            early, self._early = self._early, []
            for request in early:
                self.send(request)

        links.reach(url, go)

    def send(self, request: Request) -> None:
        if self._link is None or self._stream is None:
            self._early.append(request)
            return
        self._link.http.out.data(self._stream, frame(_encode_request(request)))
        self._link.send()

    def close(self) -> None:
        self._answers = None
        if self._link is not None and self._stream is not None:
            self._link.cancel(self._stream)
        self._link = self._stream = None

    def on_head(self, head: AnswerHead, *, ended: bool) -> None:
        if ended:
            error = error_in(decode_metadata(head.fields))
            self._end(error or Unavailable(f"the broker at {self.url} ended the copy", broker=self.url))

    def on_data(self, data: bytes, start: int, end: int, *, ended: bool) -> None:
        try:
            for message in self._reader.feed(data, start, end):
                if self._answers is not None:
                    self._answers.answered(_decode_answer(message))
        # Raised into the connection, it would end the streams of all other calls
        except (DecodeError, WireError) as error:
            if self._link is not None and self._stream is not None:
                self._link.cancel(self._stream)
            self._end(
                CorruptObject(
                    f"the broker at {self.url} sent an answer that cannot be read ({error!s:.200}). It has to run pydanube of "
                    "this version",
                    broker=self.url,
                )
            )
        if ended:
            self.on_lost(NO_STATUS, untouched=False)

    def _end(self, error: ClusterError) -> None:
        answers, self._answers = self._answers, None
        self._link = self._stream = None
        if answers is not None:
            answers.lost(error)


class NoWire:
    """A stream to a broker that cannot be called: it was lost before it began."""

    def send(self, request: Request) -> None: ...

    def close(self) -> None: ...


def wires(
    relay: Relay, url_of: Callable[[BrokerId], str]
) -> Callable[[BrokerId, Answers], LinkWire | NoWire]:
    """Return a function that opens a copy's stream to a broker. `url_of` returns its address, "" if it has none."""

    def open_wire(broker_id: BrokerId, answers: Answers) -> LinkWire | NoWire:
        url = url_of(broker_id)
        if not url:
            answers.lost(Unavailable(f"broker {broker_id} is not registered", broker_id=str(broker_id)))
            return NoWire()
        return LinkWire(relay.links, relay.make_head(url, COPY), url, answers)

    return open_wire


def _decode_request(message: bytes) -> Request:
    request = pb.CopyRequest.FromString(message)
    match request.WhichOneof("kind"):
        case "topic":
            topic = request.topic
            return Round(
                topic_id=topic.topic_id,
                number=topic.round,
                revision=topic.revision,
                first=topic.first if topic.HasField("first") else None,
                last=topic.last,
                credit=topic.credit,
                follow=topic.follow,
                previous_time_ms=topic.previous_time_ms,
                topic=topic.topic,
            )
        case "credit":
            return Grant(request.credit.topic_id, request.credit.bytes)
        case "leave":
            return Leave(request.leave.topic_id)
        case _:
            raise InvalidArgument(
                "a request of a copy is a topic, credit, or the end of a topic", field="kind", value=""
            )


def _encode_request(request: Request) -> bytes:
    match request:
        case Round():
            topic = pb.CopyTopic(
                topic_id=request.topic_id,
                round=request.number,
                revision=request.revision,
                first=request.first,
                last=request.last,
                credit=request.credit,
                follow=request.follow,
                previous_time_ms=request.previous_time_ms,
                topic=request.topic,
            )
            return pb.CopyRequest(topic=topic).SerializeToString()
        case Grant(topic_id, count):
            return pb.CopyRequest(credit=pb.CopyCredit(topic_id=topic_id, bytes=count)).SerializeToString()
        case Leave(topic_id):
            return pb.CopyRequest(leave=pb.CopyLeave(topic_id=topic_id)).SerializeToString()


def _encode_answer(answer: Answer) -> bytes:
    match answer:
        case Start(topic_id, number, size):
            start = pb.CopyStart(topic_id=topic_id, round=number, bytes=size)
            return pb.CopyResponse(start=start).SerializeToString()
        case Marks():
            marks = pb.CopyMarks(
                topic_id=answer.topic_id,
                round=answer.number,
                start=answer.start,
                end=answer.end,
                time_ms=answer.time_ms,
                cursors=[
                    pb.CopyCursor(subscription=name, snapshot=each) for name, each in answer.cursors.items()
                ],
                sessions=[pb.CopySession(**each._asdict()) for each in answer.sessions],
                fenced=answer.fenced,
            )
            return pb.CopyResponse(marks=marks).SerializeToString()
        case Chunk(topic_id, number, data, ends_piece):
            chunk = pb.CopyChunk(topic_id=topic_id, round=number, data=data, ends_piece=ends_piece)
            return pb.CopyResponse(chunk=chunk).SerializeToString()
        case End(topic_id, number, end):
            return pb.CopyResponse(
                end=pb.CopyEnd(topic_id=topic_id, round=number, end=end)
            ).SerializeToString()
        case Failure(topic_id, number, error):
            failure = pb.CopyFailure(topic_id=topic_id, round=number, error=error.to_json().encode())
            return pb.CopyResponse(failure=failure).SerializeToString()


def _decode_answer(message: bytes) -> Answer:
    answer = pb.CopyResponse.FromString(message)
    match answer.WhichOneof("kind"):
        case "start":
            return Start(answer.start.topic_id, answer.start.round, answer.start.bytes)
        case "chunk":
            chunk = answer.chunk
            return Chunk(chunk.topic_id, chunk.round, chunk.data, chunk.ends_piece)
        case "marks":
            marks = answer.marks
            if len(marks.cursors) > MOST_CURSORS or len(marks.sessions) > MOST_CURSORS:
                raise DecodeError(
                    f"marks of {len(marks.cursors)} cursors and {len(marks.sessions)} sessions, at most {MOST_CURSORS} of each"
                )
            return Marks(
                topic_id=marks.topic_id,
                number=marks.round,
                start=marks.start,
                end=marks.end,
                time_ms=marks.time_ms,
                cursors={each.subscription: each.snapshot for each in marks.cursors},
                sessions=[
                    SessionMark(each.producer_id, each.epoch, each.token, each.name)
                    for each in marks.sessions
                ],
                fenced=marks.fenced,
            )
        case "end":
            return End(answer.end.topic_id, answer.end.round, answer.end.end)
        case _:
            failure = answer.failure
            error = ClusterError.from_json(failure.error.decode(errors="replace"))
            return Failure(failure.topic_id, failure.round, error)
